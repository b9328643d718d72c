//! Builds that can be offered a jobserver (GNU make's protocol for sharing out a number of jobs), so that
//! the number of their jobs follows a claim: which programs they are, what they ask for, and how they are
//! told of it.
//!
//! **Who gets one.** Programs that would run several jobs anyway:
//!
//! - GNU make where it was given `-j`, on its command line or in `MAKEFLAGS`. Without, it runs one job at a
//!   time, and stays so: a makefile need not be right for more, and nobody said that it is. `-j` without a
//!   number means as many jobs as there are effective CPUs, instead of no limit at all;
//! - ninja from 1.13 on, and cargo, which are parallel unasked;
//! - whatever the user says (`corewise run --jobs`), such as a script that calls these.
//!
//! The number that the user gave is the most. It is taken out of the command's arguments, since a tool that
//! finds one there makes a jobserver of its own (make), or ignores ours (ninja, cargo).
//!
//! **How they are told.** The tokens are in a pipe without a name, both ends of which the program inherits
//! under high numbers, so there is nothing to be left behind, and if we die, the tokens stay with the build.
//! Programs up to make 4.3 are given the two numbers, later ones the path `/proc/self/fd/NUMBER`, which
//! is that of a named pipe to them. A descriptor that something in between has closed is noticed by make,
//! which warns and runs one job at a time.
//!
//! **Who does not**: a build within another one, which has that one's jobserver.

mod arguments;

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use crate::command::{Command, find_program};
use crate::runtimes::{Environment, interpreter_of};
use arguments::{Arguments, Asked};
use corewise_decide::jobserver::MOST_JOBS;

/// Variables by which a jobserver is inherited.
const INHERITED: [&str; 3] = ["MAKEFLAGS", "MFLAGS", "CARGO_MAKEFLAGS"];

/// No build tool's program is larger.
const LARGEST_PROGRAM: u64 = 64 << 20;

/// What is known as a client of jobservers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// GNU make.
    Make,
    /// ninja.
    Ninja,
    /// cargo.
    Cargo,
}

/// How a jobserver is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// By the numbers of two descriptors.
    Descriptors,
    /// By a path, as clients of a named pipe expect it.
    Path,
}

/// What comes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// It can be offered a jobserver.
    Jobserver(Build),
    /// It runs as it is; why, for people, without a full stop.
    AsItIs(String),
}

/// A build that can be offered a jobserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    client: Option<Client>,
    style: Style,
    most: u32,
    arguments: Arguments,
}

impl Client {
    /// What a program is, by its name. Reads its first line: a makefile may be executed as a script.
    pub fn of(program: &Path, environment: &Environment) -> Option<Client> {
        let interpreter = interpreter_of(program, environment);
        let file = interpreter.as_deref().unwrap_or(program);
        match (file.file_name()?.to_str()?, interpreter.is_some()) {
            ("make" | "gmake", _) => Some(Client::Make),
            ("ninja" | "ninja-build", false) => Some(Client::Ninja),
            ("cargo", false) => Some(Client::Cargo),
            _ => None,
        }
    }

    /// What follows the claim of such a program, for people.
    pub fn how(self) -> &'static str {
        match self {
            Client::Make => {
                "its jobs follow, by a jobserver, where it is given -j (GNU make 4.2 and later)"
            }
            Client::Ninja => {
                "its jobs follow, by a jobserver (ninja 1.13 and later, and no make older than 4.4)"
            }
            Client::Cargo => "the jobs of its builds follow, by a jobserver",
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Client::Make => "make",
            Client::Ninja => "ninja",
            Client::Cargo => "cargo",
        }
    }
}

impl Offer {
    /// What can be offered to `command`, which is a `client`, or one that the user says takes a jobserver;
    /// `jobs` is what the user says besides (`Some(None)`: no number). The machine has `cpus` effective CPUs.
    /// Reads the files of build tools, below 1 ms.
    pub fn to(
        command: &Command,
        client: Option<Client>,
        jobs: Option<Option<u32>>,
        environment: &Environment,
        cpus: u32,
    ) -> Offer {
        let seen: Environment = command
            .environment(environment.clone())
            .into_iter()
            .collect();
        match offer(command, client, jobs, &seen, cpus.max(1)) {
            Ok(build) => Offer::Jobserver(build),
            Err(why) => Offer::AsItIs(why),
        }
    }
}

impl Build {
    /// How many jobs may run at once at most: what the user says, else one for each CPU.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// The options that were taken out of the command's arguments, as they were typed.
    pub fn replaced(&self) -> &[String] {
        &self.arguments.typed
    }

    /// The command with the jobserver whose pipe has these ends, which it inherits.
    #[must_use]
    pub fn told(
        &self,
        mut command: Command,
        environment: &Environment,
        (read, write): (RawFd, RawFd),
    ) -> Command {
        let place = match self.style {
            Style::Descriptors => format!("{read},{write}"),
            Style::Path => format!("fifo:/proc/self/fd/{read}"),
        };
        let told = format!("-j{} --jobserver-auth={place}", self.most);
        let name = match self.client {
            // Only the build: programs that cargo runs, or tests, are not a part of it.
            Some(Client::Cargo) => "CARGO_MAKEFLAGS",
            _ => "MAKEFLAGS",
        };
        let before = command.environment(environment.clone());
        let before = before.into_iter().find(|(n, _)| n == name);
        let before = before.map(|(_, value)| value).unwrap_or_default();
        command.args.clone_from(&self.arguments.rest);
        command.inherit.extend([read, write]);
        command.env(name, with_flags(&before.to_string_lossy(), &told))
    }
}

/// Flags of make with some more. Definitions of variables, which come last, stay last.
fn with_flags(before: &str, more: &str) -> String {
    let words: Vec<&str> = before.split(' ').collect();
    let flags = words.iter().position(|word| *word == "--");
    let (flags, definitions) = words.split_at(flags.unwrap_or(words.len()));
    // A first word without a dash is one of short options: empty, it says that there are none.
    let mut all = flags.join(" ");
    all.push(' ');
    all.push_str(more);
    for word in definitions {
        all.push(' ');
        all.push_str(word);
    }
    all
}

fn offer(
    command: &Command,
    client: Option<Client>,
    jobs: Option<Option<u32>>,
    seen: &Environment,
    cpus: u32,
) -> Result<Build, String> {
    let has_one = |name: &&str| text(seen, name).contains("--jobserver-");
    if let Some(name) = INHERITED.iter().find(|name| has_one(name)) {
        return Err(format!(
            "it has the jobserver of the build that it is part of, by {name}"
        ));
    }
    let path = seen.get(OsStr::new("PATH")).map(OsString::as_os_str);
    let interpreter = interpreter_of(&command.program, seen);
    let program = Knows::of(interpreter.as_deref().unwrap_or(&command.program));
    let make = find_program(OsStr::new("make"), path)
        .ok()
        .map(|make| Knows::of(&make));
    // An older make fails when it is given a path.
    let make_knows_paths = make.is_none_or(|make| make.paths);
    let unknown = |client: Client| {
        let name = client.name();
        Err(format!(
            "this {name} knows no jobserver (ninja does from 1.13 on, GNU make from 4.2)"
        ))
    };
    let style = match client {
        Some(client @ Client::Make) if !program.jobservers => return unknown(client),
        Some(client @ Client::Ninja) if !program.jobservers => return unknown(client),
        Some(Client::Make) if program.paths => Style::Path,
        Some(Client::Make | Client::Cargo) => Style::Descriptors,
        Some(Client::Ninja) if make_knows_paths || jobs.is_some() => Style::Path,
        Some(Client::Ninja) => {
            return Err(
                "a make older than 4.4, if ninja called it, would fail with ninja's kind of \
                 jobserver; --jobs says that it does not"
                    .to_owned(),
            );
        }
        None if make_knows_paths => Style::Path,
        None => Style::Descriptors,
    };
    let arguments = match client {
        Some(Client::Make) if seen.contains_key(OsStr::new("POSIXLY_CORRECT")) => None,
        Some(Client::Make) => arguments::of_make(&command.args),
        Some(Client::Ninja) => arguments::of_ninja(&command.args),
        Some(Client::Cargo) => arguments::of_cargo(&command.args),
        None => Some(Arguments {
            asked: None,
            typed: Vec::new(),
            rest: command.args.clone(),
        }),
    };
    let Some(arguments) = arguments else {
        return Err("its arguments are not known to be those of a build".to_owned());
    };
    let asked = match arguments.asked {
        Some(asked) => Some(asked),
        None => asked_around(client, seen)?,
    };
    if client == Some(Client::Make) && asked.is_none() && jobs.is_none() {
        return Err("make runs one job at a time unless it is given -j".to_owned());
    }
    let said = match asked {
        Some(Asked::Jobs(number)) => Some(number),
        Some(Asked::NoLimit) | None => None,
    };
    let numbers = said.into_iter().chain(jobs.flatten());
    let most = numbers.min().unwrap_or(cpus).min(MOST_JOBS);
    if most <= 1 {
        return Err("it runs one job at a time".to_owned());
    }
    Ok(Build {
        client,
        style,
        most,
        arguments,
    })
}

/// What is asked for in the environment, or in files. An error where that cannot be changed from outside.
fn asked_around(client: Option<Client>, seen: &Environment) -> Result<Option<Asked>, String> {
    let unclear = |name: &str| format!("its {name} is not understood");
    match client {
        Some(Client::Make) | None => {
            let found = arguments::of_makeflags(&text(seen, "MAKEFLAGS"));
            let found = found.ok_or_else(|| unclear("MAKEFLAGS"))?;
            let gnu = arguments::of_makeflags(&text(seen, "GNUMAKEFLAGS"));
            let gnu = gnu.ok_or_else(|| unclear("GNUMAKEFLAGS"))?;
            Ok(found.asked.or(gnu.asked))
        }
        Some(Client::Ninja) => Ok(None),
        Some(Client::Cargo) => match text(seen, "CARGO_BUILD_JOBS").as_str() {
            "" => match configured(seen) {
                None => Ok(None),
                Some(file) => Err(format!("{} has a number of jobs", file.display())),
            },
            number => match number.parse() {
                Ok(number @ 1..) => Ok(Some(Asked::Jobs(number))),
                _ => Err(unclear("CARGO_BUILD_JOBS")),
            },
        },
    }
}

/// A configuration of cargo that sets a number of jobs, as far as lines tell.
fn configured(seen: &Environment) -> Option<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let home = match seen.get(OsStr::new("CARGO_HOME")) {
        Some(home) => PathBuf::from(home),
        None => Path::new(seen.get(OsStr::new("HOME"))?).join(".cargo"),
    };
    let folders = here
        .ancestors()
        .map(|folder| folder.join(".cargo"))
        .chain([home]);
    let files = folders.flat_map(|folder| [folder.join("config.toml"), folder.join("config")]);
    let sets = |line: &str| {
        let (name, _) = line.split_once('=').unwrap_or_default();
        matches!(name.trim(), "jobs" | "build.jobs")
    };
    let mut files = files.filter(|file| file.is_file());
    files.find(|file| std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(sets)))
}

fn text(seen: &Environment, name: &str) -> String {
    let value = seen.get(OsStr::new(name));
    value
        .map(|value| value.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// What a build tool's program knows of jobservers, by the names of options that are in its file.
#[derive(Clone, Copy, Debug, Default)]
struct Knows {
    jobservers: bool,
    /// Named pipes, too.
    paths: bool,
}

impl Knows {
    fn of(program: &Path) -> Knows {
        let small = std::fs::metadata(program).is_ok_and(|m| m.len() <= LARGEST_PROGRAM);
        let Some(bytes) = small.then(|| std::fs::read(program).ok()).flatten() else {
            return Knows::default();
        };
        let has = |mark: &str| memchr::memmem::find(&bytes, mark.as_bytes()).is_some();
        Knows {
            jobservers: has("jobserver-auth"),
            paths: has("jobserver-style"),
        }
    }
}

#[cfg(test)]
mod tests;
