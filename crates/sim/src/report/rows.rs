//! A report's programs as rows of tables and charts: one each, or one for each entry where there are many.

use super::{ProgramReport, Report, Seconds};
use std::collections::BTreeMap;

/// More programs than this are shown entry by entry.
const MOST_SINGLE: usize = 40;

/// More entries than this are not shown.
const MOST_ROWS: usize = 200;

/// One program, or all of an entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The program's name, or the entry's and how many there were.
    pub name: String,
    /// Its session, or `group` and its control group.
    pub share: String,
    /// Programs that are in this row.
    pub programs: u32,
    /// Those that have ended, and how long they took together.
    ended: u32,
    took_seconds: f64,
    /// As in [`ProgramReport`], added up.
    pub run_seconds: f64,
    /// As in [`ProgramReport`], added up.
    pub spin_seconds: f64,
    /// As in [`ProgramReport`], added up.
    pub wait_seconds: f64,
    /// As in [`ProgramReport`], added up.
    pub lock_seconds: f64,
    /// As in [`ProgramReport`], added up.
    pub io_seconds: f64,
    /// Switches of both kinds.
    pub switches: u64,
    /// As in [`ProgramReport`], added up.
    pub migrations: u64,
    claims: u32,
    claim_threads: f64,
    /// As in [`ProgramReport`], added up.
    pub progress: u64,
}

impl Row {
    /// How long it took; the mean of those that have ended.
    pub fn took(&self) -> String {
        match self.ended {
            0 => "not ended".to_owned(),
            ended => Seconds(self.took_seconds / f64::from(ended)).to_string(),
        }
    }

    /// Threads that its claim granted, in the mean.
    pub fn mean_claim(&self) -> Option<f64> {
        (self.claims > 0).then(|| self.claim_threads / f64::from(self.claims))
    }

    /// Blocked on others, input, output or sleep.
    pub fn blocked_seconds(&self) -> f64 {
        self.lock_seconds + self.io_seconds
    }

    fn add(&mut self, program: &ProgramReport) {
        self.programs += 1;
        if program.end_seconds.is_some() {
            self.ended += 1;
            self.took_seconds += program.wall_seconds;
        }
        self.run_seconds += program.run_seconds;
        self.spin_seconds += program.spin_seconds;
        self.wait_seconds += program.wait_seconds;
        self.lock_seconds += program.lock_seconds;
        self.io_seconds += program.io_seconds;
        self.switches += program.voluntary_switches + program.involuntary_switches;
        self.migrations += program.migrations;
        if let Some(threads) = program.mean_claim_threads {
            self.claims += 1;
            self.claim_threads += threads;
        }
        self.progress += program.progress;
    }
}

/// What programs are told apart by in charts: each by itself while they are few, else by entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds<'a> {
    /// Their names, in the order in which they started first.
    pub names: Vec<&'a str>,
    /// The kind of each program of the report, as an index into `names`.
    pub of_program: Vec<usize>,
}

/// The kinds of programs in a report. Where there are at most `single` programs, each is one.
pub fn kinds(report: &Report, single: usize) -> Kinds<'_> {
    if report.programs.len() <= single {
        // Also where two have the same name.
        return Kinds {
            names: report.programs.iter().map(|p| p.name.as_str()).collect(),
            of_program: (0..report.programs.len()).collect(),
        };
    }
    let mut names: Vec<&str> = Vec::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut of_program = Vec::new();
    for program in &report.programs {
        let kind = *known.entry(&program.entry).or_insert_with(|| {
            names.push(&program.entry);
            names.len() - 1
        });
        of_program.push(kind);
    }
    Kinds { names, of_program }
}

/// The rows of a report: a program each, or an entry each where there are more than 40 programs; at most
/// 200.
pub fn rows(report: &Report) -> Vec<Row> {
    let kinds = kinds(report, MOST_SINGLE);
    let mut rows: Vec<Row> = Vec::new();
    for (program, kind) in report.programs.iter().zip(&kinds.of_program) {
        // Kinds are numbered as they appear.
        if *kind == rows.len() {
            rows.push(Row {
                name: kinds.names[*kind].to_owned(),
                share: match (&program.session, &program.group) {
                    (Some(session), _) => session.clone(),
                    (None, Some(group)) => format!("group {group}"),
                    (None, None) => String::new(),
                },
                ..Row::default()
            });
        }
        rows[*kind].add(program);
    }
    for row in &mut rows {
        if row.programs > 1 {
            row.name = format!("{} × {}", row.name, row.programs);
        }
    }
    rows.truncate(MOST_ROWS);
    rows
}
