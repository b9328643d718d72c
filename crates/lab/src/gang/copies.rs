//! Copies of one program side by side, with as many threads each as there are CPUs: how long each takes, and how
//! evenly they come on.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corewise_machine::control::process::processes_below;

use crate::adapted::compiled;
use crate::experiment::Context;
use crate::load::{allowed_cpus, run_ns};
use crate::measure::{Job, Started};

/// No run takes longer; one that does is ended, and counts as one that took so long.
pub const LONGEST: Duration = Duration::from_secs(60);

/// Has a program traced by somebody who does nothing: whoever is traced already cannot be seized.
pub const TRACED: [&str; 6] = ["strace", "-f", "-e", "trace=none", "-o", "/dev/null"];

/// Sequences to be aligned, and letters of each.
const SEQUENCES: u32 = 130;
const SEQUENCE_LETTERS: u32 = 160;

/// Progress is read so often.
const SECOND: Duration = Duration::from_secs(1);

/// A program of the experiments about gangs.
#[derive(Clone, Debug)]
pub struct Program {
    /// What `--only` takes.
    pub name: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    /// Whether it is one for which the paper's measure has a bar.
    pub needs_its_threads: bool,
    /// Whether its progress is counted in a file.
    counts: bool,
    words: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

/// The programs, with those that are made compiled into `folder`. Each runs some two seconds alone, and as long by turns for
/// each copy; with passive waiting it runs longer alone, since CPUs of a virtual machine wake up slowly.
pub fn programs(context: &Context, folder: &Path) -> Result<Vec<Program>> {
    let made = compiled(context, "gangs.c", folder)?;
    let made = made.to_string_lossy().into_owned();
    let cpus = allowed_cpus()?.len().to_string();
    let kernel = |name, about, kernel: &str, wait: &str, rounds: u32| Program {
        name,
        about,
        needs_its_threads: true,
        counts: true,
        words: vec![made.clone(), kernel.to_owned(), rounds.to_string()],
        variables: vec![
            ("OMP_NUM_THREADS", cpus.clone()),
            ("OMP_WAIT_POLICY", wait.to_owned()),
        ],
    };
    let spin = [&made, "spin", &cpus, "300000"].map(str::to_owned).to_vec();
    Ok(vec![
        Program {
            name: "spin",
            about: "threads that meet at a spinning barrier",
            needs_its_threads: true,
            counts: true,
            words: spin.clone(),
            variables: Vec::new(),
        },
        Program {
            name: "spin-traced",
            about: "the same under strace, which stops for no call",
            needs_its_threads: false,
            counts: true,
            words: TRACED.map(str::to_owned).into_iter().chain(spin).collect(),
            variables: Vec::new(),
        },
        kernel(
            "cg-active",
            "conjugate gradients on OpenMP, active waiting",
            "cg",
            "active",
            200_000,
        ),
        kernel(
            "cg-passive",
            "conjugate gradients on OpenMP, passive waiting",
            "cg",
            "passive",
            60_000,
        ),
        kernel(
            "mg-active",
            "stencil on OpenMP, active waiting",
            "mg",
            "active",
            16_000,
        ),
        kernel(
            "mg-passive",
            "stencil on OpenMP, passive waiting",
            "mg",
            "passive",
            9_000,
        ),
        Program {
            name: "clustalo",
            about: "Debian's Clustal Omega (libgomp), which aligns made sequences",
            needs_its_threads: false,
            counts: false,
            words: vec![
                "clustalo".to_owned(),
                format!("--threads={cpus}"),
                "-i".to_owned(),
                sequences(folder)?,
            ],
            variables: Vec::new(),
        },
    ])
}

/// A file of made protein sequences in `folder`.
fn sequences(folder: &Path) -> Result<String> {
    const LETTERS: &[u8] = b"ACDEFGHIKLMNPQRSTVWY";
    let mut random = fastrand::Rng::with_seed(1);
    let mut text = String::new();
    for number in 1..=SEQUENCES {
        text.push_str(&format!(">s{number}\n"));
        text.extend(
            (0..SEQUENCE_LETTERS).map(|_| char::from(LETTERS[random.usize(..LETTERS.len())])),
        );
        text.push('\n');
    }
    let path = folder.join("sequences.fa");
    std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Threads of which half work, each by itself, for `rounds` rounds, and half sleep.
///
/// # Errors
/// If it does not compile.
pub fn half_busy(context: &Context, folder: &Path, rounds: u64) -> Result<Program> {
    let made = compiled(context, "gangs.c", folder)?;
    let words = [
        made.to_string_lossy().into_owned(),
        "half".to_owned(),
        allowed_cpus()?.len().to_string(),
        rounds.to_string(),
    ];
    Ok(Program {
        name: "half",
        about: "threads of which half work, each by itself, and half sleep",
        needs_its_threads: false,
        counts: true,
        words: words.to_vec(),
        variables: Vec::new(),
    })
}

/// The one whose threads spin.
///
/// # Errors
/// As [`programs`].
pub fn spin(context: &Context, folder: &Path) -> Result<Program> {
    let mut programs = programs(context, folder)?.into_iter();
    programs.next().context("no program spins")
}

impl Program {
    /// The spinning program with a single thread, which waits for nobody.
    pub fn with_one_thread(&self) -> Job {
        let mut words = self.words.clone();
        if let Some(threads) = words.get_mut(2) {
            *threads = "1".to_owned();
        }
        Job::new(words)
    }

    /// The spinning program with so many threads, which does not end by itself.
    pub fn endless(&self, threads: u32) -> Job {
        let mut words = self.words.clone();
        words.truncate(2);
        words.extend([threads.to_string(), u64::MAX.to_string()]);
        Job::new(words)
    }

    /// A copy of it, which counts its progress in `progress`.
    fn job(&self, progress: &Path) -> Job {
        let mut job = Job::new(self.words.clone());
        for (name, value) in &self.variables {
            job = job.with(name, value.clone());
        }
        match self.counts {
            true => job.with("GANGS_PROGRESS", progress.to_string_lossy()),
            false => job,
        }
    }
}

/// Copies of the spinning program that do not end by themselves. They end when this is dropped.
pub struct Endless {
    started: Vec<Started>,
}

impl Endless {
    /// Starts them; `wrap` says how each is started.
    ///
    /// # Errors
    /// If the program does not compile or start.
    pub fn start(spin: &Program, copies: usize, wrap: &dyn Fn(Job) -> Job) -> Result<Endless> {
        let cpus = u32::try_from(allowed_cpus()?.len())?;
        let started = (0..copies).map(|_| wrap(spin.endless(cpus)).start(false));
        Ok(Endless {
            started: started.collect::<Result<_>>()?,
        })
    }

    /// The processes that were started: the programs themselves, or what runs them.
    pub fn pids(&self) -> Vec<i32> {
        let pids = self.started.iter().map(|s| i32::try_from(s.pid()));
        pids.filter_map(Result::ok).collect()
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        for started in self.started.drain(..) {
            // It is ended at once, with all below it; an error means that it has ended.
            let _ = started.finish(Duration::ZERO);
        }
    }
}

/// What became of copies that were started together.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// How long each took, in seconds.
    pub seconds: Vec<f64>,
    /// For each whole second in which all ran: the largest progress less the smallest, over the mean.
    pub unevenness: Vec<f64>,
}

impl Ran {
    /// The mean of the copies' times, in seconds.
    pub fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }

    /// Until the last one ended, in seconds.
    pub fn longest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    /// Copies that were ended at the limit.
    pub fn cut(&self) -> usize {
        let limit = LONGEST.as_secs_f64();
        self.seconds.iter().filter(|s| **s >= limit).count()
    }
}

/// Runs `copies` of a program at once; `wrap` says how a copy's job is started.
///
/// # Errors
/// If one does not start, or fails.
pub fn run(
    program: &Program,
    copies: usize,
    folder: &Path,
    wrap: &dyn Fn(Job) -> Job,
) -> Result<Ran> {
    run_together(&vec![program; copies], folder, wrap)
}

/// Runs programs at once; `wrap` says how each one's job is started.
///
/// # Errors
/// If one does not start, or fails.
pub fn run_together(
    programs: &[&Program],
    folder: &Path,
    wrap: &dyn Fn(Job) -> Job,
) -> Result<Ran> {
    let copies = programs.len();
    let files: Vec<PathBuf> = (0..copies)
        .map(|copy| folder.join(format!("progress-{copy}")))
        .collect();
    let jobs: Vec<Job> = programs
        .iter()
        .zip(&files)
        .map(|(program, file)| {
            // What an earlier copy has counted is not this one's.
            let _ = std::fs::remove_file(file);
            wrap(program.job(file))
        })
        .collect();
    let started = jobs
        .iter()
        .map(|job| job.start(false))
        .collect::<Result<Vec<_>>>()?;
    let pids: Vec<i32> = started
        .iter()
        .map(|s| i32::try_from(s.pid()).unwrap_or(0))
        .collect();
    let running = std::sync::atomic::AtomicUsize::new(copies);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let all_run = || running.load(std::sync::atomic::Ordering::Relaxed) == copies;
            let progress = || -> Vec<f64> {
                let of =
                    |((program, file), pid): ((&&Program, &PathBuf), &i32)| match program.counts {
                        true => counted(file),
                        false => cpu_seconds(*pid),
                    };
                programs.iter().zip(&files).zip(&pids).map(of).collect()
            };
            watch(&all_run, &progress)
        });
        let waiting: Vec<_> = started
            .into_iter()
            .zip(&jobs)
            .map(|(started, job)| {
                let running = &running;
                scope.spawn(move || -> Result<f64> {
                    let run = started.finish(LONGEST);
                    running.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                    let run = run?;
                    match run.timed_out {
                        true => Ok(LONGEST.as_secs_f64()),
                        false => run.success(job).map(|run| run.wall_seconds),
                    }
                })
            })
            .collect();
        let seconds = waiting
            .into_iter()
            .map(|thread| thread.join().ok().context("a thread failed")?)
            .collect::<Result<Vec<_>>>()?;
        let unevenness = watcher.join().ok().context("a thread failed")?;
        Ok(Ran {
            seconds,
            unevenness,
        })
    })
}

/// Reads progress every second as long as all run, and compares what each copy did in it.
fn watch(all_run: &dyn Fn() -> bool, progress: &dyn Fn() -> Vec<f64>) -> Vec<f64> {
    let mut unevenness = Vec::new();
    let mut next = Instant::now() + SECOND;
    let mut before: Option<Vec<f64>> = None;
    while all_run() {
        if Instant::now() < next {
            std::thread::sleep(Duration::from_millis(1).min(next - Instant::now()));
            continue;
        }
        next += SECOND;
        let now = progress();
        if !all_run() {
            break;
        }
        // The first second has the programs' starts in it.
        if let Some(before) = before.replace(now.clone()) {
            unevenness.push(spread(&before, &now));
        }
    }
    unevenness
}

/// The largest step less the smallest, over the mean; nothing done at all counts as even.
fn spread(before: &[f64], now: &[f64]) -> f64 {
    let steps: Vec<f64> = before.iter().zip(now).map(|(b, n)| n - b).collect();
    let most = steps.iter().copied().fold(f64::MIN, f64::max);
    let least = steps.iter().copied().fold(f64::MAX, f64::min);
    let mean = steps.iter().sum::<f64>() / steps.len().max(1) as f64;
    match mean > 0.0 {
        true => (most - least) / mean,
        false => 0.0,
    }
}

/// The rounds that a copy has counted.
fn counted(file: &Path) -> f64 {
    let mut bytes = [0; 8];
    let read = std::fs::File::open(file).and_then(|file| file.read_exact_at(&mut bytes, 0));
    match read {
        Ok(()) => u64::from_ne_bytes(bytes) as f64,
        Err(_) => 0.0,
    }
}

/// CPU time of a process and all below it, in seconds.
fn cpu_seconds(pid: i32) -> f64 {
    let below = processes_below(pid).into_iter();
    let threads = below.flat_map(|pid| {
        corewise_machine::control::process::threads(pid)
            .into_iter()
            .map(move |tid| format!("/proc/{pid}/task/{tid}/schedstat"))
    });
    let ns: u64 = threads.filter_map(|path| run_ns(&path)).sum();
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_relative_to_what_was_done_on_average() {
        assert!((spread(&[0.0, 10.0], &[90.0, 120.0]) - 0.2).abs() < 1e-9);
        assert_eq!(spread(&[1.0, 1.0], &[1.0, 1.0]), 0.0);
    }

    #[test]
    fn a_copy_that_has_not_counted_yet_has_done_nothing() {
        assert_eq!(counted(Path::new("/nonexistent")), 0.0);
    }
}
