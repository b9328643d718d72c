//! Shared memory that can be read and written without danger, whatever the other side does.
//!
//! Safety: a [`Mapped<T>`] is a whole page of a memfd whose size is sealed before it is mapped, so no
//! access can fault (SIGBUS needs a file that became shorter). The page types of `corewise-abi` consist
//! of atomics only, for which every bit pattern is valid and which others may write at any time; they
//! fit in a page, whose alignment is larger than theirs (checked at compile time there and here). The
//! mapping is unmapped once, when its only owner is dropped, and no reference can outlive that owner.
//! A page mapped for reading is only handed out by types that call nothing that writes.
#![allow(unsafe_code)]

use corewise_abi::PAGE_BYTES;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use corewise_abi::claim::ClaimPage;
use corewise_abi::locks::LocksPage;
use corewise_abi::progress::ProgressPage;
use corewise_abi::regions::RegionsPage;
use corewise_abi::reports::ReportsPage;

/// The types that may be laid over a page: atomics only, no larger than a page.
pub(crate) trait Page {}
impl Page for ClaimPage {}
impl Page for ProgressPage {}
impl Page for ReportsPage {}
impl Page for RegionsPage {}
impl Page for LocksPage {}

const _: () = assert!(size_of::<ClaimPage>() <= PAGE_BYTES && align_of::<ClaimPage>() <= 4096);
const _: () =
    assert!(size_of::<ProgressPage>() <= PAGE_BYTES && align_of::<ProgressPage>() <= 4096);
const _: () = assert!(size_of::<ReportsPage>() <= PAGE_BYTES && align_of::<ReportsPage>() <= 4096);

/// What a page of shared memory must be sealed against, so that it can be mapped without danger.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A page of shared memory.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    address: NonNull<T>,
    _kind: PhantomData<T>,
}

// SAFETY: it owns its mapping, and what is in it are atomics.
unsafe impl<T: Page + Sync> Send for Mapped<T> {}
// SAFETY: shared references only reach atomics.
unsafe impl<T: Page + Sync> Sync for Mapped<T> {}

impl<T: Page> Mapped<T> {
    /// Makes a page of zeroes, maps it for reading and writing, and then seals it: its size for ever,
    /// and with `read_only` against everybody else's writing, too.
    pub(crate) fn create(name: &str, read_only: bool) -> Result<(Mapped<T>, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SIZE_SEALS)?;
        let page = map(&file, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut seals = SealFlags::SEAL;
        if read_only {
            // After our own mapping, which stays writable.
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok((page, file))
    }

    /// Maps a page that somebody else made; with `writable`, for writing too.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn of_other(file: &OwnedFd, writable: bool) -> Result<Mapped<T>, String> {
        let found = rustix::fs::fstat(file).map_err(|e| e.to_string())?;
        let expected = PAGE_BYTES as u64;
        if u64::try_from(found.st_size) != Ok(expected) {
            return Err(format!("it has {} bytes, not {expected}", found.st_size));
        }
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|e| format!("no seals ({e})"))?;
        if !seals.contains(SIZE_SEALS) {
            return Err("its size is not sealed".to_owned());
        }
        if !writable && !seals.intersects(SealFlags::FUTURE_WRITE.union(SealFlags::WRITE)) {
            return Err("it is not sealed against writing".to_owned());
        }
        // The size was read before the seals: only now nobody can change it any more.
        let again = rustix::fs::fstat(file).map_err(|e| e.to_string())?;
        if again.st_size != found.st_size {
            return Err("its size changed meanwhile".to_owned());
        }
        let protection = match writable {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        map(file, protection).map_err(|e| format!("it cannot be mapped ({e})"))
    }
}

fn map<T: Page>(file: &OwnedFd, protection: ProtFlags) -> Result<Mapped<T>, Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
    let address = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    let address = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
    Ok(Mapped {
        address,
        _kind: PhantomData,
    })
}

impl<T> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: see the module: the mapping lives as long as `self`, holds a valid T, cannot fault.
        unsafe { self.address.as_ref() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nobody can reach it any more. That it
        // should fail cannot be helped: the page then stays mapped.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// Tells the process that joined from a forked child of it, which has no claim. Shared pages are
/// inherited by fork(2); taking them away (MADV_DONTFORK) would make a child that only looks at its
/// claim crash. This is a private page that the kernel wipes in the child (MADV_WIPEONFORK, since
/// Linux 4.14).
#[derive(Debug)]
pub(crate) struct ForkMark {
    /// `None` where the kernel cannot wipe: then by process number.
    word: Option<NonNull<AtomicU32>>,
    pid: u32,
}

// SAFETY: it owns its mapping, and what is in it is an atomic.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Marks the calling process.
    pub(crate) fn new() -> ForkMark {
        ForkMark {
            word: wiped_on_fork().ok(),
            pid: std::process::id(),
        }
    }

    /// Whether the calling process is the one that was marked. Costs a load.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        match self.word {
            // SAFETY: the mapping lives as long as `self` and holds a valid atomic.
            Some(word) => unsafe { word.as_ref() }.load(Ordering::Relaxed) == 1,
            None => std::process::id() == self.pid,
        }
    }
}

fn wiped_on_fork() -> Result<NonNull<AtomicU32>, Errno> {
    // SAFETY: a new private mapping touches no memory of ours.
    let address = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            PAGE_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    // SAFETY: the mapping is ours, of this length, and holds nothing yet.
    let wiped = unsafe { rustix::mm::madvise(address, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    if let Err(errno) = wiped {
        // SAFETY: as above; nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(address, PAGE_BYTES) };
        return Err(errno);
    }
    let word: NonNull<AtomicU32> = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
    // SAFETY: zeroed, aligned memory of ours.
    unsafe { word.as_ref() }.store(1, Ordering::Relaxed);
    Ok(word)
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        if let Some(word) = self.word {
            // SAFETY: the mapping is ours, of this length, and nobody can reach it any more.
            let _ = unsafe { rustix::mm::munmap(word.as_ptr().cast(), PAGE_BYTES) };
        }
    }
}
