use super::*;
use std::collections::BTreeMap;

const PROGRAM: &str = "name = \"work\"\n[[phase]]\nserial = { work_ms = 10 }\n";

/// A scenario whose files are these; the scenario's own folder is `/s`.
fn loaded(text: &str, files: &[(&str, &str)]) -> Result<Scenario, String> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let read = |path: &Path| {
        let text = files.get(path.to_str().unwrap_or(""));
        text.map(|text| (*text).to_owned())
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    };
    let made = Scenario::from_toml(text, Path::new("/s/test.toml"), &read);
    made.map_err(|error| error.to_string())
}

fn with(program: &str) -> Result<Scenario, String> {
    let text = format!("machine = \"flat:4\"\n\n[[program]]\nfile = \"p/work.toml\"\n{program}");
    loaded(&text, &[("/s/p/work.toml", PROGRAM)])
}

#[test]
fn what_is_not_said_is_as_usual() {
    let scenario = with("").unwrap();
    assert_eq!(scenario.name, "test");
    assert_eq!(scenario.policy, Some(Source::built_in("balanced")));
    assert_eq!(scenario.limit_ns, DEFAULT_LIMIT_NS);
    assert_eq!(scenario.machine.places.len(), 4);
    let entry = &scenario.entries[0];
    assert_eq!(entry.name, "work");
    assert_eq!((entry.count, entry.waves, entry.start_ns), (1, 1, 0));
    assert_eq!(entry.managed, Some(Managed::Rigid));
    assert_eq!(entry.share, Share::Session("main".to_owned()));
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let error = with("thread = 3\n").unwrap_err();
    assert!(error.starts_with("/s/test.toml:5:"), "{error}");
    assert!(error.contains("thread"), "{error}");
}

#[test]
fn a_missing_file_is_named_with_the_line_that_wants_it() {
    let text = "machine = \"flat:4\"\n[[program]]\nname = \"a\"\nfile = \"nowhere.toml\"\n";
    let error = loaded(text, &[]).unwrap_err();
    assert!(error.starts_with("/s/test.toml:4:"), "{error}");
    assert!(error.contains("/s/nowhere.toml"), "{error}");
}

#[test]
fn what_is_wrong_within_a_program_file_is_said_with_that_files_line() {
    let text = "machine = \"flat:4\"\n[[program]]\nfile = \"p.toml\"\n";
    let program = "name = \"p\"\n[[phase]]\nserial = { work_ms = 10 }\nnonsense = 1\n";
    let error = loaded(text, &[("/s/p.toml", program)]).unwrap_err();
    assert!(error.starts_with("/s/p.toml: line 4"), "{error}");
}

#[test]
fn a_program_may_be_described_on_the_spot() {
    let text = "machine = \"flat:2\"\n[[program]]\nname = \"here\"\n[program.spec]\nname = \"x\"\n\
                [[program.spec.phase]]\nserial = { work_ms = 5 }\n";
    assert_eq!(loaded(text, &[]).unwrap().entries[0].name, "here");
    let wrong = text.replace("= 5", "= -5");
    let error = loaded(&wrong, &[]).unwrap_err();
    assert!(error.starts_with("/s/test.toml:7:"), "{error}");
    let both = text.replace("name = \"here\"\n", "file = \"p.toml\"\n");
    assert!(
        loaded(&both, &[])
            .unwrap_err()
            .contains("either by `file` or")
    );
}

#[test]
fn impossible_machines_are_refused() {
    for (machine, line) in [
        ("flat:0", 1),
        ("flat:5000", 1),
        ("flat:many", 1),
        ("none.toml", 1),
    ] {
        let text = format!("machine = \"{machine}\"\n[[program]]\nfile = \"p.toml\"\n");
        let error = loaded(&text, &[("/s/p.toml", PROGRAM)]).unwrap_err();
        assert!(
            error.starts_with(&format!("/s/test.toml:{line}:")),
            "{error}"
        );
    }
}

#[test]
fn programs_that_wait_for_each_other_are_named() {
    let program = |name: &str, after: &str| {
        format!("[[program]]\nname = \"{name}\"\nfile = \"p.toml\"\nafter = \"{after}\"\n")
    };
    let text = format!(
        "machine = \"flat:2\"\n{}{}{}{}",
        program("d", "a"),
        program("a", "b"),
        program("b", "c"),
        program("c", "a"),
    );
    let error = loaded(&text, &[("/s/p.toml", PROGRAM)]).unwrap_err();
    assert!(error.contains("a after b after c after a"), "{error}");
    assert!(error.starts_with("/s/test.toml:9:"), "{error}");
    let alone = format!("machine = \"flat:2\"\n{}", program("a", "a"));
    let error = loaded(&alone, &[("/s/p.toml", PROGRAM)]).unwrap_err();
    assert!(error.contains("a after a"), "{error}");
}

#[test]
fn names_that_name_nothing_or_two_things_are_refused_with_their_line() {
    for (keys, line, why) in [
        ("after = \"nobody\"", 5, "nobody"),
        ("group = \"nowhere\"", 5, "nowhere"),
        ("cpus = \"0-9\"", 5, "no CPU 4"),
        ("cpus = \"\"", 5, "at least one CPU"),
        ("cpus = \"x\"", 5, "0-3,8"),
        ("threads = 0", 5, "threads"),
        ("count = 0", 5, "at least one"),
        ("waves = 0", 5, "at least one"),
        ("count = 4000000000", 5, "too many"),
        ("session = \"a\"\ngroup = \"b\"", 6, "one of the two"),
        ("pause_ms = 1\nevery_ms = 1", 6, "either"),
        ("max_threads = 3", 5, "malleable"),
        ("malleable = true", 5, "malleable"),
        ("start_ms = -1", 5, "-1"),
    ] {
        let error = with(&format!("{keys}\n")).unwrap_err();
        assert!(
            error.starts_with(&format!("/s/test.toml:{line}:")),
            "{keys}: {error}"
        );
        assert!(error.contains(why), "{keys}: {error}");
    }
    let error = with("[[program]]\nfile = \"p/work.toml\"\n").unwrap_err();
    assert!(error.contains("another program has this name"), "{error}");
}

#[test]
fn groups_have_weights_and_quotas_within_what_linux_takes() {
    let with_group = |group: &str| {
        let text = format!(
            "machine = \"flat:4\"\nmanager = \"box\"\n[[program]]\nfile = \"p.toml\"\ngroup = \"box\"\n\
             [[group]]\nname = \"box\"\n{group}\n"
        );
        loaded(&text, &[("/s/p.toml", PROGRAM)])
    };
    let scenario = with_group("quota_cpus = 1.5").unwrap();
    let quota = scenario.groups[0].quota.unwrap();
    assert_eq!(
        (quota.quota_ns, quota.period_ns),
        (150_000_000, 100_000_000)
    );
    assert_eq!(scenario.manager_group, Some(0));
    assert_eq!(scenario.entries[0].share, Share::Group(0));
    for wrong in [
        "quota_cpus = 0",
        "quota_cpus = nan",
        "quota_cpus = 1e30",
        "weight = 0",
    ] {
        assert!(with_group(wrong).is_err(), "{wrong}");
    }
    assert!(with_group("quota_cpus = 1\nperiod_ms = 5000").is_err());
}

#[test]
fn a_policy_is_a_name_a_script_or_nothing() {
    let script = "fn on_joined(p) { grant(p, machine.cpus, p.max, \"all\"); }\n";
    let read = |path: &Path| match path.to_str() {
        Some("/s/mine.rhai") => Ok(script.to_owned()),
        Some("/s/wrong.rhai") => Ok("fn on_joined(p) {\n let x = ;\n}".to_owned()),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    let named = |text: &str| policy(text, Path::new("/s"), 7, &read);
    assert_eq!(named("none"), Ok(None));
    assert_eq!(named("fcfs").unwrap().unwrap().name, "fcfs");
    let source = named("mine.rhai").unwrap().unwrap();
    assert_eq!((source.name.as_str(), source.seed), ("mine.rhai", 7));
    assert!(named("wrong.rhai").unwrap_err().contains(":2:"));
    assert!(named("none.rhai").unwrap_err().contains("cannot read"));
    assert!(named("best").unwrap_err().contains("balanced"));
}

#[test]
fn a_script_that_is_wrong_is_refused_with_the_scenarios_line() {
    let text = "machine = \"flat:2\"\npolicy = \"best\"\n[[program]]\nfile = \"p.toml\"\n";
    let error = loaded(text, &[("/s/p.toml", PROGRAM)]).unwrap_err();
    assert!(error.starts_with("/s/test.toml:2:"), "{error}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_a_scenario_panic(text in ".{0,300}") {
        let _ = loaded(&text, &[]);
    }

    #[test]
    fn no_number_makes_a_scenario_panic(
        key in "(count|start_ms|waves|pause_ms|every_ms|threads|min_threads|max_threads)",
        number in proptest::num::i64::ANY,
    ) {
        let _ = with(&format!("{key} = {number}\n"));
        let _ = loaded(
            &format!("limit_ms = {number}\ndelay_us = {number}\nmachine = \"flat:2\"\n\
                      [[program]]\nfile = \"p.toml\"\n{key} = {number}\n"),
            &[("/s/p.toml", PROGRAM)],
        );
    }
}
