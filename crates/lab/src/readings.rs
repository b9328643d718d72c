//! `readings`: what is read of a program from outside, against what a made program knows of
//! itself (see [`crate::made`]), and what reading costs. `--only errors` and `--only cost` pick one
//! part.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corewise_decide::reading::{Method, ProgramReading, ThreadReading};
use corewise_machine::program::{Detail, LockOption, MonitorOptions, ProgramMonitor};

use crate::experiment::{Bar, Context, Report, Table};
use crate::made::{self, Known};
use crate::stats::{interleaved, median};

/// Time between two samples. Each reads at least the whole program's CPU time; every fifth reads
/// each thread's run and wait time, and every tenth everything.
const EVERY: Duration = Duration::from_millis(10);
const LIGHT_EVERY: u32 = 5;
const FULL_EVERY: u32 = 10;

/// The cells: do the threads stay or end, and how is lock time obtained?
const CELLS: [(&str, LockOption); 4] = [
    ("stay", LockOption::Best),
    ("end", LockOption::Best),
    ("stay", LockOption::Sampled),
    ("end", LockOption::Sampled),
];

/// Runs the experiment.
///
/// # Errors
/// If the made program cannot be started or watched.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "readings",
        "readings of a made program from outside, against what it knows of itself; and the \
         reader's own CPU time for 64 threads sampled every 10 ms (the whole program's CPU time; \
         every 50 ms each thread's run and wait time, every 100 ms everything)",
        "the made program and its reader run in the lab's session; nothing else is started",
    );
    let parts = context.pick(&["errors", "cost"]);
    if parts.contains(&"errors") {
        let errors = compare(context, &mut report)?;
        show_errors(&errors, &mut report);
    }
    if parts.contains(&"cost") {
        cost(context, &mut report)?;
    }
    Ok(report)
}

/// Relative errors by cell and counter, one for each round.
type Errors = BTreeMap<(usize, &'static str), Vec<f64>>;

fn compare(context: &Context, report: &mut Report) -> Result<Errors> {
    let mut errors = Errors::new();
    let rounds = context.rounds(7, 2);
    for (round, cell) in interleaved(0..CELLS.len(), rounds, 1) {
        let (what, lock) = CELLS[cell];
        context.say(format!(
            "round {}: threads {what}, lock {lock:?}",
            round + 1
        ));
        let options = MonitorOptions {
            lock,
            ..MonitorOptions::default()
        };
        let mut made = Made::start(what, options)?;
        if round == 0 && cell == 0 {
            for (name, sensing) in [
                ("lock", made.monitor.lock_method().clone()),
                ("spin", made.monitor.spin_method()),
            ] {
                let method = format!("{:?}", sensing.method);
                report.note(format!("{name}: {method} {}", sensing.why));
            }
            let exact = made.monitor.lock_method().method == Some(Method::Exact);
            report.figure("lock_is_exact", f64::from(u8::from(exact)));
        }
        let before = made.monitor.sample(Detail::Full)?;
        let known = made.run()?;
        let after = made.monitor.sample(Detail::Full)?;
        for (counter, error) in judge(&known, &before, &after) {
            errors.entry((cell, counter)).or_default().push(error);
        }
    }
    Ok(errors)
}

/// The relative error of each counter.
fn judge(
    known: &[Known],
    before: &ProgramReading,
    after: &ProgramReading,
) -> Vec<(&'static str, f64)> {
    // Of threads that stay, those are compared that know the counter; of threads that have ended
    // only the sum is left, so there must be nothing that somebody does not know.
    let stayed = |k: &Known| after.threads.iter().find(|t| t.tid == k.tid);
    let ended = known.iter().all(|k| stayed(k).is_none());
    let read = |value: fn(&ThreadReading) -> Option<u64>, knows: fn(&Known) -> Option<u64>| {
        let mut said = 0;
        let mut seen = 0;
        for thread in known {
            let Some(of_thread) = knows(thread) else {
                continue;
            };
            said += of_thread;
            seen += stayed(thread).and_then(value).unwrap_or(0);
        }
        if ended {
            let before = value(&before.ended).unwrap_or(0);
            seen = value(&after.ended).unwrap_or(0).saturating_sub(before);
        }
        (said > 0).then(|| (seen as f64 / said as f64 - 1.0).abs())
    };
    let mut errors = vec![
        ("run", read(|t| Some(t.run_ns), |k| Some(k.run_ns))),
        ("lock", read(|t| t.lock_ns, |k| k.lock_ns)),
        (
            "voluntary_switches",
            read(|t| t.voluntary_switches, |k| Some(k.voluntary_switches)),
        ),
        (
            "involuntary_switches",
            read(|t| t.involuntary_switches, |k| Some(k.involuntary_switches)),
        ),
        ("migrations", read(|t| t.migrations, |k| Some(k.migrations))),
    ];
    if !ended {
        // The others wait for a CPU too, but cannot know how long.
        errors.push(("cpu_wait", read(|t| Some(t.cpu_wait_ns), |k| k.cpu_wait_ns)));
    }
    let measured = errors.into_iter();
    measured.filter_map(|(c, e)| e.map(|e| (c, e))).collect()
}

fn show_errors(errors: &Errors, report: &mut Report) {
    let mut table = Table::new(
        "relative error of readings, median over rounds (largest)",
        &["counter", "threads", "lock time", "error", "largest"],
    );
    for ((cell, counter), of_rounds) in errors {
        let (what, lock) = CELLS[*cell];
        let error = median(of_rounds);
        let largest = of_rounds.iter().copied().fold(0.0, f64::max);
        let way = match lock {
            LockOption::Best => "best",
            _ => "sampled",
        };
        table.row([
            (*counter).to_owned(),
            what.to_owned(),
            way.to_owned(),
            format!("{error:.4}"),
            format!("{largest:.4}"),
        ]);
        report.figure(format!("{counter}_error_{what}_{way}"), error);
        if lock == LockOption::Best {
            let name = format!("error of {counter}, threads {what} (at most)");
            report.bars.push(Bar::at_most(name, error, 0.05));
        }
    }
    report.tables.push(table);
}

fn cost(context: &Context, report: &mut Report) -> Result<()> {
    let ways = [
        ("best", MonitorOptions::default()),
        (
            "without_bpf",
            MonitorOptions {
                lock: LockOption::Sampled,
                ..MonitorOptions::default()
            },
        ),
    ];
    let seconds = if context.quick { 3.0 } else { 10.0 };
    let mut costs = vec![Vec::new(); ways.len()];
    for (round, way) in interleaved(0..ways.len(), context.rounds(3, 1), 2) {
        let (name, options) = &ways[way];
        context.say(format!("round {}: cost, {name}", round + 1));
        let mut made = Made::start("crowd", options.clone())?;
        made.go()?;
        // All threads are there, and their files are open.
        while made.monitor.sample(Detail::Full)?.threads.len() < 64 {
            std::thread::sleep(EVERY);
        }
        let start = Instant::now();
        let run = made::cpu_clock();
        while start.elapsed().as_secs_f64() < seconds {
            made.sample()?;
            std::thread::sleep(EVERY);
        }
        let ran = (made::cpu_clock() - run) as f64 / 1e9;
        costs[way].push(ran / start.elapsed().as_secs_f64());
    }
    for ((name, _), costs) in ways.iter().zip(&costs) {
        report.figure(format!("sampling_cost_{name}_cpus"), median(costs));
    }
    report.bars.push(Bar::at_most(
        "sampling 64 threads every 10 ms, CPUs (at most)",
        median(&costs[0]),
        0.02,
    ));
    Ok(())
}

/// The made program, running under a monitor.
struct Made {
    child: Child,
    input: Option<ChildStdin>,
    monitor: ProgramMonitor,
    samples: u32,
}

impl Made {
    fn start(what: &str, options: MonitorOptions) -> Result<Self> {
        let own = std::env::current_exe().context("the lab cannot find itself")?;
        let mut child = Command::new(own)
            .args([made::ARGUMENT, what])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the made program cannot be started")?;
        let input = child.stdin.take();
        let attached = ProgramMonitor::attach(i32::try_from(child.id())?, options);
        let monitor = match attached {
            Ok(monitor) => monitor,
            Err(error) => {
                drop(input);
                child.wait()?;
                return Err(error.into());
            }
        };
        Ok(Self {
            child,
            input,
            monitor,
            samples: 0,
        })
    }

    fn go(&mut self) -> Result<()> {
        let input = self
            .input
            .as_mut()
            .context("the program's input is closed")?;
        Ok(input.write_all(b"go\n")?)
    }

    fn sample(&mut self) -> Result<()> {
        self.samples += 1;
        if self.samples.is_multiple_of(FULL_EVERY) {
            self.monitor.sample(Detail::Full)?;
        } else if self.samples.is_multiple_of(LIGHT_EVERY) {
            self.monitor.sample(Detail::Light)?;
        } else {
            self.monitor.cpu_time_ns();
        }
        Ok(())
    }

    /// Lets it run, samples it meanwhile, and gives what it knows.
    fn run(&mut self) -> Result<Vec<Known>> {
        self.go()?;
        let output = self.child.stdout.take().context("no output")?;
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        while !reader.is_finished() {
            self.sample()?;
            std::thread::sleep(EVERY);
        }
        let line = match reader.join() {
            Ok(line) => line?,
            Err(_) => anyhow::bail!("the reader of the program's output failed"),
        };
        serde_json::from_str(&line).context("the made program said nothing that can be read")
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // Its input's end is its end; the kill is for a program that hangs.
        drop(self.input.take());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
