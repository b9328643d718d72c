//! Being the manager.

use crate::election::Elected;
use crate::listen::Listener;
use crate::policy::PolicyWatch;
use crate::settings::Settings;
use crate::world::LinuxWorld;
use crate::{Error, Options};
use corewise_decide::global::GlobalManager;
use corewise_decide::world::drive;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::OnceCell;

/// Connections that are kept at most.
const MOST_CONNECTIONS: u64 = 4096;

/// Open files that are no connection's.
const OTHER_FILES: u64 = 64;

/// Open files that a program needs: connection, process, and two pages until it is welcomed.
const FILES_OF_A_PROGRAM: u64 = 4;

/// Manages the programs of a runtime folder until it is stopped (SIGTERM, SIGINT, SIGHUP, or a
/// message), or, on demand, until there have been none for a while. Blocks the calling thread, for
/// which these signals are blocked meanwhile: in a program of several threads, block them in all.
///
/// At its end, claims bind no longer, and what was set is put back.
///
/// # Errors
/// [`Error::AlreadyRuns`] if another manager listens in this folder; [`Error::Policy`] and
/// [`Error::File`] for a policy that cannot be used; and others where the machine lacks what a manager
/// needs. Nothing of what programs do is an error.
pub fn serve(options: Options) -> Result<(), Error> {
    let (watch, source) = PolicyWatch::new(options.policy.clone(), options.period)?;
    let policy = source.make().map_err(|why| Error::Policy {
        name: source.name.clone(),
        why,
    })?;
    let _elected = Elected::in_folder(&options.folder)?;
    let log = OnceCell::new();
    let settings = Settings::new(&log, options.folder.undo());
    let listener = Listener::open(&options.folder, options.activated)?;
    let most = most_connections();
    let mut world = LinuxWorld::new(options, listener, watch, source, settings, most)?;
    let mut manager = GlobalManager::new(policy);
    tell_service_manager("READY=1");
    let ended = drive(&mut world, &mut manager);
    tell_service_manager("STOPPING=1");
    // Also after a failure: nobody is left with a claim that nobody keeps.
    world.end();
    ended
}

/// How many connections the limit on open files leaves room for, after raising it as far as may be.
fn most_connections() -> usize {
    let wanted = MOST_CONNECTIONS * FILES_OF_A_PROGRAM + OTHER_FILES;
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some(limit.current.unwrap_or(u64::MAX).max(wanted.min(hard))),
        maximum: limit.maximum,
    };
    // Without it there is room for fewer.
    let _ = setrlimit(Resource::Nofile, raised);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = files.saturating_sub(OTHER_FILES) / FILES_OF_A_PROGRAM;
    usize::try_from(room.clamp(1, MOST_CONNECTIONS)).unwrap_or(1)
}

/// Tells systemd what a manager is doing (sd_notify(3)); without it, nothing happens.
fn tell_service_manager(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let path = path.as_encoded_bytes();
    let address = match path.first() {
        Some(b'@') => SocketAddrUnix::new_abstract_name(&path[1..]),
        _ => SocketAddrUnix::new(path),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    if let (Ok(address), Ok(socket)) = (address, socket) {
        let bytes = state.as_bytes();
        // A service manager that does not listen is none.
        let _ = rustix::net::sendto(&socket, bytes, SendFlags::NOSIGNAL, &address);
    }
}
