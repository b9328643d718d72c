//! Experiment `programs`: does each program of the catalogue obey its number of threads, and how
//! long does it take? Whatever it finds wrong would make the other experiments meaningless.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::{allowed_cpus, capacity, run_ns};
use crate::measure::Job;
use crate::programs::{Catalogue, Wait};
use crate::stats::median;

/// Runs each program with one, two and three threads.
pub fn run(context: &Context) -> Result<Report> {
    let catalogue = Catalogue::read(context)?;
    let rounds = context.rounds(3, 1);
    let cpus = allowed_cpus()?.len() as u32;
    let mut report = Report::new(
        context,
        "programs",
        "each program of the catalogue with 1, 2 and 3 threads, alone",
        "everything in the lab's session",
    );
    report.figure("capacity", capacity(Duration::from_millis(500))?);
    let mut table = Table::new(
        "seconds (median), and threads that worked",
        &["program", "1", "2", "3", "worked at 1", "2", "3"],
    );
    let mut obey = (0_u32, 0_u32);
    let names = catalogue
        .programs
        .iter()
        .filter(|program| !program.fixed)
        .map(|program| program.name.as_str());
    for name in context.pick(&names.collect::<Vec<_>>()) {
        let program = catalogue.program(name)?;
        catalogue.installed(program)?;
        context.say(&program.name);
        let (mut seconds, mut worked) = (Vec::new(), Vec::new());
        for threads in 1..=3 {
            let job = catalogue.job(program, threads, Wait::Default, 1.0)?;
            let mut walls = Vec::new();
            let mut most = 0;
            for _ in 0..rounds {
                let (wall, workers) = watched(&job)?;
                walls.push(wall);
                most = most.max(workers);
            }
            let wall = median(&walls);
            report.figure(format!("{}.{threads}.seconds", program.name), wall);
            report.figure(format!("{}.{threads}.workers", program.name), most.into());
            seconds.push(number(wall));
            worked.push(most.to_string());
            if threads <= cpus {
                obey.0 += u32::from(most == threads);
                obey.1 += 1;
            }
        }
        table.row(
            [program.name.clone()]
                .into_iter()
                .chain(seconds)
                .chain(worked),
        );
    }
    report.tables.push(table);
    report.note(
        "a thread worked when it used at least a quarter of the CPU time of the busiest one; \
         threads are sampled every 20 ms; beyond the number of CPUs some runtimes stay at it \
         (OpenBLAS, oneTBB, primesieve), which is no fault",
    );
    report.bars.push(Bar::at_least(
        "share of settings up to the number of CPUs that were obeyed",
        f64::from(obey.0) / f64::from(obey.1),
        1.0,
    ));
    Ok(report)
}

/// Wall time in seconds, and how many threads worked.
fn watched(job: &Job) -> Result<(f64, u32)> {
    let started = job.start(false)?;
    let tasks = format!("/proc/{}/task", started.pid());
    let (done, stop) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let mut used = HashMap::new();
            loop {
                for task in std::fs::read_dir(&tasks).into_iter().flatten().flatten() {
                    let path = task.path().join("schedstat");
                    if let Some(ns) = run_ns(&path.to_string_lossy()) {
                        used.insert(task.file_name(), ns);
                    }
                }
                let wait = stop.recv_timeout(Duration::from_millis(20));
                if wait != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return used;
                }
            }
        });
        let run = started.finish(Duration::from_secs(120));
        drop(done);
        let used = watcher.join().unwrap_or_default();
        let run = run?.success(job)?;
        let most = used.values().copied().max().unwrap_or(0);
        let workers = used.values().filter(|&&ns| ns * 4 >= most).count();
        Ok((run.wall_seconds, workers as u32))
    })
}
