//! The locks page of somebody else's program, found as its adapters found it.

use crate::mapped::Mapped;
use corewise_abi::locks::LocksPage;
use corewise_abi::reports::LINK;
use rustix::fs::{Mode, OFlags};
use std::ops::Deref;

/// What the adapters in a program count of its locks, as anybody of its user can read it. Derefs to the page.
#[derive(Debug)]
pub struct LocksReader {
    page: Mapped<LocksPage>,
}

impl LocksReader {
    /// Looks for the page to which the process `pid` was led when it was started. `None` where there is none,
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
        // The keeper, then four pages; ours is the last one.
        let [keeper, _, _, _, _, _, _, file, inode] = numbers?[..] else {
            return None;
        };
        // Not blocking: the program may have written anything.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = format!("/proc/{keeper}/fd/{file}");
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        if rustix::fs::fstat(&file).ok()?.st_ino != inode {
            return None;
        }
        let page = Mapped::<LocksPage>::of_other(&file, true).ok()?;
        page.is_valid().then_some(LocksReader { page })
    }
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
