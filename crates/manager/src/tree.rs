//! The CPU time of a whole process tree: of a program that nobody changed, whose local manager stands
//! beside it. (A program that joins itself is one process, and its clock is one system call.)
//!
//! What a process's descendants have used is known to the kernel in two parts: those that were waited
//! for are in their parent's `cutime` and `cstime`, the living ones have clocks of their own. Processes
//! whose parent has ended before them are lost from sight.

use corewise_machine::program::process_cpu_ns;
use std::collections::BTreeSet;
use std::fs;

/// The tree is listed at most this often, in nanoseconds; between, the known processes' clocks are read.
const LISTED_EVERY_NS: u64 = 50_000_000;

/// Processes of a tree that are followed.
const MOST_PROCESSES: usize = 256;

/// Threads of a tree whose children are looked for.
const MOST_THREADS: usize = 1024;

/// The CPU time of a process and all below it; it never goes back.
#[derive(Debug, Default)]
pub(crate) struct TreeClock {
    known: Vec<i32>,
    /// Time of those that were waited for, as of the last listing.
    waited_for_ns: u64,
    listed_ns: u64,
    highest_ns: u64,
}

impl TreeClock {
    /// CPU time that the process `root` and all below it have used, in nanoseconds, without those in
    /// `apart` (which speak for themselves) and what is below them. `None` if it is gone. Costs half
    /// a microsecond for each process, and up to 20 times a second a listing: 10 µs for each process
    /// and thread.
    pub(crate) fn read(&mut self, root: i32, apart: &BTreeSet<i32>, now_ns: u64) -> Option<u64> {
        process_cpu_ns(root)?;
        if self.known.is_empty() || now_ns >= self.listed_ns.saturating_add(LISTED_EVERY_NS) {
            self.listed_ns = now_ns;
            self.list(root, apart);
        }
        let clocks = self.known.iter().filter_map(|pid| process_cpu_ns(*pid));
        let sum = clocks.fold(self.waited_for_ns, u64::saturating_add);
        // One that has ended is in nobody's clock until its parent has waited and we have listed.
        self.highest_ns = self.highest_ns.max(sum);
        Some(self.highest_ns)
    }

    fn list(&mut self, root: i32, apart: &BTreeSet<i32>) {
        self.known.clear();
        self.known.push(root);
        self.waited_for_ns = 0;
        let mut threads = 0;
        let mut at = 0;
        while let Some(pid) = self.known.get(at).copied() {
            at += 1;
            let waited_for = fs::read_to_string(format!("/proc/{pid}/stat"));
            self.waited_for_ns += waited_for.ok().and_then(|s| waited_for_ns(&s)).unwrap_or(0);
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
                    if self.known.len() < MOST_PROCESSES && !apart.contains(&child) {
                        self.known.push(child);
                    }
                }
            }
        }
    }
}

/// `cutime` and `cstime` of a `stat` file.
fn waited_for_ns(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain anything; the state comes next, as the third field.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace().skip(16 - 3);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    ticks.checked_mul(1_000_000_000 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn time_of_those_waited_for_is_found_behind_any_name() {
        let stat = "7 (a) 1 (b) S 1 7 7 0 -1 0 1 2 3 4 11 12 13 14 20 0 1 0 99\n";
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        assert_eq!(waited_for_ns(stat), Some(27 * tick));
        assert_eq!(waited_for_ns("7 (a"), None);
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
        let after = clock.read(pid, &nobody, LISTED_EVERY_NS).unwrap();
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
            let read = clock.read(pid, &nobody, now).unwrap();
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
        assert_eq!(clock.read(pid, &nobody, now), None);
    }
}
