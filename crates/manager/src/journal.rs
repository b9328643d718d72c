//! The journal: every input with its time, and what was decided on it, so that a person can see why,
//! and a replay comes to the same state.
//!
//! JSON lines. The first says what is needed to replay the rest: the policy, and which boot the times
//! belong to. A full journal is put aside as `journal.old.jsonl` and a new one begun, whose first line
//! also holds all that the manager knew then: so each part replays on its own, however many were put
//! aside before it ([`Recorded::manager`]).
//!
//! It is written when a buffer is full or some time has passed, never between an event and its
//! decision. A journal that cannot be written does not stop a manager.

use crate::Error;
use corewise_decide::global::{GlobalManager, Known};
use corewise_decide::policy::source::Source;
use corewise_decide::world::Entry;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes that are kept back at most before they are written.
const BUFFER_BYTES: usize = 64 << 10;

/// How long a line may be kept back, in nanoseconds. A manager that is killed loses what is younger.
const KEPT_BACK_NS: u64 = 250_000_000;

/// A journal's first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// corewise's version.
    pub version: String,
    /// Which boot the times belong to; empty if unknown.
    pub boot: String,
    /// The manager's process.
    pub pid: i32,
    /// The policy at the manager's start, with all that is needed to make it again (its seed, too).
    pub policy: Source,
    /// How many journals of this manager were put aside before this one; 0: it is whole.
    pub part: u32,
    /// What the manager knew when this part began; `None` in the first one: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<Box<Known>>,
}

/// Where decisions are written down.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    header: Header,
    longest: u64,
    file: Option<File>,
    written: u64,
    buffer: Vec<u8>,
    /// When the oldest line in the buffer was made.
    oldest_ns: Option<u64>,
    failures: u64,
    last_failure: Option<String>,
}

impl Journal {
    /// Begins a journal; what an earlier manager left is put aside. Never fails: see
    /// [`failures`](Journal::failures).
    pub(crate) fn begin(path: PathBuf, policy: Source, longest: u64) -> Journal {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let mut journal = Journal {
            path,
            header: Header {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                boot: boot.unwrap_or_default().trim().to_owned(),
                pid: i32::try_from(std::process::id()).unwrap_or(0),
                policy,
                part: 0,
                known: None,
            },
            longest,
            file: None,
            written: 0,
            buffer: Vec::with_capacity(2 * BUFFER_BYTES),
            oldest_ns: None,
            failures: 0,
            last_failure: None,
        };
        journal.start_file();
        journal
    }

    /// Keeps a line; it is written later.
    pub(crate) fn keep(&mut self, entry: &Entry) {
        let length = self.buffer.len();
        match serde_json::to_writer(&mut self.buffer, entry) {
            Ok(()) => self.buffer.push(b'\n'),
            Err(error) => {
                self.buffer.truncate(length);
                self.failed(&error.into());
            }
        }
        self.oldest_ns.get_or_insert(entry.time_ns);
    }

    /// When [`write_if_due`](Journal::write_if_due) has something to do.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.oldest_ns.map(|ns| ns.saturating_add(KEPT_BACK_NS))
    }

    /// Writes what was kept, if it is much or old.
    pub(crate) fn write_if_due(&mut self, now_ns: u64) {
        if self.buffer.len() >= BUFFER_BYTES || self.due_ns().is_some_and(|due| due <= now_ns) {
            self.write();
        }
    }

    /// Writes what was kept.
    pub(crate) fn write(&mut self) {
        self.oldest_ns = None;
        if self.buffer.is_empty() {
            return;
        }
        if let Some(file) = &mut self.file {
            match file.write_all(&self.buffer) {
                Ok(()) => self.written += self.buffer.len() as u64,
                Err(error) => self.failed(&error),
            }
        } else {
            self.failures += 1;
        }
        self.buffer.clear();
    }

    /// Begins another part if this one is full. To be called when all that was decided is kept, and
    /// nothing else: `manager` is what the next line follows on. Costs a comparison mostly; some
    /// microseconds for each program where a part begins.
    pub(crate) fn turn_over(&mut self, manager: &GlobalManager) {
        if self.written + (self.buffer.len() as u64) < self.longest {
            return;
        }
        self.write();
        self.header.part += 1;
        self.header.known = Some(Box::new(manager.known()));
        self.start_file();
        self.header.known = None;
    }

    /// How often something could not be written, and why the last time.
    pub(crate) fn failures(&self) -> (u64, Option<&str>) {
        (self.failures, self.last_failure.as_deref())
    }

    /// Puts the present file aside and begins another one.
    fn start_file(&mut self) {
        self.written = 0;
        let old = self.path.with_extension("old.jsonl");
        let _ = std::fs::rename(&self.path, old);
        let flags = OFlags::CREATE
            | OFlags::TRUNC
            | OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        self.file = match rustix::fs::open(&self.path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Some(file.into()),
            Err(errno) => {
                self.failed(&errno.into());
                None
            }
        };
        let Some(file) = &mut self.file else { return };
        let written = serde_json::to_vec(&self.header)
            .map_err(io::Error::from)
            .and_then(|mut line| {
                line.push(b'\n');
                file.write_all(&line)
            });
        if let Err(error) = written {
            self.failed(&error);
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.failures += 1;
        self.last_failure = Some(error.to_string());
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.write();
    }
}

/// A journal that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its first line.
    pub header: Header,
    /// What came in and went out, in order.
    pub entries: Vec<Entry>,
}

impl Recorded {
    /// A manager as it was before the first of the entries. Given their times and inputs, it answers with
    /// their outputs.
    ///
    /// # Errors
    /// [`Error::Policy`] if its policy cannot be made: another version has other built-in ones.
    pub fn manager(&self) -> Result<GlobalManager, Error> {
        let policy = &self.header.policy;
        let made = match &self.header.known {
            None => policy.make().map(GlobalManager::new),
            Some(known) => GlobalManager::resume((**known).clone(), policy),
        };
        made.map_err(|why| Error::Policy {
            name: policy.name.clone(),
            why,
        })
    }
}

/// Reads a journal. A last line without an end, as a killed manager leaves it, is left out.
///
/// # Errors
/// [`Error::File`] if it cannot be read, [`Error::Journal`] if a line is not as it should be.
pub fn recorded(path: &Path) -> Result<Recorded, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(Error::file::<std::io::Error>("read the journal", path))?;
    let fail = |line: usize| {
        move |error: serde_json::Error| Error::Journal {
            path: path.to_owned(),
            line: line + 1,
            why: error.to_string(),
        }
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines().enumerate();
    let (_, first) = lines.next().unwrap_or_default();
    let header = serde_json::from_str(first).map_err(fail(0))?;
    let entries = lines
        .map(|(index, line)| serde_json::from_str(line).map_err(fail(index)))
        .collect::<Result<_, _>>()?;
    Ok(Recorded { header, entries })
}
