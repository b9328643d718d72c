//! The command `corewise` as the experiments use it: what it is asked, and what it answers. It gets
//! a history of its own, so that nothing it learned elsewhere helps it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cells::{Setting, Surroundings};
use crate::experiment::Context;
use crate::measure::{Job, Run};
use crate::programs::Wait;

/// No tuning and no run of the experiments takes longer.
const LONGEST: Duration = Duration::from_secs(300);

/// The command, with its history in a folder of its own, which goes when this is dropped.
pub struct Corewise {
    command: PathBuf,
    home: tempfile::TempDir,
}

/// What `corewise tune --json` answered.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// What it chose.
    pub setting: Setting,
    /// Time that it took to find besides the probed program's start-ups, in seconds.
    pub search_seconds: f64,
    /// Time in which the probed program started and was not parallel yet, in seconds.
    pub startup_seconds: f64,
    /// Why it stopped.
    pub stop_reason: String,
    /// How many probes it made.
    pub probes: usize,
}

/// What `corewise run` did.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The whole command from start to end, search and all, in seconds.
    pub whole_seconds: f64,
    /// The program's own run, in seconds.
    pub run_seconds: f64,
    /// What it ran with.
    pub setting: Setting,
    /// For how long regions were searched while it ran, in seconds.
    pub searching_seconds: f64,
    /// What slower numbers of threads lost meanwhile.
    pub lost_seconds: f64,
    /// Whether it tried another number of threads than the best one known.
    pub trial: bool,
    /// Whether its time is compared with those of other runs.
    pub undisturbed: bool,
    /// The hog's share over the whole command, in CPUs; none without a hog.
    pub hog_share: Option<f64>,
}

impl Corewise {
    /// The command of this context with an empty history.
    pub fn new(context: &Context) -> Result<Self> {
        Ok(Corewise {
            command: context.corewise()?,
            home: tempfile::tempdir().context("no temporary folder for a history")?,
        })
    }

    /// The same command with another, empty history.
    pub fn forgetful(&self) -> Result<Self> {
        Ok(Corewise {
            command: self.command.clone(),
            home: tempfile::tempdir().context("no temporary folder for a history")?,
        })
    }

    /// `corewise WORDS -- JOB`.
    pub fn job(&self, words: &[&str], job: &Job) -> Job {
        let mut all = vec![self.command.clone().into_os_string()];
        all.extend(words.iter().map(Into::into));
        all.push("--".into());
        let home = |part: &str| self.home.path().join(part).to_string_lossy().into_owned();
        job.under(all)
            .with("COREWISE_HISTORY", home("history.sqlite"))
            .with("XDG_STATE_HOME", home("state"))
            .with("XDG_DATA_HOME", home("data"))
            .with("XDG_CACHE_HOME", home("cache"))
    }

    /// `corewise tune --json -- JOB` under these surroundings.
    pub fn tune(&self, job: &Job, surroundings: &Surroundings) -> Result<Tuned> {
        let job = self.job(&["tune", "--json"], job);
        let (run, _) = surroundings.run(&job, LONGEST, true)?;
        let run = run.success(&job)?;
        let answer = json(&run.stdout, &job)?;
        tuned(&answer).with_context(|| format!("`{}` answered {answer}", job.text()))
    }

    /// `corewise run --alone --summary … -- JOB` under these surroundings: nobody else has a say in the run.
    pub fn run(&self, job: &Job, surroundings: &Surroundings) -> Result<Ran> {
        self.run_with(&["--alone"], job, surroundings)
    }

    /// The same under the manager of the job's runtime folder.
    pub fn run_managed(&self, job: &Job, surroundings: &Surroundings) -> Result<Ran> {
        self.run_with(&[], job, surroundings)
    }

    /// `corewise run --alone --live`: regions are searched while the program runs.
    pub fn run_live(&self, job: &Job, surroundings: &Surroundings) -> Result<Ran> {
        self.run_with(&["--alone", "--live"], job, surroundings)
    }

    /// `corewise run WORDS --summary … -- JOB`.
    pub fn run_with(&self, words: &[&str], job: &Job, surroundings: &Surroundings) -> Result<Ran> {
        let summary = self.home.path().join("summary.json");
        // Nothing of an earlier run may be read as this one's.
        let _ = std::fs::remove_file(&summary);
        let file = summary.to_string_lossy().into_owned();
        let job = self.job(&[&["run", "--summary", &file], words].concat(), job);
        let (run, hog_share) = surroundings.run(&job, LONGEST, false)?;
        let run: Run = run.success(&job)?;
        let answer = json(&read(&summary, &job)?, &job)?;
        let number = |key: &str| {
            let value = answer[key].as_f64();
            value.with_context(|| format!("the summary of `{}` lacks `{key}`", job.text()))
        };
        Ok(Ran {
            whole_seconds: run.wall_seconds,
            run_seconds: number("wall_seconds")?,
            setting: Setting {
                threads: number("threads")? as u32,
                wait: wait(&answer),
            },
            searching_seconds: answer["live"]["searching_seconds"].as_f64().unwrap_or(0.0),
            lost_seconds: answer["live"]["lost_seconds"].as_f64().unwrap_or(0.0),
            trial: answer["trial"] == true,
            undisturbed: answer["undisturbed"] == true,
            hog_share,
        })
    }
}

fn read(path: &Path, job: &Job) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("`{}` left no summary", job.text()))
}

fn json(bytes: &[u8], job: &Job) -> Result<Value> {
    serde_json::from_slice(bytes).with_context(|| format!("`{}` gave no JSON", job.text()))
}

fn wait(answer: &Value) -> Wait {
    match answer["wait_policy"].as_str() {
        Some("passive") => Wait::Passive,
        _ => Wait::Default,
    }
}

fn tuned(answer: &Value) -> Result<Tuned> {
    let number = |key: &str| {
        let value = answer[key].as_f64();
        value.with_context(|| format!("it lacks the number `{key}`"))
    };
    let threads = number("chosen")?;
    if threads < 1.0 {
        bail!("it chose {threads} threads");
    }
    Ok(Tuned {
        setting: Setting {
            threads: threads as u32,
            wait: wait(answer),
        },
        search_seconds: number("search_seconds")?,
        startup_seconds: number("startup_seconds")?,
        stop_reason: match &answer["stop_reason"] {
            Value::String(reason) => reason.clone(),
            other => other.to_string(),
        },
        probes: answer["probes"].as_array().map_or(0, Vec::len),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_tune_is_understood_and_one_that_lacks_a_key_is_refused() {
        let answer = serde_json::json!({
            "chosen": 2, "wait_policy": "passive", "search_seconds": 1.5,
            "startup_seconds": 0.5, "stop_reason": "flat", "probes": [{}, {}], "more": true,
        });
        let tuned_ = tuned(&answer).unwrap();
        let wanted = Setting {
            threads: 2,
            wait: Wait::Passive,
        };
        assert_eq!(tuned_.setting, wanted);
        assert_eq!(tuned_.probes, 2);
        let error = tuned(&serde_json::json!({"chosen": 2})).unwrap_err();
        assert!(error.to_string().contains("search_seconds"));
        assert!(tuned(&serde_json::json!({"chosen": 0})).is_err());
    }
}
