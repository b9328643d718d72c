use super::*;
use crate::runtimes::{Found, Runtime, WaitPolicy};

fn template(words: &[&str], env: &[&str]) -> Template {
    Template::parse(
        words.iter().map(OsString::from),
        env.iter().map(|e| (*e).to_owned()),
    )
    .unwrap()
}

fn resolve(template: &Template, threads: u32) -> Result<Resolved, TemplateError> {
    let mut surroundings = Surroundings::default();
    surroundings
        .environment
        .insert("PATH".into(), "/usr/bin:/bin".into());
    let knobs = Knobs {
        threads,
        wait: WaitPolicy::Default,
    };
    template.resolve(&knobs, &Detected::default(), &surroundings)
}

#[test]
fn the_placeholder_may_stand_anywhere_in_arguments_and_variables() {
    let template = template(
        &["true", "-p{threads}", "--pools={threads},{threads}", "x"],
        &["JOBS={threads}"],
    );
    let command = resolve(&template, 6).unwrap().command;
    assert_eq!(command.args, ["-p6", "--pools=6,6", "x"]);
    assert_eq!(command.env, [("JOBS".into(), "6".into())]);
}

#[test]
fn doubled_braces_stand_for_the_literal_text() {
    let template = template(&["true", "{{threads}}", "a{{threads}}{threads}"], &[]);
    assert_eq!(
        resolve(&template, 2).unwrap().command.args,
        ["{threads}", "a{threads}2"]
    );
    assert!(!super::tests::template(&["true", "{{threads}}"], &[]).has_placeholder());
}

#[test]
fn arguments_that_are_not_utf8_pass_through() {
    let odd = OsString::from_vec(vec![0xff, b'{', 0xfe]);
    let mut template = template(&["true", "{threads}"], &[]);
    template.args.push(odd.clone());
    assert_eq!(resolve(&template, 1).unwrap().command.args[1], odd);
}

#[test]
fn conversions_are_read_as_people_write_them() {
    let convert = |fixed, per_argument| Convert {
        fixed,
        per_argument,
    };
    for (text, meant) in [
        ("n", convert(0, 1)),
        ("1+n", convert(1, 1)),
        ("3+4n", convert(3, 4)),
        ("4n+3", convert(3, 4)),
        (" 2*n + 1 ", convert(1, 2)),
    ] {
        assert_eq!(parse_convert(text), Ok(meant), "{text}");
    }
    for bad in [
        "",
        "3",
        "0n",
        "n-1",
        "3+4m",
        "+",
        "99999999999n",
        "4294967295n+1n",
    ] {
        assert_eq!(
            parse_convert(bad),
            Err(TemplateError::BadConvert(bad.into())),
            "{bad}"
        );
    }
}

#[test]
fn unchanged_sets_nothing_and_cannot_leave_a_placeholder() {
    let plain = template(&["true", "{{threads}}"], &["A=1"])
        .unchanged()
        .unwrap();
    assert_eq!(plain.args, ["{threads}"]);
    assert_eq!(plain.env, [("A".into(), "1".into())]);
    let holed = template(&["true", "{threads}"], &[]).unchanged();
    assert_eq!(holed, Err(TemplateError::NeedsNumber));
}

#[test]
fn without_placeholder_and_runtime_the_error_says_what_to_write() {
    let error = resolve(&template(&["true", "big.tar"], &[]), 2).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("corewise run -- true -t {threads}"), "{text}");
    assert!(text.contains("--env NAME={threads}"), "{text}");
}

#[test]
fn a_runtime_takes_the_number_only_where_there_is_no_placeholder() {
    let omp = Detected {
        runtimes: vec![Found {
            runtime: Runtime::Libgomp,
            evidence: String::new(),
        }],
        ..Detected::default()
    };
    let knobs = Knobs {
        threads: 4,
        wait: WaitPolicy::Passive,
    };
    let around = Surroundings::default();
    let named = template(&["true", "-t{threads}"], &[])
        .resolve(&knobs, &omp, &around)
        .unwrap();
    assert_eq!(
        named.command.env,
        [("OMP_WAIT_POLICY".into(), "passive".into())]
    );
    let plain = template(&["true"], &[])
        .resolve(&knobs, &omp, &around)
        .unwrap();
    assert!(
        plain
            .command
            .env
            .contains(&("OMP_NUM_THREADS".into(), "4".into()))
    );
    let users = template(&["true"], &["OMP_NUM_THREADS=7"])
        .resolve(&knobs, &omp, &around)
        .unwrap();
    assert!(users.applied.all_fixed_by_user());
    assert!(
        users
            .command
            .env
            .contains(&("OMP_NUM_THREADS".into(), "7".into()))
    );
}

#[test]
fn runtimes_that_ask_again_are_not_told_what_they_would_take_anyway() {
    let go = Detected {
        runtimes: vec![Found {
            runtime: Runtime::Go,
            evidence: String::new(),
        }],
        ..Detected::default()
    };
    let around = Surroundings::default();
    let mut told = template(&["true", "x"], &["A=1"])
        .resolve(&Knobs::threads(4), &go, &around)
        .unwrap();
    assert!(
        told.command
            .env
            .contains(&("GOMAXPROCS".into(), "4".into()))
    );
    told.leave_to_itself();
    assert_eq!(told.command.env, [("A".into(), "1".into())]);
    let users = template(&["true"], &["GOMAXPROCS=4"]);
    let mut users = users.resolve(&Knobs::threads(4), &go, &around).unwrap();
    users.leave_to_itself();
    assert_eq!(users.command.env, [("GOMAXPROCS".into(), "4".into())]);
    let java = Detected {
        java_launcher: true,
        runtimes: vec![Found {
            runtime: Runtime::Jvm,
            evidence: String::new(),
        }],
        ..Detected::default()
    };
    let mut told = template(&["true", "-jar", "x"], &[])
        .resolve(&Knobs::threads(4), &java, &around)
        .unwrap();
    assert_eq!(told.command.args[0], "-XX:ActiveProcessorCount=4");
    told.leave_to_itself();
    assert_eq!(told.command.args, ["-jar", "x"]);
}

#[test]
fn bad_words_are_refused() {
    let none = Template::parse(Vec::new(), Vec::new());
    assert_eq!(none, Err(TemplateError::NoProgram));
    for bad in ["JOBS", "=3", ""] {
        let parsed = Template::parse([OsString::from("true")], [bad.to_owned()]);
        assert_eq!(parsed, Err(TemplateError::BadEnv(bad.to_owned())));
    }
}
