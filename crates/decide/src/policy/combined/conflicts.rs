//! What two policies would both set.

use super::{Running, names};
use crate::cpus::CpuSet;
use crate::policy::Decides;

/// More policies than this nobody can keep apart, and longer names no program has.
const MOST_PARTS: usize = 32;
const LONGEST_NAME: usize = 64;

/// Whether these policies can decide at the same time.
pub(super) fn none(parts: &[Running]) -> Result<(), String> {
    if parts.len() > MOST_PARTS {
        return Err(format!("there are more than {MOST_PARTS} policies"));
    }
    for running in parts {
        alone(running)?;
    }
    for (index, one) in parts.iter().enumerate() {
        for other in &parts[index + 1..] {
            if let Some(both) = conflict(one, other) {
                let (one, other) = (called(one), called(other));
                return Err(format!("{one} and {other} cannot decide together: {both}"));
            }
        }
    }
    Ok(())
}

fn alone(running: &Running) -> Result<(), String> {
    let part = &running.part;
    let name = called(running);
    if part.cpus.as_ref().is_some_and(CpuSet::is_empty) {
        return Err(format!("{name} has an empty list of CPUs"));
    }
    let wrong = |pattern: &&String| {
        pattern.is_empty() || pattern.len() > LONGEST_NAME || pattern.matches('*').count() > 4
    };
    if let Some(pattern) = part.programs.iter().find(wrong) {
        return Err(format!(
            "{name}: {pattern:?} is no name of programs: 1 to {LONGEST_NAME} letters, with at most four stars"
        ));
    }
    let sets_nothing = Decides {
        own_cpus: false,
        instructions: false,
        ..running.policy.decides()
    } == Decides::default();
    if !part.claims && sets_nothing {
        return Err(format!(
            "{name} is to leave claims to others, and sets nothing else: leave it out"
        ));
    }
    if !part.claims && !part.programs.is_empty() {
        return Err(format!(
            "{name} is to leave claims to others, and names programs: name its CPUs instead"
        ));
    }
    if !part.source.parts.is_empty() {
        return Err(format!("{name} is several policies itself: name those"));
    }
    Ok(())
}

/// What both would set.
fn conflict(one: &Running, other: &Running) -> Option<String> {
    let (a, b) = (one.policy.decides(), other.policy.decides());
    if one.part.claims && other.part.claims {
        if let Some(which) = same_programs(one, other) {
            return Some(format!(
                "both would grant claims to {which}; give each its own `programs`, or one of them `claims = false`"
            ));
        }
        if a.own_cpus
            && b.own_cpus
            && let Some(cpus) = same_cpus(one, other)
        {
            return Some(format!(
                "both keep CPUs for their own programs, and have {cpus} in common; give each its own `cpus`"
            ));
        }
    }
    let hardware = [
        ("prefetchers", a.prefetchers && b.prefetchers),
        ("frequency", a.frequencies && b.frequencies),
        ("duty cycle", a.duty_cycles && b.duty_cycles),
    ];
    for (what, both) in hardware {
        if both && let Some(cpus) = same_cpus(one, other) {
            return Some(format!(
                "both would set the {what} of {cpus}; give each its own `cpus`"
            ));
        }
    }
    (a.instructions && b.instructions).then(|| {
        "both judge by the instructions that the whole machine retires, so each would judge the other's doing; leave one out"
            .to_owned()
    })
}

/// Which programs both have.
fn same_programs(one: &Running, other: &Running) -> Option<String> {
    let (a, b) = (&one.part.programs, &other.part.programs);
    if a.is_empty() && b.is_empty() {
        return Some("all programs that no other policy names".to_owned());
    }
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    pairs
        .into_iter()
        .find(|(a, b)| names::overlap(a, b))
        .map(|(a, b)| match a == b {
            true => format!("programs called {a:?}"),
            false => format!("programs called both {a:?} and {b:?}"),
        })
}

/// Which CPUs both have.
fn same_cpus(one: &Running, other: &Running) -> Option<String> {
    match (&one.part.cpus, &other.part.cpus) {
        (None, None) => Some("all CPUs that no other policy names".to_owned()),
        // Who takes the rest has none of those that are named.
        (Some(some), None) if !other.part.claims => Some(format!("CPUs {some}")),
        (None, Some(some)) if !one.part.claims => Some(format!("CPUs {some}")),
        (Some(_), None) | (None, Some(_)) => None,
        (Some(a), Some(b)) => {
            let both = a.intersection(b);
            (!both.is_empty()).then(|| format!("CPUs {both}"))
        }
    }
}

fn called(running: &Running) -> String {
    format!("the policy {:?}", running.part.source.name)
}
