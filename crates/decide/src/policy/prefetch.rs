//! `prefetch`: hardware prefetchers run only where they help (REEact, section 4.3, Policy 3.a and 3.b).
//!
//! When a thread has been created or has gone on after waiting, prefetchers are switched on for half a second and
//! off for another one. They stay on only if that retired more than 2 % more instructions: what they fetch in vain
//! costs energy. Everybody may use all CPUs.
//!
//! Where the paper is silent: a thread that comes in the middle of a test begins it anew; after a test the next one
//! waits for [`PAUSE_NS`], so that programs whose threads come and go all the time are not tested all the time. Where
//! instructions cannot be counted or prefetchers not switched, it is said once, and they stay as they are. That
//! threads go on after waiting is seen at readings only, from programs that say how many of theirs wait.

use crate::cpus::CpuSet;
use crate::policy::memory::Memory;
use crate::policy::observe::grant_everything;
use crate::policy::{Decides, Event, Orders, Policy};
use crate::status::{LocalRule, Status};
use crate::world::Action;
use serde::{Deserialize, Serialize};

/// Time for each of the two configurations, and between looks, in nanoseconds.
pub const SAMPLE_NS: u64 = 500_000_000;

/// With prefetchers so many times the instructions must be retired.
pub const MARGIN: f64 = 1.02;

/// From the end of a test to the next one, in nanoseconds.
pub const PAUSE_NS: u64 = 10_000_000_000;

/// Who counts may begin to when this policy does: so many readings may lack instructions.
const UNCOUNTED: u32 = 2;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prefetch {
    phase: Phase,
    /// A test is wanted.
    wanted: bool,
    tested_ns: Option<u64>,
    /// Workers that were blocked at the last reading.
    blocked: u32,
    /// Why it cannot be done; said once.
    cannot: bool,
    /// Readings without instructions, one after the other, while a test was wanted.
    #[serde(default)]
    uncounted: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Phase {
    #[default]
    Rest,
    /// They are on since the last reading.
    On,
    /// They are off since the last reading; before it, so many instructions a second were retired.
    Off { with: f64 },
}

impl Policy for Prefetch {
    fn name(&self) -> String {
        "prefetch".to_owned()
    }

    fn local_rule(&self) -> LocalRule {
        LocalRule::Leave
    }

    fn period_ns(&self, _status: &Status) -> Option<u64> {
        Some(SAMPLE_NS)
    }

    fn decides(&self) -> Decides {
        Decides {
            prefetchers: true,
            instructions: true,
            ..Decides::default()
        }
    }

    fn memory(&self) -> Memory {
        Memory::Prefetch(self.clone())
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        match event {
            Event::Machine | Event::Joined(_) | Event::Asked(_) | Event::Overridden(_) => {
                grant_everything(status, orders);
            }
            _ => {}
        }
        match event {
            Event::Joined(_) => self.thread_activated(),
            Event::Threads { before, now, .. } if now > before => self.thread_activated(),
            Event::Readings => self.look(status, orders),
            Event::Failed(what) if self.phase != Phase::Rest && !self.cannot => {
                self.cannot = true;
                self.phase = Phase::Rest;
                orders.note(format!("prefetchers stay as they are: {what}"));
            }
            _ => {}
        }
    }
}

impl Prefetch {
    fn thread_activated(&mut self) {
        self.wanted = true;
        if let Phase::On | Phase::Off { .. } = self.phase {
            self.phase = Phase::Rest;
            self.tested_ns = None;
        }
    }

    fn look(&mut self, status: &Status, orders: &mut Orders) {
        let blocked = status.programs.values().map(|p| p.blocked).sum();
        let gone_on = blocked < std::mem::replace(&mut self.blocked, blocked);
        self.wanted |= gone_on;
        let rate = status.load.and_then(|load| load.instruction_rate);
        let mut switch = |on: bool, reason: String| {
            let cpus = CpuSet::new();
            orders.act(Action::Prefetchers { on, cpus }, reason);
        };
        match self.phase {
            _ if self.cannot => {}
            Phase::Rest => {
                let rested = self
                    .tested_ns
                    .is_none_or(|at| status.time_ns.saturating_sub(at) >= PAUSE_NS);
                if !self.wanted || !rested {
                    return;
                }
                if rate.is_none() {
                    // The first readings have nothing to be compared with.
                    self.uncounted += u32::from(status.load.is_some());
                    if self.uncounted >= UNCOUNTED {
                        self.cannot = true;
                        orders.note("prefetchers stay as they are: nobody counts instructions");
                    }
                    return;
                }
                self.wanted = false;
                self.uncounted = 0;
                self.phase = Phase::On;
                switch(
                    true,
                    "a thread has begun or gone on: with prefetchers".to_owned(),
                );
            }
            Phase::On => {
                let with = rate.unwrap_or(0.0);
                self.phase = Phase::Off { with };
                switch(false, "and without, for as long".to_owned());
            }
            Phase::Off { with } => {
                let without = rate.unwrap_or(0.0);
                self.phase = Phase::Rest;
                self.tested_ns = Some(status.time_ns);
                let on = with > MARGIN * without;
                let more = 100.0 * (with / without.max(1.0) - 1.0);
                let stays = if on { "on" } else { "off" };
                switch(
                    on,
                    format!("with prefetchers {more:.1} % more instructions: they stay {stays}"),
                );
            }
        }
    }
}
