//! Standard input for several runs: what can be read again is opened again, what cannot is kept.
//!
//! | standard input | a probe gets | the real run gets |
//! | --- | --- | --- |
//! | a terminal, closed, unknown devices | nothing | the original |
//! | a regular file | the file, at the same offset | the original |
//! | `/dev/null`, `/dev/zero`, … | the same device | the original |
//! | a pipe or socket | what was kept | what was kept, then the live rest |

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};

use crate::sandbox::init::Input;

/// The most that is kept of a pipe, unless told otherwise, in bytes.
pub const DEFAULT_LIMIT: u64 = 64 << 20;
/// A pipe that says nothing for this long is not waited for.
const QUIET: Duration = Duration::from_millis(200);
/// A pipe is read for at most this long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Standard input, ready to be given to several runs.
#[derive(Debug)]
pub struct Spool {
    source: Source,
    completeness: Completeness,
}

/// Whether probes see the whole of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// They do (or there is none).
    Whole,
    /// Only the first part: the limit was reached. Probes see the end of input there.
    CutAtLimit,
    /// Only what had come by then: the writer was slow. Probes see the end of input there.
    CutAtTime,
}

#[derive(Debug)]
enum Source {
    Nothing,
    File {
        path: PathBuf,
        offset: u64,
    },
    /// A sealed file in memory. `live`: it came from a pipe, of which more may follow.
    Kept {
        kept: File,
        live: bool,
    },
}

impl Spool {
    /// No input for probes; the real run's stays as it is.
    pub fn none() -> Self {
        Self {
            source: Source::Nothing,
            completeness: Completeness::Whole,
        }
    }

    /// Looks at this process's standard input and keeps at most `limit` bytes of it where it cannot
    /// be read again.
    ///
    /// A pipe is read until it ends, the limit is reached, it has been silent for 200 ms, or 2 s
    /// have passed; so this never takes longer than that. What was read is no longer in the pipe:
    /// the real run must be given this spool.
    pub fn capture(limit: u64) -> io::Result<Self> {
        Self::capture_from(io::stdin().as_fd(), limit)
    }

    pub(crate) fn capture_from(stdin: BorrowedFd<'_>, limit: u64) -> io::Result<Self> {
        let Ok(handle) = stdin.try_clone_to_owned().map(File::from) else {
            return Ok(Self::none());
        };
        let meta = handle.metadata()?;
        let kind = meta.file_type();
        let link = PathBuf::from(format!("/proc/self/fd/{}", stdin.as_raw_fd()));
        if kind.is_char_device() {
            let path = link.read_link().unwrap_or_default();
            let known = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
            return Ok(if known.iter().any(|k| path.as_os_str() == *k) {
                Self::whole(Source::File { path, offset: 0 })
            } else {
                Self::none()
            });
        }
        if kind.is_file() {
            let offset = (&handle).stream_position()?;
            // A file that can be found by its name is opened in the sandbox, where writing to it
            // harms nothing; an open descriptor would lead out.
            if let Ok(path) = link.read_link()
                && let Ok(found) = File::open(&path).and_then(|f| f.metadata())
                && (found.dev(), found.ino()) == (meta.dev(), meta.ino())
            {
                return Ok(Self::whole(Source::File { path, offset }));
            }
            let mut again = File::open(&link)?;
            again.seek(io::SeekFrom::Start(offset))?;
            let mut kept = memory_file()?;
            let copied = io::copy(&mut again.take(limit), &mut kept)?;
            let cut = offset + copied < meta.len();
            return Ok(Self {
                source: Source::Kept {
                    kept: seal(kept)?,
                    live: false,
                },
                completeness: if cut {
                    Completeness::CutAtLimit
                } else {
                    Completeness::Whole
                },
            });
        }
        if kind.is_fifo() || kind.is_socket() {
            let mut kept = memory_file()?;
            let completeness = read_for_a_while(&handle, &mut kept, limit)?;
            return Ok(Self {
                source: Source::Kept {
                    kept: seal(kept)?,
                    live: true,
                },
                completeness,
            });
        }
        Ok(Self::none())
    }

    fn whole(source: Source) -> Self {
        Self {
            source,
            completeness: Completeness::Whole,
        }
    }

    /// Whether probes see the whole of standard input.
    pub fn completeness(&self) -> Completeness {
        self.completeness
    }

    /// The input of one probe, and what keeps its descriptor open.
    pub(crate) fn probe_input(&self) -> io::Result<(Input, Option<OwnedFd>)> {
        let fd: OwnedFd = match &self.source {
            Source::File { path, offset } => {
                let path = CString::new(path.as_os_str().as_bytes())?;
                let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
                return Ok((Input::File { path, offset }, None));
            }
            Source::Nothing => File::open("/dev/null")?.into(),
            // Opened anew for an offset of its own.
            Source::Kept { kept, .. } => {
                File::open(format!("/proc/self/fd/{}", kept.as_raw_fd()))?.into()
            }
        };
        Ok((Input::Descriptor(fd.as_raw_fd()), Some(fd)))
    }

    /// What was taken out of a pipe and must be given back to the real run before the live rest:
    /// a file in memory, opened anew.
    pub(crate) fn taken_from_pipe(&self) -> io::Result<Option<File>> {
        match &self.source {
            Source::Kept { kept, live: true } => {
                File::open(format!("/proc/self/fd/{}", kept.as_raw_fd())).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn memory_file() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create(c"corewise-input", flags)?.into())
}

/// Nobody can change it any more, not even a program that opens it again for writing.
fn seal(file: File) -> io::Result<File> {
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

fn read_for_a_while(mut pipe: &File, kept: &mut File, limit: u64) -> io::Result<Completeness> {
    debug_assert!(!rustix::fs::fcntl_getfl(pipe)?.contains(OFlags::PATH));
    let end = Instant::now() + PATIENCE;
    let mut left = limit;
    let mut buffer = vec![0; 1 << 16];
    loop {
        if left == 0 {
            return Ok(Completeness::CutAtLimit);
        }
        let wait = QUIET.min(end.saturating_duration_since(Instant::now()));
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut polled, Some(&wait)) {
            Ok(0) => return Ok(Completeness::CutAtTime),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        let room = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        match pipe.read(&mut buffer[..room]) {
            Ok(0) => return Ok(Completeness::Whole),
            Ok(n) => {
                kept.write_all(&buffer[..n])?;
                left -= n as u64;
            }
            // Another reader was faster, or the descriptor does not block.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if Instant::now() >= end {
            return Ok(Completeness::CutAtTime);
        }
    }
}
