//! A thread that runs soon after it is woken, and never for long.
//!
//! Linux gives CPU time in slices; from 6.12 on a thread may ask for a shorter one than usual, which
//! lets it run sooner after it was woken, and no more in all. Needs no privilege. Earlier kernels ignore it.
//!
//! # Safety
//! Two system calls on a struct of the size that it says it has.
#![allow(unsafe_code)]

/// The shortest slice that the kernel gives, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// The kernel's `struct sched_attr` in its first form.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks for the shortest slice for the calling thread, which keeps its priority. Does nothing where that
/// cannot be had.
pub fn run_soon_when_woken() {
    const SIZE: u32 = size_of::<Attributes>() as u32;
    let mut attributes = Attributes::default();
    let at = &raw mut attributes;
    // SAFETY: the struct lives through both calls and has the size that they are told.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, at, SIZE, 0) != 0
            || (*at).policy != libc::SCHED_OTHER as u32
        {
            return;
        }
        (*at).runtime_ns = SLICE_NS;
        libc::syscall(libc::SYS_sched_setattr, 0, at, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Attributes {
        let mut attributes = Attributes::default();
        let size = size_of::<Attributes>();
        // SAFETY: as above.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(done, 0);
        attributes
    }

    #[test]
    fn the_threads_priority_stays() {
        std::thread::spawn(|| {
            let before = own();
            run_soon_when_woken();
            let after = own();
            assert_eq!((before.policy, before.nice), (after.policy, after.nice));
        })
        .join()
        .unwrap();
    }
}
