//! Detecting that other programs are at work, from a program's own times alone (Christmann, Hebisch, Weisbecker,
//! "Oversubscription of Computational Resources on Multicore Desktop Systems", MSEPT 2012, section 4).
//!
//! **Problem.** A fair scheduler gives a program of x threads beside r others `x / (r + x)` of the machine (Eq. 1):
//! with each thread more it is faster, although the machine is overloaded, at the others' cost.
//!
//! **Approach.** Where the program deals its work out in advance, all wait for its slowest thread. With one thread
//! more than there are CPUs left, two share a CPU, and the whole takes *longer* than with one less: an artefact at
//! `x = N − r + 1`. So the smallest number of threads at which that is seen tells r. Equations 2 to 6 say what the
//! time should be: [`Model::seconds`].
//!
//! What is looked for is not a time that rises: beside r = N − 1 others the model's does not, since one thread more,
//! at half of the speed, does half of the work. It is *x times the time*, the CPU time that the section would take if
//! each thread had a CPU: it stays the same while that is so, and doubles where two of them share one. Work that is
//! not parallel, or waits for memory, makes it grow, too, but then with the next thread nearly as much again.
//!
//! **Conditions.** The work is dealt out in advance (a static schedule) in pieces that are long beside the
//! scheduler's slices, and short beside the time in which it evens out what CPUs have to do; fewer threads of others
//! are busy than there are CPUs; the load is steady while the times are taken; times are taken for every number from
//! 1 to [`most_threads`], so this is for a phase of calibration ([`calibration`]).

pub mod calibration;

use serde::{Deserialize, Serialize};

/// The paper's model of `others` busy threads beside a program on `cpus` CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// N, at least 1.
    pub cpus: u32,
    /// r.
    pub others: u32,
}

impl Model {
    /// The least number of threads that run by turns on each CPU (Eq. 2).
    pub fn contention_min(self, threads: u32) -> u32 {
        ((self.others + threads) / self.cpus.max(1)).max(1)
    }

    /// The number of threads that at least one thread of the program shares its CPU with, itself included (Eq. 3).
    pub fn contention_max(self, threads: u32) -> u32 {
        (self.others + threads).div_ceil(self.cpus.max(1)).max(1)
    }

    /// CPUs' worth of time that `threads` threads are granted at that contention (Eq. 5), which lies between the two
    /// above (Eq. 4).
    pub fn granted(self, threads: u32, contention: u32) -> f64 {
        (f64::from(threads) / f64::from(contention.max(1))).min(f64::from(self.cpus))
    }

    /// The time of a parallel section of `work_seconds` CPU seconds, beside which `serial_seconds` are not shared
    /// (Eq. 6).
    pub fn seconds(
        self,
        threads: u32,
        contention: u32,
        work_seconds: f64,
        serial_seconds: f64,
    ) -> f64 {
        serial_seconds + work_seconds / self.granted(threads, contention)
    }

    /// The part of the machine's time that a program of `threads` threads gets where there are more threads than
    /// CPUs (Eq. 1).
    pub fn part(self, threads: u32) -> f64 {
        f64::from(threads) / f64::from(self.others + threads).max(1.0)
    }
}

/// What the times say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detected {
    /// The number of threads from which on two share a CPU. `None`: up to one more than there are CPUs none was found.
    pub artefact: Option<u32>,
    /// Threads of others that are busy; without an artefact nothing is known of them, and this is 0.
    pub others: u32,
    /// Threads with which the program uses what the others leave, and no more.
    pub threads: u32,
    /// By how much threads × time grows there, as a part of what the model expects, which is that it doubles. 0
    /// without an artefact.
    pub as_expected: f64,
}

/// Threads × time must grow by this part to count: less is noise. (The model expects 1.)
const GROWS: f64 = 0.3;

/// With the thread after it, it must grow by less than this part of what it would where nothing can be gained by
/// threads at all: then it is a step, and not a slope.
const STEP: f64 = 0.75;

/// The largest number of threads whose time [`detect`] looks at on `cpus` CPUs.
pub fn most_threads(cpus: u32) -> u32 {
    cpus.max(1) + 2
}

/// Finds the artefact in the times of a parallel section, in seconds, with 1, 2, 3 ... threads on `cpus` CPUs.
/// Numbers beyond [`most_threads`] are not looked at; the last one that is given cannot be told from a slope, and is
/// taken for a step.
pub fn detect(cpus: u32, seconds: &[f64]) -> Detected {
    let cpus = cpus.max(1);
    let whole = (1_u32..=most_threads(cpus)).zip(seconds);
    let whole: Vec<f64> = whole.map(|(x, seconds)| f64::from(x) * seconds).collect();
    let growth: Vec<f64> = whole.windows(2).map(|w| w[1] / w[0] - 1.0).collect();
    let mut found = (2_u32..=cpus + 1).zip(0..).filter_map(|(threads, at)| {
        let here = *growth.get(at)?;
        // Were threads of no use from here on, the next one would add as much work as this one, to more.
        let slope = here / (1.0 + here);
        let is_step = growth.get(at + 1).is_none_or(|next| *next < STEP * slope);
        (here > GROWS && is_step).then_some((threads, here))
    });
    let Some((artefact, as_expected)) = found.next() else {
        return Detected {
            artefact: None,
            others: 0,
            threads: cpus,
            as_expected: 0.0,
        };
    };
    Detected {
        artefact: Some(artefact),
        others: cpus + 1 - artefact,
        threads: artefact - 1,
        as_expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times as the model has them at the most contention.
    fn times(model: Model, most: u32) -> Vec<f64> {
        let time = |x| model.seconds(x, model.contention_max(x), 8.0, 0.1);
        (1..=most).map(time).collect()
    }

    #[test]
    fn equations_2_to_5_are_the_papers() {
        let beside_four = Model { cpus: 8, others: 4 };
        assert_eq!(
            (beside_four.contention_min(4), beside_four.contention_max(4)),
            (1, 1)
        );
        assert_eq!(
            (beside_four.contention_min(5), beside_four.contention_max(5)),
            (1, 2)
        );
        assert_eq!(
            (
                beside_four.contention_min(12),
                beside_four.contention_max(13)
            ),
            (2, 3)
        );
        assert_eq!(beside_four.granted(5, 2), 2.5);
        assert_eq!(beside_four.granted(40, 1), 8.0);
        assert_eq!(beside_four.part(4), 0.5);
        let alone = Model { cpus: 8, others: 0 };
        assert_eq!((alone.contention_min(0), alone.contention_max(8)), (1, 1));
    }

    #[test]
    fn the_artefact_tells_how_many_others_there_are() {
        for cpus in [2, 3, 8, 24] {
            for others in 0..cpus {
                let detected = detect(cpus, &times(Model { cpus, others }, 32));
                assert_eq!(
                    detected.artefact,
                    Some(cpus + 1 - others),
                    "beside {others}"
                );
                assert_eq!((detected.others, detected.threads), (others, cpus - others));
                assert!((0.7..1.1).contains(&detected.as_expected), "{detected:?}");
            }
        }
    }

    #[test]
    fn without_an_artefact_nobody_else_is_seen() {
        let smooth: Vec<f64> = (1..=16).map(|x| 8.0 / f64::from(x)).collect();
        let detected = detect(8, &smooth);
        assert_eq!((detected.artefact, detected.threads), (None, 8));
        assert_eq!(detect(8, &[]).artefact, None);
        assert_eq!(detect(0, &[1.0, 2.0]).artefact, Some(2));
    }

    #[test]
    fn work_that_is_not_parallel_is_no_artefact() {
        for serial in [0.5, 1.0, 4.0, 1000.0] {
            let times: Vec<f64> = (1..=16).map(|x| serial + 1.0 / f64::from(x)).collect();
            assert_eq!(detect(8, &times).artefact, None, "{serial}");
        }
    }

    #[test]
    fn memory_that_gives_no_more_is_no_artefact() {
        for enough in 1..8 {
            let times: Vec<f64> = (1..=16).map(|x| 1.0 / f64::from(x.min(enough))).collect();
            assert_eq!(detect(8, &times).artefact, None, "{enough}");
        }
    }

    #[test]
    fn a_scheduler_that_evens_half_of_it_out_does_not_hide_the_artefact() {
        for others in 0..8 {
            let model = Model { cpus: 8, others };
            let evened = |x| {
                let contention = f64::from(model.contention_max(x)).sqrt();
                contention / f64::from(x)
            };
            let times: Vec<f64> = (1..=10).map(evened).collect();
            assert_eq!(detect(8, &times).artefact, Some(9 - others));
        }
    }

    #[test]
    fn what_grows_beyond_the_cpus_is_not_looked_at() {
        let mut seconds: Vec<f64> = (1..=16).map(|x| 8.0 / f64::from(x)).collect();
        seconds[11] = 9.0;
        assert_eq!(detect(8, &seconds).artefact, None);
    }
}
