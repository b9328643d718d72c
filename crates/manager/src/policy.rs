//! The policy's file: read at the start, and again whenever it changes.

use crate::{Error, PolicyChoice};
use corewise_decide::policy::configuration;
use corewise_decide::policy::source::Source;
use std::cell::RefCell;
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
    seen: Option<Vec<Stamp>>,
    /// Scripts that the file names.
    scripts: Vec<PathBuf>,
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
            scripts: Vec::new(),
            failure: None,
        };
        let source = match watch.choice.clone() {
            PolicyChoice::BuiltIn(name) => Source {
                period_ns: watch.period_ns,
                ..Source::built_in(name)
            },
            PolicyChoice::File(path) => watch.source(&path).map_err(|wrong| match wrong {
                Wrong::File(error) => {
                    Error::file::<std::io::Error>("read the policy", &path)(error)
                }
                Wrong::Text(why) => Error::Policy {
                    name: path.display().to_string(),
                    why,
                },
            })?,
        };
        Ok((watch, source))
    }

    /// Looks whether the file has changed, or a script that it names. Costs a system call for each.
    pub(crate) fn look(&mut self) -> Option<Changed> {
        let PolicyChoice::File(path) = &self.choice else {
            return None;
        };
        let path: PathBuf = path.clone();
        let now = self.stamps(&path);
        // An editor may take the file away for a moment: the policy stays.
        if now.is_none() || now == self.seen {
            return None;
        }
        let source = self.source(&path).map_err(|wrong| wrong.to_string());
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

    /// Reads the file, and the scripts that it names. Each is looked at before it is read: what changes in
    /// between is read once more.
    fn source(&mut self, path: &Path) -> Result<Source, Wrong> {
        self.scripts.clear();
        self.seen = self.stamps(path);
        let text = text(path).map_err(Wrong::File)?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        let source = match name.ends_with(configuration::ENDING) {
            true => {
                let folder = path.parent().unwrap_or(Path::new(""));
                let scripts = RefCell::new(Vec::new());
                let read = |script: &Path| {
                    let script = folder.join(script);
                    scripts.borrow_mut().push((script.clone(), stamp(&script)));
                    self::text(&script)
                };
                let source = configuration::read(&text, &name, 0, &read);
                // Also when it is wrong: it may be a script that is to be mended.
                let (scripts, stamps): (Vec<PathBuf>, Vec<_>) =
                    scripts.into_inner().into_iter().unzip();
                self.scripts = scripts;
                if let Some(seen) = &mut self.seen {
                    seen.extend(stamps.into_iter().flatten());
                }
                source.map_err(Wrong::Text)?
            }
            false => Source::script(name, text),
        };
        Ok(Source {
            period_ns: self.period_ns,
            ..source
        })
    }

    /// `None` while the file is not there.
    fn stamps(&self, path: &Path) -> Option<Vec<Stamp>> {
        let first = stamp(path)?;
        let scripts = self.scripts.iter().filter_map(|script| stamp(script));
        Some(std::iter::once(first).chain(scripts).collect())
    }
}

/// Why a file is no policy.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error(transparent)]
    File(io::Error),
    #[error("{0}")]
    Text(String),
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(LONGEST + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        let why = format!("it is longer than {LONGEST} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (found.mtime(), found.mtime_nsec());
    Some((found.dev(), found.ino(), found.len(), seconds, nanoseconds))
}
