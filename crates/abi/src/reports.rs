//! The reports page: what the adapters in the processes of one program tell its local manager. Each
//! process writes its own report; the local manager reads them, and believes nothing that matters to
//! other programs.
//!
//! This page, and the claim page, the regions page and the locks page beside it, are kept by the local manager, in
//! memfds that the adapters open by way of `/proc`: [`LINK`] is the variable that says where.

use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use crate::{PAGE_BYTES, PageHeader};

const MAGIC: u32 = u32::from_le_bytes(*b"CWre");

/// The environment variable that leads adapters to their pages:
/// `PID:CLAIM:INODE:REPORTS:INODE:REGIONS:INODE:LOCKS:INODE`, where CLAIM, REPORTS, REGIONS and LOCKS are
/// descriptors of the process PID, each with the inode number that tells whether it is still the same file.
pub const LINK: &str = "COREWISE_LINK";

/// Processes of one program that can report at the same time. Others follow the claim, too, unseen.
pub const MOST_REPORTS: usize = 63;

/// What an adapter follows; bits of [`Report::adapters`].
pub mod adapters {
    /// OpenMP regions of GCC's runtime: the team of each region that begins.
    pub const LIBGOMP: u32 = 1;
    /// OpenBLAS with threads of its own: each call that begins.
    pub const OPENBLAS: u32 = 1 << 1;
    /// OpenMP regions of LLVM's or Intel's runtime.
    pub const LLVM_OPENMP: u32 = 1 << 2;
    /// oneTBB: workers join and leave.
    pub const ONETBB: u32 = 1 << 3;

    /// The bits with the names that people know.
    pub const NAMES: [(u32, &str); 4] = [
        (LIBGOMP, "libgomp"),
        (OPENBLAS, "OpenBLAS"),
        (LLVM_OPENMP, "LLVM OpenMP"),
        (ONETBB, "oneTBB"),
    ];
}

/// What one process tells. Its counters may lag behind, or be torn by a fork: they are for deciding how
/// much the program could use, never for what is right.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Report {
    /// The process, as its own PID namespace numbers it; 0: nobody reports here.
    pub pid: AtomicI32,
    /// What is followed; see [`adapters`].
    pub adapters: AtomicU32,
    /// Regions, or other occasions to follow the claim, so far.
    pub occasions: AtomicU64,
    /// The largest number of threads that one of them would have had without a claim.
    pub asked: AtomicU32,
    /// The number of threads that the last one was given.
    pub given: AtomicU32,
    /// How many of them were made smaller.
    pub shrunk: AtomicU64,
    /// How many would have been, but ask for their number in a way that only a listed library's may be
    /// changed.
    pub demanded: AtomicU64,
    /// Threads that were created while blocked time is counted.
    pub created: AtomicU32,
    /// How many of them have ended.
    pub ended: AtomicU32,
    /// Threads that are blocked now, as far as that is counted. One that left its wait by `longjmp` stays in it.
    pub blocked: AtomicU32,
}

impl Report {
    fn new() -> Report {
        Report {
            pid: AtomicI32::new(0),
            adapters: AtomicU32::new(0),
            occasions: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            given: AtomicU32::new(0),
            shrunk: AtomicU64::new(0),
            demanded: AtomicU64::new(0),
            created: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            blocked: AtomicU32::new(0),
        }
    }

    /// Makes the report another process's.
    fn clear(&self) {
        self.adapters.store(0, Ordering::Relaxed);
        self.occasions.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        self.given.store(0, Ordering::Relaxed);
        self.shrunk.store(0, Ordering::Relaxed);
        self.demanded.store(0, Ordering::Relaxed);
        self.created.store(0, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// Notes an occasion at which `asked` threads were wanted and `given` will run. Two atomic additions
    /// at most, about 10 ns.
    #[inline]
    pub fn note(&self, asked: u32, given: u32) {
        self.occasions.fetch_add(1, Ordering::Relaxed);
        if self.asked.load(Ordering::Relaxed) < asked {
            self.asked.store(asked, Ordering::Relaxed);
        }
        if self.given.load(Ordering::Relaxed) != given {
            self.given.store(given, Ordering::Relaxed);
        }
        if given < asked {
            self.shrunk.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The reports page. All fields are atomics at fixed offsets.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ReportsPage {
    header: PageHeader,
    _reserved: [AtomicU64; 6],
    reports: [Report; MOST_REPORTS],
}

const _: () = assert!(size_of::<ReportsPage>() <= PAGE_BYTES && size_of::<Report>() == 64);

impl Default for ReportsPage {
    fn default() -> ReportsPage {
        ReportsPage::new()
    }
}

impl ReportsPage {
    /// A page of zeroes in ordinary memory, as a mapped page is before [`ReportsPage::initialise`].
    pub fn new() -> ReportsPage {
        ReportsPage {
            header: PageHeader::new(),
            _reserved: core::array::from_fn(|_| AtomicU64::new(0)),
            reports: core::array::from_fn(|_| Report::new()),
        }
    }

    /// Makes a page of zeroes a reports page.
    pub fn initialise(&self) {
        self.header.initialise(MAGIC, size_of::<ReportsPage>(), 0);
    }

    /// Whether this is a reports page of a version that we can write.
    pub fn is_valid(&self) -> bool {
        self.header
            .read(MAGIC)
            .is_some_and(|(version, size)| version >= 1 && usize::from(size) >= size_of::<Self>())
    }

    /// Takes a report for the process `pid`: the one that it had before it executed another program, else
    /// a free one. `None` when all are taken.
    pub fn take(&self, pid: i32) -> Option<&Report> {
        let own = |report: &&Report| report.pid.load(Ordering::Relaxed) == pid;
        if let Some(report) = self.reports.iter().find(own) {
            report.clear();
            return Some(report);
        }
        let free = |report: &&Report| {
            let taken = report
                .pid
                .compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        let report = self.reports.iter().find(free)?;
        report.clear();
        Some(report)
    }

    /// Frees the reports of processes that are gone, after `last` has read each. Only the local manager
    /// does this.
    pub fn free(&self, gone: impl Fn(i32) -> bool, mut last: impl FnMut(&Report)) {
        for report in &self.reports {
            let pid = report.pid.load(Ordering::Relaxed);
            if pid != 0 && gone(pid) {
                last(report);
                // Another one of this number may have taken it meanwhile: it then reports unseen.
                let _ = report
                    .pid
                    .compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// The reports of those processes that report.
    pub fn taken(&self) -> impl Iterator<Item = &Report> {
        let taken = |report: &&Report| report.pid.load(Ordering::Relaxed) != 0;
        self.reports.iter().filter(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reports_in_one_place_also_after_it_executed_another_program() {
        let page = ReportsPage::new();
        page.initialise();
        assert!(page.is_valid());
        let Some(first) = page.take(7) else {
            panic!("no report is free on a new page");
        };
        first.note(4, 2);
        let Some(again) = page.take(7) else {
            panic!("the report of this process is gone");
        };
        assert!(core::ptr::eq(first, again));
        assert_eq!(again.occasions.load(Ordering::Relaxed), 0);
        assert_eq!(page.taken().count(), 1);
    }

    #[test]
    fn the_reports_of_processes_that_are_gone_are_free_again() {
        let page = ReportsPage::new();
        for pid in 1..=MOST_REPORTS as i32 {
            assert!(page.take(pid).is_some());
        }
        assert!(page.take(1_000).is_none());
        let mut seen = 0;
        page.free(|pid| pid == 5, |_| seen += 1);
        assert_eq!(seen, 1);
        assert!(page.take(1_000).is_some());
        assert_eq!(page.taken().count(), MOST_REPORTS);
    }

    #[test]
    fn what_was_asked_is_the_most_and_what_was_given_is_the_last() {
        let page = ReportsPage::new();
        let Some(report) = page.take(7) else {
            panic!("no report is free on a new page");
        };
        report.note(4, 4);
        report.note(2, 1);
        assert_eq!(report.asked.load(Ordering::Relaxed), 4);
        assert_eq!(report.given.load(Ordering::Relaxed), 1);
        assert_eq!(report.shrunk.load(Ordering::Relaxed), 1);
        assert_eq!(report.occasions.load(Ordering::Relaxed), 2);
    }
}
