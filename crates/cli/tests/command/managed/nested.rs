//! A user's programs and manager within what root's manager grants.
use super::frame::*;
use crate::common::{Place, json, stderr};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Child, Command, Output, Stdio};

/// Somebody who is not root.
const USER: u32 = 65_534;

/// Root's manager, in a folder that stands for the system's.
struct Roots {
    place: Place,
    child: Child,
}

impl Drop for Roots {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Roots {
    /// `None` without root, who alone can become another user.
    fn or_skip() -> Option<Roots> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can become another user");
            return None;
        }
        let place = Place::new();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let child = Roots::start(&place);
        Some(Roots { place, child })
    }

    fn start(place: &Place) -> Child {
        let mut command = place.command(&["manage", "--policy", "observe"]);
        let child = command
            .env("COREWISE_SYSTEM_DIR", place.runtime())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("root's manager", || manager(place));
        child
    }

    fn restart(&mut self) {
        self.child = Roots::start(&self.place);
    }

    /// The words before a command of the user's.
    fn user(&self) -> Vec<String> {
        let mut words: Vec<String> = ["setpriv", "--clear-groups"].map(str::to_owned).into();
        words.push(format!("--reuid={USER}"));
        words.push(format!("--regid={USER}"));
        words.extend(["--", "env"].map(str::to_owned));
        words.push(format!(
            "COREWISE_SYSTEM_DIR={}",
            self.place.runtime().display()
        ));
        words
    }
}

/// A folder of the user's.
fn users_place() -> Place {
    let place = Place::new();
    chown(place.path(), Some(USER), Some(USER)).unwrap();
    place
}

fn output(mut command: Command) -> Output {
    command.output().unwrap()
}

#[test]
fn a_users_run_is_managed_by_its_own_manager_within_what_roots_grants() {
    let Some((first, _, all)) = two_cpus_or_skip() else {
        return;
    };
    let Some(mut roots) = Roots::or_skip() else {
        return;
    };
    let place = users_place();
    let words = roots.user();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let running = Running::start(&place, "program", &words, &[]);
    let as_user = |args: &[&str]| output(place.command_under(&words, args));
    let program = until("the program to be managed", || {
        let status = as_user(&["status", "--json"]);
        let known = json(&status)["programs"][0].clone();
        known["claim"]["threads"].is_number().then_some(known)
    });
    let pid = pid_of(&program);
    all_on(pid, &all);
    let inner = pid_of(&programs(&roots.place, 1)[0]);
    assert_ne!(inner, pid);

    confine(&roots.place, inner, first);
    all_on(pid, &first.to_string());
    let shown = String::from_utf8(as_user(&["status"]).stdout).unwrap();
    let line = format!("within what the system's manager grants: CPUs {first},");
    assert!(shown.contains(&line), "{shown}");
    // By hand, and no further than that.
    let beyond = as_user(&["claim", &pid.to_string(), "--cpus", &all]);
    assert!(stderr(&beyond).contains("not the manager's to grant"));

    roots.child.kill().unwrap();
    roots.child.wait().unwrap();
    all_on(pid, &all);
    roots.restart();
    let again = pid_of(&programs(&roots.place, 1)[0]);
    assert_eq!(again, inner);
    confine(&roots.place, inner, first);
    all_on(pid, &first.to_string());
    running.ends_well();
    // The user's manager is gone with its last program, and from root's.
    programs(&roots.place, 0);
    until("the end of the user's manager", || {
        parent_of(inner).is_none().then_some(())
    });
}

#[test]
fn a_user_without_a_manager_sees_the_systems_and_cannot_end_it() {
    let Some(roots) = Roots::or_skip() else {
        return;
    };
    let place = users_place();
    let running = Running::start(&roots.place, "root", &[], &[]);
    programs(&roots.place, 1);
    // Where no folder is named, the usual ones count.
    let words = roots.user();
    let mut usual: Vec<&str> = words.iter().map(String::as_str).collect();
    let home = format!("XDG_RUNTIME_DIR={}", place.path().display());
    usual.extend(["-u", "COREWISE_RUNTIME_DIR", &home]);
    // Options of env come before its assignments.
    let at = usual.iter().position(|word| *word == "env").unwrap() + 1;
    usual[at..].rotate_right(3);
    let seen = output(place.command_under(&usual, &["status", "--json"]));
    let seen = json(&seen);
    assert_eq!(seen["policy"], "observe", "{seen}");
    assert_eq!(seen["manager"]["user"], 0);
    assert_eq!(
        seen["programs"],
        Value::Array(Vec::new()),
        "root's are root's"
    );
    let stop = output(place.command_under(&usual, &["manage", "--stop"]));
    assert!(stderr(&stop).contains("no manager runs in"), "{stop:?}");
    assert!(manager(&roots.place).is_some());
    running.ends_well();
}
