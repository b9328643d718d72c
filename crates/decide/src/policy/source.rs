//! Where a policy comes from: all that is needed to make it again, as for a replay of a journal.

use super::broken_screw::{BROKEN_SCREW, BrokenScrew};
use super::combined::{Combined, Part};
use super::memory::Memory;
#[cfg(feature = "scripts")]
use super::script::{Kept, ScriptPolicy};
use super::{Decides, Event, Orders, Policy, built_in};
use crate::status::{LocalRule, Status};
use serde::{Deserialize, Serialize};

/// All that is needed to make a policy. Two policies made from equal sources do the same on the same
/// inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// A built-in policy's name, or the name of the script's file.
    pub name: String,
    /// The script's text; `None`: a built-in policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Where a script's random numbers start, and those of `broken-screw`. Other built-in policies start where
    /// they always do.
    #[serde(default)]
    pub seed: u64,
    /// Time between readings, in nanoseconds, instead of what the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<u64>,
    /// Several policies, each over its own programs or CPUs; none: it is one. Then `name` is that of the file
    /// that says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

impl Source {
    /// A built-in policy.
    pub fn built_in(name: impl Into<String>) -> Source {
        Source {
            name: name.into(),
            script: None,
            seed: 0,
            period_ns: None,
            parts: Vec::new(),
        }
    }

    /// A script, by the name of its file.
    pub fn script(name: impl Into<String>, text: impl Into<String>) -> Source {
        Source {
            script: Some(text.into()),
            ..Source::built_in(name)
        }
    }

    /// Makes the policy.
    ///
    /// # Errors
    /// Why there is no such policy, for people: no built-in one has the name, or the script is wrong,
    /// with the line.
    pub fn make(&self) -> Result<Box<dyn Policy>, String> {
        self.remake(Memory::Nothing)
    }

    /// Makes the policy as it was when it knew this ([`Policy::memory`]).
    ///
    /// # Errors
    /// As [`Source::make`]; and if it is another policy's memory.
    pub fn remake(&self, memory: Memory) -> Result<Box<dyn Policy>, String> {
        let foreign = || {
            let name = &self.name;
            format!("what is to be remembered is not of the policy {name:?}")
        };
        let policy: Box<dyn Policy> = match (&self.script, memory) {
            (_, Memory::Combined(memory)) if !self.parts.is_empty() => {
                Box::new(Combined::remake(&self.name, &self.parts, *memory)?)
            }
            (_, Memory::Nothing) if !self.parts.is_empty() => {
                Box::new(Combined::new(&self.name, &self.parts)?)
            }
            _ if !self.parts.is_empty() => return Err(foreign()),
            #[cfg(feature = "scripts")]
            (Some(text), Memory::Script(kept)) => script(text, self, Some(*kept))?,
            (Some(text), Memory::Nothing) => script(text, self, None)?,
            (Some(_), _) => return Err(foreign()),
            (None, memory) => {
                let mut fresh = built_in(&self.name)
                    .ok_or_else(|| format!("no built-in policy is called {:?}", self.name))?;
                if self.name == BROKEN_SCREW {
                    fresh = Box::new(BrokenScrew::with_seed(self.seed));
                }
                let made: Box<dyn Policy> = match memory {
                    Memory::Nothing => fresh,
                    Memory::Balanced(policy) => policy,
                    Memory::AutoMax(policy) => policy,
                    Memory::Fcfs(policy) => Box::new(policy),
                    Memory::BrokenScrew(policy) => policy,
                    Memory::Prefetch(policy) => Box::new(policy),
                    Memory::Combined(_) => return Err(foreign()),
                    #[cfg(feature = "scripts")]
                    Memory::Script(_) => return Err(foreign()),
                };
                if made.name() != self.name {
                    return Err(foreign());
                }
                made
            }
        };
        Ok(match self.period_ns {
            Some(period_ns) => Box::new(Paced { policy, period_ns }),
            None => policy,
        })
    }
}

/// The policy that a script is.
#[cfg(feature = "scripts")]
fn script(text: &str, source: &Source, kept: Option<Kept>) -> Result<Box<dyn Policy>, String> {
    match ScriptPolicy::new(text, &source.name) {
        Ok(policy) => Ok(Box::new(match kept {
            Some(kept) => policy.with_kept(kept),
            None => policy.with_seed(source.seed),
        })),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(not(feature = "scripts"))]
fn script(_: &str, _: &Source, _: Option<()>) -> Result<Box<dyn Policy>, String> {
    Err("this program was built without script policies (the feature `scripts`)".to_owned())
}

/// A policy with another period.
struct Paced {
    policy: Box<dyn Policy>,
    period_ns: u64,
}

impl Policy for Paced {
    fn name(&self) -> String {
        self.policy.name()
    }

    fn local_rule(&self) -> LocalRule {
        self.policy.local_rule()
    }

    fn period_ns(&self, _: &Status) -> Option<u64> {
        Some(self.period_ns)
    }

    fn local_rule_of(&self, name: &str) -> LocalRule {
        self.policy.local_rule_of(name)
    }

    fn wants_heat(&self) -> bool {
        self.policy.wants_heat()
    }

    fn decides(&self) -> Decides {
        self.policy.decides()
    }

    fn memory(&self) -> Memory {
        self.policy.memory()
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        self.policy.on(event, status, orders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::global::GlobalManager;
    use crate::status::Machine;
    use crate::world::{Input, Output};

    #[test]
    fn a_period_of_ones_own_takes_the_place_of_the_policys() {
        let mut source = Source::built_in("observe");
        let status = Status::default();
        let own = source.make().unwrap().period_ns(&status);
        source.period_ns = Some(20_000_000);
        let paced = source.make().unwrap();
        assert_ne!(own, paced.period_ns(&status));
        assert_eq!(paced.period_ns(&status), Some(20_000_000));
        assert_eq!(paced.name(), "observe");
    }

    #[test]
    fn nobody_remembers_what_another_policy_knew() {
        let of = |name: &str| Source::built_in(name).make().unwrap().memory();
        assert!(Source::built_in("balanced").remake(of("balanced")).is_ok());
        assert!(Source::built_in("balanced").remake(of("fcfs")).is_err());
        let paper = Source::built_in("automax-paper");
        assert!(paper.remake(of("automax")).is_err());
        assert_eq!(
            paper.remake(of("automax-paper")).unwrap().name(),
            "automax-paper"
        );
    }

    #[test]
    fn another_policy_takes_over_and_one_that_cannot_be_made_does_not() {
        let mut manager = GlobalManager::new(Source::built_in("observe").make().unwrap());
        manager.on(0, &Input::Machine(Machine::flat(2)));
        let unknown = Input::Policy(Source::built_in("no such policy"));
        let outputs = manager.on(1, &unknown);
        assert!(matches!(&outputs[..], [Output::Note(text)] if text.contains("no such policy")));
        assert_eq!(manager.policy().name(), "observe");
        manager.on(2, &Input::Policy(Source::built_in("fcfs")));
        assert_eq!(manager.policy().name(), "fcfs");
    }
}
