//! What an experiment is: a named function that measures, and returns figures and the bars that
//! they are held against. The frame here lists experiments, prints their reports and turns bars
//! into an exit code, so that each experiment only has to measure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use corewise_launch::adapters::SHIM;
use serde::Serialize;

/// One entry of the registry (see `EXPERIMENTS` in main.rs).
pub struct Experiment {
    /// What is typed to run it; lower case with hyphens.
    pub name: &'static str,
    /// One line for `list`.
    pub about: &'static str,
    /// Measures. Progress goes to standard error (see [`Context::say`]).
    pub run: fn(&Context) -> Result<Report>,
}

/// What an experiment is told about how and where to run.
#[derive(Clone, Debug)]
pub struct Context {
    /// A few minutes instead of the full length: fewer programs, conditions and rounds. Bars of a
    /// quick run are shown but prove little.
    pub quick: bool,
    /// Standard output is one JSON object; people's text must not go there.
    pub json: bool,
    /// Rounds asked for by the user; see [`Context::rounds`].
    pub rounds: Option<u32>,
    /// Restricts an experiment to what these words name (programs, conditions); empty: everything.
    pub only: Vec<String>,
    /// The repository's root.
    pub root: PathBuf,
    /// Made inputs, kept between runs (`.inputs` in the root, ignored by git).
    pub inputs: PathBuf,
    /// Where an experiment may leave files for people (`--out`); a report's JSON is put there too.
    pub out: Option<PathBuf>,
    /// The command given with `--corewise`, instead of the one in target/release.
    pub corewise_override: Option<PathBuf>,
}

impl Context {
    /// How often each cell is measured: what the user said, else the experiment's own numbers.
    pub fn rounds(&self, full: u32, quick: u32) -> u32 {
        self.rounds
            .unwrap_or(if self.quick { quick } else { full })
            .max(1)
    }

    /// Of these names, those that `--only` has; all of them where it has none of them. So programs
    /// and conditions can be picked apart from each other.
    pub fn pick<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        let named = |name: &&&str| self.only.iter().any(|only| only == **name);
        let picked = names.iter().filter(named).copied().collect::<Vec<_>>();
        match picked.is_empty() {
            true => names.to_vec(),
            false => picked,
        }
    }

    /// Whether `--only` has any of these names.
    pub fn names_any(&self, names: &[&str]) -> bool {
        self.only.iter().any(|only| names.contains(&only.as_str()))
    }

    /// Of an experiment that is made in portions: the number of the first run, or scenario, by `--only from-N`; else 0.
    ///
    /// # Errors
    /// If that is no number.
    pub fn first(&self) -> Result<u64> {
        let first = self.only.iter().find_map(|o| o.strip_prefix("from-"));
        let first = first.map_or(Ok(0), str::parse);
        first.context("--only from-N: N is no number")
    }

    /// One line of progress on standard error.
    pub fn say(&self, line: impl std::fmt::Display) {
        eprintln!("lab: {line}");
    }

    /// The command `corewise` as users get it: built in release mode when it is missing or old
    /// (cargo decides). An error says how to build it by hand.
    pub fn corewise(&self) -> Result<PathBuf> {
        if let Some(path) = &self.corewise_override {
            return absolute(path);
        }
        let by_hand = "build it by hand with `cargo build --release -p corewise`, or name one with --corewise";
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args([
                "build",
                "--release",
                "--quiet",
                "-p",
                "corewise",
                "-p",
                "corewise-shim",
                "-p",
                "corewise-hooks",
                "-p",
                "corewise-race",
            ])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(&self.root)
            .stderr(std::process::Stdio::inherit())
            .output()
            .with_context(|| format!("could not start cargo to build corewise: {by_hand}"))?;
        if !output.status.success() {
            bail!("corewise did not build: {by_hand}");
        }
        built_executable(&output.stdout)
            .with_context(|| format!("cargo named no executable of corewise: {by_hand}"))
    }

    /// The library that is preloaded, beside the command.
    pub fn shim(&self) -> Result<PathBuf> {
        let shim = self.corewise()?.with_file_name(SHIM);
        if !shim.exists() {
            bail!(
                "{} is missing: build it with `cargo build --release -p corewise-shim`",
                shim.display()
            );
        }
        Ok(shim)
    }

    /// The library that is loaded into programs to profile them, beside the command.
    pub fn hooks(&self) -> Result<PathBuf> {
        let hooks = self.corewise()?.with_file_name("libcorewise_hooks.so");
        if !hooks.exists() {
            bail!(
                "{} is missing: build it with `cargo build --release -p corewise-hooks`",
                hooks.display()
            );
        }
        Ok(hooks)
    }

    /// A Python that has the pinned wheels: the `.venv` which scripts/setup makes.
    pub fn python(&self) -> Result<PathBuf> {
        let python = self.root.join(".venv/bin/python");
        if !python.exists() {
            bail!(
                "{} is missing: run `scripts/setup --programs`",
                python.display()
            );
        }
        Ok(python)
    }
}

/// The path of the executable in cargo's stream of JSON messages.
fn built_executable(messages: &[u8]) -> Option<PathBuf> {
    String::from_utf8_lossy(messages)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "corewise")
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("{} cannot be used as corewise", path.display()))
}

/// A figure held against its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// What is held, with its unit and direction, such as `recalled cost, ms (at most)`.
    pub name: String,
    /// What was measured.
    pub value: f64,
    /// What it is held against.
    pub limit: f64,
    /// Whether it holds. A value that could not be measured (NaN) never holds.
    pub holds: bool,
}

impl Bar {
    /// Holds when `value` ≤ `limit`.
    pub fn at_most(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Bar {
            name: name.into(),
            value,
            limit,
            holds: value <= limit,
        }
    }

    /// Holds when `value` ≥ `limit`.
    pub fn at_least(name: impl Into<String>, value: f64, limit: f64) -> Self {
        Bar {
            name: name.into(),
            value,
            limit,
            holds: value >= limit,
        }
    }
}

/// A table for people; in JSON too, as strings, for whoever writes documents from it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Shown above it.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// As many strings each as there are columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Table {
            title: title.into(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Aligned text: the first column to the left, the others to the right.
    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let mut widths = vec![0; self.columns.len()];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = format!("{}\n", self.title);
        for (index, line) in lines().enumerate() {
            let mut out = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                out += &match column {
                    0 => format!("  {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            text += out.trim_end();
            text.push('\n');
            if index == 0 {
                let total = widths.iter().map(|width| width + 2).sum::<usize>();
                text += &format!("  {}\n", "-".repeat(total.saturating_sub(2)));
            }
        }
        text
    }
}

/// What an experiment found. Its JSON has the keys `experiment`, `figures` and `bars` that others
/// rely on, and the rest for people.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The experiment's name.
    pub experiment: String,
    /// What is set against what.
    pub compares: String,
    /// In which sessions things ran (Linux shares CPUs between sessions first).
    pub sessions: String,
    /// Whether this was a `--quick` run, whose figures prove little.
    pub quick: bool,
    /// Every figure by name; the name ends in its unit where it has one.
    pub figures: BTreeMap<String, f64>,
    /// What has to hold.
    pub bars: Vec<Bar>,
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
    /// For people.
    pub tables: Vec<Table>,
}

impl Report {
    /// An empty report of this experiment.
    pub fn new(context: &Context, experiment: &str, compares: &str, sessions: &str) -> Self {
        Report {
            experiment: experiment.to_owned(),
            compares: compares.to_owned(),
            sessions: sessions.to_owned(),
            quick: context.quick,
            ..Report::default()
        }
    }

    /// Adds a figure.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        self.figures.insert(name.into(), value);
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Whether every bar holds.
    pub fn holds(&self) -> bool {
        self.bars.iter().all(|bar| bar.holds)
    }

    /// The report for people: what was compared, tables, figures, notes, and the bars last.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.experiment);
        text += &format!(
            "  compares: {}\n  sessions: {}\n",
            self.compares, self.sessions
        );
        if self.quick {
            text += "  quick: few rounds and cells; the figures prove little\n";
        }
        for table in &self.tables {
            text += &format!("\n{}", table.text());
        }
        if !self.figures.is_empty() {
            let mut table = Table::new("figures", &["figure", "value"]);
            for (name, value) in &self.figures {
                table.row([name.clone(), number(*value)]);
            }
            text += &format!("\n{}", table.text());
        }
        for note in &self.notes {
            text += &format!("\nnote: {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        if !self.bars.is_empty() {
            let mut table = Table::new("bars", &["bar", "value", "limit", "holds"]);
            for bar in &self.bars {
                let holds = if bar.holds { "yes" } else { "NO" };
                table.row([
                    bar.name.clone(),
                    number(bar.value),
                    number(bar.limit),
                    holds.to_owned(),
                ]);
            }
            text += &format!("\n{}", table.text());
        }
        text
    }
}

/// Four significant digits, or as many as a whole number has.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == value.trunc() && value.abs() < 1e9 {
        return format!("{value:.0}");
    }
    let digits = value.abs().log10().floor() as i32;
    format!("{value:.*}", (3 - digits).clamp(0, 9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_picks_programs_and_conditions_apart() {
        let mut context = Context {
            quick: false,
            json: false,
            rounds: None,
            only: vec!["pigz".into(), "alone".into()],
            root: PathBuf::new(),
            inputs: PathBuf::new(),
            out: None,
            corewise_override: None,
        };
        assert_eq!(context.pick(&["pigz", "xz"]), ["pigz"]);
        assert_eq!(context.pick(&["a", "b"]), ["a", "b"]);
        assert!(context.names_any(&["alone", "quota-1"]));
        context.only.clear();
        assert!(!context.names_any(&["pigz"]));
    }

    #[test]
    fn a_value_that_was_not_measured_holds_no_bar() {
        assert!(!Bar::at_most("x", f64::NAN, 1.0).holds);
        assert!(!Bar::at_least("x", f64::NAN, 1.0).holds);
        assert!(Bar::at_most("x", 1.0, 1.0).holds);
        assert!(Bar::at_least("x", 1.0, 1.0).holds);
    }

    #[test]
    fn the_json_has_the_keys_that_others_rely_on() {
        let mut report = Report {
            experiment: "e".into(),
            ..Report::default()
        };
        report.figure("f", 1.5);
        report.bars.push(Bar::at_most("b", 1.0, 2.0));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["experiment"], "e");
        assert_eq!(json["figures"]["f"], 1.5);
        assert_eq!(
            json["bars"][0],
            serde_json::json!({"name": "b", "value": 1.0, "limit": 2.0, "holds": true})
        );
    }

    #[test]
    fn tables_are_aligned_by_characters_not_bytes() {
        let mut table = Table::new("t", &["größe", "n"]);
        table.row(["a".into(), "10".into()]);
        assert_eq!(table.text(), "t\n  größe   n\n  ---------\n  a      10\n");
    }

    #[test]
    fn numbers_keep_four_digits() {
        assert_eq!(number(3.0), "3");
        assert_eq!(number(1.23456), "1.235");
        assert_eq!(number(0.0123456), "0.01235");
        assert_eq!(number(1234.56), "1235");
        assert_eq!(number(f64::INFINITY), "-");
    }

    #[test]
    fn cargo_messages_name_the_executable() {
        let messages = br#"{"reason":"compiler-artifact","target":{"name":"corewise-decide"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"corewise"},"executable":"/t/release/corewise"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            built_executable(messages),
            Some(PathBuf::from("/t/release/corewise"))
        );
        assert_eq!(built_executable(b"nothing"), None);
    }
}
