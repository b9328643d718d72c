//! What a program uses that is a manager itself: a user's within root's. Its own process hardly does
//! anything; the processes that it manages do, and are not below it.
//!
//! So it says which they are, and we read their clocks ourselves. It is believed no further than that:
//! only processes of its own user count, none that speaks for itself here, and none twice.

use crate::admit;
use corewise_machine::program::{Moment, TreeClock};
use std::collections::BTreeMap;

/// Processes of one manager that are followed. Of more, the first ones.
pub(crate) const MOST_MEMBERS: usize = 256;

/// A new list is looked at so often at most, in nanoseconds: whose processes they are has to be read.
const RENEWED_EVERY_NS: u64 = 50_000_000;

/// The programs of a manager that is a program here.
#[derive(Debug)]
pub(crate) struct Members {
    /// Whose processes count.
    uid: u32,
    /// Whether we number processes as it does.
    readable: bool,
    /// The last list that was heard, until it is looked at.
    heard: Option<Vec<i32>>,
    renewed_ns: u64,
    members: BTreeMap<i32, Member>,
    /// What all have used since they were named, in nanoseconds; it never goes back.
    used_ns: u64,
}

#[derive(Debug, Default)]
struct Member {
    clock: TreeClock,
    /// What it had used when it was read last; `None` before.
    seen_ns: Option<u64>,
}

impl Members {
    /// Those of a manager of user `uid`. Of one in a container (not `readable`), which numbers processes in
    /// its own way, nothing can be read.
    pub(crate) fn of(uid: u32, readable: bool) -> Members {
        Members {
            uid,
            readable,
            heard: None,
            renewed_ns: 0,
            members: BTreeMap::new(),
            used_ns: 0,
        }
    }

    /// The manager says who they are now. Costs nothing yet.
    pub(crate) fn are(&mut self, mut pids: Vec<i32>) {
        pids.truncate(MOST_MEMBERS);
        self.heard = Some(pids);
    }

    /// Their processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.members.keys().copied()
    }

    /// CPU time that they and all below them have used since they were named, in nanoseconds, without the
    /// processes that are apart. `None`: nobody knows. Costs what [`TreeClock::read`] does for each.
    pub(crate) fn read(&mut self, moment: Moment<'_>) -> Option<u64> {
        if !self.readable {
            return None;
        }
        if moment.now_ns >= self.renewed_ns.saturating_add(RENEWED_EVERY_NS)
            && let Some(pids) = self.heard.take()
        {
            self.renewed_ns = moment.now_ns;
            self.renew(pids);
        }
        let mut others = moment.apart.clone();
        others.extend(self.members.keys());
        let of_trees = Moment {
            apart: &others,
            ..moment
        };
        for (pid, member) in &mut self.members {
            if moment.apart.contains(pid) {
                continue;
            }
            let Some(now) = member.clock.read(*pid, of_trees) else {
                continue;
            };
            let before = member.seen_ns.replace(now).unwrap_or(now);
            self.used_ns += now.saturating_sub(before);
        }
        Some(self.used_ns)
    }

    fn renew(&mut self, pids: Vec<i32>) {
        let mut known = std::mem::take(&mut self.members);
        for pid in pids {
            let member = known.remove(&pid);
            let member = member.or_else(|| self.may_name(pid).then(Member::default));
            if let Some(member) = member {
                self.members.insert(pid, member);
            }
        }
    }

    /// Root may name everyone's.
    fn may_name(&self, pid: i32) -> bool {
        let user = admit::user_of(pid);
        user.is_some_and(|user| self.uid == 0 || user == self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::{Child, Command, Stdio};

    const STEP_NS: u64 = RENEWED_EVERY_NS;

    /// A shell that is busy until it is killed.
    struct Busy(Child);

    impl Busy {
        fn start() -> Busy {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]);
            Busy(shell.stdout(Stdio::null()).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            i32::try_from(self.0.id()).unwrap()
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn at(apart: &BTreeSet<i32>, now_ns: u64) -> Moment<'_> {
        Moment {
            apart,
            now_ns,
            started: None,
        }
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Reads until something was used; the time of the last reading.
    fn until_used(members: &mut Members, apart: &BTreeSet<i32>, mut now_ns: u64) -> u64 {
        let before = members.read(at(apart, now_ns)).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while members.read(at(apart, now_ns)).unwrap() < before + 20_000_000 {
            assert!(std::time::Instant::now() < end, "nothing is used");
            std::thread::sleep(std::time::Duration::from_millis(5));
            now_ns += STEP_NS;
        }
        now_ns
    }

    #[test]
    fn what_is_used_by_those_who_are_named_counts_from_then_on() {
        let (one, other) = (Busy::start(), Busy::start());
        let nobody = BTreeSet::new();
        let mut members = Members::of(own_uid(), true);
        assert_eq!(members.read(at(&nobody, STEP_NS)), Some(0));
        members.are(vec![one.pid()]);
        let now = until_used(&mut members, &nobody, 2 * STEP_NS);
        let used = members.read(at(&nobody, now));
        // One leaves, another comes: what was used stays, and nothing jumps.
        members.are(vec![other.pid()]);
        let first = members.read(at(&nobody, now + STEP_NS));
        assert_eq!(first, used, "from its naming on");
        until_used(&mut members, &nobody, now + 2 * STEP_NS);
    }

    #[test]
    fn who_speaks_for_itself_and_who_is_gone_is_not_counted() {
        let busy = Busy::start();
        let apart = BTreeSet::from([busy.pid()]);
        let mut members = Members::of(own_uid(), true);
        members.are(vec![busy.pid(), i32::MAX, -1, 0]);
        for step in 1..20 {
            assert_eq!(members.read(at(&apart, step * STEP_NS)), Some(0));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    #[test]
    fn processes_of_another_user_are_not_counted() {
        let busy = Busy::start();
        let mut members = Members::of(own_uid() + 1, true);
        members.are(vec![busy.pid(), 1]);
        members.read(at(&BTreeSet::new(), STEP_NS));
        assert!(members.members.is_empty());
    }

    #[test]
    fn a_long_list_is_cut() {
        let mut members = Members::of(0, true);
        members.are((1..100_000).collect());
        assert_eq!(members.heard.as_ref().unwrap().len(), MOST_MEMBERS);
    }
}
