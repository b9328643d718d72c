use super::*;
use proptest::prelude::*;
use rand_like::Numbers;

const MS: u64 = 1_000_000;

/// Numbers that look random, the same for each seed.
mod rand_like {
    pub(super) struct Numbers(pub(super) u64);

    impl Numbers {
        /// From 0 to 1.
        pub(super) fn next(&mut self) -> f64 {
            // A linear congruential generator (Knuth's MMIX): its upper bits are good enough here.
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }
    }
}

/// A program of regions that begin one after the other, for ever: each with the time that it takes with each
/// number of threads, in nanoseconds. The regions page and the adapters as they are seen from here.
struct Program<F: FnMut(Key, u32, u64) -> u64> {
    time_ns: F,
    asked: u32,
    now_ns: u64,
    has: BTreeMap<Key, (Threads, u64)>,
    seen: BTreeMap<Key, Seen>,
    tuner: Tuner,
    gives: u32,
    searched_ns: u64,
}

impl<F: FnMut(Key, u32, u64) -> u64> Program<F> {
    fn new(keys: &[Key], asked: u32, time_ns: F) -> Program<F> {
        Program::knowing(BTreeMap::new(), keys, asked, time_ns)
    }

    fn knowing(known: BTreeMap<Key, Known>, keys: &[Key], asked: u32, time_ns: F) -> Program<F> {
        let seen = Seen {
            asked,
            ..Seen::default()
        };
        Program {
            time_ns,
            asked,
            now_ns: 0,
            has: keys
                .iter()
                .map(|key| (*key, (Threads::One(asked), 0)))
                .collect(),
            seen: keys.iter().map(|key| (*key, seen)).collect(),
            tuner: Tuner::new(known, ASKED_FOR),
            gives: 0,
            searched_ns: 0,
        }
    }

    /// Lets it run for so long, with a look every 5 ms.
    fn run(&mut self, milliseconds: u64, limit: Option<u32>) {
        let end = self.now_ns + milliseconds * MS;
        let mut next_look = self.now_ns + 5 * MS;
        while self.now_ns < end {
            for (key, (has, begun)) in &mut self.has {
                let (threads, side) = match *has {
                    Threads::One(threads) => (threads, Some(0)),
                    Threads::Turns { numbers, log2_runs } => {
                        let turn = 1 << log2_runs;
                        let side = usize::from(*begun & turn != 0);
                        let counts = turn == 1 || *begun & (turn - 1) != 0;
                        (numbers[side], counts.then_some(side))
                    }
                };
                *begun += 1;
                let threads = threads.min(limit.unwrap_or(u32::MAX));
                let time = (self.time_ns)(*key, threads, self.now_ns);
                let seen = self.seen.get_mut(key).unwrap();
                if let Some(side) = side {
                    let of = [&mut seen.first, &mut seen.second];
                    let [first, second] = of;
                    let runs = if side == 0 { first } else { second };
                    runs.runs += 1;
                    runs.time_ns += time;
                }
                self.now_ns += time;
            }
            if self.now_ns >= next_look {
                if self.tuner.is_searching() {
                    self.searched_ns += 5 * MS;
                }
                next_look = self.now_ns + 5 * MS;
                let seen: Vec<_> = self.seen.iter().map(|(k, s)| (*k, *s)).collect();
                for give in self.tuner.look(self.now_ns, limit, seen) {
                    self.gives += 1;
                    self.has.insert(give.key, (give.threads, 0));
                    let fresh = Seen {
                        asked: self.asked,
                        ..Seen::default()
                    };
                    self.seen.insert(give.key, fresh);
                }
            }
        }
    }

    /// The number that a region has; 0 while two take turns.
    fn has(&self, key: Key) -> u32 {
        match self.has[&key].0 {
            Threads::One(threads) => threads,
            Threads::Turns { .. } => 0,
        }
    }
}

/// A region of 400 µs of work that scales up to `most` threads and becomes slower beyond.
fn scales_up_to(most: u32, threads: u32) -> u64 {
    let useful = u64::from(threads.min(most));
    400_000 / useful + 20_000 * u64::from(threads.saturating_sub(most))
}

#[test]
fn a_region_that_scales_keeps_all_threads_and_one_that_does_not_gets_one() {
    let time = |key, threads, _| scales_up_to(if key == 1 { 64 } else { 1 }, threads);
    let mut program = Program::new(&[1, 2], 8, time);
    program.run(900, None);
    assert_eq!((program.has(1), program.has(2)), (8, 1));
    assert!(!program.tuner.is_searching());
}

#[test]
fn a_number_in_the_middle_is_found() {
    let mut program = Program::new(&[1], 24, |_, threads, _| scales_up_to(10, threads));
    program.run(1_000, None);
    let found = program.has(1);
    assert!((9..=11).contains(&found), "{found}");
}

#[test]
fn threads_that_make_no_difference_are_not_taken() {
    let mut program = Program::new(&[1], 4, |_, _, _| 300_000);
    program.run(1_000, None);
    assert_eq!(program.has(1), 1);
}

#[test]
fn a_region_that_takes_little_time_is_left_alone() {
    let time = |key, _, _| if key == 1 { 500_000 } else { 2_000 };
    let mut program = Program::new(&[1, 2], 4, time);
    program.run(2_000, None);
    assert_eq!(program.has(2), 4);
    assert!(program.tuner.found().all(|found| found.key == 1));
}

#[test]
fn within_a_claim_no_more_is_tried_and_when_it_grows_more_is() {
    let mut program = Program::new(&[1], 8, |_, threads, _| scales_up_to(64, threads));
    program.run(900, Some(2));
    assert_eq!(program.has(1), 2);
    program.run(2_000, None);
    assert_eq!(program.has(1), 8);
}

#[test]
fn a_phase_in_which_its_time_is_another_begins_a_new_search() {
    let phase = std::cell::Cell::new(64);
    let time = |_, threads, _| scales_up_to(phase.get(), threads);
    let mut program = Program::new(&[1], 4, time);
    program.run(2_000, None);
    assert_eq!(program.has(1), 4);
    phase.set(1);
    program.run(3_000, None);
    assert_eq!(program.has(1), 1);
}

#[test]
fn a_program_whose_times_jump_about_is_searched_ever_more_seldom() {
    let mut count = 0_u64;
    let mut program = Program::new(&[1], 4, |_, _, _| {
        count += 1;
        // Phases of some 50 ms each.
        if (count / 100).is_multiple_of(2) {
            200_000
        } else {
            900_000
        }
    });
    program.run(60_000, None);
    assert!(program.gives < 60, "{}", program.gives);
    assert!(
        program.searched_ns < 3_000 * MS,
        "{}",
        program.searched_ns / MS
    );
}

#[test]
fn with_one_thread_there_is_nothing_to_search() {
    let mut program = Program::new(&[1], 1, |_, _, _| 300_000);
    program.run(2_000, None);
    assert_eq!(program.gives, 0);
}

/// How a region with noise is judged, of 40 programs: how many give it each number.
fn of_noisy(two: f64, one: f64) -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let time = move |_, threads, _| {
            // Work differs by a factor of up to 30, as with the leaves of a tree...
            let work = 20_000.0 * 30_f64.powf(numbers.next());
            let time = work * if threads == 1 { one } else { two };
            // ... and now and then somebody else has the CPU.
            let away = if numbers.next() < 0.01 { 3e6 } else { 0.0 };
            (time + away) as u64
        };
        let mut program = Program::new(&[1], 2, time);
        program.run(950, None);
        let number = program.tuner.found().next().map_or(0, |f| f.known.threads);
        *found.entry(number).or_default() += 1;
    }
    found
}

#[test]
fn the_faster_number_is_found_among_runs_of_very_different_lengths() {
    let faster = of_noisy(1.0, 1.6);
    assert!(faster.get(&2) >= Some(&38), "{faster:?}");
    let slower = of_noisy(1.4, 1.0);
    assert!(slower.get(&1) >= Some(&38), "{slower:?}");
}

#[test]
fn a_machine_that_becomes_slower_meanwhile_deceives_nobody() {
    // Half as fast in 400 ms, and back again.
    let time = |_, threads, now: u64| {
        let part = (now % (800 * MS)) as f64 / (400 * MS) as f64;
        let slower = if part < 1.0 { 1.0 + part } else { 3.0 - part };
        let work = if threads == 1 { 120_000.0 } else { 100_000.0 };
        (work * slower) as u64
    };
    let mut program = Program::new(&[1], 2, time);
    program.run(900, None);
    assert_eq!(program.has(1), 2);
}

#[test]
fn a_short_program_of_many_regions_loses_little_to_searching() {
    // Nine regions that all scale: every trial with fewer threads is a loss.
    let keys: Vec<Key> = (1..=9).collect();
    let time = |key: Key, threads, _| key * 40_000 / u64::from(threads);
    let mut program = Program::new(&keys, 2, time);
    program.run(4_000, None);
    assert!(keys.iter().all(|key| program.has(*key) == 2));
    let lost = program.tuner.lost_ns() as f64 / program.now_ns as f64;
    assert!(lost < 0.03, "{lost}");
}

#[test]
fn what_is_lost_stays_within_the_budget_whatever_trials_cost() {
    // Fewer threads are far slower, on a machine of many CPUs.
    let keys: Vec<Key> = (1..=20).collect();
    let time = |_, threads: u32, _| 100_000 * u64::from(64_u32.div_ceil(threads));
    for budget in [ASKED_FOR, UNASKED] {
        let mut program = Program::new(&keys, 64, time);
        program.tuner = Tuner::new(BTreeMap::new(), budget);
        for _ in 0..50 {
            program.run(100, None);
            let lost = (program.tuner.lost_ns() as f64 - ADVANCE_NS) / program.now_ns as f64;
            assert!(
                lost < 1.2 * budget,
                "{lost} after {} ms",
                program.now_ns / MS
            );
        }
        assert!(
            keys.iter()
                .all(|key| program.has(*key) == 64 || program.has(*key) == 0)
        );
    }
}

#[test]
fn long_regions_are_searched_once_there_is_room_for_a_run_that_is_slower() {
    let time = |_, threads: u32, _| 200 * MS / u64::from(threads);
    let mut program = Program::new(&[1], 2, time);
    program.run(2_000, None);
    assert_eq!(program.gives, 0);
    program.run(20_000, None);
    assert_eq!(program.has(1), 2);
    assert!(program.gives > 0);
}

#[test]
fn a_second_run_begins_with_what_the_first_has_found() {
    let time = |key, threads, _| scales_up_to(if key == 1 { 64 } else { 1 }, threads);
    let mut first = Program::new(&[1, 2], 8, time);
    first.run(900, None);
    let known: BTreeMap<Key, Known> = first.tuner.found().map(|f| (f.key, f.known)).collect();
    assert_eq!(
        known[&2],
        Known {
            threads: 1,
            most: 8
        }
    );
    let mut second = Program::knowing(known, &[1, 2], 8, time);
    second.run(10, None);
    assert_eq!((second.has(1), second.has(2)), (8, 1));
    second.run(3_500, None);
    assert_eq!(second.searched_ns, 0);
    assert_eq!(second.tuner.found().count(), 2);
}

#[test]
fn what_was_found_under_another_claim_is_searched_again() {
    let known = BTreeMap::from([(
        1,
        Known {
            threads: 2,
            most: 2,
        },
    )]);
    let time = |_, threads, _| scales_up_to(64, threads);
    let mut program = Program::knowing(known, &[1], 8, time);
    program.run(900, None);
    assert_eq!(program.has(1), 8);
}

#[test]
fn what_is_known_but_no_longer_true_is_found_out() {
    let known = BTreeMap::from([(
        1,
        Known {
            threads: 1,
            most: 8,
        },
    )]);
    let time = |_, threads, _| scales_up_to(64, threads);
    let mut program = Program::knowing(known, &[1], 8, time);
    program.run(6_000, None);
    assert_eq!(program.has(1), 8);
}

proptest! {
    /// Whatever is seen, a number is never above the claim or what the region asked for, and never none.
    #[test]
    fn a_number_is_never_above_the_claim_and_never_none(
        known in (0..50_u32, 0..50_u32),
        looks in prop::collection::vec(
            (0..100 * MS, prop::option::of(0..40_u32),
             prop::collection::vec((0..5_u64, 0..40_u32, 0..100_u64, 0..50 * MS, 0..100_u64, 0..50 * MS), 0..6)),
            0..200,
        )
    ) {
        let known = Known { threads: known.0.max(1), most: known.1.max(known.0).max(1) };
        let mut tuner = Tuner::new(BTreeMap::from([(1, known)]), ASKED_FOR);
        let mut now = 0;
        for (after, limit, seen) in looks {
            now += after;
            let runs = |runs, time_ns| Runs { runs, time_ns };
            let seen: BTreeMap<Key, Seen> = seen
                .into_iter()
                .map(|(key, asked, first, first_ns, second, second_ns)| {
                    let (first, second) = (runs(first, first_ns), runs(second, second_ns));
                    (key, Seen { asked, first, second })
                })
                .collect();
            let asked: BTreeMap<Key, u32> = seen.iter().map(|(k, s)| (*k, s.asked)).collect();
            for give in tuner.look(now, limit, seen) {
                let most = asked[&give.key].min(limit.unwrap_or(u32::MAX)).max(1);
                let (numbers, apart) = match give.threads {
                    Threads::One(threads) => ([threads, threads], true),
                    Threads::Turns { numbers, .. } => (numbers, numbers[0] != numbers[1]),
                };
                prop_assert!(apart, "{give:?}");
                prop_assert!(numbers.iter().all(|n| (1..=most).contains(n)), "{give:?} of {most}");
            }
        }
    }
}
