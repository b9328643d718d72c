//! What is wrong with a program's description.

use std::ops::Range;

/// Something that a program's description must not say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Fault {
    /// Where it says so: bytes of the text that it was read from.
    pub span: Range<usize>,
    /// What is wrong, and what would be right.
    pub reason: String,
}

/// A program's description that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct Error {
    /// The line, from 1 on.
    pub line: usize,
    /// The column, in characters, from 1 on.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Error {
    /// A fault in the text that it was read from.
    pub(super) fn at(text: &str, fault: Fault) -> Error {
        let Fault { span, reason } = fault;
        let before = text.as_bytes().get(..span.start);
        let before = String::from_utf8_lossy(before.unwrap_or(text.as_bytes()));
        let last = before.rsplit('\n').next().unwrap_or_default();
        Error {
            line: 1 + before.matches('\n').count(),
            column: 1 + last.chars().count(),
            reason,
        }
    }

    pub(super) fn parse(text: &str, error: &toml::de::Error) -> Error {
        let fault = Fault {
            span: error.span().unwrap_or_default(),
            reason: error.message().to_owned(),
        };
        Error::at(text, fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_lines_and_characters() {
        let fault = |start| Fault {
            span: start..start + 1,
            reason: "no".to_owned(),
        };
        let text = "a = 1\nä = 2\n";
        let place = |start| {
            let error = Error::at(text, fault(start));
            (error.line, error.column)
        };
        assert_eq!(place(0), (1, 1));
        assert_eq!(place(6), (2, 1));
        assert_eq!(place(8), (2, 2));
        assert_eq!(place(999), (3, 1));
    }
}
