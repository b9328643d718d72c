//! `corewise status`: who is managed, and who may use what.

use crate::output;
use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use corewise_wire::{Folder, System};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The time between two looks with `--watch`.
const EVERY: Duration = Duration::from_secs(1);

/// Show the programs under management: the CPUs and threads that each was granted, and what it uses.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Show it again every second, until interrupted
    #[arg(long)]
    watch: bool,

    /// Print one JSON object; with --watch one a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: StatusArgs) -> Result<ExitCode> {
    let folder = Folder::of_user()?;
    if !args.watch {
        output::print(&shown(&folder, args.json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let screen = !args.json && std::io::stdout().is_terminal();
    loop {
        let mut text = shown(&folder, args.json)?;
        if screen {
            // Home, then clear what is below: the screen does not flicker.
            text = format!("\x1b[H\x1b[J{text}");
        } else if !args.json {
            text.push('\n');
        }
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // The reader has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            result => result.context("cannot write to standard output")?,
        }
        drop(out);
        std::thread::sleep(EVERY);
    }
}

fn shown(folder: &Folder, as_json: bool) -> Result<String> {
    let mut status = status(&serving(folder))?;
    if let (true, Some(status)) = (as_json, &mut status) {
        crate::blocked::tell(status);
    }
    Ok(match (as_json, status) {
        (true, status) => format!("{}\n", status.unwrap_or_else(nobody)),
        (false, Some(status)) => text(&status),
        (false, None) => format!("no manager runs in {}\n", folder.path().display()),
    })
}

/// Where the manager of this user's programs is: their own, or the system's where they have none.
pub(crate) fn serving(own: &Folder) -> Folder {
    let listens = |folder: &Folder| corewise_wire::connect(folder).is_ok();
    if listens(own) {
        return own.clone();
    }
    let system = System::beside_own().and_then(|system| system.folder());
    system.filter(listens).unwrap_or_else(|| own.clone())
}

/// What the manager says; `None` where none runs.
pub(crate) fn status(folder: &Folder) -> Result<Option<Value>> {
    match corewise_manager::status_json(folder) {
        // It ended while it was asked.
        Err(corewise_manager::Error::Wire(corewise_wire::Error::Closed)) => Ok(None),
        other => Ok(other?),
    }
}

/// The object where no manager runs.
fn nobody() -> Value {
    json!({"policy": null, "programs": []})
}

/// The status for people.
fn text(status: &Value) -> String {
    let policy = status["policy"].as_str().unwrap_or("unknown");
    let mut text = format!("{}\n", machine_line(status, policy));
    text.extend(bounds(status).map(|bounds| format!("{bounds}\n")));
    let none = Vec::new();
    let programs = status["programs"].as_array().unwrap_or(&none);
    if programs.is_empty() {
        text.push_str("no program is managed\n");
        return text;
    }
    text.push_str(&format!("{}\n", table(programs)));
    text.extend(programs.iter().filter_map(not_stopped));
    text
}

/// Policy, CPUs that may be granted, and how busy they are.
fn machine_line(status: &Value, policy: &str) -> String {
    let mut line = format!("policy {policy}");
    if let Some(cpus) = cpu_list(&status["machine"]["allowed"]) {
        line.push_str(&format!("; CPUs {cpus}"));
    }
    let load = &status["load"];
    if let (Some(busy), Some(others)) = (load["busy"].as_f64(), load["others"].as_f64()) {
        // The kernel counts in ticks: over a short time there seem to be more than there are.
        let all = status["machine"]["allowed"]
            .as_array()
            .map_or(busy, |c| c.len() as f64);
        let (busy, others) = (busy.min(all), others.min(all));
        line.push_str(&format!(
            "; {busy:.1} CPUs busy, {others:.1} of them with programs not under management"
        ));
    }
    line
}

/// What bounds the manager itself: what root's has granted to it.
fn bounds(status: &Value) -> Option<String> {
    let outer = &status["outer"];
    let cpus = cpu_list(&outer["cpus"])?;
    let threads = match outer["threads"].as_u64()? {
        1 => "1 thread".to_owned(),
        n => format!("{n} threads"),
    };
    Some(format!(
        "within what the system's manager grants: CPUs {cpus}, {threads}"
    ))
}

/// A row for each program; whose it is where there are several users' programs.
pub(crate) fn table(programs: &[Value]) -> String {
    let users: BTreeSet<u64> = programs.iter().filter_map(|p| p["user"].as_u64()).collect();
    let several = users.len() > 1;
    let gangs = programs.iter().any(|program| program["gang"].is_object());
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let titles = [
        "PID",
        "NAME",
        "CPUS",
        "GRANTED",
        "HAS",
        "COULD USE",
        "USES",
        "FOLLOWS",
    ];
    let further = [("GANG RUNS", gangs), ("USER", several)].into_iter();
    let further = further.filter_map(|(title, shown)| shown.then_some(title));
    table.set_header(titles.into_iter().chain(further).map(output::bold));
    for program in programs {
        let claim = &program["claim"];
        let mut cpus = cpu_list(&claim["cpus"]).unwrap_or_else(|| "-".to_owned());
        if program["overridden"] == true {
            cpus.push_str(" (set by hand)");
        }
        let uses = program["uses"].as_f64();
        let mut row = vec![
            number(&program["pid"]),
            program["name"].as_str().unwrap_or("?").to_owned(),
            cpus,
            number(&claim["threads"]),
            positive(&program["threads"]),
            positive(&program["could_use"]),
            uses.map_or("-".to_owned(), |uses| format!("{uses:.2}")),
            follows(program),
        ];
        row.extend(gangs.then(|| turn(program)));
        row.extend(several.then(|| number(&program["user"])));
        table.add_row(row);
    }
    let user = several.then_some(8 + usize::from(gangs));
    for index in [0, 3, 4, 5, 6].into_iter().chain(user) {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn number(value: &Value) -> String {
    value.as_i64().map_or("-".to_owned(), |n| n.to_string())
}

/// What of the program follows its claim: runtimes whose number of threads does, or only the CPUs; and what
/// it has that does not. A program that links the library, and one whose local manager is older than these
/// names, only shows whether its number of threads follows.
fn follows(program: &Value) -> String {
    let malleable = program["wants"]["malleable"].as_bool();
    let names = |list: &Value| {
        let names = list.as_array()?.iter().filter_map(Value::as_str);
        let names: Vec<String> = names.map(str::to_owned).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let mut text = match (names(&program["follows"]), malleable) {
        (Some(runtimes), Some(false)) => format!("{runtimes} (not now)"),
        (Some(runtimes), _) => runtimes,
        (None, Some(true)) => "threads".to_owned(),
        (None, Some(false)) => "CPUs only".to_owned(),
        (None, None) => "-".to_owned(),
    };
    if let Some(staying) = names(&program["stay"]) {
        text.push_str(&format!("; not {staying}"));
    }
    text
}

/// How much of the time a gang runs, and its gang's name if it has one.
fn turn(program: &Value) -> String {
    let gang = &program["gang"];
    if !gang.is_object() {
        return "-".to_owned();
    }
    let ms = |key: &str| program["turn"][key].as_f64().map(|ns| ns / 1e6);
    let runs = match (ms("runs_ns"), ms("period_ns")) {
        (Some(runs), Some(period)) => format!("{runs:.0} of every {period:.0} ms"),
        _ => "always".to_owned(),
    };
    match gang["name"].as_str() {
        None | Some("") => runs,
        Some(name) => format!("{runs} ({name})"),
    }
}

/// A line on a gang that does not stand still out of its turn, and why.
fn not_stopped(program: &Value) -> Option<String> {
    let why = program["turns_by"]["why_not"].as_str()?;
    let does = match program["turns_by"]["means"].as_str() {
        None => "runs always, also out of its turn".to_owned(),
        Some("ptrace") => "runs out of its turn at times".to_owned(),
        Some(means) => format!("comes last out of its turn, by {means}"),
    };
    let (pid, name) = (&program["pid"], program["name"].as_str().unwrap_or("?"));
    Some(format!("{name} ({pid}) {does}: {why}\n"))
}

/// 0 means that the program has not said.
fn positive(value: &Value) -> String {
    match value.as_u64() {
        Some(0) | None => "-".to_owned(),
        Some(n) => n.to_string(),
    }
}

/// A list of CPUs as Linux writes it; `None` if there is none.
pub(crate) fn cpu_list(value: &Value) -> Option<String> {
    let cpus: Vec<u32> = value
        .as_array()?
        .iter()
        .filter_map(|cpu| u32::try_from(cpu.as_u64()?).ok())
        .collect();
    Some(corewise_machine::cpu_list::format(&cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_its_row_and_what_is_not_known_is_a_dash() {
        let status = json!({
            "policy": "balanced",
            "machine": {"allowed": [0, 1, 2, 3]},
            "load": {"busy": 2.04, "others": 0.5},
            "programs": [
                {"pid": 12, "name": "sort", "claim": {"cpus": [0, 1, 3], "threads": 3},
                 "threads": 4, "could_use": null, "uses": 1.5, "wants": {"malleable": true}},
                {"pid": 14, "name": "py", "wants": {"malleable": true},
                 "follows": ["OpenBLAS", "oneTBB"], "stay": ["rayon"]},
                {"pid": 15, "name": "long", "wants": {"malleable": false}, "follows": ["libgomp"]},
                {"pid": 16, "name": "fixed", "wants": {"malleable": false}, "follows": [], "stay": ["Go"]},
                {"pid": 13, "name": "new", "claim": null, "threads": 0, "overridden": true},
            ],
        });
        let text = text(&status);
        assert!(
            text.starts_with("policy balanced; CPUs 0-3; 2.0 CPUs busy, 0.5 of them"),
            "{text}"
        );
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows[2],
            ["12", "sort", "0-1,3", "3", "4", "-", "1.50", "threads"]
        );
        assert_eq!(rows[3][7..], ["OpenBLAS,", "oneTBB;", "not", "rayon"]);
        assert_eq!(rows[4][7..], ["libgomp", "(not", "now)"]);
        assert_eq!(rows[5][7..], ["CPUs", "only;", "not", "Go"]);
        assert_eq!(rows[6][..3], ["13", "new", "-"]);
    }

    #[test]
    fn whose_programs_they_are_is_shown_where_there_are_several_users() {
        let program = |user: u32| json!({"pid": 12, "name": "sort", "user": user});
        let one = table(&[program(0), program(0)]);
        assert!(!one.contains("USER"), "{one}");
        let two = table(&[program(0), program(1000)]);
        assert!(two.contains("USER") && two.contains("1000"), "{two}");
    }

    #[test]
    fn how_much_of_the_time_gangs_run_is_shown_where_there_are_gangs() {
        let alone = json!({"pid": 12, "name": "sort"});
        assert!(!table(std::slice::from_ref(&alone)).contains("GANG"));
        let gang = |name: &str, turn: Value| json!({"pid": 13, "name": "cg", "gang": {"name": name, "weight": 100}, "turn": turn});
        let turns = json!({"runs_ns": 25_000_000, "period_ns": 50_000_000});
        let programs = [alone, gang("mpi", turns), gang("", Value::Null)];
        let shown = table(&programs);
        assert!(shown.contains("25 of every 50 ms (mpi)"), "{shown}");
        assert!(shown.contains("always"), "{shown}");
    }

    #[test]
    fn how_turns_are_kept_is_said_of_those_that_do_not_stand_still() {
        let program = |by: Value| json!({"pid": 13, "name": "cg", "turns_by": by});
        let stands = program(json!({"means": "ptrace", "why_not": null}));
        assert_eq!(not_stopped(&stands), None);
        assert_eq!(not_stopped(&program(Value::Null)), None);
        let last = program(json!({"means": "cpu.idle", "why_not": "it is traced"}));
        let said = not_stopped(&last).unwrap();
        assert_eq!(
            said,
            "cg (13) comes last out of its turn, by cpu.idle: it is traced\n"
        );
        let runs = program(json!({"means": null, "why_not": "not allowed"}));
        let text = text(&json!({"policy": "balanced", "programs": [runs]}));
        assert!(
            text.ends_with("cg (13) runs always, also out of its turn: not allowed\n"),
            "{text}"
        );
    }

    #[test]
    fn what_bounds_the_manager_is_shown() {
        let outer = json!({"program": 3, "cpus": [0, 1, 4], "threads": 1});
        let bounded = json!({"policy": "balanced", "programs": [], "outer": outer});
        let said = text(&bounded);
        assert!(
            said.contains("system's manager grants: CPUs 0-1,4, 1 thread\n"),
            "{said}"
        );
        let free = json!({"policy": "balanced", "programs": [], "outer": null});
        assert!(!text(&free).contains("system"), "{free}");
    }

    #[test]
    fn without_a_manager_there_is_an_object_all_the_same() {
        assert_eq!(nobody()["policy"], Value::Null);
        assert_eq!(nobody()["programs"], json!([]));
        assert!(text(&nobody()).contains("no program is managed"));
    }
}
