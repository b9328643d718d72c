//! The simulated world: programs on a modelled kernel, seen and managed as the Linux world sees and
//! manages real ones, through the same trait and the same driver loop.
//!
//! What stands for what:
//!
//! | on Linux | here |
//! | --- | --- |
//! | a program joins over the socket | [`Input::Joined`] when it starts; joining takes no time |
//! | the claim page | a grant is followed [`Scenario::delay_ns`] later, the latest one wins |
//! | the local manager beside a program, or in it | `local`: the same answers, the same placing |
//! | /proc, PSI, clocks of processes | `readings`, from the kernel's exact counters |
//! | control groups, freezing, slices | the modelled kernel's |
//! | a host that keeps its program's turn | `turns`: at each edge, [`Scenario::switch_ns`] late |
//! | what such a host says of its program's waiting | `waits`: of those that say that they are gangs |
//!
//! The manager itself costs nothing here (on Linux it takes about 1 % of a CPU with 64 busy threads), and
//! nobody dies or lies.
//! A rigid program's number of threads is what the scenario says. Searches, which run a program's beginning several
//! times as `corewise run` does, have a world of their own: [`crate::probe`].

mod local;
mod outcome;
mod readings;
mod start;
mod turns;
mod waits;

pub use outcome::{ClaimStep, Outcome, Reason};

use crate::kernel::{Event, Kernel, Quota};
use crate::program::{Notice, ProgramNumber, Programs};
use crate::report::Ended;
use crate::scenario::Scenario;
use crate::timeline::{SharedTimeline, Timeline};
use corewise_decide::cpus::CpuSet;
use corewise_decide::global::GlobalManager;
use corewise_decide::policy::source::Source;
use corewise_decide::status::{Machine, ProgramId, Request};
use corewise_decide::world::{Entry, Happened, Input, Output, World, drive};
use local::Local;
use outcome::Record;
use start::Starter;
use std::collections::BTreeMap;
use std::convert::Infallible;
use waits::Waiting;

/// So many events without time passing mean that a program goes round without doing anything.
const MOST_AT_ONCE: u64 = 20_000_000;

/// Is given every line of the journal.
pub type JournalSink<'a> = Box<dyn FnMut(&Entry) + 'a>;

/// What is wanted of a run besides its report.
#[derive(Default)]
pub struct Options<'a> {
    /// Where the journal goes, if anywhere.
    pub journal: Option<JournalSink<'a>>,
    /// Whether it is recorded who ran where.
    pub timeline: bool,
}

/// A scenario that cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("{scenario}: {why}")]
pub struct CannotRun {
    /// The scenario's name.
    pub scenario: String,
    /// Why not.
    pub why: String,
}

/// Runs a scenario to its end: until all programs have ended but for those in the background, until
/// nothing can happen any more, or until its time is over.
///
/// # Errors
/// When the scenario is not as it must be, or its policy cannot be made.
pub fn simulate(scenario: &Scenario, options: Options<'_>) -> Result<Outcome, CannotRun> {
    let cannot = |why| CannotRun {
        scenario: scenario.name.clone(),
        why,
    };
    scenario.check().map_err(cannot)?;
    // Without a manager nobody joins one: the loop is the same, and has nothing to decide.
    let nothing = Source::built_in("observe");
    let source = scenario.policy.as_ref().unwrap_or(&nothing);
    let mut manager = GlobalManager::new(source.make().map_err(cannot)?);
    let mut world = SimWorld::new(scenario, options);
    match drive(&mut world, &mut manager) {
        Ok(()) => Ok(world.outcome(&manager)),
        Err(never) => match never {},
    }
}

/// The simulated world of one run.
pub struct SimWorld<'a> {
    scenario: &'a Scenario,
    journal: Option<JournalSink<'a>>,
    kernel: Kernel,
    programs: Programs,
    starter: Starter,
    /// Every program that has started, by its number.
    started: Vec<Started>,
    /// Managed programs that have not ended.
    managed: BTreeMap<ProgramId, Local>,
    /// How those of them wait that are gangs.
    waiting: Waiting,
    /// What happens at the kernel's timers that are ours.
    due: BTreeMap<u64, Due>,
    next_token: u64,
    inputs: Vec<Input>,
    timeline: Option<SharedTimeline>,
    record: Record,
    events: u64,
    /// When the last event was, and how many there were at that time.
    at_once: (u64, u64),
    ended: Option<Ended>,
    deadlock: Vec<String>,
}

/// A program that has started.
#[derive(Clone, Debug)]
struct Started {
    number: ProgramNumber,
    /// Of which entry, as an index.
    entry: usize,
    name: String,
    ended: bool,
}

/// What happens at a timer.
#[derive(Clone, Copy, Debug)]
enum Due {
    /// A wave of an entry's programs starts.
    Wave(usize),
    /// A program sees its claim.
    Claim(ProgramId),
    /// A program may have to be stopped, or let go, by the turn that it was told at this step.
    Turn(ProgramId, u64),
    /// A local manager looks at its program's threads.
    Look(ProgramId),
    /// Local managers look at how gangs' threads wait.
    Waits,
    /// A local manager answers.
    Answer(ProgramId, u32, Request),
}

impl<'a> SimWorld<'a> {
    /// A world at time 0, in which nothing has started. The scenario must have been checked.
    pub fn new(scenario: &'a Scenario, options: Options<'a>) -> SimWorld<'a> {
        let mut kernel = Kernel::new(&scenario.machine, scenario.seed);
        let cpus = scenario.machine.places.len();
        let timeline = options
            .timeline
            .then(|| SharedTimeline::new(Timeline::new(cpus)));
        if let Some(timeline) = &timeline {
            kernel.set_recorder(Some(Box::new(timeline.clone())));
        }
        let starter = Starter::new(scenario, &mut kernel);
        let mut world = SimWorld {
            scenario,
            journal: options.journal,
            kernel,
            programs: Programs::new(scenario.seed),
            starter,
            started: Vec::new(),
            managed: BTreeMap::new(),
            waiting: Waiting::default(),
            due: BTreeMap::new(),
            next_token: 0,
            inputs: Vec::new(),
            timeline,
            record: Record::default(),
            events: 0,
            at_once: (0, 0),
            ended: None,
            deadlock: Vec::new(),
        };
        if scenario.policy.is_some() {
            let machine = world.machine();
            world.inputs.push(Input::Machine(machine));
        }
        world.plan_first();
        world
    }

    /// The machine as far as the manager may use it.
    fn machine(&self) -> Machine {
        let machine = &self.scenario.machine;
        let cpus = CpuSet::first(machine.places.len() as u32);
        let group = self.scenario.manager_group;
        let group = group.and_then(|index| self.scenario.groups.get(index));
        let quota = group.and_then(|group| group.quota).map(cpus_of);
        let machine = machine.to_decide(&cpus);
        Machine {
            capacity: machine.capacity.min(quota.unwrap_or(f64::INFINITY)),
            ..machine
        }
    }

    /// Something is to happen at `time_ns`.
    fn at(&mut self, time_ns: u64, due: Due) {
        let token = self.next_token;
        self.next_token += 1;
        self.due.insert(token, due);
        self.kernel.at(time_ns, token);
    }

    /// Something is to happen when a message or a claim has arrived.
    fn soon(&mut self, due: Due) {
        let at = self.kernel.now().saturating_add(self.scenario.delay_ns);
        self.at(at, due);
    }

    /// Deals with an event. False if the programs are at a standstill.
    fn on_event(&mut self, event: Event) -> bool {
        self.events += 1;
        let now = self.kernel.now();
        if self.at_once.0 != now {
            self.at_once = (now, 0);
        }
        self.at_once.1 += 1;
        if self.at_once.1 > MOST_AT_ONCE {
            self.deadlock.push(format!(
                "{MOST_AT_ONCE} steps at {now} ns without time passing: a program goes round in no time"
            ));
            return false;
        }
        let ours = match event {
            Event::Timer(token) => self.due.remove(&token),
            Event::Ready(_) => None,
        };
        if let Some(due) = ours {
            self.on_due(due);
        } else if let Err(stuck) = self.programs.on(&mut self.kernel, event) {
            self.deadlock.push(stuck.to_string());
            return false;
        }
        for notice in self.programs.notices() {
            match notice {
                Notice::Ended(number) => self.on_end(number),
                Notice::Threads(number, _) => self.on_threads(number),
            }
        }
        true
    }

    fn on_due(&mut self, due: Due) {
        match due {
            Due::Wave(entry) => self.start_wave(entry),
            Due::Claim(program) => self.follow_claim(program),
            Due::Turn(program, step) => self.keep_turn(program, step),
            Due::Look(program) => self.look(program),
            Due::Waits => self.look_at_waits(),
            Due::Answer(program, request, what) => self.answer(program, request, what),
        }
    }

    /// Whether nothing can happen any more; it is noted what the programs wait for. `reads`: the manager
    /// will look again, and may continue programs that it has stopped.
    fn is_stuck(&mut self, reads: bool) -> bool {
        if !self.due.is_empty() || !self.kernel.is_idle() {
            return false;
        }
        let stuck = self.programs.stuck(&self.kernel);
        if reads && stuck.as_ref().is_none_or(|stuck| stuck.waits.is_empty()) {
            return false;
        }
        let said = match stuck {
            Some(stuck) => stuck.to_string(),
            None => "nothing can happen any more".to_owned(),
        };
        self.deadlock.push(said);
        true
    }

    fn outcome(self, manager: &GlobalManager) -> Outcome {
        outcome::make(self, manager)
    }
}

/// A quota as CPUs' worth of time.
fn cpus_of(quota: Quota) -> f64 {
    quota.quota_ns as f64 / quota.period_ns as f64
}

impl World for SimWorld<'_> {
    type Error = Infallible;

    fn next(&mut self, read_at_ns: Option<u64>) -> Result<Option<Happened>, Infallible> {
        let limit_ns = self.scenario.limit_ns;
        loop {
            let now = self.kernel.now();
            if self.ended.is_none() && self.starter.all_ended() {
                self.ended = Some(Ended::Done);
            } else if self.ended.is_none() && now >= limit_ns {
                self.ended = Some(Ended::Limit);
            }
            if self.ended.is_some() && self.inputs.is_empty() {
                return Ok(None);
            }
            if self.ended.is_none() && read_at_ns.is_some_and(|at| at <= now) {
                let readings = self.read();
                self.inputs.push(Input::Readings(readings));
            }
            if !self.inputs.is_empty() {
                return Ok(Some(Happened {
                    time_ns: now,
                    inputs: std::mem::take(&mut self.inputs),
                }));
            }
            let until = read_at_ns.map_or(limit_ns, |at| at.min(limit_ns));
            let going = match self.kernel.next(until) {
                Some(event) => self.on_event(event),
                None => !self.is_stuck(read_at_ns.is_some()),
            };
            if !going {
                self.ended = Some(Ended::Deadlock);
            }
        }
    }

    fn carry_out(&mut self, output: &Output) -> Result<(), String> {
        self.note(output);
        match output {
            Output::Grant {
                program,
                cpus,
                threads,
                ..
            } => {
                self.grant(*program, cpus, *threads);
                Ok(())
            }
            Output::Tell {
                program,
                request,
                what,
                ..
            } => {
                if !self.managed.contains_key(program) {
                    return Err(format!("{program} has left"));
                }
                self.soon(Due::Answer(*program, *request, *what));
                Ok(())
            }
            Output::Act { action, .. } => self.act(action),
            Output::Turn { program, turn, .. } => {
                self.turn(*program, turn.as_ref());
                Ok(())
            }
            Output::Note(_) => Ok(()),
        }
    }

    fn record(&mut self, entry: &Entry) {
        self.record.entries += 1;
        if matches!(entry.input, Input::Failed { .. }) {
            self.record.failures += 1;
        }
        if let Some(journal) = &mut self.journal {
            journal(entry);
        }
    }

    fn decided(&mut self, manager: &GlobalManager) {
        self.welcome(|program| manager.local_rule_of(program));
    }
}
