//! `corewise run`: run a program with the number of threads that suits it now.

use crate::account::Account;
use crate::adapters::{Loaded, Search, Wanted};
use crate::building::{Building, Offered};
use crate::joining::{self, Joining};
use crate::options::SearchArgs;
use crate::output::{self, ProbeLines};
use anyhow::Result;
use clap::Args;
use corewise_decide::gang::{MOST_WEIGHT, USUAL_WEIGHT};
use corewise_decide::live::{ASKED_FOR, UNASKED};
use corewise_decide::setting::Setting;
use corewise_launch::adapters::Plan;
use corewise_launch::run::RunOptions;
use corewise_launch::runtimes::Surroundings;
use corewise_launch::template::TemplateError;
use corewise_local::advise::later::WholeRun;
use corewise_local::advise::{AdviseError, Advisor, Source};
use corewise_local::live::Live;
use corewise_local::outside::{Coscheduling, Gang, MAX_GANG_NAME};
use std::path::PathBuf;
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

    /// Keep to the best number of threads known: try no other one in this run, however well past runs are known
    #[arg(long)]
    no_trials: bool,

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

    /// Search the number of threads of each parallel region while the program runs, instead of probing the
    /// program before
    #[arg(long, conflicts_with = "no_adapters")]
    live: bool,

    /// Give all parallel regions the number of threads that was found for the whole program: do not search it for
    /// each of them while the program runs
    #[arg(long, conflicts_with = "live")]
    no_live: bool,

    /// Count the time that threads are blocked in locks, by who called: in what is said at the end, and in the
    /// summary
    #[arg(long, conflicts_with = "no_adapters")]
    locks: bool,

    /// Look for no number of threads: run the program as it is, under management
    #[arg(long, conflicts_with_all = ["live", "fresh"])]
    as_is: bool,

    /// Offer the program, such as a script that builds, a jobserver of up to N jobs (one for each CPU), which
    /// follows its claim; make with -j, ninja and cargo get one unasked
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<Option<u32>>,

    /// Its threads need each other: they run at the same time, or not at all. Where CPUs are short it takes turns
    /// with other gangs; programs with the same NAME are one gang, and JOB/STAGE is a gang within the gang JOB
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, value_parser = gang_name,
          conflicts_with = "alone")]
    gang: Option<Option<String>>,

    /// CPUs that the gang does not use in its turns stay idle, so that nothing interferes
    #[arg(long, requires = "gang")]
    gang_keeps_idle: bool,

    /// The gang's share of the time against other gangs, 1 to 10000
    #[arg(long, value_name = "N", requires = "gang", default_value_t = USUAL_WEIGHT,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_WEIGHT)))]
    gang_weight: u32,

    /// It is no gang, also if its threads are seen to wait for each other in loops
    #[arg(long, conflicts_with = "gang")]
    no_gang: bool,

    /// Say nothing at the end
    #[arg(short, long)]
    quiet: bool,
}

/// A gang's name, as long as a message has room for.
fn gang_name(text: &str) -> Result<String, String> {
    if text.contains('/') && text.split('/').any(str::is_empty) {
        return Err(
            "between slashes there are names: job/stage is a gang within the gang job".to_owned(),
        );
    }
    match text.len() {
        1..=MAX_GANG_NAME => Ok(text.to_owned()),
        n => Err(format!(
            "a name has 1 to {MAX_GANG_NAME} bytes, this one has {n}"
        )),
    }
}

fn coscheduling(args: &RunArgs) -> Coscheduling {
    match &args.gang {
        Some(name) => Coscheduling::Asked(Gang {
            name: name.clone().unwrap_or_default(),
            keeps_idle: args.gang_keeps_idle,
            weight: args.gang_weight,
        }),
        None if args.no_gang => Coscheduling::Never,
        None => Coscheduling::IfFound,
    }
}

pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    let gang = coscheduling(&args);
    let mut request = args.search.request()?;
    let building = Building::of(&request.template, args.jobs);
    request.untuned =
        args.live || args.as_is || building.is_some() && !request.template.has_placeholder();
    let mut advisor = Advisor::prepare(request)?;
    let mut lines = ProbeLines::new();
    let mut fixed = None;
    let mut warnings = Vec::new();
    let environment = Surroundings::of_this_process(Vec::new()).environment;
    // Within another's program, what that one has loaded follows already.
    let unmanaged = joining::unmanaged(args.alone);
    let led = unmanaged.is_none() || (args.live || args.locks) && !joining::is_within_another();
    let follows =
        |plan: &Plan| plan.preload.is_some() && building.is_none() && led && !args.no_adapters;
    let advised = if args.fresh && !args.live {
        advisor.tune_or_rule(&mut lines)
    } else {
        advisor.advise(&mut lines, &|detected| {
            let plan = crate::adapters::plan(detected, &environment, args.locks);
            unmanaged.is_none() && follows(&plan) && plan.all_follow()
        })
    };
    lines.finish();
    let advice = match advised {
        Ok(advice) => Some(advice),
        // A program that fails in a probe may still do what its user wants: it is theirs to see.
        Err(AdviseError::Probe(error)) => {
            output::say(&format!("corewise: not tuned: {error}"));
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
    let plan = crate::adapters::plan(advisor.detected(), &environment, args.locks);
    let follows = follows(&plan);
    if args.live && !follows {
        warnings.push(format!("its regions are not searched: {}", plan.why));
    }
    if args.locks && !follows {
        let why = if building.is_some() {
            "it is a build"
        } else {
            &plan.why
        };
        warnings.push(format!("its locks are not counted: {why}"));
    }
    // Unasked only where a number was found for the program, and runs of its regions can be told apart.
    let unasked = !args.no_live && advice.is_some() && follows && plan.times_regions();
    // Whole runs teach nothing where the number changes within them; a gang's take as long as its turns let them.
    let is_ordinary =
        !args.live && !unasked && building.is_none() && !matches!(gang, Coscheduling::Asked(_));
    let advice = advice.map(|advice| match is_ordinary {
        true => {
            let may_try = !args.no_trials && !args.fresh && !joining::is_within_another();
            let advice = advisor.go_by_whole_runs(advice, may_try, &mut lines);
            lines.finish();
            advice
        }
        false => advice,
    });
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
    let live = (args.live || unasked).then(|| Search {
        known: match args.fresh {
            true => Vec::new(),
            false => advisor.known_regions(),
        },
        budget: match args.live {
            true => ASKED_FOR,
            false => UNASKED,
        },
    });
    let options = RunOptions {
        stdin: advisor.stdin(),
    };
    let command = joining::marked(command, args.alone);
    let loaded = match follows {
        true => {
            let wanted = Wanted {
                alone: advice.as_ref().map(|_| setting.threads),
                override_clauses: args.override_clauses,
                live,
                locks: args.locks,
            };
            crate::adapters::load(&plan, command, &environment, wanted)
        }
        false => Loaded {
            command,
            follower: None,
            live: None,
        },
    };
    let command = loaded.command;
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
    let meanwhile = advisor.meanwhile();
    let running = corewise_launch::run::start(&command, &options)?;
    // The program has them now.
    drop(offered.as_mut().and_then(|offered| offered.ends.take()));
    let joining = Joining::start(
        running.pid(),
        &command,
        setting.threads,
        args.alone,
        plan.staying(loaded.follower.is_some()),
        gang,
        loaded.follower.into_iter().chain(jobserver).collect(),
    );
    let outcome = running.wait()?;
    let cpu_ns = outcome.user_ns + outcome.system_ns;
    let others = meanwhile.and_then(|meanwhile| meanwhile.end(cpu_ns));
    let regions = loaded.live.map(Live::finish);
    let joined = joining.finish(args.summary.is_some());
    let wall_seconds = outcome.wall_ns as f64 / 1e9;
    let usable = advisor.effective().cpus.len();
    let whole = WholeRun {
        wall_seconds,
        cpu_seconds: cpu_ns as f64 / 1e9,
        others,
        had_all: joined.had_all(usable.min(setting.threads as usize)),
        succeeded: outcome.status.success(),
    };
    advisor.ran(advice.as_ref(), &whole);
    if whole.succeeded
        && let Some(regions) = regions.as_ref().filter(|tuned| !tuned.found.is_empty())
    {
        advisor.found_regions(regions, wall_seconds);
    }
    let account = Account {
        setting,
        advice: advice.as_ref(),
        offered: offered.as_ref(),
        regions: regions.as_ref(),
        advisor: &advisor,
        whole: &whole,
        outcome: &outcome,
    };
    if !args.quiet {
        output::say(&format!("{} {}", account.paragraph(), joined.sentence()));
        output::warn(&warnings);
        output::warn(advisor.warnings());
    }
    if let Some(path) = &args.summary {
        account.write_summary(path, &joined)?;
    }
    if let (Some(path), Some(advice)) = (&args.report, &advice) {
        match &advice.source {
            Source::Tuned(tuned) => crate::report::write(path, tuned, Some(&outcome))?,
            Source::Recalled(record) => crate::report::write_recalled(path, record, &outcome)?,
            Source::Rule(why) => {
                output::say(&format!("corewise: no report: there were no probes: {why}"));
            }
        }
    }
    outcome.exit_like_program()
}
