//! `corewise history`: what past searches found, and forgetting it.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use corewise_decide::search::runs::Runs;
use corewise_decide::setting::Setting;
use corewise_local::history::{self, Entry, Forget, History, Key, Listing};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Show or forget past results.
#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,

    /// Where past results are kept [default: $XDG_STATE_HOME/corewise/history.sqlite]
    #[arg(long, value_name = "FILE", env = "COREWISE_HISTORY", global = true)]
    history: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List all results, newest first (what happens without a subcommand)
    List,
    /// Show one result with its curve
    Show {
        /// The result's number, as listed
        id: i64,
    },
    /// Forget results
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(false))]
    Forget {
        /// The results' numbers, as listed
        #[arg(group = "what")]
        ids: Vec<i64>,
        /// All results of this program or script, by path or by name
        #[arg(long, value_name = "PROGRAM", group = "what")]
        program: Option<PathBuf>,
        /// All results
        #[arg(long, group = "what")]
        all: bool,
    },
}

/// Runs `corewise history`.
pub(crate) fn run(args: HistoryArgs) -> Result<ExitCode> {
    let path = match args.history {
        Some(path) => path,
        None => history::default_path()?,
    };
    // Looking must not make a file.
    let mut history = if path.exists() {
        Some(History::open(&path)?)
    } else {
        None
    };
    if let Some(notice) = history.as_ref().and_then(History::notice) {
        eprintln!("corewise: {notice}");
    }
    let text = match args.action.unwrap_or(Action::List) {
        Action::List => {
            let listing = history
                .as_ref()
                .map_or_else(|| Ok(Listing::default()), History::list)?;
            if args.json {
                json_text(&json!({
                    "path": path,
                    "results": listing.entries,
                    "unreadable": listing.unreadable,
                }))
            } else {
                list_text(&listing, &path)
            }
        }
        Action::Show { id } => {
            let entry = match &history {
                Some(history) => history.show(id)?,
                None => None,
            };
            let Some(entry) = entry else {
                bail!("no result has the number {id}: `corewise history` lists them");
            };
            if args.json {
                json_text(&json!({ "path": path, "result": entry }))
            } else {
                show_text(&entry)
            }
        }
        Action::Forget { ids, program, all } => {
            let what: Vec<Forget> = match program {
                Some(program) => vec![Forget::Program(program)],
                None if all => vec![Forget::All],
                None => ids.iter().copied().map(Forget::Id).collect(),
            };
            let mut forgotten = 0;
            for what in &what {
                let Some(history) = &mut history else { break };
                let count = history.forget(what)?;
                if let (Forget::Id(id), 0) = (what, count) {
                    eprintln!("corewise: no result has the number {id}");
                }
                forgotten += count;
            }
            if args.json {
                json_text(&json!({ "path": path, "forgotten": forgotten }))
            } else {
                format!(
                    "{forgotten} {} forgotten\n",
                    if forgotten == 1 { "result" } else { "results" }
                )
            }
        }
    };
    crate::output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn json_text(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

fn list_text(listing: &Listing, path: &std::path::Path) -> String {
    let mut text = String::new();
    if listing.entries.is_empty() && listing.unreadable.is_empty() {
        return format!("No past results in {}.\n", path.display());
    }
    let mut table = table();
    table.set_header([
        "id",
        "program",
        "arguments",
        "threads",
        "waiting",
        "found",
        "uses",
    ]);
    for entry in &listing.entries {
        let record = &entry.record;
        table.add_row([
            entry.id.to_string(),
            name(&entry.key),
            cut(&entry.key.shape, 48),
            match record.chosen_threads {
                0 => "none".to_owned(),
                threads => threads.to_string(),
            },
            record.wait_policy.to_string(),
            ago(record.created_unix_s),
            record.uses.to_string(),
        ]);
    }
    for column in [0, 3, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text.push_str(&format!("{table}\n"));
    for id in &listing.unreadable {
        text.push_str(&format!(
            "Result {id} cannot be read; `corewise history forget {id}` removes it.\n"
        ));
    }
    text
}

fn show_text(entry: &Entry) -> String {
    let (key, record) = (&entry.key, &entry.record);
    let mut lines = vec![
        format!("Result {}: {}", entry.id, name(key)),
        format!("  program     {}", key.program.path.display()),
    ];
    if let Some(script) = &key.program.script {
        lines.push(format!("  script      {}", script.path.display()));
    }
    lines.push(format!("  arguments   {}", key.shape));
    lines.push(format!("  input       {}", size(key.size_class)));
    lines.push(format!(
        "  machine     {}, {} CPUs, {} of them effective",
        key.machine.cpu_model, key.machine.cpus, key.machine.effective_cpus
    ));
    lines.push(format!("  others used {} CPUs", key.load_class));
    lines.push(match record.chosen_threads {
        0 => "  chosen      none: it takes no number of threads".to_owned(),
        threads => format!(
            "  chosen      {threads} threads, waiting: {} (objective {}, confidence {:.0} %)",
            record.wait_policy,
            key.objective,
            record.confidence * 100.0
        ),
    });
    lines.push(format!(
        "  found       {} by {} in {:.2} s: {}",
        ago(record.created_unix_s),
        record.algorithm,
        record.search_seconds,
        record.stop_reason
    ));
    lines.push(format!(
        "  spins       {}",
        if record.spins { "yes" } else { "not seen" }
    ));
    lines.push(match record.last_wall_seconds {
        Some(seconds) => format!(
            "  used        {} times, last for {seconds:.2} s",
            record.uses
        ),
        None => format!("  used        {} times", record.uses),
    });
    if let Some(whole) = &record.whole_runs {
        lines.extend(whole_runs(&whole.runs));
    }
    for found in &record.regions {
        let time = found
            .microseconds
            .map_or_else(String::new, |us| format!(", {us:.0} µs"));
        lines.push(format!(
            "  region      {}: {} of {} threads{time}",
            found.region, found.threads, found.most
        ));
    }
    let mut table = table();
    table.set_header([
        "threads", "waiting", "speed", "CPUs", "spin", "lock", "vcx/s", "migr/s",
    ]);
    let best = record.points.iter().map(|p| p.speed).fold(0.0, f64::max);
    let figure = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".to_owned(), |v| format!("{v:.digits$}"))
    };
    for point in &record.points {
        let relative = if best > 0.0 { point.speed / best } else { 0.0 };
        table.add_row([
            point.threads.to_string(),
            point.wait_policy.to_string(),
            format!("{relative:.3}"),
            figure(point.cpu_util, 2),
            figure(point.spin, 2),
            figure(point.lock, 3),
            figure(point.vcx_rate, 0),
            figure(point.migration_rate, 0),
        ]);
    }
    for column in [0, 2, 3, 4, 5, 6, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    lines.push(format!("{table}\n"));
    lines.join("\n")
}

/// What is known of whole runs, a line for each number of threads.
fn whole_runs(runs: &Runs) -> Vec<String> {
    let mut lines: Vec<String> = runs
        .numbers
        .iter()
        .map(|number| {
            let threads = Setting::threads(number.threads);
            match number.median() {
                _ if number.ruled_out => {
                    format!("  whole runs  {threads}: not tried, by its probe")
                }
                Some(seconds) => format!(
                    "  whole runs  {threads}: {seconds:.2} s (median of {}), {:.2} CPUs used",
                    number.seconds.len(),
                    number.cpu_util
                ),
                None => format!("  whole runs  {threads}: none undisturbed"),
            }
        })
        .collect();
    if runs.trials > 0 {
        let (lost, all) = (runs.lost_seconds, runs.seconds);
        lines.push(format!(
            "  trials      {}, which lost {lost:.2} s of {all:.2} s",
            runs.trials
        ));
    }
    lines
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// The script's name where there is one, else the program's.
fn name(key: &Key) -> String {
    let program = key.program.script.as_deref().unwrap_or(&key.program);
    let name = program.path.file_name();
    name.map_or_else(
        || program.path.display().to_string(),
        |n| n.to_string_lossy().into_owned(),
    )
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn size(class: u32) -> String {
    match class {
        0 => "no file".to_owned(),
        class => {
            let (unit, log) = match class - 1 {
                log @ 0..=9 => ("B", log),
                log @ 10..=19 => ("KiB", log - 10),
                log @ 20..=29 => ("MiB", log - 20),
                log => ("GiB", log - 30),
            };
            format!("about {} {unit}", 1_u64 << log.min(63))
        }
    }
}

fn ago(unix_s: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    match now.saturating_sub(unix_s) {
        s if s < 60 => "just now".to_owned(),
        s if s < 3600 => format!("{} min ago", s / 60),
        s if s < 86_400 => format!("{} h ago", s / 3600),
        s => format!("{} d ago", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_in_their_unit() {
        assert_eq!(
            [0, 1, 11, 24, 35].map(size),
            [
                "no file",
                "about 1 B",
                "about 1 KiB",
                "about 8 MiB",
                "about 16 GiB"
            ]
        );
    }

    #[test]
    fn long_arguments_are_cut_at_whole_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöüß", 3), "äö…");
    }
}
