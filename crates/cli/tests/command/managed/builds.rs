//! Builds by the real make, whose number of jobs follows their claims.
use super::frame::*;
use crate::common::{Place, stderr};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command};

/// Jobs that say when they begin and end, and end one at each ticket, or all when the door is open.
const RULES: &str = "\
%.job:
\t@echo + $@ >> log
\t@until [ -e door ] || rm ticket 2>/dev/null; do sleep 0.01; done
\t@echo $@ > $@; echo - $@ >> log
";

/// More than any test ends one by one.
const JOBS: usize = 300;

fn makefile(place: &Place, name: &str, jobs: usize) {
    let all: Vec<String> = (0..jobs).map(|n| format!("{name}{n}.job")).collect();
    let text = format!("all: {}\n{RULES}", all.join(" "));
    std::fs::write(place.path().join(name), text).unwrap();
}

/// A build under `corewise run`, ended when its test is over.
struct Build<'a> {
    place: &'a Place,
    child: Child,
}

impl Drop for Build<'_> {
    fn drop(&mut self) {
        // Its jobs, wherever they are by now, end by themselves.
        let _ = std::fs::write(self.place.path().join("door"), "");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Build<'a> {
    /// `corewise run` with `options`, of `words`, on one CPU: it begins with one job.
    fn start(place: &'a Place, options: &[&str], words: &[&str]) -> Build<'a> {
        let (cpus, _) = own_cpus();
        let cpu = cpus[0].to_string();
        let mut args = vec!["run", "--summary", "summary.json"];
        args.extend(options);
        args.push("--");
        args.extend(words);
        let mut command = place.command_under(&["taskset", "-c", &cpu], &args);
        let file = |name: &str| std::fs::File::create(place.path().join(name)).unwrap();
        let child = without_jobserver(&mut command)
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap();
        Build { place, child }
    }

    /// The number of the build's process, once it is managed.
    fn pid(&self) -> i32 {
        pid_of(&programs(self.place, 1)[0])
    }

    /// Sets the claim by hand.
    fn claim(&self, threads: usize) {
        let (pid, threads) = (self.pid().to_string(), threads.to_string());
        let output = self.place.corewise(&["claim", &pid, "--threads", &threads]);
        assert!(output.status.success(), "{}", stderr(&output));
    }

    /// Waits until just so many jobs run.
    fn runs(&self, jobs: usize) {
        until(&format!("{jobs} jobs at once"), || {
            (running(&log(self.place)) == jobs).then_some(())
        });
    }

    /// Lets one job end.
    fn end_one(&self) {
        let ended = |log: &[String]| log.iter().filter(|line| line.starts_with('-')).count();
        let before = ended(&log(self.place));
        std::fs::write(self.place.path().join("ticket"), "").unwrap();
        until("a job's end", || {
            (ended(&log(self.place)) > before).then_some(())
        });
    }

    /// Lets all jobs end; waits for `corewise run`, and gives what was said on standard error.
    fn ends_well(mut self) -> String {
        std::fs::write(self.place.path().join("door"), "").unwrap();
        let status = until("the end of corewise run", || self.child.try_wait().unwrap());
        let said = std::fs::read_to_string(self.place.path().join("err")).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// These tests may themselves be run by make or cargo.
fn without_jobserver(command: &mut Command) -> &mut Command {
    for name in [
        "MAKEFLAGS",
        "MFLAGS",
        "CARGO_MAKEFLAGS",
        "GNUMAKEFLAGS",
        "MAKELEVEL",
    ] {
        command.env_remove(name);
    }
    command
}

fn log(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.path().join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// How many jobs have begun and not ended.
fn running(log: &[String]) -> usize {
    let count = |sign: char| log.iter().filter(|line| line.starts_with(sign)).count();
    count('+') - count('-')
}

/// The most jobs that ran at once after the first `lines` of what jobs have said.
fn most_at_once(log: &[String], lines: usize) -> usize {
    let all = lines..=log.len();
    all.map(|lines| running(&log[..lines])).max().unwrap()
}

fn all_are_made(folder: &Path, name: &str, jobs: usize) {
    for n in 0..jobs {
        let target = format!("{name}{n}.job");
        let made = std::fs::read_to_string(folder.join(&target)).unwrap();
        assert_eq!(made, format!("{target}\n"));
    }
}

#[test]
fn a_build_runs_as_many_jobs_as_its_claim_allows_while_it_changes() {
    let place = Place::new();
    makefile(&place, "m", JOBS);
    let build = Build::start(&place, &[], &["make", "-f", "m", "-j9"]);
    build.runs(1);
    for threads in [4, 6] {
        build.claim(threads);
        build.runs(threads);
    }
    assert_eq!(most_at_once(&log(&place), 0), 6);
    // More than were asked for.
    build.claim(50);
    build.runs(9);
    build.claim(2);
    // It may be that make takes a token that has come back before corewise does, but not for ever.
    let (mut calm, mut lines) = (0, 0);
    while calm < 30 {
        build.end_one();
        match running(&log(&place)) <= 2 {
            true => calm += 1,
            false => (calm, lines) = (0, log(&place).len()),
        }
        assert!(lines < 2 * JOBS - 100, "it never came down to its claim");
    }
    build.runs(2);
    let said = build.ends_well();
    all_are_made(place.path(), "m", JOBS);
    assert_eq!(most_at_once(&log(&place), lines + 10), 2);
    assert!(said.contains("-j9 is taken for the most"), "{said}");
    assert!(!said.contains("warning"), "{said}");
    let summary = summary(&place);
    assert_eq!(summary["jobserver"]["most"], 9);
    assert_eq!(summary["managed"]["jobs"]["fewest"], 1);
    assert_eq!(summary["threads"], 9);
}

#[test]
fn a_build_is_malleable_from_one_thread_to_the_jobs_that_were_asked_for() {
    let place = Place::new();
    makefile(&place, "m", 4);
    let build = Build::start(&place, &[], &["make", "-f", "m", "-j7"]);
    let wants = programs(&place, 1)[0]["wants"].clone();
    assert_eq!(wants["malleable"], true);
    until("what follows to be told", || {
        let follows = programs(&place, 1)[0]["follows"].clone();
        (follows == serde_json::json!(["jobserver"])).then_some(())
    });
    assert_eq!(
        (&wants["min_threads"], &wants["max_threads"]),
        (&1.into(), &7.into())
    );
    build.ends_well();
}

#[test]
fn makes_below_a_make_share_its_tokens() {
    let place = Place::new();
    makefile(&place, "a", 8);
    makefile(&place, "b", 8);
    let rules = "all: a b\na b:\n\t$(MAKE) -f $@\n.PHONY: a b all\n";
    std::fs::write(place.path().join("both"), rules).unwrap();
    let build = Build::start(&place, &[], &["make", "-f", "both", "-j", "9"]);
    build.runs(1);
    build.claim(5);
    build.runs(5);
    let said = build.ends_well();
    all_are_made(place.path(), "a", 8);
    all_are_made(place.path(), "b", 8);
    assert_eq!(most_at_once(&log(&place), 0), 5);
    assert!(!said.contains("jobserver unavailable"), "{said}");
}

#[test]
fn when_corewise_run_is_killed_the_build_goes_on_with_the_tokens_that_it_has() {
    let place = Place::new();
    makefile(&place, "m", 20);
    let mut build = Build::start(&place, &[], &["make", "-f", "m", "-j9"]);
    build.runs(1);
    build.claim(3);
    build.runs(3);
    build.child.kill().unwrap();
    build.child.wait().unwrap();
    for _ in 0..5 {
        build.end_one();
    }
    build.runs(3);
    std::fs::write(place.path().join("door"), "").unwrap();
    until("the end of the build", || {
        let log = log(&place);
        (log.len() == 40 && running(&log) == 0).then_some(())
    });
    all_are_made(place.path(), "m", 20);
    assert_eq!(most_at_once(&log(&place), 0), 3);
}

#[test]
fn a_make_that_nobody_told_to_be_parallel_stays_serial() {
    let place = Place::new();
    makefile(&place, "m", 5);
    std::fs::write(place.path().join("door"), "").unwrap();
    let build = Build::start(&place, &[], &["make", "-f", "m"]);
    build.ends_well();
    all_are_made(place.path(), "m", 5);
    assert_eq!(most_at_once(&log(&place), 0), 1);
    let why = summary(&place)["jobserver"]["why_not"].clone();
    assert!(why.as_str().unwrap().contains("one job at a time"), "{why}");
}

#[test]
fn a_script_that_builds_is_offered_a_jobserver_where_its_user_says_so() {
    let place = Place::new();
    makefile(&place, "m", 6);
    let build = Build::start(&place, &["--jobs=3"], &["sh", "-c", "make -f m"]);
    build.runs(1);
    build.claim(8);
    build.runs(3);
    build.ends_well();
    all_are_made(place.path(), "m", 6);
    assert_eq!(most_at_once(&log(&place), 0), 3);
}

#[test]
fn a_build_within_another_one_keeps_that_ones_jobserver() {
    let place = Place::new();
    makefile(&place, "m", 4);
    std::fs::write(place.path().join("door"), "").unwrap();
    let corewise = env!("CARGO_BIN_EXE_corewise");
    let rules = format!("all:\n\t+{corewise} run --summary inner.json -- $(MAKE) -f m\n");
    std::fs::write(place.path().join("outer"), rules).unwrap();
    // With this place's settings for what it starts.
    let mut command = place.command_under(&["sh", "-c", "exec make -j2 -f outer"], &[]);
    let output = without_jobserver(&mut command).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("jobserver unavailable"), "{said}");
    all_are_made(place.path(), "m", 4);
    let text = std::fs::read_to_string(place.path().join("inner.json")).unwrap();
    let inner: Value = serde_json::from_str(&text).unwrap();
    let why = inner["jobserver"]["why_not"].as_str().unwrap_or_default();
    assert!(why.contains("MAKEFLAGS"), "{text}");
}

#[test]
fn without_a_manager_a_build_has_all_the_jobs_that_were_asked_for() {
    let place = Place::new();
    makefile(&place, "m", 12);
    // No folder for a manager.
    std::fs::write(place.runtime(), "").unwrap();
    let build = Build::start(&place, &[], &["make", "-f", "m", "-j9"]);
    build.runs(9);
    build.ends_well();
    all_are_made(place.path(), "m", 12);
    assert_eq!(most_at_once(&log(&place), 0), 9);
    assert!(summary(&place)["managed"]["why_not"].is_string());
}

#[test]
fn cargo_uses_the_jobserver_and_hands_it_on() {
    let place = Place::new();
    let write = |name: &str, text: &str| {
        let file = place.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    write(
        "Cargo.toml",
        "[package]\nname = \"made\"\nedition = \"2021\"\n[workspace]\n",
    );
    write("src/main.rs", "fn main() {}\n");
    let flags = "std::env::var(\"CARGO_MAKEFLAGS\").unwrap_or_default()";
    write(
        "build.rs",
        &format!("fn main() {{ std::fs::write(\"flags\", {flags}).unwrap(); }}\n"),
    );
    let args = [
        "run",
        "--summary",
        "summary.json",
        "--",
        env!("CARGO"),
        "build",
        "--offline",
        "-j9",
    ];
    let mut command = place.command(&args);
    // Nobody's settings.
    for name in ["CARGO_BUILD_JOBS", "CARGO_TARGET_DIR", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    let output = without_jobserver(&mut command)
        .env("CARGO_HOME", place.path().join("home"))
        .output()
        .unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("warning"), "{said}");
    let flags = std::fs::read_to_string(place.path().join("flags")).unwrap();
    assert!(flags.contains("=200,201"), "{flags}");
    assert_eq!(
        summary(&place)["jobserver"]["replaced"],
        serde_json::json!(["-j9"])
    );
}
