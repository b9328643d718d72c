//! `gang-bystander`: what a program outside any set, and a task that wakes up every millisecond, notice of gangs
//! beside them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::gang::copies::{self, Endless, Program};
use crate::gang::pairs::as_gang;
use crate::manage::stage::Manager;
use crate::measure::Job;
use crate::stats::median;

/// Copies of the spinning program, with a thread for each CPU.
const COPIES: usize = 2;
/// Until they are found to be gangs, and have taken turns.
const SETTLING: Duration = Duration::from_millis(700);
/// Latencies up to this are told apart, in microseconds.
const LONGEST_US: usize = 50_000;

/// Runs the experiment.
///
/// # Errors
/// If cyclictest (package rt-tests) or a compiler is missing, or a program fails.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "gang-bystander",
        "a single-threaded program and a task that sleeps a millisecond at a time, beside two spinning programs of one \
         thread for each CPU: these as gangs, and as plain Linux runs them, one after the other in each round",
        "every program in a session of its own",
    );
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let spin = copies::spin(context, folder.path())?;
    let manager = Manager::start(context, "balanced")?;
    let gang = as_gang(context, &manager)?;
    let own = |job: Job| job.under(["setsid", "--wait"]);
    let ways: [(&str, &dyn Fn(Job) -> Job); 2] =
        [("gangs", &|job| own(gang(job))), ("plain", &own)];
    let mut seen: [Seen; 2] = Default::default();
    for round in 0..context.rounds(5, 1) {
        for ((name, wrap), seen) in ways.iter().zip(&mut seen) {
            let beside = Endless::start(&spin, COPIES, wrap)?;
            std::thread::sleep(SETTLING);
            let seconds = bystander(&spin, &own)?;
            let latency = wake_ups(folder.path())?;
            drop(beside);
            context.say(format_args!(
                "round {}, {name}: {seconds:.2} s; latency {:.0} µs on average, p99 {:.0} µs, longest {:.0} µs",
                round + 1,
                latency.mean,
                latency.p99,
                latency.longest
            ));
            seen.seconds.push(seconds);
            seen.mean.push(latency.mean);
            seen.p99.push(latency.p99);
            seen.longest.push(latency.longest);
        }
    }
    let mut table = Table::new(
        "medians",
        &[
            "beside",
            "program, s",
            "latency mean, µs",
            "p99, µs",
            "longest, µs",
        ],
    );
    for ((name, _), seen) in ways.iter().zip(&seen) {
        let values = [&seen.seconds, &seen.mean, &seen.p99, &seen.longest].map(|v| median(v));
        for (what, value) in [
            "seconds",
            "latency_mean_us",
            "latency_p99_us",
            "latency_longest_us",
        ]
        .into_iter()
        .zip(values)
        {
            report.figure(format!("{name}.{what}"), value);
        }
        let cells = values.map(number);
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    report.tables.push(table);
    let [gangs, plain] = &seen;
    let ratio = |of: &dyn Fn(&Seen) -> &Vec<f64>| median(of(gangs)) / median(of(plain));
    let bars = [
        (
            "time of a program outside any set, gangs over plain (at most)",
            ratio(&|s| &s.seconds),
            1.02,
        ),
        (
            "mean wake-up latency, gangs over plain (at most)",
            ratio(&|s| &s.mean),
            1.10,
        ),
        ("99th percentile of it (at most)", ratio(&|s| &s.p99), 1.10),
    ];
    for (name, value, limit) in bars {
        report.bars.push(Bar::at_most(name, value, limit));
    }
    Ok(report)
}

#[derive(Default)]
struct Seen {
    seconds: Vec<f64>,
    mean: Vec<f64>,
    p99: Vec<f64>,
    longest: Vec<f64>,
}

/// How long a program of one thread takes, in seconds.
fn bystander(spin: &Program, own: &dyn Fn(Job) -> Job) -> Result<f64> {
    let job = own(spin.with_one_thread());
    Ok(job.run(copies::LONGEST)?.success(&job)?.wall_seconds)
}

/// Latencies of wake-ups, in microseconds.
struct Latency {
    mean: f64,
    p99: f64,
    longest: f64,
}

/// What cyclictest finds in five seconds, as an ordinary task.
fn wake_ups(folder: &Path) -> Result<Latency> {
    let file = folder.join("latencies");
    let most = LONGEST_US.to_string();
    let path = file.to_string_lossy().into_owned();
    let words = [
        "setsid",
        "--wait",
        "cyclictest",
        "--quiet",
        "--threads=1",
        "--interval=1000",
        "--duration=5",
        "--policy=other",
        "--default-system",
        "--histogram",
        &most,
        "--histfile",
        &path,
    ];
    let job = Job::new(words.map(str::to_owned).to_vec());
    job.run(copies::LONGEST)
        .context("cyclictest (package rt-tests)")?
        .success(&job)?;
    let text = std::fs::read_to_string(&file).context("cyclictest left no histogram")?;
    read(&text)
}

/// Reads cyclictest's histogram: lines of microseconds and how many; those beyond it are in a comment.
fn read(text: &str) -> Result<Latency> {
    let mut counts = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        if let (Some(Ok(us)), Some(Ok(count))) = (words.next(), words.next()) {
            counts.push((us as f64, count as f64));
        }
    }
    let beyond = text
        .lines()
        .find_map(|line| line.strip_prefix("# Histogram Overflows:"));
    let beyond: f64 = beyond.and_then(|n| n.trim().parse().ok()).unwrap_or(0.0);
    let all: f64 = counts.iter().map(|(_, count)| count).sum::<f64>() + beyond;
    if all == 0.0 {
        bail!("cyclictest's histogram is empty");
    }
    let sum: f64 = counts.iter().map(|(us, count)| us * count).sum();
    let mut below = 0.0;
    let p99 = counts.iter().find_map(|(us, count)| {
        below += count;
        (below >= 0.99 * all).then_some(*us)
    });
    let limit = LONGEST_US as f64;
    let last = counts.iter().rev().find(|(_, count)| *count > 0.0);
    Ok(Latency {
        mean: (sum + beyond * limit) / all,
        p99: p99.unwrap_or(limit),
        longest: match beyond > 0.0 {
            true => limit,
            false => last.map_or(0.0, |(us, _)| *us),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read_with_what_is_beyond_it() {
        let text = "# Histogram\n000001 000098\n000004 000001\n# Histogram Overflows: 00001\n";
        let latency = read(text).unwrap();
        assert_eq!((latency.p99, latency.longest), (4.0, LONGEST_US as f64));
        assert!((latency.mean - (98.0 + 4.0 + LONGEST_US as f64) / 100.0).abs() < 1e-9);
        assert!(read("# nothing\n").is_err());
    }
}
