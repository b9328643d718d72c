//! How many jobs a build tool's own arguments ask for, and its arguments without that.
//!
//! A tool that is given a number on its command line makes a jobserver of its own, or ignores the one that
//! it is offered, so the number must go from there. Only what is understood for certain is changed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// How many jobs are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// So many; at least 1.
    Jobs(u32),
    /// As many as there are.
    NoLimit,
}

/// What the arguments say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    /// What they ask for, by the last option that does, if one does.
    pub(super) asked: Option<Asked>,
    /// The options that ask, as they were typed.
    pub(super) typed: Vec<String>,
    /// All others.
    pub(super) rest: Vec<OsString>,
}

/// How a tool reads its options.
struct Grammar {
    /// Short options whose value is the rest of the word, else the next word.
    with_value: &'static [u8],
    /// Short options whose value, if any, is the rest of the word.
    with_rest: &'static [u8],
    /// Long options whose value may be the next word.
    long_with_value: &'static [&'static str],
    /// What `-j` means without a number.
    bare: Option<Asked>,
    /// What a number means.
    number: fn(&str) -> Option<Asked>,
    /// Whether `--jobs` means `-j`.
    long_jobs: bool,
}

const MAKE: Grammar = Grammar {
    with_value: b"CEfIoW",
    with_rest: b"Ol",
    long_with_value: &[
        "directory",
        "eval",
        "file",
        "makefile",
        "include-dir",
        "old-file",
        "assume-old",
        "what-if",
        "new-file",
        "assume-new",
    ],
    bare: Some(Asked::NoLimit),
    number: positive,
    long_jobs: true,
};

const NINJA: Grammar = Grammar {
    with_value: b"Cdfklwt",
    with_rest: b"",
    long_with_value: &[],
    bare: None,
    number: none_is_no_limit,
    long_jobs: false,
};

const CARGO: Grammar = Grammar {
    with_value: b"CFpZ",
    with_rest: b"",
    long_with_value: &[],
    bare: None,
    number: cargo_number,
    long_jobs: true,
};

/// Commands of cargo whose `-j` is a number of jobs of the build.
const CARGO_BUILDS: &[&str] = &[
    "b", "bench", "build", "c", "check", "clippy", "d", "doc", "fix", "install", "package",
    "publish", "r", "run", "rustc", "rustdoc", "t", "test",
];

/// Of GNU make. `None` where they are not understood.
pub(super) fn of_make(args: &[OsString]) -> Option<Arguments> {
    read(&MAKE, args)
}

/// Of ninja. `None` where they are not understood, or one of its tools is called.
pub(super) fn of_ninja(args: &[OsString]) -> Option<Arguments> {
    let tool = |arg: &OsString| arg.as_bytes().starts_with(b"-t");
    match args.iter().any(tool) {
        true => None,
        false => read(&NINJA, args),
    }
}

/// Of cargo. `None` where they are not understood, or its command is none that builds.
pub(super) fn of_cargo(args: &[OsString]) -> Option<Arguments> {
    let text = |arg: &OsString| arg.to_string_lossy().into_owned();
    let own = args.iter().map(text).take_while(|arg| arg != "--");
    let own: Vec<String> = own.collect();
    if own.iter().any(|arg| arg.contains("build.jobs")) {
        return None;
    }
    let mut words = own.iter().filter(|arg| !arg.starts_with('+'));
    let command = loop {
        match words.next()?.as_str() {
            "--color" | "--config" | "-C" | "-Z" => {
                words.next()?;
            }
            option if option.starts_with('-') => {}
            command => break command,
        }
    };
    match CARGO_BUILDS.contains(&command) {
        true => read(&CARGO, args),
        false => None,
    }
}

/// What make's variable of flags asks for; it is written as arguments are, but for a first word of short
/// options, which may lack its dash.
pub(super) fn of_makeflags(flags: &str) -> Option<Arguments> {
    let mut words = flags.split_whitespace().map(OsString::from);
    let first = words.next().map(|first| match first.to_string_lossy() {
        text if text.starts_with('-') || text.contains('=') => first,
        text => OsString::from(format!("-{text}")),
    });
    let words: Vec<OsString> = first.into_iter().chain(words).collect();
    of_make(&words)
}

fn positive(text: &str) -> Option<Asked> {
    let number = text.parse().ok().filter(|n| *n >= 1)?;
    Some(Asked::Jobs(number))
}

fn none_is_no_limit(text: &str) -> Option<Asked> {
    match text.parse().ok()? {
        0 => Some(Asked::NoLimit),
        number => Some(Asked::Jobs(number)),
    }
}

/// Negative numbers, which are counted from the number of CPUs, are left to cargo.
fn cargo_number(text: &str) -> Option<Asked> {
    match text {
        "default" => Some(Asked::NoLimit),
        number => positive(number),
    }
}

fn read(grammar: &Grammar, args: &[OsString]) -> Option<Arguments> {
    let mut found = Arguments {
        asked: None,
        typed: Vec::new(),
        rest: Vec::new(),
    };
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            found.rest.push(word.clone());
            found.rest.extend(words.cloned());
            break;
        }
        if let Some(long) = bytes.strip_prefix(b"--") {
            let long = std::str::from_utf8(long).unwrap_or_default();
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            if name == "jobs" && grammar.long_jobs {
                let next = || words.next_if(|next| takes(grammar, next));
                let next = value.is_none().then(next).flatten();
                found.ask(grammar, value, word, next)?;
                continue;
            }
            found.rest.push(word.clone());
            if value.is_none() && grammar.long_with_value.contains(&name) {
                found.rest.extend(words.next().cloned());
            }
            continue;
        }
        let Some(cluster) = bytes.strip_prefix(b"-").filter(|c| !c.is_empty()) else {
            found.rest.push(word.clone());
            continue;
        };
        let special =
            |b: &u8| *b == b'j' || grammar.with_value.contains(b) || grammar.with_rest.contains(b);
        match cluster.iter().position(special) {
            Some(at) if cluster[at] == b'j' => {
                let (before, value) = (&cluster[..at], &cluster[at + 1..]);
                let value = value.strip_prefix(b"=").unwrap_or(value);
                let value = std::str::from_utf8(value).ok()?;
                let next = || words.next_if(|next| takes(grammar, next));
                let next = value.is_empty().then(next).flatten();
                let value = Some(value).filter(|v| !v.is_empty());
                found.ask(grammar, value, word, next)?;
                if !before.is_empty() {
                    let kept = [b"-", before].concat();
                    found.rest.push(OsString::from_vec(kept));
                }
            }
            Some(at) if grammar.with_value.contains(&cluster[at]) => {
                found.rest.push(word.clone());
                if at + 1 == cluster.len() {
                    found.rest.extend(words.next().cloned());
                }
            }
            _ => found.rest.push(word.clone()),
        }
    }
    Some(found)
}

/// Whether a word that follows `-j` is its value: always where it needs one, else if it is a number.
fn takes(grammar: &Grammar, word: &OsStr) -> bool {
    grammar.bare.is_none() || word.as_bytes().first().is_some_and(u8::is_ascii_digit)
}

impl Arguments {
    /// Notes an option that asks for a number of jobs. `None` where it is not understood.
    fn ask(
        &mut self,
        grammar: &Grammar,
        value: Option<&str>,
        word: &OsStr,
        next: Option<&OsString>,
    ) -> Option<()> {
        let mut typed = word.to_string_lossy().into_owned();
        let asked = match (value, next) {
            (Some(value), _) => (grammar.number)(value)?,
            (None, Some(next)) => {
                typed = format!("{typed} {}", next.to_string_lossy());
                (grammar.number)(next.to_str()?)?
            }
            (None, None) => grammar.bare?,
        };
        self.typed.push(typed);
        self.asked = Some(asked);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    /// What is asked for, and what is left.
    fn found(read: Option<Arguments>) -> (Option<Asked>, String) {
        let found = read.unwrap();
        let rest: Vec<_> = found.rest.iter().map(|w| w.to_string_lossy()).collect();
        (found.asked, rest.join(" "))
    }

    fn make(text: &str) -> (Option<Asked>, String) {
        found(of_make(&words(text)))
    }

    const EIGHT: Option<Asked> = Some(Asked::Jobs(8));

    #[test]
    fn makes_number_of_jobs_is_found_however_it_is_written() {
        for text in [
            "-j8 all",
            "all -j 8",
            "--jobs=8 all",
            "all --jobs 8",
            "-j2 all -j8",
        ] {
            assert_eq!(make(text), (EIGHT, "all".to_owned()), "{text}");
        }
        assert_eq!(make("-kj8 all"), (EIGHT, "-k all".to_owned()));
        assert_eq!(
            make("-sj 8 -C dir all"),
            (EIGHT, "-s -C dir all".to_owned())
        );
    }

    #[test]
    fn without_a_number_make_asks_for_no_limit() {
        for text in ["-j all", "all -j", "--jobs all"] {
            assert_eq!(
                make(text),
                (Some(Asked::NoLimit), "all".to_owned()),
                "{text}"
            );
        }
        assert_eq!(make("all"), (None, "all".to_owned()));
    }

    #[test]
    fn what_only_looks_like_a_number_of_jobs_stays() {
        for text in [
            "-fj8 all",
            "-f -j8",
            "-C -j8 all",
            "-Ij8",
            "X=-j8",
            "-- -j8",
            "-Oj8",
            "--file -j8",
        ] {
            assert_eq!(make(text), (None, text.to_owned()), "{text}");
        }
    }

    #[test]
    fn a_number_that_make_would_refuse_is_not_understood() {
        for text in ["-j0", "-j8k", "--jobs=many", "-j 8x"] {
            assert_eq!(of_make(&words(text)), None, "{text}");
        }
    }

    #[test]
    fn makes_variable_may_lack_the_first_dash() {
        for (flags, asked) in [
            ("-j8", EIGHT),
            (" -j8", EIGHT),
            ("kj8", EIGHT),
            ("k -j8 -- X=1", EIGHT),
            ("j", Some(Asked::NoLimit)),
            ("X=j8", None),
            ("", None),
        ] {
            assert_eq!(of_makeflags(flags).unwrap().asked, asked, "{flags}");
        }
    }

    #[test]
    fn ninjas_tools_are_left_alone() {
        let ninja = |text: &str| of_ninja(&words(text));
        assert_eq!(
            found(ninja("-C out -j8 all")),
            (EIGHT, "-C out all".to_owned())
        );
        assert_eq!(found(ninja("-vj 8")), (EIGHT, "-v".to_owned()));
        assert_eq!(found(ninja("-j0")), (Some(Asked::NoLimit), String::new()));
        assert_eq!(found(ninja("-k 0 all")), (None, "-k 0 all".to_owned()));
        assert_eq!(ninja("-t clean"), None);
        assert_eq!(ninja("-j"), None);
    }

    #[test]
    fn cargos_number_of_jobs_is_that_of_commands_that_build() {
        let cargo = |text: &str| of_cargo(&words(text));
        assert_eq!(found(cargo("build -j8")), (EIGHT, "build".to_owned()));
        let (asked, rest) = found(cargo("+nightly -v test --jobs 8 -p x -- -j2"));
        assert_eq!(
            (asked, rest.as_str()),
            (EIGHT, "+nightly -v test -p x -- -j2")
        );
        assert_eq!(
            found(cargo("-C dir b -rj=8")),
            (EIGHT, "-C dir b -r".to_owned())
        );
        let default = Some(Asked::NoLimit);
        assert_eq!(
            found(cargo("build --jobs default")),
            (default, "build".to_owned())
        );
        for text in [
            "nextest run -j8",
            "build -j -2",
            "--config build.jobs=2 build",
            "-V",
        ] {
            assert_eq!(cargo(text), None, "{text}");
        }
    }
}
