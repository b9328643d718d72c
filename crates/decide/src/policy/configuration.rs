//! Several policies in one file, as people write it.
//!
//! ```toml
//! [[policy]]
//! use = "broken-screw"        # a built-in policy, or a script beside this file
//! programs = ["render*"]      # without: all programs that no other policy names
//! cpus = "0-3"                # without: all CPUs that no other policy names
//!
//! [[policy]]
//! use = "prefetch"
//! claims = false              # it sets the hardware, and grants nothing
//! ```

use super::built_in;
use super::combined::{Combined, Part};
use super::source::Source;
use crate::cpus::CpuSet;
use serde::Deserialize;
use std::io;
use std::path::Path;

/// What such a file's name ends with.
pub const ENDING: &str = ".toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    policy: Vec<RawPart>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPart {
    #[serde(rename = "use")]
    which: String,
    #[serde(default)]
    programs: Vec<String>,
    cpus: Option<String>,
    #[serde(default = "yes")]
    claims: bool,
    seed: Option<u64>,
    period_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

/// The policies that a text says, which stands in a file of this name. `read` gives the text of a script;
/// `seed` starts the random numbers of those that name none.
///
/// # Errors
/// What is wrong and where, for people; also why the policies cannot decide at the same time.
pub fn read(
    text: &str,
    name: &str,
    seed: u64,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Source, String> {
    let file: RawFile = toml::from_str(text).map_err(|error| format!("{name}: {error}"))?;
    let parts: Result<Vec<Part>, String> = file
        .policy
        .into_iter()
        .map(|raw| part(raw, seed, read))
        .collect();
    let parts = parts.map_err(|why| format!("{name}: {why}"))?;
    if parts.is_empty() {
        return Err(format!(
            "{name}: it names no policy: write [[policy]] and use = \"NAME\""
        ));
    }
    Combined::new(name, &parts).map_err(|why| format!("{name}: {why}"))?;
    Ok(Source {
        parts,
        ..Source::built_in(name)
    })
}

fn part(
    raw: RawPart,
    seed: u64,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Part, String> {
    let which = &raw.which;
    let source = match built_in(which) {
        Some(_) => Source::built_in(which),
        None => {
            let text = read(Path::new(which)).map_err(|error| {
                format!("no built-in policy is called {which:?}, and no script can be read there: {error}")
            })?;
            Source::script(which, text)
        }
    };
    let cpus: Option<Result<CpuSet, String>> = raw.cpus.map(|list| list.parse());
    Ok(Part {
        source: Source {
            seed: raw.seed.unwrap_or(seed),
            period_ns: raw.period_ms.map(|ms| ms.saturating_mul(1_000_000)),
            ..source
        },
        programs: raw.programs,
        cpus: cpus.transpose()?,
        claims: raw.claims,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    #[test]
    fn a_file_says_who_decides_for_what() {
        let text = r#"
            [[policy]]
            use = "mine.rhai"
            programs = ["render*", "x265"]
            cpus = "0-3,8"
            period_ms = 50
            [[policy]]
            use = "observe"
            seed = 7
        "#;
        let script = |path: &Path| match path.to_str() {
            Some("mine.rhai") => Ok("fn on_joined(p) { }".to_owned()),
            _ => none(path),
        };
        let source = read(text, "day.toml", 3, &script).unwrap();
        assert_eq!((source.name.as_str(), source.parts.len()), ("day.toml", 2));
        let [mine, rest] = &source.parts[..] else {
            panic!("two policies")
        };
        assert_eq!(mine.cpus, Some([0, 1, 2, 3, 8].into_iter().collect()));
        assert_eq!(
            (mine.source.seed, mine.source.period_ns),
            (3, Some(50_000_000))
        );
        assert!(mine.source.script.is_some() && rest.programs.is_empty());
        assert_eq!((rest.source.seed, rest.claims), (7, true));
        let json = serde_json::to_string(&source).unwrap();
        assert_eq!(serde_json::from_str::<Source>(&json).unwrap(), source);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_said_with_its_place() {
        let wrong = |text: &str| read(text, "day.toml", 0, &none).unwrap_err();
        for (text, says) in [
            ("", "missing field `policy`"),
            ("policy = []", "names no policy"),
            (
                "[[policy]]\nuse = \"observe\"\ncpu = \"1\"",
                "unknown field `cpu`",
            ),
            (
                "[[policy]]\nuse = \"observe\"\ncpus = \"1-\"",
                "is no list of CPUs",
            ),
            ("[[policy]]\nuse = \"none.rhai\"", "no script can be read"),
            ("[[policy]\n", "line 1"),
        ] {
            let why = wrong(text);
            assert!(why.contains(says) && why.starts_with("day.toml: "), "{why}");
        }
    }
}
