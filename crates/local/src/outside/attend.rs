//! The time that a program has with one manager.

use super::behind::{Behind, Progress};
use super::follower::Followers;
use super::masks::LoggedMasks;
use super::pace::{Pace, SHORTEST};
use super::placing::{Placing, Thread};
use super::said::Said;
use super::turning::Turning;
use super::waits::Waiting;
use super::{Program, Shared, wait_for};
use corewise_abi::VERSION;
use corewise_abi::claim::State;
use corewise_abi::message::{Join, ToManager, ToProgram, features};
use corewise_decide::cpus::CpuSet;
use corewise_decide::status::LocalRule;
use corewise_machine::Root;
use corewise_machine::program::{Detail, LockOption, MonitorOptions, ProgramMonitor};
use corewise_wire::{Channel, ClaimReader, Error, Folder, ProgressWriter, Welcomed};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The one that sleeps on the claim page looks so often whether there is still somebody to tell.
const SLEEP: Duration = Duration::from_secs(5);

/// A program says so long after it has joined that it could have more threads: until then the manager has seen who
/// else is busy, and does not give for a moment what it has to take back.
const SETTLING: Duration = Duration::from_secs(1);

/// Words of a CPU set, for every CPU that a claim can name.
const WORDS: usize = corewise_abi::MAX_CPUS as usize / 64;

/// Why a program could not be given into a manager's care.
#[derive(Debug)]
pub(super) enum CannotJoin {
    /// Nobody manages.
    NoManager(String),
    /// Another time, perhaps.
    Now(String),
    /// Never.
    Ever(String),
}

impl From<Error> for CannotJoin {
    fn from(error: Error) -> CannotJoin {
        let text = error.to_string();
        match error {
            Error::NoManager { .. } => CannotJoin::NoManager(text),
            Error::Refused(_) | Error::ForeignPeer { .. } => CannotJoin::Ever(text),
            _ => CannotJoin::Now(text),
        }
    }
}

/// Why the time with a manager is over.
pub(super) enum End {
    /// The program has ended, or its owner wants no more managing.
    Stopped,
    /// The manager has ended in good order.
    Dismissed,
    /// The manager is gone, or nothing can be done with it; the text says what happened.
    Lost(String),
    /// The manager wants no more of us, as when the program has joined it itself.
    SentAway(String),
}

/// A program with its manager.
pub(super) struct Attending<'a> {
    shared: &'a Shared,
    followers: &'a Followers,
    /// What is said to every manager.
    join: Join,
    /// Readable when the program has ended. `None` on kernels without such descriptors.
    process: Option<OwnedFd>,
    channel: Channel,
    claim: Arc<ClaimReader>,
    progress: ProgressWriter,
    rule: LocalRule,
    /// The manager has given another rule, by which nobody is placed yet.
    rule_is_new: bool,
    /// A manager that was started anew has given other pages, or somebody else is to be told of grants.
    pages_are_new: bool,
    monitor: ProgramMonitor,
    placing: Placing<LoggedMasks>,
    pace: Pace,
    behind: Behind,
    joined_at: Instant,
    /// Runtimes that are known to stay as they are.
    stay: Vec<String>,
    said: Said,
    /// Whether it is a gang, and who keeps its turns.
    turning: &'a Turning,
    /// That it was asked to be one is still to be said.
    gang_to_say: Option<ToManager>,
    waiting: Waiting<'a>,
    /// Threads are not where the claim has them: the program has not come down to it yet.
    unplaced: bool,
    /// The generation that was followed last.
    seen: u32,
    /// The claim's CPUs.
    cpus: CpuSet,
}

impl<'a> Attending<'a> {
    /// Joins the manager that listens in `folder`, if one does.
    pub(super) fn join(
        program: &Program,
        folder: &Folder,
        shared: &'a Shared,
        followers: &'a Followers,
        turning: &'a Turning,
    ) -> Result<Attending<'a>, CannotJoin> {
        let turns = match turning.keeper() {
            Some(_) => features::GANGS,
            None => 0,
        };
        let join = Join {
            version: VERSION,
            features: features::RULE | features::AGAIN | turns,
            pid: program.pid,
            name: program.name.clone(),
            wants: program.wants,
        };
        let joined = corewise_wire::join(folder, join.clone())?;
        let options = MonitorOptions {
            root: Root::system(),
            lock: LockOption::Off,
            spin: false,
            regions: false,
            ..MonitorOptions::default()
        };
        let monitor = ProgramMonitor::attach(program.pid, options)
            .map_err(|error| CannotJoin::Ever(error.to_string()))?;
        let (masks, starting) = LoggedMasks::of_program(program.pid, folder)
            .map_err(|error| CannotJoin::Ever(error.to_string()))?;
        let process =
            Pid::from_raw(program.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut now = shared.now();
        now.joined = true;
        now.managed.program = Some(joined.program);
        now.managed.why_not = None;
        Ok(Attending {
            shared,
            followers,
            join,
            process,
            channel: joined.channel,
            claim: Arc::new(joined.claim),
            progress: joined.progress,
            rule: joined.rule,
            rule_is_new: false,
            pages_are_new: false,
            monitor,
            placing: Placing::new(masks, starting),
            pace: Pace::new(),
            behind: Behind::default(),
            joined_at: Instant::now(),
            stay: program.stay.clone(),
            said: Said::to(joined.features),
            turning,
            gang_to_say: say_gang(turning, joined.features),
            waiting: Waiting::new(program.pid, turning, joined.features),
            unplaced: false,
            seen: 0,
            cpus: CpuSet::new(),
        })
    }

    /// Keeps the program within its claim until either ends.
    pub(super) fn attend(mut self) -> End {
        let end = loop {
            // It does not say: what it could use shows in what it asks for and in what it uses.
            self.progress.could_use.store(0, Ordering::Relaxed);
            let keeper = self.turning.keeper();
            if let Some(keeper) = keeper {
                keeper.follow(Some(Arc::clone(&self.claim)));
            }
            let granted = match tell_of_grants(&self.claim, keeper.and_then(|k| k.told().ok())) {
                Ok(granted) => granted,
                Err(error) => break End::Lost(format!("claims cannot be waited for: {error}")),
            };
            if let Some(end) = self.follow(&granted) {
                break end;
            }
        };
        // First of all: it may stand still.
        if let Some(keeper) = self.turning.keeper() {
            keeper.follow(None);
        }
        self.put_back();
        end
    }

    /// Until the time with the manager is over; `None` if it goes on with other pages.
    fn follow(&mut self, granted: &OwnedFd) -> Option<End> {
        let mut look_at = Instant::now();
        while !std::mem::take(&mut self.pages_are_new) {
            let ready = {
                let all = [
                    self.shared.stop.as_fd(),
                    self.channel.as_fd(),
                    granted.as_fd(),
                ];
                let time = look_at.saturating_duration_since(Instant::now());
                wait_for(&all, Some(time))
            };
            if ready[0] {
                return Some(End::Stopped);
            }
            if ready[1]
                && let Some(end) = self.answer()
            {
                return Some(end);
            }
            if ready[2] {
                // Only its being readable matters.
                let _ = rustix::io::read(granted, &mut [0; 8]);
            }
            if self.claim.state() == State::Ended {
                return Some(End::Dismissed);
            }
            let time_to_look = Instant::now() >= look_at;
            let mut changed = std::mem::take(&mut self.rule_is_new);
            let mut cost = Duration::ZERO;
            if time_to_look {
                let before = thread_cpu_time();
                let others = self.look();
                if others
                    && let Err(error) = self
                        .channel
                        .send(&ToManager::Threads(self.placing.count()), &[])
                {
                    return Some(self.lost(&error));
                }
                changed |= others | self.tie();
                cost = thread_cpu_time().saturating_sub(before);
            }
            if self.claim.granted().generation != self.seen {
                changed |= self.take_claim();
                changed |= self.tie();
            }
            let progress = self.progress_of_followers();
            if time_to_look && let Err(error) = self.ask(progress) {
                return Some(self.lost(&error));
            }
            self.unplaced |= changed;
            let place = self.unplaced || (time_to_look && self.placing.is_settling());
            if place && progress != Progress::Behind {
                self.unplaced = false;
                self.placing.place(self.rule, &self.cpus);
                let seen = &self.progress.seen_generation;
                seen.store(self.seen, Ordering::Release);
            }
            if time_to_look {
                let time = self.pace.next(changed, cost);
                let within = self.waiting.look_within().unwrap_or(time);
                look_at = Instant::now() + time.min(within);
            } else if changed {
                // Whoever has a new claim may soon have other threads.
                look_at = look_at.min(Instant::now() + SHORTEST);
            }
        }
        None
    }

    /// Reads the new claim. False if it cannot be read whole: then the last one stays.
    fn take_claim(&mut self) -> bool {
        let mut words = [0; WORDS];
        let Some(generation) = self.claim.cpus(&mut words) else {
            return false;
        };
        let new = generation != self.seen;
        self.seen = generation;
        self.cpus = cpus_in(&words);
        self.followers
            .grant(self.claim.granted().threads, &self.cpus);
        let managed = &mut self.shared.now().managed;
        managed.claims += u32::from(new);
        let fewest = managed.fewest_cpus.unwrap_or(usize::MAX);
        managed.fewest_cpus = Some(fewest.min(self.cpus.len()));
        new
    }

    /// Has the threads of a gang that hardly sleep be given a CPU each, where it comes last out of its turn; else
    /// Linux may let two of them share one. Whether others are.
    fn tie(&mut self) -> bool {
        let turn = self.waiting.comes_last() && self.claim.turn().is_some();
        let tied = match turn {
            true => self.waiting.awake(),
            false => &[],
        };
        self.placing.tie(tied)
    }

    /// Whether the program runs no more threads than its claim allows, by what its followers tell.
    fn progress_of_followers(&mut self) -> Progress {
        let Some((run, occasions)) = self.followers.running() else {
            return Progress::Follows;
        };
        let allowed = self.claim.granted().threads.max(1);
        self.behind.next(Instant::now(), run, allowed, occasions)
    }

    /// Asks for what the program could use, where something follows its claim, and says what does, and whether it
    /// is a gang.
    fn ask(&mut self, progress: Progress) -> Result<(), Error> {
        if self.waiting.wants_a_keeper() {
            self.turning.start();
            self.pages_are_new = self.turning.keeper().is_some();
        }
        // Before it is a gang: whose threads sleep while they wait is to be known from the first.
        if let Some(said) = self.waiting.news() {
            self.channel.send(&said, &[])?;
        }
        if let Some(said) = self.gang_to_say.take() {
            self.channel.send(&said, &[])?;
        }
        if let Some(said) = self.said.next(self.followers.names(), &self.stay) {
            self.channel.send(&said, &[])?;
        }
        if let Some(said) = self.said.spinning(self.followers.spins()) {
            self.channel.send(&said, &[])?;
        }
        if let Some(said) = self.turning.by().and_then(|by| self.said.turns(by)) {
            self.channel.send(&said, &[])?;
        }
        let Some(mut wants) = self.followers.wants() else {
            return Ok(());
        };
        if self.joined_at.elapsed() < SETTLING {
            wants.max_threads = wants.max_threads.min(self.join.wants.max_threads);
        }
        if progress == Progress::Stuck
            && let Some((run, _)) = self.followers.running()
        {
            wants.malleable = false;
            wants.min_threads = run;
            wants.max_threads = run;
        }
        if wants == self.join.wants {
            return Ok(());
        }
        self.join.wants = wants;
        self.channel.send(&ToManager::Ask(wants), &[])
    }

    /// Looks at the program's threads. Whether they have changed.
    fn look(&mut self) -> bool {
        let Ok(reading) = self.monitor.sample(Detail::Light) else {
            return false;
        };
        let living: HashSet<Thread> = reading
            .threads
            .iter()
            .map(|t| Thread {
                pid: t.pid,
                tid: t.tid,
            })
            .collect();
        let rigid = !self.join.wants.malleable;
        self.waiting
            .look(&reading, self.claim.turn().as_ref(), rigid);
        let changed = self.placing.threads(&living);
        self.progress
            .team
            .store(self.placing.count(), Ordering::Relaxed);
        changed
    }

    /// Reads what the manager says. `Some` if it says no more.
    fn answer(&mut self) -> Option<End> {
        loop {
            let answer = match self.channel.receive::<ToProgram>() {
                Ok(received) => match received.message {
                    // A rigid program cannot do either.
                    ToProgram::Request { request, .. } => ToManager::Answer {
                        request,
                        yes: self.join.wants.malleable,
                    },
                    ToProgram::Again => ToManager::Join(self.join.clone()),
                    ToProgram::Welcome { .. } => match Welcomed::by(received) {
                        Ok(welcomed) => self.renew(welcomed),
                        Err(error) => return Some(self.lost(&error)),
                    },
                    ToProgram::Refused(why) => return Some(End::SentAway(why)),
                    ToProgram::Rule(rule) => {
                        self.rule_is_new |= rule != self.rule;
                        self.rule = rule;
                        continue;
                    }
                    _ => continue,
                },
                Err(Error::WouldBlock) => return None,
                Err(error) => return Some(self.lost(&error)),
            };
            if let Err(error) = self.channel.send(&answer, &[]) {
                return Some(self.lost(&error));
            }
        }
    }

    /// Goes on with another manager's pages. What it is told: how many threads there are.
    fn renew(&mut self, welcomed: Welcomed) -> ToManager {
        self.claim = Arc::new(welcomed.claim);
        self.progress = welcomed.progress;
        self.rule_is_new |= welcomed.rule != self.rule;
        self.rule = welcomed.rule;
        self.pages_are_new = true;
        self.said = Said::to(welcomed.features);
        self.gang_to_say = say_gang(self.turning, welcomed.features);
        self.waiting.told_nobody(welcomed.features);
        self.seen = 0;
        self.shared.now().managed.program = Some(welcomed.program);
        ToManager::Threads(self.placing.count())
    }

    fn lost(&self, error: &Error) -> End {
        // The manager may hear of the program's end before we are told.
        if self.program_has_ended() {
            return End::Stopped;
        }
        match self.claim.state() {
            State::Ended => End::Dismissed,
            _ => End::Lost(match error {
                Error::Closed => "its manager is gone".to_owned(),
                other => other.to_string(),
            }),
        }
    }

    /// Whether the program has ended, though perhaps nobody has waited for it yet.
    fn program_has_ended(&self) -> bool {
        let process = self.process.as_ref().map(AsFd::as_fd);
        process.is_some_and(|process| wait_for(&[process], Some(Duration::ZERO))[0])
    }

    /// Puts every mask back, also of threads that were started meanwhile.
    fn put_back(&mut self) {
        self.look();
        self.placing.put_all_back();
        // One that was started by a thread which was still confined shows up in the next look.
        for _ in 0..3 {
            if !self.look() {
                break;
            }
            self.placing.put_all_back();
        }
    }
}

/// What a manager with these feature bits is to be told of a gang.
fn say_gang(turning: &Turning, manager: u64) -> Option<ToManager> {
    turning
        .keeper()
        .filter(|_| manager & features::GANGS != 0)?;
    Some(ToManager::Gang(Some(turning.asked()?.clone())))
}

/// A descriptor that becomes readable at every grant, as does `also`. A thread sleeps on the claim page for it: a
/// page cannot be polled.
fn tell_of_grants(claim: &Arc<ClaimReader>, also: Option<OwnedFd>) -> std::io::Result<OwnedFd> {
    let granted = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let tell = granted.try_clone()?;
    let claim = Arc::downgrade(claim);
    corewise_launch::run::beside("claim", move || {
        let mut seen = 0;
        while let Some(claim) = claim.upgrade() {
            if claim.wait(seen, Some(SLEEP)) {
                seen = claim.granted().generation;
                // Whoever keeps turns is told first. A counter that is full says the same as one that is not.
                for told in also.iter().chain([&tell]) {
                    let _ = rustix::io::write(told, &1u64.to_ne_bytes());
                }
            }
        }
    })?;
    Ok(granted)
}

fn cpus_in(words: &[u64]) -> CpuSet {
    let bits = words.iter().zip(0u32..).flat_map(|(word, index)| {
        (0..64)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| index * 64 + bit)
    });
    bits.collect()
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_cpus() {
        let mut words = [0; WORDS];
        words[0] = 0b101;
        words[2] = 1 << 63;
        assert_eq!(cpus_in(&words).to_string(), "0,2,191");
    }
}
