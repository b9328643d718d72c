//! The CPU time of a whole process tree: of a program that nobody changed, whose local manager stands
//! beside it. (A program that joins itself is one process, and its clock is one system call.)
//!
//! What a process's descendants have used is known to the kernel in two parts: those that were waited
//! for are in their parent's `cutime` and `cstime`, the living ones have clocks of their own. Processes
//! whose parent has ended before them are lost from sight.

use super::sys::{process_cpu_ns, ticks_per_second};
use procfs_core::FromRead as _;
use procfs_core::process::Stat;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;

/// The tree is listed at most this often, in nanoseconds; between, the known processes' clocks are read.
const LISTED_EVERY_NS: u64 = 50_000_000;

/// And at least so often, whatever the count of started processes says: it is the kernel's word on Linux, but
/// not everything that shows a `/proc/stat` counts.
const LISTED_ANYWAY_NS: u64 = 1_000_000_000;

/// Processes of a tree that are followed.
const MOST_PROCESSES: usize = 256;

/// Threads of a tree whose children are looked for.
const MOST_THREADS: usize = 1024;

/// A moment at which trees are read.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// Processes that speak for themselves.
    pub apart: &'a BTreeSet<i32>,
    /// Now, monotonic, in nanoseconds.
    pub now_ns: u64,
    /// How many processes and threads the machine has started, as counted shortly before: while it has started
    /// none, no tree has grown. `None` if nobody counts.
    pub started: Option<u64>,
}

/// The CPU time of a process and all below it; it never goes back.
#[derive(Debug, Default)]
pub struct TreeClock {
    known: Vec<i32>,
    /// Those that were left out of it, as they speak for themselves.
    left_out: Vec<i32>,
    /// What the machine had started before the last listing.
    started: Option<u64>,
    /// Time of those that were waited for, as of the last listing.
    waited_for_ns: u64,
    listed_ns: u64,
    highest_ns: u64,
}

impl TreeClock {
    /// CPU time that the process `root` and all below it have used, in nanoseconds, without those that are
    /// apart and what is below them. `None` if it is gone. Costs half a microsecond for each process, and
    /// a listing where the tree can have changed, up to 20 times a second: 10 µs for each process and
    /// thread.
    pub fn read(&mut self, root: i32, moment: Moment<'_>) -> Option<u64> {
        process_cpu_ns(root)?;
        if self.known.is_empty() || self.can_have_changed(moment) {
            self.listed_ns = moment.now_ns;
            self.started = moment.started;
            self.list(root, moment.apart);
        }
        let clocks = self.known.iter().filter_map(|pid| process_cpu_ns(*pid));
        let sum = clocks.fold(self.waited_for_ns, u64::saturating_add);
        // One that has ended is in nobody's clock until its parent has waited and we have listed.
        self.highest_ns = self.highest_ns.max(sum);
        Some(self.highest_ns)
    }

    /// Whether it is time to look, and there may be something to see.
    fn can_have_changed(&self, moment: Moment<'_>) -> bool {
        let since_ns = moment.now_ns.saturating_sub(self.listed_ns);
        if since_ns < LISTED_EVERY_NS {
            return false;
        }
        // A process is below another one by being started there, or by the end of one between them.
        since_ns >= LISTED_ANYWAY_NS
            || moment.started.is_none()
            || moment.started != self.started
            || self.left_out.iter().any(|pid| !moment.apart.contains(pid))
            || self
                .known
                .iter()
                .any(|pid| moment.apart.contains(pid) || process_cpu_ns(*pid).is_none())
    }

    fn list(&mut self, root: i32, apart: &BTreeSet<i32>) {
        self.known.clear();
        self.left_out.clear();
        self.known.push(root);
        self.waited_for_ns = 0;
        let mut threads = 0;
        let mut at = 0;
        while let Some(pid) = self.known.get(at).copied() {
            at += 1;
            let stat = fs::File::open(format!("/proc/{pid}/stat"));
            self.waited_for_ns += stat.ok().and_then(waited_for_ns).unwrap_or(0);
            let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for task in tasks.flatten() {
                threads += 1;
                if threads > MOST_THREADS {
                    break;
                }
                let children = fs::read_to_string(task.path().join("children"));
                for child in children.unwrap_or_default().split_ascii_whitespace() {
                    let Ok(child) = child.parse() else { continue };
                    if apart.contains(&child) {
                        self.left_out.push(child);
                    } else if self.known.len() < MOST_PROCESSES {
                        self.known.push(child);
                    }
                }
            }
        }
    }
}

/// `cutime` and `cstime` of a `stat` file.
fn waited_for_ns(stat: impl Read) -> Option<u64> {
    let stat = Stat::from_read(stat).ok()?;
    let ticks = u64::try_from(stat.cutime.checked_add(stat.cstime)?).ok()?;
    ticks.checked_mul(1_000_000_000 / ticks_per_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    fn at(apart: &BTreeSet<i32>, now_ns: u64) -> Moment<'_> {
        Moment {
            apart,
            now_ns,
            started: None,
        }
    }

    #[test]
    fn time_of_those_waited_for_is_found_behind_any_name() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 0 1 2 3 4 11 12 13 14 20 0 1 0 99 4096 7 \
                    18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 1\n";
        let tick = 1_000_000_000 / ticks_per_second();
        assert_eq!(waited_for_ns(stat.as_bytes()), Some(27 * tick));
        assert_eq!(waited_for_ns("7 (a".as_bytes()), None);
    }

    #[test]
    fn work_of_children_counts_while_they_live_and_after_and_never_goes_back() {
        let script = "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); echo done; \
                      (i=0; while :; do i=$((i+1)); done)";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let mut clock = TreeClock::default();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        // The first child has ended and was waited for.
        let nobody = BTreeSet::new();
        let own = process_cpu_ns(pid).unwrap();
        let after = clock.read(pid, at(&nobody, LISTED_EVERY_NS)).unwrap();
        assert!(after > own + 20_000_000, "{after} and {own} of its own");
        // The second one lives.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut now = 2 * LISTED_EVERY_NS;
        let mut last = after;
        while last < after + 50_000_000 {
            assert!(
                std::time::Instant::now() < end,
                "{last} is no more than {after}"
            );
            let read = clock.read(pid, at(&nobody, now)).unwrap();
            assert!(read >= last);
            last = read;
            now += LISTED_EVERY_NS / 3;
        }
        // The loop is a child of the shell; both end.
        for pid in clock.known.iter().rev() {
            let pid = rustix::process::Pid::from_raw(*pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        child.wait().unwrap();
        assert_eq!(clock.read(pid, at(&nobody, now)), None);
    }

    /// A shell with a child that sleeps, both ended at the end.
    struct Family {
        shell: std::process::Child,
        child: i32,
        lives: bool,
    }

    impl Family {
        fn start() -> Family {
            let mut shell = Command::new("sh")
                .args(["-c", "sleep 1000 & echo $!; wait; exec sleep 1000"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
            let child = lines.next().unwrap().unwrap().parse().unwrap();
            Family {
                shell,
                child,
                lives: true,
            }
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.shell.id()).unwrap()
        }

        fn kill_child(&mut self) {
            if !std::mem::take(&mut self.lives) {
                return;
            }
            let child = rustix::process::Pid::from_raw(self.child).unwrap();
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
    }

    impl Drop for Family {
        fn drop(&mut self) {
            self.kill_child();
            let _ = self.shell.kill();
            let _ = self.shell.wait();
        }
    }

    #[test]
    fn a_tree_is_listed_again_only_where_it_can_have_changed() {
        let family = Family::start();
        let (nobody, child) = (BTreeSet::new(), BTreeSet::from([family.child]));
        let mut clock = TreeClock::default();
        let moment = |apart, steps: u64, started| Moment {
            apart,
            now_ns: steps * LISTED_EVERY_NS,
            started: Some(started),
        };
        let listed = |clock: &mut TreeClock, moment| {
            clock.read(family.pid(), moment).unwrap();
            clock.listed_ns / LISTED_EVERY_NS
        };
        assert_eq!(listed(&mut clock, moment(&nobody, 10, 5)), 10);
        assert_eq!(clock.known, [family.pid(), family.child]);
        assert_eq!(listed(&mut clock, moment(&nobody, 11, 5)), 10);
        assert_eq!(listed(&mut clock, moment(&nobody, 12, 6)), 12);
        // One speaks for itself from now on, and then no more.
        assert_eq!(listed(&mut clock, moment(&child, 13, 6)), 13);
        assert_eq!(clock.known, [family.pid()]);
        assert_eq!(listed(&mut clock, moment(&child, 14, 6)), 13);
        assert_eq!(listed(&mut clock, moment(&nobody, 15, 6)), 15);
        assert_eq!(listed(&mut clock, moment(&nobody, 16, 6)), 15);
        // Whatever is said of what was started.
        assert_eq!(listed(&mut clock, moment(&nobody, 35, 6)), 35);
    }

    #[test]
    fn a_tree_is_listed_again_when_one_of_it_has_ended() {
        let mut family = Family::start();
        let nobody = BTreeSet::new();
        let mut clock = TreeClock::default();
        let root = family.pid();
        let mut now_ns = 0;
        let mut read = |clock: &mut TreeClock| {
            now_ns += LISTED_EVERY_NS / 10;
            let moment = Moment {
                apart: &nobody,
                now_ns,
                started: Some(1),
            };
            clock.read(root, moment).unwrap();
        };
        read(&mut clock);
        assert!(clock.known.contains(&family.child));
        family.kill_child();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while clock.known.contains(&family.child) {
            assert!(std::time::Instant::now() < end, "it is still known");
            std::thread::sleep(std::time::Duration::from_millis(1));
            read(&mut clock);
        }
    }
}
