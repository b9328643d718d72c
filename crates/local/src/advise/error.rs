//! Why there is no advice.

use crate::probing::ProbeError;
use corewise_decide::search::SpaceError;
use corewise_launch::command::LookupError;
use corewise_launch::runtimes::Applied;
use corewise_launch::sandbox;
use corewise_launch::template::TemplateError;

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// The program cannot be found or executed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// What was typed cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The range of numbers is empty.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The machine cannot be read.
    #[error(transparent)]
    Machine(#[from] corewise_machine::Error),
    /// Standard input cannot be kept.
    #[error("standard input cannot be kept for probes: {0}")]
    Stdin(std::io::Error),
    /// The program's file cannot be found or started.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// A probe could not be made, or the program failed in it.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No sandbox, and no leave to probe without.
    #[error(
        "probes cannot be kept from changing files here: {why}; give --unsafe-probes if running the \
         program several times does no harm"
    )]
    NoSandbox {
        /// What is missing.
        why: String,
    },
    /// Its number of threads is not to be searched for.
    #[error("its number of threads is its own affair")]
    Untuned,
    /// The user's own settings leave nothing to search.
    #[error("the number of threads is fixed by {what}: unset it to have it searched")]
    FixedByUser {
        /// The variables and their values.
        what: String,
        /// The number, if they agree on one.
        threads: Option<u32>,
    },
}

/// The error where the user's own variables fix the number.
pub(super) fn fixed_by_user(applied: &Applied) -> AdviseError {
    let fixed: Vec<_> = applied.fixed_by_user.iter().filter(|f| f.threads).collect();
    let mut numbers: Vec<Option<u32>> = fixed.iter().map(|f| f.value.trim().parse().ok()).collect();
    numbers.dedup();
    let what: Vec<String> = fixed
        .iter()
        .map(|f| format!("{}={}", f.variable, f.value))
        .collect();
    AdviseError::FixedByUser {
        what: what.join(", "),
        threads: match numbers[..] {
            [one] => one,
            _ => None,
        },
    }
}
