//! When slots begin and end: slices, periods and windows.

use super::pack::Slots;
use corewise_abi::turn::{MOST_WINDOWS, Turn, Window};
use serde::{Deserialize, Serialize};

/// The longest slice, in nanoseconds.
pub const LONGEST_SLICE_NS: u64 = 50_000_000;

/// The shortest slice, in nanoseconds.
pub const SHORTEST_SLICE_NS: u64 = 5_000_000;

/// The longest period, in nanoseconds, as long as slices need not be shorter than the shortest.
pub const USUAL_PERIOD_NS: u64 = 100_000_000;

/// A slice is at least so many times what switching costs: 0.5 %.
const SWITCHES: u64 = 200;

const SECOND: f64 = 1e9;

/// The lengths of slots, in nanoseconds: from [`SHORTEST_SLICE_NS`] to [`LONGEST_SLICE_NS`], and longer rather
/// than shorter where switching is dear.
///
/// A period of up to a second is a whole part of a second where that can be had: then every second has the same
/// number of whole periods, whenever it begins, and every set makes the same progress in each.
pub(super) fn slices(slots: &Slots, switch_cost_ns: u64) -> Vec<u64> {
    let total: f64 = slots.lengths.iter().sum();
    let shortest = slots.lengths.iter().copied().fold(f64::INFINITY, f64::min);
    let longest = longest_run(slots);
    let floor = SHORTEST_SLICE_NS
        .max(switch_cost_ns.saturating_mul(SWITCHES))
        .min(LONGEST_SLICE_NS);
    let most = LONGEST_SLICE_NS as f64 / longest;
    // What is long because slots of one set follow each other is not worth switching ever more often for.
    let most = most.max(SHORTEST_SLICE_NS as f64 / shortest);
    let least = (floor as f64 / shortest).min(most);
    let mut unit = (USUAL_PERIOD_NS as f64 / total).clamp(least, most);
    let periods = SECOND / (unit * total);
    for periods in [periods.ceil(), periods.floor()] {
        let whole = SECOND / periods / total;
        if periods >= 1.0 && (least..=most).contains(&whole) {
            unit = whole;
            break;
        }
    }
    let mut end = 0.0;
    let mut begin_ns = 0;
    let slice = |length: &f64| {
        end += length * unit;
        let end_ns = f64::round(end) as u64;
        let slice = end_ns - begin_ns;
        begin_ns = end_ns;
        slice
    };
    slots.lengths.iter().map(slice).collect()
}

/// The longest time in one piece that any set runs which does not run always, in slots' lengths: slots that follow
/// each other, also from the end of a period to the beginning of the next.
fn longest_run(slots: &Slots) -> f64 {
    let count = slots.members.len();
    let mut longest = slots.lengths.iter().copied().fold(0.0, f64::max);
    let sets = slots
        .members
        .iter()
        .flatten()
        .max()
        .map_or(0, |most| most + 1);
    let mut often = vec![0; sets];
    for &set in slots.members.iter().flatten() {
        often[set] += 1;
    }
    // Of each set: the slot after the last in which it ran, and how long it had run by then. Twice round, for those
    // that run at the end and at the beginning.
    let mut runs = vec![(0, 0.0); sets];
    for at in 0..2 * count {
        let length = slots.lengths[at % count];
        for &set in &slots.members[at % count] {
            let (end, long) = runs[set];
            let until = if end == at { long + length } else { length };
            runs[set] = (at + 1, until);
            if often[set] < count {
                longest = longest.max(until);
            }
        }
    }
    longest
}

/// Windows of one set, from the ascending slots that it runs in. A part of them if they are too many: those
/// that are longest.
pub(super) fn windows(slots: &[usize], begins_ns: &[u64]) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::new();
    for &slot in slots {
        let (begin_ns, end_ns) = (begins_ns[slot], begins_ns[slot + 1]);
        match windows.last_mut().filter(|last| last.end_ns == begin_ns) {
            Some(last) => last.end_ns = end_ns,
            None => windows.push(Window { begin_ns, end_ns }),
        }
    }
    no_more_windows(&mut windows);
    windows
}

/// Leaves out the shortest windows, if there are more than a turn can have.
pub(super) fn no_more_windows(windows: &mut Vec<Window>) {
    while windows.len() > MOST_WINDOWS {
        let length = |w: &Window| w.end_ns - w.begin_ns;
        let shortest = (0..windows.len()).min_by_key(|&i| length(&windows[i]));
        windows.remove(shortest.unwrap_or(0));
    }
}

/// How long a program ran by a turn between two times, in nanoseconds; nothing before the epoch counts.
pub fn ran_ns(turn: &Turn, from_ns: u64, to_ns: u64) -> u64 {
    let until = |time_ns: u64| {
        let Some(since) = time_ns.checked_sub(turn.epoch_ns) else {
            return 0;
        };
        let period = turn.period_ns.max(1);
        let offset = since % period;
        let windows = turn.windows.iter();
        let partly = windows.map(|w| offset.min(w.end_ns).saturating_sub(w.begin_ns));
        (since / period) * turn.runs_ns() + partly.sum::<u64>()
    };
    until(to_ns).saturating_sub(until(from_ns))
}

/// One ring's slots, in the order in which they come: what its turns are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Period {
    /// Where each slot begins, and the end of the last.
    begins_ns: Vec<u64>,
}

impl Period {
    /// With slices as they follow each other.
    pub(super) fn new(slices: impl IntoIterator<Item = u64>) -> Period {
        let mut begins_ns = vec![0];
        let mut end = 0;
        for slice in slices {
            end += slice;
            begins_ns.push(end);
        }
        Period { begins_ns }
    }

    pub(super) fn length_ns(&self) -> u64 {
        self.begins_ns.last().copied().unwrap_or(0)
    }

    /// The turn of a set that runs in these slots (ascending); `None`: it runs in all of them.
    pub(super) fn turn(&self, slots: &[usize], epoch_ns: u64) -> Option<Turn> {
        (slots.len() + 1 < self.begins_ns.len()).then(|| Turn {
            epoch_ns,
            period_ns: self.length_ns(),
            windows: windows(slots, &self.begins_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(slots: usize) -> Slots {
        Slots {
            members: vec![Vec::new(); slots],
            lengths: vec![1.0; slots],
        }
    }

    #[test]
    fn few_slots_have_the_longest_slices() {
        assert_eq!(slices(&equal(2), 0), [50_000_000; 2]);
    }

    #[test]
    fn more_slots_have_shorter_slices_so_that_all_run_ten_times_a_second() {
        assert_eq!(slices(&equal(4), 0), [25_000_000; 4]);
        assert_eq!(slices(&equal(10), 0), [10_000_000; 10]);
    }

    #[test]
    fn slots_that_follow_each_other_are_one_slice_to_who_runs_in_all_of_them() {
        // Each of three sets has two of three slots, one of them over the period's end.
        let slots = Slots {
            members: vec![vec![0, 1], vec![1, 2], vec![0, 2]],
            lengths: vec![1.0; 3],
        };
        let slices = slices(&slots, 0);
        assert!(slices.iter().all(|slice| *slice <= 25_000_000));
        // Who runs always has no slices.
        let always = Slots {
            members: vec![vec![0, 1], vec![0, 2]],
            lengths: vec![1.0; 2],
        };
        assert_eq!(super::slices(&always, 0), [50_000_000; 2]);
    }

    #[test]
    fn a_period_is_a_whole_part_of_a_second() {
        for slots in 2..=200 {
            let period: u64 = slices(&equal(slots), 0).iter().sum();
            let periods = 1e9 / period as f64;
            assert!((periods - periods.round()).abs() < 1e-6, "{slots} slots");
        }
    }

    #[test]
    fn with_very_many_slots_the_period_grows() {
        assert_eq!(slices(&equal(1_000), 0), [5_000_000; 1_000]);
    }

    #[test]
    fn where_switching_is_dear_slices_are_longer() {
        for slice in slices(&equal(30), 100_000) {
            assert!((20_000_000..=50_000_000).contains(&slice));
        }
        assert_eq!(slices(&equal(30), 9_000_000), [50_000_000; 30]);
    }

    #[test]
    fn what_a_program_ran_is_counted_across_periods() {
        let turn = Turn {
            epoch_ns: 1_000,
            period_ns: 100,
            windows: vec![
                Window {
                    begin_ns: 10,
                    end_ns: 30,
                },
                Window {
                    begin_ns: 90,
                    end_ns: 100,
                },
            ],
        };
        assert_eq!(ran_ns(&turn, 0, 1_010), 0);
        assert_eq!(ran_ns(&turn, 0, 1_100), 30);
        assert_eq!(ran_ns(&turn, 1_020, 1_195), 10 + 10 + 20 + 5);
    }
}
