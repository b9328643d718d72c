//! Programs of all kinds run on the runtime: races are found where there are some and nowhere else, and what
//! the programs print and how they end is as without.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_analyses::race::lines::Lines;
use corewise_analyses::race::report::{Findings, Memory, read};
use corewise_analyses::race::text::summary;
use corewise_analyses::region::{Manner, Region, Wanted};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;

/// A program, compiled with ThreadSanitizer and without. `None`: not here.
struct Program {
    _folder: TempDir,
    instrumented: PathBuf,
    plain: PathBuf,
}

fn compile(compiler: &str, source: &str) -> Option<Program> {
    compile_with(compiler, source, &[])
}

fn compile_with(compiler: &str, source: &str, more: &[&str]) -> Option<Program> {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let make = |name: &str, flags: &[&str]| {
        let file = folder.path().join(name);
        let compiled = Command::new(compiler)
            .args(["-O1", "-g", "-Wno-tsan", "-o"])
            .args([&file, &source])
            .args(flags)
            .args(more)
            .args(["-lpthread", "-ldl"])
            .output();
        match compiled {
            Ok(output) if output.status.success() => Some(file),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(!flags.is_empty(), "{}: {said}", source.display());
                eprintln!("skipped: {compiler} cannot compile with {flags:?}: {said}");
                None
            }
            Err(error) => {
                eprintln!("skipped: no {compiler} here: {error}");
                None
            }
        }
    };
    Some(Program {
        // First, since it has to be possible.
        plain: make("plain", &[])?,
        instrumented: make("instrumented", &["-fsanitize=thread"])?,
        _folder: folder,
    })
}

fn cases() -> Option<&'static Program> {
    static MADE: OnceLock<Option<Program>> = OnceLock::new();
    MADE.get_or_init(|| compile("gcc", "cases.c")).as_ref()
}

fn ends() -> Option<&'static Program> {
    static MADE: OnceLock<Option<Program>> = OnceLock::new();
    MADE.get_or_init(|| compile("gcc", "ends.c")).as_ref()
}

/// The library that programs run on. Cargo does not build it with its tests: `make test` does so before.
fn runtime() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let places = [
        folder.join("libcorewise_race.so"),
        folder.join("../libcorewise_race.so"),
    ];
    let newest = places
        .iter()
        .filter(|file| file.is_file())
        .max_by_key(|file| file.metadata().and_then(|m| m.modified()).unwrap());
    newest
        .expect("the library is missing: cargo build -p corewise-race")
        .clone()
}

fn wanted(manner: Manner, capacity: u32) -> Wanted {
    Wanted {
        manner,
        capacity,
        race_mib: 256,
        ..Wanted::default()
    }
}

fn searched(program: &Path, arguments: &[&str], wanted: Wanted) -> (Output, Findings) {
    let region = Region::create(wanted).unwrap();
    let (name, value) = region.variable().unwrap();
    let output = Command::new(program)
        .args(arguments)
        .env(name, value)
        .env("LD_PRELOAD", runtime())
        .output()
        .unwrap();
    (output, read(&region, &mut Lines::default()))
}

fn all_cases(program: &Program) -> Vec<String> {
    let output = Command::new(&program.plain).output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().map(str::to_owned).collect()
}

#[test]
fn races_are_found_where_there_are_some_and_nowhere_else() {
    let Some(program) = cases() else { return };
    let cases = all_cases(program);
    assert!(cases.len() > 50);
    for case in cases {
        let (output, findings) =
            searched(&program.instrumented, &[&case], wanted(Manner::Adaptive, 0));
        assert!(output.status.success(), "{case}: {output:?}");
        let found = findings.races.len();
        assert_eq!(
            found > 0,
            case.starts_with("race_"),
            "{case}: {:?}",
            findings.races
        );
    }
}

#[test]
fn every_manner_and_capacity_finds_the_same() {
    let Some(program) = cases() else { return };
    for case in [
        "race_different_locks",
        "race_heap",
        "fine_hand_over",
        "fine_release_acquire",
    ] {
        for (name, manner) in Manner::ALL {
            for capacity in [1, 3, 0] {
                let (_, findings) =
                    searched(&program.instrumented, &[case], wanted(manner, capacity));
                let expected = case.starts_with("race_") && manner != Manner::Nothing;
                let found = !findings.races.is_empty();
                assert_eq!(found, expected, "{case}, {name}, {capacity}");
            }
        }
    }
}

#[test]
fn what_a_thread_that_does_nothing_more_did_races_with_what_others_do_however_often_they_allocate_again()
 {
    let Some(program) = cases() else { return };
    for case in [
        "race_block_allocated_again",
        "race_block_allocated_again_often",
        "fine_block_allocated_again",
    ] {
        for manner in [Manner::Adaptive, Manner::Synchronous, Manner::Pool] {
            for run in 0..10 {
                let (_, findings) = searched(&program.instrumented, &[case], wanted(manner, 0));
                let found = !findings.races.is_empty();
                let expected = case.starts_with("race_");
                assert_eq!(found, expected, "{case}, {manner:?}, {run}");
            }
        }
    }
}

#[test]
fn a_report_says_both_places_the_variable_and_the_locks() {
    let Some(program) = cases() else { return };
    let (_, findings) = searched(
        &program.instrumented,
        &["race_different_locks"],
        wanted(Manner::Adaptive, 0),
    );
    let race = &findings.races[0];
    let Memory::Variable { name, offset, .. } = &race.memory else {
        panic!("{race:?}");
    };
    assert_eq!((name.as_str(), *offset), ("shared", 0));
    let mut functions = Vec::new();
    let mut locks = Vec::new();
    for side in &race.sides {
        let top = &side.stack[0];
        assert!(top.file.ends_with("cases.c") && top.line > 0, "{top:?}");
        functions.push(top.function.as_str());
        locks.extend(side.locks.iter().map(String::as_str));
        let created: Vec<_> = side
            .thread
            .created
            .iter()
            .map(|p| p.function.as_str())
            .collect();
        assert_eq!(created.last(), Some(&"main"), "{created:?}");
    }
    functions.sort_unstable();
    locks.sort_unstable();
    assert_eq!(functions, ["one_lock", "other_lock"]);
    assert_eq!(locks, ["mutex", "second"]);
}

#[test]
fn a_race_on_a_block_says_where_it_was_allocated() {
    let Some(program) = cases() else { return };
    let (_, findings) = searched(
        &program.instrumented,
        &["race_heap"],
        wanted(Manner::Adaptive, 0),
    );
    let Memory::Block {
        bytes,
        offset,
        allocated,
        thread,
        ..
    } = &findings.races[0].memory
    else {
        panic!("{:?}", findings.races[0]);
    };
    assert_eq!((*bytes, *offset, thread.index), (64, 0, 0));
    assert_eq!(allocated[0].function, "race_heap");
}

#[test]
fn however_a_program_ends_its_result_is_its_own_and_its_races_are_found() {
    let Some(program) = ends() else { return };
    for how in [
        "exit",
        "_exit",
        "abort",
        "kill",
        "killed in a thread",
        "fork",
        "signals",
    ] {
        let expected = Command::new(&program.plain).arg(how).output().unwrap();
        for manner in [Manner::Adaptive, Manner::Synchronous, Manner::Pool] {
            let (output, findings) = searched(&program.instrumented, &[how], wanted(manner, 500));
            assert_eq!(output, expected, "{how}, {manner:?}");
            let told = findings.races.iter();
            let told =
                told.map(|race| (summary(race), race.sides.each_ref().map(|side| side.what)));
            let told: Vec<_> = told.collect();
            let once: BTreeSet<_> = told.iter().collect();
            assert!(!told.is_empty(), "{how}, {manner:?}");
            assert_eq!(once.len(), told.len(), "{how}, {manner:?}: {told:?}");
        }
    }
}

#[test]
fn a_program_sees_its_signals_and_handlers_as_it_does_without() {
    let Some(program) = compile_with("gcc", "handlers.c", &["-w"]) else {
        return;
    };
    let expected = Command::new(&program.plain).output().unwrap();
    for manner in [Manner::Adaptive, Manner::Synchronous, Manner::Sequential] {
        let (output, findings) = searched(&program.instrumented, &[], wanted(manner, 500));
        assert_eq!(output, expected, "{manner:?}");
        assert_eq!(findings.races, [], "{manner:?}");
    }
}

#[test]
fn the_standard_librarys_threads_and_locks_order_as_the_c_librarys() {
    let Some(program) = compile("g++", "classes.cpp") else {
        return;
    };
    let (output, findings) = searched(&program.instrumented, &[], wanted(Manner::Adaptive, 0));
    let expected = Command::new(&program.plain).output().unwrap();
    assert_eq!(output, expected);
    assert_eq!(findings.races, [], "nothing races");
    let (_, findings) = searched(
        &program.instrumented,
        &["races"],
        wanted(Manner::Adaptive, 0),
    );
    let variables: Vec<_> = findings.races.iter().map(|race| &race.memory).collect();
    assert!(
        variables
            .iter()
            .all(|memory| matches!(memory, Memory::Variable { name, .. } if name == "raced")),
        "{variables:?}"
    );
    assert!(!variables.is_empty());
}

#[test]
fn races_in_a_library_that_was_unloaded_have_names() {
    let library = compile_with("gcc", "loads.c", &["-shared", "-fPIC"]);
    let program = compile_with("gcc", "loads.c", &["-DPROGRAM"]);
    let (Some(library), Some(program)) = (library, program) else {
        return;
    };
    let (output, findings) = searched(
        &program.instrumented,
        &[library.instrumented.to_str().unwrap()],
        wanted(Manner::Adaptive, 0),
    );
    assert!(output.status.success(), "{output:?}");
    let race = &findings.races[0];
    assert_eq!(race.sides[0].stack[0].function, "in_library");
    assert!(
        matches!(&race.memory, Memory::Variable { name, .. } if name == "of_library"),
        "{race:?}"
    );
}

#[test]
fn a_process_that_may_not_have_the_memory_runs_as_ever_and_is_counted() {
    let Some(program) = ends() else { return };
    let limited = format!("ulimit -v 300000; exec {}", program.instrumented.display());
    let (output, findings) = searched(
        Path::new("/bin/sh"),
        &["-c", &limited],
        wanted(Manner::Adaptive, 0),
    );
    let expected = Command::new(&program.plain).output().unwrap();
    assert_eq!(output, expected);
    assert_eq!(findings.unseen_processes, 1);
}

#[test]
fn where_memory_is_short_what_is_given_up_is_said() {
    let Some(program) = cases() else { return };
    let short = Wanted {
        race_mib: 8,
        ..wanted(Manner::Adaptive, 0)
    };
    let (output, findings) = searched(&program.instrumented, &["fine_memory_reuse"], short);
    assert!(output.status.success());
    assert!(findings.processes.iter().all(|seen| seen.bytes <= 8 << 20));
    assert_eq!(findings.races, []);
}

#[test]
fn a_program_runs_as_ever_when_the_region_is_gone_or_the_variable_is_nonsense() {
    let Some(program) = cases() else { return };
    for value in ["", "1", "1:2:3", "x:y:z", "999999999:1:1"] {
        let output = Command::new(&program.instrumented)
            .arg("fine_release_acquire")
            .env("COREWISE_RACE", value)
            .env("LD_PRELOAD", runtime())
            .output()
            .unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{value:?}: {output:?}"
        );
    }
}
