//! Several grants that belong together: from the claims as they are to those that are planned, without
//! one being refused because another has not been made yet.

use crate::policy::Orders;
use crate::status::{Claim, Program, ProgramId, Status};

/// What a program is to have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// Who.
    pub(crate) program: ProgramId,
    /// What.
    pub(crate) claim: Claim,
    /// Why, in one sentence.
    pub(crate) reason: String,
}

/// Orders what of the plan is not so yet; whether that is anything.
///
/// The plan must be consistent in itself: exclusive claims in it are in no other one. A CPU that goes
/// from one program to another would be refused as long as it is the first one's alone. So those whose
/// claims change give up being alone first (which no program notices), then all get their claims, then
/// those who are to be alone are.
pub(crate) fn carry_out(plan: Vec<Planned>, status: &Status, orders: &mut Orders) -> bool {
    let mut changes = Vec::new();
    for planned in plan {
        let Some(program) = status.programs.get(&planned.program) else {
            continue;
        };
        if !program.overridden && program.claim.as_ref() != Some(&planned.claim) {
            changes.push((planned, program));
        }
    }
    // A claim that no longer fits its program or the machine cannot be granted as it is: it is
    // replaced first of all.
    let stays = |program: &Program, old: &Claim| {
        let wants = &program.wants;
        old.cpus.is_subset(&status.machine.allowed)
            && (wants.min_threads..=wants.max_threads).contains(&old.threads)
    };
    changes.sort_by_key(|(_, program)| program.claim.as_ref().is_none_or(|c| stays(program, c)));
    for (planned, program) in &changes {
        let old = program.claim.as_ref().filter(|c| c.exclusive);
        if let Some(old) = old.filter(|c| stays(program, c)) {
            orders.grant(planned.program, shared(old), &planned.reason);
        }
    }
    for (planned, program) in &changes {
        let same = program
            .claim
            .as_ref()
            .is_some_and(|old| shared(old) == shared(&planned.claim));
        if !same {
            orders.grant(planned.program, shared(&planned.claim), &planned.reason);
        }
    }
    for (planned, _) in changes.iter().filter(|(p, _)| p.claim.exclusive) {
        orders.grant(planned.program, planned.claim.clone(), &planned.reason);
    }
    !changes.is_empty()
}

fn shared(claim: &Claim) -> Claim {
    Claim {
        exclusive: false,
        ..claim.clone()
    }
}
