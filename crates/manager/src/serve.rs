//! Being the manager.

use crate::election::Elected;
use crate::listen::Listener;
use crate::policy::PolicyWatch;
use crate::service::{Passed, ServiceManager};
use crate::settings::Settings;
use crate::waiter::now_ns;
use crate::world::LinuxWorld;
use crate::{Error, Options, sys};
use corewise_decide::global::GlobalManager;
use corewise_decide::world::drive;
use corewise_machine::undo::LogOnDemand;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
    let options = options.settled();
    let (watch, source) = PolicyWatch::new(options.policy.clone(), options.period)?;
    let policy = source.make().map_err(|why| Error::Policy {
        name: source.name.clone(),
        why,
    })?;
    let _elected = Elected::in_folder(&options.folder)?;
    let log = LogOnDemand::new(options.folder.undo(), "manager");
    let settings = Settings::new(&log, options.hardware.clone(), now_ns());
    let service = ServiceManager::of_environment();
    let passed = match options.activated {
        true => Passed::sorted(sys::passed()),
        false => Passed::default(),
    };
    let listener = Listener::open(&options, passed.listener)?;
    let most = most_connections();
    let mut world = LinuxWorld::new(options, listener, watch, source, settings, most, service)?;
    let mut manager = GlobalManager::new(policy);
    world.take_over(passed.connections);
    world.service.tell("READY=1");
    let ended = drive(&mut world, &mut manager);
    world.service.tell("STOPPING=1");
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
