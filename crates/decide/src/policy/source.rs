//! Where a policy comes from: all that is needed to make it again, as for a replay of a journal.

#[cfg(feature = "scripts")]
use super::script::ScriptPolicy;
use super::{Event, Orders, Policy, built_in};
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
    /// Where a script's random numbers start. Built-in policies start where they always do.
    #[serde(default)]
    pub seed: u64,
    /// Time between readings, in nanoseconds, instead of what the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ns: Option<u64>,
}

impl Source {
    /// A built-in policy.
    pub fn built_in(name: impl Into<String>) -> Source {
        Source {
            name: name.into(),
            script: None,
            seed: 0,
            period_ns: None,
        }
    }

    /// Makes the policy.
    ///
    /// # Errors
    /// Why there is no such policy, for people: no built-in one has the name, or the script is wrong,
    /// with the line.
    pub fn make(&self) -> Result<Box<dyn Policy>, String> {
        let policy = match &self.script {
            Some(text) => script(text, self)?,
            None => built_in(&self.name)
                .ok_or_else(|| format!("no built-in policy is called {:?}", self.name))?,
        };
        Ok(match self.period_ns {
            Some(period_ns) => Box::new(Paced { policy, period_ns }),
            None => policy,
        })
    }
}

/// The policy that a script is.
#[cfg(feature = "scripts")]
fn script(text: &str, source: &Source) -> Result<Box<dyn Policy>, String> {
    match ScriptPolicy::new(text, &source.name) {
        Ok(policy) => Ok(Box::new(policy.with_seed(source.seed))),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(not(feature = "scripts"))]
fn script(_: &str, _: &Source) -> Result<Box<dyn Policy>, String> {
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
