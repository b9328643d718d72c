//! `gang-scale`: what a decision of the gang schedule costs, on made machines of up to 1,024 CPUs with up to
//! 10,000 sets. A decision is one set that comes or goes, and all that is told then. No thread is started.
//!
//! - *One ring*: all sets want all CPUs of a machine of 1,024, so that each decision is about all of them; or each
//!   wants other CPUs than the next, some of them in common.
//! - *Many rings*: sets within caches, nodes and packages; a decision is about one ring, however many others there
//!   are.
//! - *Relocatable* sets of all sizes, which the schedule places.

use std::time::Instant;

use anyhow::Result;
use corewise_decide::cpus::CpuSet;
use corewise_decide::gang::{Change, Schedule, Set, SetId, Where};
use corewise_decide::status::{CpuPlace, Machine};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::{median, slope};

const CPUS: u32 = 1_024;

/// Numbers of sets, in equal steps of their logarithm.
const SETS: [u32; 5] = [100, 320, 1_000, 3_200, 10_000];

/// Sets of the ring that is changed where there are many rings.
const OWN: u32 = 20;

/// How the sets of a machine lie.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Everyone wants all CPUs.
    Whole,
    /// Everyone wants some CPUs, which others want in part: still one ring.
    Chain,
    /// Some 8 to 64 CPUs, wherever that is best: already a hundred do not fit side by side.
    Relocatable,
    /// Some within the first 64 CPUs, which are changed; the others elsewhere.
    Apart,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Whole, "one_ring_whole_machine"),
    (Kind::Chain, "one_ring_chain"),
    (Kind::Relocatable, "relocatable"),
    (Kind::Apart, "many_rings"),
];

/// What decisions cost on one machine.
struct Cost {
    /// Of one decision, in microseconds: the median.
    us: f64,
    /// Sets that were told something in one decision, at most.
    told: usize,
    /// Of them, such as share no CPU with the changed set, even through others.
    told_elsewhere: usize,
}

/// Runs the experiment. `--only` takes kinds.
///
/// # Errors
/// None so far.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "gang-scale",
        "CPU time of a decision of the gang schedule: one set that comes or goes, and all that is told then",
        "none: nothing is started",
    );
    let mut table = Table::new(
        "a decision, in µs, on 1,024 CPUs",
        &[
            "sets",
            "one ring, all CPUs",
            "one ring, a chain",
            "relocatable",
            "many rings",
        ],
    );
    let names: Vec<&str> = KINDS.iter().map(|(_, name)| *name).collect();
    let picked = context.pick(&names);
    let mut columns: Vec<Vec<Cost>> = Vec::new();
    for (kind, name) in KINDS {
        if !picked.contains(&name) {
            columns.push(Vec::new());
            continue;
        }
        let column: Vec<Cost> = SETS
            .iter()
            .map(|&sets| cost(context, kind, CPUS, sets))
            .collect();
        let us: Vec<f64> = column.iter().map(|cost| cost.us).collect();
        context.say(format_args!("{name}: {us:.1?} µs"));
        for (sets, cost) in SETS.iter().zip(&column) {
            report.figure(format!("us_{name}_{sets}_sets"), cost.us);
            report.figure(format!("told_{name}_{sets}_sets"), cost.told as f64);
        }
        let exponent = exponent(&us);
        report.figure(format!("exponent_of_n_log_n_{name}"), exponent);
        report.bars.push(Bar::at_most(
            format!("{name}: a decision's cost grows as this power of n log n (at most)"),
            exponent,
            1.0,
        ));
        if kind == Kind::Apart {
            let elsewhere: usize = column.iter().map(|cost| cost.told_elsewhere).sum();
            report.bars.push(Bar::at_most(
                "sets told something because of a set with which they share nothing (at most)",
                elsewhere as f64,
                0.0,
            ));
            let least = us.iter().copied().fold(f64::INFINITY, f64::min);
            report.bars.push(Bar::at_most(
                "many rings: a decision with 10,000 sets costs so many times one with 100 (at most)",
                us.last().copied().unwrap_or(f64::NAN) / least,
                2.0,
            ));
        }
        columns.push(column);
    }
    for (row, sets) in SETS.iter().enumerate() {
        let cell = |column: &Vec<Cost>| column.get(row).map_or(f64::NAN, |cost| cost.us);
        let cells = columns.iter().map(|column| number(cell(column)));
        table.row([sets.to_string()].into_iter().chain(cells));
    }
    report.tables.push(table);
    machines(context, &mut report);
    report.note("medians over decisions; a decision about one ring of n sets tells all n of them their new turns");
    Ok(report)
}

/// Ten sets for each CPU, on machines of all sizes.
fn machines(context: &Context, report: &mut Report) {
    let mut table = Table::new(
        "a decision, in µs, with ten relocatable sets for each CPU",
        &["CPUs", "sets", "µs", "told at most"],
    );
    for cpus in [4, 16, 64, 256, 1_024] {
        let cost = cost(context, Kind::Relocatable, cpus, (cpus * 10).min(10_000));
        report.figure(format!("us_relocatable_{cpus}_cpus"), cost.us);
        table.row([
            cpus.to_string(),
            (cpus * 10).min(10_000).to_string(),
            number(cost.us),
            cost.told.to_string(),
        ]);
    }
    report.tables.push(table);
}

/// A machine with two CPUs to a core, eight to an L3, 32 to a node, 64 to a package.
fn machine(cpus: u32) -> Machine {
    let place = |cpu| CpuPlace {
        cpu,
        core: cpu / 2,
        l2: cpu / 2,
        l3: cpu / 8,
        node: cpu / 32,
        package: cpu / 64,
    };
    Machine {
        places: (0..cpus).map(place).collect(),
        allowed: CpuSet::first(cpus),
        capacity: f64::from(cpus),
    }
}

/// Set number `index` of so many.
fn set(kind: Kind, index: u32, cpus: u32) -> Set {
    let mut random = fastrand::Rng::with_seed(u64::from(index) + 1);
    let range = |begin: u32, count: u32| Where::On((begin..begin + count).collect());
    let (places, demand) = match kind {
        Kind::Whole => (range(0, cpus), cpus / 2 + 1 + random.u32(0..cpus / 2)),
        Kind::Chain => (range(index * 7 % (cpus - 16), 16), 1 + random.u32(0..16)),
        Kind::Relocatable => {
            let count = (8 << random.u32(0..4)).min(cpus);
            (Where::Any(count), 1 + random.u32(0..count))
        }
        Kind::Apart if index < OWN => (range(0, 64), 33 + random.u32(0..31)),
        Kind::Apart => {
            let size = 1 << random.u32(0..6);
            let begin = 64 + random.u32(0..(cpus - 64) / size) * size;
            (range(begin, size), 1 + random.u32(0..size))
        }
    };
    Set {
        id: SetId(u64::from(index)),
        cpus: places,
        demand,
        keeps_idle: false,
        sleeps: false,
        weight: 100,
    }
}

fn cost(context: &Context, kind: Kind, cpus: u32, sets: u32) -> Cost {
    let mut schedule = Schedule::new();
    schedule.machine(&machine(cpus));
    for index in 0..sets {
        schedule.set(set(kind, index, cpus));
    }
    let mut time_ns = 0;
    schedule.plan(time_ns);
    let decisions = context.rounds(60, 20);
    let mut all = Vec::new();
    let (mut told, mut told_elsewhere) = (0, 0);
    for decision in 0..decisions {
        time_ns += 7_000_000;
        // Those that are changed lie everywhere, but for where only one ring is to be.
        let among = if kind == Kind::Apart { OWN } else { sets };
        let index = (u64::from(decision) * 7_919 % u64::from(among)) as u32;
        let back = set(kind, index, cpus);
        for come in [false, true] {
            time_ns += 7_000_000;
            let (us, changes) = decide(&mut schedule, &back, come, time_ns);
            all.push(us);
            told = told.max(changes.len());
            let own = |change: &&Change| kind == Kind::Apart && change.set.0 >= u64::from(OWN);
            told_elsewhere += changes.iter().filter(own).count();
        }
    }
    Cost {
        us: median(&all),
        told,
        told_elsewhere,
    }
}

/// One decision, and what it took in microseconds.
fn decide(schedule: &mut Schedule, set: &Set, come: bool, time_ns: u64) -> (f64, Vec<Change>) {
    let set = set.clone();
    let begin = Instant::now();
    match come {
        true => schedule.set(set),
        false => schedule.remove(set.id),
    }
    let changes = schedule.plan(time_ns);
    (begin.elapsed().as_secs_f64() * 1e6, changes)
}

/// p of the best fit of cost ~ (n log n)^p, by least squares of the logarithms.
fn exponent(costs: &[f64]) -> f64 {
    let n = |sets: &u32| f64::from(*sets);
    let x = SETS.iter().map(|sets| (n(sets) * n(sets).ln()).ln());
    let points: Vec<(f64, f64)> = x.zip(costs).map(|(x, cost)| (x, cost.ln())).collect();
    slope(&points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_as_n_log_n_has_power_one_and_squares_have_more() {
        let n_log_n = SETS.map(|n| 3.0 * f64::from(n) * f64::from(n).ln());
        assert!((exponent(&n_log_n) - 1.0).abs() < 1e-9);
        assert!(exponent(&SETS.map(|n| f64::from(n).powi(2))) > 1.5);
    }
}
