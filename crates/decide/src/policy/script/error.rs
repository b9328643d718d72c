//! What is wrong with a script, and where.

use rhai::{EvalAltResult, ParseError, Position};
use serde::Serialize;
use thiserror::Error;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptErrorKind {
    /// The text is not a script, or not one for a policy.
    Compile,
    /// It failed while it ran.
    Run,
    /// It exceeded a limit.
    Limit,
}

/// An error of a script: as compilers show theirs, `FILE:LINE:COLUMN: what is wrong`.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize)]
#[error("{file}{}: {message}{}", self.place(), self.within_text())]
pub struct ScriptError {
    /// What kind.
    pub kind: ScriptErrorKind,
    /// The script's file, as it was named.
    pub file: String,
    /// The line, from 1, where it is known.
    pub line: Option<usize>,
    /// The column, from 1, where it is known.
    pub column: Option<usize>,
    /// What is wrong; what the script itself said, if it threw something.
    pub message: String,
    /// The script's function that was called, if one was.
    pub function: Option<String>,
}

impl ScriptError {
    pub(super) fn new(
        kind: ScriptErrorKind,
        file: &str,
        message: impl Into<String>,
    ) -> ScriptError {
        ScriptError {
            kind,
            file: file.to_owned(),
            line: None,
            column: None,
            message: message.into(),
            function: None,
        }
    }

    /// An error where `words` first stand in `text`, one after the other.
    pub(super) fn at_text(file: &str, text: &str, words: &str, message: String) -> ScriptError {
        let mut error = ScriptError::new(ScriptErrorKind::Compile, file, message);
        error.line = line_of(text, words);
        error
    }

    pub(super) fn parsing(file: &str, error: &ParseError) -> ScriptError {
        let mut told = ScriptError::new(ScriptErrorKind::Compile, file, error.0.to_string());
        told.place_at(error.1);
        told
    }

    /// The innermost error is the one to be shown: those around it only say by which calls it was
    /// reached. The language's own limits lose their place in this way; ours come before them.
    pub(super) fn running(file: &str, function: &str, mut error: EvalAltResult) -> ScriptError {
        let mut position = error.position();
        while let EvalAltResult::ErrorInFunctionCall(_, _, inner, _) = error {
            error = *inner;
            if !error.position().is_none() {
                position = error.position();
            }
        }
        error.clear_position();
        let (kind, message) = match &error {
            EvalAltResult::ErrorTerminated(..) => {
                (ScriptErrorKind::Limit, Exceeded::operations().0)
            }
            EvalAltResult::ErrorRuntime(said, _) if said.is::<Exceeded>() => {
                let said = said.clone().cast::<Exceeded>();
                (ScriptErrorKind::Limit, said.0)
            }
            EvalAltResult::ErrorStackOverflow(_) => (
                ScriptErrorKind::Limit,
                format!("more than {} calls within each other", super::MAX_CALLS),
            ),
            EvalAltResult::ErrorTooManyVariables(_) => (
                ScriptErrorKind::Limit,
                format!("more than {} variables in a function", super::MAX_VARIABLES),
            ),
            EvalAltResult::ErrorDataTooLarge(..) => (ScriptErrorKind::Limit, Exceeded::size().0),
            EvalAltResult::ErrorRuntime(said, _) => (ScriptErrorKind::Run, said.to_string()),
            error => (ScriptErrorKind::Run, error.to_string()),
        };
        let message = super::data::cut(&message, 2 * super::MAX_STRING);
        let mut told = ScriptError::new(kind, file, message).within(function);
        told.place_at(position);
        told
    }

    pub(super) fn within(mut self, function: &str) -> ScriptError {
        self.function = Some(function.to_owned());
        self
    }

    /// Where nothing better is known: the line where the called function begins.
    pub(super) fn or_line(mut self, line: Option<usize>) -> ScriptError {
        self.line = self.line.or(line);
        self
    }

    fn place_at(&mut self, position: Position) {
        (self.line, self.column) = (position.line(), position.position());
    }

    fn place(&self) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!(":{line}:{column}"),
            (Some(line), None) => format!(":{line}"),
            _ => String::new(),
        }
    }

    fn within_text(&self) -> String {
        let function = self.function.as_ref();
        function.map_or_else(String::new, |f| format!(" (in {f})"))
    }
}

/// A limit that is exceeded, as the script's functions are told.
#[derive(Clone)]
pub(super) struct Exceeded(pub(super) String);

impl Exceeded {
    pub(super) fn operations() -> Exceeded {
        Exceeded(format!(
            "it takes more than {} operations",
            super::MAX_OPERATIONS
        ))
    }

    pub(super) fn size() -> Exceeded {
        Exceeded(format!(
            "too large: more than {} elements of arrays, {} entries of maps or {} bytes of text together",
            super::MAX_ARRAY,
            super::MAX_MAP,
            super::MAX_STRING
        ))
    }

    pub(super) fn depth() -> Exceeded {
        Exceeded(format!(
            "more than {} arrays and maps within each other",
            super::MAX_DEPTH
        ))
    }
}

/// The line, from 1, on which `words` first stand one after the other, a comment aside.
pub(super) fn line_of(text: &str, words: &str) -> Option<usize> {
    let wanted: Vec<&str> = words.split_whitespace().collect();
    let separate = |c: char| !(c.is_alphanumeric() || c == '_');
    let found = text.lines().position(|line| {
        let line = line.split("//").next().unwrap_or(line);
        let has: Vec<&str> = line.split(separate).filter(|w| !w.is_empty()).collect();
        has.windows(wanted.len()).any(|w| w == wanted)
    });
    found.map(|index| index + 1)
}
