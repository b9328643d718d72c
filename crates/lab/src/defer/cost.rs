//! `profile-cost`: the slow-down by `corewise profile`, beside uftrace and callgrind on the same programs and
//! the same functions; and whether call counts are callgrind's.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use corewise_analyses::region::Manner;

use crate::defer::programs::{Instrumented, manner, these};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::measure::Job;
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

/// Short ones: under callgrind each takes up to a hundred times as long.
const PROGRAMS: [&str; 3] = ["lua", "mujs", "tinyscheme"];
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
            Some((functions, differing)) => {
                report.figure(
                    format!("{}.functions_compared", program.name),
                    functions as f64,
                );
                report.bars.push(Bar::at_most(
                    format!(
                        "{}: functions whose calls are not callgrind's",
                        program.name
                    ),
                    differing as f64,
                    0.0,
                ));
                format!("{differing} of {functions}")
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
         compiled with -fno-inline: the hooks count inlined calls, too.",
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
            &format!("--callgrind-out-file={out}.%p"),
        ]),
    }
}

/// How many functions both count, and for how many they differ.
fn compared(program: &Instrumented, hooks: &Path, folder: &Path) -> Result<(usize, usize)> {
    let sample = program.profiled(hooks, manner(Manner::Adaptive))?;
    let ours = sample.by_function();
    // A run of its own, so that there is one file.
    let out = folder.join("counts");
    std::fs::create_dir_all(&out)?;
    program.run(&under("callgrind", &program.hooked(), &out))?;
    let mut theirs = BTreeMap::<String, u64>::new();
    for entry in std::fs::read_dir(&out)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path).context("callgrind wrote no file")?;
        for (name, calls) in callgrind_calls(&text) {
            *theirs.entry(name).or_default() += calls;
        }
        std::fs::remove_file(path)?;
    }
    let mut names = BTreeMap::<String, u64>::new();
    for (address, calls) in ours {
        if let Some(name) = symbol(program.file(), address)? {
            *names.entry(name).or_default() += calls;
        }
    }
    let both = names
        .iter()
        .filter_map(|(name, calls)| Some((calls, theirs.get(name)?)));
    let both = both.collect::<Vec<_>>();
    let differing = both.iter().filter(|(ours, theirs)| ours != theirs).count();
    Ok((both.len(), differing))
}

/// The symbol that begins at an address, as the file has it.
fn symbol(file: &Path, address: u64) -> Result<Option<String>> {
    let mut names = corewise_analyses::names::Names::default();
    let module = corewise_analyses::region::Module {
        bias: 0,
        start: 0,
        end: u64::MAX,
        path: file.as_os_str().as_encoded_bytes().to_vec(),
    };
    Ok(Some(names.of(&[module], address).name))
}

/// How often each function is called in a file of callgrind's (its manual's format: names are numbered, and
/// given once).
fn callgrind_calls(text: &str) -> BTreeMap<String, u64> {
    let mut names = BTreeMap::<String, String>::new();
    let mut calls = BTreeMap::<String, u64>::new();
    let mut callee = None;
    for line in text.lines() {
        if let Some((kind, rest)) = line.split_once('=')
            && (kind == "fn" || kind == "cfn")
        {
            let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
            if !name.is_empty() {
                names.insert(number.to_owned(), name.to_owned());
            }
            if kind == "cfn" {
                callee = names.get(number).cloned();
            }
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count = rest.split(' ').next().and_then(|n| n.parse::<u64>().ok());
            if let (Some(name), Some(count)) = (callee.take(), count) {
                // Callgrind tells the levels of recursion apart.
                let name = name.split('\'').next().unwrap_or(&name).to_owned();
                *calls.entry(name).or_default() += count;
            }
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_a_file_of_callgrinds() {
        let text = "fn=(1) main\n3 10\ncfn=(2) leaf\ncalls=7 4\n5 70\ncfn=(2)\ncalls=3 4\n6 30\nfn=(2)\ncfn=(3) leaf'2\ncalls=1 4\n1 1\n";
        let calls = callgrind_calls(text);
        assert_eq!(calls, BTreeMap::from([("leaf".to_owned(), 11)]));
    }
}
