//! A program as its file describes it.

use super::error::{Error, Fault};
use super::plan::Plan;
use super::wait::{Repeat, StageThreads, WaitPolicy};
use corewise_decide::cpus::CpuSet;
use serde::Deserialize;
use toml::Spanned;

/// A program: what its threads do, as data. Every time is what the work takes at full speed on an otherwise
/// idle machine.
///
/// The whole is documented in `experiments/programs/README.md`, with an example of each part.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramSpec {
    /// A name for people.
    pub name: String,
    /// Where its figures come from.
    pub source: Option<String>,
    /// Threads that it has if nobody says otherwise. Without: as many as CPUs are allowed.
    pub threads: Option<Spanned<u32>>,
    /// Threads that it cannot do without. Without: 1.
    pub min_threads: Option<Spanned<u32>>,
    /// Threads that it can use at most. Without: no limit of its own.
    pub max_threads: Option<Spanned<u32>>,
    /// Whether it follows the number of threads of a claim.
    #[serde(default)]
    pub malleable: bool,
    /// Processes that each do all of the phases, with their own threads and locks. Without: 1.
    pub processes: Option<Spanned<u32>>,
    /// How its teams wait, at the end of regions and between them. Without: they block.
    pub wait: Option<WaitPolicy>,
    /// How its work uses memory.
    #[serde(default)]
    pub memory: Memory,
    /// The power that it uses of a CPU, as a part of what usual work does. Without: 1.
    pub power: Option<Spanned<f64>>,
    /// What hardware prefetchers do for it. Without: nothing.
    pub prefetch: Option<Spanned<Prefetch>>,
    /// Locks that are not plain blocking ones, by name.
    #[serde(default)]
    pub locks: std::collections::BTreeMap<String, Spanned<LockSpec>>,
    /// What it does, in sequence.
    #[serde(rename = "phase")]
    pub phases: Vec<Spanned<Phase>>,
}

/// How work uses memory. What a part leaves out is as in what it is part of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// The part of its time that waits for memory, 0 to 1.
    pub share: Option<Spanned<f64>>,
    /// Bytes a second that it moves to and from memory at full speed.
    pub bandwidth_bytes_per_s: Option<Spanned<f64>>,
    /// Bytes that a thread keeps in caches, and fetches again after a migration.
    pub working_set_bytes: Option<u64>,
}

/// What hardware prefetchers do for a program.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefetch {
    /// How much longer its work takes without them, as a part of its time; below 0: how much less.
    pub gain: f64,
    /// Power that they use for it, as a part of what usual work does.
    pub power: f64,
}

/// A lock.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockSpec {
    /// How threads wait for it.
    pub wait: WaitPolicy,
    /// Threads have it in the order in which they came, as of a ticket lock, whether or not the next one has a
    /// CPU. Without: whoever sees first that it is free.
    #[serde(default)]
    pub fifo: bool,
}

/// A part of what a program does: exactly one of the things below, or phases within it; perhaps many
/// times.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// How often. Without: once.
    pub repeat: Option<Spanned<Repeat>>,
    /// How it uses memory.
    #[serde(default)]
    pub memory: Memory,
    /// Work of one thread.
    pub serial: Option<Serial>,
    /// Work of a team.
    pub region: Option<Region>,
    /// Items that pass through stages, each with threads of its own.
    pub pipeline: Option<Pipeline>,
    /// Groups of threads that do steps.
    pub group: Option<Vec<Spanned<Group>>>,
    /// Processes of one thread each.
    pub jobs: Option<Jobs>,
    /// The thread sleeps, in milliseconds.
    pub sleep_ms: Option<Spanned<f64>>,
    /// The thread waits for a device, in microseconds.
    pub io_us: Option<Spanned<f64>>,
    /// Phases within this one.
    #[serde(rename = "phase")]
    pub phases: Option<Vec<Spanned<Phase>>>,
}

/// Work of one thread.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serial {
    /// How much.
    pub work_ms: Spanned<f64>,
}

/// Who does which part of a region's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Each thread has its share from the beginning.
    Static,
    /// Threads take the next unit when they have done one.
    Dynamic,
}

/// Who waits for whom at the end of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Join {
    /// Everybody for everybody, and at the begin of the next region again, as in GNU's OpenMP runtime.
    All,
    /// The first thread for all others, who wait for the next region, as in LLVM's OpenMP runtime.
    Leader,
    /// The first thread for the work to be done; who has not come for any is not waited for, as in oneTBB,
    /// rayon and corewise's own teams.
    Work,
}

/// Work of a team: it is forked, does the work, and joins.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// How much, of all threads together, without what is done holding locks.
    pub work_ms: Spanned<f64>,
    /// Who does which part. Without: static.
    pub schedule: Option<Schedule>,
    /// Units that the work is cut into. Without: one for each thread (static only).
    pub units: Option<Spanned<u64>>,
    /// How much shares (static) or units (dynamic) differ from their mean, 0 to 1: the largest is at most
    /// so much above it.
    pub imbalance: Option<Spanned<f64>>,
    /// Locks that each unit takes.
    #[serde(default)]
    pub locks: Vec<Spanned<Section>>,
    /// How long each unit waits for a device, in microseconds.
    pub io_us: Option<Spanned<f64>>,
    /// Threads, whatever the program has (a `num_threads` clause).
    pub threads: Option<Spanned<u32>>,
    /// Who waits for whom at its end. Without: all; work, where a malleable program's units are dynamic.
    pub join: Option<Spanned<Join>>,
    /// How they wait at its end. Without: as the program says.
    pub wait: Option<WaitPolicy>,
}

/// A lock that is taken in each unit of work.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Its name.
    pub name: Spanned<String>,
    /// How long it is held, in microseconds; in addition to the unit's own work.
    pub hold_us: Spanned<f64>,
    /// How often in each unit. Without: once.
    pub times: Option<Spanned<u64>>,
}

/// Items that pass through stages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// How many items.
    pub items: Spanned<u64>,
    /// Items that may be under way at the same time. Without: any number, or where the last stage is
    /// ordered, what fits into the queues and the hands of all threads.
    pub in_flight: Option<Spanned<u64>>,
    /// The stages, in order.
    #[serde(rename = "stage")]
    pub stages: Vec<Spanned<Stage>>,
}

/// A stage of a pipeline.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Its threads. Without: 1.
    pub threads: Option<Spanned<StageThreads>>,
    /// Work for each item, on average.
    pub work_us: Spanned<f64>,
    /// How much items' work differs from the mean, 0 to 1.
    pub variation: Option<Spanned<f64>>,
    /// Items that may wait for this stage. Without: two for each of its threads. An ordered stage has no
    /// bound of its own: `in_flight` is one.
    pub queue: Option<Spanned<u64>>,
    /// Whether it takes the items in their first order; only the last stage, with one thread.
    pub ordered: Option<Spanned<bool>>,
    /// Locks that each item takes.
    #[serde(default)]
    pub locks: Vec<Spanned<Section>>,
    /// How long each item waits for a device, in microseconds.
    pub io_us: Option<Spanned<f64>>,
    /// How it uses memory.
    #[serde(default)]
    pub memory: Memory,
}

/// Threads that do the same steps. All groups of a phase run at the same time; the phase ends with the
/// last of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name; its threads are numbered.
    pub name: String,
    /// Threads. Without: 1.
    pub threads: Option<Spanned<u32>>,
    /// How often each does the steps. Without: once.
    pub repeat: Option<Spanned<Repeat>>,
    /// What each does, in order.
    pub steps: Vec<Spanned<Step>>,
}

/// A step of a group's threads: exactly one of these.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Work.
    pub work_us: Option<Spanned<f64>>,
    /// Takes a lock.
    pub lock: Option<Spanned<String>>,
    /// Gives a lock back.
    pub unlock: Option<Spanned<String>>,
    /// Waits until somebody has posted (a semaphore, by name; it begins with 0).
    pub wait: Option<Spanned<String>>,
    /// Posts: lets one who waits go on, or the next one who comes.
    pub post: Option<Spanned<String>>,
    /// Sleeps.
    pub sleep_us: Option<Spanned<f64>>,
    /// Waits for a device.
    pub io_us: Option<Spanned<f64>>,
}

/// One-thread processes that the program starts and waits for, as `make -j` does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// How many.
    pub count: Spanned<u64>,
    /// How many at the same time. Without: as many as the program has threads.
    pub at_once: Option<Spanned<u32>>,
    /// The work of each, on average.
    pub work_ms: Spanned<f64>,
    /// How much their work differs from the mean, 0 to 1.
    pub variation: Option<Spanned<f64>>,
    /// They come in waves of so many.
    pub wave: Option<Spanned<u64>>,
    /// A wave comes so long after the one before; only with `wave`.
    pub every_ms: Option<Spanned<f64>>,
}

impl ProgramSpec {
    /// Reads and checks a program's description.
    ///
    /// # Errors
    /// What is wrong, and in which line and column.
    pub fn from_toml(text: &str) -> Result<ProgramSpec, Error> {
        let spec: ProgramSpec = toml::from_str(text).map_err(|e| Error::parse(text, &e))?;
        spec.check().map_err(|fault| Error::at(text, fault))?;
        Ok(spec)
    }

    /// Checks a description that was read as part of another text.
    ///
    /// # Errors
    /// What is wrong; its span is in that text.
    pub fn check(&self) -> Result<(), Fault> {
        Plan::of(self).map(|_| ())
    }

    /// Threads that it begins with when `asked` are asked for (`None`: its own number, else one for each
    /// allowed CPU). Of each process, where it has several. A pipeline's and a group's threads come in
    /// addition.
    pub fn threads_at_start(&self, asked: Option<u32>, allowed: &CpuSet) -> u32 {
        let own = self.threads.as_ref().map(|n| *n.get_ref());
        let threads = asked.or(own).unwrap_or(allowed.count());
        let most = self.max_threads.as_ref().map_or(u32::MAX, |n| *n.get_ref());
        let least = self.min_threads.as_ref().map_or(1, |n| *n.get_ref());
        threads.min(most).max(least).max(1)
    }

    /// Work of all of its threads together, in nanoseconds at full speed; `None` if it never ends, or
    /// does not pass [`ProgramSpec::check`].
    pub fn work_ns(&self) -> Option<u64> {
        Plan::of(self).ok()?.work_ns
    }
}
