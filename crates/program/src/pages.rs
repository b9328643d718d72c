//! Which pages a claim is read from, and how one sleeps until that or what is on them changes.
//!
//! A claim always has a claim page and a progress page to look at: the manager's while there is one,
//! two of its own otherwise. So the hot path never asks whether there is a manager. Changing from one
//! to the other is a store of a pointer.
//!
//! Safety: the pointers are only ever made from `&'static` references. A [`Pages`] is leaked, once for
//! each claim (a process has one), and so is every page that a manager sent: a reader may hold its
//! address at any moment, and a page that is never unmapped cannot fault. A manager that dies thus
//! leaves its pages mapped (16 KiB) until the program ends, which is once for each death of a manager.
#![allow(unsafe_code)]

use crate::sys;
use corewise_abi::claim::{ClaimPage, Granted, State};
use corewise_abi::progress::ProgressPage;
use corewise_wire::{ClaimReader, ProgressWriter};
use rustix::io::Errno;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// Where futex_waitv(2) is missing (before Linux 5.16), a sleeper looks up this often: it can then only
/// sleep on one of its two words.
const LOOK_UP: Duration = Duration::from_millis(20);

/// The pages of one claim; never freed.
#[derive(Debug)]
pub(crate) struct Pages {
    claim: AtomicPtr<ClaimPage>,
    progress: AtomicPtr<ProgressPage>,
    /// How often `claim` was changed: the upper half of the generation that users see, so that two
    /// managers' equal generations differ.
    epoch: AtomicU32,
    /// Counts whatever else a sleeper should look at; a private futex word.
    bell: AtomicU32,
    /// The process was forked from the one whose claim this is.
    pub(crate) orphan: AtomicBool,
    /// The manager's socket, for a forked child to close; -1: none.
    pub(crate) socket: AtomicI32,
    own_claim: ClaimPage,
    own_progress: ProgressPage,
    /// Guards writes to `own_claim`, which may have one writer at a time.
    writing: AtomicBool,
    /// The next claim of this process, for the handlers of fork(2).
    pub(crate) next: AtomicPtr<Pages>,
    /// Every manager's pages so far. Nobody reads it: it is there so that leak checkers find them.
    kept: AtomicPtr<Kept>,
}

/// One manager's pages; never freed.
struct Kept {
    claim: ClaimReader,
    progress: ProgressWriter,
    _before: *mut Kept,
}

/// What a claim said at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) page: &'static ClaimPage,
    pub(crate) granted: Granted,
    epoch: u32,
    bell: u32,
}

impl Look {
    /// Differs from any earlier grant's, by whomever it was.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.granted.generation)
    }
}

impl Pages {
    /// Pages of a claim that nobody keeps, on which nothing is granted yet.
    pub(crate) fn unmanaged() -> &'static Pages {
        let pages: &'static Pages = Box::leak(Box::new(Pages {
            claim: AtomicPtr::new(std::ptr::null_mut()),
            progress: AtomicPtr::new(std::ptr::null_mut()),
            epoch: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            orphan: AtomicBool::new(false),
            socket: AtomicI32::new(-1),
            own_claim: ClaimPage::new(),
            own_progress: ProgressPage::new(),
            writing: AtomicBool::new(false),
            next: AtomicPtr::new(std::ptr::null_mut()),
            kept: AtomicPtr::new(std::ptr::null_mut()),
        }));
        pages.use_own();
        pages
    }

    /// The claim page to be read now.
    #[inline]
    pub(crate) fn claim(&self) -> &'static ClaimPage {
        // SAFETY: made from a `&'static ClaimPage` (see the module); never null after `unmanaged`.
        unsafe { &*self.claim.load(Ordering::Acquire) }
    }

    /// Where the address of the claim page to be read now stands: for readers in other languages.
    pub(crate) fn slot(&'static self) -> &'static AtomicPtr<ClaimPage> {
        &self.claim
    }

    /// The progress page to be written now.
    #[inline]
    pub(crate) fn progress(&self) -> &'static ProgressPage {
        // SAFETY: made from a `&'static ProgressPage` (see the module); never null.
        unsafe { &*self.progress.load(Ordering::Acquire) }
    }

    /// Whether a manager's page is read.
    #[inline]
    pub(crate) fn is_managed(&self) -> bool {
        !std::ptr::eq(
            self.claim.load(Ordering::Acquire),
            &raw const self.own_claim,
        )
    }

    /// Whether the manager has said on its page that it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_managed() && self.claim().state() == State::Ended
    }

    /// Whether this process was forked from the one whose claim this is.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Relaxed)
    }

    /// Goes on with a manager's pages. They are never unmapped; see the module.
    pub(crate) fn use_manager(&self, claim: ClaimReader, progress: ProgressWriter) {
        let kept: &'static mut Kept = Box::leak(Box::new(Kept {
            claim,
            progress,
            _before: self.kept.load(Ordering::Acquire),
        }));
        let kept = std::ptr::from_mut(kept);
        self.kept.store(kept, Ordering::Release);
        // SAFETY: just leaked, and only shared from here on.
        let kept: &'static Kept = unsafe { &*kept };
        self.swap(&kept.claim, &kept.progress);
        self.ring();
    }

    /// Goes on without a manager, with what was granted last by [`Pages::grant_own`]. May be called in
    /// a forked child before anything else: a few stores and nothing more.
    pub(crate) fn use_own(&'static self) {
        self.swap(&self.own_claim, &self.own_progress);
    }

    fn swap(&self, claim: &'static ClaimPage, progress: &'static ProgressPage) {
        self.progress
            .store(std::ptr::from_ref(progress).cast_mut(), Ordering::Release);
        self.claim
            .store(std::ptr::from_ref(claim).cast_mut(), Ordering::Release);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// In a forked child, whose other threads are gone: the parent's claim is not the child's.
    pub(crate) fn become_orphan(&'static self) {
        self.orphan.store(true, Ordering::Relaxed);
        self.writing.store(false, Ordering::Relaxed);
        self.use_own();
    }

    /// Grants on the page that is used without a manager, and wakes sleepers. `threads` is asked for
    /// when nobody else grants, so that who grants last grants what is wanted last.
    pub(crate) fn grant_own(
        &self,
        threads: impl FnOnce() -> u32,
        cpus: impl IntoIterator<Item = u32>,
    ) {
        while self
            .writing
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
        self.own_claim.grant(threads(), cpus);
        self.writing.store(false, Ordering::Release);
        self.ring();
    }

    /// Wakes everyone who sleeps in [`Pages::wait`], to look again.
    pub(crate) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        // Fails for an address that is no memory only.
        let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// What the claim says now. The order of the loads is what makes [`Pages::wait`] miss nothing.
    #[inline]
    pub(crate) fn look(&self) -> Look {
        let bell = self.bell.load(Ordering::Acquire);
        let epoch = self.epoch.load(Ordering::Acquire);
        let page = self.claim();
        Look {
            page,
            granted: page.granted(),
            epoch,
            bell,
        }
    }

    /// Sleeps until something may have changed since `seen`, for at most `timeout`. May return early
    /// for no reason: look again, and mind the time.
    pub(crate) fn wait(&self, seen: &Look, timeout: Option<Duration>) {
        let generation = seen.granted.generation;
        let waits = [
            futex_wait(seen.page.futex(), generation, futex::WaitFlags::SIZE_U32),
            futex_wait(
                &self.bell,
                seen.bell,
                futex::WaitFlags::SIZE_U32 | futex::WaitFlags::PRIVATE,
            ),
        ];
        let until = timeout.and_then(deadline);
        let slept = futex::waitv(
            &waits,
            futex::WaitvFlags::empty(),
            until.as_ref(),
            futex::ClockId::Monotonic,
        );
        match slept {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            // No such call here, or a sandbox that forbids it.
            Err(_) => self.wait_for_the_bell(seen, timeout),
        }
    }

    /// [`Pages::wait`] where only one word can be slept on: what happens on the page is seen later.
    fn wait_for_the_bell(&self, seen: &Look, timeout: Option<Duration>) {
        let time = timeout.map_or(LOOK_UP, |t| t.min(LOOK_UP));
        let time = futex::Timespec::try_from(time).ok();
        match futex::wait(&self.bell, futex::Flags::PRIVATE, seen.bell, time.as_ref()) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
            Err(_) => std::thread::sleep(LOOK_UP),
        }
    }
}

fn futex_wait(word: &AtomicU32, value: u32, flags: futex::WaitFlags) -> futex::Wait {
    let mut wait = futex::Wait::new();
    wait.val = u64::from(value);
    wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
    wait.flags = flags;
    wait
}

/// The time in `timeout` from now, as futex_waitv(2) wants it; `None` for what no clock holds.
fn deadline(timeout: Duration) -> Option<futex::Timespec> {
    futex::Timespec::try_from(sys::monotonic()?.checked_add(timeout)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_wire::{ClaimWriter, ProgressReader};

    #[test]
    fn sleepers_see_grants_and_exchanged_pages_with_and_without_waitv() {
        type Wait = fn(&Pages, &Look);
        let waits: [Wait; 2] = [
            |pages, look| pages.wait(look, None),
            |pages, look| pages.wait_for_the_bell(look, None),
        ];
        for wait in waits {
            let pages = Pages::unmanaged();
            pages.grant_own(|| 3, [0]);
            // Sleeps until the claim is another, and gives its threads.
            let asleep = || {
                let seen = pages.look();
                std::thread::spawn(move || {
                    let mut look = seen;
                    while look.generation() == seen.generation() {
                        wait(pages, &look);
                        look = pages.look();
                    }
                    look.granted.threads
                })
            };
            let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
            let (_progress, progress_page) = ProgressReader::create().unwrap();
            let claim_page = ClaimReader::map(claim_page).unwrap();
            let progress_page = ProgressWriter::map(progress_page).unwrap();
            // The manager's generation is the one that our own page has.
            claim.grant(5, [0]);

            let sleeper = asleep();
            pages.use_manager(claim_page, progress_page);
            assert_eq!(sleeper.join().unwrap(), 5);
            let sleeper = asleep();
            claim.grant(6, [0]);
            assert_eq!(sleeper.join().unwrap(), 6);
            let sleeper = asleep();
            pages.use_own();
            pages.ring();
            assert_eq!(sleeper.join().unwrap(), 3);
        }
    }
}
