//! The locks page of somebody else's program, found as its adapters found it.

use crate::mapped::{Mapped, Page};
use corewise_abi::locks::LocksPage;
use corewise_abi::reports::{LINK, ReportsPage};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::ops::Deref;
use std::sync::atomic::Ordering;

/// What the adapters in a program count of its locks, as anybody of its user can read it. Derefs to the page.
#[derive(Debug)]
pub struct LocksReader {
    page: Mapped<LocksPage>,
    reports: Mapped<ReportsPage>,
}

impl LocksReader {
    /// Looks for the pages to which the process `pid` was led when it was started. `None` where there is none,
    /// its keeper has died, or it cannot be read. Costs some ten microseconds.
    pub fn of_process(pid: i32) -> Option<LocksReader> {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let variable = format!("{LINK}=");
        let value = environment
            .split(|byte| *byte == 0)
            .find_map(|set| set.strip_prefix(variable.as_bytes()))?;
        let numbers: Option<Vec<u64>> = std::str::from_utf8(value)
            .ok()?
            .split(':')
            .map(|number| number.parse().ok())
            .collect();
        // The keeper, then four pages, each with its inode: the second and the last one are ours.
        let [keeper, _, _, reports, of_reports, _, _, locks, of_locks] = numbers?[..] else {
            return None;
        };
        let page: Mapped<LocksPage> = self::page(keeper, locks, of_locks)?;
        let reports: Mapped<ReportsPage> = self::page(keeper, reports, of_reports)?;
        let valid = page.is_valid() && reports.is_valid();
        valid.then_some(LocksReader { page, reports })
    }

    /// How many threads of processes that still live are blocked now.
    pub fn blocked_now(&self) -> u64 {
        let taken = self.reports.taken();
        let living = taken.filter(|report| !is_gone(report.pid.load(Ordering::Relaxed)));
        living
            .map(|report| u64::from(report.blocked.load(Ordering::Relaxed)))
            .sum()
    }
}

/// Whether no process has that number any more; one that is no number of a process, as a program may have written
/// it into its page, is of none.
pub fn is_gone(pid: i32) -> bool {
    let named = (pid > 0).then(|| Pid::from_raw(pid)).flatten();
    named.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

/// Maps a page that is a file of another process, if it is still the one that it was.
fn page<T: Page>(keeper: u64, file: u64, inode: u64) -> Option<Mapped<T>> {
    // Not blocking: the program may have written anything into its variable.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = format!("/proc/{keeper}/fd/{file}");
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    if rustix::fs::fstat(&file).ok()?.st_ino != inode {
        return None;
    }
    Mapped::of_other(&file, true).ok()
}

impl Deref for LocksReader {
    type Target = LocksPage;

    fn deref(&self) -> &LocksPage {
        &self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    /// What is found for a process with that variable.
    fn found(value: Option<&str>) -> Option<LocksReader> {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env_remove(LINK);
        if let Some(value) = value {
            command.env(LINK, value);
        }
        let mut child = command.spawn().unwrap();
        // Once it answers, it is `cat` with all that it was started with.
        let mut input = child.stdin.take().unwrap();
        input.write_all(b".").unwrap();
        let mut answer = [0];
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut answer).unwrap();
        let found = LocksReader::of_process(i32::try_from(child.id()).unwrap());
        drop(input);
        child.wait().unwrap();
        found
    }

    #[test]
    fn the_page_of_a_process_is_the_one_that_it_was_led_to() {
        let link = Link::create().unwrap();
        let (_, value) = link.variable().unwrap();
        let page = found(Some(&value)).unwrap();
        assert!(!page.is_loaded());
        link.locks().note_loaded();
        assert!(page.is_loaded());
        let own = i32::try_from(std::process::id()).unwrap();
        for (pid, blocked) in [(own, 2), (i32::MAX, 5)] {
            let report = link.reports().take(pid).unwrap();
            report.blocked.store(blocked, Ordering::Relaxed);
        }
        assert_eq!(page.blocked_now(), 2);
    }

    #[test]
    fn a_process_that_was_led_nowhere_has_none() {
        let own = std::process::id();
        assert!(found(None).is_none());
        for value in [
            "",
            "1:2",
            "x",
            &format!("{own}:0:0:0:0:0:0:0:0"),
            "0:1:2:3:4:5:6:7:8",
        ] {
            assert!(found(Some(value)).is_none(), "{value}");
        }
    }
}
