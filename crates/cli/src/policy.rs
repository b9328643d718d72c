//! `corewise policy`: trying a policy that is a script.

use anyhow::Result;
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use corewise_decide::policy::script::{
    MAX_OPERATIONS, Rehearsal, Report, ScriptError, ScriptPolicy, played, rehearse,
};
use corewise_decide::policy::{Policy, configuration};
use corewise_decide::status::Request;
use corewise_decide::world::{Entry, Input, Output};
use corewise_manager::Header;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is played to a script where no other history is named.
const RECORDED: &str = include_str!("../../../experiments/policies/recorded.jsonl");

/// Longest journal that is read, in bytes.
const MOST_RECORDED: u64 = 256 << 20;

/// Try a policy that is a script.
#[derive(Args, Debug)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    action: PolicyAction,
}

#[derive(Subcommand, Debug)]
enum PolicyAction {
    /// Show whether a script is right, or a file that names several policies, and what would have been
    /// ordered in a recorded history
    Check {
        /// The script, or the file (.toml)
        file: PathBuf,
        /// Lines of a manager's journal [default: a history that comes with corewise]
        #[arg(long, value_name = "FILE.jsonl")]
        readings: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Runs `corewise policy`.
pub(crate) fn run(args: PolicyArgs) -> Result<ExitCode> {
    let PolicyAction::Check {
        file,
        readings,
        json,
    } = args.action;
    // What was named on the command line and is not there is bad usage; what is wrong in the script is
    // the answer that was asked for.
    let (text, history) = match (script(&file), history(readings.as_deref())) {
        (Ok(text), Ok(history)) => (text, history),
        (Err(why), _) | (_, Err(why)) => {
            eprintln!("corewise: {why}");
            return Ok(ExitCode::from(2));
        }
    };
    let shown = file.display().to_string();
    if shown.ends_with(configuration::ENDING) {
        return several(&file, &text, history, json);
    }
    let checked = ScriptPolicy::new(&text, &shown);
    let name = checked.as_ref().ok().map(Policy::name);
    let rehearsal = match checked {
        Ok(policy) => rehearse(policy, history),
        Err(error) => Rehearsal {
            entries: Vec::new(),
            report: Report {
                most_operations: 0,
                failures: vec![error],
            },
        },
    };
    let right = rehearsal.report.failures.is_empty();
    let text = if json {
        json_text(name.as_deref(), &rehearsal)
    } else {
        people_text(name.as_deref(), &rehearsal)
    };
    crate::output::print(&text)?;
    Ok(ExitCode::from(u8::from(!right)))
}

/// Several policies in one file: what is wrong in it, or what they would have ordered together. What fails in
/// a script while it runs stands among the notes.
fn several(file: &Path, text: &str, history: Vec<Entry>, json: bool) -> Result<ExitCode> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let name = file
        .file_name()
        .unwrap_or(file.as_os_str())
        .to_string_lossy();
    let read = |script: &Path| std::fs::read_to_string(folder.join(script));
    let made = configuration::read(text, &name, 0, &read).and_then(|source| source.make());
    let (entries, wrong) = match made {
        Ok(policy) => (played(policy, history), None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let right = wrong.is_none();
    let shown = match (json, wrong) {
        (true, wrong) => {
            let errors: Vec<_> = wrong.iter().map(|why| json!({ "message": why })).collect();
            let value =
                json!({ "policy": name, "right": right, "errors": errors, "entries": entries });
            format!("{value:#}\n")
        }
        (false, Some(why)) => format!("{why}\n"),
        (false, None) => {
            let inputs = entries.len();
            format!("{}\n{name}: {inputs} inputs, no errors.\n", table(&entries))
        }
    };
    crate::output::print(&shown)?;
    Ok(ExitCode::from(u8::from(!right)))
}

fn script(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file)
        .map_err(|e| format!("cannot read the script {}: {e}", file.display()))
}

fn history(file: Option<&Path>) -> Result<Vec<Entry>, String> {
    let (text, name) = match file {
        None => (RECORDED.to_owned(), "the recorded history".to_owned()),
        Some(file) => {
            let name = file.display().to_string();
            let read = || {
                let size = std::fs::metadata(file)?.len();
                if size > MOST_RECORDED {
                    return Err(std::io::Error::other("it is longer than 256 MiB"));
                }
                std::fs::read_to_string(file)
            };
            let text = read().map_err(|e| format!("cannot read the journal {name}: {e}"))?;
            (text, name)
        }
    };
    let mut entries = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if index == 0
            && let Ok(header) = serde_json::from_str::<Header>(line)
        {
            // Who was there already when this part of a journal began.
            entries.extend(header.known.iter().flat_map(|known| known.history()));
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            // What a manager that was killed had begun to write.
            Err(error) if error.is_eof() && !text.ends_with('\n') => {}
            Err(error) => {
                let number = index + 1;
                return Err(format!("{name}:{number}: not a line of a journal: {error}"));
            }
        }
    }
    Ok(entries)
}

fn json_text(name: Option<&str>, rehearsal: &Rehearsal) -> String {
    let report = &rehearsal.report;
    let value = json!({
        "policy": name,
        "right": report.failures.is_empty(),
        "errors": report.failures,
        "most_operations": report.most_operations,
        "operations_limit": MAX_OPERATIONS,
        "entries": rehearsal.entries,
    });
    format!("{value:#}\n")
}

fn people_text(name: Option<&str>, rehearsal: &Rehearsal) -> String {
    let Rehearsal { entries, report } = rehearsal;
    let mut text = String::new();
    if !entries.is_empty() {
        text.push_str(&format!("{}\n", table(entries)));
    }
    let mut seen: Vec<&ScriptError> = Vec::new();
    for error in &report.failures {
        if !seen.contains(&error) {
            seen.push(error);
            text.push_str(&format!("{error}\n"));
        }
    }
    if let Some(name) = name {
        let grants = entries.iter().flat_map(|e| &e.outputs);
        let grants = grants.filter(|o| matches!(o, Output::Grant { .. })).count();
        let end = match report.failures.len() {
            0 => "no errors".to_owned(),
            count => format!("{count} of them failed"),
        };
        text.push_str(&format!(
            "{name}: {} inputs, {grants} grants, {end}; the longest event took {} of {MAX_OPERATIONS} \
             operations.\n",
            entries.len(),
            report.most_operations,
        ));
    }
    text
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["seconds", "what happened", "what is ordered", "why"]);
    for entry in entries {
        let mut time = format!("{:.3}", entry.time_ns as f64 / 1e9);
        let mut happened = happened(&entry.input);
        let orders = entry.outputs.iter().map(ordered);
        // An event without orders is shown too: it is an answer to "what does it do then?".
        let orders: Vec<_> = match entry.outputs.is_empty() {
            true => vec![("–".to_owned(), String::new())],
            false => orders.collect(),
        };
        for (order, why) in orders {
            table.add_row([time, happened, order, why]);
            (time, happened) = (String::new(), String::new());
        }
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn happened(input: &Input) -> String {
    match input {
        Input::Machine(machine) => format!("the machine: CPUs {}", machine.allowed),
        Input::Joined {
            program,
            name,
            wants,
            ..
        } => format!(
            "{program} ({name}) joins, {} to {} threads",
            wants.min_threads, wants.max_threads
        ),
        Input::Asked { program, wants } => format!(
            "{program} asks for {} to {} threads",
            wants.min_threads, wants.max_threads
        ),
        Input::Threads { program, count } => format!("{program} has {count} threads"),
        Input::Answered { program, yes, .. } => {
            format!("{program} says {}", if *yes { "yes" } else { "no" })
        }
        Input::Left { program } => format!("{program} leaves"),
        Input::Readings(_) => "readings".to_owned(),
        Input::Overridden {
            program,
            claim: Some(_),
        } => format!("a person sets {program}"),
        Input::Overridden {
            program,
            claim: None,
        } => format!("a person gives {program} back"),
        Input::Gang {
            program,
            gang: Some(gang),
        } => match gang.name.as_str() {
            "" => format!("{program} is a gang"),
            name => format!("{program} is of the gang {name}"),
        },
        Input::Gang {
            program,
            gang: None,
        } => format!("{program} is no gang any longer"),
        Input::Group { program, group } => {
            format!("{program} shares CPU time within {group}")
        }
        Input::Spins { program, spins } => match spins {
            true => format!("{program} waits in loops"),
            false => format!("{program} waits in loops no longer"),
        },
        Input::Waits { program, waits } => {
            let threads = waits.awake;
            let spinning = waits.spinning.map_or_else(String::new, |thousandths| {
                format!(
                    ", and spend {} % of their time in loops that wait",
                    thousandths / 10
                )
            });
            format!("{program}: {threads} threads hardly sleep{spinning}")
        }
        Input::Failed { what, .. } => format!("failed: {what}"),
        Input::Policy(source) => format!("the policy {} begins", source.name),
    }
}

/// What, and why.
fn ordered(output: &Output) -> (String, String) {
    match output {
        Output::Grant {
            program,
            cpus,
            threads,
            reason,
        } => (
            format!("{program}: {threads} threads on CPUs {cpus}"),
            reason.clone(),
        ),
        Output::Tell {
            program,
            what,
            reason,
            ..
        } => {
            let what = match what {
                Request::Expand => "expand",
                Request::Shrink => "shrink",
            };
            (format!("{program} is asked to {what}"), reason.clone())
        }
        Output::Turn {
            program,
            turn,
            reason,
        } => {
            let what = turn.as_ref().map_or("runs always".to_owned(), |turn| {
                format!(
                    "runs {:.1} of every {:.1} ms",
                    turn.runs_ns() as f64 / 1e6,
                    turn.period_ns as f64 / 1e6
                )
            });
            (format!("{program}: {what}"), reason.clone())
        }
        Output::Act { action, reason } => (action.to_string(), reason.clone()),
        Output::Note(text) => (String::new(), text.clone()),
    }
}
