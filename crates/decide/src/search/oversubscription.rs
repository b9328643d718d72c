//! Detecting that other programs are at work, from a program's own times alone (Christmann, Hebisch, Weisbecker,
//! "Oversubscription of Computational Resources on Multicore Desktop Systems", MSEPT 2012, section 4).
//!
//! **Problem.** A fair scheduler gives a program of x threads beside r others `x / (r + x)` of the machine (Eq. 1):
//! with each thread more it is faster, although the machine is overloaded, at the others' cost.
//!
//! **Approach.** Where the program deals its work out in advance, all wait for its slowest thread. With one thread
//! more than there are CPUs left, two share a CPU, and the whole takes *longer* than with one less: an artefact at
//! `x = N − r + 1`. So the smallest number of threads at which the time rises tells r. Equations 2 to 6 say by how
//! much it should: [`Model::seconds`].
//!
//! **Conditions.** The work is dealt out in advance (a static schedule) in pieces that are long beside the
//! scheduler's slices; the load is steady while the times are taken; times are taken for every number from 1 on, so
//! this is for a phase of calibration.

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detected {
    /// The number of threads with which the machine is overloaded: the time rises from the number before to this
    /// one. `None`: it does not rise up to one more than there are CPUs.
    pub artefact: Option<u32>,
    /// Threads of others that are busy; at least so many where there is no artefact.
    pub others: u32,
    /// Threads with which the program uses what the others leave, and no more.
    pub threads: u32,
    /// By how much the time rises there over what the model expects of it, as a part of that: 1: as expected. 0
    /// without an artefact.
    pub as_expected: f64,
}

/// A time must rise by this part to count: less is noise. (The model expects two fifths or more.)
const RISES: f64 = 0.15;

/// Finds the artefact in the times of a parallel section, in seconds, with 1, 2, 3 ... threads on `cpus` CPUs.
/// Numbers beyond `cpus + 1` are not looked at.
pub fn detect(cpus: u32, seconds: &[f64]) -> Detected {
    let cpus = cpus.max(1);
    let pairs = seconds.windows(2).zip(2_u32..=cpus + 1);
    let rise = pairs
        .map(|(pair, threads)| (threads, pair[1] / pair[0] - 1.0))
        .find(|(_, rise)| *rise > RISES);
    let Some((artefact, rise)) = rise else {
        return Detected {
            artefact: None,
            others: 0,
            threads: cpus,
            as_expected: 0.0,
        };
    };
    let others = cpus + 1 - artefact;
    let model = Model { cpus, others };
    // Two share a CPU there, and none did with one thread less; what is not shared is not known, and left out.
    let expected = model.granted(artefact - 1, 1) / model.granted(artefact, 2) - 1.0;
    Detected {
        artefact: Some(artefact),
        others,
        threads: artefact - 1,
        as_expected: rise / expected.max(1e-9),
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
        for others in 0..7 {
            let model = Model { cpus: 8, others };
            let detected = detect(8, &times(model, 32));
            assert_eq!(detected.artefact, Some(9 - others));
            assert_eq!((detected.others, detected.threads), (others, 8 - others));
            assert!((0.7..1.01).contains(&detected.as_expected), "{detected:?}");
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
    fn what_rises_beyond_the_cpus_is_not_looked_at() {
        let mut seconds: Vec<f64> = (1..=16).map(|x| 8.0 / f64::from(x)).collect();
        seconds[11] = 9.0;
        assert_eq!(detect(8, &seconds).artefact, None);
    }
}
