//! A program with known behaviour, a folder of its own for each test, and the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The made program, compiled once.
pub(crate) fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("made", &["-pthread"]))
}

/// A program of many parallel regions on libgomp, which prints its number of threads.
pub(crate) fn openmp() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("openmp", &["-fopenmp"]))
}

/// A program of OpenMP threads and a child that runs until a file is there.
pub(crate) fn gate() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("gate", &["-fopenmp"]))
}

/// Compiles `NAME.c`; the same options give the same file.
pub(crate) fn compile(name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/command/{name}.c"));
    // Tests of several checkouts may compile it at the same time.
    let options_in_name = options.concat().replace(['/', ',', '='], "");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}{options_in_name}-{}", std::process::id()));
    let compiler = Command::new("cc")
        .arg("-O1")
        .args(options)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status()
        .expect("a C compiler is part of what scripts/setup installs");
    assert!(compiler.success());
    program
}

/// A folder with a history of its own.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn history(&self) -> PathBuf {
        self.path().join("state/history.sqlite")
    }

    /// The runtime folder: its programs share a manager with nobody else's.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.path().join("runtime")
    }

    /// `corewise` with `args`, run in this folder.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.command_under(&[], args)
    }

    /// The same, started by another program, such as taskset.
    pub(crate) fn command_under(&self, launcher: &[&str], args: &[&str]) -> Command {
        let mut words = launcher.to_vec();
        words.push(env!("CARGO_BIN_EXE_corewise"));
        words.extend(args);
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .current_dir(self.path())
            .env("COREWISE_HISTORY", self.history())
            .env("COREWISE_RUNTIME_DIR", self.runtime())
            // Whatever else runs on this machine.
            .env("COREWISE_SYSTEM_DIR", "/nonexistent")
            .env_remove("COREWISE_RUN")
            .env_remove("OMP_NUM_THREADS")
            .stdin(std::process::Stdio::null());
        command
    }

    pub(crate) fn corewise(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output as JSON.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON ({e}): {output:?}"))
}

/// Whether probes can be sandboxed here; says so if not.
pub(crate) fn sandbox_or_skip() -> bool {
    match corewise_launch::Sandbox::availability() {
        corewise_launch::Availability::Full { .. } => true,
        corewise_launch::Availability::Unavailable { why } => {
            eprintln!("skipped: no sandbox here: {why}");
            false
        }
    }
}
