//! Pages cross between processes, and none that could make its reader fault is ever mapped.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_wire::abi::PAGE_BYTES;
use corewise_wire::abi::claim::State;
use corewise_wire::{ClaimReader, ClaimWriter, Error, ProgressReader, ProgressWriter};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn claim() -> (ClaimWriter, ClaimReader) {
    let (writer, file) = ClaimWriter::create(1).unwrap();
    (writer, ClaimReader::map(file).unwrap())
}

#[test]
fn a_grant_is_read_on_the_other_side() {
    let (mut writer, reader) = claim();
    assert_eq!(reader.state(), State::Waiting);
    assert_eq!(reader.granted().generation, 0);
    let generation = writer.grant(3, [0, 65]);
    assert_eq!(reader.state(), State::Managed);
    assert_eq!(reader.granted().generation, generation);
    assert_eq!(reader.granted().threads, 3);
    let mut cpus = [0; 4];
    assert_eq!(reader.cpus(&mut cpus), Some(generation));
    assert_eq!(cpus, [1, 2, 0, 0]);
    writer.end();
    assert_eq!(reader.state(), State::Ended);
}

#[test]
fn progress_is_read_on_the_other_side() {
    let (reader, file) = ProgressReader::create().unwrap();
    let writer = ProgressWriter::map(file).unwrap();
    writer.progress.store(42, Ordering::Relaxed);
    writer.could_use.store(5, Ordering::Relaxed);
    assert_eq!(reader.read().progress, 42);
    assert_eq!(reader.read().could_use, 5);
    assert!(writer.is_ours());
}

#[test]
fn a_sleeper_wakes_up_on_a_grant() {
    let (mut writer, reader) = claim();
    let seen = reader.granted().generation;
    let sleeper = std::thread::spawn(move || {
        let changed = reader.wait(seen, Some(Duration::from_secs(60)));
        (changed, reader.granted().threads)
    });
    writer.grant(7, [0]);
    assert_eq!(sleeper.join().unwrap(), (true, 7));
}

#[test]
fn a_sleeper_wakes_up_at_the_managers_end_and_without_a_change_at_its_time() {
    let (mut writer, reader) = claim();
    assert!(!reader.wait(0, Some(Duration::from_millis(1))));
    let sleeper = std::thread::spawn(move || reader.wait(0, None));
    writer.end();
    assert!(sleeper.join().unwrap());
}

#[test]
fn nobody_but_the_manager_can_change_a_claim_page_or_its_size() {
    let (writer, file) = ClaimWriter::create(1).unwrap();
    assert!(ftruncate(&file, 0).is_err());
    assert!(ftruncate(&file, 8192).is_err());
    assert!(rustix::io::pwrite(&file, &[1; 64], 0).is_err());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&file, punch, 0, PAGE_BYTES as u64).is_err());
    assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    // Mapped for writing, as a hostile program would.
    assert!(matches!(
        ProgressWriter::map(file.try_clone().unwrap()),
        Err(Error::Page { .. })
    ));
    // Opened anew through /proc.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    if let Ok(anew) = std::fs::OpenOptions::new().write(true).open(path) {
        assert!(rustix::io::pwrite(&anew, &[1; 64], 0).is_err());
    }
    assert!(writer.page().is_valid());
}

#[test]
fn the_size_of_a_progress_page_cannot_be_changed_by_the_program() {
    let (reader, file) = ProgressReader::create().unwrap();
    assert!(ftruncate(&file, 0).is_err());
    assert!(ftruncate(&file, 8192).is_err());
    assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    // What it can do with its bytes is its own affair, and harmless.
    rustix::io::pwrite(&file, &[0xff; PAGE_BYTES], 0).unwrap();
    assert_eq!(reader.read().team, u32::MAX);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(&file, punch, 0, PAGE_BYTES as u64);
    let _ = reader.read();
}

/// A page as a hostile manager would make it.
fn made(size: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("made", flags).unwrap();
    ftruncate(&file, size).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn what_is_no_sealed_page_is_refused() {
    let page = PAGE_BYTES as u64;
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let all = size | SealFlags::FUTURE_WRITE;
    let bad = [
        made(0, all),
        made(page - 1, all),
        made(2 * page, all),
        made(page, SealFlags::empty()),
        made(page, SealFlags::GROW | SealFlags::FUTURE_WRITE),
        made(page, size),
        // Sealed, but of zeroes: the header is missing.
        made(page, all),
        tempfile::tempfile().unwrap().into(),
        rustix::pipe::pipe().unwrap().0,
    ];
    for (index, file) in bad.into_iter().enumerate() {
        let copy = file.try_clone().unwrap();
        let claim = ClaimReader::map(copy);
        assert!(matches!(claim, Err(Error::Page { .. })), "claim {index}");
        let progress = ProgressWriter::map(file);
        assert!(
            matches!(progress, Err(Error::Page { .. })),
            "progress {index}"
        );
    }
}

#[test]
fn one_kind_of_page_is_not_taken_for_the_other() {
    let (_reader, progress) = ProgressReader::create().unwrap();
    assert!(ClaimReader::map(progress).is_err());
    let (_writer, claim) = ClaimWriter::create(1).unwrap();
    assert!(ProgressWriter::map(claim).is_err());
}
