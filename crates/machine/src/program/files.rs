//! One thread's files in /proc: kept open where the budget of descriptors allows, because reading
//! an open file again costs a third of opening it, and because the descriptor stays bound to this
//! very thread when its number is used again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::Error;

/// Descriptors that may still be kept open.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
}

impl Budget {
    pub(super) fn new(files: usize) -> Self {
        Self { left: files }
    }

    fn take(&mut self) -> bool {
        let granted = self.left > 0;
        self.left -= usize::from(granted);
        granted
    }

    fn give_back(&mut self) {
        self.left += 1;
    }
}

/// Which of a thread's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    SchedStat = 0,
    Stat = 1,
    Status = 2,
    Sched = 3,
    Syscall = 4,
}

impl Kind {
    const NAMES: [&'static str; 5] = ["schedstat", "stat", "status", "sched", "syscall"];
}

/// What reading one of a thread's files gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read<'b> {
    /// The file's text.
    Text(&'b [u8]),
    /// The thread has ended.
    Gone,
    /// The file is not there or not for us, though the thread lives.
    Refused,
}

/// The files of one thread.
#[derive(Debug)]
pub(super) struct ThreadFiles {
    folder: PathBuf,
    kept: [Option<File>; 5],
}

impl ThreadFiles {
    /// `folder` is `/proc/PID/task/TID`.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            kept: [const { None }; 5],
        }
    }

    /// Reads a file from its start into `buffer`; what does not fit is left out.
    pub(super) fn read<'b>(
        &mut self,
        kind: Kind,
        budget: &mut Budget,
        buffer: &'b mut [u8],
    ) -> Read<'b> {
        let slot = &mut self.kept[kind as usize];
        let result = match slot {
            Some(file) => read_whole(file, buffer),
            None => match File::open(self.folder.join(Kind::NAMES[kind as usize])) {
                Ok(file) => {
                    let result = read_whole(&file, buffer);
                    if result.is_ok() && budget.take() {
                        *slot = Some(file);
                    }
                    result
                }
                Err(error) => Err(error),
            },
        };
        match result {
            Ok(length) => Read::Text(&buffer[..length]),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Read::Gone,
            // Without the folder the thread is gone; without the file only, the kernel lacks it.
            Err(error) if Error::means_gone(&error) && !self.folder.exists() => Read::Gone,
            Err(_) => Read::Refused,
        }
    }

    /// Closes what is open.
    pub(super) fn close(&mut self, budget: &mut Budget) {
        for slot in &mut self.kept {
            if slot.take().is_some() {
                budget.give_back();
            }
        }
    }
}

/// Reads until the buffer is full or the file ends: `sched` and `status` come in one piece where
/// the buffer is large enough.
fn read_whole(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Names in a folder that are numbers: threads of a process or processes of a machine.
pub(super) fn numbers_in(folder: &Path) -> io::Result<Vec<i32>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        // A folder that disappears while it is listed ends the list.
        let Ok(entry) = entry else { break };
        if let Some(number) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}
