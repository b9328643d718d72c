//! `sim-speed`: how long simulating takes, in CPU time: a pipeline of six stages and 63 threads on 24 CPUs, a
//! machine of 1,024 CPUs with 10,000 threads, and the cost of an event by the number of threads.

use std::path::Path;

use anyhow::Result;
use corewise_sim::report::Report as Simulated;
use corewise_sim::scenario::{Scenario, read};
use corewise_sim::world::{Options, simulate};
use rustix::time::{ClockId, clock_gettime};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::{median, slope};

/// Numbers of threads, in equal steps of their logarithm.
const THREADS: [u32; 5] = [100, 320, 1_000, 3_200, 10_000];

/// CPUs of the machine on which only the number of threads grows.
const FEW_CPUS: u32 = 16;

/// Runs the experiment. `--only pipeline`, `--only large` and `--only events` pick one part.
///
/// # Errors
/// If a scenario's file is missing or wrong.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-speed",
        "CPU time of one thread that simulates, the best of its rounds",
        "none: nothing else is started",
    );
    let parts = context.pick(&["pipeline", "large", "events"]);
    if parts.contains(&"pipeline") {
        pipeline(context, &mut report)?;
    }
    if parts.contains(&"large") {
        large(context, &mut report)?;
    }
    if parts.contains(&"events") {
        events(context, &mut report)?;
    }
    Ok(report)
}

/// CPU time of this thread so far, in seconds.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Simulates, and says how much CPU time it took: the least of some rounds, as whatever else runs on
/// the machine only ever makes it more.
fn timed(scenario: &Scenario, rounds: u32) -> Result<(f64, Simulated)> {
    let once = || -> Result<(f64, Simulated)> {
        let before = cpu_seconds();
        let outcome = simulate(scenario, Options::default())?;
        Ok((cpu_seconds() - before, outcome.report))
    };
    let (mut best, report) = once()?;
    for _ in 1..rounds {
        best = best.min(once()?.0);
    }
    Ok((best, report))
}

fn pipeline(context: &Context, report: &mut Report) -> Result<()> {
    let path = context.root.join("experiments/scenarios/pipeline.toml");
    let scenario = Scenario::load(&path)?;
    let (seconds, simulated) = timed(&scenario, context.rounds(3, 1))?;
    report.figure("pipeline_cpu_seconds", seconds);
    report.figure("pipeline_virtual_seconds", simulated.wall_seconds);
    report.figure(
        "pipeline_threads",
        f64::from(simulated.programs.iter().map(|p| p.threads).sum::<u32>()),
    );
    report.figure("pipeline_events", simulated.events as f64);
    report.bars.push(Bar::at_most(
        "24 CPUs, 63 threads of a pipeline, 42 virtual seconds: CPU time, s (at most)",
        seconds,
        2.0,
    ));
    Ok(())
}

fn large(context: &Context, report: &mut Report) -> Result<()> {
    let scenario = crowd(&context.root, 1_024, 10_000, 1_000)?;
    let (seconds, simulated) = timed(&scenario, 1)?;
    report.figure("large_cpu_seconds", seconds);
    report.figure("large_virtual_seconds", simulated.wall_seconds);
    report.figure(
        "large_threads",
        f64::from(simulated.programs.iter().map(|p| p.threads).sum::<u32>()),
    );
    report.figure("large_events", simulated.events as f64);
    report.figure("large_busy_cpus", simulated.machine.busy_cpus);
    report.bars.push(Bar::at_most(
        "1,024 CPUs, 10,000 threads, one virtual second: CPU time, s (at most)",
        seconds,
        60.0,
    ));
    Ok(())
}

/// Programs of every kind, `threads` altogether, in ten sessions, none of which ends within the time.
fn crowd(root: &Path, cpus: u32, threads: u32, limit_ms: u32) -> Result<Scenario> {
    // A tenth of them each: teams that block at barriers, that spin first, that take units, hold a lock,
    // sleep; a pipeline; one-thread programs.
    let tenth = threads / 10;
    let team = (tenth / 2).clamp(1, 50);
    let teams = tenth / team;
    let mut text = format!("machine = \"flat:{cpus}\"\npolicy = \"none\"\nlimit_ms = {limit_ms}\n");
    let regions = [
        (
            "blocking",
            "wait = \"block\"",
            "region = { work_ms = WORK }",
        ),
        (
            "spinning",
            "wait = { spin_us = 200 }",
            "region = { work_ms = WORK, imbalance = 0.2 }",
        ),
        (
            "units",
            "wait = \"block\"",
            "region = { work_ms = WORK, schedule = \"dynamic\", units = UNITS }",
        ),
        (
            "locking",
            "wait = \"block\"",
            "region = { work_ms = WORK, schedule = \"dynamic\", units = UNITS, \
             locks = [{ name = \"l\", hold_us = 5 }] }",
        ),
    ];
    for (name, wait, region) in regions {
        let region = region.replace("WORK", &(team * 2).to_string());
        let region = region.replace("UNITS", &(team * 4).to_string());
        // Twice as many as of the others.
        text += &format!(
            "[[program]]\nname = \"{name}\"\ncount = {}\nthreads = {team}\nsession = \"{name}\"\n\
             [program.spec]\nname = \"{name}\"\n{wait}\n\
             memory = {{ share = 0.3, bandwidth_bytes_per_s = 1e9, working_set_bytes = 1_000_000 }}\n\
             [[program.spec.phase]]\nrepeat = \"forever\"\n{region}\n",
            teams * 2,
        );
    }
    text += &format!(
        "[[program]]\nname = \"sleeping\"\ncount = {teams}\nthreads = 1\nsession = \"sleeping\"\n\
         [program.spec]\nname = \"sleeping\"\n[[program.spec.phase]]\n\
         [[program.spec.phase.group]]\nname = \"s\"\nthreads = {team}\nrepeat = \"forever\"\n\
         steps = [{{ work_us = 300 }}, {{ sleep_us = 2000 }}]\n\
         [[program]]\nname = \"one\"\ncount = {tenth}\nthreads = 1\nsession = \"one\"\n\
         [program.spec]\nname = \"one\"\n[[program.spec.phase]]\nrepeat = \"forever\"\n\
         serial = {{ work_ms = 1 }}\n"
    );
    let path = root.join("experiments/scenarios/sim-speed.toml");
    Ok(Scenario::from_toml(&text, &path, &read)?)
}

/// What an event costs by the number of threads.
fn events(context: &Context, report: &mut Report) -> Result<()> {
    let mut table = Table::new(
        "CPU time for each event, in ns",
        &["threads", "on 16 CPUs", "on one CPU for ten threads"],
    );
    let mut few = Vec::new();
    let mut many = Vec::new();
    for threads in THREADS {
        // Long enough for a hundred thousand events or more.
        let ms = |cpus: u32| (40_000 / cpus).max(50);
        let per_event = |cpus: u32| -> Result<f64> {
            let scenario = crowd(&context.root, cpus, threads, ms(cpus))?;
            // What it costs to begin is no event's.
            let started = crowd(&context.root, cpus, threads, 1)?;
            let mut costs = Vec::new();
            for _ in 0..context.rounds(5, 2) {
                let (begin, before) = timed(&started, 1)?;
                let (all, simulated) = timed(&scenario, 1)?;
                let events = simulated.events.saturating_sub(before.events).max(1);
                costs.push((all - begin) * 1e9 / events as f64);
            }
            Ok(median(&costs))
        };
        few.push(per_event(FEW_CPUS)?);
        many.push(per_event(threads / 10)?);
        let last = |of: &[f64]| number(of.last().copied().unwrap_or(f64::NAN));
        table.row([threads.to_string(), last(&few), last(&many)]);
        context.say(format_args!(
            "{threads} threads: {} and {} ns",
            last(&few),
            last(&many)
        ));
    }
    report.tables.push(table);
    for (name, said, costs) in [
        ("16_cpus", "on 16 CPUs", &few),
        ("tenth_as_many_cpus", "on one CPU for ten threads", &many),
    ] {
        for (threads, cost) in THREADS.iter().zip(costs) {
            report.figure(format!("ns_per_event_{threads}_threads_{name}"), *cost);
        }
        let exponent = exponent_of_logarithm(costs);
        report.figure(format!("exponent_of_logarithm_{name}"), exponent);
        if name == "16_cpus" {
            report.bars.push(Bar::at_most(
                format!("{said}: cost per event grows as this power of log(threads) (at most)"),
                exponent,
                1.0,
            ));
        }
    }
    report.note(
        "on one CPU for ten threads the simulated machine grows with the threads, and what is known of it no \
         longer fits into this machine's caches: that is in the cost, and no bar",
    );
    report.note(
        "an event is one that the kernel hands to programs or timers; switches, ticks and balancing that \
         happen between them are in its cost",
    );
    Ok(())
}

/// p of the best fit of cost ~ (log threads)^p, by least squares of the logarithms.
fn exponent_of_logarithm(costs: &[f64]) -> f64 {
    let points: Vec<(f64, f64)> = THREADS
        .iter()
        .zip(costs)
        .map(|(threads, cost)| (f64::from(*threads).ln().ln(), cost.ln()))
        .collect();
    slope(&points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_with_the_logarithm_has_power_one_and_what_grows_faster_more() {
        let costs = THREADS.map(|threads| 7.0 * f64::from(threads).ln());
        assert!((exponent_of_logarithm(&costs) - 1.0).abs() < 1e-9);
        let costs = THREADS.map(|threads| f64::from(threads).sqrt());
        assert!(exponent_of_logarithm(&costs) > 2.0);
        assert!(exponent_of_logarithm(&[5.0; 5]).abs() < 1e-9);
    }
}
