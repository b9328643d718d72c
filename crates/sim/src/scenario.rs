//! Scenarios: a machine, programs, and a policy, as one TOML file or made in code.
//!
//! A scenario is checked whole before anything runs: unknown keys, missing files, impossible numbers,
//! names that name nothing and programs that wait for each other are errors with file, line and reason.

mod check;
mod error;
mod raw;

pub use error::ScenarioError;

use crate::kernel::Quota;
use crate::machine::SimMachine;
use crate::program::{ProgramSpec, WaitPolicy};
use corewise_decide::cpus::CpuSet;
use corewise_decide::policy::source::Source;
use corewise_decide::policy::{NAMES, built_in, configuration};
use corewise_decide::status::{Gang, Placement};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Virtual time after which a run is given up if nothing else is said: ten minutes, in nanoseconds.
pub const DEFAULT_LIMIT_NS: u64 = 600_000_000_000;

/// How long it takes from a decision until a program follows it, in nanoseconds: what was measured on
/// Linux between a grant and the claim's being followed (docs/measured/manager.md).
pub const DEFAULT_DELAY_NS: u64 = 150_000;

/// Programs that a scenario may start altogether.
pub const MOST_PROGRAMS: u64 = 100_000;

/// Threads that a scenario's programs may have at the same time.
pub const MOST_THREADS: u64 = 1_000_000;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// A name for people.
    pub name: String,
    /// The machine.
    pub machine: SimMachine,
    /// Where random numbers start.
    pub seed: u64,
    /// The policy; `None`: plain Linux, without a manager.
    pub policy: Option<Source>,
    /// Virtual time at which the run is given up, in nanoseconds.
    pub limit_ns: u64,
    /// From a decision until a program follows it, and from a question to its answer, in nanoseconds.
    pub delay_ns: u64,
    /// From the edge of a turn until all threads of the program are stopped, or let go, in nanoseconds.
    pub switch_ns: u64,
    /// Whether each session is a scheduling group of its own, as Linux has it by default.
    pub autogroup: bool,
    /// Control groups.
    pub groups: Vec<Group>,
    /// The group that the manager runs in, as an index: its quota is the manager's, too.
    pub manager_group: Option<usize>,
    /// The programs. None waits for one that waits for it.
    pub entries: Vec<Entry>,
}

/// A control group with a share of the CPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its weight against others, 1 to 10,000; 100 is usual.
    pub weight: u32,
    /// Its CPU quota, if it has one.
    pub quota: Option<Quota>,
}

/// A program of a scenario, or many of the same kind.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name. Several are numbered: `name-1`, `name-2`.
    pub name: String,
    /// What it does.
    pub spec: Arc<ProgramSpec>,
    /// How many start at the same time, at least 1.
    pub count: u32,
    /// When it starts, in nanoseconds after the beginning, or after the end of `after`.
    pub start_ns: u64,
    /// The entry (an index) whose end it waits for.
    pub after: Option<usize>,
    /// How often `count` of them start, at least 1.
    pub waves: u32,
    /// When the next wave starts.
    pub next_wave: NextWave,
    /// Where its share of the CPUs comes from.
    pub share: Share,
    /// The CPUs that its user allows it; `None`: all.
    pub cpus: Option<CpuSet>,
    /// The number of threads that it is given; `None`: a thread for each of its CPUs.
    pub threads: Option<u32>,
    /// How its threads wait for each other, instead of what its description says.
    pub wait: Option<WaitPolicy>,
    /// How it comes under management; `None`: it does not.
    pub managed: Option<Managed>,
    /// Whether it is a gang, and which; only of one that is managed.
    pub gang: Option<Gang>,
    /// Whether the run ends without waiting for it.
    pub background: bool,
}

/// How a program comes under management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Managed {
    /// As under `corewise run`: its number of threads is its own.
    Rigid,
    /// As one that links corewise: it follows its claim's number of threads.
    Malleable {
        /// Threads that it cannot do without, at least 1.
        min_threads: u32,
        /// Threads that it can use; `None`: one for each of its CPUs.
        max_threads: Option<u32>,
        /// Where they should run.
        placement: Placement,
    },
}

/// When the next wave of a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextWave {
    /// So many nanoseconds after all of a wave have ended.
    Pause(u64),
    /// So many nanoseconds after a wave has started.
    Every(u64),
}

/// Where a program's share of the CPUs comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// Its session, by name: a scheduling group of its own where autogroup is on.
    Session(String),
    /// A control group, as an index into [`Scenario::groups`].
    Group(usize),
}

impl Scenario {
    /// A scenario without programs, under plain Linux.
    pub fn new(name: impl Into<String>, machine: SimMachine) -> Scenario {
        Scenario {
            name: name.into(),
            machine,
            seed: 0,
            policy: None,
            limit_ns: DEFAULT_LIMIT_NS,
            delay_ns: DEFAULT_DELAY_NS,
            switch_ns: 0,
            autogroup: true,
            groups: Vec::new(),
            manager_group: None,
            entries: Vec::new(),
        }
    }

    /// Reads a scenario file; paths in it are relative to its folder.
    ///
    /// # Errors
    /// [`ScenarioError`]: which file and line, and what is wrong there.
    pub fn load(path: &Path) -> Result<Scenario, ScenarioError> {
        let text = read(path).map_err(|source| ScenarioError::file(path, &source))?;
        Scenario::from_toml(&text, path, &read)
    }

    /// Makes a scenario of a TOML text that stands in the file `path`; `read` gives the text of the
    /// other files that it names.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn from_toml(
        text: &str,
        path: &Path,
        read: &dyn Fn(&Path) -> io::Result<String>,
    ) -> Result<Scenario, ScenarioError> {
        raw::resolve(text, path, read)
    }

    /// Checks a scenario that was made in code. One from a file is checked.
    ///
    /// # Errors
    /// What is wrong, with the entry's name.
    pub fn check(&self) -> Result<(), String> {
        check::scenario(self).map_err(|wrong| wrong.why)
    }
}

impl Entry {
    /// One program that starts at once, in the session `main`, with a thread for each CPU, managed as
    /// under `corewise run`.
    pub fn new(name: impl Into<String>, spec: Arc<ProgramSpec>) -> Entry {
        Entry {
            name: name.into(),
            spec,
            count: 1,
            start_ns: 0,
            after: None,
            waves: 1,
            next_wave: NextWave::Pause(0),
            share: Share::Session("main".to_owned()),
            cpus: None,
            threads: None,
            wait: None,
            managed: Some(Managed::Rigid),
            gang: None,
            background: false,
        }
    }

    /// How many programs it starts altogether.
    pub fn programs(&self) -> u64 {
        u64::from(self.count) * u64::from(self.waves)
    }
}

/// The policy that a text names: `none`, a built-in one, or the path of a script or of a file that names
/// several. Seeds a script's random numbers with `seed`.
///
/// # Errors
/// Why there is no such policy, for people.
pub fn policy(
    text: &str,
    folder: &Path,
    seed: u64,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Option<Source>, String> {
    if text == "none" {
        return Ok(None);
    }
    if built_in(text).is_some() {
        let source = Source::built_in(text);
        return Ok(Some(Source { seed, ..source }));
    }
    let path = folder.join(text);
    let script = match read(&path) {
        Ok(script) => script,
        Err(error) if text.contains(['/', '.']) => {
            return Err(format!(
                "cannot read the policy {}: {error}",
                path.display()
            ));
        }
        Err(_) => {
            let names = NAMES.join(", ");
            return Err(format!(
                "no policy is called {text:?}, and there is no such file; there are: none, {names}"
            ));
        }
    };
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    let source = match name.ends_with(configuration::ENDING) {
        true => {
            let folder = folder_of(&path);
            configuration::read(&script, &name, seed, &|file| read(&folder.join(file)))?
        }
        false => Source {
            seed,
            ..Source::script(name, script)
        },
    };
    source.make()?;
    Ok(Some(source))
}

/// The longest file that is read, in bytes.
const LONGEST_FILE: u64 = 64 << 20;

/// Reads a file that a scenario names, or the scenario itself; at most 64 MiB.
///
/// # Errors
/// When it cannot be read, is too long, or is not text.
pub fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?
        .take(LONGEST_FILE + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(io::Error::other("it is longer than 64 MiB"));
    }
    Ok(text)
}

/// The folder that paths in a file are relative to.
fn folder_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

#[cfg(test)]
mod tests;
