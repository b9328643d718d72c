//! What came of keeping turns.

use corewise_abi::message::TurnsBy;
use corewise_machine::control::turns::{Gone, Stopped};
use serde::Serialize;

/// Switches whose lateness is kept for the median: the last ones.
const KEPT: usize = 1_024;

/// What came of a program's being a gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Turns {
    /// The set that it belongs to; empty: one of its own.
    pub name: String,
    /// Nobody had said that it is a gang: it was found to be one.
    pub found: bool,
    /// By what it was stopped and continued, last; `None`: by nothing, it ran always.
    pub means: Option<&'static str>,
    /// Why it could not be stopped, at first or at times.
    pub why_not: Option<String>,
    /// Stops and continuations at the edges of its turns.
    pub switches: u64,
    /// How late half of them were at most, in nanoseconds: from the edge of the turn until the last thread stood
    /// still, or the first went on. Of the last 1,024.
    pub late_ns_median: u64,
    /// The latest of all.
    pub late_ns_worst: u64,
    /// How long stopping all threads took, in half of the cases at most, in nanoseconds. Of the last 1,024.
    pub stop_ns_median: u64,
    /// The longest of all.
    pub stop_ns_worst: u64,
    /// Stops that could not be made, because somebody else traced the program, or the like.
    pub refused: u64,
    /// CPU time that keeping the turns took, in nanoseconds.
    pub cpu_ns: u64,
    /// How urgently the keeper of its turns was scheduled.
    pub keeper: &'static str,
}

/// The same while it grows.
#[derive(Debug, Default)]
pub(super) struct Account {
    turns: Turns,
    late: Last,
    stops: Last,
}

impl Account {
    pub(super) fn hurried(&mut self, how: &'static str) {
        self.turns.keeper = how;
    }

    /// By other means than at first from now on.
    pub(super) fn means(&mut self, means: &'static str) {
        self.turns.means = Some(means);
    }

    pub(super) fn stopped(&mut self, since_ns: Option<u64>, stopped: &Stopped) {
        if stopped.threads == 0 {
            return;
        }
        self.stops
            .push(stopped.last_ns.saturating_sub(stopped.began_ns));
        self.switched(since_ns, stopped.last_ns);
    }

    pub(super) fn gone(&mut self, since_ns: Option<u64>, gone: &Gone) {
        if gone.threads > 0 {
            self.switched(since_ns, gone.first_ns);
        }
    }

    /// How long stopping took in half of the cases at most, in nanoseconds.
    pub(super) fn stop_ns(&self) -> u64 {
        self.stops.median()
    }

    pub(super) fn refused(&mut self, why: String) {
        self.turns.refused += 1;
        self.turns.why_not = Some(why);
    }

    pub(super) fn used(&mut self, cpu_ns: u64) {
        self.turns.cpu_ns = cpu_ns;
    }

    /// One that was not planned, as when the turn is new, has no edge to be late for.
    fn switched(&mut self, since_ns: Option<u64>, at_ns: u64) {
        self.turns.switches += 1;
        if let Some(since) = since_ns {
            self.late.push(at_ns.saturating_sub(since));
        }
    }

    /// By what the program is stopped now, which was these `means` at first.
    pub(super) fn by(&self, means: Result<&'static str, String>) -> TurnsBy {
        let (means, why_not) = self.means_now(means);
        TurnsBy {
            means: means.map(str::to_owned),
            why_not,
        }
    }

    fn means_now(
        &self,
        means: Result<&'static str, String>,
    ) -> (Option<&'static str>, Option<String>) {
        match means {
            Ok(means) => (self.turns.means.or(Some(means)), self.turns.why_not.clone()),
            Err(why) => (None, Some(why)),
        }
    }

    /// What there is to say.
    pub(super) fn turns(&self, name: &str, means: Result<&'static str, String>) -> Turns {
        let (means, why_not) = self.means_now(means);
        Turns {
            name: name.to_owned(),
            means,
            why_not,
            late_ns_median: self.late.median(),
            late_ns_worst: self.late.worst,
            stop_ns_median: self.stops.median(),
            stop_ns_worst: self.stops.worst,
            ..self.turns.clone()
        }
    }
}

/// The last values of many, and the greatest of all.
#[derive(Debug, Default)]
struct Last {
    values: Vec<u64>,
    next: usize,
    worst: u64,
}

impl Last {
    fn push(&mut self, value: u64) {
        self.worst = self.worst.max(value);
        match self.values.get_mut(self.next) {
            Some(place) => *place = value,
            None => self.values.push(value),
        }
        self.next = (self.next + 1) % KEPT;
    }

    fn median(&self) -> u64 {
        let mut sorted = self.values.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(threads: u32, last_ns: u64) -> Stopped {
        Stopped {
            threads,
            began_ns: 110,
            last_ns,
            ..Stopped::default()
        }
    }

    #[test]
    fn the_median_forgets_and_the_worst_does_not() {
        let mut account = Account::default();
        account.stopped(Some(100), &stopped(1, 900));
        for _ in 0..KEPT {
            account.stopped(Some(100), &stopped(1, 150));
        }
        let turns = account.turns("", Ok("ptrace"));
        assert_eq!((turns.late_ns_median, turns.late_ns_worst), (50, 800));
        assert_eq!((turns.stop_ns_median, turns.stop_ns_worst), (40, 790));
        assert_eq!(turns.switches, 1 + KEPT as u64);
    }

    #[test]
    fn what_stopped_nobody_is_no_switch() {
        let mut account = Account::default();
        account.stopped(Some(100), &stopped(0, 110));
        account.gone(None, &Gone::default());
        assert_eq!(account.turns("a", Ok("ptrace")).switches, 0);
        let turns = account.turns("a", Err("no".to_owned()));
        assert_eq!((turns.means, turns.why_not), (None, Some("no".to_owned())));
    }
}
