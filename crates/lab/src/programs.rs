//! The catalogue of real programs (experiments/programs.toml), and how each becomes a command with
//! a given number of threads and way of waiting.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::experiment::Context;
use crate::inputs::{Kind, input};
use crate::measure::Job;

/// How a program's threads wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// As the runtime does when nobody says anything: most spin for a while.
    #[default]
    Default,
    /// They sleep at once.
    Passive,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Wait::Default => "default",
            Wait::Passive => "passive",
        })
    }
}

/// A program of the catalogue; the fields are described at the head of experiments/programs.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// What `--only` takes.
    pub name: String,
    command: Vec<String>,
    #[serde(default)]
    variables: Vec<String>,
    /// Whether a wait policy applies to it.
    #[serde(default)]
    pub waits: bool,
    /// Whether its number of threads is its own affair.
    #[serde(default)]
    pub fixed: bool,
    input: Option<Input>,
    /// Where it comes from.
    pub source: String,
    /// Seconds with one thread and with two, alone.
    pub alone: Option<[f64; 2]>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    kind: Kind,
    megabytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    passive: BTreeMap<String, String>,
    program: Vec<Program>,
}

/// The whole catalogue, and where things are on this machine.
pub struct Catalogue {
    /// In the file's order.
    pub programs: Vec<Program>,
    passive: BTreeMap<String, String>,
    root: PathBuf,
    inputs: PathBuf,
}

impl Catalogue {
    /// Reads experiments/programs.toml.
    pub fn read(context: &Context) -> Result<Self> {
        let path = context.root.join("experiments/programs.toml");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        let file: File =
            toml::from_str(&text).with_context(|| format!("{} is wrong", path.display()))?;
        for program in &file.program {
            if !program.has_placeholder() && program.variables.is_empty() && !program.fixed {
                let name = &program.name;
                bail!(
                    "program {name}: no {{threads}} in its command, no variables, and not `fixed`"
                );
            }
        }
        Ok(Catalogue {
            programs: file.program,
            passive: file.passive,
            root: context.root.clone(),
            inputs: context.inputs.clone(),
        })
    }

    /// The program of this name.
    pub fn program(&self, name: &str) -> Result<&Program> {
        let found = self.programs.iter().find(|program| program.name == name);
        found.with_context(|| format!("there is no program `{name}` in experiments/programs.toml"))
    }

    /// The command with everything but the number of threads, which is written `threads` where the
    /// command has a place for it. Makes the input where it is missing.
    fn command(&self, program: &Program, threads: &str, scale: f64) -> Result<Job> {
        let mut words = Vec::new();
        for word in &program.command {
            let mut word = word
                .replace("{threads}", threads)
                .replace("{python}", &text(&self.root.join(".venv/bin/python")))
                .replace("{py}", &text(&self.root.join("experiments/py")))
                .replace("{inputs}", &text(&self.inputs));
            if word.contains("{input}") {
                let wanted = program
                    .input
                    .with_context(|| format!("program {} names no input", program.name))?;
                let megabytes = (wanted.megabytes as f64 * scale).round().max(1.0) as u64;
                let path = input(&self.inputs, wanted.kind, megabytes)?;
                word = word.replace("{input}", &text(&path));
            }
            if let Some(number) = word.strip_prefix('{').and_then(|w| w.strip_suffix("*}")) {
                let number = number
                    .parse::<f64>()
                    .with_context(|| format!("program {}: {word} is no size", program.name))?;
                word = format!("{}", (number * scale).round().max(1.0));
            }
            words.push(word);
        }
        Ok(Job::new(words))
    }

    /// The program with this number of threads and way of waiting, on an input `scale` times as
    /// large as the catalogue says.
    pub fn job(&self, program: &Program, threads: u32, wait: Wait, scale: f64) -> Result<Job> {
        let threads = threads.to_string();
        let mut job = self.command(program, &threads, scale)?;
        for name in &program.variables {
            job = job.with(name, &threads);
        }
        if wait == Wait::Passive {
            for (name, value) in &self.passive {
                job = job.with(name, value);
            }
        }
        Ok(job)
    }

    /// The program as `corewise run --` and `corewise tune --` get it: with the placeholder
    /// `{threads}` where it takes its number as an argument, else with no advice at all.
    pub fn template(&self, program: &Program, scale: f64) -> Result<Job> {
        self.command(program, "{threads}", scale)
    }

    /// An error where the program is not installed.
    pub fn installed(&self, program: &Program) -> Result<()> {
        let word = &program.command[0];
        let found = if word == "{python}" {
            self.root.join(".venv/bin/python").exists()
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(word).exists())
        };
        if !found {
            bail!(
                "{} is not installed: run scripts/setup --programs",
                program.name
            );
        }
        Ok(())
    }
}

impl Program {
    /// Whether its number of threads is an argument.
    pub fn has_placeholder(&self) -> bool {
        self.command.iter().any(|word| word.contains("{threads}"))
    }

    /// The ways of waiting that can be chosen for it.
    pub fn waits(&self) -> &'static [Wait] {
        match self.waits {
            true => &[Wait::Default, Wait::Passive],
            false => &[Wait::Default],
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(inputs: &Path) -> Catalogue {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let context = Context {
            quick: true,
            json: false,
            rounds: None,
            only: Vec::new(),
            root,
            inputs: inputs.to_owned(),
            out: None,
            corewise_override: None,
        };
        Catalogue::read(&context).unwrap()
    }

    #[test]
    fn the_catalogue_names_at_least_ten_programs_once_each() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = catalogue(folder.path());
        let mut names = catalogue
            .programs
            .iter()
            .map(|program| &program.name)
            .collect::<Vec<_>>();
        assert!(names.len() >= 10);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), catalogue.programs.len());
    }

    #[test]
    fn each_program_gets_its_number_in_exactly_one_way() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = catalogue(folder.path());
        for program in &catalogue.programs {
            let job = catalogue.job(program, 7, Wait::Default, 0.01).unwrap();
            let in_arguments = job
                .argv
                .iter()
                .any(|word| word.to_string_lossy().contains('7'));
            let variables = job.variables.iter().filter(|(_, value)| value == "7");
            let ways = [
                program.has_placeholder(),
                variables.count() > 0,
                program.fixed,
            ];
            assert_eq!(ways.iter().filter(|way| **way).count(), 1, "{job:?}");
            assert!(!program.has_placeholder() || in_arguments, "{job:?}");
            assert!(!job.text().contains('{'), "{}", job.text());
            let template = catalogue.template(program, 0.01).unwrap();
            assert!(template.variables.is_empty());
            assert_eq!(
                template.text().contains("{threads}"),
                program.has_placeholder()
            );
        }
    }

    #[test]
    fn passive_waiting_sets_the_runtimes_variables() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = catalogue(folder.path());
        let program = catalogue.program("lightgbm").unwrap();
        let job = catalogue.job(program, 2, Wait::Passive, 1.0).unwrap();
        let wanted = ("OMP_WAIT_POLICY".to_owned(), "passive".to_owned());
        assert!(job.variables.contains(&wanted));
        assert!(catalogue.program("nothing").is_err());
    }
}
