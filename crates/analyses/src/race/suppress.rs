//! Suppressions: which races are not to be reported, in ThreadSanitizer's format. A line is a kind and a
//! pattern: `race:` matches where a function, source file or mapped file of either stack, or the variable,
//! has the pattern in it; `race_top:` looks at the innermost function alone; `called_from_lib:` at mapped
//! files. Kinds of reports that are not made here (`deadlock:`, `thread:`, `mutex:`, `signal:`) are let pass.
//! In a pattern, `*` is anything, `^` the begin and `$` the end; an empty one is in every text.

use super::lines::Place;
use super::report::{Memory, Report};

/// What is not to be reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<(Kind, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Race,
    Top,
    Library,
    Other,
}

/// A line that is no suppression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line} is no suppression: {text:?}; each line is a kind and a pattern, as in race:my_function"
)]
pub struct Wrong {
    /// Its number, from 1.
    pub line: usize,
    /// It.
    pub text: String,
}

impl Suppressions {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The first line that is none.
    pub fn parse(text: &str) -> Result<Suppressions, Wrong> {
        let mut all = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || Wrong {
                line: index + 1,
                text: line.to_owned(),
            };
            let (kind, pattern) = line.split_once(':').ok_or_else(wrong)?;
            let kind = match kind {
                "race" => Kind::Race,
                "race_top" => Kind::Top,
                "called_from_lib" => Kind::Library,
                "deadlock" | "thread" | "mutex" | "signal" => Kind::Other,
                _ => return Err(wrong()),
            };
            all.push((kind, pattern.to_owned()));
        }
        Ok(Suppressions(all))
    }

    /// Whether a race is suppressed.
    pub fn cover(&self, report: &Report) -> bool {
        let stacks = || report.sides.iter().map(|side| &side.stack);
        let place = |at: &Place, pattern: &str| {
            [&at.function, &at.file, &at.module]
                .iter()
                .any(|text| matches(pattern, text))
        };
        self.0.iter().any(|(kind, pattern)| match kind {
            Kind::Race => {
                let variable = match &report.memory {
                    Memory::Variable { name, .. } => matches(pattern, name),
                    _ => false,
                };
                variable || stacks().flatten().any(|at| place(at, pattern))
            }
            Kind::Top => stacks()
                .filter_map(|stack| stack.first())
                .any(|at| place(at, pattern)),
            Kind::Library => stacks().flatten().any(|at| matches(pattern, &at.module)),
            Kind::Other => false,
        })
    }
}

/// Whether a text has a pattern in it.
fn matches(pattern: &str, text: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    let (begins, pattern) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (ends, pattern) = match pattern.strip_suffix('$') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let mut rest = text;
    let mut first = begins;
    let pieces: Vec<&str> = pattern.split('*').collect();
    let last = pieces.len() - 1;
    for (index, piece) in pieces.iter().enumerate() {
        if index == last && ends {
            return match first {
                true => rest == *piece,
                false => rest.ends_with(piece),
            };
        }
        let at = match first {
            true => rest.starts_with(piece).then_some(0),
            false => rest.find(piece),
        };
        let Some(at) = at else {
            return false;
        };
        rest = &rest[at + piece.len()..];
        first = false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_parts_with_wildcards_and_ends() {
        for (pattern, text, expected) in [
            ("bump", "my_bump_it", true),
            ("^bump", "my_bump", false),
            ("^my", "my_bump", true),
            ("bump$", "my_bump", true),
            ("my$", "my_bump", false),
            ("m*p", "my_bump", true),
            ("^m*p$", "my_bump", true),
            ("^my_bump$", "my_bump", true),
            ("^bump$", "my_bump", false),
            ("*", "x", true),
            ("a*b*c", "aXbYc", true),
            ("a*c*b", "aXbYc", false),
            ("", "x", true),
            ("", "", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_line_that_is_no_suppression_is_named() {
        let parsed = Suppressions::parse("# why\nrace:ours\n\n deadlock:x\n");
        assert_eq!(parsed.unwrap().0.len(), 2);
        let wrong = Suppressions::parse("race:a\nnonsense").unwrap_err();
        assert_eq!((wrong.line, wrong.text.as_str()), (2, "nonsense"));
    }
}
