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

/// Compiles a shared library of that name that uses OpenMP.
pub(crate) fn library(name: &str) -> Built {
    shared("library.cpp", name, &[])
}

/// Compiles a file of `programs/` into a shared library of that name.
pub(crate) fn shared(source: &str, name: &str, flags: &[&str]) -> Built {
    let mut all = vec!["-shared", "-fPIC"];
    all.extend_from_slice(flags);
    compile(source, name, &all)
}

/// A library that needs a copy of libgomp of its own, as wheels bring them, and the copy's file.
pub(crate) fn library_with_own_libgomp() -> (Built, Built) {
    let asked = Command::new("g++")
        .arg("-print-file-name=libgomp.so.1")
        .output();
    let path = String::from_utf8(asked.unwrap().stdout).unwrap();
    let mut copy = std::fs::read(path.trim()).unwrap();
    // Another name, also within: the loader would take it for the one that it has.
    let (known, own) = (b"libgomp.so.1\0", b"libgomq.so.1\0");
    for at in 0..copy.len() - known.len() {
        if copy[at..].starts_with(known) {
            copy[at..at + own.len()].copy_from_slice(own);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libgomq.so.1");
    std::fs::write(&file, copy).unwrap();
    let path = format!("-Wl,-rpath,{}", folder.path().display());
    let flags = ["-shared", "-fPIC", file.to_str().unwrap(), &path];
    let library = compile("library.cpp", "libwheel.so", &flags);
    let copy = Built {
        _folder: folder,
        file,
    };
    (library, copy)
}

/// A library that uses OpenMP, and leaves it to those who load it to bring the runtime.
pub(crate) fn library_that_needs_nothing(name: &str) -> Built {
    let object = compile("library.cpp", "library.o", &["-fPIC", "-c"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    compiler(&file, |command| {
        command.args(["-shared", "-fno-openmp"]).arg(&object.file)
    });
    Built {
        _folder: folder,
        file,
    }
}

/// A library that brings these, and libgomp, in this order.
pub(crate) fn library_with(libraries: &[&Path]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libloader.so");
    compiler(&file, |command| {
        command
            .args(["-shared", "-Wl,--no-as-needed"])
            .args(libraries)
    });
    Built {
        _folder: folder,
        file,
    }
}

fn compile(source: &str, name: &str, flags: &[&str]) -> Built {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    compiler(&file, |command| {
        command
            .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .arg(programs.join(source))
            .args(flags)
    });
    Built {
        _folder: folder,
        file,
    }
}

/// Runs the system's C++ compiler, with OpenMP.
fn compiler(file: &Path, with: impl Fn(&mut Command) -> &mut Command) {
    let mut command = Command::new("g++");
    command.arg("-fopenmp").arg("-o").arg(file);
    let compiled = with(&mut command).arg("-ldl").output();
    let compiled = compiled.expect("a C++ compiler is needed (scripts/setup)");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
}

/// The library that is preloaded. Cargo does not build it with its tests: `make test` does so before.
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
    newest
        .expect("the library is missing: cargo build -p corewise-shim")
        .clone()
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

    /// The same with more variables, which win; what is empty is not set.
    pub(crate) fn start_with(
        built: &Built,
        link: &Link,
        threads: u32,
        variables: &[(&str, &str)],
    ) -> Program {
        Program::start_file(&built.file, link, threads, variables)
    }

    /// The same for a program that was compiled before.
    pub(crate) fn start_file(
        file: &Path,
        link: &Link,
        threads: u32,
        variables: &[(&str, &str)],
    ) -> Program {
        let (name, value) = link.variable().unwrap();
        let mut command = Command::new(file);
        command
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("OMP_WAIT_POLICY", "passive")
            .env("LD_PRELOAD", shim())
            .env(name, value)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        for (name, _) in variables.iter().filter(|(_, value)| value.is_empty()) {
            command.env_remove(name);
        }
        let mut child = command.spawn().unwrap();
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
