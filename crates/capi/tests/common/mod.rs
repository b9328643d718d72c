//! Compiles programs against the library as their writers would, and runs them.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod manager;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// However busy the machine is, no program of these tests takes this long.
const DEADLINE: Duration = Duration::from_secs(120);

/// The folder in which cargo has put this test's own build.
fn build_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// Where libcorewise.so and libcorewise.a are. Cargo does not make them for tests: it is asked to, which
/// costs nothing where they are up to date.
pub(crate) fn library_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = build_folder();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "corewise-capi"]);
        cargo.args(["--package", "corewise-shim", "--manifest-path"]);
        cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        cargo.arg("--target-dir").arg(folder.parent().unwrap());
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the library is built");
        assert!(folder.join("libcorewise.so").is_file());
        folder
    })
}

/// A program that was compiled here; it goes with this value.
pub(crate) struct Program {
    folder: TempDir,
}

/// How to compile.
pub(crate) struct Build<'a> {
    /// `cc` or `c++`.
    pub(crate) compiler: &'a str,
    /// Below tests/programs.
    pub(crate) source: &'a str,
    /// More than the usual warnings.
    pub(crate) flags: &'a [&'a str],
    /// Against what.
    pub(crate) link: Link,
}

/// What a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// libcorewise.so.
    Library,
    /// libcorewise.a.
    Static,
    /// What pkg-config says of `corewise-openmp`: the adapters, and libcorewise.so.
    Adapters,
    /// The adapters, but after the OpenMP runtime.
    AdaptersLast,
}

impl Build<'_> {
    /// # Panics
    /// If there is an error or a warning.
    pub(crate) fn build(&self) -> Program {
        self.try_build().unwrap_or_else(|said| panic!("{said}"))
    }

    /// What the compiler says if it fails.
    pub(crate) fn try_build(&self) -> Result<Program, String> {
        let folder = tempfile::tempdir().unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut compiler = Command::new(self.compiler);
        compiler
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"])
            .args(self.flags)
            .arg("-I")
            .arg(here.join("include"))
            .arg(here.join("tests/programs").join(self.source))
            .arg("-o")
            .arg(folder.path().join("program"));
        if self.link == Link::Static {
            compiler.arg(library_folder().join("libcorewise.a"));
            compiler.args(["-lpthread", "-ldl", "-lm"]);
        } else {
            install(folder.path());
            if self.link == Link::AdaptersLast {
                compiler.arg("-lgomp");
            }
            match self.link {
                Link::Library => compiler.arg("-L").arg(folder.path()).arg("-lcorewise"),
                _ => compiler.args(pkg_config(folder.path())),
            };
            let path = folder.path().display();
            compiler.arg(format!("-Wl,-rpath,{path}"));
        }
        let output = compiler.output().unwrap();
        match output.status.success() {
            true => Ok(Program { folder }),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

/// Puts the libraries into a folder by the names that they have when they are installed.
fn install(folder: &Path) {
    let adapters = folder.join("corewise");
    std::fs::create_dir(&adapters).unwrap();
    for (file, name) in [
        ("libcorewise.so", folder.join("libcorewise.so")),
        ("libcorewise.so", folder.join("libcorewise.so.1")),
        ("libcorewise_shim.so", adapters.join("libcorewise_shim.so")),
        ("libcorewise_shim.so", adapters.join("libtcm.so.1")),
    ] {
        std::os::unix::fs::symlink(library_folder().join(file), name).unwrap();
    }
}

/// What pkg-config says how to link, with the libraries in this folder.
fn pkg_config(folder: &Path) -> Vec<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", here.join("pkgconfig"))
        .arg(format!("--define-variable=libdir={}", folder.display()))
        .args(["--libs", "corewise-openmp"])
        .output()
        .unwrap();
    let text = said(&output);
    text.split_whitespace().map(str::to_owned).collect()
}

impl Program {
    /// A command of it that finds no other manager than one in `runtime`, and no settings of OpenMP.
    pub(crate) fn command(&self, runtime: &Path) -> Command {
        self.command_under(&[], runtime)
    }

    /// The same, run by another command.
    pub(crate) fn command_under(&self, tool: &[&str], runtime: &Path) -> Command {
        let program = self.folder.path().join("program");
        let mut command = match tool {
            [] => Command::new(program),
            [tool, arguments @ ..] => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(program);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["OMP_", "GOMP_", "KMP_"]
                .iter()
                .any(|p| text.starts_with(p))
            {
                command.env_remove(&name);
            }
        }
        // Waiting threads of OpenMP do not spin: the tests share the machine.
        command.env("OMP_WAIT_POLICY", "passive");
        command.env("OMP_DYNAMIC", "false");
        command.env("COREWISE_RUNTIME_DIR", runtime);
        command
    }

    /// Runs it where there is no manager.
    pub(crate) fn run_alone(&self) -> Output {
        let runtime = tempfile::tempdir().unwrap();
        run(&mut self.command(runtime.path()))
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().unwrap())
}

/// Waits for a child's end; kills one that hangs.
pub(crate) fn finish(mut child: Child) -> Output {
    let until = Instant::now() + DEADLINE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Standard output of a program that ended well.
pub(crate) fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{:?}\n{out}\n{error}",
        output.status
    );
    out
}

/// The values of lines `KEY VALUE`.
pub(crate) fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text.lines();
    lines
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
        .collect()
}

/// The CPUs that this process may run on, ascending.
pub(crate) fn allowed_cpus() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    let parts = line.unwrap().trim().split(',');
    parts
        .flat_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse().unwrap()..=last.parse().unwrap()
        })
        .collect()
}

/// As look.hpp writes a set of CPUs.
pub(crate) fn list(cpus: &[u32]) -> String {
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    cpus.join(",")
}
