//! `corewise adapters`: what would be loaded into a program, and why; and the loading itself, for `run`.

use crate::output;
use anyhow::Result;
use clap::Args;
use corewise_launch::adapters::{Plan, find_shim};
use corewise_launch::command::Command;
use corewise_launch::jobserver::Client;
use corewise_launch::runtimes::{Detected, Environment, Surroundings, detect_in};
use corewise_local::live::{FoundRegion, Live};
use corewise_local::outside::{Adapters, Follower};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;

/// Arguments of `corewise adapters`.
#[derive(Args, Debug)]
pub(crate) struct AdaptersArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// The program
    #[arg(value_name = "PROGRAM")]
    program: OsString,
}

pub(crate) fn run(args: AdaptersArgs) -> Result<ExitCode> {
    let environment = Surroundings::of_this_process(Vec::new()).environment;
    let program = Command::new(&args.program)?.program;
    let detected = detect_in(&program, &environment);
    let locks = Locks::of(&plan(&detected, &environment, true));
    let plan = plan(&detected, &environment, false);
    let build = Client::of(&program, &environment);
    let locks = match build {
        Some(_) => Locks(Err("not counted in builds")),
        None => locks,
    };
    let plan = match build {
        Some(_) => Plan {
            preload: None,
            why: "it is a build, of many short programs".to_owned(),
            ..plan
        },
        None => plan,
    };
    if args.json {
        let runtimes = plan.runtimes.iter().map(|follows| {
            json!({
                "runtime": follows.runtime,
                "follows": follows.threads,
                "how": follows.how,
            })
        });
        let told = json!({
            "program": program,
            "preload": plan.preload,
            "why": plan.why,
            "runtimes": runtimes.collect::<Vec<_>>(),
            "jobserver": build.map(Client::how),
            "locks": locks.to_json(),
        });
        output::print(&format!("{told}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = match &plan.preload {
        Some(shim) => format!("{} is loaded: {}.\n", shim.display(), plan.why),
        None => format!("Nothing is loaded: {}.\n", plan.why),
    };
    for follows in &plan.runtimes {
        text += &format!("  {}: {}\n", follows.runtime.row().name, follows.how);
    }
    if let Some(build) = build {
        text += &format!("  {}: {}\n", build.name(), build.how());
    }
    text += &format!("  {LOCKS}: {}\n", locks.how());
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The adapter of locks, for people.
const LOCKS: &str = "threads and locks (pthreads)";

/// Whether a program's locks can be counted, or why not.
struct Locks(Result<(), &'static str>);

impl Locks {
    fn of(plan: &Plan) -> Locks {
        Locks(match plan.preload {
            Some(_) => Ok(()),
            None => Err("cannot be counted: nothing can be loaded into it"),
        })
    }

    fn how(&self) -> &'static str {
        match self.0 {
            Ok(()) => {
                "counted with `corewise run --locks`, where they are the C library's; futexes of its own are not"
            }
            Err(why) => why,
        }
    }

    fn to_json(&self) -> serde_json::Value {
        json!({"adapter": self.0.is_ok().then_some("pthreads"), "how": self.how()})
    }
}

/// What would be loaded into a program of which `detected` is known; with `locks`, also to count those.
pub(crate) fn plan(detected: &Detected, environment: &Environment, locks: bool) -> Plan {
    let shim = match std::env::current_exe() {
        Ok(command) => find_shim(environment, &command),
        Err(error) => Err(format!("the command's own place is not known: {error}")),
    };
    match locks {
        true => Plan::counting_locks(detected, shim),
        false => Plan::new(detected, shim),
    }
}

/// Adapters that are about to be loaded.
pub(crate) struct Loaded {
    /// What loads them.
    pub(crate) command: Command,
    /// What hands them the claim; `None` if nothing could be loaded.
    pub(crate) follower: Option<Box<dyn Follower>>,
    /// The search of regions, if that was wanted.
    pub(crate) live: Option<Live>,
}

/// What is wanted of adapters.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// The number of threads where no manager says anything; `None`: the program's own affair.
    pub(crate) alone: Option<u32>,
    /// Also where the program demands its number.
    pub(crate) override_clauses: bool,
    /// Search the number of each region while the program runs.
    pub(crate) live: Option<Search>,
    /// Count the time that threads are blocked in locks.
    pub(crate) locks: bool,
}

/// How regions are searched.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// What is known of them.
    pub(crate) known: Vec<FoundRegion>,
    /// The part of the time that slower numbers may lose.
    pub(crate) budget: f64,
}

/// Makes the pages for adapters and has them loaded by a command that is about to run. Where that fails,
/// the program runs without.
pub(crate) fn load(
    plan: &Plan,
    command: Command,
    environment: &Environment,
    wanted: Wanted,
) -> Loaded {
    let made = Adapters::create(wanted.alone).and_then(|a| Ok((a.variable()?, a)));
    match made {
        Ok(((name, value), mut adapters)) => {
            if wanted.locks {
                adapters.count_locks();
            }
            let link = (name, value.as_str());
            let live = wanted.live.as_ref();
            let live = live.map(|search| adapters.tune(&search.known, search.budget));
            if let Some(Err(error)) = &live {
                output::warn(&[format!("regions are not searched: {error}")]);
            }
            Loaded {
                command: plan.load(command, environment, link, wanted.override_clauses),
                follower: Some(Box::new(adapters)),
                live: live.and_then(Result::ok),
            }
        }
        Err(error) => {
            output::warn(&[format!("nothing is loaded into the program: {error}")]);
            Loaded {
                command,
                follower: None,
                live: None,
            }
        }
    }
}
