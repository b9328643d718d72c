//! `sim-oversubscription`: a program whose work is dealt out in advance, with 1 to 32 threads on eight simulated
//! CPUs, alone and beside others that are busy: where its time rises, and what the detector makes of it (Christmann
//! et al., Figures 1 to 4).

use std::sync::Arc;

use anyhow::{Context as _, Result};
use corewise_decide::search::oversubscription::{Model, detect};
use corewise_sim::machine::{Scheduler, SimMachine};
use corewise_sim::program::ProgramSpec;
use corewise_sim::scenario::{Entry, Scenario};
use corewise_sim::world::{Options, simulate};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::median;

/// CPUs of the paper's machine.
const CPUS: u32 = 8;

/// Threads of the other program in the paper.
const OTHERS: u32 = 4;

/// How the program's work is dealt out to its threads, and CPUs to all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Static,
    Dynamic,
    /// Dynamic, and all the work in one section: its threads are ready to run until the end, as Equation 1 assumes.
    WithoutPause,
    /// Dynamic, where CPUs are not Linux's to deal out: threads change CPUs when their quantum is over, so that all
    /// get as much, as Equation 1 assumes.
    ByTurns,
}

/// The quantum then.
const QUANTUM_NS: u64 = 20_000_000;

/// Parallel sections of the program, each of so much work, in milliseconds: of the order of the paper's products
/// of matrices.
const SECTIONS: u32 = 12;
const WORK_MS: u32 = 2_000;

/// What came of a run.
#[derive(Clone, Copy)]
struct Ran {
    /// Of a section, in the mean.
    seconds: f64,
    /// The program's part of the machine's time.
    part: f64,
    /// CPUs' worth of work that was done by both.
    both: f64,
}

/// Runs the experiment.
///
/// # Errors
/// If a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-oversubscription",
        "simulated: a program with static and dynamic schedules, 1 to 32 threads on 8 CPUs, alone and beside busy threads",
        "both in one session",
    );
    let seeds = u64::from(context.rounds(5, 1));
    let most = if context.quick { 12 } else { 4 * CPUS };
    let mut table = Table::new(
        "a section's time in ms; the program's part of the machine's time, and CPUs' worth of work of both, beside four",
        &[
            "threads",
            "static, alone",
            "beside 4",
            "dynamic, alone",
            "beside 4",
            "part",
            "without pause",
            "by turns",
            "Eq. 1",
            "both",
        ],
    );
    let curve = |case, others| -> Result<Vec<Ran>> {
        (1..=most)
            .map(|x| typical(case, others, x, seeds))
            .collect()
    };
    let all = [
        (Case::Static, 0),
        (Case::Static, OTHERS),
        (Case::Dynamic, 0),
        (Case::Dynamic, OTHERS),
        (Case::WithoutPause, OTHERS),
        (Case::ByTurns, OTHERS),
    ];
    let all = all.map(|(schedule, others)| curve(schedule, others));
    let [alone, beside, dynamic_alone, dynamic, ready, by_turns] = all;
    let (alone, beside, dynamic_alone) = (alone?, beside?, dynamic_alone?);
    let (dynamic, ready, by_turns) = (dynamic?, ready?, by_turns?);
    let model = Model {
        cpus: CPUS,
        others: OTHERS,
    };
    let (mut off, mut off_ready, mut off_by_turns) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (x, index) in (1..=most).zip(0..) {
        let ms = |of: &[Ran]| number(1000.0 * of[index].seconds);
        let (part, said) = (dynamic[index].part, model.part(x));
        if x + OTHERS > CPUS {
            let is_off = |part: f64| (part / said - 1.0).abs();
            off = off.max(is_off(part));
            off_ready = off_ready.max(is_off(ready[index].part));
            off_by_turns = off_by_turns.max(is_off(by_turns[index].part));
        }
        table.row([
            x.to_string(),
            ms(&alone),
            ms(&beside),
            ms(&dynamic_alone),
            ms(&dynamic),
            format!("{part:.2}"),
            format!("{:.2}", ready[index].part),
            format!("{:.2}", by_turns[index].part),
            if x + OTHERS > CPUS {
                format!("{said:.2}")
            } else {
                "-".to_owned()
            },
            format!("{:.2}", dynamic[index].both),
        ]);
    }
    report.tables.push(table);

    let artefact = |of: &[Ran]| detect(CPUS, &seconds(of)).artefact.map_or(0.0, f64::from);
    for (name, of, papers) in [
        ("alone", &alone, 9.0),
        ("beside four busy threads", &beside, 5.0),
    ] {
        report.bars.push(Bar::at_most(
            format!("static, {name}: the artefact, threads off {papers} (at most)"),
            (artefact(of) - papers).abs(),
            0.0,
        ));
    }
    for (name, of) in [("alone", &dynamic_alone), ("beside four", &dynamic)] {
        report.figure(
            format!("dynamic_{}_artefact", name.replace(' ', "_")),
            artefact(of),
        );
    }
    let mut right = 0;
    for others in 0..CPUS - 1 {
        let runs = (1..=CPUS + 1).map(|x| typical(Case::Static, others, x, seeds));
        let runs = runs.collect::<Result<Vec<Ran>>>()?;
        let detected = detect(CPUS, &seconds(&runs));
        report.figure(
            format!("detected_beside_{others}"),
            f64::from(detected.others),
        );
        report.figure(
            format!("rise_beside_{others}_over_expected"),
            detected.as_expected,
        );
        right += u32::from(detected.others == others && detected.artefact.is_some());
    }
    report.bars.push(Bar::at_least(
        "the detector's answer is right beside 0 to 6 busy threads, of 7 (at least)",
        f64::from(right),
        7.0,
    ));
    report.figure("part_of_the_machine_off_eq_1", off);
    report.figure("part_of_the_machine_without_pause_off_eq_1", off_ready);
    report.bars.push(Bar::at_most(
        "dynamic, beside four: the program's part of the machine off Eq. 1, as a part of it, at most (at most)",
        off,
        0.1,
    ));
    report.bars.push(Bar::at_most(
        "the same where CPUs are dealt out to all threads by turns, and not by Linux (at most)",
        off_by_turns,
        0.1,
    ));
    report.note(format!(
        "medians of {seeds} seeds; the others never stop; without pause: all work in one section; by turns: each thread has \
         a CPU for {} ms, then goes to the next CPU with a shorter queue (OpenSolaris')",
        QUANTUM_NS / 1_000_000,
    ));
    Ok(report)
}

fn seconds(of: &[Ran]) -> Vec<f64> {
    of.iter().map(|ran| ran.seconds).collect()
}

fn typical(case: Case, others: u32, threads: u32, seeds: u64) -> Result<Ran> {
    let runs = (0..seeds).map(|seed| once(case, others, threads, seed));
    let runs = runs.collect::<Result<Vec<Ran>>>()?;
    let of = |field: fn(&Ran) -> f64| median(&runs.iter().map(field).collect::<Vec<_>>());
    Ok(Ran {
        seconds: of(|r| r.seconds),
        part: of(|r| r.part),
        both: of(|r| r.both),
    })
}

fn once(case: Case, others: u32, threads: u32, seed: u64) -> Result<Ran> {
    let sections = match case {
        Case::WithoutPause => 1,
        _ => SECTIONS,
    };
    let work_ms = WORK_MS * SECTIONS / sections;
    let units = match case {
        Case::Static => String::new(),
        _ => format!(", schedule = \"dynamic\", units = {work_ms}"),
    };
    let a = format!(
        "name = \"A\"\n[[phase]]\nrepeat = {sections}\nregion = {{ work_ms = {work_ms}{units} }}\n",
    );
    let b = format!(
        "name = \"B\"\n[[phase]]\n[[phase.group]]\nname = \"busy\"\nthreads = {}\nrepeat = \"forever\"\n\
         steps = [{{ work_us = 10_000 }}]\n",
        others.max(1),
    );
    let entry = |name: &str, text: &str| -> Result<Entry> {
        let mut entry = Entry::new(name, Arc::new(ProgramSpec::from_toml(text)?));
        entry.managed = None;
        Ok(entry)
    };
    let mut machine = SimMachine::flat(CPUS);
    if case == Case::ByTurns {
        machine.scheduler = Scheduler::Solaris {
            quantum_ns: QUANTUM_NS,
        };
    }
    let mut scenario = Scenario::new(format!("{case:?} {threads} + {others}"), machine);
    scenario.seed = seed;
    let mut program = entry("A", &a)?;
    program.threads = Some(threads);
    program.start_ns = 20_000_000;
    scenario.entries.push(program);
    if others > 0 {
        let mut busy = entry("B", &b)?;
        busy.background = true;
        scenario.entries.push(busy);
    }
    let report = simulate(&scenario, Options::default())?.report;
    let find = |name: &str| report.programs.iter().find(|p| p.entry == name);
    let a = find("A").context("the program has not run")?;
    let wall = a.wall_seconds;
    let beside = find("B").map_or(0.0, |b| b.run_seconds * wall / report.wall_seconds);
    Ok(Ran {
        seconds: wall / f64::from(sections),
        part: a.run_seconds / (a.run_seconds + beside),
        both: (a.work_seconds + beside) / wall,
    })
}
