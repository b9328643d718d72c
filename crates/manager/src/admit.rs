//! Who may join, and for which process.

use corewise_wire::Peer;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// Parents that are looked at to find whether a process descends from another.
const MOST_GENERATIONS: usize = 64;

/// A program that may join.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Its process, as we number it.
    pub(crate) pid: i32,
    /// Readable when the process has ended. `None` where the kernel has no such thing: then the
    /// connection's end says so.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Whether it is the sender itself, not a process beside it.
    pub(crate) itself: bool,
}

/// Whether a manager of user `own` talks to a peer of user `uid`: root's to everyone, a user's to that
/// user and root.
pub(crate) fn is_served(own: u32, uid: u32) -> bool {
    own == 0 || uid == own || uid == 0
}

/// Checks that a peer may join for `pid` (as the peer numbers it): itself, or a descendant of it that
/// belongs to the same user. Costs a system call for itself, some ten reads in `/proc` else.
///
/// # Errors
/// Why not, for people.
pub(crate) fn admit(peer: Peer, pid: i32) -> Result<Admitted, String> {
    if peer.pid <= 0 {
        return Err("its process cannot be seen from the manager's PID namespace".to_owned());
    }
    if pid <= 0 {
        return Err(format!("{pid} is no process"));
    }
    // Looked at only where it is needed: most join for themselves, by the number that we know.
    let sender = if pid == peer.pid {
        None
    } else {
        process(peer.pid)
    };
    // In a PID namespace of its own (a container) it knows itself by another number.
    let itself = pid == peer.pid
        || sender
            .as_ref()
            .is_some_and(|s| s.numbers.len() > 1 && s.numbers.last() == Some(&pid));
    let pid = if itself { peer.pid } else { pid };
    // Opened before the checks: what they find then is about the process that is watched.
    let pidfd = match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(pidfd)) => Some(pidfd),
        Some(Err(rustix::io::Errno::SRCH)) | None => return Err(format!("no process {pid}")),
        Some(Err(_)) => None,
    };
    let own = rustix::process::geteuid().as_raw();
    if itself && peer.uid != own && peer.uid != 0 {
        // A connection can be handed on, and the number of the process that made it be given to somebody
        // else's meanwhile, on which a policy of root's might act.
        let found = process(pid).ok_or_else(|| format!("process {pid} cannot be seen"))?;
        if found.uid != peer.uid {
            return Err(format!("process {pid} belongs to another user"));
        }
    }
    if !itself {
        let child = process(pid).ok_or_else(|| format!("process {pid} cannot be seen"))?;
        if sender.is_none_or(|s| s.numbers.len() > 1) {
            return Err("only itself can join from another PID namespace".to_owned());
        }
        if child.uid != peer.uid && peer.uid != 0 {
            return Err(format!("process {pid} belongs to another user"));
        }
        if !descends(&child, peer.pid) {
            return Err(format!(
                "process {pid} is neither the sender nor a descendant of it"
            ));
        }
    }
    Ok(Admitted { pid, pidfd, itself })
}

/// The real user of a process; `None` if it is gone. Costs some 10 µs.
pub(crate) fn user_of(pid: i32) -> Option<u32> {
    Some(process(pid)?.uid)
}

/// Whether a process numbers processes as we do; not if it lives in a PID namespace of its own, or is
/// gone.
pub(crate) fn numbers_as_we(pid: i32) -> bool {
    process(pid).is_some_and(|found| found.numbers.len() <= 1)
}

/// What `/proc` says of a process.
struct Process {
    uid: u32,
    parent: i32,
    /// Its numbers, from our PID namespace's to its own.
    numbers: Vec<i32>,
}

fn process(pid: i32) -> Option<Process> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse(status: &str) -> Option<Process> {
    // The name comes first and may contain anything but a line's end.
    let field = |name: &str| {
        status
            .lines()
            .skip(1)
            .find_map(|line| line.strip_prefix(name))
            .map(str::split_ascii_whitespace)
    };
    Some(Process {
        // Real, effective, saved, file system: what counts for signals and tracing is the real one.
        uid: field("Uid:")?.next()?.parse().ok()?,
        parent: field("PPid:")?.next()?.parse().ok()?,
        numbers: field("NSpid:")
            .map(|numbers| numbers.filter_map(|n| n.parse().ok()).collect())
            .unwrap_or_default(),
    })
}

fn descends(child: &Process, ancestor: i32) -> bool {
    let mut parent = child.parent;
    for _ in 0..MOST_GENERATIONS {
        if parent == ancestor {
            return true;
        }
        if parent <= 1 {
            return false;
        }
        match process(parent) {
            Some(found) => parent = found.parent,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn own() -> Peer {
        Peer {
            pid: i32::try_from(std::process::id()).unwrap(),
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    #[test]
    fn a_process_joins_itself() {
        let admitted = admit(own(), own().pid).unwrap();
        assert!(admitted.itself);
        assert_eq!(admitted.pid, own().pid);
        assert!(admitted.pidfd.is_some());
    }

    #[test]
    fn a_child_may_be_joined_for_and_a_parent_may_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let admitted = admit(own(), pid).unwrap();
        assert!(!admitted.itself);
        let from_child = Peer { pid, ..own() };
        let refused = admit(from_child, own().pid).unwrap_err();
        assert!(refused.contains("neither"), "{refused}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(admit(own(), pid).is_err());
    }

    #[test]
    fn a_number_that_is_another_users_process_by_now_is_refused() {
        let other = Peer {
            uid: own().uid + 1,
            ..own()
        };
        let refused = admit(other, other.pid).unwrap_err();
        assert!(refused.contains("another user"), "{refused}");
    }

    #[test]
    fn numbers_that_are_no_process_are_refused() {
        for pid in [0, -1, i32::MIN, i32::MAX] {
            assert!(admit(own(), pid).is_err(), "{pid}");
        }
        assert!(admit(Peer { pid: 0, ..own() }, own().pid).is_err());
    }

    #[test]
    fn a_childs_name_cannot_lie_about_its_user() {
        let text = "Name:\tUid:\t0\nUmask:\t0022\nPPid:\t7\nUid:\t1000\t1000\t1000\t1000\n";
        let found = parse(text).unwrap();
        assert_eq!((found.uid, found.parent), (1000, 7));
        assert!(found.numbers.is_empty());
    }

    #[test]
    fn a_users_manager_serves_its_user_and_root() {
        assert!(is_served(1000, 1000) && is_served(1000, 0));
        assert!(!is_served(1000, 1001));
        assert!(is_served(0, 1001));
    }
}
