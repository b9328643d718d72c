//! What a claim's handles, its two threads and its team share.

use crate::gang::{Coscheduling, Gang};
use crate::mask::Mask;
use crate::pages::{Look, Pages};
use crate::pin::ProcessPins;
use crate::reactions::Reactions;
use crate::team::TeamSlot;
use crate::wants::{Granted, WantsCell};
use crate::{fork, sys};
use corewise_abi::message::{Join, LocalRule, Placement, Request, ToManager, ToProgram, features};
use corewise_abi::{MAX_CPUS, VERSION};
use corewise_wire::{Channel, Error, Folder, Joined, Received, System, Welcomed};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long invading and retreating wait for a manager's answer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_millis(50);

/// A manager writes the claim page before it answers; how far apart the two may be.
const WORD_AFTER_CLAIM: Duration = Duration::from_millis(2);

/// Locks; what a panic elsewhere left behind is whole, because nothing here panics halfway.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection to a manager.
#[derive(Debug)]
struct Link {
    channel: Arc<Channel>,
    /// Questions sent on it so far.
    asked: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pages: &'static Pages,
    pub(crate) wants: WantsCell,
    pub(crate) reactions: Reactions,
    pub(crate) pins: ProcessPins,
    pub(crate) team: TeamSlot,
    pub(crate) coscheduling: Coscheduling,
    /// Where threads of ours may run when they are not pinned.
    pub(crate) base: Mask,
    name: String,
    /// Found once, by the thread that made the claim: the listener, which joins again later, must not
    /// read the environment while a C program's thread changes it (setenv(3)).
    folder: Option<Folder>,
    /// Where root's manager is, who serves those whose own user has none.
    system: Option<System>,
    link: Mutex<Option<Link>>,
    rule: AtomicU8,
    /// What the manager understands, besides what all do.
    features: AtomicU64,
    /// Answers received on the present link.
    answered: AtomicU32,
    /// Threads that are ours, not the program's.
    own_threads: Mutex<BTreeSet<i32>>,
    closing: AtomicBool,
    pub(crate) watched: AtomicBool,
    /// Wakes the listener. `None` where there are no descriptors left.
    alarm: Option<OwnedFd>,
}

impl Shared {
    /// An unmanaged claim.
    pub(crate) fn new(name: &str, folder: Option<Folder>) -> Arc<Shared> {
        let pages = Pages::unmanaged();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        // A folder that was named is the one that is meant.
        let system = folder.is_none().then(System::beside_own).flatten();
        let shared = Shared {
            pages,
            wants: WantsCell::new(),
            reactions: Reactions::default(),
            pins: ProcessPins::default(),
            team: TeamSlot::default(),
            coscheduling: Coscheduling::default(),
            base: sys::affinity(0).unwrap_or_default(),
            name: name.to_owned(),
            folder: folder.or_else(|| Folder::of_user().ok()),
            system,
            link: Mutex::new(None),
            rule: AtomicU8::new(0),
            features: AtomicU64::new(0),
            answered: AtomicU32::new(0),
            own_threads: Mutex::new(BTreeSet::new()),
            closing: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            alarm: eventfd(0, flags).ok(),
        };
        shared.grant_own();
        fork::register(pages);
        Arc::new(shared)
    }

    /// Grants what Linux gives: the effective CPUs of the calling thread, within what was asked for.
    pub(crate) fn grant_own(&self) {
        let effective = effective_threads();
        let cpus = sys::affinity(0).unwrap_or_else(|_| self.base.clone());
        self.pages
            .grant_own(|| self.wants.without_manager(effective), cpus.iter());
    }

    /// Grants what Linux gives now, if that is something else than before and nobody manages.
    pub(crate) fn renew_own(&self) {
        let effective = effective_threads();
        let cpus = sys::affinity(0).unwrap_or_else(|_| self.base.clone());
        let threads = self.wants.without_manager(effective);
        let same = self.threads() == threads && self.cpus().is_some_and(|known| known == cpus);
        if !same && !self.pages.is_managed() {
            self.grant_own();
        }
    }

    pub(crate) fn now(&self, look: &Look) -> Granted {
        Granted {
            threads: look.granted.threads.max(1),
            generation: look.generation(),
            managed: self.pages.is_managed(),
        }
    }

    /// Threads that may run now.
    #[inline]
    pub(crate) fn threads(&self) -> u32 {
        self.pages.claim().granted().threads.max(1)
    }

    /// The claim's CPUs; `None` if no consistent set can be read.
    pub(crate) fn cpus(&self) -> Option<Mask> {
        let mut words = vec![0; MAX_CPUS as usize / 64];
        self.pages.claim().cpus(&mut words)?;
        Some(Mask::from_words(words))
    }

    /// How the manager wants threads to be placed; [`LocalRule::Leave`] without one.
    pub(crate) fn rule(&self) -> LocalRule {
        if !self.pages.is_managed() {
            return LocalRule::Leave;
        }
        match self.rule.load(Ordering::Relaxed) {
            1 => LocalRule::Whole,
            2 => LocalRule::OneEach,
            _ => LocalRule::Leave,
        }
    }

    fn set_rule(&self, rule: LocalRule) {
        let rule = match rule {
            LocalRule::Leave => 0,
            LocalRule::Whole => 1,
            LocalRule::OneEach => 2,
        };
        self.rule.store(rule, Ordering::Relaxed);
    }

    /// Tries to join; the pages are the manager's afterwards.
    pub(crate) fn try_join(&self) -> Option<Arc<Channel>> {
        let join = self.join_message()?;
        let wants = join.wants;
        let joined = self.join(join)?;
        let channel = self.take_over(joined);
        // Who asked for something else meanwhile found no manager to ask.
        if self.wants.get() != wants {
            if let Some(link) = lock(&self.link).as_mut() {
                link.asked += 1;
            }
            let _ = channel.send(&ToManager::Ask(self.wants.get()), &[]);
        }
        Some(channel)
    }

    fn join_message(&self) -> Option<Join> {
        Some(Join {
            version: VERSION,
            features: features::RULE | features::AGAIN | features::GANGS,
            pid: i32::try_from(std::process::id()).ok()?,
            name: self.name.clone(),
            wants: self.wants.get(),
        })
    }

    /// The manager of this user comes first, as it knows this user's wishes; root's serves those whose
    /// user has none.
    fn join(&self, join: Join) -> Option<Joined> {
        if let Some(folder) = &self.folder {
            // Made again if it is gone, and looked at again: it may have become somebody else's.
            let joined =
                Folder::at(folder.path()).map(|own| corewise_wire::join(&own, join.clone()));
            match joined {
                Ok(Ok(joined)) => return Some(joined),
                Ok(Err(Error::NoManager { .. })) | Err(_) => {}
                Ok(Err(_)) => return None,
            }
        }
        let system = self.system.as_ref()?.folder()?;
        corewise_wire::join(&system, join).ok()
    }

    fn take_over(&self, joined: Joined) -> Arc<Channel> {
        use std::os::fd::{AsFd, AsRawFd};
        let channel = Arc::new(joined.channel);
        self.set_rule(joined.rule);
        let socket = channel.as_fd().as_raw_fd();
        self.pages.socket.store(socket, Ordering::Relaxed);
        self.answered.store(0, Ordering::Relaxed);
        *lock(&self.link) = Some(Link {
            channel: Arc::clone(&channel),
            asked: 0,
        });
        self.pages.use_manager(joined.claim, joined.progress);
        self.await_first_grant();
        self.features.store(joined.features, Ordering::SeqCst);
        self.coscheduling.say_again(&channel, joined.features);
        channel
    }

    /// Goes on with another manager's pages, on the same connection.
    fn renew(&self, channel: &Channel, welcomed: Welcomed) {
        self.set_rule(welcomed.rule);
        // What the manager before was asked, nobody answers any more.
        if let Some(link) = lock(&self.link).as_mut() {
            link.asked = 0;
        }
        self.answered.store(0, Ordering::Relaxed);
        self.pages.use_manager(welcomed.claim, welcomed.progress);
        self.await_first_grant();
        self.features.store(welcomed.features, Ordering::SeqCst);
        self.coscheduling.say_again(channel, welcomed.features);
    }

    /// Says that the program is a gang, or is none any longer.
    pub(crate) fn coschedule(&self, gang: Option<Gang>) {
        if self.pages.is_orphan() {
            return;
        }
        let said = ToManager::Gang(gang.clone().map(|Gang(gang)| gang));
        let other = self.coscheduling.set(gang);
        // Asked afterwards: a manager that is being joined right now is told by whoever joins it.
        let hears = self.features.load(Ordering::SeqCst) & features::GANGS != 0;
        if other && hears {
            self.tell(&said);
        }
    }

    /// The manager is gone: the program has what Linux gives it. Called by the listener, whose own
    /// affinity is nobody's doing.
    pub(crate) fn fail_open(&self) {
        // Before the descriptor is closed, so that no forked child closes another one of its number.
        self.pages.socket.store(-1, Ordering::Relaxed);
        drop(lock(&self.link).take());
        self.features.store(0, Ordering::SeqCst);
        self.pins.undo();
        self.grant_own();
        self.pages.use_own();
        self.pages.ring();
    }

    /// Tells the manager something, if there is one.
    pub(crate) fn tell(&self, message: &ToManager) {
        let channel = lock(&self.link).as_ref().map(|l| Arc::clone(&l.channel));
        if let Some(channel) = channel {
            // A manager that is gone is noticed by the listener.
            let _ = channel.send(message, &[]);
        }
    }

    /// Asks for something else, and waits a bounded time for what comes of it.
    pub(crate) fn ask(&self, min: u32, max: u32, placement: Placement) -> Granted {
        let before = self.pages.look();
        let changed = self.wants.set(min, max, placement);
        if self.pages.is_orphan() {
            self.grant_own();
            return self.now(&self.pages.look());
        }
        let link = lock(&self.link).as_mut().map(|link| {
            link.asked += u32::from(changed);
            (Arc::clone(&link.channel), link.asked)
        });
        match link {
            // If the listener is joining with the old wants right now, it asks again.
            None => self.grant_own(),
            Some((channel, question)) if changed => {
                let asked = channel.send(&ToManager::Ask(self.wants.get()), &[]);
                drop(channel);
                if asked.is_ok() {
                    self.await_answer(&before, question, self.wants.get().max_threads);
                }
            }
            Some(_) => {}
        }
        let look = self.pages.look();
        self.saw(&look);
        self.now(&look)
    }

    /// Until the manager says that it has decided, or the claim is what was asked for, or the time is
    /// over. A claim that has changed to something else may be the answer or not: the manager has a
    /// moment more to say so.
    fn await_answer(&self, before: &Look, question: u32, max: u32) {
        let mut until = Instant::now() + ANSWER_WITHIN;
        loop {
            let look = self.pages.look();
            let answered = self.answered.load(Ordering::Acquire) >= question;
            let now = Instant::now();
            if look.generation() != before.generation() {
                until = until.min(now + WORD_AFTER_CLAIM);
            }
            let left = until.saturating_duration_since(now);
            let changed_hands = !self.pages.is_managed();
            if look.granted.threads == max || answered || changed_hands || left.is_zero() {
                return;
            }
            self.pages.wait(&look, Some(left));
        }
    }

    /// A manager may grant only after it has welcomed.
    fn await_first_grant(&self) {
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            let look = self.pages.look();
            let left = until.saturating_duration_since(Instant::now());
            if look.granted.generation != 0 || left.is_zero() {
                return;
            }
            self.pages.wait(&look, Some(left));
        }
    }

    /// Says on the progress page which generation of the claim the program follows.
    pub(crate) fn saw(&self, look: &Look) {
        let seen = &self.pages.progress().seen_generation;
        seen.store(look.granted.generation, Ordering::Relaxed);
    }

    /// Deals with a message of the manager's.
    pub(crate) fn hear(&self, channel: &Channel, received: Received<ToProgram>) {
        match received.message {
            ToProgram::Request { request, what } => {
                let answer = ToManager::Answer {
                    request,
                    yes: self.would(what),
                };
                let _ = channel.send(&answer, &[]);
            }
            ToProgram::Done | ToProgram::Refused(_) => {
                self.answered.fetch_add(1, Ordering::Release);
                self.pages.ring();
            }
            ToProgram::Rule(rule) => {
                self.set_rule(rule);
                // Those who sleep look where they may be; the others do before their next unit.
                self.team.changed();
            }
            ToProgram::Again => {
                if let Some(join) = self.join_message() {
                    let _ = channel.send(&ToManager::Join(join), &[]);
                }
            }
            // The next manager's, on the connection of the one before.
            ToProgram::Welcome { .. } => {
                if let Ok(welcomed) = Welcomed::by(received) {
                    self.renew(channel, welcomed);
                }
            }
            ToProgram::Part { .. } => {}
        }
    }

    /// The program's rule: what it says if it is asked to run one thread more or less.
    fn would(&self, what: Request) -> bool {
        let now = self.now(&self.pages.look());
        if let Some(answer) = self.reactions.asked(what, now) {
            return answer;
        }
        let wants = self.wants.get();
        let could_use = self.pages.progress().could_use.load(Ordering::Relaxed);
        match what {
            Request::Expand => {
                now.threads < wants.max_threads && (could_use == 0 || could_use > now.threads)
            }
            Request::Shrink => now.threads > wants.min_threads,
        }
    }

    /// The calling thread is ours: it runs where nobody has pinned it, and pinning the program's
    /// threads leaves it alone.
    pub(crate) fn adopt_thread(&self) {
        lock(&self.own_threads).insert(thread_id());
        let unpinned = sys::affinity(0).is_ok_and(|now| now == self.base);
        if !unpinned && !self.base.is_empty() {
            let _ = sys::set_affinity(0, &self.base);
        }
    }

    /// The calling thread, one of ours, ends.
    pub(crate) fn release_thread(&self) {
        lock(&self.own_threads).remove(&thread_id());
    }

    /// The threads that are ours.
    pub(crate) fn own_threads(&self) -> BTreeSet<i32> {
        lock(&self.own_threads).clone()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Ends the claim: both threads end, and with them the connection.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.alert();
        self.pages.ring();
    }

    pub(crate) fn alarm(&self) -> Option<&OwnedFd> {
        self.alarm.as_ref()
    }

    /// Has the listener look at what there is to do.
    pub(crate) fn alert(&self) {
        if let Some(alarm) = &self.alarm {
            // It fails where it is rung already.
            let _ = rustix::io::write(alarm, &1_u64.to_ne_bytes());
        }
    }
}

/// Threads that the calling thread's affinity and the process's CPU quota have room for.
fn effective_threads() -> u32 {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(threads).unwrap_or(MAX_CPUS)
}

/// The calling thread, as Linux numbers it.
pub(crate) fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
