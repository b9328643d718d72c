//! The pages between a local manager and the adapters in its program's processes: the claim as it is
//! relayed to them (down), and what they tell (up): how they follow, how long regions take, and how long
//! threads are blocked. Adapters have no connection: they find the pages by a variable in their environment,
//! and learn from the page itself when its keeper has died.

use crate::Error;
use crate::keeper;
use crate::mapped::Mapped;
use crate::pages::wake;
use corewise_abi::claim::ClaimPage;
use corewise_abi::locks::LocksPage;
use corewise_abi::regions::RegionsPage;
use corewise_abi::reports::{LINK, ReportsPage};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The pages, as the local manager holds them.
///
/// They stay mapped until the process ends, and there can only be few in a process: make one for each
/// program.
#[derive(Debug)]
pub struct Link {
    claim: &'static ClaimPage,
    reports: &'static ReportsPage,
    regions: &'static RegionsPage,
    locks: &'static LocksPage,
    /// Of the claim, the reports, the regions, the locks.
    files: [OwnedFd; 4],
}

impl Link {
    /// Makes the pages, without a claim. Call it from a thread that lives as long as the process: with its
    /// end the claim ends.
    ///
    /// # Errors
    /// [`Error::System`], as when there are too many open files.
    pub fn create() -> Result<Link, Error> {
        let system = |error: Errno| Error::system("make pages for adapters")(error);
        let (claim, claim_file) =
            Mapped::<ClaimPage>::create("corewise-link", true).map_err(system)?;
        let (reports, reports_file) =
            Mapped::<ReportsPage>::create("corewise-reports", false).map_err(system)?;
        let (regions, regions_file) =
            Mapped::<RegionsPage>::create("corewise-regions", false).map_err(system)?;
        let (locks, locks_file) =
            Mapped::<LocksPage>::create("corewise-locks", false).map_err(system)?;
        let claim: &'static Mapped<ClaimPage> = Box::leak(Box::new(claim));
        let reports: &'static Mapped<ReportsPage> = Box::leak(Box::new(reports));
        let regions: &'static Mapped<RegionsPage> = Box::leak(Box::new(regions));
        let locks: &'static Mapped<LocksPage> = Box::leak(Box::new(locks));
        keeper::keep(claim).map_err(system)?;
        claim.initialise(std::process::id().cast_signed());
        reports.initialise();
        regions.initialise();
        locks.initialise();
        Ok(Link {
            claim,
            reports,
            regions,
            locks,
            files: [claim_file, reports_file, regions_file, locks_file],
        })
    }

    /// The variable, and its value, that leads a program's adapters to the pages.
    ///
    /// # Errors
    /// [`Error::System`] if the files cannot be asked who they are.
    pub fn variable(&self) -> Result<(&'static str, String), Error> {
        let mut value = std::process::id().to_string();
        for file in &self.files {
            let status = rustix::fs::fstat(file.as_fd())
                .map_err(Error::system("look at pages for adapters"))?;
            value += &format!(":{}:{}", file.as_raw_fd(), status.st_ino);
        }
        Ok((LINK, value))
    }

    /// Gives the adapters a claim, and wakes those that sleep. A claim without CPUs says nothing of CPUs.
    pub fn grant(&self, threads: u32, cpus: impl IntoIterator<Item = u32>) {
        self.claim.grant(threads, cpus);
        wake(self.claim);
    }

    /// Ends the claim: the program's threads are its own affair.
    pub fn release(&self) {
        self.claim.end();
        wake(self.claim);
    }

    /// How many threads the claim allows, if one binds.
    pub fn binding(&self) -> Option<u32> {
        self.claim.binding()
    }

    /// The claim as the adapters see it.
    pub fn claim(&self) -> &'static ClaimPage {
        self.claim
    }

    /// What the adapters tell.
    pub fn reports(&self) -> &ReportsPage {
        self.reports
    }

    /// How long regions take, and how many threads each is to have.
    pub fn regions(&self) -> &'static RegionsPage {
        self.regions
    }

    /// How long threads are blocked, and in whose calls.
    pub fn locks(&self) -> &'static LocksPage {
        self.locks
    }
}
