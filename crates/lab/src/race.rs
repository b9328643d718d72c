//! The experiments on the race detector.

pub mod cost;
pub mod public;
pub mod same;
pub mod truth;

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::experiment::Context;
use crate::measure::Job;

/// Our own small programs with known verdicts: one file, a case for each argument.
const CASES: &str = "crates/race/tests/programs/cases.c";
/// What a tool exits with that found a race.
const FOUND: i32 = 66;

/// The small programs, compiled in both ways.
struct Cases {
    instrumented: PathBuf,
    plain: PathBuf,
    names: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Cases {
    fn compiled(context: &Context) -> Result<Cases> {
        let folder = tempfile::tempdir()?;
        let source = context.root.join(CASES);
        let make = |name: &str, flags: &[&str]| -> Result<PathBuf> {
            let out = folder.path().join(name);
            let done = Command::new("gcc")
                .args(["-O1", "-g", "-Wno-tsan", "-o"])
                .args([&out, &source])
                .args(flags)
                .arg("-lpthread")
                .status()
                .context("there is no gcc")?;
            if !done.success() {
                bail!("{} does not compile with {flags:?}", source.display());
            }
            Ok(out)
        };
        let plain = make("plain", &[])?;
        let listed = Command::new(&plain).output()?;
        let names = String::from_utf8_lossy(&listed.stdout);
        Ok(Cases {
            instrumented: make("instrumented", &["-fsanitize=thread"])?,
            names: context
                .pick(&names.lines().collect::<Vec<_>>())
                .into_iter()
                .map(str::to_owned)
                .collect(),
            plain,
            _folder: folder,
        })
    }
}

/// A job under `corewise race`.
fn raced(corewise: &Path, options: &[&str], job: &Job) -> Job {
    let corewise = corewise.to_string_lossy().into_owned();
    let words = [corewise, "race".to_owned(), "--quiet".to_owned()];
    let options = options.iter().map(|option| (*option).to_owned());
    job.under(words.into_iter().chain(options).chain(["--".to_owned()]))
}

/// A job in which ThreadSanitizer, like ours, tells of data races alone, by its exit code.
fn with_tsan(job: &Job) -> Job {
    job.clone().with(
        "TSAN_OPTIONS",
        format!(
            "exitcode={FOUND}:log_path=/dev/null:report_thread_leaks=0:report_signal_unsafe=0:\
             report_mutex_bugs=0:report_destroy_locked=0:detect_deadlocks=0"
        ),
    )
}
