//! `sim-scaling`: Thread Reinforcer's Table III, and the shape of its Table IV.

use anyhow::Result;
use corewise_sim::machine::SimMachine;

use super::catalogue::{Catalogue, Paper};
use super::ferret;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::median;

/// Programs of Table III; the others are Table X's.
const OF_TABLE_III: usize = 8;

/// Speed-ups by the number that a program is given.
pub struct Curve {
    /// The number, and the speed-up.
    pub points: Vec<(u32, f64)>,
}

impl Curve {
    /// Speed-ups of a program with these numbers: medians over seeds.
    ///
    /// # Errors
    /// If a run does not end.
    pub fn of(paper: &Paper, machine: &SimMachine, numbers: &[u32], seeds: u64) -> Result<Curve> {
        let seconds = |n| -> Result<f64> {
            let runs = (0..seeds).map(|seed| paper.seconds(machine, n, seed));
            Ok(median(&runs.collect::<Result<Vec<_>>>()?))
        };
        let one = seconds(1)?;
        let point = |n: &u32| Ok((*n, one / seconds(*n)?));
        let points = numbers.iter().map(point).collect::<Result<_>>()?;
        Ok(Curve { points })
    }

    /// The speed-up with that number.
    pub fn at(&self, n: u32) -> f64 {
        let found = self.points.iter().find(|point| point.0 == n);
        found.map_or(f64::NAN, |point| point.1)
    }

    /// The smallest number that has the best speed-up in the digits that the paper prints, and the best.
    pub fn best(&self) -> (u32, f64) {
        let printed = |speed_up: f64| (speed_up * 10.0).round();
        let best = self.points.iter().map(|p| p.1).fold(0.0, f64::max);
        let first = self.points.iter().find(|p| printed(p.1) == printed(best));
        first.map_or((0, f64::NAN), |point| (point.0, best))
    }
}

/// Runs the experiment.
///
/// # Errors
/// If a file is missing or wrong, or a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-scaling",
        "simulated: sixteen programs with 1 to 128 threads on 24 cores, against Thread Reinforcer's tables",
        "one program at a time",
    );
    let catalogue = Catalogue::read(&context.root)?;
    let names: Vec<&str> = catalogue.programs.iter().map(|p| &*p.name).collect();
    let picked = context.pick(&names);
    let mut table = Table::new(
        "speed-ups over one thread; threads as the paper counts them",
        &[
            "program",
            "best",
            "paper",
            "threads",
            "paper",
            "with the paper's threads",
        ],
    );
    let mut curves = Table::new(
        "speed-ups by the number that a program is given",
        &["program", "speed-ups"],
    );
    let seeds = u64::from(context.rounds(3, 1));
    let programs = catalogue.programs.iter().enumerate();
    for (index, paper) in programs.filter(|(_, p)| picked.contains(&&*p.name)) {
        let theirs = paper.convert.argument_for(paper.best.threads);
        let numbers = paper.numbers(if context.quick { 4 } else { 1 }, &[theirs]);
        let curve = Curve::of(paper, &catalogue.machine, &numbers, seeds)?;
        let (n, best) = curve.best();
        let threads = paper.convert.total_for(n);
        table.row([
            paper.name.clone(),
            format!("{best:.2}"),
            number(paper.best.speed_up),
            threads.to_string(),
            paper.best.threads.to_string(),
            format!("{:.2}", curve.at(theirs)),
        ]);
        let few = curve.points.iter().filter(|(n, _)| n % 4 == 0 || *n == 1);
        let few: Vec<String> = few
            .map(|(n, speed_up)| format!("{n}:{speed_up:.2}"))
            .collect();
        curves.row([paper.name.clone(), few.join(" ")]);
        judge(&mut report, paper, &curve, index < OF_TABLE_III);
        context.say(format_args!("{} done", paper.name));
    }
    report.tables.push(table);
    report.tables.push(curves);
    if let Some(paper) = catalogue.programs.iter().find(|p| p.name == "ferret")
        && picked.contains(&"ferret")
    {
        ferret::add(&mut report, paper, &catalogue.machine)?;
    }
    report.note("the threads with the best speed-up are the fewest that reach it to one decimal, as the paper prints it");
    report
        .note("what was fitted to what is in each model: experiments/thread-reinforcer/NAME.toml");
    report.note("the machine has OpenSolaris' dispatcher, as the paper's had, with one quantum for all priorities (assumed)");
    Ok(report)
}

fn judge(report: &mut Report, paper: &Paper, curve: &Curve, is_held: bool) {
    let (n, best) = curve.best();
    let name = &paper.name;
    let threads = f64::from(paper.convert.total_for(n));
    let off = 100.0 * (best / paper.best.speed_up - 1.0);
    let more = threads - f64::from(paper.best.threads);
    report.figure(format!("{name}_best_speed_up"), best);
    report.figure(format!("{name}_best_threads"), threads);
    report.figure(
        format!("{name}_speed_up_with_the_papers_threads"),
        curve.at(paper.convert.argument_for(paper.best.threads)),
    );
    if is_held {
        let name = |what: &str| format!("{name}: best speed-up, {what}");
        let percent = "% off Table III (at most)";
        report
            .bars
            .push(Bar::at_most(name(percent), off.abs(), 10.0));
        let threads = "threads off Table III (at most)";
        report
            .bars
            .push(Bar::at_most(name(threads), more.abs(), 3.0));
    }
}
