//! A search over later runs: which number of threads the next whole run shall have.
//!
//! **Problem.** A search before the run looks at windows. How the end of a run deals out what is left, what its
//! beginning costs, and whether work that looks useful is, only whole runs show. Programs are run again and again,
//! so that another number can be tried in a later run; but that run is the user's own, and may take longer.
//!
//! **Approach.** Runs go with the best number known. Now and then one tries another, at which something can be won:
//!
//! - fewer threads, where threads wait for each other: an eighth less first, then in the middle between two that
//!   were tried;
//! - more threads up to the CPUs, where whole runs leave CPUs idle, in the same steps; beyond a number that is as
//!   fast as the best one, steps are longer;
//! - one thread for each CPU, where a search found more;
//! - more threads than CPUs, where windows show that all CPUs are at useful work, and whole runs leave CPUs idle all
//!   the same: what is left at the end is too coarse. Then so many that each CPU has as many as every other (twice,
//!   three times the CPUs), since any number between deals them out unevenly again.
//!
//! Each number is tried once. It is kept if it is faster; then later runs confirm it, or lead back.
//!
//! **What it may cost.** For each number there is a presumption how much longer a run might take at worst. It is tried
//! only when what trials have lost so far and this together are at most [`PART`] of the time of all runs: a trial of
//! 14 % risk comes after the seventh run at the earliest. Where a trial takes still longer than presumed, no other
//! follows until that is made up for. So n runs take at most `1 + PART` times as long as they would have with the
//! best number known before each, plus what one single trial lost beyond its presumption.
//!
//! **Which runs count.** A trial is compared with runs of the same work that nothing disturbed; the host says which
//! these are ([`Run::comparable`]). Where such runs differ among themselves by more than a tenth, nothing is tried.

mod probe;

pub use probe::Once;

use serde::{Deserialize, Serialize};

/// Trials may lose this part of the time of all runs.
pub const PART: f64 = 0.02;

/// Where times of the same number differ by more than this part of their median, times say too little.
const SPREAD: f64 = 0.1;

/// Another number must be faster by this part.
const MARGIN: f64 = 0.01;

/// What cannot win so much, as a part of the time, is not tried.
const WORTH: f64 = 0.03;

/// Runs of the best number that must be known before another one is tried, and that lie between two trials.
const RUNS_BETWEEN: u32 = 2;

/// Times kept of each number; the oldest go first.
const TIMES: usize = 5;

/// Numbers kept; those farthest from the best go first.
const NUMBERS: usize = 24;

/// The first step is this part of the number.
const STEP: u32 = 8;

/// More threads than CPUs, as many on each, are presumed to take at most so much longer.
const BEYOND_RISK: f64 = 0.25;

/// At most so many threads for each CPU (Thread Reinforcer's Tmax).
const MOST_PER_CPU: u32 = 3;

/// From here on a window's CPUs were all at useful work, as a part of the CPUs.
const FULL: f64 = 0.9;

/// Attempts to time a number; then it is given up.
const ATTEMPTS: u32 = 2;

/// What a search before the run has found, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The number that it chose.
    pub threads: u32,
    /// Effective CPUs.
    pub cpus: f64,
    /// Smallest number that may be chosen, at least 1.
    pub min: u32,
    /// Largest number that may be chosen.
    pub max: u32,
    /// CPUs at useful work in the window of the chosen number.
    pub useful: f64,
    /// Whether threads were seen to wait for each other in a window, in loops or asleep.
    pub waits: bool,
    /// Whether waiting in loops was seen: threads that spin for each other need a CPU each.
    pub spins: bool,
    /// What a probe takes, in seconds, the program's start-up included: one is made before a number's first run.
    pub probe_seconds: f64,
}

/// A whole run that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// With how many threads.
    pub threads: u32,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// CPUs that it used on average (1.0 = one CPU busy all the time).
    pub cpu_util: f64,
    /// It did the same work as those before, to its end, and nothing disturbed it.
    pub comparable: bool,
}

/// What is known of one number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Number {
    /// Threads.
    pub threads: u32,
    /// Runs with it, those that cannot be compared too.
    pub runs: u32,
    /// How long the last comparable ones took, in seconds, oldest first.
    pub seconds: Vec<f64>,
    /// CPUs that the last comparable one used on average.
    pub cpu_util: f64,
    /// A probe has shown that the program runs with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub probed: bool,
    /// It is not to be tried: the program failed with it, or did less in a window.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ruled_out: bool,
}

impl Number {
    /// The median of its times, in seconds.
    pub fn median(&self) -> Option<f64> {
        let sorted = self.sorted();
        let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
        Some(f64::midpoint(*sorted.get(low)?, *sorted.get(high)?))
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// By how much its times differ, as a part of their median.
    fn spread(&self) -> f64 {
        let sorted = self.sorted();
        match (sorted.first(), sorted.last(), self.median()) {
            (Some(first), Some(last), Some(median)) => (last - first) / median.max(1e-9),
            _ => f64::INFINITY,
        }
    }

    /// Whether nothing more is to be learned by trying it.
    fn is_tried(&self) -> bool {
        self.ruled_out || !self.seconds.is_empty() || self.runs >= ATTEMPTS
    }
}

/// How the next run goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    /// With the best number known.
    Best(u32),
    /// With another one.
    Trial(Trial),
}

impl Next {
    /// The number of threads.
    pub fn threads(self) -> u32 {
        match self {
            Next::Best(threads) => threads,
            Next::Trial(trial) => trial.threads,
        }
    }
}

/// Another number than the best one known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The number.
    pub threads: u32,
    /// What it might lose at worst, as a part of the time of a run.
    pub risk: f64,
    /// Nobody has seen yet whether the program runs with it: it must be probed first ([`Runs::probed`]).
    pub probe: bool,
}

/// Whole runs of one program with the same work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Runs {
    /// What is known of each number, in the order in which they were first run.
    pub numbers: Vec<Number>,
    /// How long all runs took together, in seconds.
    pub seconds: f64,
    /// Seconds by which trials took longer than the best number known would have, with the probes made for them.
    pub lost_seconds: f64,
    /// Trials so far.
    pub trials: u32,
    /// Runs since the last of them.
    pub since_trial: u32,
}

impl Runs {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Runs::default()
    }

    fn number(&self, threads: u32) -> Option<&Number> {
        self.numbers.iter().find(|n| n.threads == threads)
    }

    /// The best number known, where comparable runs of any are known: the one with the smallest median. What was run
    /// first is left only for one that is clearly faster, and for a single run only if none of its own was as fast.
    fn known(&self) -> Option<&Number> {
        let timed = self.numbers.iter().filter(|n| !n.ruled_out);
        timed
            .filter(|n| !n.seconds.is_empty())
            .reduce(|best, other| {
                let (Some(old), Some(new)) = (best.median(), other.median()) else {
                    return best;
                };
                let single = other.seconds.len() == 1;
                let fastest = best.sorted().first().copied().unwrap_or(old);
                let limit = if single { fastest.min(old) } else { old };
                if new < limit * (1.0 - MARGIN) {
                    other
                } else {
                    best
                }
            })
    }

    /// The best number known; without comparable runs the one that was found before the run.
    pub fn best(&self, found: &Found) -> u32 {
        self.known().map_or(found.threads, |n| n.threads)
    }

    /// How the next run shall go. `may_try`: this run is the program's usual work, nobody has forced its number, and
    /// nothing else is at work.
    pub fn next(&self, found: &Found, may_try: bool) -> Next {
        let best = self.best(found);
        let trial = may_try.then(|| self.trial(found)).flatten();
        trial.map_or(Next::Best(best), Next::Trial)
    }

    /// How the run goes on before which a probe was made: with the number that it was made for, or with the best one
    /// known. Other numbers' probes wait for other runs.
    pub fn after_probe(&self, found: &Found) -> Next {
        match self.next(found, true) {
            Next::Trial(trial) if trial.probe => Next::Best(self.best(found)),
            next => next,
        }
    }

    fn trial(&self, found: &Found) -> Option<Trial> {
        let best = self.known()?;
        let seconds = best.median()?;
        let enough = best.seconds.len() >= RUNS_BETWEEN as usize
            && (self.trials == 0 || self.since_trial >= RUNS_BETWEEN);
        if !enough || best.spread() > SPREAD {
            return None;
        }
        let affordable = |t: &Trial| {
            let probe = if t.probe { found.probe_seconds } else { 0.0 };
            self.lost_seconds + probe + t.risk * seconds <= PART * self.seconds
        };
        let probed = |n| self.number(n).is_some_and(|n| n.probed);
        let trials = candidates(best, found, &self.numbers)
            .into_iter()
            .map(|(threads, risk)| Trial {
                threads,
                risk,
                probe: !probed(threads),
            });
        trials
            .filter(affordable)
            .min_by(|a, b| a.risk.total_cmp(&b.risk))
    }

    /// A run has ended. `found` is what the search before the run had chosen.
    pub fn ran(&mut self, run: Run, found: &Found) {
        if !(run.seconds > 0.0 && run.seconds.is_finite()) {
            return;
        }
        let before = self.known().and_then(|b| Some((b.threads, b.median()?)));
        self.seconds += run.seconds;
        match before {
            Some((threads, seconds)) if threads != run.threads => {
                self.trials += 1;
                self.since_trial = 0;
                self.lost_seconds += (run.seconds - seconds).max(0.0);
            }
            _ => self.since_trial = self.since_trial.saturating_add(1),
        }
        // Before anything can be compared, only what was found is run: others were the user's wish.
        if before.is_none() && run.threads != found.threads {
            return;
        }
        let number = self.entry(run.threads);
        number.runs = number.runs.saturating_add(1);
        if run.comparable {
            if number.seconds.len() >= TIMES {
                number.seconds.remove(0);
            }
            number.seconds.push(run.seconds);
            number.cpu_util = run.cpu_util;
        }
    }

    /// A probe in the sandbox has shown how many CPUs are at useful work with the number of `trial` (`None`: the
    /// program failed), and took so many seconds. The number is ruled out if these are fewer than with the number
    /// that was found, by more than the presumed loss. Then [`Runs::after_probe`] says how to go on.
    pub fn probed(&mut self, trial: Trial, useful: Option<f64>, seconds: f64, found: &Found) {
        self.lost_seconds += seconds.max(0.0);
        let is_fine = useful.is_some_and(|useful| useful * (1.0 + trial.risk) >= found.useful);
        let number = self.entry(trial.threads);
        number.probed = true;
        number.ruled_out |= !is_fine;
    }

    /// Never run it with this number again: the program failed with it.
    pub fn rule_out(&mut self, threads: u32) {
        self.entry(threads).ruled_out = true;
    }

    /// Forgets the number that is farthest from the best one.
    fn forget_one(&mut self) {
        let best = self.known().map_or(0, |n| n.threads);
        let away = self.numbers.iter().map(|n| n.threads.abs_diff(best));
        let farthest = away.enumerate().max_by_key(|(_, away)| *away);
        if let Some((at, _)) = farthest {
            self.numbers.remove(at);
        }
    }

    fn entry(&mut self, threads: u32) -> &mut Number {
        let at = self.numbers.iter().position(|n| n.threads == threads);
        let at = at.unwrap_or_else(|| {
            if self.numbers.len() >= NUMBERS {
                self.forget_one();
            }
            self.numbers.push(Number {
                threads,
                ..Number::default()
            });
            self.numbers.len() - 1
        });
        &mut self.numbers[at]
    }
}

/// Numbers beside `best` that were not tried and could be faster, and what each might lose.
fn candidates(best: &Number, found: &Found, known: &[Number]) -> Vec<(u32, f64)> {
    let b = best.threads;
    let cpus = found.cpus.ceil().max(1.0) as u32;
    // No number of threads makes more of the CPUs than there are.
    let leaves_idle = 1.0 - best.cpu_util / found.cpus.max(0.01) >= WORTH;
    let mut numbers = Vec::new();
    if found.waits && b <= cpus {
        let fewer = towards(best, known, false).filter(|n| *n < b);
        numbers.extend(fewer.map(|n| (n, f64::from(b) / f64::from(n.max(1)) - 1.0)));
    }
    if leaves_idle && b < cpus {
        let more = towards(best, known, true).map(|n| n.min(cpus));
        numbers.extend(more.map(|n| (n, f64::from(n) / f64::from(b) - 1.0)));
    }
    if found.threads > cpus {
        // A window has shown that more threads than CPUs are faster; a whole run may say otherwise.
        numbers.push((cpus, BEYOND_RISK));
    }
    let is_full = found.useful >= FULL * found.cpus;
    if leaves_idle && b >= cpus && is_full && !found.spins {
        let on_each = b / cpus + 1;
        numbers.extend((on_each <= MOST_PER_CPU).then_some((on_each * cpus, BEYOND_RISK)));
    }
    let is_tried = |n: u32| known.iter().any(|k| k.threads == n && k.is_tried());
    numbers.retain(|(n, _)| (found.min.max(1)..=found.max).contains(n) && !is_tried(*n));
    numbers
}

/// The next number to try in one direction from `best`. Between `best` and a slower number it is the one in the
/// middle, down to half a step. What is as fast as `best` is no limit: from there it goes on twice as far.
fn towards(best: &Number, known: &[Number], up: bool) -> Option<u32> {
    let b = best.threads;
    let away = |n: u32| {
        if up {
            n.checked_sub(b)
        } else {
            b.checked_sub(n)
        }
    };
    let mut tried: Vec<(u32, bool)> = known
        .iter()
        .filter(|n| n.is_tried())
        .filter_map(|n| {
            let limit = best.median()? * (1.0 + MARGIN);
            let as_fast = !n.ruled_out && n.median().is_some_and(|m| m <= limit);
            Some((away(n.threads).filter(|away| *away > 0)?, as_fast))
        })
        .collect();
    tried.sort_unstable();
    let step = (b / STEP).max(1);
    let equals = tried.iter().take_while(|(_, as_fast)| *as_fast).count();
    let next = match (equals, tried.get(equals)) {
        (0, None) => step,
        (0, Some((gap, _))) if *gap >= 2 && gap / 2 >= step / 2 => gap / 2,
        (_, Some(_)) => return None,
        (_, None) => 3 * tried.last()?.0,
    };
    if up {
        b.checked_add(next)
    } else {
        b.checked_sub(next)
    }
}

#[cfg(test)]
mod tests;
