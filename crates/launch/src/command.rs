//! A program to start, and where it is found: the look-up along `PATH` as env and timeout do it,
//! with their exit codes for what goes wrong.

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Where programs are looked for when `PATH` is not set, as the C library does it.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A program to start, completely resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The file to execute.
    pub program: PathBuf,
    /// The arguments, without `argv[0]`.
    pub args: Vec<OsString>,
    /// `argv[0]`: the name by which the program was called.
    pub arg0: OsString,
    /// Variables set on top of the inherited environment. The last one of a name wins.
    pub env: Vec<(OsString, OsString)>,
    /// The CPUs that the program may use, as Linux numbers them; `None` leaves them as inherited.
    pub affinity: Option<Vec<u32>>,
    /// Descriptors of this process that the program inherits under the same numbers. They must stay open
    /// until it runs.
    pub inherit: Vec<RawFd>,
}

/// Why a program cannot be started.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LookupError {
    /// No such file, on `PATH` or at the given place.
    #[error("{name}: program not found{}; check the name, or give the program's full path",
        if *.searched { " in any folder of PATH" } else { "" })]
    NotFound {
        /// The name as it was given.
        name: String,
        /// Whether the folders of `PATH` were searched.
        searched: bool,
    },
    /// A file is there but may not be executed.
    #[error("{}: cannot be executed: {why}", path.display())]
    NotExecutable {
        /// The file that was found.
        path: PathBuf,
        /// What it is, or what it lacks.
        why: &'static str,
    },
}

impl LookupError {
    /// The exit code that env and timeout use for this: 127 not found, 126 not executable.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
        }
    }
}

impl Command {
    /// Resolves `name` along this process's `PATH` and makes a command without arguments.
    pub fn new(name: impl AsRef<OsStr>) -> Result<Self, LookupError> {
        Self::new_on(name, std::env::var_os("PATH").as_deref())
    }

    /// Resolves `name` along `path` (the value of `PATH`, `None` when it is not set).
    pub fn new_on(name: impl AsRef<OsStr>, path: Option<&OsStr>) -> Result<Self, LookupError> {
        Ok(Self {
            program: find_program(name.as_ref(), path)?,
            args: Vec::new(),
            arg0: name.as_ref().to_owned(),
            env: Vec::new(),
            affinity: None,
            inherit: Vec::new(),
        })
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable on top of the inherited environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The whole environment that the program gets: `inherited` with this command's variables set
    /// on top. Each name occurs once.
    pub fn environment(
        &self,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let mut all: Vec<(OsString, OsString)> = Vec::new();
        for (name, value) in inherited.into_iter().chain(self.env.iter().cloned()) {
            match all.iter_mut().find(|(n, _)| *n == name) {
                Some(entry) => entry.1 = value,
                None => all.push((name, value)),
            }
        }
        all
    }
}

/// Finds the file that `name` stands for: a name with a slash as it is, any other in the folders of
/// `path` (the value of `PATH`; an empty folder means the current one).
///
/// As the C library does it, a file that is found but may not be executed does not end the search;
/// it is reported when nothing better follows.
pub fn find_program(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, LookupError> {
    let not_found = |searched| LookupError::NotFound {
        name: name.to_string_lossy().into_owned(),
        searched,
    };
    if name.is_empty() {
        return Err(not_found(false));
    }
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match check(&file) {
            Check::Good => Ok(file),
            Check::Absent => Err(not_found(false)),
            Check::Bad(why) => Err(LookupError::NotExecutable { path: file, why }),
        };
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    let mut refused = None;
    for folder in path.as_bytes().split(|&b| b == b':') {
        let folder = if folder.is_empty() { &b"."[..] } else { folder };
        let file = PathBuf::from(OsString::from_vec(folder.to_vec())).join(name);
        match check(&file) {
            Check::Good => return Ok(file),
            Check::Absent => {}
            Check::Bad(why) => refused = refused.or(Some((file, why))),
        }
    }
    match refused {
        Some((path, why)) => Err(LookupError::NotExecutable { path, why }),
        None => Err(not_found(true)),
    }
}

enum Check {
    Good,
    Absent,
    Bad(&'static str),
}

fn check(file: &Path) -> Check {
    match std::fs::metadata(file) {
        Ok(meta) if meta.is_dir() => Check::Bad("it is a folder"),
        Ok(meta) if !meta.is_file() => Check::Bad("it is not a regular file"),
        Ok(_) => match accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS) {
            Ok(()) => Check::Good,
            Err(_) => Check::Bad("permission denied (is it marked executable? try chmod +x)"),
        },
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            Check::Bad("permission denied on the way to it")
        }
        Err(_) => Check::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder_with(name: &str, mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        dir
    }

    fn joined(dirs: &[&Path]) -> OsString {
        std::env::join_paths(dirs).unwrap()
    }

    #[test]
    fn a_name_is_found_in_the_first_folder_that_has_it() {
        let (a, b) = (folder_with("other", 0o755), folder_with("prog", 0o755));
        let path = joined(&[a.path(), b.path()]);
        assert_eq!(
            find_program(OsStr::new("prog"), Some(&path)),
            Ok(b.path().join("prog"))
        );
    }

    #[test]
    fn a_file_without_the_executable_bit_is_passed_over() {
        let (a, b) = (folder_with("prog", 0o644), folder_with("prog", 0o755));
        let path = joined(&[a.path(), b.path()]);
        assert_eq!(
            find_program(OsStr::new("prog"), Some(&path)),
            Ok(b.path().join("prog"))
        );
    }

    #[test]
    fn a_file_that_cannot_be_executed_is_reported_with_126() {
        let a = folder_with("prog", 0o644);
        let error = find_program(OsStr::new("prog"), Some(a.path().as_os_str())).unwrap_err();
        assert_eq!(error.exit_code(), 126);
        let folder = find_program(OsStr::new("/tmp/."), None).unwrap_err();
        assert_eq!(folder.exit_code(), 126);
    }

    #[test]
    fn a_name_that_is_nowhere_is_reported_with_127() {
        let a = folder_with("prog", 0o755);
        for name in [
            "no-such-program",
            "",
            "./no-such-program",
            "/no/such/program",
        ] {
            let error = find_program(OsStr::new(name), Some(a.path().as_os_str())).unwrap_err();
            assert_eq!(error.exit_code(), 127, "{name}");
        }
    }

    #[test]
    fn a_variable_set_twice_occurs_once_with_its_last_value() {
        let command = Command::new("/bin/true")
            .unwrap()
            .env("A", "2")
            .env("A", "3");
        let inherited = [("A".into(), "1".into()), ("B".into(), "9".into())];
        assert_eq!(
            command.environment(inherited),
            [("A".into(), "3".into()), ("B".into(), "9".into())]
        );
    }
}
