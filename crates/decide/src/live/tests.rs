use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A program of regions that begin one after the other, for ever: each with the time that it takes with each
/// number of threads.
struct Program<F: Fn(Key, u32) -> u64> {
    time_ns: F,
    asked: u32,
    now_ns: u64,
    has: BTreeMap<Key, u32>,
    seen: BTreeMap<Key, Seen>,
    tuner: Tuner,
    gives: u32,
}

impl<F: Fn(Key, u32) -> u64> Program<F> {
    fn new(keys: &[Key], asked: u32, time_ns: F) -> Program<F> {
        let seen = Seen {
            asked,
            ..Seen::default()
        };
        Program {
            time_ns,
            asked,
            now_ns: 0,
            has: keys.iter().map(|key| (*key, asked)).collect(),
            seen: keys.iter().map(|key| (*key, seen)).collect(),
            tuner: Tuner::new(),
            gives: 0,
        }
    }

    /// Lets it run for so long, with a look every 10 ms.
    fn run(&mut self, milliseconds: u64, limit: Option<u32>) {
        let end = self.now_ns + milliseconds * MS;
        let mut next_look = self.now_ns + 10 * MS;
        while self.now_ns < end {
            for (key, has) in &self.has {
                let threads = (*has).min(limit.unwrap_or(u32::MAX));
                let time = (self.time_ns)(*key, threads);
                let seen = self.seen.get_mut(key).unwrap();
                seen.runs += 1;
                seen.time_ns += time;
                self.now_ns += time;
            }
            if self.now_ns >= next_look {
                next_look = self.now_ns + 10 * MS;
                let seen: Vec<_> = self.seen.iter().map(|(k, s)| (*k, *s)).collect();
                for give in self.tuner.look(self.now_ns, limit, seen) {
                    self.gives += 1;
                    self.has.insert(give.key, give.threads);
                    let fresh = Seen {
                        asked: self.asked,
                        ..Seen::default()
                    };
                    self.seen.insert(give.key, fresh);
                }
            }
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
    let time = |key, threads| scales_up_to(if key == 1 { 64 } else { 1 }, threads);
    let mut program = Program::new(&[1, 2], 8, time);
    program.run(3_000, None);
    assert_eq!(program.has, BTreeMap::from([(1, 8), (2, 1)]));
    assert!(!program.tuner.is_searching());
}

#[test]
fn a_number_in_the_middle_is_found() {
    let mut program = Program::new(&[1], 24, |_, threads| scales_up_to(10, threads));
    program.run(3_000, None);
    let found = program.has[&1];
    assert!((9..=11).contains(&found), "{found}");
}

#[test]
fn threads_that_make_no_difference_are_not_taken() {
    let mut program = Program::new(&[1], 4, |_, _| 300_000);
    program.run(2_000, None);
    assert_eq!(program.has[&1], 1);
}

#[test]
fn a_region_that_takes_little_time_is_left_alone() {
    let time = |key, _| if key == 1 { 500_000 } else { 2_000 };
    let mut program = Program::new(&[1, 2], 4, time);
    program.run(2_000, None);
    assert_eq!(program.has[&2], 4);
}

#[test]
fn within_a_claim_no_more_is_tried_and_when_it_grows_more_is() {
    let mut program = Program::new(&[1], 8, |_, threads| scales_up_to(64, threads));
    program.run(2_000, Some(2));
    assert_eq!(program.has[&1], 2);
    program.run(4_000, None);
    assert_eq!(program.has[&1], 8);
}

#[test]
fn a_phase_in_which_its_time_is_another_begins_a_new_search() {
    let phase = std::cell::Cell::new(64);
    let mut program = Program::new(&[1], 4, |_, threads| scales_up_to(phase.get(), threads));
    program.run(2_000, None);
    assert_eq!(program.has[&1], 4);
    phase.set(1);
    program.run(4_000, None);
    assert_eq!(program.has[&1], 1);
}

#[test]
fn a_program_whose_times_jump_about_is_searched_ever_more_seldom() {
    let count = std::cell::Cell::new(0_u64);
    let mut program = Program::new(&[1], 4, |_, _| {
        count.set(count.get() + 1);
        // Phases of some 50 ms each.
        if (count.get() / 100).is_multiple_of(2) {
            200_000
        } else {
            900_000
        }
    });
    program.run(60_000, None);
    assert!(program.gives < 60, "{}", program.gives);
}

#[test]
fn with_one_thread_there_is_nothing_to_search() {
    let mut program = Program::new(&[1], 1, |_, _| 300_000);
    program.run(2_000, None);
    assert_eq!(program.gives, 0);
}

proptest! {
    /// Whatever is seen, a number is never above the claim or what the region asked for, and never none.
    #[test]
    fn a_number_is_never_above_the_claim_and_never_none(
        looks in prop::collection::vec(
            (0..100 * MS, prop::option::of(0..40_u32), prop::collection::vec((0..5_u64, 0..40_u32, 0..100_u64, 0..50 * MS), 0..6)),
            0..200,
        )
    ) {
        let mut tuner = Tuner::new();
        let mut now = 0;
        for (after, limit, seen) in looks {
            now += after;
            let seen: BTreeMap<Key, Seen> = seen
                .into_iter()
                .map(|(key, asked, runs, time_ns)| (key, Seen { asked, runs, time_ns }))
                .collect();
            let asked: BTreeMap<Key, u32> = seen.iter().map(|(k, s)| (*k, s.asked)).collect();
            for give in tuner.look(now, limit, seen) {
                let most = asked[&give.key].min(limit.unwrap_or(u32::MAX)).max(1);
                prop_assert!((1..=most).contains(&give.threads), "{give:?} of {most}");
            }
        }
    }
}
