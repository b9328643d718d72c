//! Keeps a program's turns: a thread that stops it at the end of each window of its turn and lets it go on at the
//! beginning of the next, by the clock, without a message for each switch.
//!
//! The thread reads the turn from the claim page at every grant. It sleeps until the next change; while the program
//! stands still it looks now and then for threads that have woken up, as often as costs next to nothing. Everything
//! goes on at once where the turn ends, the manager is lost, the program ends, job control stops this process,
//! or the program cannot be stopped as a whole.
//!
//! `clockwork` says what is to be done when, and is pure; `account` is what is said of it afterwards.

mod account;
mod clockwork;

pub use account::Turns;

use account::Account;
use clockwork::{Clockwork, Do};
use corewise_abi::message::TurnsBy;
use corewise_abi::turn::Turn;
use corewise_launch::stops::Notice;
use corewise_machine::control::turns::{Means, hurry, means_for, second_means_for};
use corewise_machine::undo::LogOnDemand;
use corewise_wire::ClaimReader;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The means are found out sooner than this, or the program is no gang.
const LONGEST_START: Duration = Duration::from_secs(1);

/// The program's end waits no longer than this until what it left behind was let go.
const LONGEST_END: Duration = Duration::from_millis(200);

/// The keeper of one program's turns.
#[derive(Debug)]
pub(super) struct Keeper {
    between: Arc<Between>,
    /// By what it stops the program, or why it cannot.
    means: Result<&'static str, String>,
    /// Closed by the thread when it is done.
    done: Mutex<Receiver<()>>,
}

/// What the thread is to do, and what came of it.
#[derive(Debug)]
pub(super) struct Between {
    /// Readable when there is something new: orders, or a grant.
    told: OwnedFd,
    given: Mutex<Given>,
    account: Mutex<Account>,
    /// The program does not stand still out of its turn: it comes last.
    comes_last: AtomicBool,
}

#[derive(Debug, Default)]
struct Given {
    claim: Option<Arc<ClaimReader>>,
    ends: bool,
}

impl Keeper {
    /// For the process `pid` and all below it; undo logs go to the folder `undo`. No turn is kept yet.
    pub(super) fn start(pid: i32, undo: PathBuf) -> Result<Keeper, String> {
        let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| format!("there is no descriptor to be had: {error}"))?;
        let between = Arc::new(Between {
            told,
            given: Mutex::default(),
            account: Mutex::default(),
            comes_last: AtomicBool::new(false),
        });
        let (found, means) = channel();
        let (working, done) = channel();
        let kept = Arc::clone(&between);
        corewise_launch::run::beside("turns", move || {
            let log = LogOnDemand::new(undo, "corewise run, turns");
            match means_for(pid, &log) {
                Ok(means) => {
                    let name = means.name();
                    let keeping = Keeping::new(&kept, pid, means, &log);
                    let _ = found.send(Ok(name));
                    keeping.keep();
                }
                Err(refused) => {
                    let _ = found.send(Err(refused.why));
                }
            }
            drop(working);
        })
        .map_err(|error| format!("there is no thread to be had: {error}"))?;
        let means = match means.recv_timeout(LONGEST_START) {
            Ok(means) => means,
            Err(RecvTimeoutError::Timeout) => Err("it does not answer in time".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err("its keeper has ended".to_owned()),
        };
        Ok(Keeper {
            between,
            means,
            done: Mutex::new(done),
        })
    }

    /// Whether the program comes last out of its turn, and does not stand still.
    pub(super) fn comes_last(&self) -> bool {
        self.between.comes_last.load(Ordering::Relaxed)
    }

    /// By what it stops and continues the program, or why it cannot.
    pub(super) fn means(&self) -> Result<&'static str, String> {
        self.means.clone()
    }

    /// Keeps the turns of this claim from now on; `None`: the program runs.
    pub(super) fn follow(&self, claim: Option<Arc<ClaimReader>>) {
        self.between.given().claim = claim;
        self.between.tell();
    }

    /// To be made readable at every grant.
    pub(super) fn told(&self) -> std::io::Result<OwnedFd> {
        self.between.told.try_clone()
    }

    /// What it takes to stop all threads, in nanoseconds: the median; 0 before it was done.
    pub(super) fn switch_ns(&self) -> u64 {
        self.between.account().stop_ns()
    }

    /// By what the program is stopped now, and why not by something better or not at all.
    pub(super) fn by(&self) -> TurnsBy {
        self.between.account().by(self.means.clone())
    }

    /// What came of it so far.
    pub(super) fn turns(&self, name: &str) -> Turns {
        let account = self.between.account();
        account.turns(name, self.means.clone())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.between.given().ends = true;
        self.between.tell();
        // An error is what we wait for. Should it take longer, the kernel lets all go when this process ends.
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = done.recv_timeout(LONGEST_END);
    }
}

impl Between {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        // A counter that is full says the same as one that is not.
        let _ = rustix::io::write(&self.told, &1u64.to_ne_bytes());
    }
}

/// The thread's own.
struct Keeping<'a> {
    between: &'a Between,
    pid: i32,
    means: Box<dyn Means + 'a>,
    log: &'a LogOnDemand,
    clockwork: Clockwork,
    turn: Option<Turn>,
    notice: Option<Notice>,
}

impl<'a> Keeping<'a> {
    fn new(
        between: &'a Between,
        pid: i32,
        means: Box<dyn Means + 'a>,
        log: &'a LogOnDemand,
    ) -> Keeping<'a> {
        let comes_last = !means.stops();
        between.comes_last.store(comes_last, Ordering::Relaxed);
        Keeping {
            between,
            pid,
            means,
            log,
            clockwork: Clockwork::default(),
            turn: None,
            notice: Notice::give().ok(),
        }
    }

    fn keep(mut self) {
        self.between.account().hurried(hurry());
        while self.take_orders() {
            self.act();
            if self.turn.is_none() {
                self.means.rest();
            }
            let wait = self.clockwork.next(self.turn.as_ref(), now_ns());
            self.sleep(wait);
        }
        self.let_all_go();
    }

    /// Reads what is to be done. False if nothing more is.
    fn take_orders(&mut self) -> bool {
        let given = self.between.given();
        let had_turns = self.turn.is_some();
        self.turn = given.claim.as_ref().and_then(|claim| claim.turn());
        let ends = given.ends;
        drop(given);
        if self.notice.as_ref().is_some_and(Notice::is_stopping) {
            self.turn = None;
        }
        // Not only at the end of the first window: until then threads that need a CPU each might share one.
        if self.turn.is_some()
            && !had_turns
            && let Err(refused) = self.means.begin()
        {
            self.refused(refused.why);
        }
        !ends
    }

    /// Does what is due.
    fn act(&mut self) {
        // Each may make the next due, but not for ever: the sleep comes first then.
        for _ in 0..4 {
            let now = now_ns();
            match self.clockwork.due(self.turn.as_ref(), now) {
                Do::Nothing => break,
                Do::Stop { since_ns } => self.stop(since_ns),
                Do::Look => self.look(),
                Do::Go { since_ns } => self.go(since_ns),
            }
        }
        // The thread that stops this process waits for it: whoever does not stand still yet would stand for good.
        if let Some(notice) = self.notice.as_ref().filter(|notice| notice.is_stopping())
            && self.clockwork.all_run()
        {
            notice.let_go();
        }
    }

    fn stop(&mut self, since_ns: Option<u64>) {
        match self.means.stop() {
            Ok(stopped) => {
                self.clockwork.stopped(now_ns());
                let mut account = self.between.account();
                account.stopped(since_ns, &stopped);
            }
            Err(refused) => self.refused(refused.why),
        }
    }

    fn look(&mut self) {
        let before = thread_cpu_ns();
        match self.means.look() {
            Ok(found) => {
                let cost = thread_cpu_ns().saturating_sub(before);
                self.clockwork.looked(now_ns(), found.threads, cost);
            }
            Err(refused) => self.refused(refused.why),
        }
    }

    /// It runs: other means are tried at once, where there are any; else the next end of a window tries again.
    fn refused(&mut self, why: String) {
        let second = match self.means.stops() {
            true => second_means_for(self.pid, &why, self.log).ok(),
            false => None,
        };
        let mut account = self.between.account();
        account.refused(why);
        match second {
            Some(second) => {
                account.means(second.name());
                self.means = second;
                self.between.comes_last.store(true, Ordering::Relaxed);
                // It is still to be stopped.
                self.clockwork.gone(now_ns(), 0);
            }
            None => self.clockwork.refused(self.turn.as_ref(), now_ns()),
        }
    }

    fn go(&mut self, since_ns: Option<u64>) {
        let gone = self.means.go();
        self.clockwork.gone(now_ns(), gone.awaited);
        if gone.by_others
            && let Some(notice) = &self.notice
        {
            notice.look_again();
        }
        let mut account = self.between.account();
        account.gone(since_ns, &gone);
        account.used(thread_cpu_ns());
    }

    fn let_all_go(&mut self) {
        self.turn = None;
        self.act();
    }

    /// Sleeps until a time, or until it is told something.
    fn sleep(&self, until_ns: Option<u64>) {
        let told = self.notice.as_ref().and_then(Notice::told);
        let mut polled: Vec<PollFd<'_>> = [Some(self.between.told.as_fd()), told]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let time = until_ns.map(|until| until.saturating_sub(now_ns()));
        let time = time.and_then(|ns| Timespec::try_from(Duration::from_nanos(ns)).ok());
        if poll(&mut polled, time.as_ref()).is_ok() {
            for fd in polled.iter().filter(|fd| !fd.revents().is_empty()) {
                // Only its being readable matters.
                let _ = rustix::io::read(fd.as_fd(), &mut [0; 8]);
            }
        }
    }
}

fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
