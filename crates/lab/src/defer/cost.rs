//! `profile-cost`: the slow-down by `corewise profile`, beside uftrace and callgrind on the same programs and
//! the same functions; and whether call counts are callgrind's.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use corewise_analyses::names::{Names, demangled};
use corewise_analyses::region::{Manner, Module};

use crate::defer::programs::{Instrumented, manner, these};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::measure::Job;
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

/// Single-threaded ones, with little to do: under callgrind each takes up to a hundred times as long.
const PROGRAMS: [&str; 8] = [
    "bzip2",
    "lua",
    "mujs",
    "tinyscheme",
    "zopfli",
    "lz4",
    "minilzip",
    "cadical",
];
/// Differing counts that are told one by one, of each program.
const TOLD: usize = 8;
const CELLS: [&str; 4] = ["plain", "corewise", "uftrace", "callgrind"];

/// Runs the experiment.
///
/// # Errors
/// If a program does not build or run, or a tool is missing.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "profile-cost",
        "plain programs, and the instrumented ones under corewise profile, uftrace record and callgrind",
        "one session",
    );
    let programs = these(context, &PROGRAMS)?;
    let programs: Vec<Instrumented> = programs.iter().map(Instrumented::small).collect();
    let hooks = context.hooks()?;
    let cells: Vec<&str> = CELLS.into_iter().filter(|cell| present(cell)).collect();
    for missing in CELLS.iter().filter(|cell| !cells.contains(cell)) {
        report.note(format!(
            "{missing} is missing (scripts/setup --programs): not measured"
        ));
    }
    let folder = tempfile::tempdir()?;
    let count = cells.len() * programs.len();
    let mut seconds = vec![Vec::new(); count];
    for (_, cell) in interleaved(0..count, context.rounds(3, 1), 11) {
        let program = &programs[cell / cells.len()];
        let sample = match cells[cell % cells.len()] {
            "plain" => program.run(&program.plain())?,
            "corewise" => program.profiled(&hooks, manner(Manner::Adaptive))?,
            "uftrace" => {
                program.run(&under("uftrace", &program.hooked_to_zero(), folder.path()))?
            }
            tool => program.run(&under(tool, &program.hooked(), folder.path()))?,
        };
        seconds[cell].push(sample.seconds);
    }
    let mut columns = vec!["program", "plain, s"];
    columns.extend(&cells[1..]);
    columns.push("functions with other counts than callgrind's");
    let mut table = Table::new("times the plain program", &columns);
    let mut all = vec![Vec::new(); cells.len()];
    for (index, program) in programs.iter().enumerate() {
        let of = |cell: usize| &seconds[index * cells.len() + cell];
        let ratios = (1..cells.len()).map(|cell| paired_ratio(of(cell), of(0)).median);
        let ratios = ratios.collect::<Vec<_>>();
        for (cell, ratio) in (1..).zip(&ratios) {
            report.figure(format!("{}.{}.times", program.name, cells[cell]), *ratio);
            all[cell].push(*ratio);
        }
        let compared = match cells.contains(&"callgrind") {
            true => Some(compared(&program.not_inlined(), &hooks, folder.path())?),
            false => None,
        };
        let text = match compared {
            Some(compared) => {
                for (name, value) in [
                    ("functions_compared", compared.functions),
                    ("functions_differing", compared.differing.len()),
                    ("functions_not_in_callgrind", compared.missing.len()),
                ] {
                    report.figure(format!("{}.{name}", program.name), value as f64);
                }
                report.bars.push(Bar::at_most(
                    format!(
                        "{}: functions whose calls are not callgrind's",
                        program.name
                    ),
                    compared.differing.len() as f64,
                    0.0,
                ));
                tell(&mut report, program, &compared);
                format!("{} of {}", compared.differing.len(), compared.functions)
            }
            None => "-".to_owned(),
        };
        let head = [program.name.clone(), number(median(of(0)))];
        table.row(
            head.into_iter()
                .chain(ratios.iter().map(|r| number(*r)))
                .chain([text]),
        );
    }
    let means: Vec<f64> = all.iter().map(|ratios| geometric_mean(ratios)).collect();
    for (cell, mean) in cells.iter().zip(&means).skip(2) {
        report.bars.push(Bar::at_most(
            format!("corewise over {cell}, slow-down, geometric mean"),
            means[1] / mean,
            1.0,
        ));
    }
    report.tables.push(table);
    report.note(
        "Every tool sees the functions that gcc instruments; callgrind all others, too. Counts are compared on programs \
         compiled with -fno-inline: the hooks count inlined calls, too. Functions that must be inlined even so \
         (always_inline) are calls for the hooks, and none for callgrind.",
    );
    Ok(report)
}

fn present(tool: &str) -> bool {
    let asked = match tool {
        "uftrace" => "uftrace",
        "callgrind" => "valgrind",
        _ => return true,
    };
    Command::new(asked).arg("--version").output().is_ok()
}

fn under(tool: &str, job: &Job, folder: &Path) -> Job {
    let out = folder.join(tool).to_string_lossy().into_owned();
    match tool {
        "uftrace" => job.under([
            "uftrace",
            "record",
            // Also of a shell that has no hooks, and starts the program.
            "--force",
            "--no-libcall",
            "--no-event",
            "-d",
            &out,
        ]),
        _ => job.under([
            "valgrind",
            "--tool=callgrind",
            "--trace-children=yes",
            // Two programs spell C++'s names in two ways: both tools' are spelled by ours.
            "--demangle=no",
            &format!("--callgrind-out-file={out}.%p"),
        ]),
    }
}

/// The counts of two tools.
struct Compared {
    /// How many functions both count.
    functions: usize,
    /// Those of them with other counts: the name, ours, callgrind's.
    differing: Vec<(String, u64, u64)>,
    /// Those that only we count, and how often.
    missing: Vec<(String, u64)>,
}

fn tell(report: &mut Report, program: &Instrumented, compared: &Compared) {
    for (name, ours, theirs) in compared.differing.iter().take(TOLD) {
        report.note(format!(
            "{}: {name}: {ours} calls, callgrind {theirs}",
            program.name
        ));
    }
    for (name, ours) in compared.missing.iter().take(TOLD) {
        report.note(format!(
            "{}: {name}: {ours} calls, and none that callgrind tells",
            program.name
        ));
    }
}

/// Counts of the same program by both, function by function.
fn compared(program: &Instrumented, hooks: &Path, folder: &Path) -> Result<Compared> {
    let sample = program.profiled(hooks, manner(Manner::Adaptive))?;
    // A run of its own, so that there is one file.
    let out = folder.join("counts");
    std::fs::create_dir_all(&out)?;
    program.run(&under("callgrind", &program.hooked(), &out))?;
    let file = program
        .file()
        .canonicalize()?
        .to_string_lossy()
        .into_owned();
    let mut theirs = BTreeMap::<String, u64>::new();
    for entry in std::fs::read_dir(&out)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path).context("callgrind wrote no file")?;
        for (name, calls) in callgrind_calls(&text, &file) {
            *theirs.entry(demangled(&name)).or_default() += calls;
        }
        std::fs::remove_file(path)?;
    }
    let mut names = Names::default();
    let module = Module {
        bias: 0,
        start: 0,
        end: u64::MAX,
        path: program.file().as_os_str().as_encoded_bytes().to_vec(),
    };
    let modules = [module];
    let mut ours = BTreeMap::<String, u64>::new();
    for (address, calls) in sample.by_function() {
        *ours.entry(names.of(&modules, address).name).or_default() += calls;
    }
    let mut compared = Compared {
        functions: 0,
        differing: Vec::new(),
        missing: Vec::new(),
    };
    for (name, ours) in ours {
        match theirs.get(&name) {
            Some(&theirs) => {
                compared.functions += 1;
                if ours != theirs {
                    compared.differing.push((name, ours, theirs));
                }
            }
            None => compared.missing.push((name, ours)),
        }
    }
    Ok(compared)
}

/// How often each function of a file is called, by what callgrind wrote (its manual's format: names of functions
/// and of files are numbered, each for itself, and given once).
fn callgrind_calls(text: &str, file: &str) -> BTreeMap<String, u64> {
    let mut functions = Numbered::default();
    let mut objects = Numbered::default();
    let mut calls = BTreeMap::<String, u64>::new();
    let mut object = String::new();
    let mut callee = None;
    let mut callee_object = None;
    for line in text.lines() {
        if let Some((kind, rest)) = line.split_once('=') {
            match kind {
                "fn" => {
                    functions.named(rest);
                }
                "cfn" => callee = Some(functions.named(rest)),
                "ob" => object = objects.named(rest),
                "cob" => callee_object = Some(objects.named(rest)),
                "calls" => {
                    let count = rest.split(' ').next().and_then(|n| n.parse::<u64>().ok());
                    // Without `cob=` it is in the file of its caller.
                    let within = callee_object.take().unwrap_or_else(|| object.clone());
                    let callee = callee.take();
                    if within == file
                        && let (Some(name), Some(count)) = (callee, count)
                    {
                        *calls.entry(whole(&name).to_owned()).or_default() += count;
                    }
                }
                _ => {}
            }
        }
    }
    calls
}

/// The function that a name of callgrind's stands for: it tells levels of recursion apart (`'2`), and the
/// compiler's copies of a function for constant arguments, which the hooks count as the function.
fn whole(name: &str) -> &str {
    let name = name.split('\'').next().unwrap_or(name);
    let copies = [".constprop.", ".isra."];
    let ends = copies.iter().filter_map(|copy| name.find(copy));
    &name[..ends.min().unwrap_or(name.len())]
}

/// Names that are given once, with their numbers.
#[derive(Default)]
struct Numbered(BTreeMap<String, String>);

impl Numbered {
    fn named(&mut self, text: &str) -> String {
        let (number, name) = text.split_once(' ').unwrap_or((text, ""));
        if !name.is_empty() {
            self.0.insert(number.to_owned(), name.to_owned());
        }
        self.0.get(number).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_a_file_of_callgrinds() {
        let text = "ob=(1) /bin/one\nfn=(1) main\n3 10\ncfn=(2) leaf\ncalls=7 4\n5 70\ncfn=(2)\ncalls=3 4\n6 30\n\
            fn=(2)\ncfn=(3) leaf'2\ncalls=1 4\n1 1\n";
        let calls = callgrind_calls(text, "/bin/one");
        assert_eq!(calls, BTreeMap::from([("leaf".to_owned(), 11)]));
    }

    #[test]
    fn functions_of_other_files_with_the_same_name_are_not_counted() {
        let text = "ob=(1) /bin/one\nfn=(1) main\ncfn=(2) same\ncalls=7 4\n5 70\n\
            cob=(2) /lib/two\ncfn=(2)\ncalls=3 4\n6 30\n\
            ob=(2)\nfn=(3) other\ncfn=(2)\ncalls=100 4\n6 30\ncob=(1)\ncfn=(2)\ncalls=20 4\n6 30\n";
        let calls = callgrind_calls(text, "/bin/one");
        assert_eq!(calls, BTreeMap::from([("same".to_owned(), 27)]));
    }

    #[test]
    fn copies_of_a_function_for_constant_arguments_are_that_function() {
        assert_eq!(whole("emit.constprop.0"), "emit");
        assert_eq!(whole("emit.isra.0.constprop.1'2"), "emit");
        assert_eq!(whole("main"), "main");
    }
}
