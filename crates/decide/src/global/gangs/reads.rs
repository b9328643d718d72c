//! When gangs are read, and what is learnt of how many CPUs they use.

use super::{Gangs, Member, threads};
use crate::gang::Seen;
use crate::status::{ProgramId, Status};
use crate::world::Readings;
use std::collections::BTreeMap;

/// How often gangs are read that take turns, and gangs that run always, but would not if they used all of
/// their threads.
pub(super) const PERIOD_NS: u64 = 100_000_000;
const LONG_PERIOD_NS: u64 = 200_000_000;

impl Gangs {
    /// `now`: there were readings.
    pub(super) fn plan_reading(&mut self, status: &Status, now: bool) {
        let turns = self.members.values().any(|member| member.told.is_some());
        let could_use_more = |(program, member): (&ProgramId, &Member)| {
            let threads = status.programs.get(program).map_or(1, threads);
            member.demand.cpus(threads) < threads
        };
        let period = match turns {
            true => Some(PERIOD_NS),
            false => self
                .members
                .iter()
                .any(could_use_more)
                .then_some(LONG_PERIOD_NS),
        };
        let since = self.read_ns.filter(|_| !now).map(|(since, _)| since);
        self.read_ns = period.map(|period| (since.unwrap_or(status.time_ns), period));
    }

    pub(super) fn read(&mut self, readings: &Readings, status: &Status) {
        let time_ns = readings.machine.time_ns;
        let runs = |member: &Member| {
            let turn = member.told.as_ref();
            turn.is_none_or(|turn| turn.runs_at(time_ns) != Some(false))
        };
        let threads_of = |program: &ProgramId| status.programs.get(program).map_or(1, threads);
        let running = self.members.iter().filter(|(_, member)| runs(member));
        let expected: u32 = running
            .map(|(program, member)| member.demand.cpus(threads_of(program)))
            .fold(0, u32::saturating_add);
        let crowded = readings.machine.runnable.is_none_or(|seen| seen > expected);
        let cpus = readings.machine.cpus.iter();
        let idle: BTreeMap<u32, u64> = cpus.map(|cpu| (cpu.cpu, cpu.idle_ns)).collect();
        for read in &readings.programs {
            let Some(member) = self.members.get_mut(&read.program) else {
                continue;
            };
            let program = status.programs.get(&read.program);
            let claim = program.and_then(|program| program.claim.as_ref());
            let cpus = member.placed.as_ref().or(claim.map(|claim| &claim.cpus));
            let cpus = cpus.into_iter().flat_map(|cpus| cpus.iter());
            let seen = Seen {
                time_ns,
                run_ns: read.run_ns,
                idle_ns: cpus.filter_map(|cpu| idle.get(&cpu)).sum(),
                crowded: crowded && runs(member),
            };
            let turn = member.told.as_ref();
            member.demand.read(seen, threads_of(&read.program), turn);
        }
    }
}
