//! There is one manager in a runtime folder: the one that holds the lock.

use crate::Error;
use corewise_wire::Folder;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::{Duration, Instant};

/// How long a holder of the lock may take to listen, or to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// The lock of a runtime folder. The kernel gives it back when its holder ends, however it ends. The
/// file stays: who removes a locked file lets two hold "it".
#[derive(Debug)]
pub(crate) struct Elected {
    _file: File,
}

impl Elected {
    /// Takes the lock. A holder that does not listen is starting or leaving, and waited for: whoever
    /// started us counts on a manager that listens, be it us or the other.
    ///
    /// # Errors
    /// [`Error::AlreadyRuns`] if another manager listens; [`Error::File`].
    pub(crate) fn in_folder(folder: &Folder) -> Result<Elected, Error> {
        let path = folder.lock();
        let fail = |what| Error::file::<Errno>(what, &path);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(fail("open"))?;
        let mut file = File::from(file);
        let until = Instant::now() + PATIENCE;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    if listens(folder) || Instant::now() >= until {
                        return Err(already_runs(folder, &mut file));
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                // Where there are no locks, whoever listens is the manager.
                Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                    if listens(folder) {
                        return Err(already_runs(folder, &mut file));
                    }
                    break;
                }
                Err(errno) => return Err(fail("lock")(errno)),
            }
        }
        // For people and for the message of those who lose: nothing depends on it.
        let _ = file.set_len(0);
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Elected { _file: file })
    }
}

/// Whether somebody listens on the folder's socket.
pub(crate) fn listens(folder: &Folder) -> bool {
    corewise_wire::Channel::connect(&folder.socket()).is_ok()
}

fn already_runs(folder: &Folder, file: &mut File) -> Error {
    let mut text = String::new();
    let read = file
        .rewind()
        .and_then(|()| Read::by_ref(file).take(32).read_to_string(&mut text));
    Error::AlreadyRuns {
        folder: folder.path().to_owned(),
        pid: read.ok().and_then(|_| text.trim().parse().ok()),
    }
}
