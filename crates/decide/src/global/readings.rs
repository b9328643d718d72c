//! From cumulative counters to what was used between two readings.

use crate::global::{GlobalManager, MOST_THREADS};
use crate::reading::MachineReading;
use crate::status::{Load, ProgramId};
use crate::world::{ProgramUse, Readings};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What the last readings said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Earlier {
    machine: MachineReading,
    programs: HashMap<ProgramId, ProgramUse>,
}

impl GlobalManager {
    /// Takes in what was read.
    pub(super) fn take_readings(&mut self, readings: &Readings) {
        self.last_reading_ns = self.status.time_ns;
        self.status.heat.clone_from(&readings.machine.heat);
        let earlier = self.earlier.take();
        let mut used = 0.0;
        for now in &readings.programs {
            let Some(program) = self.status.programs.get_mut(&now.program) else {
                continue;
            };
            program.could_use = (now.could_use > 0).then_some(now.could_use.min(MOST_THREADS));
            program.blocked = now.blocked.min(MOST_THREADS);
            if now.team > 0 {
                program.threads = now.team.min(MOST_THREADS);
            }
            let before = earlier.as_ref().and_then(|e| {
                let span = readings.machine.time_ns.checked_sub(e.machine.time_ns)?;
                Some((e.programs.get(&now.program)?, span))
            });
            if let Some((before, span)) = before.filter(|(_, span)| *span > 0) {
                let uses = now.run_ns.saturating_sub(before.run_ns) as f64 / span as f64;
                program.uses = Some(uses);
                let done = now.progress.saturating_sub(before.progress) as f64;
                program.progress_rate = Some(done * 1e9 / span as f64);
                used += uses;
            }
        }
        if let Some(earlier) = &earlier {
            self.status.load = self.load(&earlier.machine, &readings.machine, used);
            self.status.cpu_use = readings.machine.since(&earlier.machine).collect();
        }
        self.earlier = Some(Earlier {
            machine: readings.machine.clone(),
            programs: readings.programs.iter().map(|p| (p.program, *p)).collect(),
        });
    }

    fn load(&self, before: &MachineReading, now: &MachineReading, used: f64) -> Option<Load> {
        if now.time_ns <= before.time_ns {
            return None;
        }
        let span = now.time_ns - before.time_ns;
        let retired = now.instructions.zip(before.instructions);
        let instruction_rate =
            retired.map(|(now, before)| now.saturating_sub(before) as f64 * 1e9 / span as f64);
        let allowed = &self.status.machine.allowed;
        let load = Load {
            runnable: now.runnable,
            instruction_rate,
            ..Load::default()
        };
        Some(load.of_cpus(allowed, now.since(before), used))
    }
}
