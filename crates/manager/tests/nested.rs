//! Root's manager and users' managers within it: who is granted what by whom, who may do what, and what
//! becomes of the one when the other is killed.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{LONG, Manager, POLICY, Place, Player, VICTIM, join, until};
use corewise_abi::message::{ToManager, ToProgram};
use corewise_manager::{Options, override_claim, stop};
use corewise_wire::{Channel, Folder, System};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[test]
fn helper() {
    common::helper_main();
}

/// Somebody who is not root, and another one.
const USER: u32 = 65_534;
const OTHER: u32 = 65_533;

/// A system's folder, and folders of users.
struct Machine {
    keep: tempfile::TempDir,
    system: Place,
}

impl Machine {
    /// `None` without root, who alone can become others.
    fn or_skip() -> Option<Machine> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can become another user");
            return None;
        }
        let keep = tempfile::tempdir().unwrap();
        std::fs::set_permissions(keep.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let folder = Folder::at(keep.path().join("system")).unwrap();
        for uid in [USER, OTHER] {
            let home = keep.path().join(uid.to_string());
            std::fs::create_dir(&home).unwrap();
            chown(&home, Some(uid), Some(uid)).unwrap();
        }
        let system = Place::with(folder);
        Some(Machine { keep, system })
    }

    /// Root's manager, with readings that are often enough for a test.
    fn manager(&self, policy: &str) -> Manager<'_> {
        let system = System::at(self.system.folder.path());
        let policy = policy.parse().unwrap();
        let options = Options::new(self.system.folder.clone(), policy).system(Some(system));
        Manager::start(&self.system, options.period(Duration::from_millis(10)))
    }

    fn home(&self, uid: u32) -> PathBuf {
        self.keep.path().join(uid.to_string())
    }

    fn socket(&self, uid: u32) -> PathBuf {
        self.home(uid).join("manager.sock")
    }

    /// A user's player; its runtime folder is its own unless `beside`: then only the usual places are.
    fn player(&self, uid: u32, part: &str, beside: bool, more: &[(&str, &str)]) -> Player {
        let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
        let launcher = ["setpriv", &user, &group, "--clear-groups", "--"];
        let mut command = Player::command(&launcher, part);
        let variable = match beside {
            true => "XDG_RUNTIME_DIR",
            false => "COREWISE_RUNTIME_DIR",
        };
        command
            .current_dir("/")
            .env_remove("COREWISE_RUNTIME_DIR")
            .env(variable, self.home(uid))
            .env("COREWISE_SYSTEM_DIR", self.system.folder.path())
            .envs(more.iter().copied());
        Player::spawn(command)
    }

    /// A user's manager that listens.
    fn users_manager(&self, policy: &str) -> Player {
        let player = self.player(USER, "manager", false, &[(POLICY, policy)]);
        until("the user's manager", || listens(&self.socket(USER)));
        player
    }

    /// A user's program that its manager has welcomed.
    fn users_program(&self, part: &str) -> Player {
        let mut player = self.player(USER, part, false, &[]);
        player.says("joined");
        player
    }

    /// What the user's manager knows, asked by root.
    fn users_status(&self) -> Value {
        status(&self.socket(USER))
    }

    /// The user's manager as root's sees it, once it is granted something.
    fn users_manager_as_program(&self) -> Value {
        let mut found = None;
        until("the user's manager to be granted something", || {
            found =
                self.system.programs().into_iter().find(|program| {
                    program["user"] == USER && program["claim"]["threads"].is_number()
                });
            found.is_some()
        });
        found.unwrap()
    }
}

fn listens(socket: &Path) -> bool {
    Channel::connect(socket).is_ok()
}

fn status(socket: &Path) -> Value {
    let channel = Channel::connect(socket).unwrap();
    channel.send(&ToManager::Status, &[]).unwrap();
    let mut whole = Vec::new();
    loop {
        match channel.receive_within::<ToProgram>(LONG).unwrap().message {
            ToProgram::Part { more, bytes } => {
                whole.extend(bytes);
                if !more {
                    return serde_json::from_slice(&whole).unwrap();
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn pid_of(program: &Value) -> i32 {
    i32::try_from(program["pid"].as_i64().unwrap()).unwrap()
}

/// CPUs of this machine that may be used.
fn cpus() -> Vec<u32> {
    let effective = corewise_machine::effective_cpus(&corewise_machine::Root::system(), None);
    effective.unwrap().cpus
}

#[test]
fn a_users_manager_manages_within_what_roots_grants_it() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let _system = machine.manager("observe");
    let inner = machine.users_manager("observe");
    assert_eq!(machine.system.programs().len(), 0, "without programs");
    let _program = machine.users_program("program");
    let claimed = machine.users_manager_as_program();
    assert_eq!(pid_of(&claimed), inner.pid());
    assert_eq!(claimed["wants"]["min_threads"], 1);
    assert_eq!(claimed["wants"]["max_threads"], 4);
    assert_eq!(claimed["wants"]["malleable"], true);
    until("the outer claim to be shown", || {
        machine.users_status()["outer"]["program"] == claimed["program"]
    });

    let last = *cpus().last().unwrap();
    override_claim(&machine.system.folder, inner.pid(), 1, vec![last]).unwrap();
    until("the outer claim to be kept to", || {
        let status = machine.users_status();
        let within = serde_json::json!([last]);
        status["machine"]["allowed"] == within
            && status["machine"]["capacity"] == 1.0
            && status["outer"]["threads"] == 1
            && status["programs"][0]["claim"]["cpus"] == within
    });
    override_claim(&machine.system.folder, inner.pid(), 0, vec![]).unwrap();
    until("all CPUs again", || {
        machine.users_status()["machine"]["allowed"] == serde_json::json!(cpus())
    });
}

#[test]
fn a_users_manager_wants_what_its_programs_want_together_and_leaves_with_the_last() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let _system = machine.manager("observe");
    let mut inner = machine.users_manager("observe");
    let wants = |threads: u32| {
        until(&format!("{threads} threads to be wanted"), || {
            let programs = machine.system.programs();
            programs.len() == 1 && programs[0]["wants"]["max_threads"] == threads
        });
    };
    let first = machine.users_program("program");
    wants(4);
    let second = machine.users_program("program");
    wants(8);
    drop(first);
    wants(4);
    drop(second);
    machine.system.until_programs(0);
    let _again = machine.users_program("program");
    wants(4);
    // Killed, it leaves nothing there.
    inner.kill();
    machine.system.until_programs(0);
}

#[test]
fn when_roots_manager_is_killed_a_users_goes_on_with_the_machine_and_finds_the_next_one() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let roots = || {
        let mut command = Player::command(&[], "manager");
        let folder = machine.system.folder.path();
        command.env("COREWISE_RUNTIME_DIR", folder);
        command.env("COREWISE_SYSTEM_DIR", folder);
        let player = Player::spawn(command);
        until("root's manager", || machine.system.listens());
        player
    };
    let mut system = roots();
    let inner = machine.users_manager("observe");
    let program = machine.users_program("program");
    machine.users_manager_as_program();
    let first = cpus()[0];
    override_claim(&machine.system.folder, inner.pid(), 1, vec![first]).unwrap();
    let allowed = |cpus: &[u32]| {
        let cpus = serde_json::json!(cpus);
        until(&format!("CPUs {cpus}"), || {
            machine.users_status()["machine"]["allowed"] == cpus
        });
    };
    allowed(&[first]);
    system.kill();
    allowed(&cpus());
    assert_eq!(machine.users_status()["outer"], Value::Null);
    assert_eq!(machine.users_status()["programs"][0]["pid"], program.pid());

    // The next one, which ends in good order.
    let _next = roots();
    machine.users_manager_as_program();
    override_claim(&machine.system.folder, inner.pid(), 1, vec![first]).unwrap();
    allowed(&[first]);
    assert!(stop(&machine.system.folder).unwrap());
    allowed(&cpus());
}

#[test]
fn what_a_users_programs_use_counts_as_used_by_its_manager_whoever_comes_first() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let mut system = Some(machine.manager("observe"));
    let _inner = machine.users_manager("observe");
    let _busy = machine.users_program("busy");
    for _ in 0..2 {
        until("their use to be seen", || {
            let programs = machine.system.programs();
            programs
                .first()
                .is_some_and(|p| p["user"] == USER && p["uses"].as_f64().is_some_and(|u| u > 0.2))
        });
        // Now it finds them there.
        drop(system.take());
        system = Some(machine.manager("observe"));
    }
}

#[test]
fn the_policy_of_roots_manager_decides_between_users() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let all = u32::try_from(cpus().len()).unwrap();
    if all < 2 {
        eprintln!("skipped: one CPU");
        return;
    }
    let _system = machine.manager("fcfs");
    let _inner = machine.users_manager("balanced");
    let _first = machine.users_program("program");
    let _second = machine.users_program("program");
    // Another user's, directly.
    let _others = machine.player(OTHER, "linked", true, &[]);
    let of = |uid: u32| {
        let all = machine.system.programs();
        all.into_iter().find(|program| program["user"] == uid)
    };
    until("both to be granted something", || {
        [USER, OTHER].iter().all(|uid| {
            of(*uid).is_some_and(|p| p["claim"]["threads"].as_u64().is_some_and(|n| n > 0))
        })
    });
    // Whatever it grants, the user's manager keeps to it.
    until("the same on both sides", || {
        let (outer, inner) = (of(USER), machine.users_status());
        outer.is_some_and(|outer| {
            let claim = &outer["claim"];
            inner["machine"]["allowed"] == claim["cpus"]
                && inner["outer"]["threads"] == claim["threads"]
        })
    });
}

#[test]
fn another_user_sees_and_does_nothing_that_is_not_its_own() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let _system = machine.manager("observe");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(machine.system.folder.path()), 0o711);
    assert_eq!(mode(&machine.system.folder.socket()), 0o666);
    assert_eq!(mode(&machine.system.folder.journal()), 0o600);
    assert_eq!(mode(&machine.system.folder.lock()), 0o600);
    let _roots = join(&machine.system, "root's");
    let victim = machine.player(USER, "linked", true, &[]);
    machine.system.until_programs(2);
    let pid = victim.pid().to_string();
    let mut stranger = machine.player(OTHER, "stranger", false, &[(VICTIM, &pid)]);
    let said = stranger.says_to_the_end();
    let seen: Value = serde_json::from_str(&said("sees ")[0]).unwrap();
    let programs = seen["programs"].as_array().unwrap();
    assert_eq!(programs.len(), 1, "{seen}");
    assert_eq!(programs[0]["name"], "stranger");
    for hidden in ["journal", "undo", "policy_error"] {
        assert_eq!(seen[hidden], Value::Null, "{hidden}");
    }
    let told = said("told ");
    for (told, reason) in told.iter().zip([
        "only root sets claims",
        "another user",
        "only its own user",
        "another user",
    ]) {
        assert!(told.contains(reason), "{told}");
    }
    assert_eq!(told.len(), 4);
    // Nothing has changed for anybody.
    machine.system.until_programs(2);
    for program in machine.system.programs() {
        assert_eq!(program["overridden"], false, "{program}");
    }
}

#[test]
fn a_program_joins_its_users_manager_and_roots_where_there_is_none() {
    let Some(machine) = Machine::or_skip() else {
        return;
    };
    let _system = machine.manager("observe");
    let mut direct = machine.player(USER, "linked", true, &[]);
    assert_eq!(direct.says("linked"), "true");
    let known = machine.users_manager_as_program();
    assert_eq!(pid_of(&known), direct.pid());
    drop(direct);
    machine.system.until_programs(0);

    // The usual folder of the user, within XDG_RUNTIME_DIR.
    let _manager = machine.player(USER, "manager", true, &[]);
    let socket = machine.home(USER).join("corewise/manager.sock");
    until("the user's manager", || listens(&socket));
    let mut own = machine.player(USER, "linked", true, &[]);
    assert_eq!(own.says("linked"), "true");
    assert_eq!(status(&socket)["programs"][0]["pid"], own.pid());
    assert_ne!(pid_of(&machine.users_manager_as_program()), own.pid());
}
