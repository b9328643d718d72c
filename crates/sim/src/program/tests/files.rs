//! Program files: those that are with us, and wrong ones.

use super::*;
use std::path::Path;

fn programs() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/programs");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|f| f.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(file).unwrap())
    };
    files.iter().map(read).collect()
}

#[test]
fn every_program_that_we_have_runs() {
    let programs = programs();
    assert!(programs.len() >= 12);
    for (name, text) in programs {
        let mut bench = Bench::new(4);
        let p = bench.start(&text, 4);
        match bench.run(200 * MS, |_| false) {
            Ok(()) => assert!(
                bench.counters(p).work_ns > 100 * MS,
                "{name}: {:?}",
                bench.counters(p)
            ),
            Err(stuck) => assert_eq!(stuck.name, "deadlock"),
        }
    }
}

#[test]
fn the_pipeline_has_63_threads_in_six_stages() {
    let programs = programs();
    let (_, text) = programs.iter().find(|(name, _)| name == "x265").unwrap();
    let mut bench = Bench::new(24);
    let p = bench.start(text, 1);
    bench.run(100 * MS, |_| false).unwrap();
    // And the one that started them.
    assert_eq!(bench.state(p).threads, 63 + 1);
    let used: u64 = (0..24).map(|cpu| bench.kernel.cpu(cpu).busy_ns).sum();
    assert!(used > 24 * 80 * MS, "{used}");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let region = "\n[[phase]]\nregion = ";
    let group = "\n[[phase]]\n[[phase.group]]\nname = \"g\"\n";
    let cases = [
        (
            "name = 3\n[[phase]]\nsleep_ms = 1".to_owned(),
            1,
            "expected a string",
        ),
        ("name = \"a\"".to_owned(), 1, "missing field `phase`"),
        (
            "name = \"a\"\nphases = []".to_owned(),
            2,
            "unknown field `phases`",
        ),
        ("name = \"a\"\nphase = []".to_owned(), 1, "no phase"),
        (
            format!("name = \"a\"{region}{{ work_ms = -3 }}"),
            3,
            "work_ms is",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = nan }}"),
            3,
            "work_ms is",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 1e300 }}"),
            3,
            "work_ms is",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 1, imbalance = 1.5 }}"),
            3,
            "imbalance is 0 to 1",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 1, schedule = \"guided\" }}"),
            3,
            "unknown variant",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 1, schedule = \"dynamic\" }}"),
            3,
            "units",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 1, join = \"work\" }}"),
            3,
            "dynamic",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 1, threads = 65537 }}"),
            3,
            "65536",
        ),
        (
            format!("name = \"a\"{region}{{ work_ms = 0.001, units = 1001 }}"),
            3,
            "nanosecond",
        ),
        (
            "name = \"a\"\nthreads = 65537\n[[phase]]\nsleep_ms = 1".to_owned(),
            2,
            "1 to 65536",
        ),
        (
            "name = \"a\"\nthreads = 0\n[[phase]]\nsleep_ms = 1".to_owned(),
            2,
            "1 to 65536",
        ),
        (
            "name = \"a\"\nmin_threads = 3\nmax_threads = 2\n[[phase]]\nsleep_ms = 1".to_owned(),
            2,
            "at most",
        ),
        (
            "name = \"a\"\nwait = \"sleep\"\n[[phase]]\nsleep_ms = 1".to_owned(),
            2,
            "expected \"spin\"",
        ),
        (
            "name = \"a\"\n[locks.l]\nwait = \"spin\"\n[[phase]]\nsleep_ms = 1".to_owned(),
            2,
            "nothing takes",
        ),
        (
            "name = \"a\"\n[[phase]]\nrepeat = 0\nsleep_ms = 1".to_owned(),
            3,
            "at least 1",
        ),
        (
            "name = \"a\"\n[[phase]]\nrepeat = \"always\"\nsleep_ms = 1".to_owned(),
            3,
            "forever",
        ),
        (
            "name = \"a\"\n\n[[phase]]\nrepeat = 2".to_owned(),
            3,
            "exactly one of",
        ),
        (
            "name = \"a\"\n[[phase]]\nsleep_ms = 1\nio_us = 1".to_owned(),
            2,
            "exactly one of",
        ),
        (
            "name = \"a\"\n[[phase]]\nrepeat = \"forever\"\nsleep_ms = 1\n[[phase]]\nsleep_ms = 1"
                .to_owned(),
            5,
            "never reached",
        ),
        (
            "name = \"a\"\n[[phase]]\nrepeat = \"forever\"\njobs = { count = 1, work_ms = 1 }"
                .to_owned(),
            3,
            "cannot repeat for ever",
        ),
        (
            "name = \"a\"\n[[phase]]\nrepeat = 1000000\njobs = { count = 2, work_ms = 1 }"
                .to_owned(),
            3,
            "2000000 threads",
        ),
        (
            format!("name = \"a\"{group}steps = []"),
            3,
            "1 to 4096 steps",
        ),
        (
            format!("name = \"a\"{group}steps = [\n{{ lock = \"l\", work_us = 1 }}]"),
            6,
            "exactly one of",
        ),
        (
            format!("name = \"a\"{group}steps = [\n{{ work_us = 1 }},\n{{ unlock = \"l\" }}]"),
            7,
            "not hold",
        ),
        (
            format!("name = \"a\"{group}repeat = 2\nsteps = [{{ post = \"s\" }}]"),
            3,
            "take time",
        ),
        (
            format!(
                "name = \"a\"{group}threads = 65536\nsteps = [{{ work_us = 1 }}]{}",
                "\n[[phase.group]]\nname = \"h\"\nsteps = [{ work_us = 1 }]"
            ),
            2,
            "65537 threads",
        ),
    ];
    for (text, line, reason) in cases {
        let error = ProgramSpec::from_toml(&text).expect_err(&text);
        assert_eq!(error.line, line, "{error}\n{text}");
        assert!(error.reason.contains(reason), "{error}\n{text}");
        let said = error.to_string();
        assert!(said.starts_with(&format!("line {line}, column ")), "{said}");
    }
}

#[test]
fn wrong_pipelines_are_said_with_their_line() {
    let stages = |more: &str, last: &str| {
        format!(
            "name = \"a\"\n[[phase]]\n[phase.pipeline]\nitems = 5\n{more}\n\
             [[phase.pipeline.stage]]\nname = \"x\"\nwork_us = 1\n{last}\n"
        )
    };
    let cases = [
        (stages("in_flight = 0", ""), 5, "in_flight is 1"),
        (
            stages("", "threads = 2\nordered = true"),
            10,
            "only the last stage",
        ),
        (stages("", "queue = 4"), 6, "first stage"),
        (stages("", "threads = \"all\""), 9, "\"team\""),
        (stages("", "work_ms = 3"), 9, "unknown field `work_ms`"),
        (stages("", "variation = 2"), 9, "variation is 0 to 1"),
        (
            "name = \"a\"\n[[phase]]\npipeline = { items = 5, stage = [] }".to_owned(),
            2,
            "1 to 64 stages",
        ),
    ];
    for (text, line, reason) in cases {
        let error = ProgramSpec::from_toml(&text).expect_err(&text);
        assert_eq!(error.line, line, "{error}\n{text}");
        assert!(error.reason.contains(reason), "{error}\n{text}");
    }
}

#[test]
fn hostile_sizes_are_refused_quickly() {
    let nested = |depth: usize| {
        let (open, close) = ("phase = [{ ".repeat(depth), " }]".repeat(depth));
        format!("name = \"a\"\n{open}sleep_ms = 1{close}")
    };
    assert!(ProgramSpec::from_toml(&nested(8)).is_ok());
    assert!(ProgramSpec::from_toml(&nested(9)).is_err_and(|e| e.reason.contains("8 deep")));
    assert!(ProgramSpec::from_toml(&nested(100_000)).is_err());
    let many = "[[phase]]\nsleep_ms = 1\n".repeat(5000);
    let many = ProgramSpec::from_toml(&format!("name = \"a\"\n{many}")).unwrap_err();
    assert_eq!(many.line, 2 + 2 * 4096, "{many}");
    let locks = "{ name = \"l\", hold_us = 1, times = 4096 }";
    let region = format!("[[phase]]\nregion = {{ work_ms = 1, units = 1, locks = [{locks}] }}\n");
    let locks = ProgramSpec::from_toml(&format!("name = \"a\"\n{}", region.repeat(17)));
    assert!(locks.is_err_and(|e| e.line == 1 + 2 * 17 && e.reason.contains("65536")));
    let parts = "[[phase]]\nrepeat = 2\nsleep_ms = 1\n".repeat(17);
    let parts = ProgramSpec::from_toml(&format!("name = \"a\"\nprocesses = 65536\n{parts}"));
    assert!(parts.is_err_and(|e| e.line == 2 && e.reason.contains("processes together")));
    let team = "name = \"a\"\nprocesses = 65536\n[[phase]]\nregion = { work_ms = 1 }";
    let team = ProgramSpec::from_toml(team).unwrap();
    assert_eq!(Program::most_threads(&team), 65_536);
}

impl Program {
    fn most_threads(spec: &ProgramSpec) -> u32 {
        let plan = super::super::plan::Plan::of(spec).unwrap();
        plan.processes * plan.most_team
    }
}

#[test]
fn a_program_has_the_threads_that_are_asked_for_within_its_bounds() {
    let threads = |more: &str, asked| {
        let text = format!("name = \"a\"\n{more}\n[[phase]]\nsleep_ms = 1");
        let spec = ProgramSpec::from_toml(&text).unwrap();
        spec.threads_at_start(asked, &CpuSet::first(8))
    };
    assert_eq!(threads("", None), 8);
    assert_eq!(threads("", Some(3)), 3);
    assert_eq!(threads("threads = 5", None), 5);
    assert_eq!(threads("threads = 5", Some(3)), 3);
    assert_eq!(threads("max_threads = 4", None), 4);
    assert_eq!(threads("min_threads = 12", Some(3)), 12);
    assert_eq!(threads("", Some(0)), 1);
}

#[test]
fn the_examples_that_explain_the_files_are_right() {
    let readme = include_str!("../../../../../experiments/programs/README.md");
    let mut examples = vec![String::new()];
    for line in readme.lines() {
        match line.strip_prefix("    ") {
            Some(code) => examples.last_mut().unwrap().push_str(&format!("{code}\n")),
            None if line.is_empty() => examples.last_mut().unwrap().push('\n'),
            None => examples.push(String::new()),
        }
    }
    examples.retain(|example| !example.trim().is_empty());
    let [program, region, others @ ..] = examples.as_slice() else {
        panic!("{examples:?}");
    };
    assert_eq!(others.len(), 3);
    let mut texts = vec![format!("{program}\n[[phase]]\n{region}")];
    texts.extend(
        others
            .iter()
            .map(|part| format!("name = \"a\"\n[[phase]]\n{part}")),
    );
    for text in texts {
        let spec = ProgramSpec::from_toml(&text);
        assert!(spec.is_ok(), "{}\n{text}", spec.unwrap_err());
    }
}
