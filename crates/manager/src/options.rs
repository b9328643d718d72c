//! How a manager is to run.

use crate::Error;
use corewise_machine::Root;
use corewise_wire::{Folder, System};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Which policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// One of `corewise-decide`'s, by its name.
    BuiltIn(String),
    /// A script, or a file that names several policies (`.toml`), read again when it changes.
    File(PathBuf),
}

impl FromStr for PolicyChoice {
    type Err = Error;

    /// A built-in policy's name, or the path of a script or of a file that names several policies: what names
    /// no policy and is an existing file, or looks like a path (a `/` or a `.` in it).
    fn from_str(text: &str) -> Result<PolicyChoice, Error> {
        if corewise_decide::policy::built_in(text).is_some() {
            return Ok(PolicyChoice::BuiltIn(text.to_owned()));
        }
        let path = PathBuf::from(text);
        if text.contains(['/', '.']) || path.is_file() {
            return Ok(PolicyChoice::File(path));
        }
        Err(Error::Policy {
            name: text.to_owned(),
            why: "no built-in policy has this name, and there is no such file".to_owned(),
        })
    }
}

/// How a manager is to run.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) folder: Folder,
    pub(crate) policy: PolicyChoice,
    pub(crate) period: Option<Duration>,
    pub(crate) on_demand: bool,
    pub(crate) linger: Duration,
    pub(crate) journal_bytes: u64,
    pub(crate) activated: bool,
    pub(crate) system: Option<System>,
    /// Whether every user is served: it is the system's manager.
    pub(crate) everyone: bool,
    pub(crate) hardware: Root,
}

impl Options {
    /// A manager of `folder`, with this policy, that runs until it is stopped.
    pub fn new(folder: Folder, policy: PolicyChoice) -> Options {
        Options {
            folder,
            policy,
            period: None,
            on_demand: false,
            linger: Duration::from_secs(2),
            journal_bytes: 16 << 20,
            activated: true,
            system: Some(System::of_environment()),
            everyone: false,
            hardware: Root::system(),
        }
    }

    /// The folder that is `/` for temperatures, counters and all hardware that is set: another one than `/`
    /// stands for another machine.
    #[must_use]
    pub fn hardware(self, hardware: Root) -> Options {
        Options { hardware, ..self }
    }

    /// Whether it ends by itself when no program has been joined for a while
    /// ([`linger`](Options::linger)).
    #[must_use]
    pub fn on_demand(self, on_demand: bool) -> Options {
        Options { on_demand, ..self }
    }

    /// How long a manager on demand stays without programs; 2 s unless set here.
    #[must_use]
    pub fn linger(self, linger: Duration) -> Options {
        Options { linger, ..self }
    }

    /// Time between readings, instead of the policy's own; 10 ms at least. Shorter costs more.
    #[must_use]
    pub fn period(self, period: Duration) -> Options {
        let period = Some(period);
        Options { period, ..self }
    }

    /// How long the journal may become before it is put aside as `journal.old.jsonl`, in bytes; 16 MiB
    /// unless set here. The two together are what a manager can fill.
    #[must_use]
    pub fn journal_bytes(self, journal_bytes: u64) -> Options {
        Options {
            journal_bytes,
            ..self
        }
    }

    /// Whether a socket passed by the service manager (LISTEN_FDS) is taken; yes unless set here.
    #[must_use]
    pub fn activated(self, activated: bool) -> Options {
        Options { activated, ..self }
    }
    /// Where the system's manager is: [`System::of_environment`] unless set here. A manager of root's in
    /// that folder is the system's, and serves everyone; any other one manages within what that one grants
    /// to it. With `None`, it stands alone.
    #[must_use]
    pub fn system(self, system: Option<System>) -> Options {
        Options { system, ..self }
    }

    /// Settles which of the two it is.
    pub(crate) fn settled(self) -> Options {
        let root = rustix::process::geteuid().is_root();
        let own = |system: &System| system.is_at(&self.folder);
        let everyone = root && self.system.as_ref().is_some_and(own);
        Options {
            everyone,
            system: self.system.filter(|_| !everyone),
            ..self
        }
    }
}
