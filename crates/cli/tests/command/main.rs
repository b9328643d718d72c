//! The command from outside, with real programs: one test binary, so that all share one made program.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;
mod machine;
mod managed;
mod policy;
mod profile;
mod race;
mod run;
mod simulate;
mod tune;
