//! The player: does with real threads what a program's description says, so that one file is run in both
//! worlds.
//!
//! Work is loops ([`crate::actor::work`]), of which the caller says how many make a millisecond at full
//! speed. A team's workers stay, and wait at the dock by the team's policy, as in the simulated world
//! (`corewise_sim::program`): the leader of a region whose join is `all` waits for every worker at its end
//! and again at the dock. Work is cut into the same pieces. What waits is on a futex each (`seat`), so that
//! who releases it knows whether it sleeps; queues are a lock and two condition variables.
//!
//! What it cannot play it refuses, by name (`script`): memory and bandwidth, several processes,
//! malleability, teams that do not wait for everybody, one-thread jobs, and what never ends.

mod groups;
mod pipeline;
mod script;
mod seat;
mod team;

pub use script::{Refused, Script};

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Scope;
use std::time::Duration;

use anyhow::{Context as _, Result};
use corewise_sim::program::ProgramSpec;
use serde::{Deserialize, Serialize};

use crate::actor::{self, clock_ns, now_ns};
use groups::play_groups;
use pipeline::play_pipeline;
use script::Act;
use seat::{Lock, Semaphore};
use team::Team;

/// How fast everything is done.
#[derive(Clone, Copy, Debug)]
pub struct Tempo {
    /// Loops of [`actor::work`] that make a nanosecond of work.
    pub loops_per_ns: f64,
    /// What sleeps and devices are multiplied by: 1.0, unless only the order of things matters.
    pub sleeps: f64,
}

/// What was played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Played {
    /// When it began, by the monotonic clock.
    pub began_ns: u64,
    /// When all was done, and all of its threads had ended.
    pub ended_ns: u64,
    /// CPU time of all threads.
    pub run_ns: u64,
    /// Work that was done, as the description counts it.
    pub work_ns: u64,
    /// Pieces of work that were done: serial parts, units, regions without units, items, rounds.
    pub done: u64,
}

/// What all threads share.
struct Stage {
    tempo: Tempo,
    locks: Vec<Lock>,
    semaphores: Vec<Semaphore>,
    /// How many looks at a flag a spinning thread does in a microsecond.
    looks_per_us: f64,
    work_ns: AtomicU64,
    done: AtomicU64,
}

/// A thread of the program, with what it has done.
struct Hand<'a> {
    stage: &'a Stage,
    work_ns: Cell<u64>,
    done: Cell<u64>,
}

impl<'a> Hand<'a> {
    fn new(stage: &'a Stage) -> Hand<'a> {
        Hand {
            stage,
            work_ns: Cell::new(0),
            done: Cell::new(0),
        }
    }

    fn work(&self, ns: u64) {
        let loops = ns as f64 * self.stage.tempo.loops_per_ns;
        std::hint::black_box(actor::work(loops as u64));
        self.work_ns.set(self.work_ns.get() + ns);
    }

    fn pause(&self, ns: u64) {
        let ns = ns as f64 * self.stage.tempo.sleeps;
        std::thread::sleep(Duration::from_nanos(ns as u64));
    }

    fn count(&self, pieces: u64) {
        self.done.set(self.done.get() + pieces);
    }

    /// A unit: its work, between which it takes locks, and a device.
    fn unit(&self, work_ns: u64, unit: &script::Unit) {
        let pieces = script::even(work_ns, unit.sections.len().max(1) as u64);
        self.work(pieces.size(0));
        for (index, (lock, hold_ns)) in unit.sections.iter().enumerate() {
            if index > 0 {
                self.work(pieces.size(index as u64));
            }
            let lock = &self.stage.locks[*lock];
            lock.take(self.stage.looks_per_us);
            self.work(*hold_ns);
            lock.give_back();
        }
        if unit.io_ns > 0 {
            self.pause(unit.io_ns);
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let stage = self.stage;
        stage
            .work_ns
            .fetch_add(self.work_ns.get(), Ordering::Relaxed);
        stage.done.fetch_add(self.done.get(), Ordering::Relaxed);
    }
}

/// Plays a script with so many threads.
///
/// # Errors
/// If the clocks or the scheduler refuse.
pub fn play(script: &Script, threads: u32, tempo: Tempo) -> Result<Played> {
    // Sleeps end when they should, as the model's do: the usual slack is 50 µs.
    let exact = std::num::NonZeroU64::new(1);
    rustix::thread::set_current_timer_slack(exact).context("the timer slack cannot be set")?;
    let stage = Stage {
        tempo,
        locks: script.locks.iter().map(|wait| Lock::new(*wait)).collect(),
        semaphores: (0..script.semaphores)
            .map(|_| Semaphore::default())
            .collect(),
        looks_per_us: seat::looks_per_us(),
        work_ns: AtomicU64::new(0),
        done: AtomicU64::new(0),
    };
    let used = || clock_ns(rustix::time::ClockId::ProcessCPUTime);
    let (began_ns, used_before_ns) = (now_ns(), used());
    let team = Team::new(threads, script.wait);
    std::thread::scope(|scope| {
        let leader = Hand::new(&stage);
        act(scope, &leader, &team, &script.acts);
        team.close();
    });
    let (ended_ns, used_after_ns) = (now_ns(), used());
    Ok(Played {
        began_ns,
        ended_ns,
        run_ns: used_after_ns - used_before_ns,
        work_ns: stage.work_ns.into_inner(),
        done: stage.done.into_inner(),
    })
}

fn act<'scope, 'env: 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    leader: &Hand<'env>,
    team: &'env Team<'env>,
    acts: &'env [Act],
) {
    for act_now in acts {
        match act_now {
            Act::Repeat(times, acts) => {
                for _ in 0..*times {
                    act(scope, leader, team, acts);
                }
            }
            Act::Serial(ns) => {
                leader.work(*ns);
                leader.count(1);
            }
            Act::Pause(ns) => leader.pause(*ns),
            Act::Region(region) => team.region(scope, leader, region),
            Act::Pipeline(pipeline) => play_pipeline(leader, pipeline, team.threads()),
            Act::Groups(groups) => play_groups(leader, groups),
        }
    }
}

/// The part `play FILE THREADS LOOPS_PER_MS` of [`crate::actor`]: plays a program's file when the lab says
/// so, and prints what was played.
pub(crate) fn part(words: &[String]) -> Result<Played> {
    let word = |index: usize| words.get(index).context("an argument is missing");
    let text = std::fs::read_to_string(word(0)?)
        .with_context(|| format!("{} cannot be read", words[0]))?;
    let spec = ProgramSpec::from_toml(&text).with_context(|| format!("{} is wrong", words[0]))?;
    let script = Script::of(&spec)?;
    let tempo = Tempo {
        loops_per_ns: word(2)?.parse::<f64>()? / 1e6,
        sleeps: 1.0,
    };
    play(&script, word(1)?.parse()?, tempo)
}

#[cfg(test)]
mod tests;
