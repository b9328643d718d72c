//! What the local manager and the adapters in its program's processes tell each other: the claim is relayed
//! down, and what the runtimes asked for comes up. A program whose runtimes follow is malleable.

use super::Managed;
use super::follower::Follower;
use super::locks::Locks;
use crate::live::{FoundRegion, Live};
use corewise_decide::cpus::CpuSet;
use corewise_decide::status::{Placement, Wants};
use corewise_wire::{Error, Link, is_gone};
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corewise_abi::reports::{Report, adapters as bits};

/// The adapters of one program, as its local manager sees them.
#[derive(Debug)]
pub struct Adapters {
    link: Link,
    /// What the program may use where no manager says anything.
    alone: Option<u32>,
    /// What processes told that have ended since.
    past: Mutex<Told>,
    /// Whether blocked time is counted.
    counting: bool,
}

/// What came of the adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Followed {
    /// Which runtimes followed.
    pub runtimes: Vec<&'static str>,
    /// Occasions to follow, such as parallel regions that began.
    pub occasions: u64,
    /// How many of them were made smaller.
    pub shrunk: u64,
    /// How many would have been made smaller, but demanded their number.
    pub demanded: u64,
    /// Where threads were blocked; `None` where that was not counted.
    pub locks: Option<Locks>,
}

impl Adapters {
    /// Makes the pages for adapters; `alone` is the number of threads that the program may run where no
    /// manager says anything, `None` if that is its own affair. Call it from a thread that lives as long as
    /// the program is managed: with its end the claim ends.
    ///
    /// # Errors
    /// When there is no memory, or no descriptor left.
    pub fn create(alone: Option<u32>) -> Result<Adapters, Error> {
        let adapters = Adapters {
            link: Link::create()?,
            alone,
            past: Mutex::default(),
            counting: false,
        };
        adapters.release();
        Ok(adapters)
    }

    /// The variable, and its value, that leads the adapters to the pages.
    ///
    /// # Errors
    /// [`Error::System`], when the pages cannot be asked who they are.
    pub fn variable(&self) -> Result<(&'static str, String), Error> {
        self.link.variable()
    }

    /// Has the time counted that threads are blocked in locks, from now on.
    pub fn count_locks(&mut self) {
        self.counting = true;
        self.link.locks().count(true);
    }

    /// Begins to search the number of threads of each parallel region, while the program runs; `known` is
    /// what an earlier run has found, `budget` the part of the time that slower numbers may lose
    /// ([`corewise_decide::live`]).
    ///
    /// # Errors
    /// When no thread is to be had.
    pub fn tune(&self, known: &[FoundRegion], budget: f64) -> std::io::Result<Live> {
        Live::start(self.link.claim(), self.link.regions(), known, budget)
    }

    /// What has been told so far.
    fn told(&self) -> Told {
        let mut told = *self.past();
        for report in self.link.reports().taken() {
            told.add(report);
        }
        told
    }

    /// What came of it so far.
    fn followed(&self) -> Followed {
        let told = self.told();
        Followed {
            runtimes: told.runtimes(),
            occasions: told.occasions,
            shrunk: told.shrunk,
            demanded: told.demanded,
            locks: self.locks(&told),
        }
    }

    /// Where threads were blocked, if that is counted.
    fn locks(&self, told: &Told) -> Option<Locks> {
        let page = self.link.locks();
        (self.counting && page.is_loaded()).then(|| Locks::read(page, told.created, told.ended))
    }

    fn past(&self) -> MutexGuard<'_, Told> {
        // Numbers are whole whenever another can see them.
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower for Adapters {
    fn grant(&self, threads: u32, cpus: &CpuSet) {
        self.link.grant(threads, cpus.iter());
    }

    fn release(&self) {
        match self.alone {
            Some(threads) => self.link.grant(threads, []),
            None => self.link.release(),
        }
    }

    fn wants(&self) -> Option<Wants> {
        let reports = self.link.reports();
        reports.free(is_gone, |last| self.past().add(last));
        let following = reports
            .taken()
            .filter(|r| r.adapters.load(Ordering::Relaxed) != 0);
        let asked = following.map(|r| r.asked.load(Ordering::Relaxed)).max()?;
        Some(Wants {
            min_threads: 1,
            max_threads: asked.max(1),
            placement: Placement::Any,
            malleable: true,
        })
    }

    /// Of the region that began last (of several processes: the largest).
    fn running(&self) -> Option<(u32, u64)> {
        let reports = self.link.reports().taken();
        let following = reports.filter(|r| r.adapters.load(Ordering::Relaxed) != 0);
        following
            .map(|r| {
                let run = r.given.load(Ordering::Relaxed).max(1);
                (run, r.occasions.load(Ordering::Relaxed))
            })
            .reduce(|(run, occasions), (other, more)| (run.max(other), occasions + more))
    }

    fn names(&self) -> Vec<&'static str> {
        self.told().runtimes()
    }

    /// A variable may have told them to sleep: then they only have fewer threads than they could.
    fn spins(&self) -> bool {
        let reports = self.link.reports().taken();
        reports
            .map(|report| report.adapters.load(Ordering::Relaxed))
            .any(spins)
    }

    fn tell(&self, managed: &mut Managed) {
        managed.followed = Some(self.followed());
    }
}

/// Whether threads of a process with these adapters wait for each other in loops. OpenMP's runtimes do, for regions
/// and barriers, and so do OpenBLAS's threads; oneTBB's look for other work. An adapter of OpenMP or oneTBB is one
/// that has been used; OpenBLAS is there as soon as NumPy is. So where oneTBB is used, too, it says nothing: to
/// count numba's loops as spinning would leave a third of its share to others.
fn spins(adapters: u32) -> bool {
    adapters & (bits::LIBGOMP | bits::LLVM_OPENMP) != 0
        || adapters & (bits::OPENBLAS | bits::ONETBB) == bits::OPENBLAS
}

/// The sum of some reports.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    adapters: u32,
    occasions: u64,
    shrunk: u64,
    demanded: u64,
    created: u64,
    ended: u64,
}

impl Told {
    fn runtimes(&self) -> Vec<&'static str> {
        let named = bits::NAMES.iter();
        let named = named.filter(|(bit, _)| self.adapters & bit != 0);
        named.map(|(_, name)| *name).collect()
    }

    fn add(&mut self, report: &Report) {
        self.adapters |= report.adapters.load(Ordering::Relaxed);
        self.occasions += report.occasions.load(Ordering::Relaxed);
        self.shrunk += report.shrunk.load(Ordering::Relaxed);
        self.demanded += report.demanded.load(Ordering::Relaxed);
        self.created += u64::from(report.created.load(Ordering::Relaxed));
        self.ended += u64::from(report.ended.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_pid() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn without_a_manager_the_number_that_was_chosen_binds() {
        let adapters = Adapters::create(Some(3)).unwrap();
        assert_eq!(adapters.link.binding(), Some(3));
        adapters.grant(1, &CpuSet::first(1));
        assert_eq!(adapters.link.binding(), Some(1));
        adapters.release();
        assert_eq!(adapters.link.binding(), Some(3));
        assert_eq!(Adapters::create(None).unwrap().link.binding(), None);
    }

    #[test]
    fn a_program_is_malleable_once_a_runtime_of_it_follows() {
        let adapters = Adapters::create(None).unwrap();
        assert_eq!(adapters.wants(), None);
        let report = adapters.link.reports().take(own_pid()).unwrap();
        assert_eq!(adapters.wants(), None);
        report.adapters.store(bits::LIBGOMP, Ordering::Relaxed);
        report.note(8, 2);
        let wants = adapters.wants().unwrap();
        assert!(wants.malleable);
        assert_eq!((wants.min_threads, wants.max_threads), (1, 8));
        let followed = adapters.followed();
        assert_eq!(followed.runtimes, ["libgomp"]);
        assert_eq!((followed.occasions, followed.shrunk), (1, 1));
    }

    #[test]
    fn a_program_that_only_has_openblas_beside_the_onetbb_that_it_uses_does_not_spin() {
        let adapters = Adapters::create(None).unwrap();
        let report = adapters.link.reports().take(own_pid()).unwrap();
        let with = |bits| {
            report.adapters.store(bits, Ordering::Relaxed);
            adapters.spins()
        };
        assert!(!with(0));
        assert!(with(bits::OPENBLAS));
        assert!(!with(bits::OPENBLAS | bits::ONETBB));
        assert!(!with(bits::ONETBB));
        assert!(with(bits::OPENBLAS | bits::ONETBB | bits::LIBGOMP));
        assert!(with(bits::LLVM_OPENMP));
    }

    #[test]
    fn processes_that_have_ended_report_no_more() {
        let adapters = Adapters::create(None).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let report = adapters.link.reports().take(pid).unwrap();
        report.adapters.store(bits::LIBGOMP, Ordering::Relaxed);
        child.wait().unwrap();
        assert_eq!(adapters.wants(), None);
        assert_eq!(adapters.followed().runtimes, ["libgomp"]);
    }
}
