//! Scripts and their interpreters.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Environment;
use crate::command::find_program;

/// The kernel reads this much of a script's first line.
const LINE_LIMIT: u64 = 256;
/// A script's interpreter may be a script; the kernel follows a handful.
const DEPTH: usize = 5;

/// The program that runs a script in the end, or `None` where `path` is no script.
/// `#!/usr/bin/env [-S] NAME` is looked up along `PATH`.
pub(crate) fn interpreter_of(path: &Path, environment: &Environment) -> Option<PathBuf> {
    let mut current = first_line(path)?;
    for _ in 0..DEPTH {
        let next = follow(&current, environment)?;
        match first_line(&next) {
            Some(line) => current = line,
            None => return Some(next),
        }
    }
    None
}

fn first_line(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(LINE_LIMIT)
        .read_to_end(&mut bytes)
        .ok()?;
    let rest = bytes.strip_prefix(b"#!")?;
    Some(
        rest.split(|&b| b == b'\n')
            .next()
            .unwrap_or_default()
            .to_vec(),
    )
}

fn follow(line: &[u8], environment: &Environment) -> Option<PathBuf> {
    let mut words = line
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first.to_owned());
    }
    // Options of env and assignments come before the name.
    let name = words.find(|w| !w.starts_with(b"-") && !w.contains(&b'='))?;
    let path = environment.get(OsStr::new("PATH")).map(OsString::as_os_str);
    find_program(OsStr::from_bytes(name), path).ok()
}

/// Whether a program's name is that of an interpreter, with or without a version.
pub(super) fn is_interpreter(path: &Path) -> bool {
    const NAMES: &[&str] = &[
        "python",
        "pypy",
        "perl",
        "ruby",
        "R",
        "Rscript",
        "node",
        "php",
        "lua",
        "luajit",
        "octave",
        "octave-cli",
        "sh",
        "bash",
        "dash",
        "zsh",
        "ksh",
        "fish",
        "busybox",
        "tclsh",
        "guile",
        "make",
        "env",
        "nice",
        "timeout",
        "time",
        "xargs",
        "parallel",
        "numactl",
        "taskset",
        "stdbuf",
        "sudo",
    ];
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy())
        .unwrap_or_default();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    NAMES.contains(&stem)
}
