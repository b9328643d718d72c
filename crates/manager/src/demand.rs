//! Starting a manager where none runs.

use crate::{Error, election, sys};
use corewise_wire::Folder;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a started manager may take to listen.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes sure that a manager listens in `folder`: where none does, starts `COMMAND manage --on-demand`
/// on its own (a session of its own, nobody's child, no input or output) and waits until one listens.
/// Any number of callers may do so at once; one manager is left. Costs some tens of milliseconds if
/// one has to be started.
///
/// # Errors
/// [`Error::File`] if the command cannot be executed, [`Error::NotStarted`] if nobody listens after
/// five seconds.
pub fn start_on_demand(folder: &Folder, command: &Path) -> Result<(), Error> {
    if election::listens(folder) {
        return Ok(());
    }
    // It starts in `/`, so that it keeps no folder busy; a path is meant from here.
    let absolute = match command.components().count() {
        1 => command.to_owned(),
        _ => std::path::absolute(command).unwrap_or_else(|_| command.to_owned()),
    };
    let mut process = Command::new(absolute);
    process
        .args(["manage", "--on-demand"])
        .env("COREWISE_RUNTIME_DIR", folder.path())
        // It is no service, whatever its first program is part of.
        .env_remove("NOTIFY_SOCKET")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let started = sys::on_its_own(&mut process).spawn();
    let fail = || Error::file::<std::io::Error>("start", command);
    // What was spawned has made the manager nobody's child, and ended.
    started.map_err(fail())?.wait().map_err(fail())?;
    let until = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    while !election::listens(folder) {
        if Instant::now() >= until {
            return Err(Error::NotStarted {
                command: command.to_owned(),
                seconds: PATIENCE.as_secs(),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(())
}
