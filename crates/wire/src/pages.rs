//! The two pages of shared memory of a managed program, as manager and program hold them.

use crate::Error;
use crate::mapped::{ForkMark, Mapped};
use corewise_abi::MAX_CPUS;
use corewise_abi::claim::ClaimPage;
use corewise_abi::progress::ProgressPage;
use corewise_abi::turn::Turn;
use rustix::io::Errno;
use rustix::thread::futex;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A claim page, as the manager holds it: it alone can write.
#[derive(Debug)]
pub struct ClaimWriter {
    page: Mapped<ClaimPage>,
}

impl ClaimWriter {
    /// Makes a claim page without a grant. The descriptor is for the program: whoever has it can map
    /// the page for reading only, and cannot change its size.
    ///
    /// # Errors
    /// [`Error::System`], as when there are too many open files.
    pub fn create(manager_pid: i32) -> Result<(ClaimWriter, OwnedFd), Error> {
        let (page, file) =
            Mapped::create("corewise-claim", true).map_err(Error::system("make a claim page"))?;
        let writer = ClaimWriter { page };
        writer.page.initialise(manager_pid);
        Ok((writer, file))
    }

    /// Grants, and wakes those who sleep in [`ClaimReader::wait`]; gives the new generation. Costs a
    /// few nanoseconds and a system call (a microsecond).
    pub fn grant(&mut self, threads: u32, cpus: impl IntoIterator<Item = u32>) -> u32 {
        let generation = self.page.grant(threads, cpus);
        wake(&self.page);
        generation
    }

    /// Says when the program runs (`None`: always), and wakes those who sleep: what was granted is granted
    /// anew. Costs what a grant does.
    pub fn set_turn(&mut self, turn: Option<&Turn>) {
        self.page.set_turn(turn);
        let granted = self.page.granted();
        let mut words = [0; MAX_CPUS as usize / 64];
        // Before the first grant there is nothing to be granted anew, and nobody who waits.
        if granted.generation != 0 && self.page.cpus(&mut words).is_some() {
            let cpus = (0..MAX_CPUS).filter(|cpu| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1);
            self.grant(granted.threads, cpus);
        }
    }

    /// Says that the manager has ended, and wakes those who sleep: the claim binds no longer.
    pub fn end(&mut self) {
        self.page.end();
        wake(&self.page);
    }

    /// What the page says.
    pub fn page(&self) -> &ClaimPage {
        &self.page
    }
}

/// Wakes those who sleep until the next grant.
pub(crate) fn wake(page: &ClaimPage) {
    // It can only fail for an address that is no memory. Not private: the sleepers are others.
    let _ = futex::wake(page.futex(), futex::Flags::empty(), i32::MAX as u32);
}

/// A claim page, as the program holds it: mapped read-only. Derefs to the page.
#[derive(Debug)]
pub struct ClaimReader {
    page: Mapped<ClaimPage>,
    mark: ForkMark,
}

impl ClaimReader {
    /// Maps a claim page that a manager sent. The descriptor is closed; the page stays until this is
    /// dropped, whatever becomes of the manager.
    ///
    /// # Errors
    /// [`Error::Page`] if it has not the size of a page, is not sealed, or is no claim page of a
    /// version that we know.
    pub fn map(file: OwnedFd) -> Result<ClaimReader, Error> {
        let fail = |why| Error::Page { page: "claim", why };
        let page: Mapped<ClaimPage> = Mapped::of_other(&file, false).map_err(fail)?;
        if !page.is_valid() {
            return Err(fail("its header is of something else".to_owned()));
        }
        let mark = ForkMark::new();
        Ok(ClaimReader { page, mark })
    }

    /// Whether the calling process is the one that mapped the page. A forked child still sees its
    /// parent's page, but has no claim until it joins itself. Costs a load.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.mark.is_ours()
    }

    /// Sleeps until the claim's generation is another than `seen_generation`, or for at most
    /// `timeout`; whether it is another now. A manager that is killed wakes nobody: watch the
    /// connection, too, or set a timeout.
    pub fn wait(&self, seen_generation: u32, timeout: Option<Duration>) -> bool {
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if self.page.granted().generation != seen_generation {
                return true;
            }
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            let left = left.and_then(|left| futex::Timespec::try_from(left).ok());
            let word = self.page.futex();
            // A word that has changed already, a signal, the time: the loop looks at all of them.
            match futex::wait(word, futex::Flags::empty(), seen_generation, left.as_ref()) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                // No futexes here (a sandbox): better a slow wait than a busy one.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Deref for ClaimReader {
    type Target = ClaimPage;

    #[inline]
    fn deref(&self) -> &ClaimPage {
        &self.page
    }
}

/// A progress page, as the manager holds it. Derefs to the page; the manager only reads.
#[derive(Debug)]
pub struct ProgressReader {
    page: Mapped<ProgressPage>,
}

impl ProgressReader {
    /// Makes a progress page. The descriptor is for the program, which cannot change its size.
    ///
    /// # Errors
    /// [`Error::System`], as when there are too many open files.
    pub fn create() -> Result<(ProgressReader, OwnedFd), Error> {
        let (page, file) = Mapped::create("corewise-progress", false)
            .map_err(Error::system("make a progress page"))?;
        let reader = ProgressReader { page };
        reader.page.initialise();
        Ok((reader, file))
    }
}

impl Deref for ProgressReader {
    type Target = ProgressPage;

    fn deref(&self) -> &ProgressPage {
        &self.page
    }
}

/// A progress page, as the program holds it: mapped for writing. Derefs to the page.
#[derive(Debug)]
pub struct ProgressWriter {
    page: Mapped<ProgressPage>,
    mark: ForkMark,
}

impl ProgressWriter {
    /// Maps a progress page that a manager sent. The descriptor is closed; the page stays until this
    /// is dropped.
    ///
    /// # Errors
    /// [`Error::Page`] if it has not the size of a page, its size is not sealed, or it is no progress
    /// page of a version that we know.
    pub fn map(file: OwnedFd) -> Result<ProgressWriter, Error> {
        let page_kind = "progress";
        let fail = |why| Error::Page {
            page: page_kind,
            why,
        };
        let page: Mapped<ProgressPage> = Mapped::of_other(&file, true).map_err(fail)?;
        if !page.is_valid() {
            return Err(fail("its header is of something else".to_owned()));
        }
        let mark = ForkMark::new();
        Ok(ProgressWriter { page, mark })
    }

    /// Whether the calling process is the one that mapped the page; a forked child must not write to
    /// its parent's. Costs a load.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.mark.is_ours()
    }
}

impl Deref for ProgressWriter {
    type Target = ProgressPage;

    #[inline]
    fn deref(&self) -> &ProgressPage {
        &self.page
    }
}
