//! A claim that is a gang: its team's workers run at the same time, or not at all.
//!
//! The manager says on the claim page when the program runs (its *turn*; Schönherr, Lutz and Richling,
//! "Non-intrusive coscheduling for general purpose operating systems", 2012, do it in the kernel). Workers keep it
//! between units, by the clock, without a message for each switch. Nobody else stops them, so nothing can stay
//! stopped: when the manager is gone there is no turn.

use crate::shared::{Shared, lock};
use crate::sys;
use corewise_abi::message::{self, MAX_NAME, MOST_WEIGHT, ToManager, USUAL_WEIGHT, features};
use corewise_abi::turn::Turn;
use corewise_wire::Channel;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a program says of itself that is a gang ([`Claim::coschedule`](crate::Claim::coschedule)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang(pub(crate) message::Gang);

impl Gang {
    /// A gang of its own (an empty name), or together with all programs of this user that give the same name;
    /// `job/stage` is a gang within the gang `job`. Of a name longer than 64 bytes the rest is left out.
    pub fn named(name: &str) -> Gang {
        let mut end = name.len().min(MAX_NAME);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        Gang(message::Gang {
            name: name[..end].to_owned(),
            keeps_idle: false,
            weight: USUAL_WEIGHT,
        })
    }

    /// With this share of the time against other gangs: 1 to 10,000 (what is beyond counts as the nearest);
    /// 100 is usual.
    #[must_use]
    pub fn weighing(mut self, weight: u32) -> Gang {
        self.0.weight = weight.clamp(1, MOST_WEIGHT);
        self
    }

    /// CPUs that it does not use in its turns stay idle, so that nothing interferes with it.
    #[must_use]
    pub fn keeping_idle(mut self) -> Gang {
        self.0.keeps_idle = true;
        self
    }
}

/// What a claim's program has said of itself.
#[derive(Debug, Default)]
pub(crate) struct Coscheduling {
    asked: Mutex<Option<Gang>>,
    /// Whether there is one: what is looked at before each unit.
    is_gang: AtomicBool,
}

impl Coscheduling {
    /// Sets it; whether that is something else than before.
    pub(crate) fn set(&self, gang: Option<Gang>) -> bool {
        self.is_gang.store(gang.is_some(), Ordering::Relaxed);
        let mut asked = lock(&self.asked);
        let other = *asked != gang;
        *asked = gang;
        other
    }

    /// Says it to a manager with these feature bits, which has just welcomed the program.
    pub(crate) fn say_again(&self, channel: &Channel, manager: u64) {
        let gang = lock(&self.asked).clone();
        if manager & features::GANGS != 0
            && let Some(Gang(gang)) = gang
        {
            // A manager that is gone is noticed by the listener.
            let _ = channel.send(&ToManager::Gang(Some(gang)), &[]);
        }
    }

    #[inline]
    fn is_gang(&self) -> bool {
        self.is_gang.load(Ordering::Relaxed)
    }
}

/// One worker's knowledge of its program's turn.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    generation: Option<u64>,
    turn: Option<Turn>,
    /// Until then nothing changes, on the monotonic clock in nanoseconds.
    runs_until_ns: u64,
}

impl Turns {
    /// Waits until the program's turn has come. Where it is no gang this costs a load, where it has no turn or
    /// runs some 30 ns.
    #[inline]
    pub(crate) fn await_own(&mut self, shared: &Shared) {
        if shared.coscheduling.is_gang() {
            self.await_turn(shared);
        }
    }

    fn await_turn(&mut self, shared: &Shared) {
        let mut waited = false;
        loop {
            let look = shared.pages.look();
            if self.generation != Some(look.generation()) {
                self.generation = Some(look.generation());
                self.turn = look.page.turn().filter(Turn::is_valid);
                self.runs_until_ns = 0;
            }
            let (Some(turn), Some(now_ns)) = (&self.turn, now_ns()) else {
                return;
            };
            if now_ns < self.runs_until_ns {
                return;
            }
            // Before its epoch everything stays as it is.
            if turn.runs_at(now_ns).unwrap_or(!waited) {
                self.runs_until_ns = turn.next_change(now_ns);
                return;
            }
            waited = true;
            let left = Duration::from_nanos(turn.next_change(now_ns).saturating_sub(now_ns));
            shared.pages.wait(&look, Some(left));
        }
    }
}

fn now_ns() -> Option<u64> {
    u64::try_from(sys::monotonic()?.as_nanos()).ok()
}
