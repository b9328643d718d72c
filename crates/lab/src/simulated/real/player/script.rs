//! What is played: a description in nanoseconds, without what cannot be played.

use std::collections::BTreeMap;

use corewise_sim::program::share::{Cut, Spread};
use corewise_sim::program::spec::{
    self, Join, Memory, Phase, ProgramSpec, Schedule, Section, Step as StepSpec,
};
use corewise_sim::program::{Repeat, StageThreads, WaitPolicy};
use toml::Spanned;

const MS: f64 = 1e6;
const US: f64 = 1e3;

/// A description that the player cannot play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The program's name.
    pub program: String,
    /// The part of the description, by its name in the file.
    pub what: &'static str,
    /// Why not.
    pub why: &'static str,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Refused { program, what, why } = self;
        write!(f, "{program} cannot be played: `{what}`: {why}")
    }
}

impl std::error::Error for Refused {}

/// A program that can be played.
#[derive(Clone, Debug)]
pub struct Script {
    pub(super) acts: Vec<Act>,
    /// How teams wait, and where regions do not say otherwise, at their ends.
    pub(super) wait: WaitPolicy,
    /// How threads wait for each lock.
    pub(super) locks: Vec<WaitPolicy>,
    pub(super) semaphores: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Act {
    Repeat(u64, Vec<Act>),
    Serial(u64),
    Pause(u64),
    Region(Region),
    Pipeline(Pipeline),
    Groups(Vec<Group>),
}

/// What belongs to a unit besides its work.
#[derive(Clone, Debug, Default)]
pub(super) struct Unit {
    /// Which lock, and for how long.
    pub(super) sections: Vec<(usize, u64)>,
    pub(super) io_ns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) work_ns: u64,
    pub(super) dynamic: bool,
    pub(super) units: Option<u64>,
    pub(super) spread: Spread,
    pub(super) unit: Unit,
    /// Everybody waits at its end, not only the leader.
    pub(super) joins_all: bool,
    pub(super) wait: WaitPolicy,
    /// Of the cut: another for each region of the file.
    pub(super) seed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) items: u64,
    pub(super) in_flight: Option<u64>,
    pub(super) stages: Vec<Stage>,
}

#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// `None`: the team's.
    pub(super) threads: Option<u32>,
    pub(super) work: Cut,
    pub(super) queue: Option<u64>,
    pub(super) ordered: bool,
    pub(super) unit: Unit,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) threads: u32,
    pub(super) repeat: u64,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Work(u64),
    Lock(usize),
    Unlock(usize),
    Wait(usize),
    Post(usize),
    Pause(u64),
}

/// An even cut.
pub(super) fn even(total: u64, pieces: u64) -> Cut {
    Cut {
        total,
        pieces,
        spread: Spread::NONE,
        seed: 0,
    }
}

impl Script {
    /// The script of a description that has passed its check.
    ///
    /// # Errors
    /// [`Refused`]: what in it cannot be played.
    pub fn of(spec: &ProgramSpec) -> Result<Script, Refused> {
        let mut reader = Reader {
            program: &spec.name,
            wait: spec.wait.unwrap_or(WaitPolicy::BLOCK),
            locks: Vec::new(),
            lock_numbers: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            seeds: 0,
        };
        reader.no_memory(&spec.memory)?;
        if spec.malleable {
            return Err(reader.refuse("malleable", "it follows no claim"));
        }
        if spec.processes.as_ref().is_some_and(|n| *n.get_ref() > 1) {
            return Err(reader.refuse("processes", "it is one process"));
        }
        for (name, lock) in &spec.locks {
            let number = reader.lock(name);
            reader.locks[number] = lock.get_ref().wait;
        }
        let acts = reader.phases(&spec.phases)?;
        Ok(Script {
            acts,
            wait: reader.wait,
            semaphores: reader.semaphores.len(),
            locks: reader.locks,
        })
    }
}

struct Reader<'a> {
    program: &'a str,
    wait: WaitPolicy,
    locks: Vec<WaitPolicy>,
    lock_numbers: BTreeMap<String, usize>,
    semaphores: BTreeMap<String, usize>,
    seeds: u64,
}

impl Reader<'_> {
    fn refuse(&self, what: &'static str, why: &'static str) -> Refused {
        Refused {
            program: self.program.to_owned(),
            what,
            why,
        }
    }

    fn no_memory(&self, memory: &Memory) -> Result<(), Refused> {
        let is_used = memory.share.is_some() || memory.bandwidth_bytes_per_s.is_some();
        match is_used || memory.working_set_bytes.is_some() {
            true => Err(self.refuse("memory", "its work is loops in registers")),
            false => Ok(()),
        }
    }

    fn phases(&mut self, phases: &[Spanned<Phase>]) -> Result<Vec<Act>, Refused> {
        let mut acts = Vec::new();
        for phase in phases {
            let phase = phase.get_ref();
            let mut once = self.phase(phase)?;
            match phase.repeat.as_ref().map(|repeat| *repeat.get_ref()) {
                None => acts.append(&mut once),
                Some(Repeat::Times(times)) => acts.push(Act::Repeat(times, once)),
                Some(Repeat::Forever) => return Err(self.endless()),
            }
        }
        Ok(acts)
    }

    fn endless(&self) -> Refused {
        self.refuse("repeat = \"forever\"", "what is played must end")
    }

    fn phase(&mut self, phase: &Phase) -> Result<Vec<Act>, Refused> {
        self.no_memory(&phase.memory)?;
        if let Some(phases) = &phase.phases {
            return self.phases(phases);
        }
        if phase.jobs.is_some() {
            return Err(self.refuse("jobs", "it starts no processes"));
        }
        let act = if let Some(serial) = &phase.serial {
            Some(Act::Serial(ns(&serial.work_ms, MS)))
        } else if let Some(region) = &phase.region {
            Some(Act::Region(self.region(region)?))
        } else if let Some(pipeline) = &phase.pipeline {
            Some(Act::Pipeline(self.pipeline(pipeline)?))
        } else if let Some(groups) = &phase.group {
            let groups = groups.iter().map(|group| self.group(group.get_ref()));
            Some(Act::Groups(groups.collect::<Result<_, _>>()?))
        } else if let Some(ms) = &phase.sleep_ms {
            Some(Act::Pause(ns(ms, MS)))
        } else {
            phase.io_us.as_ref().map(|us| Act::Pause(ns(us, US)))
        };
        // A phase that has passed its check says exactly one thing.
        Ok(act.into_iter().collect())
    }

    fn region(&mut self, region: &spec::Region) -> Result<Region, Refused> {
        if region.threads.is_some() {
            let why = "its regions have all of the team's threads";
            return Err(self.refuse("region.threads", why));
        }
        let join = region.join.as_ref().map(|join| *join.get_ref());
        if join == Some(Join::Work) {
            let why = "its teams wait for threads, not for work";
            return Err(self.refuse("join = \"work\"", why));
        }
        self.seeds += 1;
        Ok(Region {
            work_ns: ns(&region.work_ms, MS),
            dynamic: region.schedule == Some(Schedule::Dynamic),
            units: region.units.as_ref().map(|units| *units.get_ref()),
            spread: spread(region.imbalance.as_ref()),
            unit: self.unit(&region.locks, region.io_us.as_ref()),
            joins_all: join != Some(Join::Leader),
            wait: region.wait.unwrap_or(self.wait),
            seed: self.seeds << 32,
        })
    }

    fn unit(&mut self, locks: &[Spanned<Section>], io_us: Option<&Spanned<f64>>) -> Unit {
        let mut unit = Unit {
            io_ns: io_us.map_or(0, |us| ns(us, US)),
            ..Unit::default()
        };
        for section in locks {
            let section = section.get_ref();
            let (lock, hold_ns) = (self.lock(section.name.get_ref()), ns(&section.hold_us, US));
            let times = section.times.as_ref().map_or(1, |times| *times.get_ref());
            unit.sections.extend((0..times).map(|_| (lock, hold_ns)));
        }
        unit
    }

    fn pipeline(&mut self, pipeline: &spec::Pipeline) -> Result<Pipeline, Refused> {
        let items = *pipeline.items.get_ref();
        let mut stages = Vec::new();
        for stage in &pipeline.stages {
            let stage = stage.get_ref();
            self.no_memory(&stage.memory)?;
            self.seeds += 1;
            stages.push(Stage {
                threads: match stage.threads.as_ref().map(|threads| *threads.get_ref()) {
                    None => Some(1),
                    Some(StageThreads::Fixed(threads)) => Some(threads),
                    Some(StageThreads::Team) => None,
                },
                work: Cut {
                    total: ns(&stage.work_us, US).saturating_mul(items),
                    pieces: items,
                    spread: spread(stage.variation.as_ref()),
                    seed: self.seeds << 32,
                },
                queue: stage.queue.as_ref().map(|queue| *queue.get_ref()),
                ordered: stage.ordered.as_ref().is_some_and(|is| *is.get_ref()),
                unit: self.unit(&stage.locks, stage.io_us.as_ref()),
            });
        }
        Ok(Pipeline {
            items,
            in_flight: pipeline.in_flight.as_ref().map(|n| *n.get_ref()),
            stages,
        })
    }

    fn group(&mut self, group: &spec::Group) -> Result<Group, Refused> {
        let steps = group.steps.iter().map(|step| self.step(step.get_ref()));
        let steps = steps.collect();
        Ok(Group {
            threads: group.threads.as_ref().map_or(1, |n| *n.get_ref()),
            repeat: match group.repeat.as_ref().map(|repeat| *repeat.get_ref()) {
                None => 1,
                Some(Repeat::Times(times)) => times,
                Some(Repeat::Forever) => return Err(self.endless()),
            },
            steps,
        })
    }

    fn step(&mut self, step: &StepSpec) -> Step {
        if let Some(us) = &step.work_us {
            Step::Work(ns(us, US))
        } else if let Some(lock) = &step.lock {
            Step::Lock(self.lock(lock.get_ref()))
        } else if let Some(lock) = &step.unlock {
            Step::Unlock(self.lock(lock.get_ref()))
        } else if let Some(semaphore) = &step.wait {
            Step::Wait(self.semaphore(semaphore.get_ref()))
        } else if let Some(semaphore) = &step.post {
            Step::Post(self.semaphore(semaphore.get_ref()))
        } else {
            let us = step.sleep_us.as_ref().or(step.io_us.as_ref());
            Step::Pause(us.map_or(0, |us| ns(us, US)))
        }
    }

    fn lock(&mut self, name: &str) -> usize {
        let next = self.locks.len();
        let number = *self.lock_numbers.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.locks.push(WaitPolicy::BLOCK);
        }
        number
    }

    fn semaphore(&mut self, name: &str) -> usize {
        let next = self.semaphores.len();
        *self.semaphores.entry(name.to_owned()).or_insert(next)
    }
}

fn ns(time: &Spanned<f64>, unit: f64) -> u64 {
    (*time.get_ref() * unit).round() as u64
}

fn spread(of_mean: Option<&Spanned<f64>>) -> Spread {
    of_mean.map_or(Spread::NONE, |part| Spread::new(*part.get_ref()))
}
