//! The local manager beside a program that never heard of corewise (REEact's LEM, outside of the
//! program): it joins the global manager for the program, tells how many threads it has, and keeps
//! them on the CPUs of the program's claim.
//!
//! [`Outside::start`] takes a program that runs already, and costs its caller the start of a thread;
//! everything else happens in that thread. Whatever fails there only means that the program is not
//! managed: it runs as on plain Linux. The program is rigid, its number of threads its own, and a request
//! for more or fewer is answered with no; unless something follows the claim, such as adapters in its
//! processes: then it is malleable.
//!
//! The parts: `follower` is what follows a claim, `adapters` what passes between us and those in its
//! processes, `locks` what they have counted, `jobserver` is what a build follows; `behind` says whether a program has come down to its
//! claim; `attend` is the time with one manager, from joining to its end or the program's; `placing` says
//! where each thread may run, `masks` carries that out with an undo log, `pace` says how often to look,
//! `said` what the manager is told of the runtimes, `turns` stops and continues a program that is a gang,
//! `turning` says whether it is one, `waits` how its threads wait for each other.
//!
//! **When we die.** What we set is in the undo log; the global manager sees our connection end and
//! puts it back, and so does the next manager that starts. The program goes on.

mod adapters;
mod attend;
mod behind;
mod follower;
mod jobserver;
mod locks;
mod masks;
mod pace;
mod placing;
mod said;
mod turning;
mod turns;
mod waits;

pub use crate::outside::adapters::{Adapters, Followed};
pub use crate::outside::follower::Follower;
pub use crate::outside::jobserver::{Ends, Jobs, Jobserver};
pub use crate::outside::locks::Locks;
pub use crate::outside::turning::Coscheduling;
pub use crate::outside::turns::Turns;
pub use corewise_abi::message::{Gang, MAX_NAME as MAX_GANG_NAME};

use crate::outside::attend::{Attending, CannotJoin, End};
use crate::outside::follower::Followers;
use crate::outside::turning::Turning;
use corewise_decide::status::Wants;
use corewise_wire::Folder;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A program that ends sooner is not worth a manager of its own; one that runs already is joined at
/// once.
const WORTH_A_MANAGER: Duration = Duration::from_millis(50);

/// A manager that is gone is looked for again after this time, then after twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(250);

/// The longest time between two tries to find a manager.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The program's end waits no longer than this for its claim to be given back in good order.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// Starts a global manager on demand; returns when it listens, or says why there is none.
pub type StartManager = Box<dyn Fn(&Folder) -> Result<(), String> + Send>;

/// A running program that is to be managed.
#[derive(Clone, Debug)]
pub struct Program {
    /// The root of its process tree.
    pub pid: i32,
    /// A name for people.
    pub name: String,
    /// What is asked for it.
    pub wants: Wants,
    /// Its runtimes, as far as they are known, whose number of threads cannot follow while it runs: for
    /// people.
    pub stay: Vec<String>,
    /// Whether its threads run at the same time, or not at all.
    pub gang: Coscheduling,
}

impl Program {
    /// A program whose number of threads is chosen and stays as it is.
    pub fn rigid(pid: i32, name: String, threads: u32) -> Program {
        let threads = threads.max(1);
        Program {
            pid,
            name,
            wants: Wants {
                min_threads: threads,
                max_threads: threads,
                placement: corewise_decide::status::Placement::Any,
                malleable: false,
            },
            stay: Vec::new(),
            gang: Coscheduling::default(),
        }
    }
}

/// What came of managing a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// The program's number with the last manager that it joined; `None` if it never joined one.
    pub program: Option<u64>,
    /// How many claims it was granted, one after the other.
    pub claims: u32,
    /// The fewest CPUs that one of them was for; `None` without a claim.
    pub fewest_cpus: Option<usize>,
    /// Why it is not managed, if it is not.
    pub why_not: Option<String>,
    /// What its runtimes followed; `None` without adapters.
    pub followed: Option<Followed>,
    /// How many jobs it might run at once; `None` where it was offered no jobserver.
    pub jobs: Option<Jobs>,
    /// What came of its turns; `None` where it was no gang.
    pub gang: Option<Turns>,
}

/// The local manager beside one program.
#[derive(Debug)]
pub struct Outside {
    shared: Arc<Shared>,
    followers: Arc<Followers>,
    turning: Arc<Turning>,
    /// Closed by the thread when it is done.
    done: Receiver<()>,
}

/// What the thread and its owner have in common.
#[derive(Debug)]
struct Shared {
    /// Readable when the thread should end.
    stop: OwnedFd,
    now: Mutex<Now>,
}

/// How far the thread has come.
#[derive(Debug, Default)]
struct Now {
    managed: Managed,
    /// Whether there is a claim to be given back, and perhaps masks to be put back.
    joined: bool,
}

impl Outside {
    /// Manages a program from now on. Costs the start of a thread, some 50 µs; for a gang, of three, and the
    /// time to find out whether it can be stopped.
    ///
    /// `None` where not even a thread is to be had: the program is not managed.
    pub fn start(
        program: Program,
        folder: Folder,
        manager: StartManager,
        followers: impl IntoIterator<Item = Box<dyn Follower>>,
    ) -> Option<Outside> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let now = Mutex::new(Now::default());
        let shared = Arc::new(Shared { stop, now });
        let (working, done) = channel();
        let followers = Followers::new(followers);
        let mut program = program;
        program.wants = followers.wants().unwrap_or(program.wants);
        let wish = std::mem::take(&mut program.gang);
        let turning = Arc::new(Turning::new(program.pid, folder.undo(), wish));
        let beside = Beside {
            shared: Arc::clone(&shared),
            program,
            folder,
            manager,
            followers: Arc::new(followers),
            turning: Arc::clone(&turning),
            started: Instant::now(),
        };
        let followers = Arc::clone(&beside.followers);
        corewise_launch::run::beside("outside", move || {
            beside.manage();
            drop(working);
        })
        .ok()?;
        Some(Outside {
            shared,
            followers,
            turning,
            done,
        })
    }

    /// What came of it so far.
    pub fn managed(&self) -> Managed {
        let mut managed = self.shared.now().managed.clone();
        self.followers.tell(&mut managed);
        managed.gang = self.turning.turns();
        managed
    }

    /// Whether the program has joined a manager so far. Costs nothing, unlike [`managed`](Outside::managed).
    pub fn has_joined(&self) -> bool {
        self.shared.now().managed.program.is_some()
    }

    /// Ends managing, as when the program has ended: gives its claim back and puts back what was set
    /// for processes that it left behind. Takes well below a millisecond, at most half a second.
    pub fn finish(self) -> Managed {
        let joined = self.shared.now().joined;
        // It cannot fail: the counter is nowhere near its limit.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
        if joined {
            // An error is what we wait for: the other end is closed.
            let _ = self.done.recv_timeout(LAST_WAIT);
        }
        let mut managed = self.managed();
        if managed.program.is_none() && managed.why_not.is_none() {
            managed.why_not = Some("it ended before a manager was joined".to_owned());
        }
        managed
    }
}

impl Shared {
    fn now(&self) -> std::sync::MutexGuard<'_, Now> {
        // What is in it is whole between any two statements.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_managed(&self, why: impl Into<String>) {
        let mut now = self.now();
        now.joined = false;
        now.managed.why_not = Some(why.into());
    }

    /// Waits so long. True if the thread should end.
    fn stopped_within(&self, time: Duration) -> bool {
        wait_for(&[self.stop.as_fd()], Some(time)).first() == Some(&true)
    }
}

/// What the thread works with.
struct Beside {
    shared: Arc<Shared>,
    program: Program,
    folder: Folder,
    manager: StartManager,
    followers: Arc<Followers>,
    turning: Arc<Turning>,
    started: Instant,
}

impl Beside {
    /// Joins whoever manages, until the program ends or there is no sense in going on.
    fn manage(&self) {
        let mut wait = FIRST_WAIT;
        // A manager that was told to stop is not started again by us.
        let mut may_start = true;
        loop {
            match self.join(may_start) {
                Ok(Some(attending)) => {
                    wait = FIRST_WAIT;
                    let end = attending.attend();
                    self.followers.release();
                    match end {
                        End::Stopped => return,
                        End::SentAway(why) => {
                            self.shared.not_managed(why);
                            return;
                        }
                        End::Dismissed => {
                            may_start = false;
                            self.shared.not_managed("its manager has ended");
                        }
                        End::Lost(why) => {
                            may_start = true;
                            self.shared.not_managed(why);
                        }
                    }
                }
                Ok(None) => self.followers.release(),
                Err(Never) => {
                    self.followers.release();
                    return;
                }
            }
            if self.shared.stopped_within(wait) {
                return;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Joins a manager. `None` if there is none now.
    fn join(&self, may_start: bool) -> Result<Option<Attending<'_>>, Never> {
        match self.try_to_join() {
            Err(CannotJoin::NoManager(_)) if may_start => {}
            other => return self.noted(other),
        }
        let rest = WORTH_A_MANAGER.saturating_sub(self.started.elapsed());
        if !rest.is_zero() && self.shared.stopped_within(rest) {
            return Ok(None);
        }
        if let Err(why) = (self.manager)(&self.folder) {
            self.shared.not_managed(why);
            return Ok(None);
        }
        self.noted(self.try_to_join())
    }

    fn try_to_join(&self) -> Result<Attending<'_>, CannotJoin> {
        Attending::join(
            &self.program,
            &self.folder,
            &self.shared,
            &self.followers,
            &self.turning,
        )
    }

    /// Keeps the reason for the summary.
    fn noted<'a>(
        &self,
        joined: Result<Attending<'a>, CannotJoin>,
    ) -> Result<Option<Attending<'a>>, Never> {
        match joined {
            Ok(attending) => Ok(Some(attending)),
            Err(CannotJoin::Ever(why)) => {
                self.shared.not_managed(why);
                Err(Never)
            }
            Err(CannotJoin::NoManager(why) | CannotJoin::Now(why)) => {
                self.shared.not_managed(why);
                Ok(None)
            }
        }
    }
}

/// There is no sense in trying again.
struct Never;

/// Waits until one of `descriptors` is readable or closed by its other side, or until `time` is over;
/// says of each whether it is.
fn wait_for(descriptors: &[BorrowedFd<'_>], time: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    match poll(&mut polled, time.as_ref()) {
        Ok(_) => polled.iter().map(|p| !p.revents().is_empty()).collect(),
        // Interrupted: the caller looks again.
        Err(_) => vec![false; descriptors.len()],
    }
}
