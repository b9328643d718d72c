//! `corewise run`: run a program with the number of threads that suits it now.

use crate::building::{Building, Offered};
use crate::joining::{self, Joined, Joining};
use crate::options::SearchArgs;
use crate::output::{self, ProbeLines};
use anyhow::{Context as _, Result};
use clap::Args;
use corewise_decide::setting::Setting;
use corewise_launch::run::RunOptions;
use corewise_launch::runtimes::Surroundings;
use corewise_launch::template::TemplateError;
use corewise_launch::{Outcome, Status};
use corewise_local::advise::{Advice, AdviseError, Advisor, Source};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `corewise run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    search: SearchArgs,

    /// Write what happened as one JSON object
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,

    /// Write a page with the curve and the readings
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Search again, whatever past results say
    #[arg(long)]
    fresh: bool,

    /// Run it without a manager, as if nothing else were managed here
    #[arg(long)]
    alone: bool,

    /// Load nothing into the program: its number of threads stays what it is at the start
    #[arg(long)]
    no_adapters: bool,

    /// Let the program follow its claim also where it demands a number of threads itself, which can
    /// change what some programs compute
    #[arg(long)]
    override_clauses: bool,

    /// Offer the program, such as a script that builds, a jobserver of up to N jobs (one for each CPU), which
    /// follows its claim; make with -j, ninja and cargo get one unasked
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<Option<u32>>,

    /// Say nothing at the end
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    let mut request = args.search.request()?;
    let building = Building::of(&request.template, args.jobs);
    request.untuned = building.is_some() && !request.template.has_placeholder();
    let mut advisor = Advisor::prepare(request)?;
    let mut lines = ProbeLines::new();
    let mut fixed = None;
    let mut warnings = Vec::new();
    let advised = if args.fresh {
        advisor.tune_or_rule(&mut lines)
    } else {
        advisor.advise(&mut lines)
    };
    lines.finish();
    let advice = match advised {
        Ok(advice) => Some(advice),
        // A program that fails in a probe may still do what its user wants: it is theirs to see.
        Err(AdviseError::Probe(error)) => {
            eprintln!("corewise: not tuned: {error}");
            None
        }
        // An interpreter, of which only a probe could show that it loads no runtime.
        Err(AdviseError::Template(error @ TemplateError::NoKnob { .. })) => {
            warnings.push(format!("not tuned: {error}"));
            None
        }
        Err(AdviseError::FixedByUser { what, threads }) => {
            fixed = threads;
            warnings.push(format!(
                "not tuned: the number of threads is fixed by {what}"
            ));
            None
        }
        Err(AdviseError::Untuned) => None,
        Err(error) => return Err(error.into()),
    };
    let environment = Surroundings::of_this_process(Vec::new()).environment;
    let plan = crate::adapters::plan(advisor.detected(), &environment);
    // Within another's program, what that one has loaded follows already.
    let unmanaged = joining::unmanaged(args.alone);
    let follows =
        plan.preload.is_some() && building.is_none() && !(args.no_adapters || unmanaged.is_some());
    let (mut setting, command) = match &advice {
        Some(advice) => {
            let setting = advice.choice.setting;
            let start = match follows && plan.all_follow() {
                true => advisor.room_to_grow(setting),
                false => setting,
            };
            (setting, advisor.resolve(start)?.command)
        }
        None => {
            let threads = fixed.unwrap_or(advisor.one_per_cpu());
            (Setting::threads(threads), advisor.plain()?)
        }
    };
    let options = RunOptions {
        stdin: advisor.stdin(),
    };
    let command = joining::marked(command, args.alone);
    let (command, adapters) = match follows {
        true => crate::adapters::load(
            &plan,
            command,
            &environment,
            advice.as_ref().map(|_| setting.threads),
            args.override_clauses,
        ),
        false => (command, None),
    };
    let (command, mut offered) = match building {
        Some(building) => {
            let (cpus, why) = (advisor.one_per_cpu(), unmanaged.as_deref());
            let (command, offered) = building.offer(command, &environment, cpus, why);
            (command, Some(offered))
        }
        None => (command, None),
    };
    setting.threads = offered
        .as_ref()
        .and_then(Offered::most)
        .unwrap_or(setting.threads);
    let jobserver = offered.as_mut().and_then(|offered| offered.follower.take());
    let running = corewise_launch::run::start(&command, &options)?;
    // The program has them now.
    drop(offered.as_mut().and_then(|offered| offered.ends.take()));
    let joining = Joining::start(
        running.pid(),
        &command,
        setting.threads,
        args.alone,
        adapters.into_iter().chain(jobserver).collect(),
    );
    let outcome = running.wait()?;
    let joined = joining.finish(args.summary.is_some());
    if outcome.status.success() {
        advisor.ran(outcome.wall_ns as f64 / 1e9);
    }
    if !args.quiet {
        eprintln!(
            "{} {}",
            paragraph(
                setting,
                advice.as_ref(),
                offered.as_ref(),
                &advisor,
                &outcome
            ),
            joined.sentence()
        );
        output::warn(&warnings);
        output::warn(advisor.warnings());
    }
    if let Some(path) = &args.summary {
        let advice = advice.as_ref();
        let offered = offered.as_ref();
        write_summary(path, setting, advice, offered, &advisor, &outcome, &joined)?;
    }
    if let (Some(path), Some(advice)) = (&args.report, &advice) {
        match &advice.source {
            Source::Tuned(tuned) => crate::report::write(path, tuned, Some(&outcome))?,
            Source::Recalled(record) => crate::report::write_recalled(path, record, &outcome)?,
            Source::Rule(why) => eprintln!("corewise: no report: there were no probes: {why}"),
        }
    }
    outcome.exit_like_program()
}

/// What happened, in one paragraph.
fn paragraph(
    setting: Setting,
    advice: Option<&Advice>,
    offered: Option<&Offered>,
    advisor: &Advisor,
    outcome: &Outcome,
) -> String {
    let with = offered.map_or_else(|| setting.to_string(), Offered::with);
    let how = match advice.map(|a| (&a.source, &a.choice)) {
        Some((Source::Recalled(_), _)) => "recalled from an earlier search".to_owned(),
        Some((Source::Tuned(t), choice)) => format!(
            "found with {} in {:.1} s, {:.1} s of them the program's own start-ups: {}",
            probes(t.probes.len()),
            t.total_seconds,
            t.startup_seconds,
            choice.stop
        ),
        Some((Source::Rule(why), _)) => format!("by rule, without probes: {why}"),
        None => offered.map_or_else(|| "as plain Linux runs it".to_owned(), Offered::how),
    };
    let wall = outcome.wall_ns as f64 / 1e9;
    format!(
        "corewise: ran with {with} on {:.1} effective CPUs, others using {:.1} ({how}). \
         {wall:.2} s, {:.2} CPUs used on average.",
        advisor.effective().count,
        advisor.others(),
        (outcome.user_ns + outcome.system_ns) as f64 / 1e9 / wall.max(1e-9),
    )
}

fn probes(n: usize) -> String {
    match n {
        1 => "1 probe".to_owned(),
        n => format!("{n} probes"),
    }
}

fn write_summary(
    path: &Path,
    setting: Setting,
    advice: Option<&Advice>,
    offered: Option<&Offered>,
    advisor: &Advisor,
    outcome: &Outcome,
    joined: &Joined,
) -> Result<()> {
    let (source, tuned) = match advice.map(|a| &a.source) {
        Some(Source::Recalled(_)) => ("recalled", None),
        Some(Source::Tuned(tuned)) => ("tuned", Some(crate::tune::to_json(tuned, advisor)?)),
        Some(Source::Rule(_)) => ("rule", None),
        None => ("plain", None),
    };
    let summary = json!({
        "threads": setting.threads,
        "wait_policy": setting.wait,
        "source": source,
        "wall_seconds": outcome.wall_ns as f64 / 1e9,
        "user_seconds": outcome.user_ns as f64 / 1e9,
        "system_seconds": outcome.system_ns as f64 / 1e9,
        "exit_code": outcome.status.shell_code(),
        "signal": match outcome.status {
            Status::Exited(_) => None,
            Status::Signalled(signal) => Some(signal),
        },
        "max_rss_bytes": outcome.max_rss_bytes,
        "others": advisor.others(),
        "effective_cpus": advisor.effective().count,
        "tuned": tuned,
        "managed": joined.to_json(),
        "jobserver": offered.map(Offered::to_json),
        "warnings": advisor.warnings(),
    });
    std::fs::write(path, format!("{summary:#}\n"))
        .with_context(|| format!("the summary cannot be written to {}", path.display()))
}
