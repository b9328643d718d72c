//! Local managers, as they are on Linux: one beside each program that nobody changed, one within each
//! that links corewise.
//!
//! - *Beside a rigid program* it answers every request with no, looks at the program's threads (every
//!   10 ms while they come and go, ever more seldom while not), tells how many there are, and keeps them on
//!   the claim's CPUs by the policy's rule.
//! - *Within a malleable one* it answers as `Claim` and `Team` do: yes to a thread more if the claim is
//!   below the maximum and there is work for one, yes to a thread less if it is above the minimum. Its
//!   workers follow the claim's number between units of work. The first claim is waited for.

use super::start::kernel_weight;
use super::{Due, SimWorld};
use crate::program::ProgramNumber;
use crate::scenario::{Entry, Share};
use corewise_decide::cpus::CpuSet;
use corewise_decide::gang::Turn;
use corewise_decide::local::place;
use corewise_decide::status::{LocalRule, ProgramId, Request, Wants};
use corewise_decide::world::{Action, Input};

/// The shortest and the longest time between two looks at a program's threads, in nanoseconds.
const SHORTEST_LOOK_NS: u64 = 10_000_000;
const LONGEST_LOOK_NS: u64 = 1_000_000_000;

/// A managed program's local manager.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) number: ProgramNumber,
    pub(super) wants: Wants,
    /// The CPUs that its user allows it.
    starting: CpuSet,
    /// What it is granted, if anything yet.
    pub(super) granted: Option<(CpuSet, u32)>,
    /// The CPUs that its control group is confined to by an action.
    cpuset: Option<CpuSet>,
    rule: LocalRule,
    /// Whether the rule is new, and nobody was placed by it.
    is_new: bool,
    /// Whether it is about to see its claim.
    claim_due: bool,
    /// Threads that it has told of.
    pub(super) told: u32,
    look_due: bool,
    looked_ns: u64,
    look_period_ns: u64,
    /// Threads granted × time so far, since when the present number is granted, and since when any.
    pub(super) granted_thread_ns: u128,
    pub(super) granted_since_ns: u64,
    pub(super) first_granted_ns: Option<u64>,
    pub(super) claims: u64,
    /// When its threads run, by the newest turn, and how many it was told.
    pub(super) turn: Option<Turn>,
    pub(super) turns: u64,
}

impl Local {
    pub(super) fn new(number: ProgramNumber, wants: Wants, starting: CpuSet, now_ns: u64) -> Local {
        Local {
            number,
            wants,
            starting,
            granted: None,
            cpuset: None,
            rule: LocalRule::Leave,
            is_new: true,
            claim_due: false,
            told: 0,
            look_due: false,
            looked_ns: now_ns,
            look_period_ns: SHORTEST_LOOK_NS,
            granted_thread_ns: 0,
            granted_since_ns: now_ns,
            first_granted_ns: None,
            claims: 0,
            turn: None,
            turns: 0,
        }
    }

    /// Adds up what was granted until now.
    pub(super) fn count_grant(&mut self, now_ns: u64) {
        if let Some((_, threads)) = &self.granted {
            let span = now_ns.saturating_sub(self.granted_since_ns);
            self.granted_thread_ns += u128::from(span) * u128::from(*threads);
        }
        self.granted_since_ns = now_ns;
    }

    /// The CPUs that its threads are kept on, and whether that is less than its user allows.
    fn cpus(&self) -> (CpuSet, bool) {
        let base = match &self.cpuset {
            Some(cpuset) => cpuset.intersection(&self.starting),
            None => self.starting.clone(),
        };
        let base = if base.is_empty() {
            self.starting.clone()
        } else {
            base
        };
        let claim = self
            .granted
            .as_ref()
            .map(|(cpus, _)| cpus.intersection(&base));
        match claim {
            Some(cpus) if self.rule != LocalRule::Leave && !cpus.is_empty() && cpus != base => {
                (cpus, true)
            }
            _ => (base, false),
        }
    }

    /// When its threads are looked at next after `now_ns`, going by the pace of earlier looks, which
    /// found nothing new.
    fn next_look(&mut self, now_ns: u64) -> u64 {
        let mut next = self.looked_ns.saturating_add(self.look_period_ns);
        while next <= now_ns {
            self.looked_ns = next;
            self.look_period_ns = (self.look_period_ns * 2).min(LONGEST_LOOK_NS);
            next = next.saturating_add(self.look_period_ns);
        }
        next
    }

    /// Whether it would do as it is asked.
    fn would(&self, what: Request, could_use: u32) -> bool {
        if !self.wants.malleable {
            return false;
        }
        let threads = self.granted.as_ref().map_or(1, |(_, threads)| *threads);
        match what {
            Request::Expand => {
                threads < self.wants.max_threads && (could_use == 0 || could_use > threads)
            }
            Request::Shrink => threads > self.wants.min_threads,
        }
    }
}

impl SimWorld<'_> {
    /// The decision on a moment is done: who joined hears the policy's rule, as does everybody if there
    /// is another one.
    pub(super) fn welcome(&mut self, rule_of: impl Fn(ProgramId) -> LocalRule) {
        let mut new = Vec::new();
        for (program, local) in &mut self.managed {
            let rule = rule_of(*program);
            if local.is_new || local.rule != rule {
                new.push((*program, local.is_new && local.wants.malleable));
                local.is_new = false;
                local.rule = rule;
            }
        }
        for (program, at_once) in new {
            match at_once {
                // It has waited for its first claim before it made a thread.
                true => self.follow_claim(program),
                false => self.claim_soon(program),
            }
        }
    }

    /// A claim is granted: it stands on the claim page.
    pub(super) fn grant(&mut self, program: ProgramId, cpus: &CpuSet, threads: u32) {
        let now = self.kernel.now();
        let Some(local) = self.managed.get_mut(&program) else {
            return;
        };
        local.count_grant(now);
        local.first_granted_ns.get_or_insert(now);
        local.granted = Some((cpus.clone(), threads));
        local.claims += 1;
        let (number, waits) = (local.number, local.is_new);
        self.record.claim(now, number, cpus.count(), threads);
        if !waits {
            self.claim_soon(program);
        }
    }

    fn claim_soon(&mut self, program: ProgramId) {
        if let Some(local) = self.managed.get_mut(&program)
            && !local.claim_due
        {
            local.claim_due = true;
            self.soon(Due::Claim(program));
        }
    }

    /// The program follows its claim as it is now.
    pub(super) fn follow_claim(&mut self, program: ProgramId) {
        let Some(local) = self.managed.get_mut(&program) else {
            return;
        };
        local.claim_due = false;
        let number = local.number;
        let (cpus, confined) = local.cpus();
        let most = local.wants.max_threads;
        let threads = local.granted.as_ref().map_or(most, |(_, threads)| *threads);
        let rule = local.rule;
        self.programs
            .set_claim(&mut self.kernel, number, &cpus, threads);
        if confined && rule == LocalRule::OneEach {
            let living = self.programs.state(number).threads as usize;
            if let Some(places) = place(rule, &cpus, living) {
                self.programs.place(&mut self.kernel, number, &places);
            }
        }
    }

    /// A program's threads come and go.
    pub(super) fn on_threads(&mut self, number: ProgramNumber) {
        let program = super::start::id_of(number);
        let now = self.kernel.now();
        let Some(local) = self.managed.get_mut(&program) else {
            return;
        };
        if local.wants.malleable {
            // A team places its own workers as they are made, and tells nobody.
            if local.rule == LocalRule::OneEach {
                self.follow_claim(program);
            }
        } else if !local.look_due {
            let next = local.next_look(now);
            self.look_at(program, next);
        }
    }

    /// A program's threads are looked at then.
    pub(super) fn look_at(&mut self, program: ProgramId, time_ns: u64) {
        if let Some(local) = self.managed.get_mut(&program) {
            local.look_due = true;
            self.at(time_ns, Due::Look(program));
        }
    }

    /// The local manager looks at its program's threads.
    pub(super) fn look(&mut self, program: ProgramId) {
        let now = self.kernel.now();
        let Some(local) = self.managed.get_mut(&program) else {
            return;
        };
        local.look_due = false;
        local.looked_ns = now;
        local.look_period_ns = SHORTEST_LOOK_NS;
        let count = self.programs.state(local.number).threads;
        if local.told != count {
            local.told = count;
            self.inputs.push(Input::Threads { program, count });
        }
        if local.granted.is_some() && local.cpus().1 {
            self.follow_claim(program);
        }
    }

    /// A program answers what it was asked.
    pub(super) fn answer(&mut self, program: ProgramId, request: u32, what: Request) {
        let Some(local) = self.managed.get(&program) else {
            return;
        };
        let could_use = self.programs.state(local.number).could_use.unwrap_or(0);
        let yes = local.would(what, could_use);
        self.inputs.push(Input::Answered {
            program,
            request,
            yes,
        });
    }

    /// Sets what is beyond claims.
    pub(super) fn act(&mut self, action: &Action) -> Result<(), String> {
        let Some(program) = action.program() else {
            return match action {
                Action::Prefetchers { on, cpus } if cpus.is_empty() => {
                    self.kernel.set_prefetchers(*on);
                    Ok(())
                }
                _ => Err(format!("a simulated machine cannot do this: {action}")),
            };
        };
        let local = self.managed.get_mut(&program);
        let local = local.ok_or_else(|| format!("{program} has left"))?;
        let number = local.number;
        match action {
            Action::Weight { weight, .. } => {
                if !self.is_alone_in_its_group(number) {
                    return Err(format!(
                        "{program} shares its session or control group: it has no weight of its own"
                    ));
                }
                let weight = kernel_weight((*weight).clamp(1, 10_000));
                self.programs.set_weight(&mut self.kernel, number, weight);
            }
            Action::Cpuset { cpus, .. } => {
                local.cpuset = (!cpus.is_empty()).then(|| cpus.clone());
                self.follow_claim(program);
            }
            Action::Freeze { frozen, .. } => {
                self.programs.freeze(&mut self.kernel, number, *frozen);
                self.look_at_waits_soon();
            }
            Action::Slice { slice_ns, .. } => {
                self.programs.set_slice(&mut self.kernel, number, *slice_ns);
            }
            _ => return Err(format!("a simulated machine cannot do this: {action}")),
        }
        Ok(())
    }

    /// Whether a program's scheduling group holds no other: on Linux a manager moves a program to a group
    /// of its own for a weight, which the modelled kernel cannot.
    fn is_alone_in_its_group(&self, number: ProgramNumber) -> bool {
        let Some(started) = self.started.get(number.0 as usize) else {
            return false;
        };
        let entries = &self.scenario.entries;
        let share = &entries[started.entry].share;
        let grouped = self.scenario.autogroup || matches!(share, Share::Group(_));
        let programs = entries.iter().filter(|entry| entry.share == *share);
        grouped && programs.map(Entry::programs).sum::<u64>() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::status::Placement;

    fn local(min_threads: u32, max_threads: u32, malleable: bool) -> Local {
        let wants = Wants {
            min_threads,
            max_threads,
            placement: Placement::Any,
            malleable,
        };
        Local::new(ProgramNumber(0), wants, CpuSet::first(4), 0)
    }

    #[test]
    fn a_rigid_program_does_not_do_as_it_is_asked() {
        let local = local(1, 4, false);
        assert!(!local.would(Request::Expand, 0));
        assert!(!local.would(Request::Shrink, 0));
    }

    #[test]
    fn a_malleable_program_grows_while_it_has_work_for_one_more_and_shrinks_to_its_minimum() {
        let mut local = local(2, 4, true);
        local.granted = Some((CpuSet::first(4), 3));
        assert!(local.would(Request::Expand, 0));
        assert!(local.would(Request::Expand, 4));
        assert!(!local.would(Request::Expand, 3));
        assert!(local.would(Request::Shrink, 0));
        local.granted = Some((CpuSet::first(4), 4));
        assert!(!local.would(Request::Expand, 9));
        local.granted = Some((CpuSet::first(4), 2));
        assert!(!local.would(Request::Shrink, 0));
    }

    #[test]
    fn looks_are_ever_further_apart_while_nothing_changes() {
        let mut local = local(1, 1, false);
        assert_eq!(local.next_look(0), 10_000_000);
        assert_eq!(local.next_look(10_000_000), 30_000_000);
        let late = local.next_look(100_000_000_000);
        assert!(late > 100_000_000_000 && late <= 101_000_000_000);
    }

    #[test]
    fn no_thread_gets_a_cpu_that_its_user_did_not_allow() {
        let mut local = local(1, 4, false);
        local.rule = LocalRule::Whole;
        local.starting = [2, 3].into_iter().collect();
        local.granted = Some((CpuSet::first(3), 1));
        assert_eq!(local.cpus(), ([2].into_iter().collect(), true));
        local.granted = Some((CpuSet::first(2), 1));
        assert_eq!(local.cpus(), (local.starting.clone(), false));
        local.rule = LocalRule::Leave;
        local.granted = Some((CpuSet::first(3), 1));
        assert_eq!(local.cpus(), (local.starting.clone(), false));
    }
}
