//! The most memory that a command takes.
//!
//! Linux counts towards a process's peak what it was before it executed a program: for a child of the lab that
//! is the lab. So a small program of ours stands between, which starts the command from less than two MiB
//! (`experiments/c/peak.c`), and also says how long it took, without what starting that program does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::measure::{Job, Run};

const SOURCE: &str = "experiments/c/peak.c";

/// The small program, compiled.
pub struct Peak {
    program: PathBuf,
    told: PathBuf,
    _folder: TempDir,
}

/// What it told of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// From before it was started until it was gone, in seconds.
    pub seconds: f64,
    /// The most memory that one process of it had at a time: of those that were waited for. In MiB.
    pub mib: f64,
}

impl Peak {
    /// Compiles it; `root` is the repository's.
    ///
    /// # Errors
    /// If there is no C compiler.
    pub fn new(root: &Path) -> Result<Peak> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("peak");
        let source = root.join(SOURCE);
        let status = Command::new("cc")
            .args(["-O2", "-o"])
            .args([&program, &source])
            .status()
            .context("there is no C compiler `cc` (scripts/setup)")?;
        if !status.success() {
            bail!("{} does not compile", source.display());
        }
        Ok(Peak {
            told: folder.path().join("told"),
            program,
            _folder: folder,
        })
    }

    /// Runs a job under it, and keeps what the job prints. A job that a signal ends exits with 128 more than its
    /// number.
    ///
    /// # Errors
    /// If it could not be run, or took longer than `longest`.
    pub fn output(&self, job: &Job, longest: Duration) -> Result<(Run, Told)> {
        let words = [self.program.as_os_str(), self.told.as_os_str()];
        let run = job.under(words).output(longest)?;
        if run.timed_out {
            bail!("`{}` took too long", job.text());
        }
        let told = std::fs::read_to_string(&self.told).context("no peak of memory was told")?;
        std::fs::remove_file(&self.told)?;
        let mut numbers = told.split_whitespace().map(str::parse::<f64>);
        let mut number = || numbers.next().context("a number is missing");
        let (seconds, kib) = (number()??, number()??);
        let mib = kib / 1024.0;
        Ok((run, Told { seconds, mib }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Job {
        Job::new(["sh", "-c", script])
    }

    #[test]
    fn what_the_lab_itself_has_does_not_count_and_what_a_child_of_the_command_had_does() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let peak = Peak::new(&root).unwrap();
        // So much that it would show.
        let large = vec![1_u8; 64 << 20];
        let (run, told) = peak
            .output(&shell("exit 3"), Duration::from_secs(60))
            .unwrap();
        assert_eq!(run.status.code(), Some(3));
        assert!(told.mib > 0.1 && told.mib < 16.0, "{told:?}");
        drop(large);
        // `dd` has a buffer of that size.
        let child = "dd if=/dev/zero of=/dev/null bs=48M count=1 2>&1; exit 0";
        let (_, told) = peak.output(&shell(child), Duration::from_secs(60)).unwrap();
        assert!(told.mib > 48.0, "{told:?}");
    }
}
