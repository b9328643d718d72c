//! What is to be done when, to keep a turn. Pure.

use corewise_abi::turn::Turn;

/// While the program stands still, threads that have woken up are looked for at these times after its stop, in
/// nanoseconds, then after [`LOOK_NS`], and as long as none is found each time after twice as long. A look takes a CPU
/// from another gang, all of whose threads wait meanwhile.
const FIRST_LOOKS_NS: [u64; 2] = [500_000, 3_000_000];
const LOOK_NS: u64 = 10_000_000;
const LONGEST_LOOK_NS: u64 = 40_000_000;

/// Looking costs at most one part in so many of a CPU.
const LOOK_SHARE: u64 = 200;

/// Threads that could not be let go yet are tried again after this time, then after twice as long each time.
const FIRST_TRY_NS: u64 = 100_000;
const LONGEST_TRY_NS: u64 = 5_000_000;

/// A turn that begins later than this is no reason for a program to stand still until then.
const FAR_NS: u64 = 1_000_000_000;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Do {
    Nothing,
    /// The program is to stop. `since_ns`: since when, if its turn said so long before; not where the turn is new.
    Stop {
        since_ns: Option<u64>,
    },
    /// What has woken up is to be stopped.
    Look,
    /// The program, or what of it could not be reached before, is to go on.
    Go {
        since_ns: Option<u64>,
    },
}

/// How far the keeping has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Clockwork {
    state: State,
    /// The next change of the turn, as it was when it was asked for last, and the turn's period and epoch.
    planned: Option<(u64, u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All runs; but until this time it is not tried to be stopped.
    Runs { leave_until_ns: u64 },
    /// Some threads could not be let go yet.
    Goes { next_ns: u64, wait_ns: u64 },
    Stands {
        since_ns: u64,
        looks: usize,
        /// The time from a look to the next one.
        every_ns: u64,
        next_ns: u64,
    },
}

impl Default for State {
    fn default() -> State {
        State::Runs { leave_until_ns: 0 }
    }
}

impl Clockwork {
    /// What is due now.
    pub(super) fn due(&self, turn: Option<&Turn>, now_ns: u64) -> Do {
        let runs = self.should_run(turn, now_ns);
        let since_ns = self.since(turn, now_ns);
        match self.state {
            State::Runs { leave_until_ns } if !runs && now_ns >= leave_until_ns => {
                Do::Stop { since_ns }
            }
            State::Goes { .. } if !runs => Do::Stop { since_ns },
            State::Goes { next_ns, .. } if now_ns >= next_ns => Do::Go { since_ns: None },
            State::Stands { .. } if runs => Do::Go { since_ns },
            State::Stands { next_ns, .. } if now_ns >= next_ns => Do::Look,
            _ => Do::Nothing,
        }
    }

    /// When something may be due next; `None`: not before there is another turn.
    pub(super) fn next(&mut self, turn: Option<&Turn>, now_ns: u64) -> Option<u64> {
        let change = turn.map(|turn| turn.next_change(now_ns));
        self.planned = turn
            .zip(change)
            .map(|(turn, change)| (change, turn.period_ns, turn.epoch_ns));
        let own = match self.state {
            State::Runs { .. } => None,
            State::Goes { next_ns, .. } | State::Stands { next_ns, .. } => Some(next_ns),
        };
        [change, own].into_iter().flatten().min()
    }

    /// The program was stopped.
    pub(super) fn stopped(&mut self, now_ns: u64) {
        self.state = State::Stands {
            since_ns: now_ns,
            looks: 0,
            every_ns: LOOK_NS,
            next_ns: now_ns + FIRST_LOOKS_NS[0],
        };
    }

    /// It was looked for what has woken up, so many threads, which took so much CPU time.
    pub(super) fn looked(&mut self, now_ns: u64, found: u32, cost_ns: u64) {
        if let State::Stands {
            since_ns,
            looks,
            every_ns,
            ..
        } = self.state
        {
            let looks = looks + 1;
            let (next_ns, longer_ns) = match FIRST_LOOKS_NS.get(looks) {
                Some(after) => (since_ns + after, LOOK_NS),
                None if found > 0 => (now_ns + LOOK_NS, LOOK_NS),
                None => (now_ns + every_ns, (2 * every_ns).min(LONGEST_LOOK_NS)),
            };
            self.state = State::Stands {
                since_ns,
                looks,
                every_ns: longer_ns,
                next_ns: next_ns.max(now_ns + cost_ns * LOOK_SHARE),
            };
        }
    }

    /// The program was let go, but for so many threads.
    pub(super) fn gone(&mut self, now_ns: u64, awaited: u32) {
        let wait_ns = match self.state {
            State::Goes { wait_ns, .. } => (wait_ns * 2).min(LONGEST_TRY_NS),
            _ => FIRST_TRY_NS,
        };
        self.state = match awaited {
            0 => State::default(),
            _ => State::Goes {
                next_ns: now_ns + wait_ns,
                wait_ns,
            },
        };
    }

    /// The program cannot be stopped, and runs: until its next window has ended.
    pub(super) fn refused(&mut self, turn: Option<&Turn>, now_ns: u64) {
        self.state = State::Runs {
            leave_until_ns: turn.map_or(0, |turn| turn.next_change(now_ns)),
        };
    }

    /// Whether nothing of the program stands still, or is about to.
    pub(super) fn all_run(&self) -> bool {
        matches!(self.state, State::Runs { .. })
    }

    fn should_run(&self, turn: Option<&Turn>, now_ns: u64) -> bool {
        let Some(turn) = turn else { return true };
        match turn.runs_at(now_ns) {
            Some(runs) => runs,
            // As before, but not for long.
            None => !matches!(self.state, State::Stands { .. }) || turn.epoch_ns > now_ns + FAR_NS,
        }
    }

    /// Since when what is due is due, where that was planned.
    fn since(&self, turn: Option<&Turn>, now_ns: u64) -> Option<u64> {
        let (change_ns, period_ns, epoch_ns) = self.planned?;
        let same =
            turn.is_some_and(|turn| (turn.period_ns, turn.epoch_ns) == (period_ns, epoch_ns));
        Some(change_ns).filter(|change| same && *change <= now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_abi::turn::Window;

    const MS: u64 = 1_000_000;

    /// Runs in the first 20 of every 100 ms.
    fn turn() -> Turn {
        Turn {
            epoch_ns: 1_000 * MS,
            period_ns: 100 * MS,
            windows: vec![Window {
                begin_ns: 0,
                end_ns: 20 * MS,
            }],
        }
    }

    #[test]
    fn a_program_without_a_turn_runs_and_nothing_is_ever_due() {
        let mut clockwork = Clockwork::default();
        assert_eq!(clockwork.due(None, 5), Do::Nothing);
        assert_eq!(clockwork.next(None, 5), None);
    }

    #[test]
    fn it_is_stopped_at_the_end_of_its_window_and_let_go_at_the_next() {
        let mut clockwork = Clockwork::default();
        let turn = turn();
        let turn = Some(&turn);
        assert_eq!(clockwork.next(turn, 0), Some(1_000 * MS));
        assert_eq!(clockwork.due(turn, 1_000 * MS), Do::Nothing);
        assert_eq!(clockwork.next(turn, 1_000 * MS), Some(1_020 * MS));
        let since_ns = Some(1_020 * MS);
        assert_eq!(clockwork.due(turn, 1_020 * MS + 7), Do::Stop { since_ns });
        clockwork.stopped(1_020 * MS + 7);
        assert_eq!(clockwork.due(turn, 1_020 * MS + 8), Do::Nothing);
        let mut now = 1_020 * MS + 8;
        let mut looks = 0;
        let gone = loop {
            now = clockwork.next(turn, now).unwrap();
            match clockwork.due(turn, now) {
                Do::Look => clockwork.looked(now, 0, 1_000),
                other => break other,
            }
            looks += 1;
        };
        let since_ns = Some(1_100 * MS);
        assert_eq!((now, gone), (1_100 * MS, Do::Go { since_ns }));
        // At 0.5, 3, 13, 33, and 73 ms.
        assert_eq!(looks, 5);
        clockwork.gone(now, 0);
        assert_eq!(clockwork.next(turn, now), Some(1_120 * MS));
    }

    #[test]
    fn looks_that_cost_much_are_rare() {
        let mut clockwork = Clockwork::default();
        clockwork.stopped(0);
        clockwork.looked(MS, 0, MS);
        assert_eq!(clockwork.next(None, MS), Some(201 * MS));
    }

    #[test]
    fn where_threads_wake_up_it_is_looked_often() {
        let mut clockwork = Clockwork::default();
        clockwork.stopped(0);
        clockwork.looked(MS, 0, 0);
        clockwork.looked(3 * MS, 0, 0);
        assert_eq!(clockwork.next(None, 3 * MS), Some(13 * MS));
        clockwork.looked(13 * MS, 0, 0);
        clockwork.looked(33 * MS, 1, 0);
        assert_eq!(clockwork.next(None, 33 * MS), Some(43 * MS));
        clockwork.looked(43 * MS, 0, 0);
        assert_eq!(clockwork.next(None, 43 * MS), Some(53 * MS));
    }

    #[test]
    fn a_program_that_has_lost_its_turn_goes_on_at_once() {
        let mut clockwork = Clockwork::default();
        clockwork.stopped(1_030 * MS);
        let since_ns = None;
        assert_eq!(clockwork.due(None, 1_031 * MS), Do::Go { since_ns });
    }

    #[test]
    fn until_a_new_turn_begins_all_stays_as_it_is_but_not_for_long() {
        let mut clockwork = Clockwork::default();
        let usual = turn();
        let turn = Some(&usual);
        assert_eq!(clockwork.due(turn, 999 * MS), Do::Nothing);
        clockwork.stopped(998 * MS);
        clockwork.looked(998 * MS, 0, 0);
        clockwork.looked(998 * MS, 0, 0);
        assert_eq!(clockwork.due(turn, 999 * MS), Do::Nothing);
        clockwork.state = State::Stands {
            since_ns: 0,
            looks: 9,
            every_ns: 0,
            next_ns: u64::MAX,
        };
        let far = Turn {
            epoch_ns: 5_000 * MS,
            ..usual.clone()
        };
        assert!(matches!(clockwork.due(Some(&far), 999 * MS), Do::Go { .. }));
    }

    #[test]
    fn what_could_not_be_let_go_is_tried_again_soon() {
        let mut clockwork = Clockwork::default();
        let turn = turn();
        let turn = Some(&turn);
        let mut now = 1_100 * MS;
        clockwork.stopped(now - 9 * MS);
        for expected in [100_000, 200_000, 400_000] {
            clockwork.gone(now, 1);
            assert!(!clockwork.all_run());
            assert_eq!(clockwork.next(turn, now), Some(now + expected));
            now += expected;
            assert_eq!(clockwork.due(turn, now), Do::Go { since_ns: None });
        }
        clockwork.gone(now, 0);
        assert_eq!(clockwork.due(turn, now), Do::Nothing);
        assert!(clockwork.all_run());
    }

    #[test]
    fn a_program_that_cannot_be_stopped_is_left_until_its_next_window_has_ended() {
        let mut clockwork = Clockwork::default();
        let turn = turn();
        let turn = Some(&turn);
        clockwork.refused(turn, 1_020 * MS);
        assert_eq!(clockwork.due(turn, 1_050 * MS), Do::Nothing);
        assert_eq!(clockwork.due(turn, 1_110 * MS), Do::Nothing);
        assert!(matches!(clockwork.due(turn, 1_120 * MS), Do::Stop { .. }));
    }
}
