//! What was recorded of a run: who ran where, and what programs might use.
//!
//! Bounded: when there are too many segments, they are put into cells of a grid, and each cell shows
//! one thing, so that over several cells each thing has its share; the grid's grain doubles as often as
//! needed. Sums in reports never come from
//! here, but from the kernel's counters, which are exact.

use crate::kernel::{Doing, Recorder, ThreadId};
use std::sync::{Arc, Mutex, PoisonError};

/// Segments that are kept at most before they are made coarser.
const MOST_SEGMENTS: usize = 400_000;

/// The first grain, in nanoseconds.
const FIRST_GRAIN_NS: u64 = 50_000;

/// A stretch of time in which a CPU did one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<K> {
    /// When it began, in nanoseconds.
    pub start_ns: u64,
    /// When it ended, in nanoseconds.
    pub end_ns: u64,
    /// What it did.
    pub what: K,
}

/// What a CPU does: which thread, and whether it works or spins.
pub type OnCpu = (ThreadId, Doing);

/// Who ran where.
#[derive(Debug)]
pub struct Timeline {
    cpus: Vec<Vec<Segment<OnCpu>>>,
    /// What each CPU does now, and since when.
    now: Vec<Option<(u64, OnCpu)>>,
    segments: usize,
    most: usize,
    grain_ns: u64,
}

impl Timeline {
    /// Of a machine with so many CPUs, all idle.
    pub fn new(cpus: usize) -> Timeline {
        Timeline::with_most(cpus, MOST_SEGMENTS)
    }

    fn with_most(cpus: usize, most: usize) -> Timeline {
        Timeline {
            cpus: vec![Vec::new(); cpus],
            now: vec![None; cpus],
            segments: 0,
            most,
            grain_ns: 0,
        }
    }

    /// From `time_ns` on, a CPU does something else.
    pub fn on_cpu(&mut self, time_ns: u64, cpu: u32, what: Option<OnCpu>) {
        let index = cpu as usize;
        let Some(now) = self.now.get_mut(index) else {
            return;
        };
        let before = std::mem::replace(now, what.map(|what| (time_ns, what)));
        if let Some((start_ns, what)) = before
            && start_ns < time_ns
        {
            let end_ns = time_ns;
            let segment = Segment {
                start_ns,
                end_ns,
                what,
            };
            self.segments += usize::from(append(&mut self.cpus[index], segment));
            if self.segments > self.most {
                self.make_coarser();
            }
        }
    }

    /// The run has ended: what is still being done ends, too.
    pub fn end(&mut self, time_ns: u64) {
        for cpu in 0..self.now.len() {
            self.on_cpu(time_ns, cpu as u32, None);
        }
    }

    /// What each CPU did, in order.
    pub fn cpus(&self) -> &[Vec<Segment<OnCpu>>] {
        &self.cpus
    }

    /// The length of a cell, in nanoseconds; 0 while every segment is as it was.
    pub fn grain_ns(&self) -> u64 {
        self.grain_ns
    }

    fn make_coarser(&mut self) {
        self.grain_ns = self.grain_ns.max(FIRST_GRAIN_NS);
        loop {
            for segments in &mut self.cpus {
                *segments = coarser(segments.iter().copied(), self.grain_ns);
            }
            self.segments = self.cpus.iter().map(Vec::len).sum();
            if self.segments <= self.most / 2 || self.grain_ns > u64::MAX / 4 {
                return;
            }
            self.grain_ns *= 2;
        }
    }
}

/// Adds a segment, or makes the last one longer; whether there is one more.
fn append<K: Copy + Eq>(to: &mut Vec<Segment<K>>, segment: Segment<K>) -> bool {
    if let Some(last) = to.last_mut()
        && last.end_ns == segment.start_ns
        && last.what == segment.what
    {
        last.end_ns = segment.end_ns;
        return false;
    }
    to.push(segment);
    true
}

/// The same segments on a grid: each cell of `grain_ns` shows one thing, or that there is nothing. That is
/// what took most of it; and what took a smaller part of several cells in sequence is shown in one of them,
/// when its parts have added up (one-dimensional error diffusion). The last cell ends with the last segment.
/// Cost: linear.
pub fn coarser<K: Copy + Ord>(
    segments: impl Iterator<Item = Segment<K>>,
    grain_ns: u64,
) -> Vec<Segment<K>> {
    let grain = grain_ns.max(1);
    let mut cells = Cells {
        grain,
        cell: 0,
        within: Vec::new(),
        owed: Vec::new(),
        out: Vec::new(),
    };
    let mut last = 0;
    for segment in segments {
        let mut at = segment.start_ns;
        last = segment.end_ns;
        while at < segment.end_ns {
            let cell = at / grain;
            let whole_until = segment.end_ns / grain * grain;
            if at == cell * grain && whole_until > at {
                cells.close(u64::MAX);
                cells.owed.clear();
                append(
                    &mut cells.out,
                    Segment {
                        start_ns: at,
                        end_ns: whole_until,
                        what: segment.what,
                    },
                );
                at = whole_until;
            } else {
                let end = segment.end_ns.min((cell + 1).saturating_mul(grain));
                cells.add(cell, segment.what, end - at);
                at = end;
            }
        }
    }
    cells.close(last);
    cells.out
}

/// Of more things than this in neighbouring cells, those with the smallest parts are forgotten.
const MOST_OWED: usize = 32;

/// The cell that is being filled, and what is done.
struct Cells<K> {
    grain: u64,
    cell: u64,
    within: Vec<(K, u64)>,
    /// How much of what was there in the cells before is not shown yet; below 0: what was shown too much.
    /// `None`: that there was nothing.
    owed: Vec<(Option<K>, i64)>,
    out: Vec<Segment<K>>,
}

impl<K: Copy + Ord> Cells<K> {
    fn add(&mut self, cell: u64, what: K, ns: u64) {
        if cell != self.cell {
            self.close(u64::MAX);
            if cell > self.cell + 1 {
                self.owed.clear();
            }
            self.cell = cell;
        }
        match self.within.iter_mut().find(|(other, _)| *other == what) {
            Some((_, sum)) => *sum += ns,
            None => self.within.push((what, ns)),
        }
    }

    /// The cell is full; it ends at `last` at the latest.
    fn close(&mut self, last: u64) {
        if self.within.is_empty() {
            return;
        }
        let start_ns = self.cell.saturating_mul(self.grain);
        let end_ns = start_ns.saturating_add(self.grain).min(last);
        let length = end_ns.saturating_sub(start_ns);
        let busy: u64 = self.within.iter().map(|(_, ns)| ns).sum();
        self.owe(None, length.saturating_sub(busy) as i64);
        for (what, ns) in std::mem::take(&mut self.within) {
            self.owe(Some(what), ns as i64);
        }
        // Of equal ones the smallest thing, and any rather than nothing.
        let order = |(what, ns): &(Option<K>, i64)| (*ns, what.is_some(), std::cmp::Reverse(*what));
        let Some((what, _)) = self.owed.iter().copied().max_by_key(order) else {
            return;
        };
        self.owe(what, -(length as i64));
        self.owed.retain(|(_, ns)| *ns != 0);
        if self.owed.len() > MOST_OWED {
            self.owed.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
            self.owed.truncate(MOST_OWED);
        }
        if let Some(what) = what {
            append(
                &mut self.out,
                Segment {
                    start_ns,
                    end_ns,
                    what,
                },
            );
        }
    }

    fn owe(&mut self, what: Option<K>, ns: i64) {
        match self.owed.iter_mut().find(|(other, _)| *other == what) {
            Some((_, sum)) => *sum += ns,
            None => self.owed.push((what, ns)),
        }
    }
}

/// A timeline that the kernel fills while others may look at it.
#[derive(Clone, Debug)]
pub(crate) struct SharedTimeline(Arc<Mutex<Timeline>>);

impl SharedTimeline {
    pub(crate) fn new(timeline: Timeline) -> SharedTimeline {
        SharedTimeline(Arc::new(Mutex::new(timeline)))
    }

    /// The timeline as it is; from here on it records nothing of use.
    pub(crate) fn take(&self) -> Timeline {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut shared, Timeline::new(0))
    }
}

impl Recorder for SharedTimeline {
    fn on_cpu(&mut self, time_ns: u64, cpu: u32, what: Option<(ThreadId, Doing)>) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.on_cpu(time_ns, cpu, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(start_ns: u64, end_ns: u64, what: u32) -> Segment<u32> {
        Segment {
            start_ns,
            end_ns,
            what,
        }
    }

    #[test]
    fn what_goes_on_without_a_gap_is_one_segment() {
        let mut timeline = Timeline::new(1);
        let work = (ThreadId(7), Doing::Work);
        timeline.on_cpu(10, 0, Some(work));
        timeline.on_cpu(20, 0, Some(work));
        timeline.on_cpu(30, 0, Some((ThreadId(7), Doing::Spin)));
        timeline.on_cpu(30, 0, None);
        timeline.on_cpu(40, 0, Some(work));
        timeline.end(50);
        let seen: Vec<_> = timeline.cpus()[0]
            .iter()
            .map(|s| (s.start_ns, s.end_ns))
            .collect();
        assert_eq!(seen, [(10, 30), (40, 50)]);
    }

    #[test]
    fn a_cell_shows_what_took_most_of_it_and_nothing_where_most_is_empty() {
        let fine = [
            segment(0, 6, 1),
            segment(6, 10, 2),
            segment(12, 14, 3),
            segment(20, 40, 4),
        ];
        let coarse = coarser(fine.into_iter(), 10);
        assert_eq!(coarse, [segment(0, 10, 1), segment(20, 40, 4)]);
    }

    #[test]
    fn what_never_takes_most_of_a_cell_is_shown_with_its_share() {
        // A third of every cell is busy, half of that by each of two.
        let fine = (0..600_u64).flat_map(|cell| {
            let at = cell * 60;
            [segment(at + 10, at + 20, 1), segment(at + 30, at + 40, 2)]
        });
        let coarse = coarser(fine, 60);
        for what in [1, 2] {
            let shown = coarse.iter().filter(|s| s.what == what);
            let shown: u64 = shown.map(|s| (s.end_ns - s.start_ns) / 60).sum();
            assert!((95..=105).contains(&shown), "{shown} of 600 cells");
        }
    }

    #[test]
    fn a_long_run_of_many_switches_stays_bounded_and_in_order() {
        let mut timeline = Timeline::with_most(2, 1000);
        for step in 0..50_000_u64 {
            let thread = ThreadId((step % 3) as u32);
            timeline.on_cpu(step * 7_919, (step % 2) as u32, Some((thread, Doing::Work)));
        }
        timeline.end(50_000 * 7_919);
        assert!(timeline.grain_ns() > 0);
        for cpu in timeline.cpus() {
            assert!(cpu.len() <= 1000);
            assert!(
                cpu.windows(2)
                    .all(|pair| pair[0].end_ns <= pair[1].start_ns)
            );
        }
    }

    proptest! {
        #[test]
        fn a_coarse_timeline_keeps_order_and_bounds(
            steps in proptest::collection::vec((0_u64..30, 1_u64..50, 0_u32..4), 1..60),
            grain in 1_u64..100,
        ) {
            let mut at = 0;
            let mut fine = Vec::new();
            for (gap, length, what) in steps {
                fine.push(segment(at + gap, at + gap + length, what));
                at += gap + length;
            }
            let coarse = coarser(fine.into_iter(), grain);
            prop_assert!(coarse.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
            prop_assert!(coarse.iter().all(|s| s.start_ns < s.end_ns && s.end_ns <= at));
        }
    }
}
