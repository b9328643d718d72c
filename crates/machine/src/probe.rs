//! Asks the kernel whether it would let us, without doing anything: an event that is opened and
//! closed at once, a BPF program of two instructions that is never attached, a setting for a process
//! that is not there.
//!
//! Safety: each call passes pointers to arrays of this module, which outlive the call, with their
//! true sizes; a descriptor that comes back is owned at once and closed when dropped.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `perf_event_attr` in its second size, which every kernel since 2.6.33 takes.
const ATTR_WORDS: usize = 9;
const ATTR_BYTES: u64 = (ATTR_WORDS * 8) as u64;
/// Flags: disabled, exclude_kernel, exclude_hv.
const DISABLED_USER_ONLY: u64 = 1 | 1 << 5 | 1 << 6;
const DISABLED: u64 = 1;

/// A count of processor cycles of this thread.
pub(crate) fn hardware_counter() -> io::Result<()> {
    const TYPE_HARDWARE: u64 = 0;
    let mut attr = [0; ATTR_WORDS];
    attr[0] = TYPE_HARDWARE | ATTR_BYTES << 32;
    attr[5] = DISABLED_USER_ONLY;
    perf_event(&attr)
}

/// Samples of this thread in user mode by a timer.
pub(crate) fn clock_samples() -> io::Result<()> {
    const TYPE_SOFTWARE: u64 = 1;
    const SAMPLE_IP: u64 = 1;
    let mut attr = [0; ATTR_WORDS];
    attr[0] = TYPE_SOFTWARE | ATTR_BYTES << 32; // config 0: the CPU clock
    attr[2] = 10_000_000;
    attr[3] = SAMPLE_IP;
    attr[5] = DISABLED_USER_ONLY;
    perf_event(&attr)
}

/// A probe in a program's own code, by the number of its event source. The file that is named does
/// not exist, so that nothing is ever probed: "no such file" means that it would be allowed.
pub(crate) fn user_probe(source: u32) -> io::Result<()> {
    let path: &CStr = c"/proc/self/no-such-file";
    let mut attr = [0; ATTR_WORDS];
    attr[0] = u64::from(source) | ATTR_BYTES << 32;
    attr[5] = DISABLED;
    attr[7] = path.as_ptr() as u64; // uprobe_path
    match perf_event(&attr) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn perf_event(attr: &[u64; ATTR_WORDS]) -> io::Result<()> {
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    // SAFETY: `attr` holds ATTR_BYTES readable bytes, as its size field says, and what it points to
    // is a static string; the kernel copies both.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.as_ptr(),
            0,  // this thread
            -1, // on any CPU
            -1, // no group
            CLOSE_ON_EXEC,
        )
    };
    own(fd)
}

/// A BPF program for raw tracepoints that returns 0. It is loaded, not attached.
pub(crate) fn bpf() -> io::Result<()> {
    const PROG_LOAD: libc::c_int = 5;
    const RAW_TRACEPOINT: u64 = 17;
    // r0 = 0; exit
    let program: [u64; 2] = [0xb7, 0x95];
    let licence: &CStr = c"GPL";
    let attr: [u64; 6] = [
        RAW_TRACEPOINT | (program.len() as u64) << 32,
        program.as_ptr() as u64,
        licence.as_ptr() as u64,
        0, // no log
        0,
        0,
    ];
    // SAFETY: `attr` is read up to its true size; the program and the licence it points to live
    // until after the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            attr.as_ptr(),
            std::mem::size_of_val(&attr),
        )
    };
    own(fd)
}

/// Setting the affinity of a process that cannot exist: "no such process" means that a filter on
/// system calls lets it through.
pub(crate) fn set_affinity() -> io::Result<()> {
    let mask = [1_u64; 16];
    // SAFETY: the kernel reads the mask's own size; no process has the number i32::MAX (the kernel's
    // limit is 2^22), so that nothing is set.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            i32::MAX,
            std::mem::size_of_val(&mask),
            mask.as_ptr(),
        )
    };
    match result {
        -1 => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            e => Err(e),
        },
        _ => Ok(()),
    }
}

fn own(fd: libc::c_long) -> io::Result<()> {
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel has just given us this descriptor and nobody else knows it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            Ok(())
        }
        _ => Err(io::Error::last_os_error()),
    }
}
