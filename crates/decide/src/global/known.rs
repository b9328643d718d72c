//! All that a global manager knows, so that another one can go on in the middle of a history.

use super::gangs::Gangs;
use super::readings::Earlier;
use crate::global::GlobalManager;
use crate::policy::memory::Memory;
use crate::policy::source::Source;
use crate::status::{Program, ProgramId, Request, Status};
use crate::world::{Entry, Input};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that a global manager knows at one moment: its status, its open requests, what the last readings
/// said, and what its policy remembers. [`GlobalManager::resume`] makes a manager of it that answers every
/// further input as the first one would have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// The status.
    pub status: Status,
    /// The policy that decides now, if an input has brought it; `None`: the one of the start.
    pub policy: Option<Source>,
    memory: Memory,
    asked: BTreeMap<u32, (ProgramId, Request)>,
    next_request: u32,
    #[serde(default)]
    wished: BTreeMap<ProgramId, u32>,
    next_reading_ns: Option<u64>,
    last_reading_ns: u64,
    earlier: Option<Earlier>,
    #[serde(default)]
    gangs: Gangs,
}

impl Known {
    /// What would have led here, as far as it does not depend on the policy: the machine and the programs
    /// that are there, with what they asked for and said. For trying another policy on what follows.
    pub fn history(&self) -> Vec<Entry> {
        let entry = |time_ns, input| Entry {
            time_ns,
            input,
            outputs: Vec::new(),
        };
        let mut programs: Vec<(&ProgramId, &Program)> = self.status.programs.iter().collect();
        programs.sort_by_key(|(id, program)| (program.joined_ns, **id));
        let first = programs.first().map(|(_, program)| program.joined_ns);
        let begin = first.unwrap_or(self.status.time_ns);
        let mut entries = vec![entry(begin, Input::Machine(self.status.machine.clone()))];
        for (id, program) in programs {
            let joined = Input::Joined {
                program: *id,
                pid: program.pid,
                name: program.name.clone(),
                wants: program.wants,
            };
            entries.push(entry(program.joined_ns, joined));
            if let Some(group) = &program.group {
                let group = Input::Group {
                    program: *id,
                    group: group.clone(),
                };
                entries.push(entry(program.joined_ns, group));
            }
            if program.spins {
                let spins = Input::Spins {
                    program: *id,
                    spins: true,
                };
                entries.push(entry(program.joined_ns, spins));
            }
            if let Some(waits) = program.waits {
                let waits = Input::Waits {
                    program: *id,
                    waits,
                };
                entries.push(entry(program.joined_ns, waits));
            }
            if program.threads > 0 {
                let threads = Input::Threads {
                    program: *id,
                    count: program.threads,
                };
                entries.push(entry(program.joined_ns, threads));
            }
            if let Some(claim) = program.claim.as_ref().filter(|_| program.overridden) {
                let wished = self.wished.get(id).copied().unwrap_or(claim.threads);
                let overridden = Input::Overridden {
                    program: *id,
                    claim: Some((claim.cpus.clone(), wished)),
                };
                entries.push(entry(program.joined_ns, overridden));
            }
            if let Some(gang) = self.gangs.asked(*id) {
                let gang = Input::Gang {
                    program: *id,
                    gang: Some(gang.clone()),
                };
                entries.push(entry(program.joined_ns, gang));
            }
        }
        entries
    }
}

impl GlobalManager {
    /// All that it knows. A copy: costs as much as there are programs.
    pub fn known(&self) -> Known {
        Known {
            status: self.status.clone(),
            policy: self.source.clone(),
            memory: self.policy.memory(),
            asked: self.asked.clone(),
            next_request: self.next_request,
            wished: self.wished.clone(),
            next_reading_ns: self.next_reading_ns,
            last_reading_ns: self.last_reading_ns,
            earlier: self.earlier.clone(),
            gangs: self.gangs.clone(),
        }
    }

    /// A manager that goes on where another one was. `first` is the policy of that one's start.
    ///
    /// # Errors
    /// As [`Source::remake`].
    pub fn resume(known: Known, first: &Source) -> Result<GlobalManager, String> {
        let source = known.policy.as_ref().unwrap_or(first);
        Ok(GlobalManager {
            policy: source.remake(known.memory)?,
            source: known.policy,
            status: known.status,
            asked: known.asked,
            next_request: known.next_request,
            wished: known.wished,
            next_reading_ns: known.next_reading_ns,
            last_reading_ns: known.last_reading_ns,
            earlier: known.earlier,
            gangs: known.gangs,
        })
    }
}
