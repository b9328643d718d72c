//! A public set of programs with known verdicts: compiler-rt's own tests of ThreadSanitizer, from Debian's
//! source package of LLVM. They say in comments how they are compiled, and what is reported.
//!
//! DataRaceBench would be the usual set: it was found in no registry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::truth::Program;
use crate::debian::source;
use crate::experiment::Context;
use crate::measure::Job;

const PACKAGE: &str = "llvm-toolchain-14";
/// What of it is unpacked.
const PARTS: [&str; 3] = [
    "*/compiler-rt/test/tsan/*",
    "*/compiler-rt/test/sanitizer_common/*.h",
    "*/compiler-rt/include/*",
];
const TESTS: &str = "compiler-rt/test/tsan";
/// The barrier that tests order accesses by, for builds without ThreadSanitizer.
const BARRIER: &str = "experiments/c/unseen_barrier.c";
/// Ways to build or run a test that say something else than whether races are found: options of the runtime,
/// several files, macros for another compiler, a list of what to leave out.
const RUN_OTHERWISE: [&str; 6] = [
    "tsan_opts",
    "TSAN_OPTIONS",
    "-shared",
    "%t.so",
    "-fsanitize-",
    " -D",
];
/// The same, where the text of a test says so: options, a virtual machine's interface, system calls that the
/// program makes itself, the runtime's own names.
const OTHERWISE: [&str; 4] = [
    "__tsan_default_options",
    "java.h",
    "syscall.h",
    "__interceptor_",
];

/// The set, and what was left out of it with the reason.
pub struct Public {
    /// The programs.
    pub programs: Vec<Program>,
    /// How many files do not say whether there is a race, or how to be run here.
    pub without_verdict: usize,
    /// Those that gcc does not compile.
    pub not_compiled: Vec<String>,
    _folder: tempfile::TempDir,
}

/// Fetches and compiles the set, or those of it that `--only` has; `plain`: also without ThreadSanitizer.
///
/// # Errors
/// If it cannot be fetched, or there is no compiler.
pub fn compiled(context: &Context, plain: bool) -> Result<Public> {
    let sources = context.inputs.join("raced");
    fs::create_dir_all(&sources)?;
    source(context, &sources, PACKAGE, &PARTS)?;
    let tests = sources.join(PACKAGE).join(TESTS);
    let folder = tempfile::tempdir()?;
    let mut public = Public {
        programs: Vec::new(),
        without_verdict: 0,
        not_compiled: Vec::new(),
        _folder: folder,
    };
    for file in files(&tests)? {
        let name = file
            .strip_prefix(&tests)?
            .to_string_lossy()
            .replace('/', "_");
        if !context.only.is_empty() && !context.names_any(&[&name]) {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
        let Some(races) = races(&text).filter(|_| !name.starts_with("bench")) else {
            public.without_verdict += 1;
            continue;
        };
        let build = |kind: &str, more: &[&Path]| -> Result<Option<PathBuf>> {
            let out = public._folder.path().join(format!("{name}.{kind}"));
            let done = compile(context, &file, &text, &out, more)?;
            Ok(done.then_some(out))
        };
        let Some(instrumented) = build("instrumented", &[])? else {
            public.not_compiled.push(name);
            continue;
        };
        let plain = match plain {
            true => build("plain", &[&context.root.join(BARRIER)])?,
            false => None,
        };
        public.programs.push(Program {
            name,
            races,
            instrumented: Job::new([instrumented]),
            plain: plain.map(|plain| Job::new([plain])),
        });
    }
    Ok(public)
}

/// The tests that are for any system, and those for Linux.
fn files(tests: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in [tests.to_owned(), tests.join("Linux")] {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.retain(|file| {
        file.extension()
            .is_some_and(|end| end == "c" || end == "cpp")
    });
    if files.is_empty() {
        bail!("{} has no tests: is it another version?", tests.display());
    }
    files.sort();
    Ok(files)
}

/// Compiles a test: with further files as a plain program, without any for ThreadSanitizer.
fn compile(
    context: &Context,
    file: &Path,
    text: &str,
    out: &Path,
    plain_with: &[&Path],
) -> Result<bool> {
    let compiler = match file.extension().is_some_and(|end| end == "cpp") {
        true => "g++",
        false => "gcc",
    };
    let include = context.inputs.join("raced").join(PACKAGE);
    let mut command = Command::new(compiler);
    if plain_with.is_empty() {
        command.arg("-fsanitize=thread");
    } else {
        // Or what only C++ has would be sought in C.
        command
            .args(["-x", "c"])
            .args(plain_with)
            .args(["-x", "none"]);
    }
    command
        .args([optimised(text), "-g", "-w", "-pthread", "-fPIE", "-pie"])
        .args(match compiler {
            "g++" => &["-std=c++11"][..],
            _ => &[],
        })
        .arg("-I")
        .arg(include.join("compiler-rt/test"))
        .arg("-I")
        .arg(include.join("compiler-rt/include"))
        .arg("-o")
        .args([out, file])
        .args(["-ldl", "-lrt"]);
    let done = command.output().context("there is no gcc")?;
    Ok(done.status.success())
}

fn run_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| Some(line.split_once("RUN:")?.1))
}

/// The optimisation that a test asks for.
fn optimised(text: &str) -> &str {
    run_lines(text)
        .flat_map(str::split_whitespace)
        .find(|word| word.starts_with("-O"))
        .unwrap_or("-O1")
}

/// Whether a test has a data race, by what it says is reported. `None`: it is about something else.
fn races(text: &str) -> Option<bool> {
    let runs = run_lines(text).filter(|line| line.contains("%run")).count();
    let run_otherwise =
        run_lines(text).any(|line| RUN_OTHERWISE.iter().any(|word| line.contains(word)));
    if runs != 1 || run_otherwise || OTHERWISE.iter().any(|word| text.contains(word)) {
        return None;
    }
    let expected = || {
        text.lines().filter_map(|line| {
            let (label, what) = line.split_once("CHECK")?.1.split_once(':')?;
            (!label.contains("NOT")).then_some(what)
        })
    };
    if expected().any(|what| what.contains("data race")) {
        return Some(true);
    }
    let other = expected().any(|what| what.contains("WARNING: ThreadSanitizer"));
    // What is run until something is reported is not free of it.
    let other = other || run_lines(text).any(|line| line.contains("%deflake"));
    (!other).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_comments_say_whether_it_races() {
        let run = "// RUN: %clangxx_tsan -O2 %s -o %t && %run %t 2>&1 | FileCheck %s\n";
        for (checks, expected) in [
            (
                "// CHECK: WARNING: ThreadSanitizer: data race\n",
                Some(true),
            ),
            (
                "// CHECK-NOT: WARNING: ThreadSanitizer: data race\n// CHECK: DONE\n",
                Some(false),
            ),
            (
                "// CHECK: WARNING: ThreadSanitizer: lock-order-inversion\n",
                None,
            ),
            ("#include \"java.h\"\n// CHECK: DONE\n", None),
            ("// RUN: %env_tsan_opts=x=1 %run %t\n", None),
        ] {
            assert_eq!(races(&format!("{run}{checks}")), expected, "{checks}");
        }
        assert_eq!(races("int main() {}\n"), None);
        assert_eq!(optimised(run), "-O2");
    }
}
