//! Reading machine and programs.

use crate::world::LinuxWorld;
use corewise_decide::reading::MachineReading;
use corewise_decide::world::{ProgramUse, Readings};
use corewise_machine::program::Moment;
use corewise_machine::program::process_cpu_ns;
use std::collections::BTreeSet;

impl LinuxWorld<'_> {
    /// What machine and programs have used and said so far.
    pub(crate) fn read(&mut self, now_ns: u64) -> Readings {
        let mut machine = self.host.read().unwrap_or(MachineReading {
            time_ns: now_ns,
            ..MachineReading::default()
        });
        self.sensors.read(&mut machine);
        // The thread that reads is running, and no load.
        machine.runnable = machine.runnable.map(|threads| threads.saturating_sub(1));
        // Those that joined themselves within a tree that somebody joined for.
        let themselves = self.programs.values().filter(|managed| managed.itself);
        let apart: BTreeSet<i32> = themselves.map(|managed| managed.pid).collect();
        // The same for those that a manager speaks for which is a program here.
        let members = self.programs.values().filter_map(|m| m.members.as_ref());
        let mut apart_from_trees = apart.clone();
        apart_from_trees.extend(members.flat_map(|members| members.pids()));
        let moment = Moment {
            apart: &apart,
            now_ns,
            started: self.host.started(),
        };
        let of_trees = Moment {
            apart: &apart_from_trees,
            ..moment
        };
        let own = self.programs.iter().filter(|(_, managed)| managed.itself);
        let own = own.map(|(id, managed)| (*id, managed.pid));
        let own = self.clocks.read(own, process_cpu_ns);
        let programs = self.programs.iter_mut().filter_map(|(id, managed)| {
            let run_ns = match managed.itself {
                true => {
                    let members = match &mut managed.members {
                        Some(members) => members.read(moment)?,
                        None => 0,
                    };
                    own.get(id)?.saturating_add(members)
                }
                false => managed.tree.read(managed.pid, of_trees)?,
            };
            let said = managed.progress.read();
            Some(ProgramUse {
                program: *id,
                run_ns,
                progress: said.progress,
                team: said.team,
                could_use: said.could_use,
                blocked: said.blocked,
            })
        });
        Readings {
            programs: programs.collect(),
            machine,
        }
    }
}
