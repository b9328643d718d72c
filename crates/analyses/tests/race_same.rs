//! What a search finds does not depend on the order in which buffers are processed, nor on how many accesses
//! are in one; and it is what comparing every pair of accesses finds.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_analyses::race::{
    Access, Accesses, Clock, Counter, FREED, Order, Race, Reserve, Run, Search, Site, ThreadClock,
    ThreadRecord, kind,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

/// What a thread does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Access {
        granule: u8,
        granules: u16,
        mask: u8,
        kind: u8,
        life: u32,
    },
    Release(u8),
    Acquire(u8),
    /// An access at a place that all threads share.
    Same {
        granule: u8,
        kind: u8,
    },
}

/// Accesses are to one granule each, in two lives of memory that is freed, or to many in a row.
fn step(runs: bool) -> impl Strategy<Value = Step> {
    let (granule, granules, lives, freed) = match runs {
        true => (0_u8..60, 1_u16..40, 0_u32..1, 0),
        false => (0..3, 1..2, 0..2, 1),
    };
    let kinds = || prop_oneof![Just(0), Just(kind::WRITE), Just(kind::WRITE | kind::ATOMIC)];
    prop_oneof![
        6 => (granule, granules, prop_oneof![Just(0x0f), Just(0xf0), Just(0xff), Just(1)],
            prop_oneof![5 => kinds(), freed => Just(FREED)], lives)
            .prop_map(|(granule, granules, mask, kind, life)| Step::Access { granule, granules, mask, kind, life }),
        2 => (0_u8..3).prop_map(Step::Release),
        2 => (0_u8..3).prop_map(Step::Acquire),
        1 => (0_u8..3, kinds()).prop_map(|(granule, kind)| Step::Same { granule, kind }),
    ]
}

fn log(shared_places: bool, runs: bool) -> impl Strategy<Value = Vec<(u16, Step)>> {
    let steps = proptest::collection::vec((0_u16..4, step(runs)), 1..60);
    steps.prop_map(move |steps| {
        let kept = steps
            .into_iter()
            .filter(|(_, step)| shared_places || !matches!(step, Step::Same { .. }));
        kept.collect()
    })
}

/// A recorded access, with the clock of its thread.
struct Recorded {
    run: Run,
    clock: Clock,
}

/// Runs a log on a search: its accesses in the order in which they happened.
fn recorded(search: &Search<'_>, log: &[(u16, Step)]) -> Vec<Recorded> {
    let begin = |thread| ThreadClock::begin(thread, 1, &Clock::default());
    let mut threads: Vec<ThreadClock> = (0..4).map(begin).collect();
    for clock in &threads {
        search.timelines().note(&search.words, clock);
    }
    let mut released = [Clock::default(), Clock::default(), Clock::default()];
    let mut accesses = Vec::new();
    for (index, (thread, step)) in log.iter().enumerate() {
        let clock = &mut threads[usize::from(*thread)];
        let (granule, granules, mask, (kind, life), code) = match *step {
            Step::Release(at) => {
                clock.release(&mut released[usize::from(at)]);
                continue;
            }
            Step::Acquire(at) => {
                if clock.acquire(&released[usize::from(at)]) {
                    search.timelines().note(&search.words, clock);
                }
                continue;
            }
            Step::Access {
                granule,
                granules,
                mask,
                kind,
                life,
            } => (granule, granules, mask, (kind, life), index as u64 + 100),
            Step::Same { granule, kind } => (granule, 1, 0xff, (kind, 0), 1 + u64::from(kind)),
        };
        let site = search.site(Site {
            code,
            context: 0,
            locks: 0,
        });
        let access = Access {
            granule: u64::from(granule) + 1000,
            mask,
            life,
            kind,
            thread: *thread,
            segment: clock.segment(),
            site,
        };
        accesses.push(Recorded {
            run: Run { access, granules },
            clock: clock.clock().clone(),
        });
    }
    accesses
}

/// Granules on which two threads race: what is found does not say each pair of accesses, since one of a
/// segment stands for others.
type Pairs = BTreeSet<(u64, u16, u16)>;

fn pair(granule: u64, one: &Access, other: &Access) -> (u64, u16, u16) {
    let (a, b) = (one.thread, other.thread);
    (granule, a.min(b), a.max(b))
}

/// Every pair, compared with whole clocks.
fn by_all_pairs(accesses: &[Recorded]) -> Pairs {
    let mut pairs = Pairs::new();
    for (index, one) in accesses.iter().enumerate() {
        for other in &accesses[..index] {
            let before = |a: &Recorded, b: &Recorded| {
                a.run.access.segment <= b.clock.of(a.run.access.thread)
            };
            let (a, b) = (&one.run.access, &other.run.access);
            if a.conflicts(b) && !before(one, other) && !before(other, one) {
                let granules =
                    |run: &Run| run.access.granule..run.access.granule + u64::from(run.granules);
                let common = granules(&one.run).filter(|g| granules(&other.run).contains(g));
                pairs.extend(common.map(|granule| pair(granule, a, b)));
            }
        }
    }
    pairs
}

fn found(search: &Search<'_>) -> Pairs {
    let races = search.races();
    let pair = |race: &Race| {
        pair(
            race.accesses[0].granule,
            &race.accesses[0],
            &race.accesses[1],
        )
    };
    races.iter().map(pair).collect()
}

fn words() -> Vec<AtomicU64> {
    (0..1 << 20).map(|_| AtomicU64::new(0)).collect()
}

/// Says, as the runtime does, up to where each thread was compared: to the first of its buffers that is not.
fn say_compared(search: &Search<'_>, buffers: &[(usize, Vec<&Run>)], processed: usize) {
    for thread in 0..4 {
        let of_thread = |run: &Run| run.access.thread == thread;
        let left = buffers[processed..].iter();
        let left = left.filter(|(_, buffer)| buffer.iter().all(|run| of_thread(run)));
        let first = left.min_by_key(|(number, _)| *number);
        let segment = first.map_or(u32::MAX, |(_, buffer)| buffer[0].access.segment);
        search.settled().compared(thread, segment);
    }
}

/// What is found for certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Not everything.
    Some,
    /// Each granule that is raced on.
    EachGranule,
    /// Each granule, and each two threads that race on it.
    All,
}

fn granules(pairs: &Pairs) -> BTreeSet<u64> {
    pairs.iter().map(|(granule, ..)| *granule).collect()
}

/// Searches a log whose buffers are processed in this order.
fn searched(log: &[(u16, Step)], capacity: usize, seed: u64) -> (Pairs, Pairs, Kept) {
    let all = words();
    let search = Search::new(&all, Reserve::Not, Order::HappensBefore).unwrap();
    let accesses = recorded(&search, log);
    let mut buffers: Vec<(usize, Vec<&Run>)> = Vec::new();
    for thread in 0..4 {
        let own: Vec<_> = accesses
            .iter()
            .map(|recorded| &recorded.run)
            .filter(|run| run.access.thread == thread)
            .collect();
        buffers.extend(own.chunks(capacity).map(<[_]>::to_vec).enumerate());
    }
    // Fisher and Yates, with the numbers of a linear congruence.
    let mut state = seed | 1;
    for index in (1..buffers.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        buffers.swap(index, (state >> 33) as usize % (index + 1));
    }
    for (index, (_, buffer)) in buffers.iter().enumerate() {
        say_compared(&search, &buffers, index);
        search.sorting(|sorting| {
            for Run { access, granules } in buffer {
                let (place, segment, site, extent) = access.packed(*granules);
                sorting.access(place, segment, site, extent);
            }
        });
    }
    let nothing = |counter| search.words.count(counter) == 0;
    let kept = match (nothing(Counter::Shortened), nothing(Counter::Replaced)) {
        (false, _) => Kept::Some,
        (true, false) => Kept::EachGranule,
        (true, true) => Kept::All,
    };
    (found(&search), by_all_pairs(&accesses), kept)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_order_of_buffers_finds_what_comparing_all_pairs_finds(
        log in log(false, false), capacity in 1_usize..8, seed: u64,
    ) {
        let (found, expected, kept) = searched(&log, capacity, seed);
        prop_assume!(kept != Kept::Some);
        prop_assert!(found.is_subset(&expected), "{:?} of {:?}", found, expected);
        prop_assert_eq!(granules(&found), granules(&expected));
        if kept == Kept::All {
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn nothing_is_reported_that_is_ordered_however_often_code_repeats(
        log in log(true, false), capacity in 1_usize..8, seed: u64,
    ) {
        let (found, expected, _) = searched(&log, capacity, seed);
        prop_assert!(found.is_subset(&expected), "{:?} of {:?}", found, expected);
    }

    #[test]
    fn any_order_of_buffers_finds_the_same_of_accesses_to_many_granules(
        log in log(false, true), capacity in 1_usize..8, seed: u64,
    ) {
        let (found, expected, kept) = searched(&log, capacity, seed);
        prop_assert!(found.is_subset(&expected), "{:?} of {:?}", found, expected);
        prop_assume!(kept == Kept::All);
        // Of two pieces of code that race on many granules, the first of these is kept.
        let threads = |pairs: &Pairs| -> BTreeSet<_> { pairs.iter().map(|(_, a, b)| (*a, *b)).collect() };
        prop_assert_eq!(threads(&found), threads(&expected));
    }
}

#[test]
fn what_comes_late_of_a_thread_races_with_what_its_next_segment_comes_after() {
    let write = |granule| Step::Access {
        granule,
        granules: 1,
        mask: 0xff,
        kind: kind::WRITE,
        life: 0,
    };
    // The list of the row is long enough that accesses stand for those of other threads.
    let mut log: Vec<_> = (1..6).map(|granule| (2, write(granule))).collect();
    log.extend([(0, write(0)), (1, write(0))]);
    log.extend([(0, Step::Release(0)), (1, Step::Acquire(0)), (1, write(0))]);
    let all = words();
    let search = Search::new(&all, Reserve::Not, Order::HappensBefore).unwrap();
    let mut accesses = recorded(&search, &log);
    for thread in [0, 2, 3] {
        search.settled().compared(thread, u32::MAX);
    }
    // Of thread 1, what it did after the acquisition is compared first.
    let last = accesses.len() - 1;
    accesses.swap(last - 1, last);
    for Recorded { run, .. } in &accesses {
        let (place, segment, site, extent) = run.access.packed(run.granules);
        search.access(place, segment, site, extent);
    }
    assert_eq!(found(&search), Pairs::from([(1000, 0, 1)]));
}

#[test]
fn what_several_threads_did_in_many_lives_of_memory_is_compared_life_by_life() {
    let write = Step::Access {
        granule: 0,
        granules: 1,
        mask: 0xff,
        kind: kind::WRITE,
        life: 0,
    };
    let all = words();
    let search = Search::new(&all, Reserve::Not, Order::HappensBefore).unwrap();
    // One thread's in the first life and in four later ones, and then the other's in the first.
    let log = [0, 0, 0, 0, 0, 1].map(|thread| (thread, write));
    let mut accesses = recorded(&search, &log);
    for (life, access) in (0..5).zip(&mut accesses) {
        access.run.access.life = life;
    }
    search.sorting(|sorting| {
        for Recorded { run, .. } in &accesses {
            let (place, segment, site, extent) = run.access.packed(run.granules);
            sorting.access(place, segment, site, extent);
        }
    });
    assert_eq!(found(&search), Pairs::from([(1000, 0, 1)]));
}

#[test]
fn a_search_goes_on_where_another_stopped_in_the_same_words() {
    let all = words();
    let access = |thread: u16, site: u32| Access {
        granule: 5,
        mask: 0xff,
        life: 0,
        kind: kind::WRITE,
        thread,
        segment: 1,
        site,
    };
    for thread in 0..2 {
        let search = Search::new(&all, Reserve::Not, Order::HappensBefore).unwrap();
        let clock = ThreadClock::begin(thread, 1, &Clock::default());
        search.timelines().note(&search.words, &clock);
        let site = search.site(Site {
            code: 77 + u64::from(thread),
            context: 0,
            locks: 0,
        });
        let (place, segment, site, extent) = access(thread, site).packed(1);
        search.access(place, segment, site, extent);
        search.access(place, segment, site, extent);
        search.thread(&ThreadRecord {
            thread,
            first: 1,
            tid: 40,
            index: u32::from(thread),
            parent: 0,
            site: 0,
            name: format!("worker {thread}"),
        });
    }
    let search = Search::new(&all, Reserve::Not, Order::HappensBefore).unwrap();
    assert_eq!(found(&search), Pairs::from([(5, 0, 1)]));
    let names: Vec<_> = search
        .threads()
        .into_iter()
        .map(|thread| thread.name)
        .collect();
    assert_eq!(names, ["worker 1", "worker 0"]);
}
