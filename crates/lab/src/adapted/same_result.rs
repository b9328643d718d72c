//! `adapters-same-result`: programs that nobody changed, their claims flipped at random every millisecond to
//! every second, have to print what they print unmanaged. Those whose runtimes follow by adapters are led by the
//! experiment itself; those that follow from outside (their threads are moved) run under a manager, and their
//! claims are set by hand.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::adapted::{Led, compiled_by_clang};
use crate::corewise::Corewise;
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::allowed_cpus;
use crate::manage::stage::Manager;
use crate::measure::Job;

/// A run that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(120);
/// The largest claim; the programs are told to use as many threads.
const MOST_THREADS: u32 = 4;

/// A program of `experiments/adapted.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    name: String,
    command: Vec<String>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    tolerance: f64,
    why: String,
    /// It follows by the CPUs that its threads may use, under a manager.
    #[serde(default)]
    from_outside: bool,
    /// A C++ file that is compiled by clang, with LLVM's OpenMP: what {program} stands for.
    #[serde(default)]
    clang: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    program: Vec<Program>,
}

/// Runs the experiment. `--only from-N` begins with the Nth run, so that a hundred can be made in portions.
///
/// # Errors
/// If the file of programs cannot be read, or a program fails unmanaged.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "adapters-same-result",
        "what programs print and write while their claims change at random (1 to 4 threads, every \
         millisecond to every second), against the same without adapters",
        "everything in the lab's session",
    );
    let first = context.first()?;
    let path = context.root.join("experiments/adapted.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let file: File =
        toml::from_str(&text).with_context(|| format!("{} is wrong", path.display()))?;
    let names: Vec<&str> = file.program.iter().map(|p| p.name.as_str()).collect();
    let picked = context.pick(&names);
    let mut table = Table::new(
        "runs with flipped claims",
        &[
            "program",
            "runs",
            "wrong",
            "failed",
            "claims",
            "occasions",
            "smaller",
            "worst error",
            "tolerance",
        ],
    );
    for program in file
        .program
        .iter()
        .filter(|p| picked.contains(&p.name.as_str()))
    {
        let seen = match program.from_outside {
            true => flipped_from_outside(context, program, first)?,
            false => flipped(context, program, first)?,
        };
        table.row([
            program.name.clone(),
            seen.runs.to_string(),
            seen.wrong.to_string(),
            seen.failed.to_string(),
            seen.claims.to_string(),
            seen.occasions.to_string(),
            seen.shrunk.to_string(),
            format!("{:.1e}", seen.worst),
            number(program.tolerance),
        ]);
        let bad = f64::from(seen.wrong + seen.failed);
        let name = format!(
            "{}: runs of {} that fail or differ",
            program.name, seen.runs
        );
        report.bars.push(Bar::at_most(name, bad, 0.0));
        report.figure(format!("{}.shrunk", program.name), seen.shrunk as f64);
        if seen.shrunk == 0 {
            report.note(format!(
                "{} never followed: its runs prove nothing",
                program.name
            ));
        }
        if program.tolerance > 0.0 {
            report.note(format!("{}: {}", program.name, program.why));
        }
    }
    report.tables.push(table);
    Ok(report)
}

/// What came of one program's runs.
#[derive(Default)]
struct Seen {
    runs: u32,
    wrong: u32,
    failed: u32,
    claims: u64,
    occasions: u64,
    shrunk: u64,
    worst: f64,
}

fn flipped(context: &Context, program: &Program, first: u64) -> Result<Seen> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let (job, expected) = unmanaged(context, program, folder.path(), &out)?;
    let mut seen = Seen::default();
    for round in 0..context.rounds(100, 5) {
        let led = Led::new(context)?;
        let led_job = led.job(job.clone())?;
        let done = AtomicBool::new(false);
        let (result, claims) = std::thread::scope(|scope| {
            let flipping = scope.spawn(|| flip(&led, &done, first + u64::from(round)));
            let result = output(&led_job, &out);
            done.store(true, Ordering::Relaxed);
            (result, flipping.join().unwrap_or(0))
        });
        seen.runs += 1;
        seen.claims += claims;
        for report in led.link().reports().taken() {
            seen.occasions += report.occasions.load(Ordering::Relaxed);
            seen.shrunk += report.shrunk.load(Ordering::Relaxed);
        }
        seen.compare(context, program, &expected, result?);
    }
    context.say(format_args!(
        "{}: {} runs, {} wrong, {} failed, {} regions smaller",
        program.name, seen.runs, seen.wrong, seen.failed, seen.shrunk
    ));
    Ok(seen)
}

impl Seen {
    fn compare(
        &mut self,
        context: &Context,
        program: &Program,
        expected: &[u8],
        result: Option<Vec<u8>>,
    ) {
        let Some(output) = result else {
            self.failed += 1;
            return;
        };
        let error = difference(expected, &output);
        self.worst = self.worst.max(error);
        if error > program.tolerance {
            self.wrong += 1;
            let said = String::from_utf8_lossy(&output);
            context.say(format_args!(
                "{}: another result: {said:.200}",
                program.name
            ));
        }
    }
}

/// The same for a program whose threads are moved by its local manager. What came of claims: each that the local
/// manager carried out is an occasion, and those of fewer CPUs than there are count as smaller.
fn flipped_from_outside(context: &Context, program: &Program, first: u64) -> Result<Seen> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let (job, expected) = unmanaged(context, program, folder.path(), &out)?;
    let manager = Manager::start(context, "balanced")?;
    let corewise = Corewise::new(context)?;
    let summary = folder.path().join("summary.json");
    let words = ["run", "--as-is", "--quiet", "--summary"];
    let file = summary.to_string_lossy().into_owned();
    let managed = corewise
        .job(&[&words[..], &[&file]].concat(), &job)
        .with("COREWISE_RUNTIME_DIR", manager.folder().to_string_lossy());
    let mut seen = Seen::default();
    for round in 0..context.rounds(100, 5) {
        let done = AtomicBool::new(false);
        let (result, claims) = std::thread::scope(|scope| {
            let flipping = scope.spawn(|| set_by_hand(&manager, &done, first + u64::from(round)));
            let result = output(&managed, &out);
            done.store(true, Ordering::Relaxed);
            (result, flipping.join())
        });
        let claims = claims
            .ok()
            .context("the thread that sets claims failed")??;
        seen.runs += 1;
        seen.claims += claims.set;
        seen.shrunk += claims.smaller;
        let text = std::fs::read_to_string(&summary).unwrap_or_default();
        let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        seen.occasions += said["managed"]["claims"].as_u64().unwrap_or(0);
        seen.compare(context, program, &expected, result?);
    }
    context.say(format_args!(
        "{}: {} runs, {} wrong, {} failed, {} claims followed",
        program.name, seen.runs, seen.wrong, seen.failed, seen.occasions
    ));
    Ok(seen)
}

/// How many claims were set.
#[derive(Default)]
struct Set {
    set: u64,
    smaller: u64,
}

/// Sets the claim of the one program that the manager has, until it is done.
fn set_by_hand(manager: &Manager, done: &AtomicBool, seed: u64) -> Result<Set> {
    let mut random = fastrand::Rng::with_seed(seed);
    let cpus = allowed_cpus()?;
    let mut count = Set::default();
    let mut program = None;
    while !done.load(Ordering::Relaxed) {
        let Some(pid) = program else {
            program = manager.status()?["programs"][0]["pid"].as_i64();
            continue;
        };
        let threads = random.u32(1..=MOST_THREADS);
        let mut chosen: Vec<u32> = cpus.iter().filter_map(|c| u32::try_from(*c).ok()).collect();
        random.shuffle(&mut chosen);
        chosen.truncate(random.usize(1..=chosen.len()));
        count.smaller += u64::from(chosen.len() < cpus.len());
        count.set += u64::from(manager.set_claim(i32::try_from(pid)?, threads, chosen)?);
        pause(&mut random, done);
    }
    Ok(count)
}

/// The program as a job, and what it gives unmanaged.
fn unmanaged(
    context: &Context,
    program: &Program,
    folder: &Path,
    out: &Path,
) -> Result<(Job, Vec<u8>)> {
    let made = program.clang.as_deref();
    let made = made.map(|source| compiled_by_clang(&context.root.join(source), folder));
    let made = made.transpose()?;
    let job = job(context, program, made.as_deref(), out)?;
    let expected =
        output(&job, out)?.with_context(|| format!("{} fails unmanaged", program.name))?;
    Ok((job, expected))
}

fn job(context: &Context, program: &Program, made: Option<&Path>, out: &Path) -> Result<Job> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut words = Vec::new();
    for word in &program.command {
        let mut word = word
            .replace("{py}", &text(&context.root.join("experiments/py")))
            .replace("{out}", &text(out));
        if word.contains("{python}") {
            word = word.replace("{python}", &text(&context.python()?));
        }
        if let Some(made) = made {
            word = word.replace("{program}", &text(made));
        }
        words.push(word);
    }
    let variables = program.variables.iter();
    Ok(variables.fold(Job::new(words), |job, (name, value)| {
        job.with(name, value.clone())
    }))
}

/// What a job prints, and writes into `out`; `None` if it fails.
fn output(job: &Job, out: &Path) -> Result<Option<Vec<u8>>> {
    // Nothing of an earlier run may be taken for this one's.
    let _ = std::fs::remove_file(out);
    let run = job.output(LONGEST)?;
    if run.timed_out || !run.status.success() {
        eprintln!(
            "lab: `{}` failed ({}): {}",
            job.text(),
            run.status,
            run.stderr.trim()
        );
        return Ok(None);
    }
    let mut all = run.stdout;
    if out.exists() {
        all.extend(std::fs::read(out)?);
    }
    if all.is_empty() {
        bail!("`{}` gives nothing to compare", job.text());
    }
    Ok(Some(all))
}

/// Flips the claim until it is done; how often.
fn flip(led: &Led, done: &AtomicBool, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut claims = 0;
    while !done.load(Ordering::Relaxed) {
        led.grant(random.u32(1..=MOST_THREADS));
        claims += 1;
        pause(&mut random, done);
    }
    claims
}

/// Sleeps for a millisecond to a second, each decade as often, unless it is done.
fn pause(random: &mut fastrand::Rng, done: &AtomicBool) {
    let exponent = random.f64() * 3.0;
    let mut rest = Duration::from_secs_f64(10f64.powf(exponent) / 1e3);
    while !rest.is_zero() && !done.load(Ordering::Relaxed) {
        let part = rest.min(Duration::from_millis(20));
        std::thread::sleep(part);
        rest -= part;
    }
}

/// The largest relative difference of two numbers at the same place of two texts; infinite where anything
/// else differs.
fn difference(expected: &[u8], found: &[u8]) -> f64 {
    if expected == found {
        return 0.0;
    }
    let (Ok(expected), Ok(found)) = (std::str::from_utf8(expected), std::str::from_utf8(found))
    else {
        return f64::INFINITY;
    };
    let (expected, found): (Vec<&str>, Vec<&str>) = (
        expected.split_whitespace().collect(),
        found.split_whitespace().collect(),
    );
    if expected.len() != found.len() {
        return f64::INFINITY;
    }
    let pairs = expected.iter().zip(&found);
    pairs
        .map(|(a, b)| match (a.parse::<f64>(), b.parse::<f64>()) {
            _ if a == b => 0.0,
            (Ok(a), Ok(b)) => (a - b).abs() / a.abs().max(f64::MIN_POSITIVE),
            _ => f64::INFINITY,
        })
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_differ_by_their_numbers_or_altogether() {
        assert_eq!(difference(b"sum 1.0 x", b"sum 1.0 x"), 0.0);
        let error = difference(b"sum 1.000 x", b"sum 1.001 x");
        assert!((error - 1e-3).abs() < 1e-9, "{error}");
        assert_eq!(difference(b"sum 1.0 x", b"sum 1.0 y"), f64::INFINITY);
        assert_eq!(difference(b"a", b"a b"), f64::INFINITY);
        assert_eq!(difference(&[0xff], &[0xfe]), f64::INFINITY);
    }
}
