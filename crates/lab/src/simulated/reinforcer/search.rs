//! `sim-reinforcer`: what Thread Reinforcer finds for its programs, with thresholds that are chosen by three of
//! them as its paper does, against Tables VII to XII; and what the default search finds, with how many probes.

use anyhow::Result;
use corewise_decide::profile::Profile;
use corewise_decide::search::bounds::BoundSearch;
use corewise_decide::search::host::{Limits, ProbeRecord, host};
use corewise_decide::search::reinforcer::{ThreadReinforcer, Thresholds, range_for_cpus};
use corewise_decide::search::{Choice, Search, Space, StopReason};
use corewise_decide::setting::Convert;

use super::catalogue::{Catalogue, Paper};
use super::later::Later;
use super::remembering::Remembering;
use super::scaling::Curve;
use super::thresholds;
use crate::experiment::{Bar, Context, Report, Table, number};

/// What came of a search.
pub(super) struct Found {
    /// The number that the program is given.
    pub(super) n: u32,
    stop: StopReason,
    pub(super) probes: usize,
    /// Start-ups and windows, in virtual seconds.
    pub(super) seconds: f64,
    /// What the probe with the number showed.
    pub(super) profile: Option<Profile>,
}

/// Runs the experiment.
///
/// # Errors
/// If a file is missing or wrong, or a program cannot go on.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-reinforcer",
        "simulated: what Thread Reinforcer and the default search find on 24 cores, against its Tables VII to XII",
        "one program at a time",
    );
    let catalogue = Catalogue::read(&context.root)?;
    let cpus = f64::from(catalogue.machine.cpus());
    let mut probers: Vec<(&Paper, Remembering)> = catalogue
        .programs
        .iter()
        .map(|paper| (paper, Remembering::new(paper, &catalogue.machine, 0)))
        .collect();
    let chosen = choose(context, &mut probers, cpus)?;
    say(&mut report, &chosen);

    let mut table = Table::new(
        "what is found, and in brackets what the paper's tables say",
        &[
            "program",
            "Thread Reinforcer",
            "stopped for",
            "of the best",
            "probes",
            "search, s",
            "of the run, %",
            "default search",
            "of the best",
            "probes",
        ],
    );
    let mut score = Score::default();
    let mut later = Later::new();
    for (paper, prober) in &mut probers {
        let reinforcer = found(&mut reinforcer(paper, cpus, chosen.thresholds), prober)?;
        let bounds = found(&mut BoundSearch::new(Space::for_cpus(cpus)), prober)?;
        let runs = later.run(paper, &catalogue.machine, prober, &bounds)?;
        let mut besides = runs.numbers();
        besides.extend([reinforcer.n, bounds.n]);
        let numbers = paper.numbers(if context.quick { 4 } else { 1 }, &besides);
        let curve = Curve::of(paper, &catalogue.machine, &numbers, 1)?;
        table.row(row(paper, &reinforcer, &bounds, &curve));
        score.add(&mut report, paper, &reinforcer, &bounds, &curve);
        later.add(&mut report, paper, bounds.n, &runs, &curve);
        context.say(format_args!("{} done", paper.name));
    }
    report.tables.push(table);
    score.judge(&mut report);
    later.judge(&mut report);
    notes(&mut report);
    Ok(report)
}

fn notes(report: &mut Report) {
    report.note("the best is that of the model with any number of threads (sim-scaling), not of the paper's machine");
    report.note(
        "the paper does not say how long its programs took to start: the time to search is that of the models, which start \
         at once but for swaptions and pbzip2; `of the run` is this time over the paper's run time",
    );
    report.note("a probe of the reinforcer's is 100 ms, one of the default search's 167 ms; nothing runs beside them");
}

/// Thread Reinforcer over the paper's range. Its tables count threads so that 8, 16, ... are the numbers that the
/// programs are given, but for ferret, whose 64 threads are n = 15.
fn reinforcer(paper: &Paper, cpus: f64, thresholds: Thresholds) -> ThreadReinforcer {
    let (min, step, max) = range_for_cpus(cpus);
    let convert = match paper.convert.per_argument {
        1 => Convert::default(),
        _ => paper.convert,
    };
    let space = Space {
        min,
        max,
        convert,
        ..Space::for_cpus(cpus)
    };
    ThreadReinforcer::new(space, step, thresholds)
}

fn found(search: &mut dyn Search, prober: &mut Remembering) -> Result<Found> {
    let (choice, probes): (Choice, Vec<ProbeRecord>) =
        host(search, prober, Limits::default(), &mut ())?;
    let seconds = probes.iter().map(|p| p.startup_seconds + p.seconds).sum();
    let count = probes.len();
    let profiles = probes.into_iter().filter_map(|probe| probe.outcome.ok());
    let chosen = |profile: &Profile| profile.setting == choice.setting;
    Ok(Found {
        n: choice.setting.threads,
        stop: choice.stop,
        probes: count,
        seconds,
        profile: profiles.into_iter().find(chosen),
    })
}

/// Thresholds, and how well they do.
struct Chosen {
    thresholds: Thresholds,
    /// Of the numbers and reasons of the programs that they are chosen by, how many they lead to.
    right: u32,
    of: u32,
    /// How many combinations lead to as many.
    fitting: usize,
}

/// Chooses the thresholds by the programs that the paper chose them by.
fn choose(context: &Context, probers: &mut [(&Paper, Remembering)], cpus: f64) -> Result<Chosen> {
    let mut by: Vec<_> = probers.iter_mut().filter(|p| p.0.chosen_on).collect();
    let (mut most, mut fitting) = (0, Vec::new());
    for thresholds in thresholds::all() {
        let mut right = 0;
        for (paper, prober) in &mut by {
            let came = found(&mut reinforcer(paper, cpus, thresholds), prober)?;
            right += u32::from(paper.convert.total_for(came.n) == paper.found.threads);
            right += u32::from(came.stop == paper.found.stop);
        }
        if right > most {
            most = right;
            fitting.clear();
        }
        if right == most {
            fitting.push(thresholds);
        }
    }
    context.say(format_args!(
        "{} combinations of thresholds do equally well",
        fitting.len()
    ));
    Ok(Chosen {
        thresholds: thresholds::middle(&fitting).unwrap_or_default(),
        right: most,
        of: 2 * by.len() as u32,
        fitting: fitting.len(),
    })
}

fn say(report: &mut Report, chosen: &Chosen) {
    let t = chosen.thresholds;
    for (name, value) in [
        ("lock", t.lock),
        ("lock_change", t.lock_change),
        ("vcx_rate_per_cpu", t.vcx_rate),
        ("vcx_change_per_cpu", t.vcx_change),
        ("migration_change_per_cpu", t.migration_change),
        ("cpu_util_change", t.cpu_util_change),
    ] {
        report.figure(format!("threshold_{name}"), value);
    }
    report.figure("thresholds_that_fit_as_well", chosen.fitting as f64);
    report.note(format!(
        "thresholds chosen on facesim, fluidanimate and blackscholes: {} of their {} numbers and reasons come out",
        chosen.right, chosen.of,
    ));
}

fn word(stop: StopReason) -> String {
    match stop {
        StopReason::CpuUtil => "CPU_UTIL".to_owned(),
        StopReason::Lock => "LOCK".to_owned(),
        StopReason::VcxRate => "VCX_RATE".to_owned(),
        StopReason::MigrRate => "MIGR_RATE".to_owned(),
        other => format!("{other:?}"),
    }
}

fn row(paper: &Paper, reinforcer: &Found, bounds: &Found, curve: &Curve) -> Vec<String> {
    let best = curve.best().1;
    let total = |n| paper.convert.total_for(n);
    vec![
        paper.name.clone(),
        format!("{} ({})", total(reinforcer.n), paper.found.threads),
        format!("{} ({})", word(reinforcer.stop), word(paper.found.stop)),
        format!(
            "{:.2} ({:.2})",
            curve.at(reinforcer.n) / best,
            paper.found.speed_up / paper.best.speed_up
        ),
        reinforcer.probes.to_string(),
        format!("{:.2} ({})", reinforcer.seconds, number(paper.found.search)),
        format!(
            "{:.1} ({:.1})",
            100.0 * reinforcer.seconds / paper.found.run,
            100.0 * paper.found.search / paper.found.run
        ),
        total(bounds.n).to_string(),
        format!("{:.3}", curve.at(bounds.n) / best),
        bounds.probes.to_string(),
    ]
}

/// What the bars are about.
#[derive(Default)]
struct Score {
    /// Of the first eight programs (Tables VII and VIII).
    numbers: u32,
    reasons: u32,
    /// Of the other eight (Tables X and XI).
    other_numbers: u32,
    other_reasons: u32,
    programs: u32,
    worst: f64,
    more_probes: f64,
    parts: Vec<(f64, f64)>,
}

impl Score {
    fn add(
        &mut self,
        report: &mut Report,
        paper: &Paper,
        reinforcer: &Found,
        bounds: &Found,
        curve: &Curve,
    ) {
        let best = curve.best().1;
        let (theirs, ours) = (curve.at(reinforcer.n) / best, curve.at(bounds.n) / best);
        let same_number = u32::from(paper.convert.total_for(reinforcer.n) == paper.found.threads);
        let same_reason = u32::from(reinforcer.stop == paper.found.stop);
        match self.programs < 8 {
            true => {
                self.numbers += same_number;
                self.reasons += same_reason;
            }
            false => {
                self.other_numbers += same_number;
                self.other_reasons += same_reason;
            }
        }
        self.programs += 1;
        self.worst = if self.parts.is_empty() {
            ours
        } else {
            self.worst.min(ours)
        };
        self.parts.push((theirs, ours));
        let more = bounds.probes as f64 - reinforcer.probes as f64;
        self.more_probes = self.more_probes.max(more);
        let name = &paper.name;
        let total = |n| f64::from(paper.convert.total_for(n));
        report.figure(format!("{name}_reinforcer_threads"), total(reinforcer.n));
        report.figure(format!("{name}_reinforcer_of_best"), theirs);
        report.figure(
            format!("{name}_reinforcer_probes"),
            reinforcer.probes as f64,
        );
        report.figure(
            format!("{name}_reinforcer_search_seconds"),
            reinforcer.seconds,
        );
        report.figure(format!("{name}_bounds_threads"), total(bounds.n));
        report.figure(format!("{name}_bounds_of_best"), ours);
        report.figure(format!("{name}_bounds_probes"), bounds.probes as f64);
    }

    fn judge(&self, report: &mut Report) {
        let bar = |name: &str, value: u32| Bar::at_least(name, f64::from(value), 8.0);
        report.bars.push(bar(
            "Table VII: numbers that come out, of 8 (at least)",
            self.numbers,
        ));
        report.bars.push(bar(
            "Table VIII: reasons that come out, of 8 (at least)",
            self.reasons,
        ));
        report.figure("table_x_numbers_of_8", f64::from(self.other_numbers));
        report.figure("table_xi_reasons_of_8", f64::from(self.other_reasons));
        let count = self.parts.len().max(1) as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| self.parts.iter().map(of).sum::<f64>() / count;
        report.figure("reinforcer_of_best_mean", mean(|p| p.0));
        report.figure("bounds_of_best_mean", mean(|p| p.1));
        report.bars.push(Bar::at_least(
            "default search: speed-up over the best, the worst of 16 programs (at least)",
            self.worst,
            0.97,
        ));
        report.bars.push(Bar::at_most(
            "default search: probes more than Thread Reinforcer's, at most over 16 programs (at most)",
            self.more_probes,
            0.0,
        ));
    }
}
