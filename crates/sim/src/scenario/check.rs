//! What must hold of every scenario, however it was made.

use super::{Entry, MOST_PROGRAMS, MOST_THREADS, Managed, NextWave, Scenario, Share};
use corewise_decide::cpus::CpuSet;
use corewise_decide::gang::MOST_WEIGHT;
use std::collections::BTreeSet;

/// The longest run, in virtual nanoseconds: a day.
const LONGEST_NS: u64 = 86_400_000_000_000;

/// Threads that one program may be given.
const MOST_THREADS_OF_ONE: u32 = 65_536;

/// Something is wrong.
pub(super) struct Wrong {
    /// With which entry; `None`: with the scenario itself.
    pub(super) entry: Option<usize>,
    /// Which key says it.
    pub(super) key: &'static str,
    /// What, with the entry's name.
    pub(super) why: String,
}

pub(super) fn scenario(scenario: &Scenario) -> Result<(), Wrong> {
    let wrong = |key, why| {
        Err(Wrong {
            entry: None,
            key,
            why,
        })
    };
    if scenario.entries.is_empty() {
        return wrong("program", "there is no program to run".to_owned());
    }
    if !(1..=LONGEST_NS).contains(&scenario.limit_ns) {
        return wrong(
            "limit_ms",
            "a run takes 1 ms to a day (86,400,000)".to_owned(),
        );
    }
    if scenario.delay_ns > 10_000_000_000 {
        return wrong("delay_us", "it is at most 10 s (10,000,000)".to_owned());
    }
    if scenario.switch_ns > 1_000_000_000 {
        return wrong("switch_us", "it is at most 1 s (1,000,000)".to_owned());
    }
    groups(scenario)?;
    let mut names = BTreeSet::new();
    for (index, entry) in scenario.entries.iter().enumerate() {
        let named = |(key, why): (&'static str, String)| Wrong {
            entry: Some(index),
            key,
            why: format!("{}: {why}", entry.name),
        };
        if !names.insert(&entry.name) {
            let why = "another program has this name; give one of them another".to_owned();
            return Err(named(("name", why)));
        }
        one(scenario, entry).map_err(named)?;
    }
    if let Some((index, circle)) = circle(&scenario.entries) {
        return Err(Wrong {
            entry: Some(index),
            key: "after",
            why: format!("programs wait for each other's end: {circle}"),
        });
    }
    let programs: u64 = scenario.entries.iter().map(Entry::programs).sum();
    if programs > MOST_PROGRAMS {
        let why = format!("{programs} programs are too many; at most {MOST_PROGRAMS}");
        return wrong("program", why);
    }
    Ok(())
}

fn groups(scenario: &Scenario) -> Result<(), Wrong> {
    let mut names = BTreeSet::new();
    for group in &scenario.groups {
        let name = &group.name;
        let wrong = |key, why: &str| {
            let why = format!("group {name}: {why}");
            Err(Wrong {
                entry: None,
                key,
                why,
            })
        };
        if !names.insert(name) {
            return wrong("group", "another one has this name");
        }
        if !(1..=10_000).contains(&group.weight) {
            return wrong("group", "a weight is 1 to 10,000; 100 is usual");
        }
        if let Some(quota) = group.quota {
            // As the kernel has it (kernel/sched/core.c, tg_set_cfs_bandwidth).
            if !(1_000_000..=1_000_000_000).contains(&quota.period_ns) {
                return wrong("group", "a quota's period is 1 to 1,000 ms");
            }
            if quota.quota_ns < 1_000_000 || quota.quota_ns / quota.period_ns > 100_000 {
                return wrong("group", "a quota is at least 1 ms a period");
            }
        }
    }
    Ok(())
}

type Found = Result<(), (&'static str, String)>;

fn one(scenario: &Scenario, entry: &Entry) -> Found {
    let wrong = |key, why: &str| Err((key, why.to_owned()));
    if entry.name.trim().is_empty() || entry.name.len() > 200 {
        return wrong("name", "a name has 1 to 200 bytes");
    }
    if entry.count == 0 {
        return wrong("count", "at least one starts");
    }
    if let Some(gang) = &entry.gang {
        if entry.managed.is_none() {
            return wrong("gang", "who is not managed takes no turns");
        }
        if !(1..=MOST_WEIGHT).contains(&gang.weight) {
            return wrong("weight", "a weight is 1 to 10,000; 100 is usual");
        }
    }
    if entry.waves == 0 {
        return wrong("waves", "there is at least one wave");
    }
    if entry.waves > 1 && entry.next_wave == NextWave::Every(0) {
        return wrong("every_ms", "waves are at least a nanosecond apart");
    }
    if let Share::Group(group) = entry.share
        && group >= scenario.groups.len()
    {
        return wrong("group", "there is no such group");
    }
    let cpus = scenario.machine.places.len() as u32;
    if let Some(allowed) = &entry.cpus {
        if allowed.is_empty() {
            return wrong("cpus", "it needs at least one CPU");
        }
        if let Some(foreign) = allowed.iter().find(|cpu| *cpu >= cpus) {
            let why = format!(
                "the machine has CPUs 0 to {}, and no CPU {foreign}",
                cpus - 1
            );
            return Err(("cpus", why));
        }
    }
    if entry
        .threads
        .is_some_and(|n| !(1..=MOST_THREADS_OF_ONE).contains(&n))
    {
        return wrong("threads", "a program has 1 to 65,536 threads");
    }
    if let Some(Managed::Malleable {
        min_threads,
        max_threads,
        ..
    }) = entry.managed
    {
        let most = max_threads.unwrap_or(MOST_THREADS_OF_ONE);
        if !(1..=MOST_THREADS_OF_ONE).contains(&most) {
            return wrong("max_threads", "a program has 1 to 65,536 threads");
        }
        if min_threads < 1 || min_threads > most {
            return wrong("min_threads", "it is at least 1 and at most max_threads");
        }
    }
    if entry
        .after
        .is_some_and(|after| after >= scenario.entries.len())
    {
        return wrong("after", "there is no such program");
    }
    let all = CpuSet::first(cpus);
    let allowed = entry.cpus.as_ref().unwrap_or(&all);
    let threads = u64::from(entry.spec.threads_at_start(entry.threads, allowed));
    let waves = match entry.next_wave {
        NextWave::Pause(_) => 1,
        NextWave::Every(_) => u64::from(entry.waves),
    };
    let together = threads
        .saturating_mul(u64::from(entry.count))
        .saturating_mul(waves);
    if together > MOST_THREADS {
        let why = format!("{together} threads are too many; at most {MOST_THREADS} at a time");
        return Err(("count", why));
    }
    Ok(())
}

/// Programs that wait for each other, with one of them.
fn circle(entries: &[Entry]) -> Option<(usize, String)> {
    // Each waits for one at most, so that following it either ends or comes round. 0: unknown;
    // otherwise in which walk it was met first.
    let mut met = vec![0; entries.len()];
    for start in 0..entries.len() {
        let walk = start + 1;
        let mut at = start;
        while met[at] == 0 {
            met[at] = walk;
            match entries[at].after {
                Some(next) => at = next,
                None => break,
            }
        }
        if met[at] == walk && entries[at].after.is_some() {
            let mut names = vec![entries[at].name.as_str()];
            let mut next = entries[at].after;
            while let Some(other) = next.filter(|other| *other != at) {
                names.push(&entries[other].name);
                next = entries[other].after;
            }
            // The last step of a walk that ended is no circle.
            if next == Some(at) {
                names.push(names[0]);
                return Some((at, names.join(" after ")));
            }
        }
    }
    None
}
