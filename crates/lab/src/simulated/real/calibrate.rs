//! How fast the machine is just now: measured before and after everything that is measured, because a
//! virtual machine's two CPUs are at times worth one.
//!
//! One loop does not speak for all: what the host runs on the other half of a core, or in the shared cache,
//! slows code that fills the core or uses caches, and leaves alone code whose every step waits for the one
//! before. So there are two loops ([`Loop`]).

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::actor;
use crate::load::allowed_cpus;

/// How long a CPU is measured.
const SPAN: Duration = Duration::from_millis(25);
/// Steps between two looks at the clock.
const STEPS: u64 = 20_000;

/// What is done to measure a CPU's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// [`actor::work`], which made workloads consist of: each step waits for the one before.
    Chain,
    /// Histograms of rows, as real programs make them: many additions at once, from and to a second-level
    /// cache.
    Histogram,
}

/// Steps of a loop in a nanosecond of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// While the others are idle; the mean of two CPUs.
    pub alone: f64,
    /// While both are busy; the mean of the two.
    pub both: f64,
}

impl Speed {
    /// Measures the first two CPUs (a machine with one has `both` as `alone`). Takes 0.1 s.
    ///
    /// # Errors
    /// If a thread cannot be pinned.
    pub fn measure(of: Loop) -> Result<Speed> {
        let cpus = allowed_cpus()?;
        let two = cpus.get(..2).unwrap_or(&cpus);
        let mut alone = Vec::new();
        for cpu in two {
            alone.push(spin(&[*cpu], of)?);
        }
        Ok(Speed {
            alone: mean(&alone),
            both: spin(two, of)?,
        })
    }

    /// Of two measurements, one before and one after something.
    pub fn mean(self, other: Speed) -> Speed {
        Speed {
            alone: (self.alone + other.alone) / 2.0,
            both: (self.both + other.both) / 2.0,
        }
    }

    /// How fast a CPU is while `busy` CPUs are, in steps a nanosecond: `alone` up to one, `both` from two on.
    pub fn while_busy(self, busy: f64) -> f64 {
        let second = (busy - 1.0).clamp(0.0, 1.0);
        self.alone + (self.both - self.alone) * second
    }

    /// By how much it differs from another one, as a part: the greater of both differences.
    pub fn differs(self, other: Speed) -> f64 {
        let part = |a: f64, b: f64| (a / b - 1.0).abs();
        part(self.alone, other.alone).max(part(self.both, other.both))
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean speed of these CPUs, a pinned thread on each at the same time.
fn spin(cpus: &[usize], of: Loop) -> Result<f64> {
    let barrier = Barrier::new(cpus.len());
    std::thread::scope(|scope| {
        let threads = cpus.iter().map(|&cpu| {
            let barrier = &barrier;
            scope.spawn(move || -> Result<f64> {
                let mut set = CpuSet::new();
                set.set(cpu);
                let pinned = sched_setaffinity(None, &set);
                barrier.wait();
                pinned.with_context(|| format!("could not pin a thread to CPU {cpu}"))?;
                Ok(match of {
                    Loop::Chain => steps_a_ns(actor::work),
                    Loop::Histogram => {
                        let mut rows = Rows::new();
                        steps_a_ns(|steps| rows.count(steps))
                    }
                })
            })
        });
        let threads = threads.collect::<Vec<_>>();
        let mut speeds = Vec::new();
        for thread in threads {
            let panicked = |_| anyhow!("a spinning thread panicked");
            speeds.push(thread.join().map_err(panicked)??);
        }
        Ok(mean(&speeds))
    })
}

fn steps_a_ns<T>(mut work: impl FnMut(u64) -> T) -> f64 {
    // What is not in the caches yet says nothing.
    std::hint::black_box(work(STEPS));
    let (began, mut steps) = (Instant::now(), 0);
    while began.elapsed() < SPAN {
        std::hint::black_box(work(STEPS));
        steps += STEPS;
    }
    steps as f64 / began.elapsed().as_nanos() as f64
}

const FEATURES: usize = 8;
const BINS: usize = 256;

/// Rows of a table: for each, a weight, and in which bin it is for each of some features. 0.7 MB.
struct Rows {
    bins: Vec<[u8; FEATURES]>,
    weights: Vec<f32>,
    sums: Vec<[f64; BINS]>,
    next: usize,
}

impl Rows {
    const COUNT: usize = 1 << 16;

    fn new() -> Rows {
        let mut state = 1;
        let bins = (0..Rows::COUNT).map(|_| {
            state = actor::work(state & 7).wrapping_add(state).rotate_left(23);
            state.to_le_bytes()
        });
        Rows {
            bins: bins.collect(),
            weights: (0..Rows::COUNT).map(|row| row as f32).collect(),
            sums: vec![[0.0; BINS]; FEATURES],
            next: 0,
        }
    }

    /// Adds so many rows to the histograms.
    fn count(&mut self, rows: u64) -> f64 {
        for _ in 0..rows {
            let weight = f64::from(self.weights[self.next]);
            for (sums, bin) in self.sums.iter_mut().zip(self.bins[self.next]) {
                sums[usize::from(bin)] += weight;
            }
            self.next = (self.next + 1) % Rows::COUNT;
        }
        self.sums[0][0]
    }
}

/// CPU time of the whole machine so far, in seconds of one CPU (/proc/stat; it counts in hundredths).
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// By all processes and the kernel.
    pub busy: f64,
    /// Kept away by the hypervisor.
    pub stolen: f64,
}

impl Used {
    /// As it is now; nothing, where that cannot be read.
    pub fn now() -> Used {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Used::of(&text).unwrap_or_default()
    }

    fn of(stat: &str) -> Option<Used> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks = line.split_whitespace().map(str::parse::<f64>);
        let ticks = ticks.collect::<Result<Vec<_>, _>>().ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal
        let [user, nice, system, _, _, irq, softirq, steal, ..] = *ticks.as_slice() else {
            return None;
        };
        Some(Used {
            busy: (user + nice + system + irq + softirq) / 100.0,
            stolen: steal / 100.0,
        })
    }

    /// What has been used since.
    pub fn since(self, before: Used) -> Used {
        Used {
            busy: self.busy - before.busy,
            stolen: self.stolen - before.stolen,
        }
    }
}

/// Waits until hardly anything runs, for so long at most.
pub fn wait_for_quiet(at_most: Duration) {
    const LOOK: Duration = Duration::from_millis(150);
    let began = Instant::now();
    while began.elapsed() < at_most {
        let before = Used::now();
        std::thread::sleep(LOOK);
        if Used::now().since(before).busy < 0.015 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_as_fast_as_the_number_of_busy_ones_makes_it() {
        let speed = Speed {
            alone: 1.0,
            both: 0.6,
        };
        let at = [0.5, 1.0, 1.5, 2.0, 3.0].map(|busy| speed.while_busy(busy));
        let expected = [1.0, 1.0, 0.8, 0.6, 0.6];
        assert!(at.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
        let other = Speed {
            alone: 1.0,
            both: 0.5,
        };
        assert!((speed.differs(other) - 0.2).abs() < 1e-12);
    }

    #[test]
    fn speeds_are_positive_numbers() {
        for of in [Loop::Chain, Loop::Histogram] {
            let speed = Speed::measure(of).unwrap();
            assert!(speed.alone > 0.0 && speed.both > 0.0, "{speed:?}");
        }
    }

    #[test]
    fn every_row_is_in_one_bin_of_each_feature() {
        let mut rows = Rows::new();
        rows.count(1_000);
        let expected = (0..1_000_u32).map(f64::from).sum::<f64>();
        for sums in &rows.sums {
            assert_eq!(sums.iter().sum::<f64>(), expected);
        }
        // Many bins are used, not one.
        assert!(rows.sums[0].iter().filter(|sum| **sum > 0.0).count() > 100);
    }

    #[test]
    fn busy_and_stolen_time_are_read_from_the_first_line() {
        let stat = "cpu  100 20 30 4000 50 6 4 80 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let used = Used::of(stat).unwrap();
        assert!((used.busy - 1.6).abs() < 1e-12 && (used.stolen - 0.8).abs() < 1e-12);
        assert!(Used::of("cpu0 1 2 3").is_none());
        assert!(Used::now().since(Used::default()).busy > 0.0);
    }
}
