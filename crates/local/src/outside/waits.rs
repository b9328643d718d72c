//! How a program's threads wait for each other: how many of them hardly sleep, and, where CPUs are short, which part
//! of their time they spend in loops that wait. By that the manager knows whether turns are good for a gang, and
//! which programs are gangs without having said so.
//!
//! [`Awake`] counts threads. Loops are looked for, by samples, only while threads that hardly sleep wait for CPUs in a
//! program whose number of threads cannot be changed; ever more seldom where there are none.

mod spinning;

use super::turning::Turning;
use super::turns::Keeper;
use corewise_abi::message::{ToManager, Waits, features};
use corewise_abi::turn::Turn;
use corewise_decide::gang::{Awake, LOOK_OFTEN_NS};
use corewise_decide::reading::ProgramReading;
use spinning::Spinning;
use std::time::{Duration, Instant};

/// A program whose loops are being looked for is looked at so often.
const OFTEN: Duration = Duration::from_nanos(LOOK_OFTEN_NS);

/// What has changed a little is said again so often at most.
const AGAIN: Duration = Duration::from_secs(1);

/// From this part of the time on that threads wait for CPUs, CPUs are short.
const SHORT: f64 = 0.1;

/// What is seen of one program's waiting, and what one manager was told of it.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    turning: &'a Turning,
    awake: Awake,
    spinning: Spinning,
    hears: bool,
    said: Option<(Waits, Instant)>,
}

impl<'a> Waiting<'a> {
    /// Of a program whose turns may be kept by `turning`, with a manager of these feature bits.
    pub(super) fn new(pid: i32, turning: &'a Turning, manager: u64) -> Waiting<'a> {
        let hears = manager & features::WAITS != 0;
        Waiting {
            turning,
            awake: Awake::default(),
            spinning: match turning.may_be_found() && hears {
                true => Spinning::of(pid),
                false => Spinning::never(),
            },
            hears,
            said: None,
        }
    }

    /// To another manager nothing has been said yet.
    pub(super) fn told_nobody(&mut self, manager: u64) {
        self.hears = manager & features::WAITS != 0;
        self.said = None;
    }

    /// Takes in what was read of the program, which has had this turn, and cannot change its number of threads if
    /// it is `rigid`.
    pub(super) fn look(&mut self, reading: &ProgramReading, turn: Option<&Turn>, rigid: bool) {
        // Whoever comes last out of its turn is seen to wait for a CPU then.
        let counted = turn.filter(|_| !self.comes_last());
        let waited = self.awake.read(reading, counted);
        let short = waited.is_some_and(|part| part >= SHORT);
        let now = Instant::now();
        let worth_it = short && rigid && turn.is_none() && self.awake.threads() >= Some(2);
        self.spinning.look(now, worth_it);
    }

    /// Whether the program comes last out of its turn, and does not stand still.
    pub(super) fn comes_last(&self) -> bool {
        let keeper = self.turning.keeper();
        keeper.is_some_and(Keeper::comes_last)
    }

    /// The threads that hardly sleep, as far as is known.
    pub(super) fn awake(&self) -> &[i32] {
        self.awake.which()
    }

    /// The next look is due at the latest after this time.
    pub(super) fn look_within(&self) -> Option<Duration> {
        match self.hears && self.turning.keeper().is_some() {
            true => Some(Duration::from_nanos(self.awake.look_within_ns())),
            false => self.spinning.is_looking().then_some(OFTEN),
        }
    }

    /// Whether somebody should be there to keep turns, and is not yet.
    pub(super) fn wants_a_keeper(&self) -> bool {
        self.spinning.is_seen() && !self.turning.is_started()
    }

    /// What is to be said: nothing unless it is news, and somebody keeps turns.
    pub(super) fn news(&mut self) -> Option<ToManager> {
        let keeper = self.turning.keeper().filter(|_| self.hears)?;
        let spinning = self.spinning.thousandths();
        if self.turning.asked().is_none() && spinning.is_none() {
            return None;
        }
        let now = Waits {
            // As long as nothing is known it is left to Linux: many programs begin with a single thread.
            awake: self.awake.threads().unwrap_or(0),
            spinning,
            switch_ns: u32::try_from(keeper.switch_ns()).unwrap_or(u32::MAX),
        };
        let time = Instant::now();
        let news = self.said.is_none_or(|(said, at)| {
            matters(&said, &now)
                || differs(&said, &now) && time.saturating_duration_since(at) >= AGAIN
        });
        news.then(|| {
            self.said = Some((now, time));
            ToManager::Waits(now)
        })
    }
}

/// Whether the manager may decide otherwise by what is seen now.
fn matters(said: &Waits, now: &Waits) -> bool {
    (said.awake < 2) != (now.awake < 2) || said.spinning.is_some() != now.spinning.is_some()
}

/// Whether there is any difference worth a message.
fn differs(said: &Waits, now: &Waits) -> bool {
    let more = |a: u32, b: u32| a.abs_diff(b) > a / 4;
    said.awake != now.awake || said.spinning != now.spinning || more(said.switch_ns, now.switch_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: Waits = Waits {
        awake: 2,
        spinning: None,
        switch_ns: 100_000,
    };

    #[test]
    fn what_may_change_a_decision_matters_and_what_merely_drifts_does_not() {
        let asleep = Waits { awake: 1, ..SAID };
        assert!(matters(&SAID, &asleep));
        let more = Waits { awake: 3, ..SAID };
        assert!(!matters(&SAID, &more) && differs(&SAID, &more));
        let slower = Waits {
            switch_ns: 110_000,
            ..SAID
        };
        assert!(!matters(&SAID, &slower) && !differs(&SAID, &slower));
    }
}
