use super::*;
use std::os::unix::fs::PermissionsExt;

/// A folder of made build tools, as far as their files tell what they know.
struct Tools {
    folder: tempfile::TempDir,
    environment: Environment,
}

const OLD: &str = "--jobserver-auth";
const NEW: &str = "--jobserver-auth --jobserver-style";

impl Tools {
    fn new(tools: &[(&str, &str)]) -> Tools {
        let folder = tempfile::tempdir().unwrap();
        for (name, knows) in tools {
            let file = folder.path().join(name);
            std::fs::write(&file, knows).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut environment = Environment::new();
        environment.insert("PATH".into(), folder.path().into());
        // No configuration of cargo's.
        environment.insert("HOME".into(), folder.path().into());
        Tools {
            folder,
            environment,
        }
    }

    fn with(mut self, name: &str, value: &str) -> Tools {
        self.environment.insert(name.into(), value.into());
        self
    }

    fn command(&self, words: &str) -> Command {
        let mut words = words.split_whitespace();
        let program = self.folder.path().join(words.next().unwrap());
        Command::new(program).unwrap().args(words)
    }

    /// On four CPUs.
    fn offer(&self, words: &str, jobs: Option<Option<u32>>) -> Offer {
        let command = self.command(words);
        let client = Client::of(&command.program, &self.environment);
        Offer::to(&command, client, jobs, &self.environment, 4)
    }

    fn build(&self, words: &str) -> Build {
        match self.offer(words, None) {
            Offer::Jobserver(build) => build,
            Offer::AsItIs(why) => panic!("{words}: {why}"),
        }
    }

    fn why_not(&self, words: &str) -> String {
        match self.offer(words, None) {
            Offer::Jobserver(build) => panic!("{build:?}"),
            Offer::AsItIs(why) => why,
        }
    }

    /// The arguments of a build that is told of its jobserver, and a variable that it gets.
    fn told(&self, words: &str, variable: &str) -> (String, String) {
        let build = self.build(words);
        let told = build.told(self.command(words), &self.environment, (200, 201));
        assert_eq!(told.inherit, [200, 201]);
        let args: Vec<_> = told.args.iter().map(|a| a.to_string_lossy()).collect();
        let seen: Environment = told
            .environment(self.environment.clone())
            .into_iter()
            .collect();
        (args.join(" "), text(&seen, variable))
    }
}

#[test]
fn a_make_that_was_told_to_be_parallel_gets_its_number_as_the_most() {
    let tools = Tools::new(&[("make", OLD)]);
    assert_eq!(tools.build("make -j8 all").most(), 8);
    assert_eq!(tools.build("make -j8 all").replaced(), ["-j8"]);
    let told = tools.told("make -j8 all", "MAKEFLAGS");
    assert_eq!(
        told,
        ("all".to_owned(), " -j8 --jobserver-auth=200,201".to_owned())
    );
    // No limit: one job for each CPU.
    assert_eq!(tools.build("make -j all").most(), 4);
}

#[test]
fn a_make_that_nobody_told_to_be_parallel_stays_serial() {
    let tools = Tools::new(&[("make", OLD)]);
    assert!(tools.why_not("make all").contains("one job at a time"));
    assert!(tools.why_not("make -j1 all").contains("one job at a time"));
    assert!(matches!(tools.offer("make all", Some(None)), Offer::Jobserver(b) if b.most() == 4));
    assert!(matches!(tools.offer("make -j8", Some(Some(3))), Offer::Jobserver(b) if b.most() == 3));
}

#[test]
fn a_later_make_is_given_a_path() {
    let tools = Tools::new(&[("make", NEW)]);
    let (_, flags) = tools.told("make -j8", "MAKEFLAGS");
    assert_eq!(flags, " -j8 --jobserver-auth=fifo:/proc/self/fd/200");
}

#[test]
fn flags_in_the_environment_are_kept_and_their_number_counts() {
    let tools = Tools::new(&[("make", OLD)]).with("MAKEFLAGS", "ks -j6 -- X=1");
    assert_eq!(tools.build("make").most(), 6);
    let (_, flags) = tools.told("make -j3", "MAKEFLAGS");
    assert_eq!(flags, "ks -j6 -j3 --jobserver-auth=200,201 -- X=1");
}

#[test]
fn a_build_within_another_one_keeps_that_ones_jobserver() {
    let tools = Tools::new(&[("make", OLD), ("cargo", "")]);
    let tools = tools.with("MAKEFLAGS", " -j2 --jobserver-auth=3,4");
    for words in ["make -j8", "make", "cargo build"] {
        assert!(tools.why_not(words).contains("MAKEFLAGS"), "{words}");
    }
}

#[test]
fn a_make_that_knows_no_jobserver_runs_as_it_is() {
    let tools = Tools::new(&[("make", "bmake"), ("ninja", "1.11")]);
    assert!(tools.why_not("make -j8").contains("knows no jobserver"));
    assert!(tools.why_not("ninja").contains("1.13"));
}

#[test]
fn ninja_is_offered_one_unless_a_make_that_it_calls_would_fail_with_it() {
    let tools = Tools::new(&[("ninja", OLD), ("make", NEW)]);
    assert_eq!(tools.build("ninja").most(), 4);
    let (args, flags) = tools.told("ninja -j8 all", "MAKEFLAGS");
    assert_eq!(args, "all");
    assert!(flags.contains("fifo:"), "{flags}");
    let old = Tools::new(&[("ninja", OLD), ("make", OLD)]);
    assert!(old.why_not("ninja").contains("older than 4.4"));
    assert!(matches!(
        old.offer("ninja", Some(None)),
        Offer::Jobserver(_)
    ));
}

#[test]
fn cargo_is_parallel_unasked_and_only_the_build_hears_of_it() {
    let tools = Tools::new(&[("cargo", "")]);
    let (args, flags) = tools.told("cargo test -j8 -- --test-threads=1", "CARGO_MAKEFLAGS");
    assert_eq!(args, "test -- --test-threads=1");
    assert_eq!(flags, " -j8 --jobserver-auth=200,201");
    assert_eq!(tools.told("cargo build", "MAKEFLAGS").1, "");
    assert_eq!(tools.build("cargo build").most(), 4);
    let set = Tools::new(&[("cargo", "")]).with("CARGO_BUILD_JOBS", "2");
    assert_eq!(set.build("cargo build").most(), 2);
}

#[test]
fn a_number_in_cargos_configuration_binds() {
    let tools = Tools::new(&[("cargo", "")]);
    let file = tools.folder.path().join(".cargo/config.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "[build]\njobs = 2\n").unwrap();
    assert!(tools.why_not("cargo build").contains("config.toml"));
    assert_eq!(tools.build("cargo build -j3").most(), 3);
}

#[test]
fn a_makefile_that_is_executed_is_a_make() {
    let tools = Tools::new(&[("rules", "#!/usr/bin/make -f\nall:\n"), ("cc", "")]);
    let client = |name: &str| Client::of(&tools.folder.path().join(name), &tools.environment);
    assert_eq!(client("rules"), Some(Client::Make));
    assert_eq!(client("cc"), None);
}

#[test]
fn a_makefile_that_is_executed_is_judged_by_its_make() {
    let tools = Tools::new(&[("make", NEW), ("rules", "")]);
    let make = tools.folder.path().join("make");
    let script = format!("#!{} -f\nall:\n", make.display());
    std::fs::write(tools.folder.path().join("rules"), script).unwrap();
    let told = tools.told("rules -j8 all", "MAKEFLAGS");
    assert_eq!(told.0, "all");
    assert!(told.1.contains("fifo:"), "{}", told.1);
}

#[test]
fn any_program_is_offered_one_when_its_user_says_so() {
    let tools = Tools::new(&[("build.sh", ""), ("make", OLD)]);
    let Offer::Jobserver(build) = tools.offer("build.sh -j9", Some(Some(6))) else {
        panic!("no jobserver");
    };
    assert_eq!((build.most(), build.replaced().len()), (6, 0));
    let told = build.told(
        tools.command("build.sh -j9"),
        &tools.environment,
        (200, 201),
    );
    assert_eq!(told.args, ["-j9"]);
}
