//! What the model and the machine are compared on (`experiments/sim-real.toml`): made workloads, each a
//! program's file that both worlds run, and real programs, each with a description of the same form.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use corewise_sim::program::ProgramSpec;
use serde::Deserialize;

use super::calibrate::Loop;
use crate::cells::Condition;

/// What a workload is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Half {
    /// The machine's costs are fitted on it.
    Fitted,
    /// The model is judged by it.
    Judged,
}

/// What is run in both worlds.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What figures and `--only` call it.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    /// The same, read.
    pub spec: Arc<ProgramSpec>,
    /// Threads that it is given.
    pub threads: u32,
    /// What else happens on the machine.
    pub condition: Condition,
    /// What it is for.
    pub half: Half,
    /// The program of the catalogue that it describes; none where the file is the program.
    pub real: Option<String>,
}

impl Workload {
    /// The loop whose speed says how fast it is.
    pub fn calibration(&self) -> Loop {
        match self.real {
            Some(_) => Loop::Histogram,
            None => Loop::Chain,
        }
    }
}

/// All that is compared.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The made ones in the file's order, then the real ones.
    pub workloads: Vec<Workload>,
    /// How fast a CPU was when the real programs were described, in steps of [`Loop::Histogram`] a nanosecond.
    pub described_at: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    described_at_steps_per_ms: f64,
    workload: Vec<Made>,
    real: Vec<Real>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Made {
    name: String,
    program: Option<String>,
    threads: u32,
    #[serde(default = "alone")]
    condition: String,
    half: Half,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Real {
    name: String,
    /// Numbers of threads, each with a condition.
    runs: Vec<(u32, String)>,
}

fn alone() -> String {
    Condition::Alone.name().to_owned()
}

/// Reads the file and all that it names.
///
/// # Errors
/// Where a file cannot be read or is wrong, or a name is there twice.
pub fn read(root: &Path) -> Result<Compared> {
    let path = root.join("experiments/sim-real.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let file: File =
        toml::from_str(&text).with_context(|| format!("{} is wrong", path.display()))?;
    let folder = root.join("experiments/sim-real");
    let described_at = file.described_at_steps_per_ms / 1e6;
    if !(described_at.is_finite() && described_at > 0.0) {
        bail!(
            "{}: that is no speed: described_at_steps_per_ms",
            path.display()
        );
    }
    let mut all = Vec::new();
    for made in file.workload {
        let program = made.program.as_ref().unwrap_or(&made.name);
        let (file, spec) = program_file(&folder, program)?;
        all.push(Workload {
            file,
            spec,
            threads: made.threads,
            condition: condition(&made.condition)?,
            half: made.half,
            real: None,
            name: made.name,
        });
    }
    for real in file.real {
        for (threads, beside) in &real.runs {
            let (file, spec) = program_file(&folder, &real.name)?;
            all.push(Workload {
                name: format!("{}-{threads}-{beside}", real.name),
                file,
                spec,
                threads: *threads,
                condition: condition(beside)?,
                half: Half::Judged,
                real: Some(real.name.clone()),
            });
        }
    }
    let mut names = BTreeSet::new();
    for workload in &all {
        if !names.insert(&workload.name) {
            bail!("{}: there are two {}", path.display(), workload.name);
        }
    }
    Ok(Compared {
        workloads: all,
        described_at,
    })
}

fn program_file(folder: &Path, name: &str) -> Result<(PathBuf, Arc<ProgramSpec>)> {
    let path = folder.join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let spec = ProgramSpec::from_toml(&text).with_context(|| format!("{}", path.display()))?;
    Ok((path, Arc::new(spec)))
}

fn condition(name: &str) -> Result<Condition> {
    let found = Condition::ALL.into_iter().find(|c| c.name() == name);
    found.with_context(|| {
        let names = Condition::ALL.map(Condition::name).join(", ");
        format!("there is no condition `{name}` (there are: {names})")
    })
}
