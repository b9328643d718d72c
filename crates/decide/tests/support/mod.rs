//! A global manager whose inputs a test makes, one after the other.

pub(crate) mod waves;

use corewise_decide::cpus::CpuSet;
use corewise_decide::global::GlobalManager;
use corewise_decide::policy::Policy;
use corewise_decide::reading::{CpuReading, MachineReading};
use corewise_decide::status::{Claim, Machine, Placement, Program, ProgramId, Wants};
use corewise_decide::world::{Entry, Input, Output, ProgramUse, Readings};
use std::collections::BTreeMap;

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn malleable(min_threads: u32, max_threads: u32) -> Wants {
    Wants {
        min_threads,
        max_threads,
        placement: Placement::Any,
        malleable: true,
    }
}

pub(crate) fn rigid(min_threads: u32, max_threads: u32) -> Wants {
    Wants {
        malleable: false,
        ..malleable(min_threads, max_threads)
    }
}

pub(crate) fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    cpus.into_iter().collect()
}

/// What a program shows at a reading.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shown {
    pub(crate) run_ns: u64,
    pub(crate) team: u32,
    pub(crate) could_use: u32,
    pub(crate) blocked: u32,
}

/// A manager, the time, and what has happened.
pub(crate) struct Made {
    pub(crate) manager: GlobalManager,
    pub(crate) now_ns: u64,
    pub(crate) journal: Vec<Entry>,
    /// CPU time used so far on all CPUs.
    pub(crate) busy_ns: u64,
    pub(crate) shown: BTreeMap<u64, Shown>,
    cpus: u32,
    next: u64,
}

impl Made {
    pub(crate) fn new(policy: impl Policy + 'static, machine: Machine) -> Made {
        let mut made = Made {
            manager: GlobalManager::new(Box::new(policy)),
            now_ns: 1_000 * MS,
            journal: Vec::new(),
            busy_ns: 0,
            shown: BTreeMap::new(),
            cpus: machine.places.len() as u32,
            next: 1,
        };
        made.on(Input::Machine(machine));
        made
    }

    pub(crate) fn flat(policy: impl Policy + 'static, cpus: u32) -> Made {
        Made::new(policy, Machine::flat(cpus))
    }

    pub(crate) fn on(&mut self, input: Input) -> Vec<Output> {
        let outputs = self.manager.on(self.now_ns, &input);
        self.journal.push(Entry {
            time_ns: self.now_ns,
            input,
            outputs: outputs.clone(),
        });
        outputs
    }

    /// A program joins; its number.
    pub(crate) fn join(&mut self, wants: Wants) -> u64 {
        self.join_in(None, wants)
    }

    /// A program joins that shares CPU time within this group; its number.
    pub(crate) fn join_in(&mut self, group: Option<&str>, wants: Wants) -> u64 {
        self.now_ns += 1;
        let program = self.next;
        self.next += 1;
        self.shown.insert(program, Shown::default());
        self.on(Input::Joined {
            program: ProgramId(program),
            pid: 1000 + program as i32,
            name: format!("p{program}"),
            wants,
        });
        if let Some(group) = group {
            self.on(Input::Group {
                program: ProgramId(program),
                group: group.to_owned(),
            });
        }
        program
    }

    /// A program says that its threads wait in loops.
    pub(crate) fn spins(&mut self, program: u64) -> Vec<Output> {
        self.now_ns += 1;
        let program = ProgramId(program);
        self.on(Input::Spins {
            program,
            spins: true,
        })
    }

    pub(crate) fn ask(&mut self, program: u64, wants: Wants) -> Vec<Output> {
        let program = ProgramId(program);
        self.on(Input::Asked { program, wants })
    }

    /// The program says that it has so many threads.
    pub(crate) fn threads(&mut self, program: u64, count: u32) -> Vec<Output> {
        let program = ProgramId(program);
        self.on(Input::Threads { program, count })
    }

    pub(crate) fn leave(&mut self, program: u64) -> Vec<Output> {
        self.shown.remove(&program);
        let program = ProgramId(program);
        self.on(Input::Left { program })
    }

    pub(crate) fn set_by_a_person(
        &mut self,
        program: u64,
        claim: Option<(CpuSet, u32)>,
    ) -> Vec<Output> {
        let program = ProgramId(program);
        self.on(Input::Overridden { program, claim })
    }

    /// Answers the request that was just made.
    pub(crate) fn answer(&mut self, told: &Output, yes: bool) -> Vec<Output> {
        let Output::Tell {
            program, request, ..
        } = told
        else {
            panic!("nobody was asked: {told:?}");
        };
        self.on(Input::Answered {
            program: *program,
            request: *request,
            yes,
        })
    }

    pub(crate) fn program(&self, program: u64) -> &Program {
        &self.manager.status().programs[&ProgramId(program)]
    }

    pub(crate) fn claim(&self, program: u64) -> &Claim {
        self.program(program).claim.as_ref().unwrap()
    }

    /// Threads and CPUs of a program's claim, for people.
    pub(crate) fn has(&self, program: u64) -> String {
        let claim = self.claim(program);
        let alone = if claim.exclusive { ", alone" } else { "" };
        format!("{} on {}{alone}", claim.threads, claim.cpus)
    }

    /// Readings now.
    pub(crate) fn read(&mut self, runnable: u32) -> Vec<Output> {
        let cpu = |cpu| CpuReading {
            cpu,
            busy_ns: self.busy_ns / u64::from(self.cpus),
            idle_ns: self
                .now_ns
                .saturating_sub(self.busy_ns / u64::from(self.cpus)),
            steal_ns: 0,
        };
        let programs = self.shown.iter().map(|(id, shown)| ProgramUse {
            program: ProgramId(*id),
            run_ns: shown.run_ns,
            progress: 0,
            team: shown.team,
            could_use: shown.could_use,
            blocked: shown.blocked,
        });
        let readings = Readings {
            machine: MachineReading {
                time_ns: self.now_ns,
                cpus: (0..self.cpus).map(cpu).collect(),
                runnable: Some(runnable),
                pressure_ns: None,
                ..MachineReading::default()
            },
            programs: programs.collect(),
        };
        self.on(Input::Readings(readings))
    }

    /// Time goes on for `ms` while programs use as many CPUs as is said of them (malleable ones no more
    /// than they may), and others use `others`; it is read as often as the manager wants. All outputs.
    pub(crate) fn run(&mut self, ms: u64, uses: &[(u64, f64)], others: f64) -> Vec<Output> {
        let end = self.now_ns + ms * MS;
        let mut outputs = Vec::new();
        while let Some(at) = self.manager.next_reading_ns().filter(|at| *at <= end) {
            let span = at.saturating_sub(self.now_ns);
            let all = self.pass(span, uses, others);
            outputs.extend(self.read(all.round() as u32));
        }
        self.pass(end - self.now_ns, uses, others);
        outputs
    }

    /// How many CPUs all would use.
    fn pass(&mut self, span_ns: u64, uses: &[(u64, f64)], others: f64) -> f64 {
        let may = |program: u64, uses: f64| match self.program(program).wants.malleable {
            true => uses.min(f64::from(self.claim(program).threads)),
            false => uses,
        };
        let uses: Vec<(u64, f64)> = uses.iter().map(|(p, uses)| (*p, may(*p, *uses))).collect();
        let all = uses.iter().map(|(_, uses)| uses).sum::<f64>() + others;
        // What does not fit on the CPUs waits.
        let speed = (f64::from(self.cpus) / all.max(1e-9)).min(1.0);
        for (program, uses) in uses {
            if let Some(shown) = self.shown.get_mut(&program) {
                shown.run_ns += (uses * speed * span_ns as f64) as u64;
            }
        }
        self.busy_ns += (all * speed * span_ns as f64) as u64;
        self.now_ns += span_ns;
        all
    }
}

/// Who was granted something, with how many threads and on which CPUs.
pub(crate) fn grants(outputs: &[Output]) -> Vec<(u64, u32, String)> {
    let grant = |output: &Output| match output {
        Output::Grant {
            program,
            cpus,
            threads,
            ..
        } => Some((program.0, *threads, cpus.to_string())),
        _ => None,
    };
    outputs.iter().filter_map(grant).collect()
}

/// Who was asked.
pub(crate) fn asked(outputs: &[Output]) -> Vec<&Output> {
    let is_tell = |o: &&Output| matches!(o, Output::Tell { .. });
    outputs.iter().filter(is_tell).collect()
}
