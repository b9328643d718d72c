//! Readings, as Linux gives them.

use super::SimWorld;
use corewise_decide::world::{ProgramUse, Readings};

/// /proc/stat counts the CPUs' time in such ticks (USER_HZ), in nanoseconds. The clocks of processes
/// are exact.
const TICK_NS: u64 = 10_000_000;

impl SimWorld<'_> {
    /// What Linux would say at this moment. The one who reads is no part of the model, and does not
    /// count among the runnable threads, as on Linux.
    pub(super) fn read(&mut self) -> Readings {
        let ticks = |ns: u64| ns / TICK_NS * TICK_NS;
        let mut machine = self.kernel.reading();
        for cpu in &mut machine.cpus {
            cpu.busy_ns = ticks(cpu.busy_ns);
            cpu.idle_ns = ticks(cpu.idle_ns);
        }
        let programs = self.managed.iter().map(|(id, local)| {
            let now = self.programs.state(local.number);
            let beside = ProgramUse {
                program: *id,
                run_ns: self.programs.counters(&self.kernel, local.number).run_ns,
                progress: 0,
                team: local.told,
                could_use: 0,
                blocked: 0,
            };
            match local.wants.malleable {
                // Nobody within it says anything.
                false => beside,
                true => ProgramUse {
                    progress: now.progress,
                    team: now.team,
                    could_use: now.could_use.unwrap_or(0),
                    blocked: now.blocked,
                    ..beside
                },
            }
        });
        Readings {
            programs: programs.collect(),
            machine,
        }
    }
}
