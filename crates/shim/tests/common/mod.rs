//! Programs that nobody changed, with the adapters preloaded.
#![allow(dead_code, reason = "each test file uses its part")]

use corewise_wire::Link;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// A program that was compiled.
pub(crate) struct Built {
    _folder: TempDir,
    pub(crate) file: PathBuf,
}

/// Compiles a file of `programs/` with the system's C++ compiler and OpenMP.
pub(crate) fn build(source: &str, flags: &[&str]) -> Built {
    compile(source, "program", flags)
}

/// Compiles a shared library of that name.
pub(crate) fn library(name: &str) -> Built {
    compile("library.cpp", name, &["-shared", "-fPIC"])
}

fn compile(source: &str, name: &str, flags: &[&str]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let compiled = Command::new("g++")
        .args(["-O1", "-g", "-fopenmp", "-Wall", "-Wextra", "-Werror"])
        .args(flags)
        .arg("-o")
        .arg(&file)
        .arg(programs.join(source))
        .arg("-ldl")
        .output()
        .expect("a C++ compiler is needed (scripts/setup)");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    Built {
        _folder: folder,
        file,
    }
}

/// The library that is preloaded, as cargo has just built it.
pub(crate) fn shim() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [
        folder.join("libcorewise_shim.so"),
        folder.join("../libcorewise_shim.so"),
    ];
    let newest = places
        .iter()
        .filter(|file| file.is_file())
        .max_by_key(|file| file.metadata().and_then(|m| m.modified()).unwrap());
    newest.expect("cargo builds it with its tests").clone()
}

/// One that runs, and answers questions.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it with OpenMP's number of threads, led to the pages of `link`.
    pub(crate) fn start(built: &Built, link: &Link, threads: u32) -> Program {
        Program::start_with(built, link, threads, &[])
    }

    /// The same with more variables, which win.
    pub(crate) fn start_with(
        built: &Built,
        link: &Link,
        threads: u32,
        variables: &[(&str, &str)],
    ) -> Program {
        let (name, value) = link.variable().unwrap();
        let mut child = Command::new(&built.file)
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("OMP_WAIT_POLICY", "passive")
            .env("LD_PRELOAD", shim())
            .env(name, value)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program {
            child,
            input,
            output,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn heard(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.heard()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
