//! What the user typed, with a hole for the number of threads: `pbzip2 -k -p{threads} big.tar`.
//!
//! `{threads}` may stand anywhere inside any argument, any number of times, and in the value of
//! `--env NAME=VALUE`. `{{threads}}` stands for the literal text `{threads}`. Arguments are bytes,
//! as Linux has them: text that is not UTF-8 passes through unchanged.
//!
//! Programs mean different things by their number: `ferret 1` starts 3 + 4·1 threads. A [`Convert`]
//! (read by [`parse_convert`]) maps between totals of threads and the program's argument; here, all
//! numbers are the argument.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use corewise_decide::setting::Convert;
use serde::{Deserialize, Serialize};

use crate::command::{Command, LookupError};
use crate::runtimes::{Applied, Detected, Surroundings};

const PLACEHOLDER: &[u8] = b"{threads}";
const ESCAPED: &[u8] = b"{{threads}}";

/// Why a command line cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    /// Nothing was typed.
    #[error(
        "no program was given: write it after `--`, for instance `corewise run -- pbzip2 -k -p{{threads}} FILE`"
    )]
    NoProgram,
    /// `--env` was given something else than `NAME=VALUE`.
    #[error(
        "`--env {0}` names no variable: write `--env NAME=VALUE`, for instance `--env JOBS={{threads}}`"
    )]
    BadEnv(String),
    /// `--threads-per-arg` could not be read.
    #[error(
        "`--threads-per-arg {0}` was not understood: write `n`, `1+n` or `3+4n`: the threads that the program starts when its argument is n"
    )]
    BadConvert(String),
    /// A placeholder cannot be left unfilled.
    #[error("{{threads}} stands in the command: only a number can be run in its place")]
    NeedsNumber,
    /// The program cannot be found or executed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// Nothing says where the number of threads goes.
    #[error(
        "nothing says how to set the number of threads of `{program}`: it has no {{threads}} in its \
         arguments, and {why}. Write {{threads}} where the number belongs, for instance \
         `corewise run -- {program} -t {{threads}} ...`, or name the variable that it reads: \
         `corewise run --env NAME={{threads}} -- {program} ...`"
    )]
    NoKnob {
        /// The program, as typed.
        program: String,
        /// What was looked for and not found.
        why: String,
    },
}

/// One setting to start a program with; its number is the program's argument.
pub use corewise_decide::setting::Setting as Knobs;

/// Reads what `--threads-per-arg` says: `n`, `4n`, `1+n`, `3+4n`, `4n+3` (spaces and `*` allowed).
///
/// # Errors
/// [`TemplateError::BadConvert`] where the text is none of these, or the factor is 0.
pub fn parse_convert(text: &str) -> Result<Convert, TemplateError> {
    let bad = || TemplateError::BadConvert(text.to_owned());
    let mut convert = Convert {
        per_argument: 0,
        fixed: 0,
    };
    for term in text.split('+') {
        let term: String = term
            .chars()
            .filter(|c| !c.is_whitespace() && *c != '*')
            .collect();
        if let Some(factor) = term.strip_suffix(['n', 'N']) {
            let factor = if factor.is_empty() {
                1
            } else {
                factor.parse().map_err(|_| bad())?
            };
            convert.per_argument = convert.per_argument.checked_add(factor).ok_or_else(bad)?;
        } else {
            let fixed = term.parse().map_err(|_| bad())?;
            convert.fixed = convert.fixed.checked_add(fixed).ok_or_else(bad)?;
        }
    }
    if convert.per_argument == 0 {
        return Err(bad());
    }
    Ok(convert)
}

/// A program with its arguments, as typed: placeholders not yet filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// The program, a path or a name to be looked up in `PATH`.
    pub program: OsString,
    /// Its arguments, without the program.
    pub args: Vec<OsString>,
    /// Variables from `--env NAME=VALUE`, in the order given.
    pub env: Vec<(String, String)>,
}

/// A template filled for one setting.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// What to start.
    pub command: Command,
    /// What was set, and what the user's own settings kept from being set.
    pub applied: Applied,
}

impl Resolved {
    /// Takes back what only tells runtimes a number that they would take anyway, where they ask the kernel for
    /// their CPUs again while they run (Go, the JVM): told a number, they would keep it.
    pub fn leave_to_itself(&mut self) {
        let go = |(name, _): &(OsString, OsString)| name == "GOMAXPROCS";
        let ours = std::mem::take(&mut self.applied.env);
        let (told, kept) = ours.into_iter().partition::<Vec<_>, _>(go);
        self.command.env.retain(|pair| !told.contains(pair));
        self.applied.env = kept;
        let inserted = self.applied.insert_args.len();
        self.applied
            .insert_args
            .retain(|arg| !arg.as_bytes().starts_with(b"-XX:ActiveProcessorCount="));
        let kept = self.applied.insert_args.iter().cloned();
        self.command.args.splice(0..inserted, kept);
    }
}

impl Template {
    /// Takes the words after `--` and the values of every `--env`.
    ///
    /// # Errors
    /// [`TemplateError::NoProgram`], [`TemplateError::BadEnv`].
    pub fn parse<W, E>(words: W, env: E) -> Result<Self, TemplateError>
    where
        W: IntoIterator<Item = OsString>,
        E: IntoIterator<Item = String>,
    {
        let mut words = words.into_iter();
        let program = words
            .next()
            .filter(|p| !p.is_empty())
            .ok_or(TemplateError::NoProgram)?;
        let mut pairs = Vec::new();
        for text in env {
            match text.split_once('=') {
                Some((name, value)) if !name.is_empty() => {
                    pairs.push((name.to_owned(), value.to_owned()))
                }
                _ => return Err(TemplateError::BadEnv(text)),
            }
        }
        Ok(Self {
            program,
            args: words.collect(),
            env: pairs,
        })
    }

    /// Whether `{threads}` stands in an argument or in a variable.
    #[must_use]
    pub fn has_placeholder(&self) -> bool {
        self.args.iter().any(|arg| fill(arg.as_bytes(), b"").1)
            || self
                .env
                .iter()
                .any(|(_, value)| fill(value.as_bytes(), b"").1)
    }

    /// The command for one setting. With a placeholder, the number goes there and no variable for
    /// the number of threads is set, since the user named the knob; without one, the runtimes'
    /// variables are set. Wait policies go into variables in both cases.
    ///
    /// # Errors
    /// [`TemplateError::NoKnob`] where there is no placeholder and `detected` offers no knob for the
    /// number of threads (and it is not an interpreter whose libraries are still unknown), unless
    /// the user's own variables fix it.
    pub fn resolve(
        &self,
        knobs: &Knobs,
        detected: &Detected,
        surroundings: &Surroundings,
    ) -> Result<Resolved, TemplateError> {
        let (seen, mut command) = self.fill(knobs.threads, surroundings)?;
        let threads = (!self.has_placeholder()).then_some(knobs.threads);
        // The program's own variables are to be seen as the user's.
        let applied = detected.apply(threads, knobs.wait, &command.args, &seen);
        if threads.is_some() && applied.sets_no_threads() {
            return Err(self.no_knob(detected));
        }
        command.env.extend(applied.env.iter().cloned());
        command
            .args
            .splice(0..0, applied.insert_args.iter().cloned());
        command.affinity = applied.affinity.clone();
        Ok(Resolved { command, applied })
    }

    /// The command as plain Linux would run it in this process's environment: nothing set but what
    /// the user wrote.
    ///
    /// # Errors
    /// [`TemplateError::Lookup`]; [`TemplateError::NeedsNumber`] where a placeholder needs a number.
    pub fn unchanged(&self) -> Result<Command, TemplateError> {
        if self.has_placeholder() {
            return Err(TemplateError::NeedsNumber);
        }
        let around = Surroundings::of_this_process(Vec::new());
        Ok(self.fill(1, &around)?.1)
    }

    /// The command with `number` in its placeholders, and the surroundings that it will see.
    fn fill(
        &self,
        number: u32,
        surroundings: &Surroundings,
    ) -> Result<(Surroundings, Command), TemplateError> {
        let text = number.max(1).to_string();
        let filled = |word: &[u8]| OsString::from_vec(fill(word, text.as_bytes()).0);
        let mut seen = surroundings.clone();
        let mut env = Vec::new();
        for (name, value) in &self.env {
            let value = filled(value.as_bytes());
            seen.environment.insert(name.into(), value.clone());
            env.push((name.into(), value));
        }
        let path = seen
            .environment
            .get(OsStr::new("PATH"))
            .map(OsString::as_os_str);
        let mut command = Command::new_on(&self.program, path)?;
        command.args = self.args.iter().map(|arg| filled(arg.as_bytes())).collect();
        command.env = env;
        Ok((seen, command))
    }

    /// The error that says what to write, for a caller that wants to know before starting anything.
    #[must_use]
    pub fn no_knob(&self, detected: &Detected) -> TemplateError {
        TemplateError::NoKnob {
            program: display(&self.program),
            why: detected.why_no_threads_knob(),
        }
    }
}

fn display(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

/// Replaces placeholders and unescapes escaped ones; says whether there was any placeholder.
fn fill(text: &[u8], number: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    let mut found = false;
    while let Some(&first) = rest.first() {
        if let Some(after) = rest.strip_prefix(ESCAPED) {
            out.extend_from_slice(PLACEHOLDER);
            rest = after;
        } else if let Some(after) = rest.strip_prefix(PLACEHOLDER) {
            out.extend_from_slice(number);
            found = true;
            rest = after;
        } else {
            out.push(first);
            rest = &rest[1..];
        }
    }
    (out, found)
}

#[cfg(test)]
mod tests;
