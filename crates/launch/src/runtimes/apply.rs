//! From what was detected and one setting to variables, arguments and an affinity.

use std::ffi::{OsStr, OsString};

use serde::{Deserialize, Serialize};

use super::table::{Row, ThreadsKnob};
use super::{Detected, Environment, Runtime, Surroundings, WaitPolicy};

/// numexpr refuses more, unless its own variable allows them.
const NUMEXPR_MOST: u32 = 64;

/// A runtime's knob that the user's own variable or option holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedByUser {
    /// The runtime that obeys it.
    pub runtime: Runtime,
    /// The variable, or the option of `java`.
    pub variable: String,
    /// Its value.
    pub value: String,
    /// Whether it fixes the number of threads (else the way of waiting).
    pub threads: bool,
}

impl std::fmt::Display for FixedByUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fixed by user: {}={}", self.variable, self.value)
    }
}

/// What to start a program with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Variables to set; none of them is set by the user.
    pub env: Vec<(OsString, OsString)>,
    /// Arguments to insert before the user's.
    pub insert_args: Vec<OsString>,
    /// CPUs to narrow the affinity to, where a runtime takes its number of threads from that.
    pub affinity: Option<Vec<u32>>,
    /// What the user's own settings keep from being set.
    pub fixed_by_user: Vec<FixedByUser>,
    /// Runtimes whose number of threads was set, or is right already (affinity wide enough).
    pub threads_set: Vec<Runtime>,
    /// Runtimes that were made to wait passively.
    pub passive_set: Vec<Runtime>,
}

impl Applied {
    /// Whether no runtime was told a number of threads, neither by us nor by the user.
    #[must_use]
    pub fn sets_no_threads(&self) -> bool {
        self.threads_set.is_empty() && !self.fixed_by_user.iter().any(|f| f.threads)
    }

    /// Whether every runtime's number of threads is the user's: there is nothing to search.
    #[must_use]
    pub fn all_fixed_by_user(&self) -> bool {
        self.threads_set.is_empty() && self.fixed_by_user.iter().any(|f| f.threads)
    }

    fn set(&mut self, name: &str, value: String) {
        if !self.env.iter().any(|(n, _)| n == name) {
            self.env.push((name.into(), value.into()));
        }
    }
}

impl Detected {
    /// Variables, arguments and affinity for one setting. `threads` is the number to tell runtimes
    /// (`None`: leave it, for instance since a placeholder says it); `args` are the user's
    /// arguments, in which an own `-XX:ActiveProcessorCount` counts as the user's.
    #[must_use]
    pub fn apply(
        &self,
        threads: Option<u32>,
        wait: WaitPolicy,
        args: &[OsString],
        surroundings: &Surroundings,
    ) -> Applied {
        let mut applied = Applied::default();
        let environment = &surroundings.environment;
        for row in self.rows() {
            if let Some(threads) = threads {
                self.apply_threads(row, threads.max(1), args, surroundings, &mut applied);
            }
            if wait == WaitPolicy::Passive {
                apply_passive(row, environment, &mut applied);
            }
        }
        applied
    }

    fn apply_threads(
        &self,
        row: &Row,
        threads: u32,
        args: &[OsString],
        surroundings: &Surroundings,
        applied: &mut Applied,
    ) {
        let fixed = |variable: &str, value: &OsStr| FixedByUser {
            runtime: row.runtime,
            variable: variable.to_owned(),
            value: value.to_string_lossy().into_owned(),
            threads: true,
        };
        match row.threads {
            ThreadsKnob::Variables(names) => {
                if let Some((name, value)) = first_set(names, &surroundings.environment) {
                    applied.fixed_by_user.push(fixed(name, value));
                    return;
                }
                let threads = match row.runtime {
                    Runtime::Numexpr => threads.min(NUMEXPR_MOST),
                    _ => threads,
                };
                applied.set(names[0], threads.to_string());
            }
            ThreadsKnob::JavaOption if self.java_launcher => {
                if let Some(value) = java_option(args, &surroundings.environment) {
                    applied
                        .fixed_by_user
                        .push(fixed("-XX:ActiveProcessorCount", OsStr::new(&value)));
                    return;
                }
                applied
                    .insert_args
                    .insert(0, format!("-XX:ActiveProcessorCount={threads}").into());
            }
            ThreadsKnob::JavaOption | ThreadsKnob::Affinity => {
                let wanted = threads as usize;
                if self.follows_affinity(row) && wanted < surroundings.cpus.len() {
                    applied.affinity = Some(surroundings.cpus[..wanted].to_vec());
                }
            }
        }
        applied.threads_set.push(row.runtime);
    }
}

fn apply_passive(row: &Row, environment: &Environment, applied: &mut Applied) {
    if row.passive.is_empty() {
        return;
    }
    // One of them is enough: our KMP_BLOCKTIME would undo the user's OMP_WAIT_POLICY.
    if let Some((name, value)) = first_set(row.wait_variables, environment) {
        applied.fixed_by_user.push(FixedByUser {
            runtime: row.runtime,
            variable: name.to_owned(),
            value: value.to_string_lossy().into_owned(),
            threads: false,
        });
        return;
    }
    for (name, value) in row.passive {
        applied.set(name, (*value).to_owned());
    }
    applied.passive_set.push(row.runtime);
}

/// The first of these variables that the user has set to something.
fn first_set<'n, 'e>(
    names: &[&'n str],
    environment: &'e Environment,
) -> Option<(&'n str, &'e OsStr)> {
    names.iter().find_map(|name| {
        let value = environment.get(OsStr::new(name))?;
        (!value.is_empty()).then_some((*name, value.as_os_str()))
    })
}

/// The user's own `-XX:ActiveProcessorCount`, among the arguments or in the variables from which
/// the launcher and the virtual machine take options.
fn java_option(args: &[OsString], environment: &Environment) -> Option<String> {
    const OPTION: &str = "-XX:ActiveProcessorCount=";
    const VARIABLES: [&str; 3] = ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"];
    let from_args = args
        .iter()
        .find_map(|a| a.to_string_lossy().strip_prefix(OPTION).map(str::to_owned));
    from_args.or_else(|| {
        VARIABLES.iter().find_map(|name| {
            let value = environment
                .get(OsStr::new(name))?
                .to_string_lossy()
                .into_owned();
            value
                .split_whitespace()
                .find_map(|w| w.strip_prefix(OPTION).map(str::to_owned))
        })
    })
}
