//! Affinity masks of any size. rustix's and libc's `CpuSet` stop at 1,024 CPUs and make the kernel
//! of a larger machine refuse; here the mask grows until the kernel is content.
//!
//! Safety: the one system call writes at most as many bytes as it is told into a buffer that this
//! module owns and that is at least as long.
#![allow(unsafe_code)]

use std::io;

/// The CPUs on which a process's first thread may run, ascending. `pid` 0 is the calling thread.
///
/// Cost: one system call, under 1 µs.
pub(crate) fn of(pid: i32) -> io::Result<Vec<u32>> {
    let mut words = 16; // 1,024 CPUs
    loop {
        let mut mask = vec![0_u64; words];
        // SAFETY: the kernel writes at most `size_of_val(mask)` bytes, all of them inside `mask`,
        // which lives until after the call.
        let written = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                pid,
                std::mem::size_of_val(&mask[..]),
                mask.as_mut_ptr(),
            )
        };
        if written >= 0 {
            // The raw call returns the length of the kernel's own mask and leaves the rest zero.
            return Ok(cpus(&mask));
        }
        let error = io::Error::last_os_error();
        // EINVAL: the mask is shorter than the kernel's.
        if error.raw_os_error() != Some(libc::EINVAL) || words >= 1 << 14 {
            return Err(error);
        }
        words *= 2;
    }
}

fn cpus(mask: &[u64]) -> Vec<u32> {
    let mut cpus = Vec::new();
    for (index, &word) in mask.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            cpus.push(index as u32 * 64 + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_cpu_numbers_beyond_1024() {
        let mut mask = vec![0_u64; 32];
        mask[0] = 0b101;
        mask[31] = 1 << 63;
        assert_eq!(cpus(&mask), [0, 2, 2047]);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        assert!(!of(0).unwrap().is_empty());
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert_eq!(of(i32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
