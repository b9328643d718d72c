//! The local manager: hosts searches beside a program, and remembers their results.

pub mod history;
