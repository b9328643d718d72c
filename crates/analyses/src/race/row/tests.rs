//! Tests of row.rs.

use super::super::access::{LIFE_BITS, kind};
use super::super::words::{HEAD, Reserve};
use super::*;
use std::sync::atomic::AtomicU64;

fn run(granule: u64, granules: u16, thread: u16, segment: u32, life: u32) -> Run {
    let access = Access {
        granule,
        mask: 0xff,
        life,
        kind: kind::WRITE,
        thread,
        segment,
        site: 1,
    };
    Run { access, granules }
}

/// Room for a row.
fn memory() -> Vec<AtomicU64> {
    (0..1 << 16).map(|_| AtomicU64::new(0)).collect()
}

/// Adds runs to the row of granule 32. What a read of it all by another thread is shown: each granule and
/// segment.
fn shown(runs: &[Run]) -> Vec<(u64, u32)> {
    let all = memory();
    let words = Words::new(&all, Reserve::Not, HEAD + 1).unwrap();
    let (row, mut blocks) = (Row::new(&words, HEAD, 32), Blocks::default());
    for run in runs {
        row.add(&mut blocks, run, &mut |_: &Access, _: &Access| {});
    }
    let mut shown = Vec::new();
    for granule in 32..48 {
        row.add(
            &mut blocks,
            &run(granule, 1, 9, 1, 0),
            &mut |_: &Access, other: &Access| {
                shown.push((other.granule, other.segment));
            },
        );
    }
    shown.sort_unstable();
    shown
}

#[test]
fn of_what_is_alike_the_first_and_the_last_segments_stay_in_any_order() {
    let each: Vec<_> = (32..48)
        .flat_map(|granule| [1, 8, 9].map(|segment| (granule, segment)))
        .collect();
    for order in [
        [1, 5, 3, 8, 9, 2, 7],
        [9, 8, 7, 5, 3, 2, 1],
        [1, 2, 3, 5, 7, 8, 9],
    ] {
        let runs = order.map(|segment| run(32, 16, 1, segment, 0));
        assert_eq!(shown(&runs), each, "{order:?}");
    }
}

#[test]
fn a_row_that_is_accessed_in_many_ways_forgets_nothing() {
    let mut runs: Vec<_> = (0..16)
        .map(|n| run(32 + n, 1, 1, 20 - n as u32, 0))
        .collect();
    runs.push(run(34, 5, 2, 3, 0));
    runs.push(run(32, 16, 3, 4, 0));
    let mut expected: Vec<_> = (0..16).map(|n| (32 + n, 20 - n as u32)).collect();
    expected.extend((34..39).map(|granule| (granule, 3)));
    expected.extend((32..48).map(|granule| (granule, 4)));
    expected.sort_unstable();
    assert_eq!(shown(&runs), expected);
    runs.reverse();
    assert_eq!(shown(&runs), expected);
}

#[test]
fn accesses_of_one_segment_that_stand_for_others_take_their_place() {
    let runs = [
        run(33, 2, 1, 5, 0),
        run(40, 3, 1, 5, 0),
        run(32, 16, 1, 5, 0),
    ];
    let each: Vec<_> = (32..48).map(|granule| (granule, 5)).collect();
    assert_eq!(shown(&runs), each);
    let runs = [run(32, 16, 1, 5, 0), run(33, 2, 1, 5, 0)];
    assert_eq!(shown(&runs), each);
}

#[test]
fn what_was_before_the_last_two_allocations_makes_room() {
    let last = (1 << LIFE_BITS) - 1;
    let runs = [(254, last - 1), (255, last), (0, 0)]
        .map(|(segment, life)| run(32, 16, 1, 1 + segment, life));
    let segments: Vec<_> = shown(&runs)
        .into_iter()
        .map(|(_, segment)| segment)
        .collect();
    assert!(segments.contains(&256) && segments.contains(&1));
    assert!(!segments.contains(&255));
    // One that comes late is kept: what it raced with may come later.
    let runs = [1, 0].map(|life| run(32, 16, 1, 1 + life, life));
    assert_eq!(shown(&runs).len(), 32);
}

/// Knows of everything that came before each access that it was compared.
struct AllBefore;

impl Asks for AllBefore {
    fn compare(&mut self, _: &Access, _: &Access) {}

    fn stands_for(&mut self, new: &Access, kept: &Access) -> bool {
        new.segment > kept.segment
    }
}

#[test]
fn an_access_makes_room_for_later_ones_that_stand_for_it() {
    let all = memory();
    let words = Words::new(&all, Reserve::Not, HEAD + 1).unwrap();
    let (row, mut blocks) = (Row::new(&words, HEAD, 32), Blocks::default());
    let read = |mut run: Run| {
        run.access.kind = 0;
        run
    };
    for segment in 1..100 {
        row.add(&mut blocks, &run(32, 16, 1, segment, 0), &mut AllBefore);
    }
    // A read races with less than a write does.
    row.add(&mut blocks, &read(run(32, 1, 1, 100, 0)), &mut AllBefore);
    // Of another life, or to other bytes: nothing stands for those.
    row.add(&mut blocks, &run(33, 1, 1, 101, 1), &mut AllBefore);
    row.add(&mut blocks, &run(34, 1, 1, 102, 0), &mut AllBefore);
    let mut kept = Vec::new();
    let all = run(32, 4, 9, 1, 0);
    row.add(&mut blocks, &all, &mut |_: &Access, other: &Access| {
        kept.push(other.segment);
    });
    kept.sort_unstable();
    assert_eq!(kept, [99, 100, 101, 102]);
    assert_eq!(words.count(Counter::Shortened), 0);
}

fn freed(segment: u32) -> Run {
    let mut freed = run(32, 16, 1, segment, 0);
    freed.access.kind = kind::WRITE | kind::FREE;
    freed
}

/// Bytes here and there, so that entries are wide, each from another place.
fn scattered(segment: u32) -> impl Iterator<Item = Run> {
    (0..8).map(move |site| {
        let mut run = run(32, 16, 1, segment, 0);
        (run.access.mask, run.access.site) = (1 << site, 2 + site);
        run
    })
}

#[test]
fn of_memory_that_was_freed_little_is_kept_in_little_memory() {
    let all = memory();
    let words = Words::new(&all, Reserve::Not, HEAD + 1).unwrap();
    let (row, mut blocks) = (Row::new(&words, HEAD, 32), Blocks::default());
    let list = || List::of(words.get(HEAD)).unwrap();
    for run in scattered(1) {
        row.add(&mut blocks, &run, &mut AllBefore);
    }
    assert!(list().wide && list().count == 8);
    row.add(&mut blocks, &freed(1), &mut AllBefore);
    assert_eq!(
        list().count,
        9,
        "how it was used in that segment is still said"
    );
    row.add(&mut blocks, &freed(2), &mut AllBefore);
    let List {
        count, size, wide, ..
    } = list();
    assert_eq!((count, size, wide), (1, 0, false));
}

#[test]
fn what_could_not_go_when_memory_was_freed_goes_when_room_is_needed_for_its_next_life() {
    let all = memory();
    let words = Words::new(&all, Reserve::Not, HEAD + 1).unwrap();
    let (row, mut blocks) = (Row::new(&words, HEAD, 32), Blocks::default());
    let nothing = &mut |_: &Access, _: &Access| {};
    for run in scattered(1).chain([freed(2)]) {
        row.add(&mut blocks, &run, nothing);
    }
    let size = List::of(words.get(HEAD)).unwrap().size;
    for mut run in scattered(3) {
        run.access.life = 1;
        row.add(&mut blocks, &run, &mut AllBefore);
    }
    let mut kept = Vec::new();
    let ask = &mut |_: &Access, other: &Access| kept.push((other.life, other.kind));
    row.add(&mut blocks, &run(32, 16, 9, 1, 0), ask);
    kept.sort_unstable();
    kept.dedup();
    assert_eq!(kept, [(0, freed(2).access.kind), (1, kind::WRITE)]);
    assert_eq!(List::of(words.get(HEAD)).unwrap().size, size);
}
