//! The real programs that are profiled (`experiments/instrumented.toml`): fetched with apt, built once as
//! they are and once with the compiler's instrumentation, and run under the profiler in any manner.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use corewise_analyses::read::{Found, read};
use corewise_analyses::region::{Manner, Region, Wanted};
use serde::Deserialize;

use crate::debian::source;
use crate::experiment::Context;
use crate::inputs::{Kind, input};
use crate::measure::{Job, Run, Started};

/// Nothing here takes longer.
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct Catalogue {
    program: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    source: Vec<String>,
    build: String,
    command: Vec<String>,
    small: Option<Vec<String>>,
    #[serde(default)]
    busy: u32,
    #[serde(default)]
    ends: Vec<i32>,
    #[serde(default)]
    prints_times: bool,
}

/// A program, built both ways.
#[derive(Clone, Debug)]
pub struct Instrumented {
    /// Its name.
    pub name: String,
    /// How many CPUs it keeps busy.
    pub busy: u32,
    /// Whether it prints the same each time.
    pub prints_the_same: bool,
    plain: PathBuf,
    hooked: PathBuf,
    not_inlined: PathBuf,
    raced: PathBuf,
    words: Vec<String>,
    small: Vec<String>,
    ends: Vec<i32>,
    folder: PathBuf,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// From its start to its end, processing included.
    pub seconds: f64,
    /// The profile; empty for runs without.
    pub found: Vec<Found>,
}

impl Sample {
    /// Calls that were counted.
    pub fn calls(&self) -> u64 {
        let images = self.found.iter().flat_map(|image| &image.calls);
        images.map(|(.., calls)| calls).sum()
    }

    /// The most memory of buffers, in bytes.
    pub fn most_bytes(&self) -> u64 {
        let images = self.found.iter().map(|image| image.account.most_bytes);
        images.max().unwrap_or(0)
    }

    /// How often each function of the program was called, by its address in the file: those that another
    /// function called, too.
    pub fn by_function(&self) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        for image in &self.found {
            for (_, callee, calls) in &image.calls {
                let within =
                    |m: &&corewise_analyses::region::Module| (m.start..m.end).contains(callee);
                if let Some(module) = image.modules.iter().find(within) {
                    *counts.entry(callee - module.bias).or_default() += calls;
                }
            }
        }
        counts
    }
}

impl Instrumented {
    /// The same program with so many threads, where its command says `{threads}`.
    #[must_use]
    pub fn with_threads(&self, threads: u32) -> Instrumented {
        let number = threads.to_string();
        let words = self.words.iter();
        Instrumented {
            words: words
                .map(|word| word.replace("{threads}", &number))
                .collect(),
            ..self.clone()
        }
    }

    /// The command without instrumentation.
    pub fn plain(&self) -> Job {
        self.job(&self.plain)
    }

    /// The command with instrumentation, and nothing that listens.
    pub fn hooked(&self) -> Job {
        self.job(&self.hooked)
    }

    /// The same program with nothing inlined: the hooks count inlined calls, which tools that look at the
    /// machine's calls cannot see.
    #[must_use]
    pub fn not_inlined(&self) -> Instrumented {
        Instrumented {
            hooked: self.not_inlined.clone(),
            ..self.clone()
        }
    }

    /// The same program with less to do.
    #[must_use]
    pub fn small(&self) -> Instrumented {
        Instrumented {
            words: self.small.clone(),
            ..self.clone()
        }
    }

    /// The command compiled with `-fsanitize=thread`.
    pub fn raced(&self) -> Job {
        self.job(&self.raced)
    }

    /// The instrumented program's file.
    pub fn file(&self) -> &Path {
        &self.hooked
    }

    /// The instrumented command, which ends with 0 where it succeeds: for tools that do not tell how it ended.
    pub fn hooked_to_zero(&self) -> Job {
        let codes: String = self.ends.iter().map(|code| format!("{code} ")).collect();
        let script = format!(
            "cd \"$0\" && \"$@\"; code=$?; case \" 0 {codes}\" in *\" $code \"*) exit 0;; *) exit $code;; esac"
        );
        self.scripted(&script, &self.hooked)
    }

    fn job(&self, program: &Path) -> Job {
        self.scripted("cd \"$0\" && exec \"$@\"", program)
    }

    fn scripted(&self, script: &str, program: &Path) -> Job {
        let place = ["sh", "-c", script].map(str::to_owned);
        let folder = self.folder.to_string_lossy().into_owned();
        let program = program.to_string_lossy().into_owned();
        let words = place.into_iter().chain([folder, program]);
        Job::new(words.chain(self.words.iter().cloned()))
    }

    /// Runs it without the profiler.
    ///
    /// # Errors
    /// If it does not start, or fails.
    pub fn run(&self, job: &Job) -> Result<Sample> {
        let run = job.run(LONGEST)?;
        Ok(Sample {
            seconds: self.success(run, job)?.wall_seconds,
            found: Vec::new(),
        })
    }

    /// Runs it profiled.
    ///
    /// # Errors
    /// As above; or if it lost calls.
    pub fn profiled(&self, hooks: &Path, wanted: Wanted) -> Result<Sample> {
        let (region, started) = self.started(hooks, wanted)?;
        self.finished(&region, started)
    }

    /// Starts it profiled.
    ///
    /// # Errors
    /// As above.
    pub fn started(&self, hooks: &Path, wanted: Wanted) -> Result<(Region, Started)> {
        let region = Region::create(wanted)?;
        let (name, value) = region.variable()?;
        let job = self
            .hooked()
            .with("LD_PRELOAD", hooks.to_string_lossy())
            .with(name, value);
        let started = job.start(false)?;
        Ok((region, started))
    }

    /// Waits for it, and reads its profile.
    ///
    /// # Errors
    /// As above.
    pub fn finished(&self, region: &Region, started: Started) -> Result<Sample> {
        let run = self.success(started.finish(LONGEST)?, &self.hooked())?;
        let found = read(region);
        if let Some(image) = found
            .iter()
            .find(|image| image.losses != Default::default())
        {
            bail!("{} lost calls: {:?}", self.name, image.losses);
        }
        Ok(Sample {
            seconds: run.wall_seconds,
            found,
        })
    }

    fn success(&self, run: Run, job: &Job) -> Result<Run> {
        match run.status.code() {
            Some(code) if self.ends.contains(&code) => Ok(run),
            _ => run.success(job),
        }
    }
}

/// What is wanted for a manner, with what is found or usual otherwise.
pub fn manner(manner: Manner) -> Wanted {
    Wanted {
        manner,
        ..Wanted::default()
    }
}

/// What a program is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Profiles,
    Races,
}

/// All programs that `--only` does not leave out, built where that is not done yet.
///
/// # Errors
/// If a source cannot be fetched, or does not compile.
pub fn all(context: &Context) -> Result<Vec<Instrumented>> {
    usual(context, "instrumented.toml", For::Profiles, None)
}

/// The same, but without `--only` these alone.
///
/// # Errors
/// As [`all`].
pub fn these(context: &Context, names: &[&str]) -> Result<Vec<Instrumented>> {
    let only = Some(names).filter(|_| context.only.is_empty());
    usual(context, "instrumented.toml", For::Profiles, only)
}

/// The threaded programs whose races are searched for (`experiments/threaded.toml`), in the same way.
///
/// # Errors
/// As [`all`].
pub fn threaded(context: &Context) -> Result<Vec<Instrumented>> {
    usual(context, "threaded.toml", For::Races, None)
}

fn usual(
    context: &Context,
    catalogue: &str,
    what_for: For,
    only: Option<&[&str]>,
) -> Result<Vec<Instrumented>> {
    let file = context.root.join("experiments").join(catalogue);
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let catalogue: Catalogue = toml::from_str(&text)?;
    let names: Vec<&str> = catalogue.program.iter().map(|p| p.name.as_str()).collect();
    let picked = context.pick(&names);
    let folder = context.inputs.join(match what_for {
        For::Profiles => "instrumented",
        For::Races => "raced",
    });
    fs::create_dir_all(&folder)?;
    let entries = catalogue.program.iter();
    entries
        .filter(|entry| picked.contains(&entry.name.as_str()))
        .filter(|entry| only.is_none_or(|only| only.contains(&entry.name.as_str())))
        .map(|entry| built(context, &folder, entry, what_for))
        .collect()
}

fn built(context: &Context, folder: &Path, entry: &Entry, what_for: For) -> Result<Instrumented> {
    for name in &entry.source {
        source(context, folder, name, &[])?;
    }
    // What the standard library's headers define is inlined as ever.
    let hooks = "-O2 -g -finstrument-functions -finstrument-functions-exclude-file-list=/usr/include,/usr/lib";
    let make = |suffix: &str, wanted: For, flags: &str| -> Result<PathBuf> {
        let out = folder.join(format!("{}-{suffix}", entry.name));
        if wanted != what_for || out.exists() {
            return Ok(out);
        }
        context.say(format!("building {}", out.display()));
        let output = Command::new("bash")
            .args(["-euc", &entry.build])
            .env("FLAGS", flags)
            .env("OUT", &out)
            .current_dir(folder)
            .output()
            .context("there is no bash")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} does not build: {said}", entry.name);
        }
        Ok(out)
    };
    let words = |command: &[String]| -> Result<Vec<String>> {
        command.iter().map(|word| filled(context, word)).collect()
    };
    Ok(Instrumented {
        name: entry.name.clone(),
        busy: entry.busy,
        prints_the_same: !entry.prints_times,
        plain: make("plain", what_for, "-O2 -g")?,
        hooked: make("hooked", For::Profiles, hooks)?,
        not_inlined: make(
            "not-inlined",
            For::Profiles,
            &format!("{hooks} -fno-inline"),
        )?,
        raced: make("raced", For::Races, "-O2 -g -fsanitize=thread")?,
        words: words(&entry.command)?,
        small: words(entry.small.as_ref().unwrap_or(&entry.command))?,
        ends: entry.ends.clone(),
        folder: folder.to_owned(),
    })
}

fn filled(context: &Context, word: &str) -> Result<String> {
    if let Some(megabytes) = word
        .strip_prefix("{text:")
        .and_then(|w| w.strip_suffix('}'))
    {
        let file = input(&context.inputs, Kind::Text, megabytes.parse()?)?;
        return Ok(file.to_string_lossy().into_owned());
    }
    if let Some(megabytes) = word
        .strip_prefix("{video:")
        .and_then(|w| w.strip_suffix('}'))
    {
        let file = input(&context.inputs, Kind::Video, megabytes.parse()?)?;
        return Ok(file.to_string_lossy().into_owned());
    }
    if word == "{formula}" {
        return Ok(formula(&context.inputs)?.to_string_lossy().into_owned());
    }
    let work = context.root.join("experiments/instrumented");
    Ok(word.replace("{work}", &work.to_string_lossy()))
}

/// A random formula of three literals a clause, near where such formulas are hardest (4.26 clauses for each
/// variable: Crawford and Auton, 1996).
fn formula(inputs: &Path) -> Result<PathBuf> {
    const VARIABLES: i32 = 170;
    const CLAUSES: i32 = VARIABLES * 426 / 100;
    let path = inputs.join(format!("formula-{VARIABLES}.cnf"));
    if path.exists() {
        return Ok(path);
    }
    let mut random = fastrand::Rng::with_seed(3);
    let mut text = format!("p cnf {VARIABLES} {CLAUSES}\n").into_bytes();
    for _ in 0..CLAUSES {
        let mut literal = || random.i32(1..=VARIABLES) * if random.bool() { 1 } else { -1 };
        let [a, b, c] = [literal(), literal(), literal()];
        writeln!(text, "{a} {b} {c} 0")?;
    }
    fs::write(&path, text)?;
    Ok(path)
}
