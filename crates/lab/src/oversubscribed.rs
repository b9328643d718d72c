//! `oversubscription`: products of matrices by an OpenMP program A with 1 to 4N threads, its schedule static and
//! dynamic, alone and beside a program B with a fixed number: the times of both, the throughput of the system, and
//! what the detector makes of A's times (Christmann et al., Figures 1 to 4). And one thread a CPU, bound and unbound
//! (Thread Reinforcer, Figure 1).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use corewise_decide::search::oversubscription::{Model, detect};

use crate::adapted::compiled;
use crate::corewise::Corewise;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::allowed_cpus;
use crate::measure::{Job, Started};
use crate::stats::{interleaved, median};

/// No run takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// For its products to be there, B runs for so long before A does.
const HEAD_START: Duration = Duration::from_millis(60);

/// How A deals its work out; matrices of so many rows, and so many products a run. A product with one thread takes some
/// 13 ms with the static schedule, which is long beside a slice of the scheduler and short beside its balancing, and
/// some 100 ms with the dynamic one: there, each slice that a thread is kept waiting at the end of a product counts.
struct Schedule {
    name: &'static str,
    size: u32,
    products: u32,
}

const STATIC: Schedule = Schedule {
    name: "static",
    size: 320,
    products: 40,
};

const DYNAMIC: Schedule = Schedule {
    name: "dynamic",
    size: 640,
    products: 6,
};

/// One way to run A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    dynamic: bool,
    beside: bool,
    threads: u32,
    bound: bool,
}

impl Cell {
    fn schedule(self) -> &'static Schedule {
        match self.dynamic {
            true => &DYNAMIC,
            false => &STATIC,
        }
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug)]
struct Ran {
    /// Of a product of A.
    seconds: f64,
    /// A's part of the CPUs' time.
    part: f64,
    /// Of a product of B, while A ran.
    of_b: f64,
    /// Products a second of both; B's counted by their work, as so many of A's.
    both: f64,
}

/// Runs the experiment.
///
/// # Errors
/// If the program does not compile, or fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "oversubscription",
        "products of matrices with 1 to 4N OpenMP threads, static and dynamic, alone and beside a program with a fixed \
         number of threads; what the detector says of it",
        "all in one",
    );
    let cpus = u32::try_from(allowed_cpus()?.len()).unwrap_or(1).max(1);
    anyhow::ensure!(
        cpus > 1,
        "there is a single CPU here: nothing can be shared out"
    );
    let others = cpus / 2;
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let program = compiled(context, "sections.c", folder.path())?;
    let cells = cells(cpus);
    if context.names_any(&["detector"]) {
        detector(context, &mut report, &program, cpus, others)?;
        return Ok(report);
    }
    let rounds = context.rounds(5, 1);
    let mut ran: Vec<Vec<Ran>> = vec![Vec::new(); cells.len()];
    for (round, index) in interleaved(0..cells.len(), rounds, context.first()?) {
        ran[index].push(once(&program, cells[index], others, cpus)?);
        if index == 0 {
            context.say(format_args!("round {}", round + 1));
        }
    }
    let of = |wanted: Cell, field: fn(&Ran) -> f64| {
        let index = cells.iter().position(|cell| *cell == wanted);
        let samples = index.map_or(&[][..], |index| &ran[index]);
        median(&samples.iter().map(field).collect::<Vec<_>>())
    };
    figures(&mut report, cpus, others, &of);
    detector(context, &mut report, &program, cpus, others)?;
    report.note(format!(
        "N = {cpus} CPUs; B has {others} threads, static; medians of {rounds} rounds",
    ));
    report.note(format!(
        "A: static, matrices of {} rows, {} products a run; dynamic, {} rows, {} products",
        STATIC.size, STATIC.products, DYNAMIC.size, DYNAMIC.products
    ));
    Ok(report)
}

/// Every way to run A; bound ones only with one thread a CPU.
fn cells(cpus: u32) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (dynamic, beside) in [(false, false), (false, true), (true, false), (true, true)] {
        let cell = |threads, bound| Cell {
            dynamic,
            beside,
            threads,
            bound,
        };
        cells.extend((1..=4 * cpus).map(|threads| cell(threads, false)));
        cells.push(cell(cpus, true));
    }
    cells
}

/// The tables, and the bars about times and throughput.
fn figures(report: &mut Report, cpus: u32, others: u32, of: &dyn Fn(Cell, fn(&Ran) -> f64) -> f64) {
    let most = 4 * cpus;
    let cell = |dynamic, beside, threads| Cell {
        dynamic,
        beside,
        threads,
        bound: false,
    };
    let mut table = Table::new(
        "ms a product, alone and beside B; CPUs' worth of both programs' work; A's part of the CPUs' time",
        &[
            "threads of A",
            "static, alone",
            "beside B",
            "B",
            "dynamic, alone",
            "beside B",
            "B",
            "both, dynamic",
            "A's part",
            "Eq. 1",
        ],
    );
    let model = Model { cpus, others };
    let ms = |cell| number(1000.0 * of(cell, |ran| ran.seconds));
    let b_ms = |cell| number(1000.0 * of(cell, |ran| ran.of_b));
    // Work is counted by what one thread alone does in a second: a CPU's worth.
    let one = of(cell(true, false, 1), |ran| ran.seconds);
    let worth = |cell| one * of(cell, |ran| ran.both);
    let mut off: f64 = 0.0;
    for x in 1..=most {
        let (part, said) = (of(cell(true, true, x), |ran| ran.part), model.part(x));
        let crowded = x + others > cpus;
        if crowded {
            off = off.max((part / said - 1.0).abs());
        }
        table.row([
            x.to_string(),
            ms(cell(false, false, x)),
            ms(cell(false, true, x)),
            b_ms(cell(false, true, x)),
            ms(cell(true, false, x)),
            ms(cell(true, true, x)),
            b_ms(cell(true, true, x)),
            format!("{:.2}", worth(cell(true, true, x))),
            format!("{part:.2}"),
            match crowded {
                true => format!("{said:.2}"),
                false => "-".to_owned(),
            },
        ]);
    }
    report.tables.push(table);
    for (name, dynamic, beside, expected) in [
        ("static_alone", false, false, Some(cpus + 1)),
        ("static_beside", false, true, Some(cpus - others + 1)),
        ("dynamic_alone", true, false, None),
        ("dynamic_beside", true, true, None),
    ] {
        let seconds: Vec<f64> = (1..=most)
            .map(|x| of(cell(dynamic, beside, x), |ran| ran.seconds))
            .collect();
        let artefact = detect(cpus, &seconds).artefact.map_or(0.0, f64::from);
        report.figure(format!("{name}_artefact"), artefact);
        if let Some(expected) = expected {
            report.bars.push(Bar::at_most(
                format!(
                    "{}: the artefact, threads off {expected} (at most)",
                    name.replace('_', ", ")
                ),
                (artefact - f64::from(expected)).abs(),
                0.0,
            ));
        }
    }
    let both: Vec<f64> = (1..=most).map(|x| worth(cell(true, true, x))).collect();
    let best = both.iter().copied().fold(0.0, f64::max);
    let full = both[(cpus - others - 1) as usize];
    report.figure(
        "throughput_where_cpus_are_just_enough_over_best",
        full / best,
    );
    report.bars.push(Bar::at_least(
        "throughput of the system where the threads just fill the CPUs, over the best (at least)",
        full / best,
        0.95,
    ));
    report.figure("part_of_the_machine_off_eq_1", off);
    report.bars.push(Bar::at_most(
        "dynamic: A's part of the CPUs' time off Eq. 1, as a part of it, at most (at most)",
        off,
        0.1,
    ));
    let b = |x| of(cell(true, true, x), |ran| ran.of_b);
    report.figure("b_slowed_down_by_most_threads", b(most) / b(1));
    for (name, dynamic, beside) in [
        ("static_alone", false, false),
        ("static_beside", false, true),
        ("dynamic_alone", true, false),
        ("dynamic_beside", true, true),
    ] {
        let unbound = cell(dynamic, beside, cpus);
        let bound = Cell {
            bound: true,
            ..unbound
        };
        let ratio = of(bound, |ran| ran.seconds) / of(unbound, |ran| ran.seconds);
        report.figure(format!("bound_over_unbound_{name}"), ratio);
    }
}

/// What `corewise tune --detect-oversubscription` says of A, alone and beside B.
fn detector(
    context: &Context,
    report: &mut Report,
    program: &Path,
    cpus: u32,
    others: u32,
) -> Result<()> {
    let corewise = Corewise::new(context)?;
    let a = job(program, &STATIC, 2000);
    let (mut right, mut disturbed) = (0.0, 0.0);
    let rounds = context.rounds(3, 1);
    for _ in 0..rounds {
        for busy in [0, others] {
            let b = (busy > 0).then(|| start_b(program, busy)).transpose()?;
            let words = ["tune", "--detect-oversubscription", "--json"];
            let detect = corewise.job(&words, &a);
            let said = detect.output(Duration::from_secs(300))?.success(&detect)?;
            if let Some(b) = b {
                b.finish(Duration::ZERO)?;
            }
            let said: serde_json::Value = serde_json::from_slice(&said.stdout)?;
            let found = said["oversubscription"]["others"].as_u64();
            disturbed += f64::from(said["oversubscription"]["disturbed"] == true);
            context.say(format_args!(
                "beside {busy} busy threads: {found:?}, by rounds {}, step {} of what is expected, {:.1} s",
                said["oversubscription"]["by_round"],
                said["oversubscription"]["as_expected"],
                said["search_seconds"].as_f64().unwrap_or(0.0)
            ));
            right += f64::from(found == Some(u64::from(busy)));
            report.figure(
                format!("tune_seconds_beside_{busy}"),
                said["search_seconds"].as_f64().unwrap_or(0.0),
            );
        }
    }
    let all = f64::from(2 * rounds);
    report.figure("tune_says_disturbed", disturbed);
    let name = |what: &str| {
        format!("`tune --detect-oversubscription`, alone and beside {others} of {cpus}: {what}")
    };
    let bar = Bar::at_least(name("right, as a part (at least)"), right / all, 1.0);
    report.bars.push(bar);
    let wrong = all - right - disturbed;
    let bar = Bar::at_most(name("wrong, and not `disturbed` (at most)"), wrong, 0.0);
    report.bars.push(bar);
    Ok(())
}

fn job(program: &Path, schedule: &Schedule, products: u32) -> Job {
    Job::new([
        program.display().to_string(),
        schedule.name.to_owned(),
        schedule.size.to_string(),
        products.to_string(),
    ])
}

/// B, which ends when it is told to.
fn start_b(program: &Path, threads: u32) -> Result<Started> {
    let job = job(program, &STATIC, 0).with("OMP_NUM_THREADS", threads.to_string());
    let started = job.start(true)?;
    std::thread::sleep(HEAD_START);
    Ok(started)
}

/// What the program says of itself: when it began, its CPU time, and when each product was done.
struct Said {
    began: f64,
    used: f64,
    done: Vec<f64>,
}

fn said(stdout: &[u8]) -> Result<Said> {
    let text = std::str::from_utf8(stdout)?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    match numbers?.split_first_chunk() {
        Some((&[began, used], done)) if !done.is_empty() => Ok(Said {
            began,
            used,
            done: done.to_vec(),
        }),
        _ => anyhow::bail!("the program made no product"),
    }
}

fn once(program: &Path, cell: Cell, others: u32, cpus: u32) -> Result<Ran> {
    let b = cell.beside.then(|| start_b(program, others)).transpose()?;
    let schedule = cell.schedule();
    let mut a =
        job(program, schedule, schedule.products).with("OMP_NUM_THREADS", cell.threads.to_string());
    if cell.bound {
        a = a
            .with("OMP_PROC_BIND", "true")
            .with("OMP_PLACES", "threads");
    }
    let of_a = said(&a.output(LONGEST)?.success(&a)?.stdout)?;
    // It is told to end, and says what it did.
    let of_b = match b {
        Some(b) => Some(said(&b.finish(Duration::ZERO)?.stdout)?),
        None => None,
    };
    let end = of_a.done.last().copied().unwrap_or(of_a.began);
    let wall = end - of_a.began;
    // B's products lie across the ends of A's time: their times count, not their number.
    let within = of_b
        .as_ref()
        .map_or(0.0, |b| products_within(b, of_a.began, end));
    let work = |schedule: &Schedule| f64::from(schedule.size).powi(3);
    let in_as_products = within * work(&STATIC) / work(schedule);
    Ok(Ran {
        seconds: wall / of_a.done.len() as f64,
        part: of_a.used / (wall * f64::from(cpus)),
        of_b: wall / within.max(f64::MIN_POSITIVE),
        both: (of_a.done.len() as f64 + in_as_products) / wall,
    })
}

/// How many products were made from `begin` to `end`, those at the ends in part.
fn products_within(said: &Said, begin: f64, end: f64) -> f64 {
    let starts = std::iter::once(&said.began).chain(&said.done);
    let products = starts.zip(&said.done);
    products
        .map(|(from, to)| {
            let inside = (to.min(end) - from.max(begin)).max(0.0);
            inside / (to - from).max(f64::MIN_POSITIVE)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_at_the_ends_count_in_part() {
        let said = Said {
            began: 0.0,
            used: 0.0,
            done: vec![1.0, 2.0, 4.0],
        };
        assert_eq!(products_within(&said, 0.5, 3.0), 0.5 + 1.0 + 0.5);
        assert_eq!(products_within(&said, 4.0, 5.0), 0.0);
    }

    #[test]
    fn what_the_program_prints_is_read() {
        let read = said(b"10.5 2.25\n11.0\n12.0\n").unwrap();
        assert_eq!((read.began, read.used), (10.5, 2.25));
        assert_eq!(read.done, [11.0, 12.0]);
        assert!(said(b"10.5 2.25\n").is_err());
    }
}
