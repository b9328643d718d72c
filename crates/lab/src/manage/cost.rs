//! `manager-cost`: Table 3 of REEact's paper (section 3): what it costs programs to be managed, for 1 to
//! 16 programs of 1 to 8 threads, under a policy that reads everything and changes nothing; and what
//! the manager and the local managers use themselves. Programs nobody changed have a local manager
//! beside them; programs that link corewise have theirs inside.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::actor::{self, Beside};
use crate::experiment::{Bar, Context, Report, Table};
use crate::manage::stage::{Manager, Player};
use crate::stats::{Estimate, interleaved, median, paired_ratio};

const PROGRAMS: [usize; 5] = [1, 2, 4, 8, 16];
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// The paper's machine had 64 thread contexts, and leaves the cell of 128 threads out.
const MOST_THREADS: usize = 64;
/// Periods of reading, in milliseconds; the grid is measured at the first.
const PERIODS_MS: [u64; 5] = [10, 100, 1_000, 10_000, 32_000];
/// Programs and threads for which periods are compared.
const AT: (usize, usize) = (4, 4);
/// Work of each program in CPU milliseconds, and the least of all programs of a cell together. (The
/// paper's programs ran for many seconds: what starting a local manager costs once should not pass for
/// what being managed costs all the time.)
const WORK_EACH_MS: u64 = 1_000;
const LEAST_WORK_MS: u64 = 2_000;
const UNIT_US: u64 = 1_000;
/// How long it may take to start a program.
const START_MS: u64 = 40;

/// Who carries a program's local part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A local manager beside a program nobody changed.
    Beside,
    /// The library that the program links.
    Linked,
}

/// Runs the experiment. `--only grid`, `--only periods` and `--only own` pick one part.
///
/// # Errors
/// If a program or the manager cannot be started.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "manager-cost",
        "programs of a fixed amount of work under a manager that reads and changes nothing, against \
         the same programs without, in pairs; and the managers' own CPU time",
        "everything in the lab's session",
    );
    let parts = context.pick(&["grid", "periods", "own"]);
    let per_ms = actor::loops_per_ms();
    if parts.contains(&"own") {
        own(context, per_ms, &mut report)?;
    }
    if parts.contains(&"grid") {
        grid(context, per_ms, &mut report)?;
    }
    if parts.contains(&"periods") {
        periods(context, per_ms, &mut report)?;
    }
    Ok(report)
}

/// The managers' CPU time with 64 threads, read every 10 ms.
fn own(context: &Context, per_ms: u64, report: &mut Report) -> Result<()> {
    let seconds = if context.quick { 2 } else { 5 };
    for (kind, name) in [(Kind::Beside, "beside"), (Kind::Linked, "linked")] {
        let mut shares = Vec::new();
        let mut of_manager = Vec::new();
        for round in 0..context.rounds(3, 1) {
            let manager = Manager::observer(context, PERIODS_MS[0])?;
            let work = Work {
                programs: 8,
                threads: 8,
                // Twice the time that is measured, on every CPU.
                work_ms: seconds * 2_000 * crate::load::allowed_cpus()?.len() as u64,
                per_ms,
            };
            let mut players = work.start(Some((&manager, kind)))?;
            let before = Used::now(&manager, &players, kind)?;
            std::thread::sleep(Duration::from_secs(seconds));
            let after = Used::now(&manager, &players, kind)?;
            let span = (after.at - before.at).as_secs_f64();
            let cpus = |ns: u64| ns as f64 / 1e9 / span;
            of_manager.push(cpus(after.manager_ns - before.manager_ns));
            let mut all = after.manager_ns - before.manager_ns;
            all += after.local_ns - before.local_ns;
            shares.push(cpus(all));
            context.say(format_args!(
                "own, {name}, round {}: {:.4} CPUs",
                round + 1,
                cpus(all)
            ));
            players.drain(..).try_for_each(Player::kill)?;
        }
        report.figure(format!("own_cpus_64_threads_10ms_{name}"), median(&shares));
        report.figure(
            format!("manager_cpus_64_threads_10ms_{name}"),
            median(&of_manager),
        );
        report.bars.push(Bar::at_most(
            format!("managers' own CPUs, 64 threads, 10 ms, {name} (at most)"),
            median(&shares),
            0.02,
        ));
    }
    Ok(())
}

/// CPU time used so far by the manager and the local managers.
struct Used {
    at: Instant,
    manager_ns: u64,
    local_ns: u64,
}

impl Used {
    fn now(manager: &Manager, players: &[Player], kind: Kind) -> Result<Used> {
        let mut local_ns = 0;
        for player in players {
            local_ns += match kind {
                // The process beside does nothing else.
                Kind::Beside => crate::manage::stage::cpu_ns(player.pid())?,
                Kind::Linked => listener_ns(player.pid()),
            };
        }
        Ok(Used {
            at: Instant::now(),
            manager_ns: manager.cpu_ns()?,
            local_ns,
        })
    }
}

/// Run time of the library's own thread within a program.
fn listener_ns(pid: i32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let of_library = tasks.flatten().filter(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == "corewise")
    });
    of_library
        .filter_map(|task| crate::load::run_ns(&task.path().join("schedstat").to_string_lossy()))
        .sum()
}

/// Slow-down for every cell of the paper's table.
fn grid(context: &Context, per_ms: u64, report: &mut Report) -> Result<()> {
    let mut cells = Vec::new();
    for programs in PROGRAMS {
        for threads in THREADS {
            if programs * threads <= MOST_THREADS {
                cells.push((programs, threads));
            }
        }
    }
    if context.quick {
        cells.retain(|c| [(1, 1), (4, 4), (8, 8)].contains(c));
    }
    let periods = vec![PERIODS_MS[0]; cells.len()];
    let slow = pairs(context, per_ms, &cells, &periods)?;
    for (title, of) in MEASURES {
        let mut table = Table::new(
            format!(
                "{title} under the manager over without, read every 10 ms: median and 95 % interval"
            ),
            &[
                "programs",
                "1 thread",
                "2 threads",
                "4 threads",
                "8 threads",
            ],
        );
        for programs in PROGRAMS {
            let cell = |threads| {
                let index = cells.iter().position(|c| *c == (programs, threads));
                index.map_or("-".to_owned(), |i| of(&slow[i]).to_string())
            };
            table.row(std::iter::once(programs.to_string()).chain(THREADS.map(cell)));
        }
        report.tables.push(table);
        judge(
            report,
            title,
            &cells,
            &slow.iter().map(of).collect::<Vec<_>>(),
        );
    }
    Ok(())
}

/// Slow-down for every period, with the same programs.
fn periods(context: &Context, per_ms: u64, report: &mut Report) -> Result<()> {
    let cells = vec![AT; PERIODS_MS.len()];
    let slow = pairs(context, per_ms, &cells, &PERIODS_MS)?;
    let mut table = Table::new(
        "under the manager over without, 4 programs of 4 threads",
        &["period, ms", MEASURES[0].0, MEASURES[1].0],
    );
    for (ms, slow) in PERIODS_MS.iter().zip(&slow) {
        table.row([
            ms.to_string(),
            slow.by_time.to_string(),
            slow.by_cpu_time.to_string(),
        ]);
        report.figure(format!("slow_down_period_{ms}ms"), slow.by_cpu_time.median);
    }
    report.tables.push(table);
    Ok(())
}

/// What times are put in relation to, and which estimate that is.
type Measure = (&'static str, fn(&Slow) -> Estimate);

const MEASURES: [Measure; 2] = [
    ("time", |slow| slow.by_time),
    ("time for CPU time used", |slow| slow.by_cpu_time),
];

fn judge(report: &mut Report, what: &str, cells: &[(usize, usize)], slow: &[Estimate]) {
    let key = what.replace(' ', "_");
    let mut worst = f64::NEG_INFINITY;
    let mut narrow = 0;
    for ((programs, threads), slow) in cells.iter().zip(slow) {
        report.figure(format!("slow_down_{key}_{programs}x{threads}"), slow.median);
        // A wider interval cannot tell 1 % from nothing.
        if slow.high - slow.low <= 0.02 {
            narrow += 1;
            worst = worst.max(slow.median - 1.0);
        }
    }
    let all: Vec<f64> = slow.iter().map(|s| s.median).collect();
    report.figure(format!("slow_down_{key}_median"), median(&all));
    report.figure(
        format!("cells_with_narrow_intervals_{key}"),
        f64::from(narrow),
    );
    if narrow > 0 {
        report.bars.push(Bar::at_most(
            format!("slow-down by {what}, worst of the {narrow} cells whose interval is at most 2 % wide"),
            worst,
            0.01,
        ));
    }
}

/// Times with a manager over times without.
struct Slow {
    /// As a clock has it.
    by_time: Estimate,
    /// Each in relation to the CPU time that the programs used.
    by_cpu_time: Estimate,
}

/// For each cell, times with a manager that reads with its period over times without, run in pairs.
fn pairs(
    context: &Context,
    per_ms: u64,
    cells: &[(usize, usize)],
    periods_ms: &[u64],
) -> Result<Vec<Slow>> {
    let mut with = vec![Vec::new(); cells.len()];
    let mut without = vec![Vec::new(); cells.len()];
    for (round, cell) in interleaved(0..cells.len(), context.rounds(7, 2), 11) {
        let (programs, threads) = cells[cell];
        let work = Work {
            programs,
            threads,
            work_ms: LEAST_WORK_MS.max(WORK_EACH_MS * programs as u64),
            per_ms,
        };
        let managed = |with: &mut Vec<Took>| -> Result<()> {
            let manager = Manager::observer(context, periods_ms[cell])?;
            with.push(work.run(Some((&manager, Kind::Beside)))?);
            Ok(())
        };
        // The first of a pair may find another machine than the second: they take turns.
        if round % 2 == 0 {
            managed(&mut with[cell])?;
            without[cell].push(work.run(None)?);
        } else {
            without[cell].push(work.run(None)?);
            managed(&mut with[cell])?;
        }
    }
    let ratio = |cell: usize, of: fn(&Took) -> f64| {
        let values = |took: &[Took]| took.iter().map(of).collect::<Vec<f64>>();
        paired_ratio(&values(&with[cell]), &values(&without[cell]))
    };
    let all = (0..cells.len()).map(|cell| Slow {
        by_time: ratio(cell, |took| took.seconds),
        by_cpu_time: ratio(cell, |took| took.per_cpu_time),
    });
    Ok(all.collect())
}

/// The programs of a cell.
struct Work {
    programs: usize,
    threads: usize,
    work_ms: u64,
    per_ms: u64,
}

impl Work {
    /// Starts the programs: each holds its work back until it is told to begin.
    fn start(&self, manager: Option<(&Manager, Kind)>) -> Result<Vec<Player>> {
        let units = (self.work_ms * 1_000 / UNIT_US / self.programs as u64).to_string();
        let loops = (self.per_ms * UNIT_US / 1_000).to_string();
        let threads = self.threads.to_string();
        let mut players = Vec::new();
        // All begin together, however long it takes to start and to manage them.
        let start = actor::now_ns() + START_MS * 1_000_000 * (self.programs as u64 + 4);
        for _ in 0..self.programs {
            let beside = |how| ["beside", &units, &loops, &threads, how];
            let mut player = match manager {
                None => Player::start_at(&beside("alone"), None, start)?,
                Some((m, Kind::Beside)) => Player::start_at(&beside("managed"), Some(m), start)?,
                Some((m, Kind::Linked)) => {
                    Player::start_at(&["team", &units, &loops, &threads], Some(m), start)?
                }
            };
            player.line().context("a program did not begin")?;
            players.push(player);
        }
        Ok(players)
    }

    /// Runs the programs to their end.
    fn run(&self, manager: Option<(&Manager, Kind)>) -> Result<Took> {
        let (mut began, mut ended, mut run) = (u64::MAX, 0, 0);
        for player in self.start(manager)? {
            let beside: Beside = player.finish()?;
            began = began.min(beside.program.began_ns);
            ended = ended.max(beside.program.ended_ns);
            run += beside.program.run_ns;
        }
        let seconds = ended.saturating_sub(began) as f64 / 1e9;
        Ok(Took {
            seconds,
            per_cpu_time: seconds * 1e9 / run.max(1) as f64,
        })
    }
}

/// What the programs of a cell took together, from the first's begin to the last's end.
#[derive(Clone, Copy, Debug)]
struct Took {
    seconds: f64,
    /// Seconds for each second of CPU time: what a host does to the CPUs' speed is in both.
    per_cpu_time: f64,
}
