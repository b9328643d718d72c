//! Why a machine file was refused.

/// What is wrong with a machine's description, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is no TOML, or has a key that there is not, or lacks one.
    #[error("machine file{}: {why}; see experiments/machines for examples", at(*line))]
    Toml {
        /// Where, from 1, where that is known.
        line: Option<usize>,
        /// What the parser says.
        why: String,
    },
    /// A value is impossible.
    #[error("machine file{}: `{key}`: {why}", at(*line))]
    Value {
        /// The key, with the tables that it is in: `costs.tick_ns`.
        key: String,
        /// Where, from 1; `None` where the file leaves the key out.
        line: Option<usize>,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// The topology cannot be read or built.
    #[error("machine file{}: `topology`: {why}", at(*line))]
    Topology {
        /// Where, from 1.
        line: Option<usize>,
        /// What failed, why, and what to do.
        why: String,
    },
}

fn at(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}
