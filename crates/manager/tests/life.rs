//! A manager starts, is elected, leaves, is killed; programs outlive all of it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Manager, Place, Player, is_closed, join, until};
use corewise_abi::claim::State;
use corewise_manager::{Error, serve, start_on_demand, status_json, stop};
use corewise_wire::Error as WireError;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn helper() {
    common::helper_main();
}

/// What `corewise` is to a manager that is to be started: this test program, which becomes a manager
/// if it is called as `COMMAND manage --on-demand`.
fn command(place: &Place) -> PathBuf {
    let path = place.folder.path().join("command");
    let own = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$*\" = 'manage --on-demand' ] || exit 3\n\
         COREWISE_TEST_PART='manager on demand' exec '{}' --exact helper --nocapture\n",
        own.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    path
}

#[test]
fn a_manager_that_is_killed_closes_its_connections_and_the_next_one_takes_its_place() {
    let place = Place::new();
    let mut first = Player::start("manager", &place);
    until("it listens", || place.listens());
    let joined = join(&place, "survivor");
    let claim = joined.claim.granted();
    first.kill();
    until("its connections are closed", || is_closed(&joined));
    // The page can still be read; it is the connection that says that nobody keeps it.
    assert_eq!(joined.claim.granted(), claim);
    assert!(matches!(
        corewise_wire::connect(&place.folder),
        Err(WireError::NoManager { .. })
    ));
    assert_eq!(status_json(&place.folder).unwrap(), None);

    let _second = Manager::observing(&place);
    let again = join(&place, "survivor");
    assert_eq!(again.claim.state(), State::Managed);
    assert_eq!(place.programs().len(), 1);
}

#[test]
fn a_manager_that_is_stopped_ends_its_claims_and_takes_its_socket_away() {
    let place = Place::new();
    let manager = Manager::observing(&place);
    let joined = join(&place, "survivor");
    let seen = joined.claim.granted().generation;
    manager.stop().unwrap();
    assert!(joined.claim.wait(seen, Some(LONG)));
    assert_eq!(joined.claim.state(), State::Ended);
    assert!(is_closed(&joined));
    assert!(!place.folder.socket().exists());
    assert!(!stop(&place.folder).unwrap(), "there is none to be stopped");
}

#[test]
fn a_manager_that_is_asked_to_end_by_a_signal_ends_in_good_order() {
    let place = Place::new();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut manager = Player::start("manager", &place);
        until("it listens", || place.listens());
        let joined = join(&place, "survivor");
        let pid = rustix::process::Pid::from_raw(manager.pid()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        manager.says("served");
        assert_eq!(joined.claim.state(), State::Ended);
        assert!(!place.folder.socket().exists());
    }
}

#[test]
fn a_second_manager_is_told_that_there_is_one() {
    let place = Place::new();
    let _first = Manager::observing(&place);
    let second = serve(place.options("observe"));
    let Err(Error::AlreadyRuns { pid, .. }) = second else {
        panic!("{second:?}");
    };
    assert_eq!(pid, Some(common::own_pid()));
    assert!(place.listens());
}

#[test]
fn of_many_that_start_at_once_one_is_the_manager() {
    let place = Place::new();
    let mut players: Vec<Player> = (0..6).map(|_| Player::start("manager", &place)).collect();
    // Five end and say that another one runs.
    until("one is left", || {
        let alive = players
            .iter_mut()
            .filter_map(|p| p.child.try_wait().unwrap().is_none().then_some(()));
        alive.count() == 1
    });
    until("it listens", || place.listens());
    let pid = place.status()["manager"]["pid"].as_i64().unwrap();
    let mut left = 0;
    for player in &mut players {
        if i64::from(player.pid()) == pid {
            left += 1;
        } else {
            player.says("already");
        }
    }
    assert_eq!(left, 1);
}

#[test]
fn a_manager_on_demand_leaves_after_its_last_program() {
    let place = Place::new();
    let linger = Duration::from_millis(100);
    let options = place.options("observe").on_demand(true).linger(linger);
    let manager = Manager::start(&place, options);
    let joined = join(&place, "last");
    // Far longer than it lingers: a program keeps it.
    std::thread::sleep(3 * linger);
    assert_eq!(place.programs().len(), 1);
    drop(joined);
    manager.ended().unwrap();
    assert!(!place.folder.socket().exists());
}

#[test]
fn a_manager_without_demand_stays() {
    let place = Place::new();
    let linger = Duration::from_millis(20);
    let _manager = Manager::start(&place, place.options("observe").linger(linger));
    drop(join(&place, "last"));
    place.until_programs(0);
    std::thread::sleep(5 * linger);
    assert!(place.listens());
}

/// As the kernel writes them. A session of 0 is one that began outside this PID namespace: a container's
/// first process lives in such a session, and `getsid` of `rustix` takes 0 for impossible.
fn parent_and_session(process: &str) -> (String, String) {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[1].to_owned(), fields[3].to_owned())
}

#[test]
fn those_who_start_a_manager_at_once_get_one_that_is_nobodys_child() {
    let place = Place::new();
    let command = command(&place);
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| start_on_demand(&place.folder, &command).unwrap());
        }
    });
    let joined = join(&place, "guest");
    let pid = place.status()["manager"]["pid"].as_i64().unwrap();
    let (parent, session) = parent_and_session(&pid.to_string());
    assert_ne!(parent, common::own_pid().to_string(), "its parent");
    let (_, own_session) = parent_and_session("self");
    assert_ne!(session, own_session, "its session");
    // A second call finds it.
    start_on_demand(&place.folder, &PathBuf::from("/nonexistent")).unwrap();
    drop(joined);
    until("it has left", || !place.listens());
}

#[test]
fn a_command_that_is_not_there_cannot_be_started() {
    let place = Place::new();
    let error = start_on_demand(&place.folder, &PathBuf::from("/nonexistent/corewise"));
    assert!(matches!(error, Err(Error::File { .. })), "{error:?}");
}

#[test]
fn what_is_in_the_folder_is_for_its_user_alone() {
    let place = Place::new();
    let manager = Manager::observing(&place);
    drop(join(&place, "guest"));
    for path in [
        place.folder.socket(),
        place.folder.lock(),
        place.folder.journal(),
    ] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    manager.stop().unwrap();
}

#[test]
fn an_unknown_policy_is_an_error_before_anything_is_touched() {
    let place = Place::new();
    let unknown = "no-such-policy".parse::<corewise_manager::PolicyChoice>();
    assert!(matches!(unknown, Err(Error::Policy { .. })));
    let missing = serve(place.options("./missing.rhai"));
    assert!(matches!(missing, Err(Error::File { .. })), "{missing:?}");
    assert!(!place.folder.lock().exists());
}

#[test]
fn a_socket_that_was_passed_is_used_and_stays() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let place = Place::new();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new(place.folder.socket()).unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 5).unwrap();
    // Who connects before there is a manager waits for it.
    let early = corewise_wire::connect(&place.folder).unwrap();
    let passes = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; \
                  exec \"$0\" --exact helper --nocapture";
    let child = std::process::Command::new("sh")
        .args(["-c", passes])
        .arg(std::env::current_exe().unwrap())
        .env("COREWISE_TEST_PART", "manager")
        .env("COREWISE_RUNTIME_DIR", place.folder.path())
        .stdin(socket)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut manager = Player { child };
    let ask = corewise_abi::message::ToManager::Status;
    early.send(&ask, &[]).unwrap();
    let answer = early.receive_within::<corewise_abi::message::ToProgram>(LONG);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(place.status()["manager"]["pid"], manager.pid());
    assert!(stop(&place.folder).unwrap());
    manager.child.wait().unwrap();
    assert!(place.folder.socket().exists());
}
