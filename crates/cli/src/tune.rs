//! `corewise tune`: search for a number of threads, and show how it was found.

use crate::options::SearchArgs;
use crate::output::{self, ProbeLines};
use crate::oversubscription::Found;
use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use corewise_local::advise::{Advisor, Source};
use corewise_local::request::Algorithm;
use corewise_local::tune::Tuned;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `corewise tune`.
#[derive(Args, Debug)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    search: SearchArgs,

    /// Instead of looking for a fast number: find out from the times of an OpenMP program with static schedules, with
    /// 1, 2, 3 ... threads, how many threads of others are busy
    #[arg(
        long,
        conflicts_with_all = ["algorithm", "objective", "min_threads", "max_threads", "report"]
    )]
    detect_oversubscription: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Write a page with the curve and the readings
    #[arg(long, value_name = "FILE.html")]
    report: Option<std::path::PathBuf>,
}

pub(crate) fn run(args: TuneArgs) -> Result<ExitCode> {
    let mut request = args.search.request()?;
    if args.detect_oversubscription {
        request.algorithm = Algorithm::Calibration;
    }
    let mut advisor = Advisor::prepare(request)?;
    let mut lines = ProbeLines::new();
    let advice = advisor.tune(&mut lines)?;
    lines.finish();
    let Source::Tuned(tuned) = &advice.source else {
        anyhow::bail!("tuning gave something other than a search's result");
    };
    let others = args
        .detect_oversubscription
        .then(|| Found::of(tuned, &advisor));
    if args.json {
        let mut object = to_json(tuned, &advisor)?;
        if let Some(others) = &others {
            object["oversubscription"] = others.to_json();
        }
        output::print(&format!("{object}\n"))?;
    } else if let Some(others) = &others {
        others.print()?;
    } else {
        print(tuned, &advisor)?;
    }
    if let Some(path) = &args.report {
        crate::report::write(path, tuned, None)?;
    }
    output::warn(advisor.warnings());
    Ok(ExitCode::SUCCESS)
}

/// The stable object: DESIGN's keys, and more.
pub(crate) fn to_json(tuned: &Tuned, advisor: &Advisor) -> Result<serde_json::Value> {
    let probes: Vec<_> = tuned
        .probes
        .iter()
        .map(|probe| {
            let mut object = json!({
                "threads": probe.setting.threads,
                "wait_policy": probe.setting.wait,
                "seconds": probe.seconds,
                "startup_seconds": probe.startup_seconds,
            });
            match &probe.outcome {
                Ok(p) => {
                    object["cpu_util"] = json!(p.cpu_util);
                    object["lock"] = json!(p.lock);
                    object["vcx_rate"] = json!(p.vcx_rate);
                    object["icx_rate"] = json!(p.icx_rate);
                    object["migration_rate"] = json!(p.migration_rate);
                    object["spin"] = json!(p.spin);
                    object["cpu_wait"] = json!(p.cpu_wait);
                    object["useful"] = json!(p.useful());
                    object["regions"] = json!(p.regions);
                    object["others"] = json!(p.others);
                    object["idle"] = json!(p.idle);
                    object["whole_run_seconds"] = json!(p.whole_run_ns.map(|ns| ns as f64 / 1e9));
                }
                Err(why) => object["nothing_seen"] = json!(why),
            }
            object
        })
        .collect();
    let command = advisor.resolve(tuned.choice.setting)?.command;
    let text = |s: &std::ffi::OsStr| s.to_string_lossy().into_owned();
    Ok(json!({
        "chosen": tuned.choice.setting.threads,
        "wait_policy": tuned.choice.setting.wait,
        "algorithm": tuned.algorithm,
        "stop_reason": tuned.choice.stop,
        "confidence": tuned.choice.confidence,
        "search_seconds": tuned.search_seconds(),
        "startup_seconds": tuned.startup_seconds,
        "effective_cpus": advisor.effective().count,
        "others": advisor.others(),
        "lock_method": tuned.lock_method,
        "spin_method": tuned.spin_method,
        "probes": probes,
        "command": {
            "program": command.program.to_string_lossy(),
            "args": command.args.iter().map(|a| text(a)).collect::<Vec<_>>(),
            "env": command.env.iter().map(|(n, v)| format!("{}={}", text(n), text(v))).collect::<Vec<_>>(),
        },
    }))
}

fn print(tuned: &Tuned, advisor: &Advisor) -> Result<()> {
    let choice = &tuned.choice;
    let command = advisor.resolve(choice.setting)?.command;
    output::print(&format!(
        "{}\n{} {}\nConfidence {:.0} %. Searching took {:.2} s, besides {:.2} s of the program's own \
         start-ups.\nBy hand: {}\n",
        table(tuned),
        output::bold(&format!("Chosen: {}.", choice.setting)),
        output::sentence(&choice.stop.to_string()),
        100.0 * choice.confidence,
        tuned.search_seconds(),
        tuned.startup_seconds,
        output::shell_line(&command)
    ))
}

pub(crate) fn table(tuned: &Tuned) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "threads",
        "waiting",
        "useful",
        "busy",
        "spin",
        "lock",
        "switches/s",
        "moves/s",
        "window",
        "start-up",
    ]);
    for probe in &tuned.probes {
        let s = probe.setting;
        let mut row = vec![s.threads.to_string(), s.wait.to_string()];
        match &probe.outcome {
            Ok(p) => row.extend([
                format!("{:.2}", p.useful()),
                format!("{:.2}", p.cpu_util),
                p.spin.map_or("?".to_owned(), |s| format!("{s:.2}")),
                format!("{:.0} %", 100.0 * p.lock),
                format!("{:.0}", p.vcx_rate),
                format!("{:.0}", p.migration_rate),
                match p.whole_run_ns {
                    Some(ns) => format!("{:.2} s, whole", ns as f64 / 1e9),
                    None => format!("{:.2} s", probe.seconds),
                },
            ]),
            Err(_) => {
                row.extend(["-"; 6].map(str::to_owned));
                row.push("never parallel".to_owned());
            }
        }
        row.push(format!("{:.2} s", probe.startup_seconds));
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
