//! `observe`: everyone may use everything, and everything is read. For looking, and for measuring what
//! management costs.

use crate::policy::{Event, Orders, Policy};
use crate::status::{LocalRule, Status};

/// See the module.
#[derive(Clone, Debug)]
pub struct Observe {
    /// Time between readings, in nanoseconds.
    pub period_ns: u64,
}

impl Default for Observe {
    fn default() -> Observe {
        Observe {
            period_ns: 1_000_000_000,
        }
    }
}

impl Policy for Observe {
    fn name(&self) -> String {
        "observe".to_owned()
    }

    fn local_rule(&self) -> LocalRule {
        LocalRule::Leave
    }

    fn period_ns(&self, _status: &Status) -> Option<u64> {
        Some(self.period_ns)
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        let (Event::Joined(_) | Event::Asked(_) | Event::Machine | Event::Overridden(_)) = event
        else {
            return;
        };
        grant_everything(status, orders);
    }
}

/// Everyone may use everything.
pub(super) fn grant_everything(status: &Status, orders: &mut Orders) {
    for (id, program) in &status.programs {
        let threads = program.wants.max_threads;
        let cpus = &status.machine.allowed;
        let unchanged = program
            .claim
            .as_ref()
            .is_some_and(|c| c.cpus == *cpus && c.threads == threads);
        if !unchanged && !program.overridden {
            orders.grant_shared(*id, cpus.clone(), threads, "everyone may use everything");
        }
    }
}
