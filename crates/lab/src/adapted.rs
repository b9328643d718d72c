//! The experiments about programs that nobody changed and that follow their claim by adapters: what they
//! share.

pub mod co_run;
pub mod comes_and_goes;
pub mod cost;
pub mod follow;
pub mod live;
pub mod same_result;
pub mod share;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use corewise_wire::Link;

use crate::experiment::Context;
use crate::measure::Job;

/// Adapters with a claim that the lab itself sets, without any manager.
pub struct Led {
    link: Link,
    shim: PathBuf,
}

impl Led {
    /// Pages without a claim.
    pub fn new(context: &Context) -> Result<Led> {
        Ok(Led {
            link: Link::create()?,
            shim: context.shim()?,
        })
    }

    /// Sets the claim.
    pub fn grant(&self, threads: u32) {
        self.link.grant(threads, []);
    }

    /// The job with the adapters loaded, led here.
    pub fn job(&self, job: Job) -> Result<Job> {
        let (name, value) = self.link.variable()?;
        let shim = self.shim.to_string_lossy().into_owned();
        Ok(job.with("LD_PRELOAD", shim).with(name, value))
    }

    /// What the adapters tell.
    pub fn link(&self) -> &Link {
        &self.link
    }
}

/// Compiles a file of `experiments/c` with OpenMP into `folder`.
pub(crate) fn compiled(context: &Context, name: &str, folder: &Path) -> Result<PathBuf> {
    let source = context.root.join("experiments/c").join(name);
    let program = folder.join(name.trim_end_matches(".c"));
    let status = Command::new("cc")
        .args(["-O2", "-fopenmp", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-lm")
        .status()
        .context("there is no C compiler `cc` (scripts/setup)")?;
    if !status.success() {
        bail!("{} does not compile", source.display());
    }
    Ok(program)
}

/// Compiles a C++ file with LLVM's OpenMP into `folder`, by the newest clang that there is.
pub(crate) fn compiled_by_clang(source: &Path, folder: &Path) -> Result<PathBuf> {
    let versions = (14..=22).rev().map(|version| format!("clang++-{version}"));
    for compiler in versions.chain(["clang++".to_owned()]) {
        if let Some(program) = compiled_by(&compiler, source, folder, &["-fopenmp".into()])? {
            return Ok(program);
        }
    }
    bail!(
        "no clang++ here compiles {} with OpenMP (scripts/setup)",
        source.display()
    )
}

/// Compiles a C++ file on the oneTBB of the wheels into `folder`, with the headers of Debian's.
pub(crate) fn compiled_on_onetbb(context: &Context, name: &str, folder: &Path) -> Result<PathBuf> {
    let source = context.root.join("experiments/c").join(name);
    let libraries = context.root.join(".venv/lib");
    let arguments = [
        libraries.join("libtbb.so.12").into_os_string(),
        format!("-Wl,-rpath,{}", libraries.display()).into(),
    ];
    match compiled_by("c++", &source, folder, &arguments)? {
        Some(program) => Ok(program),
        None => bail!(
            "{} does not compile: libtbb-dev and a wheel of tbb are needed (scripts/setup)",
            source.display()
        ),
    }
}

/// Compiles a C++ file into `folder`; `None` where that does not work.
fn compiled_by(
    compiler: &str,
    source: &Path,
    folder: &Path,
    arguments: &[OsString],
) -> Result<Option<PathBuf>> {
    let program = folder.join(source.file_stem().context("a source has a name")?);
    let status = Command::new(compiler)
        .args(["-std=c++17", "-O2", "-o"])
        .arg(&program)
        .arg(source)
        .args(arguments)
        .stderr(std::process::Stdio::null())
        .status();
    Ok(status
        .is_ok_and(|status| status.success())
        .then_some(program))
}
