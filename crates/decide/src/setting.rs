//! What a search may choose: a number of threads and a way of waiting.

use serde::{Deserialize, Serialize};

/// How idle threads of a runtime wait for work.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum WaitPolicy {
    /// As the runtime does unasked: most spin for a while before they sleep.
    #[default]
    Default,
    /// Sleep at once, leaving the CPU to whoever can use it.
    Passive,
}

impl std::fmt::Display for WaitPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            WaitPolicy::Default => "default",
            WaitPolicy::Passive => "passive",
        })
    }
}

/// One way to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Setting {
    /// The number that the program is given (its argument or its runtime's variable), at least 1.
    pub threads: u32,
    /// How its idle threads wait.
    pub wait: WaitPolicy,
}

impl Setting {
    /// `threads` threads that wait as the runtime does unasked.
    pub fn threads(threads: u32) -> Setting {
        Setting {
            threads,
            wait: WaitPolicy::Default,
        }
    }

    /// `threads` threads that sleep as soon as they have nothing to do.
    pub fn passive(threads: u32) -> Setting {
        Setting {
            threads,
            wait: WaitPolicy::Passive,
        }
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = if self.threads == 1 { "" } else { "s" };
        write!(f, "{} thread{s}", self.threads)?;
        match self.wait {
            WaitPolicy::Default => Ok(()),
            WaitPolicy::Passive => write!(f, ", waiting passively"),
        }
    }
}

/// How many threads a program creates for the number it is given: `fixed + per_argument × n`
/// (Thread Reinforcer, Table II; ferret is `3 + 4n`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convert {
    /// Threads that exist whatever the number.
    pub fixed: u32,
    /// Threads for each unit of the number, at least 1.
    pub per_argument: u32,
}

impl Default for Convert {
    fn default() -> Convert {
        Convert {
            fixed: 0,
            per_argument: 1,
        }
    }
}

impl Convert {
    /// The largest argument with which the program creates at most `total` threads; at least 1.
    pub fn argument_for(&self, total: u32) -> u32 {
        (total.saturating_sub(self.fixed) / self.per_argument.max(1)).max(1)
    }

    /// The number of threads that the program creates when it is given `argument`.
    pub fn total_for(&self, argument: u32) -> u32 {
        self.fixed
            .saturating_add(self.per_argument.saturating_mul(argument))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ferret_converts_63_threads_to_argument_15_as_table_iv_has_it() {
        let ferret = Convert {
            fixed: 3,
            per_argument: 4,
        };
        assert_eq!(ferret.argument_for(63), 15);
        assert_eq!(ferret.total_for(15), 63);
        assert_eq!(ferret.argument_for(62), 14);
    }

    #[test]
    fn a_total_too_small_for_one_unit_still_gives_one() {
        let ferret = Convert {
            fixed: 3,
            per_argument: 4,
        };
        assert_eq!(ferret.argument_for(1), 1);
        assert_eq!(Convert::default().argument_for(0), 1);
    }
}
