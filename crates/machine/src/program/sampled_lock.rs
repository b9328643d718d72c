//! Time blocked on futexes, estimated from outside.
//!
//! What a thread does while it is off the CPU is seen only when somebody looks (its present system
//! call), but *how long* it was blocked is known exactly: the time that passed, less the time that
//! it ran and the time that it waited for a CPU, both counted by the kernel. So looking decides
//! only what a blocked interval is *called*, and a thread that neither ran nor waited since it was
//! last looked at needs no new look.
//!
//! A running thread's counters are up to a tick late, therefore an interval at whose end the
//! thread runs stays open until the thread is seen blocked, or for [`LONGEST_OPEN_NS`].

use super::parse::{self, SchedStat};

/// After this time an interval is closed even though the thread always ran when looked at; its
/// blocked part then counts as futex in the proportion seen so far.
const LONGEST_OPEN_NS: u64 = 100_000_000;

/// What a look at a thread showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It runs, or waits for a CPU.
    Runnable,
    /// It is blocked on a futex.
    Futex,
    /// It is blocked on something else.
    Other,
}

/// Reads what `/proc/PID/task/TID/syscall` says: `running`, or a number and its arguments.
pub(super) fn seen(text: &[u8]) -> Option<Seen> {
    if text.starts_with(b"running") {
        return Some(Seen::Runnable);
    }
    let first = text.split(|b| *b == b' ' || *b == b'\n').next()?;
    if first == b"-1" {
        // Blocked outside a system call, for instance by a page fault.
        return Some(Seen::Other);
    }
    let call = parse::number(first)?;
    Some(if is_futex(call) {
        Seen::Futex
    } else {
        Seen::Other
    })
}

/// Whether a system call number is one that waits on a futex.
fn is_futex(call: u64) -> bool {
    let futex = u64::try_from(libc::SYS_futex).unwrap_or(u64::MAX);
    // futex_waitv and futex_wait have the same numbers on all architectures that we build for.
    call == futex || call == 449 || call == 455
}

/// The estimate for one thread.
#[derive(Debug, Default)]
pub(super) struct SampledLock {
    since_ns: u64,
    counters: SchedStat,
    state: Option<Seen>,
    /// How often the thread was seen blocked, and how often of these on a futex.
    blocked_looks: u64,
    futex_looks: u64,
    lock_ns: u64,
}

impl SampledLock {
    /// A thread whose counters were `counters` at `time_ns`.
    pub(super) fn new(time_ns: u64, counters: SchedStat) -> Self {
        Self {
            since_ns: time_ns,
            counters,
            ..Self::default()
        }
    }

    /// Time blocked on futexes so far, in nanoseconds.
    pub(super) fn lock_ns(&self) -> u64 {
        self.lock_ns
    }

    /// Takes new counters; `look` is called only if the thread must be looked at.
    pub(super) fn update(
        &mut self,
        time_ns: u64,
        counters: SchedStat,
        look: impl FnOnce() -> Option<Seen>,
    ) {
        let still = self.state.is_some_and(|s| s != Seen::Runnable) && counters == self.counters;
        if !still {
            self.state = look();
            match self.state {
                Some(Seen::Futex) => {
                    self.blocked_looks += 1;
                    self.futex_looks += 1;
                }
                Some(Seen::Other) => self.blocked_looks += 1,
                Some(Seen::Runnable) | None => {}
            }
        }
        let passed = time_ns.saturating_sub(self.since_ns);
        let used = counters.run_ns.saturating_sub(self.counters.run_ns)
            + counters
                .cpu_wait_ns
                .saturating_sub(self.counters.cpu_wait_ns);
        let blocked = passed.saturating_sub(used);
        match self.state {
            Some(Seen::Futex) => self.lock_ns += blocked,
            Some(Seen::Other) => {}
            Some(Seen::Runnable) | None if passed < LONGEST_OPEN_NS => return,
            Some(Seen::Runnable) | None => {
                if self.blocked_looks > 0 {
                    let share = self.futex_looks as f64 / self.blocked_looks as f64;
                    self.lock_ns += (blocked as f64 * share) as u64;
                }
            }
        }
        self.since_ns = time_ns;
        self.counters = counters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(run_ns: u64, cpu_wait_ns: u64) -> SchedStat {
        SchedStat {
            run_ns,
            cpu_wait_ns,
        }
    }

    #[test]
    fn text_of_the_syscall_file_is_told_apart() {
        assert_eq!(seen(b"running\n"), Some(Seen::Runnable));
        let futex = format!("{} 0x7f 0x80 0x2\n", libc::SYS_futex);
        assert_eq!(seen(futex.as_bytes()), Some(Seen::Futex));
        assert_eq!(seen(b"0 0x3 0x7f\n"), Some(Seen::Other));
        assert_eq!(seen(b"-1 0x7ffc 0x7f\n"), Some(Seen::Other));
        assert_eq!(seen(b""), None);
    }

    #[test]
    fn a_blocked_interval_counts_without_its_run_and_wait() {
        let mut lock = SampledLock::new(0, at(0, 0));
        lock.update(10_000_000, at(3_000_000, 1_000_000), || Some(Seen::Futex));
        assert_eq!(lock.lock_ns(), 6_000_000);
    }

    #[test]
    fn a_thread_that_did_nothing_is_not_looked_at_again() {
        let mut lock = SampledLock::new(0, at(5, 0));
        lock.update(10, at(5, 0), || Some(Seen::Futex));
        lock.update(30, at(5, 0), || panic!("looked again"));
        assert_eq!(lock.lock_ns(), 30);
    }

    #[test]
    fn a_running_end_keeps_the_interval_open() {
        let mut lock = SampledLock::new(0, at(0, 0));
        // The counters of a running thread are late: nothing may be called blocked yet.
        lock.update(10_000_000, at(6_000_000, 0), || Some(Seen::Runnable));
        assert_eq!(lock.lock_ns(), 0);
        lock.update(20_000_000, at(18_000_000, 0), || Some(Seen::Futex));
        assert_eq!(lock.lock_ns(), 2_000_000);
    }

    #[test]
    fn time_blocked_on_other_things_is_no_lock() {
        let mut lock = SampledLock::new(0, at(0, 0));
        lock.update(10, at(0, 0), || Some(Seen::Other));
        assert_eq!(lock.lock_ns(), 0);
    }

    #[test]
    fn a_long_open_interval_is_shared_as_seen_before() {
        let mut lock = SampledLock::new(0, at(0, 0));
        lock.update(10, at(1, 0), || Some(Seen::Futex));
        lock.update(20, at(2, 0), || Some(Seen::Other));
        let before = lock.lock_ns();
        lock.update(200_000_020, at(2, 0), || panic!("did nothing"));
        assert_eq!(lock.lock_ns(), before, "still blocked elsewhere");
        lock.update(400_000_020, at(100_000_002, 0), || Some(Seen::Runnable));
        assert_eq!(lock.lock_ns(), before + 50_000_000);
    }
}
