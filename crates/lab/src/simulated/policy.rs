//! `sim-policy`: policies, built in and as scripts, on random scenarios, each against plain Linux on the same
//! scenario: throughput, fairness, starvation, oscillation; and whether `automax` keeps the same journal
//! when it is a script.
//!
//! With `--out DIR`, the scenarios in which `balanced` loses are written there as files, made as small as
//! they can be. `--rounds N` makes it N hundreds of scenarios, `--only from-1000` begins with scenario 1,000.
//!
//! Plain Linux is compared with itself, too: on the same scenarios with other random numbers for how uneven
//! the work is. Where threads spin beside each other, a lot depends on how they happen to fall into step, so
//! that one run against one other run can lose without a cause. How often that happens says how much of what
//! a policy loses means anything.

mod cases;
mod journal;
mod judge;
mod minimise;

use std::num::NonZero;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::{geometric_mean, median};
use cases::Case;
use judge::{Against, Ran, against, alone, jain_of, run as run_case};

/// Policies: how they are called here, and what scenarios name them.
const POLICIES: [(&str, &str); 4] = [
    ("balanced", "balanced"),
    ("balanced_script", "balanced.rhai"),
    ("automax", "automax"),
    ("automax_script", "automax.rhai"),
];

/// What plain Linux with other random numbers is called among them.
const CONTROL: &str = "plain_linux_again";

/// The part of plain Linux's throughput that may be lost.
const LOSS: f64 = 0.02;

/// A program starves that takes so many times as long as under plain Linux, and had not its share.
const STARVES: f64 = 2.0;

/// Claims oscillate that change more often than this in a second in which nothing comes or goes.
const OSCILLATES: f64 = 2.0;

/// What came of a case.
struct Found {
    case: Case,
    plain_jain: f64,
    /// Plain Linux with other random numbers.
    control: Against,
    /// In the order of [`POLICIES`].
    against: Vec<Against>,
    same_journal: bool,
}

/// Runs the experiment.
///
/// # Errors
/// If a policy's file is missing or wrong.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-policy",
        "policies on random scenarios of 1 to 128 CPUs against plain Linux on the same, simulated",
        "of half of the scenarios, each program in one of its own; of the others, all in one",
    );
    let folder = context.root.join("experiments/policies");
    let count = u64::from(context.rounds(10, 1)) * 100;
    let first = context.first()?;
    let found = all(context, &folder, first, count)?;
    report.figure("scenarios", found.len() as f64);
    table(&mut report, &found);
    judge_balanced(&mut report, &found);
    worst(&mut report, &found);
    let same = found.iter().filter(|f| f.same_journal).count();
    report.figure("scenarios_with_the_same_journal", same as f64);
    report.bars.push(Bar::at_most(
        "automax: scenarios whose journal is another one when it is a script (at most)",
        (found.len() - same) as f64,
        0.0,
    ));
    notes(&mut report);
    if let Some(out) = &context.out {
        write_losers(context, &found, &folder, out)?;
    }
    Ok(report)
}

/// So many cases from `first` on, on all CPUs of this machine.
fn all(context: &Context, folder: &Path, first: u64, count: u64) -> Result<Vec<Found>> {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let mut found = std::thread::scope(|scope| -> Result<Vec<(u64, Found)>> {
        let each = (0..workers).map(|worker| {
            scope.spawn(move || {
                let seeds = (worker..count).step_by(workers as usize);
                seeds
                    .map(|seed| {
                        if seed % 100 == 0 {
                            context.say(format_args!("{seed} of {count} scenarios"));
                        }
                        Ok((seed, one(folder, first + seed)?))
                    })
                    .collect::<Result<Vec<_>>>()
            })
        });
        let each: Vec<_> = each.collect();
        let mut found = Vec::new();
        for worker in each {
            let of_worker = worker.join();
            found.extend(of_worker.map_err(|_| anyhow::anyhow!("a simulation panicked"))??);
        }
        Ok(found)
    })?;
    found.sort_by_key(|(seed, _)| *seed);
    Ok(found.into_iter().map(|(_, found)| found).collect())
}

fn one(folder: &Path, seed: u64) -> Result<Found> {
    let case = Case::random(seed);
    let alone = alone(&case, folder)?;
    let plain = run_case(&case, "none", folder)?;
    let mut of_policies = Vec::new();
    for (_, policy) in POLICIES {
        let ran = run_case(&case, policy, folder)?;
        of_policies.push(against(&case, &alone, &ran, &plain));
    }
    let other = run_case(&case.with_other_numbers(), "none", folder)?;
    let control = against(&case, &alone, &other, &plain);
    let same_journal = journal::is_same(&case, "automax", "automax-whole.rhai", folder)?;
    Ok(Found {
        plain_jain: jain_of(&alone, &plain),
        case,
        control,
        against: of_policies,
        same_journal,
    })
}

/// What is lost against plain Linux, as a part: of throughput, or of the time until programs end, whichever
/// is less. (Where one is lost and the other gained, something went to one program instead of another.)
fn loss(against: &Against) -> f64 {
    let throughput = 1.0 - against.throughput;
    let time = 1.0 - 1.0 / against.total;
    throughput.min(time).max(0.0)
}

fn table(report: &mut Report, found: &[Found]) {
    let mut table = Table::new(
        "over plain Linux on the same scenario",
        &[
            "policy",
            "throughput, geometric mean",
            "worst throughput",
            "scenarios that lose over 2 %",
            "over 2 % of throughput alone",
            "completion, median",
            "Jain's index, mean",
            "scenarios that starve a program",
            "worst starvation",
            "scenarios that oscillate",
            "changes a second, worst",
        ],
    );
    let plain: f64 = found.iter().map(|f| f.plain_jain).sum::<f64>() / found.len() as f64;
    report.figure("plain_linux_jain_mean", plain);
    let policies = POLICIES.iter().map(|(name, _)| *name);
    for (index, name) in policies.chain([CONTROL]).enumerate() {
        let of = |value: fn(&Against) -> f64| -> Vec<f64> {
            let of = |f: &Found| value(f.against.get(index).unwrap_or(&f.control));
            found.iter().map(of).collect()
        };
        let throughput = of(|a| a.throughput);
        let worst = of(|a| a.worst);
        let changes = of(|a| a.changes.unwrap_or(0.0));
        let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let above =
            |values: &[f64], limit: f64| values.iter().filter(|v| **v > limit).count() as f64;
        report.figure(format!("{name}_loss_worst"), most(&of(loss)));
        let losses: Vec<f64> = throughput.iter().map(|t| 1.0 - t).collect();
        let jain = of(|a| a.jain);
        let figures = [
            ("throughput_mean", geometric_mean(&throughput)),
            ("throughput_worst", least(&throughput)),
            ("scenarios_that_lose", above(&of(loss), LOSS)),
            ("scenarios_with_less_throughput", above(&losses, LOSS)),
            ("completion_median", median(&of(|a| a.total))),
            ("jain_mean", jain.iter().sum::<f64>() / jain.len() as f64),
            ("scenarios_that_starve", above(&worst, STARVES)),
            ("starvation_worst", most(&worst)),
            ("scenarios_that_oscillate", above(&changes, OSCILLATES)),
            ("changes_a_second_worst", most(&changes)),
        ];
        for (figure, value) in figures {
            report.figure(format!("{name}_{figure}"), value);
        }
        let cells = figures.map(|(_, value)| number(value));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    report.tables.push(table);
}

fn judge_balanced(report: &mut Report, found: &[Found]) {
    let figure = |name: &str| {
        let key = format!("balanced_{name}");
        report.figures.get(&key).copied().unwrap_or(f64::NAN)
    };
    let bars = vec![
        Bar::at_least("scenarios (at least)", found.len() as f64, 1_000.0),
        Bar::at_most(
            "balanced: worst loss against plain Linux (at most)",
            figure("loss_worst"),
            LOSS,
        ),
        Bar::at_most(
            "balanced: scenarios that lose more than 2 % (at most)",
            figure("scenarios_that_lose"),
            0.0,
        ),
        Bar::at_most(
            "balanced: worst slow-down against plain Linux of a program without its share (at most)",
            figure("starvation_worst"),
            STARVES,
        ),
        Bar::at_most(
            "balanced: scenarios whose claims oscillate (at most)",
            figure("scenarios_that_oscillate"),
            0.0,
        ),
    ];
    report.bars.extend(bars);
}

/// The scenarios in which `balanced` is worst.
fn worst(report: &mut Report, found: &[Found]) {
    let mut table = Table::new(
        "where balanced loses most against plain Linux",
        &[
            "programs",
            "scenario",
            "CPUs",
            "throughput",
            "completion",
            "worst program",
            "changes a second",
        ],
    );
    let mut order: Vec<&Found> = found.iter().collect();
    order.sort_by(|a, b| loss(&b.against[0]).total_cmp(&loss(&a.against[0])));
    for found in order.iter().take(20) {
        let words = found.case.programs.iter().map(|p| p.kind.word());
        let words: Vec<&str> = words.collect();
        let against = &found.against[0];
        table.row([
            words.join(", "),
            found.case.seed.to_string(),
            found.case.cpus.to_string(),
            number(against.throughput),
            number(against.total),
            number(against.worst),
            against.changes.map_or("-".to_owned(), number),
        ]);
    }
    report.tables.push(table);
}

/// Writes those in which `balanced` loses, as small as they can be while they do.
fn write_losers(context: &Context, found: &[Found], folder: &Path, out: &Path) -> Result<()> {
    let loses = |case: &Case| -> Result<bool> {
        let plain = run_case(case, "none", folder)?;
        let ran: Ran = run_case(case, "balanced", folder)?;
        let alone = alone(case, folder)?;
        Ok(loss(&against(case, &alone, &ran, &plain)) > LOSS)
    };
    let lost = |f: &&Found| loss(&f.against[0]) > LOSS;
    for found in found.iter().filter(lost) {
        let small = minimise::minimise(&found.case, &loses)?;
        let path = out.join(format!("balanced-loses-{}.toml", found.case.seed));
        std::fs::write(&path, small.text("balanced"))
            .with_context(|| format!("{} cannot be written", path.display()))?;
        context.say(format_args!("{}", path.display()));
    }
    Ok(())
}

fn notes(report: &mut Report) {
    report.note(
        "throughput: work of all programs (spinning is none), those in the background too, for each second \
         until all that end have ended. Completion: the sum of what the programs that end took",
    );
    report.note(
        "a scenario loses where both are worse than under plain Linux: by as much as the better of the two. Where \
         only one is, one program has got what another had",
    );
    report.note(
        "a program that is slower than under plain Linux, but at most 2 % slower than it would be with an equal \
         share of the CPUs of its own, has had its share: it is not counted as starved",
    );
    report.note(
        "plain_linux_again: plain Linux on the same scenarios with other random numbers: what it loses, it loses \
         without a cause",
    );
    report.note(
        "jobs of one kind are all the same: the fastest is compared with the fastest, the slowest with the slowest",
    );
    report.note(format!(
        "starved: over {STARVES} times as long as under plain Linux; oscillating: over {OSCILLATES} \
         changes of claims a second while nothing comes or goes",
    ));
}
