//! How gangs' threads wait for each other, as the local manager beside each says it: a gang whose threads sleep while
//! they wait is left to the scheduler.
//!
//! One look serves all gangs, and there is none where nothing can happen any more: a standstill is to be seen.

use super::{Due, SimWorld};
use corewise_decide::gang::{Awake, LOOK_AT_FIRST_NS, LOOK_OFTEN_NS};
use corewise_decide::status::{ProgramId, Waits};
use corewise_decide::world::Input;
use std::collections::BTreeMap;

/// What is seen of all gangs.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    gangs: BTreeMap<ProgramId, Gang>,
    due: bool,
}

/// One gang: what is seen of it, and what was said.
#[derive(Debug, Default)]
struct Gang {
    awake: Awake,
    said: Option<u32>,
}

impl SimWorld<'_> {
    /// A gang has joined.
    pub(super) fn watch_waits(&mut self, program: ProgramId) {
        self.waiting.gangs.insert(program, Gang::default());
        self.say_waits(program);
        self.look_at_waits_soon();
    }

    /// Somebody may run again: if nobody looks any more, somebody does now.
    pub(super) fn look_at_waits_soon(&mut self) {
        if !self.waiting.due && !self.waiting.gangs.is_empty() {
            self.waiting.due = true;
            let at = self.kernel.now().saturating_add(LOOK_AT_FIRST_NS);
            self.at(at, Due::Waits);
        }
    }

    /// The local managers of all gangs look.
    pub(super) fn look_at_waits(&mut self) {
        self.waiting.due = false;
        let managed = &self.managed;
        let gangs = &mut self.waiting.gangs;
        gangs.retain(|program, _| managed.contains_key(program));
        let (mut within_ns, mut programs) = (LOOK_OFTEN_NS, Vec::new());
        for (program, gang) in gangs {
            let Some(local) = managed.get(program) else {
                continue;
            };
            let reading = self.programs.reading(&self.kernel, local.number);
            gang.awake.read(&reading, local.turn.as_ref());
            within_ns = within_ns.min(gang.awake.look_within_ns());
            programs.push(*program);
        }
        for program in &programs {
            self.say_waits(*program);
        }
        let standstill = self.due.is_empty() && self.kernel.is_idle();
        if !programs.is_empty() && !standstill {
            self.waiting.due = true;
            let at = self.kernel.now().saturating_add(within_ns);
            self.at(at, Due::Waits);
        }
    }

    /// Says how many of a gang's threads hardly sleep, if that is news. As long as nothing is known it is left to the
    /// scheduler: many programs begin with a single thread.
    fn say_waits(&mut self, program: ProgramId) {
        let Some(gang) = self.waiting.gangs.get_mut(&program) else {
            return;
        };
        let awake = gang.awake.threads().unwrap_or(0);
        if gang.said.replace(awake) == Some(awake) {
            return;
        }
        let switch_ns = u32::try_from(self.scenario.switch_ns).unwrap_or(u32::MAX);
        let waits = Waits {
            awake,
            // Loops are looked for in programs that have not said that they are gangs.
            spinning: None,
            switch_ns,
        };
        self.inputs.push(Input::Waits { program, waits });
    }
}
