//! Which part of its time a program spends in loops that wait, by samples of where its threads run.

use corewise_decide::gang::HARDLY_SPINS;
use corewise_decide::reading::ProgramReading;
use corewise_machine::program::{Detail, LockOption, MonitorOptions, ProgramMonitor};
use std::time::{Duration, Instant};

/// It is looked for so long.
const LOOK: Duration = Duration::from_millis(200);

/// Where nothing was found it is looked for again after this time, then after twice as long each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Looks for loops that wait, now and then.
#[derive(Debug)]
pub(super) struct Spinning {
    /// `None`: nobody looks, or nothing can be seen here.
    pid: Option<i32>,
    looking: Option<Looking>,
    thousandths: Option<u32>,
    next: Option<Instant>,
    wait: Duration,
}

/// A look that is not over.
#[derive(Debug)]
struct Looking {
    monitor: ProgramMonitor,
    first: ProgramReading,
    until: Instant,
}

impl Spinning {
    /// Looks at this process and all below it.
    pub(super) fn of(pid: i32) -> Spinning {
        Spinning {
            pid: Some(pid),
            ..Spinning::never()
        }
    }

    /// Never looks.
    pub(super) fn never() -> Spinning {
        Spinning {
            pid: None,
            looking: None,
            thousandths: None,
            next: None,
            wait: FIRST_WAIT,
        }
    }

    /// The part of the program's CPU time, in thousandths; `None`: nobody has looked yet, or hardly any was found.
    pub(super) fn thousandths(&self) -> Option<u32> {
        self.thousandths.filter(|part| *part >= HARDLY_SPINS)
    }

    pub(super) fn is_seen(&self) -> bool {
        self.thousandths().is_some()
    }

    pub(super) fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    /// Begins a look if it is `worth_it` and time for one, and ends one that has taken long enough.
    pub(super) fn look(&mut self, now: Instant, worth_it: bool) {
        let Some(pid) = self.pid else { return };
        match self.looking.take() {
            Some(looking) if now < looking.until => self.looking = Some(looking),
            Some(looking) => {
                self.thousandths = looking.end().or(self.thousandths);
                self.wait = match self.is_seen() {
                    // What is known to spin is seen to spin no longer some time later.
                    true => LONGEST_WAIT,
                    false => (self.wait * 2).min(LONGEST_WAIT),
                };
                self.next = Some(now + self.wait);
            }
            None if worth_it && self.next.is_none_or(|next| now >= next) => {
                self.looking = Looking::begin(pid, now);
                if self.looking.is_none() {
                    self.pid = None;
                }
            }
            None => {}
        }
    }
}

impl Looking {
    /// `None` if nothing can be seen: the program has ended, or samples are not to be had.
    fn begin(pid: i32, now: Instant) -> Option<Looking> {
        let options = MonitorOptions {
            lock: LockOption::Off,
            spin: true,
            regions: false,
            ..MonitorOptions::default()
        };
        let mut monitor = ProgramMonitor::attach(pid, options).ok()?;
        monitor.spin_method().method?;
        let first = monitor.sample(Detail::Full).ok()?;
        Some(Looking {
            monitor,
            first,
            until: now + LOOK,
        })
    }

    fn end(mut self) -> Option<u32> {
        let last = self.monitor.sample(Detail::Full).ok()?;
        thousandths(&self.first, &last)
    }
}

/// The part of the CPU time between two readings that was spent in loops that wait, in thousandths.
fn thousandths(first: &ProgramReading, last: &ProgramReading) -> Option<u32> {
    let sums = |reading: &ProgramReading| {
        let all = reading.threads.iter().chain([&reading.ended]);
        all.fold((0, 0), |(run, spin), thread| {
            (run + thread.run_ns, spin + thread.spin_ns.unwrap_or(0))
        })
    };
    let ((run_before, spin_before), (run, spin)) = (sums(first), sums(last));
    let ran = run.checked_sub(run_before).filter(|ran| *ran > 0)?;
    let spun = spin.saturating_sub(spin_before).min(ran);
    u32::try_from(u128::from(spun) * 1_000 / u128::from(ran)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::reading::ThreadReading;

    #[test]
    fn the_part_is_of_what_ran_meanwhile() {
        let reading = |run_ns, spin_ns| ProgramReading {
            threads: vec![ThreadReading {
                run_ns,
                spin_ns: Some(spin_ns),
                ..ThreadReading::default()
            }],
            ..ProgramReading::default()
        };
        assert_eq!(
            thousandths(&reading(100, 90), &reading(300, 190)),
            Some(500)
        );
        assert_eq!(thousandths(&reading(100, 90), &reading(100, 90)), None);
    }

    #[test]
    fn who_is_never_to_be_looked_at_is_not() {
        let mut spinning = Spinning::never();
        spinning.look(Instant::now(), true);
        assert!(!spinning.is_looking() && !spinning.is_seen());
    }
}
