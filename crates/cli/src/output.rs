//! What people see: colour where it is wanted, progress where there is a terminal.

use anyhow::{Context as _, Result};
use corewise_decide::setting::Setting;
use corewise_launch::command::Command;
use corewise_local::tune::{ProbeRecord, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Bold on a terminal that wants colour.
pub(crate) fn bold(text: &str) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    if std::io::stdout().is_terminal() && !plain {
        format!("\x1b[1m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// To standard output. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// A line to standard error. Where that is full, closed or read no longer, nobody can be told: what a program that
/// ran here exits with counts more.
pub(crate) fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Warnings go to standard error, a line each.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings {
        say(&format!("corewise: {warning}"));
    }
}

/// With a capital at its start and a full stop at its end.
pub(crate) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), chars.as_str()),
        None => String::new(),
    }
}

/// The command as a person would type it.
pub(crate) fn shell_line(command: &Command) -> String {
    let mut words: Vec<String> = Vec::new();
    if let Some(cpus) = &command.affinity {
        let list: Vec<String> = cpus.iter().map(u32::to_string).collect();
        words.extend(["taskset".to_owned(), "-c".to_owned(), list.join(",")]);
    }
    if !command.env.is_empty() {
        // After taskset, an assignment needs env to be one.
        if command.affinity.is_some() {
            words.push("env".to_owned());
        }
        for (name, value) in &command.env {
            words.push(format!("{}={}", name.to_string_lossy(), quoted(value)));
        }
    }
    words.push(quoted(&command.arg0));
    words.extend(command.args.iter().map(|a| quoted(a)));
    words.join(" ")
}

fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(safe) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// One line on standard error that says which probe runs, where that is a terminal.
pub(crate) struct ProbeLines {
    bar: ProgressBar,
}

impl ProbeLines {
    pub(crate) fn new() -> ProbeLines {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new_spinner()
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        ProbeLines { bar }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for ProbeLines {
    fn probe_starts(&mut self, number: usize, setting: Setting) {
        self.bar.enable_steady_tick(Duration::from_millis(200));
        self.bar.set_message(format!("probe {number}: {setting}"));
    }

    fn probe_ended(&mut self, record: &ProbeRecord) {
        if let Ok(profile) = &record.outcome {
            self.bar.set_message(format!(
                "{}: {:.2} CPUs at useful work",
                record.setting,
                profile.useful()
            ));
        }
    }
}

/// What a name that was given on the command line stands for.
pub(crate) fn known<T: Copy>(all: &[(&str, T)], name: &str, default: T) -> T {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map_or(default, |(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_and_quotes_are_quoted_for_a_shell() {
        assert_eq!(quoted(OsStr::new("-p2")), "-p2");
        assert_eq!(quoted(OsStr::new("a b")), "'a b'");
        assert_eq!(quoted(OsStr::new("it's")), r"'it'\''s'");
        assert_eq!(quoted(OsStr::new("")), "''");
    }
}
