//! What holds for every search, whatever the program shows it.

use corewise_decide::profile::Profile;
use corewise_decide::search::bounds::BoundSearch;
use corewise_decide::search::reinforcer::{ThreadReinforcer, Thresholds};
use corewise_decide::search::sweep::Sweep;
use corewise_decide::search::{Choice, Objective, Outcome, Search, Space, Step};
use corewise_decide::setting::{Convert, Setting};
use corewise_decide::watch::NoProfile;
use proptest::prelude::*;

/// More trials than any search could want: 2 ways of waiting, 3 rounds, 64 numbers.
const TRIALS_MAX: usize = 400;

fn spaces() -> impl Strategy<Value = Space> {
    (
        1_u32..32,
        0_u32..32,
        0.2..32.0_f64,
        (0.0..32.0_f64, 0.0..=1.0_f64),
        any::<bool>(),
        any::<bool>(),
        (0_u32..4, 1_u32..5),
        proptest::option::of(0_u32..80),
    )
        .prop_map(
            |(min, more, cpus, (others, fair), passive, share, convert, prior)| Space {
                cpus,
                others,
                fair: fair * cpus,
                min,
                max: min + more,
                convert: Convert {
                    fixed: convert.0,
                    per_argument: convert.1,
                },
                passive,
                objective: if share {
                    Objective::Share
                } else {
                    Objective::Speed
                },
                prior: prior.map(Setting::threads),
                budget_ns: 1_000_000_000,
            },
        )
}

fn outcomes() -> impl Strategy<Value = Vec<Outcome>> {
    let profile = (
        (0.0..40.0_f64, 0.0..1.0_f64, 0.0..1.0_f64, 0.0..1e5_f64),
        (0.0..1e4_f64, 0.0..32.0_f64, 0.0..32.0_f64, 0.0..1.0_f64),
        proptest::option::of(0_u64..10_000),
        proptest::option::weighted(0.2, 1_u64..400_000_000),
        any::<bool>(),
    )
        .prop_map(|(a, b, regions, whole_run_ns, spin_known)| {
            Outcome::Seen(Profile {
                setting: Setting::threads(1),
                window_ns: 250_000_000,
                startup_ns: 0,
                whole_run_ns,
                parallel: true,
                cpu_util: a.0,
                spin: spin_known.then_some(a.0 * a.1),
                cpu_wait: b.1,
                lock: a.2,
                vcx_rate: a.3,
                icx_rate: 0.0,
                migration_rate: b.0,
                regions,
                region_times: regions.map_or(vec![], |n| vec![(0, 0), (250_000_000, n)]),
                others: b.1,
                idle: b.2,
                active_threads: 1,
                busiest: 0.0,
                critical_threads: 0,
                relative_error: b.3,
            })
        });
    let outcome = prop_oneof![
        8 => profile,
        1 => Just(Outcome::Unseen(NoProfile::NeverParallel)),
        1 => Just(Outcome::Unseen(NoProfile::TooShort)),
        1 => Just(Outcome::Failed),
    ];
    proptest::collection::vec(outcome, 1..40)
}

/// Runs `search` on `outcomes`, over and over; what it tried, and its choice.
fn run(search: &mut dyn Search, outcomes: &[Outcome]) -> (Vec<Setting>, Choice) {
    let mut tried = Vec::new();
    let mut step = search.start();
    loop {
        match step {
            Step::Done(choice) => return (tried, choice),
            Step::Try(trial) => {
                assert!(tried.len() < TRIALS_MAX, "no end: {tried:?}");
                let mut outcome = outcomes[tried.len() % outcomes.len()].clone();
                if let Outcome::Seen(profile) = &mut outcome {
                    profile.setting = trial.setting;
                }
                tried.push(trial.setting);
                step = search.next(outcome);
            }
        }
    }
}

fn searches(space: &Space) -> Vec<Box<dyn Search>> {
    vec![
        Box::new(BoundSearch::new(space.clone())),
        Box::new(Sweep::new(space.clone(), 3, 1_000_000_000)),
        Box::new(ThreadReinforcer::new(
            space.clone(),
            3,
            Thresholds::default(),
        )),
    ]
}

proptest! {
    #[test]
    fn every_search_ends_and_stays_in_its_range(space in spaces(), outcomes in outcomes()) {
        for mut search in searches(&space) {
            let name = search.name();
            let (tried, choice) = run(search.as_mut(), &outcomes);
            let (low, high) = if name == "thread-reinforcer" {
                (space.convert.argument_for(space.min), space.convert.argument_for(space.max))
            } else {
                (space.min, space.max)
            };
            for setting in tried.iter().chain([&choice.setting]) {
                prop_assert!(
                    (low..=high).contains(&setting.threads),
                    "{name} left [{low}, {high}]: {setting}"
                );
                prop_assert!(space.passive || *setting == Setting::threads(setting.threads));
            }
            prop_assert!((0.0..=1.0).contains(&choice.confidence), "{name}: {choice:?}");
        }
    }

    #[test]
    fn the_same_profiles_lead_to_the_same_choice(space in spaces(), outcomes in outcomes()) {
        for (mut a, mut b) in searches(&space).into_iter().zip(searches(&space)) {
            prop_assert_eq!(run(a.as_mut(), &outcomes), run(b.as_mut(), &outcomes));
        }
    }

    #[test]
    fn the_default_tries_no_setting_twice_unless_it_ended_too_soon(
        space in spaces(),
        outcomes in outcomes(),
    ) {
        let (mut tried, _) = run(&mut BoundSearch::new(space), &outcomes);
        let first_again = tried.len() > 1 && tried[0] == tried[1];
        if first_again {
            tried.remove(0);
        }
        let count = tried.len();
        tried.sort();
        tried.dedup();
        prop_assert_eq!(tried.len(), count);
    }
}
