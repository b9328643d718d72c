//! What others use of the CPUs, before a program is started.

use crate::load;
use corewise_decide::search::fair_share;
use corewise_machine::{EffectiveCpus, Error};
use std::time::Duration;

/// How long to look at the machine before recalling: a recalled result should cost under 50 ms.
const LOOK_BEFORE_RECALL: Duration = Duration::from_millis(30);
/// How much longer before searching.
const LOOK_BEFORE_SEARCH: Duration = Duration::from_millis(70);

/// What others were seen to use.
pub(super) struct Seen {
    /// CPUs that others use.
    pub(super) others: f64,
    /// CPUs that the scheduler gives our scheduling group in the long run.
    pub(super) fair: f64,
    /// CPUs that were idle when the program was asked for; never none.
    pub(super) idle: Vec<u32>,
    /// Whether it was looked at for longer than before recalling.
    longer: bool,
}

impl Seen {
    /// Looks for 30 ms; gives the CPUs, too, the idlest first.
    ///
    /// # Errors
    /// When the machine cannot be read.
    pub(super) fn look(effective: &EffectiveCpus) -> Result<(Seen, Vec<u32>), Error> {
        let load = load::measure(&effective.cpus, LOOK_BEFORE_RECALL)?;
        let seen = Seen {
            others: load.others(),
            fair: fair_share(effective.count, &load.groups),
            idle: load.idle(),
            longer: false,
        };
        Ok((seen, load.idlest_first()))
    }

    /// Looks for another 70 ms, while the sensors are made ready; only once.
    pub(super) fn look_longer(&mut self, effective: &EffectiveCpus) {
        if std::mem::replace(&mut self.longer, true) {
            return;
        }
        let load = std::thread::scope(|scope| {
            scope.spawn(corewise_machine::program::prepare);
            load::measure(&effective.cpus, LOOK_BEFORE_SEARCH)
        });
        if let Ok(load) = load {
            let (short, long) = (
                LOOK_BEFORE_RECALL.as_secs_f64(),
                LOOK_BEFORE_SEARCH.as_secs_f64(),
            );
            let mean = |before: f64, now: f64| (before * short + now * long) / (short + long);
            self.others = mean(self.others, load.others());
            let fair = fair_share(effective.count, &load.groups);
            self.fair = mean(self.fair, fair);
        }
    }
}
