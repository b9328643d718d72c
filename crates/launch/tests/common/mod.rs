//! What the end-to-end tests share. Each test program contains a test `helper`, which does nothing
//! unless the environment gives it a part to play: a test starts its own program anew to have a
//! corewise process that it can place in a folder, run as another user, signal or kill.
#![allow(
    dead_code,
    unsafe_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub
)]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use corewise_launch::{Availability, Command, Probe, RunOptions, Sandbox, Spool, run};

/// Far longer than anything here takes: a limit against hanging, not a measurement.
pub const LONG: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

pub fn shell(script: &str) -> Command {
    Command::new("/bin/sh").unwrap().args(["-c", script])
}

/// Who runs corewise in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Me,
    Nobody,
}

/// Those whom this machine lets make sandboxes; says who is left out, and why.
pub fn who_can() -> Vec<Who> {
    static KNOWN: OnceLock<Vec<Who>> = OnceLock::new();
    KNOWN
        .get_or_init(|| {
            let mut who = vec![Who::Me];
            if rustix::process::geteuid().is_root() {
                who.push(Who::Nobody);
            } else {
                eprintln!("skipped for another user: only root can become one");
            }
            who.retain(|&who| {
                let tried = match corewise("available", "", who).output() {
                    Ok(tried) => tried,
                    Err(why) => {
                        eprintln!("skipped for {who:?}: {why}");
                        return false;
                    }
                };
                if !tried.status.success() {
                    let why = String::from_utf8_lossy(&tried.stderr);
                    eprintln!("skipped for {who:?}: {why}");
                }
                tried.status.success()
            });
            who
        })
        .clone()
}

/// This test program, at a place where every user can execute it.
pub fn own_program() -> &'static Path {
    static PLACE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &PLACE
        .get_or_init(|| {
            let folder = open_folder();
            let place = folder.path().join("helper");
            std::fs::copy(std::env::current_exe().unwrap(), &place).unwrap();
            (folder, place)
        })
        .1
}

/// A new folder in which everyone may write.
pub fn open_folder() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// A process that plays a part with a shell script.
pub fn corewise(part: &str, script: &str, who: Who) -> Process {
    let mut process = Process::new(own_program());
    process
        .args(["--exact", "helper", "--nocapture", "--test-threads=1"])
        .env("HELPER_PART", part)
        .env("HELPER_SCRIPT", script)
        .stdin(Stdio::null())
        .current_dir("/");
    if who == Who::Nobody {
        process.uid(NOBODY).gid(NOBODY).env("HOME", "/nonexistent");
    }
    process
}

/// How a probe of a script ended: its exit code as a shell gives it, and its standard error.
pub struct Ran {
    pub code: i32,
    pub stderr: String,
}

/// Runs a script as a probe of a corewise process that runs in `folder` as `who`.
pub fn probe(who: Who, folder: &Path, script: &str) -> Ran {
    let output = corewise("probe", script, who)
        .current_dir(folder)
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The body of the test `helper`.
pub fn helper_main() {
    let Ok(part) = std::env::var("HELPER_PART") else {
        return;
    };
    let script = std::env::var("HELPER_SCRIPT").unwrap();
    let limit = std::env::var("HELPER_LIMIT").map_or(1 << 20, |l| l.parse().unwrap());
    let end = |result: Result<i32, Box<dyn std::error::Error>>| match result {
        Ok(code) => std::process::exit(code),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(125)
        }
    };
    match part.as_str() {
        "available" => match Sandbox::availability() {
            Availability::Full { .. } => end(Ok(0)),
            Availability::Unavailable { why } => end(Err(why.into())),
        },
        "probe" => end(probe_here(Sandbox::prepare(), &script, &Spool::none())),
        "probe-without-walls" => end(probe_here(Sandbox::none(), &script, &Spool::none())),
        "run" => run::run(&shell(&script), &RunOptions::default())
            .unwrap()
            .exit_like_program(),
        "probes-then-run" => {
            let spool = Spool::capture(limit).unwrap();
            for _ in 0..2 {
                probe_here(Sandbox::none(), "cat >&2", &spool).unwrap();
            }
            eprintln!("{:?}", spool.completeness());
            let options = RunOptions {
                stdin: Some(&spool),
            };
            run::run(&shell(&script), &options)
                .unwrap()
                .exit_like_program()
        }
        inside => crate::play_inside(inside, &script),
    }
}

fn probe_here(
    sandbox: Result<Sandbox, corewise_launch::sandbox::Error>,
    script: &str,
    stdin: &Spool,
) -> Result<i32, Box<dyn std::error::Error>> {
    let mut probe = Probe::start(&sandbox?, &shell(script), stdin)?;
    probe.release()?;
    let end = probe
        .wait_timeout(LONG)?
        .ok_or("the program does not end")?;
    eprint!("{}", String::from_utf8_lossy(&probe.stderr_tail()));
    Ok(end.status.shell_code())
}

/// Waits until something is so; fails the test if it never is.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes that have `word` as one of their arguments.
pub fn processes_with(word: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&b| b == 0).any(|arg| arg == word.as_bytes())
        })
        .collect()
}

/// A number of seconds to sleep that no other test uses, to find the sleeper by.
pub fn marker(which: u32) -> String {
    format!("{}.{which}", 100_000 + std::process::id())
}

/// Names, sizes, times and contents of everything under a folder.
pub fn snapshot(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut all = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(path) = open.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_file() {
            std::fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        all.push(format!(
            "{path:?} {} {:o} {} {}.{} {content:?}",
            meta.ino(),
            meta.mode(),
            meta.uid(),
            meta.mtime(),
            meta.mtime_nsec()
        ));
        if meta.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
    }
    all.sort();
    all
}
