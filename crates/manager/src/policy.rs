//! The policy's file: read at the start, and again whenever it changes.

use crate::{Error, PolicyChoice};
use corewise_decide::policy::source::Source;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest script, in bytes.
const LONGEST: u64 = 256 << 10;

/// Which policy was chosen, and what has become of its file.
#[derive(Debug)]
pub(crate) struct PolicyWatch {
    choice: PolicyChoice,
    period_ns: Option<u64>,
    seen: Option<Stamp>,
    failure: Option<String>,
}

/// What changes when a file does: device, file, length, time of its last change.
type Stamp = (u64, u64, u64, i64, i64);

/// What a look at the file has shown.
pub(crate) enum Changed {
    /// A good policy, from now on.
    Policy(Source),
    /// It has changed, and cannot be used: why.
    Wrong(String),
}

impl PolicyWatch {
    /// Reads the chosen policy.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Policy`].
    pub(crate) fn new(
        choice: PolicyChoice,
        period: Option<Duration>,
    ) -> Result<(PolicyWatch, Source), Error> {
        let nanoseconds = |period: Duration| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let mut watch = PolicyWatch {
            choice,
            period_ns: period.map(nanoseconds),
            seen: None,
            failure: None,
        };
        let source = match &watch.choice {
            PolicyChoice::BuiltIn(name) => Source {
                period_ns: watch.period_ns,
                ..Source::built_in(name.clone())
            },
            PolicyChoice::File(path) => {
                watch.seen = stamp(path);
                watch
                    .source(path)
                    .map_err(Error::file::<std::io::Error>("read the policy", path))?
            }
        };
        Ok((watch, source))
    }

    /// Looks whether the file has changed. Costs a system call.
    pub(crate) fn look(&mut self) -> Option<Changed> {
        let PolicyChoice::File(path) = &self.choice else {
            return None;
        };
        let now = stamp(path);
        // An editor may take the file away for a moment: the policy stays.
        if now.is_none() || now == self.seen {
            return None;
        }
        let path: PathBuf = path.clone();
        self.seen = now;
        let source = self.source(&path).map_err(|error| error.to_string());
        let tried = source.and_then(|source| source.make().map(|_| source));
        Some(match tried {
            Ok(source) => {
                self.failure = None;
                Changed::Policy(source)
            }
            Err(why) => {
                let name = path.display();
                let why = format!("{name} has changed and is not used: {why}");
                self.failure = Some(why.clone());
                Changed::Wrong(why)
            }
        })
    }

    /// Why the present file is not the policy.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn source(&self, path: &Path) -> io::Result<Source> {
        let mut text = String::new();
        File::open(path)?
            .take(LONGEST + 1)
            .read_to_string(&mut text)?;
        if text.len() as u64 > LONGEST {
            let why = format!("it is longer than {LONGEST} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(Source {
            name: name.to_string_lossy().into_owned(),
            script: Some(text),
            seed: 0,
            period_ns: self.period_ns,
        })
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (found.mtime(), found.mtime_nsec());
    Some((found.dev(), found.ino(), found.len(), seconds, nanoseconds))
}
