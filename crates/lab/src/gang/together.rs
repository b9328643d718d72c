//! How much of the time all threads of one set run at once, by the stretches on a CPU that experiments/c/together.c
//! notes. Pure, but for reading its files.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Left out at the beginning, where programs start and join, and at the end.
const FIRST_NS: u64 = 1_000_000_000;
const LAST_NS: u64 = 100_000_000;

/// Shares of the time; their sum is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// All threads of one set ran.
    pub together: f64,
    /// Some did not, between two stretches of the same set all together, and nothing of the other set ran.
    pub others: f64,
    /// Everything else: switches, threads of both sets at once.
    pub apart: f64,
}

impl Share {
    /// The share of all together, of the time in which nobody else took a CPU.
    pub fn together_without_others(&self) -> f64 {
        self.together / (1.0 - self.others).max(f64::MIN_POSITIVE)
    }
}

/// A stretch of a thread on a CPU, on the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    begin_ns: u64,
    end_ns: u64,
}

/// The shares of two sets with so many threads each, by the file of each.
///
/// # Errors
/// If a file cannot be read, or the sets did not run side by side.
pub fn shares(files: &[impl AsRef<Path>; 2], threads: usize) -> Result<Share> {
    let sets = [read(files[0].as_ref())?, read(files[1].as_ref())?];
    let begin = |set: &[Stretch]| set.iter().map(|s| s.begin_ns).min();
    let end = |set: &[Stretch]| set.iter().map(|s| s.end_ns).max();
    let from = sets.iter().filter_map(|set| begin(set)).max();
    let to = sets.iter().filter_map(|set| end(set)).min();
    let (Some(from), Some(to)) = (from, to) else {
        bail!("a set has never run");
    };
    let (from, to) = (from + FIRST_NS, to.saturating_sub(LAST_NS));
    if from >= to {
        bail!("the sets did not run side by side");
    }
    Ok(share(&sets, threads, from, to))
}

fn read(file: &Path) -> Result<Vec<Stretch>> {
    let bytes = std::fs::read(file).with_context(|| format!("no {}", file.display()))?;
    let (numbers, _) = bytes.as_chunks::<8>();
    let numbers: Vec<u64> = numbers.iter().map(|b| u64::from_ne_bytes(*b)).collect();
    let (stretches, _) = numbers.as_chunks::<3>();
    Ok(stretches
        .iter()
        .map(|[_, begin_ns, end_ns]| Stretch {
            begin_ns: *begin_ns,
            end_ns: *end_ns,
        })
        .collect())
}

fn share(sets: &[Vec<Stretch>; 2], threads: usize, from: u64, to: u64) -> Share {
    // At each time the numbers of running threads change by so much.
    let mut changes: Vec<(u64, usize, i64)> = Vec::new();
    for (set, stretches) in sets.iter().enumerate() {
        for stretch in stretches {
            changes.push((stretch.begin_ns, set, 1));
            changes.push((stretch.end_ns, set, -1));
        }
    }
    changes.sort_unstable();
    let all = threads as i64;
    let mut run = [0_i64; 2];
    let mut now = from;
    // Since the last stretch all together: of which set that was, how long it is ago, and whether both sets ran.
    let (mut last, mut open_ns, mut both) = (None, 0, false);
    let (mut together, mut others, mut apart) = (0, 0, 0);
    for (time, set, change) in changes.into_iter().chain([(to, 0, 0)]) {
        let time = time.clamp(from, to);
        let span = time - now;
        now = time;
        let whole = match run {
            [a, 0] if a == all => Some(0),
            [0, b] if b == all => Some(1),
            _ => None,
        };
        match whole {
            Some(set) if span > 0 => {
                together += span;
                match last == Some(set) && !both {
                    true => others += open_ns,
                    false => apart += open_ns,
                }
                (last, open_ns, both) = (Some(set), 0, false);
            }
            Some(_) => {}
            None => {
                open_ns += span;
                let foreign = last.is_some_and(|last| run[1 - last] > 0);
                both |= span > 0 && foreign;
            }
        }
        run[set] += change;
    }
    apart += open_ns;
    let sum = (together + others + apart).max(1) as f64;
    Share {
        together: together as f64 / sum,
        others: others as f64 / sum,
        apart: apart as f64 / sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(stretches: &[(u64, u64)]) -> Vec<Stretch> {
        let stretch = |(begin_ns, end_ns): &(u64, u64)| Stretch {
            begin_ns: *begin_ns,
            end_ns: *end_ns,
        };
        stretches.iter().map(stretch).collect()
    }

    #[test]
    fn switches_are_apart_and_a_cpu_that_somebody_else_took_is_not() {
        // Two threads each. The first set's second one is away from 40 to 50; the switch takes from 100 to 110.
        let first = set(&[(0, 100), (0, 40), (50, 105)]);
        let second = set(&[(102, 200), (110, 200)]);
        let share = share(&[first, second], 2, 0, 200);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(share.together, 0.9), "{share:?}");
        assert!(near(share.others, 0.05), "{share:?}");
        assert!(near(share.apart, 0.05), "{share:?}");
        assert!(near(share.together_without_others(), 0.9 / 0.95));
    }

    #[test]
    fn a_thread_of_the_other_set_in_between_is_apart() {
        let first = set(&[(0, 100), (0, 40), (50, 100)]);
        let second = set(&[(42, 48)]);
        let share = share(&[first, second], 2, 0, 100);
        assert!((share.apart - 0.1).abs() < 1e-9, "{share:?}");
        assert!(share.others < 1e-9);
    }
}
