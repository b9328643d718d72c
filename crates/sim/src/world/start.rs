//! Starting programs: at their time, after others, in waves.

use super::{Due, SimWorld, Started, local::Local};
use crate::kernel::{GroupId, Kernel};
use crate::program::{ProgramNumber, Start};
use crate::scenario::{Entry, Managed, NextWave, Scenario, Share};
use corewise_decide::cpus::CpuSet;
use corewise_decide::status::{Placement, ProgramId, Wants};
use corewise_decide::world::Input;
use std::collections::BTreeMap;

/// Linux's weight of a session, and of a control group of weight 100.
const USUAL_WEIGHT: u32 = 1024;

/// How far each entry has come.
#[derive(Debug)]
pub(super) struct Starter {
    entries: Vec<Progress>,
    sessions: BTreeMap<String, GroupId>,
    groups: Vec<GroupId>,
    /// Entries that the run's end waits for.
    left: usize,
}

#[derive(Clone, Debug, Default)]
struct Progress {
    /// Waves that have started.
    waves: u32,
    /// Programs that run.
    alive: u32,
    /// Programs that have started.
    started: u64,
    done: bool,
}

impl Starter {
    /// Makes the scheduling groups.
    pub(super) fn new(scenario: &Scenario, kernel: &mut Kernel) -> Starter {
        let groups = scenario.groups.iter();
        let groups = groups.map(|group| {
            let weight = kernel_weight(group.weight);
            kernel.add_group(weight, group.quota)
        });
        let groups = groups.collect();
        let mut sessions = BTreeMap::new();
        for entry in &scenario.entries {
            if let (Share::Session(name), true) = (&entry.share, scenario.autogroup)
                && !sessions.contains_key(name)
            {
                sessions.insert(name.clone(), kernel.add_group(USUAL_WEIGHT, None));
            }
        }
        Starter {
            entries: vec![Progress::default(); scenario.entries.len()],
            sessions,
            groups,
            left: scenario.entries.iter().filter(|e| !e.background).count(),
        }
    }

    /// Whether nothing is left that the run's end waits for.
    pub(super) fn all_ended(&self) -> bool {
        self.left == 0
    }

    /// Whether all of an entry's programs have ended.
    pub(super) fn is_done(&self, entry: usize) -> bool {
        self.entries[entry].done
    }

    /// Whether any of an entry's programs has started.
    pub(super) fn has_started(&self, entry: usize) -> bool {
        self.entries[entry].waves > 0
    }

    fn group(&self, share: &Share) -> GroupId {
        match share {
            // Without autogroup, sessions are nothing to the scheduler.
            Share::Session(name) => self.sessions.get(name).copied().unwrap_or(GroupId::ROOT),
            Share::Group(index) => self.groups.get(*index).copied().unwrap_or(GroupId::ROOT),
        }
    }
}

/// A control group's weight (100 is usual) as the scheduler has it.
pub(super) fn kernel_weight(weight: u32) -> u32 {
    let scaled = u64::from(weight) * u64::from(USUAL_WEIGHT) / 100;
    u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
}

impl SimWorld<'_> {
    /// Entries that wait for nobody start at their time.
    pub(super) fn plan_first(&mut self) {
        let scenario = self.scenario;
        for (index, entry) in scenario.entries.iter().enumerate() {
            if entry.after.is_none() {
                self.at(entry.start_ns, Due::Wave(index));
            }
        }
    }

    pub(super) fn start_wave(&mut self, index: usize) {
        let entry = &self.scenario.entries[index];
        self.starter.entries[index].waves += 1;
        for _ in 0..entry.count {
            self.start_one(index, entry);
        }
        if let NextWave::Every(ns) = entry.next_wave
            && self.starter.entries[index].waves < entry.waves
        {
            self.at(self.kernel.now().saturating_add(ns), Due::Wave(index));
        }
    }

    fn start_one(&mut self, index: usize, entry: &Entry) {
        let progress = &mut self.starter.entries[index];
        progress.alive += 1;
        progress.started += 1;
        let name = match entry.programs() {
            1 => entry.name.clone(),
            _ => format!("{}-{}", entry.name, progress.started),
        };
        let all = CpuSet::first(self.scenario.machine.places.len() as u32);
        let cpus = entry.cpus.clone().unwrap_or(all);
        let managed = entry.managed.filter(|_| self.scenario.policy.is_some());
        let start = Start {
            threads: asked(entry, &cpus, managed),
            group: self.starter.group(&entry.share),
            allowed: cpus.clone(),
            malleable_under_claim: matches!(managed, Some(Managed::Malleable { .. })),
            wait: entry.wait,
        };
        let number = self.programs.start(&mut self.kernel, &entry.spec, start);
        self.started.push(Started {
            number,
            entry: index,
            name: name.clone(),
            ended: false,
        });
        if let Some(managed) = managed {
            let wants = wants(entry, &cpus, managed);
            let group = self.starter.group(&entry.share);
            // Threads outside of any group share with whole groups, each for itself.
            let group = (group != GroupId::ROOT).then(|| format!("{group:?}"));
            self.join(number, name, wants, cpus, group);
            if wants.malleable && spins(entry) {
                self.inputs.push(Input::Spins {
                    program: id_of(number),
                    spins: true,
                });
            }
            if entry.gang.is_some() {
                self.watch_waits(id_of(number));
                self.inputs.push(Input::Gang {
                    program: id_of(number),
                    gang: entry.gang.clone(),
                });
            }
        }
    }

    fn join(
        &mut self,
        number: ProgramNumber,
        name: String,
        wants: Wants,
        cpus: CpuSet,
        group: Option<String>,
    ) {
        let program = id_of(number);
        let now = self.kernel.now();
        self.managed
            .insert(program, Local::new(number, wants, cpus, now));
        self.inputs.push(Input::Joined {
            program,
            pid: i32::try_from(program.0).unwrap_or(i32::MAX),
            name,
            wants,
        });
        self.inputs
            .extend(group.map(|group| Input::Group { program, group }));
        if !wants.malleable {
            // The local manager beside a program looks at once.
            self.look_at(program, now.saturating_add(self.scenario.delay_ns));
        }
    }

    /// A program has ended: those that wait for it may start.
    pub(super) fn on_end(&mut self, number: ProgramNumber) {
        let Some(started) = self.started.get_mut(number.0 as usize) else {
            return;
        };
        started.ended = true;
        let index = started.entry;
        let program = id_of(number);
        if let Some(local) = self.managed.remove(&program) {
            self.record.close(program, &local, self.kernel.now());
            self.inputs.push(Input::Left { program });
        }
        let entry = &self.scenario.entries[index];
        let progress = &mut self.starter.entries[index];
        progress.alive -= 1;
        if progress.alive > 0 {
            return;
        }
        if progress.waves < entry.waves {
            if let NextWave::Pause(ns) = entry.next_wave {
                self.at(self.kernel.now().saturating_add(ns), Due::Wave(index));
            }
            return;
        }
        progress.done = true;
        self.starter.left -= usize::from(!entry.background);
        let scenario = self.scenario;
        for (other, entry) in scenario.entries.iter().enumerate() {
            if entry.after == Some(index) {
                let at = self.kernel.now().saturating_add(entry.start_ns);
                self.at(at, Due::Wave(other));
            }
        }
    }
}

/// The number by which managers know a program.
pub(super) fn id_of(number: ProgramNumber) -> ProgramId {
    ProgramId(u64::from(number.0) + 1)
}

/// The number that a program is asked for; `None`: its own.
fn asked(entry: &Entry, cpus: &CpuSet, managed: Option<Managed>) -> Option<u32> {
    match (entry.managed, managed) {
        // Linked, and without a manager: what a manager that is alone with it would give.
        (
            Some(Managed::Malleable {
                min_threads,
                max_threads,
                ..
            }),
            None,
        ) => {
            let number = entry.threads.unwrap_or(cpus.count());
            let most = max_threads.unwrap_or(number).max(min_threads);
            Some(number.clamp(min_threads, most))
        }
        _ => entry.threads,
    }
}

/// What is asked for a program.
/// Whether a program's teams wait in loops for as long as it takes to notice: as its adapters would say of their
/// runtimes.
fn spins(entry: &Entry) -> bool {
    const LONG_NS: u64 = 1_000_000;
    let wait = entry.wait.or(entry.spec.wait);
    wait.is_some_and(|wait| wait.spin_ns.is_none_or(|ns| ns >= LONG_NS))
}

fn wants(entry: &Entry, cpus: &CpuSet, managed: Managed) -> Wants {
    match managed {
        Managed::Rigid => {
            let threads = entry.spec.threads_at_start(entry.threads, cpus).max(1);
            Wants {
                min_threads: threads,
                max_threads: threads,
                placement: Placement::Any,
                malleable: false,
            }
        }
        Managed::Malleable {
            min_threads,
            max_threads,
            placement,
        } => {
            let number = entry.threads.unwrap_or(cpus.count());
            Wants {
                min_threads,
                max_threads: max_threads.unwrap_or(number).max(min_threads),
                placement,
                malleable: true,
            }
        }
    }
}
