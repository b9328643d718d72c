//! Gangs that take turns at a place of their own: their programs are granted the CPUs of it, within their claims. The
//! policy's claim stays as it is, and is granted again when there is no such place any more.

use super::{Gangs, Member};
use crate::gang::SetId;
use crate::status::{Program, ProgramId, Status};
use crate::world::Output;

impl Gangs {
    /// Grants the programs of a set the place that it takes turns in, and all of their claims where there is none.
    pub(super) fn place(&mut self, set: SetId, status: &Status, outputs: &mut Vec<Output>) {
        let turns = self.schedule.turn(set).is_some();
        let place = self.schedule.place(set).filter(|_| turns);
        for program in self.sets.get(&set).into_iter().flatten() {
            let known = status.programs.get(program);
            let (Some(member), Some(claim)) = (
                self.members.get_mut(program),
                known.and_then(|known| known.claim.as_ref()),
            ) else {
                continue;
            };
            let placed = place.as_ref().map(|place| place.intersection(&claim.cpus));
            let placed = placed.filter(|cpus| !cpus.is_empty() && *cpus != claim.cpus);
            let new = placed.as_ref().unwrap_or(&claim.cpus);
            // What the policy has granted just now is not to be granted twice.
            let granted = outputs.iter_mut().rev().find_map(|output| match output {
                Output::Grant {
                    program: of, cpus, ..
                } if of == program => Some(cpus),
                _ => None,
            });
            match granted {
                Some(cpus) => cpus.clone_from(new),
                None if member.placed != placed => outputs.push(Output::Grant {
                    program: *program,
                    cpus: new.clone(),
                    threads: claim.threads,
                    reason: match placed {
                        Some(_) => "its gang takes its turns there".to_owned(),
                        None => "its gang is tied to no place any more".to_owned(),
                    },
                }),
                None => {}
            }
            member.placed = placed;
        }
    }
}

impl Member {
    /// What a program is granted that is no member any longer, if it was placed.
    pub(super) fn whole_claim(
        &self,
        program: ProgramId,
        known: &Program,
        reason: String,
    ) -> Option<Output> {
        self.placed.as_ref()?;
        let claim = known.claim.as_ref()?;
        Some(Output::Grant {
            program,
            cpus: claim.cpus.clone(),
            threads: claim.threads,
            reason,
        })
    }
}
