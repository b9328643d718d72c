//! What holds of every gang schedule.

use super::*;
use proptest::prelude::*;

const CPUS: u32 = 12;

#[derive(Clone, Debug)]
enum Step {
    Set(Set),
    Remove(u64),
    Wait(u64),
}

fn sets() -> impl Strategy<Value = Set> {
    let cpus = prop_oneof![
        prop::collection::btree_set(0..CPUS + 2, 1..6)
            .prop_map(|c| Where::On(c.into_iter().collect())),
        (0..CPUS, 1..6u32).prop_map(|(at, n)| Where::On((at..at + n).collect())),
        (1..CPUS + 2).prop_map(Where::Any),
    ];
    let weight = prop_oneof![Just(100), 1..=MOST_WEIGHT];
    (
        0..9u64,
        cpus,
        0..7u32,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.3),
        weight,
    )
        .prop_map(|(id, cpus, demand, keeps_idle, sleeps, weight)| Set {
            id: SetId(id),
            cpus,
            demand,
            keeps_idle,
            sleeps,
            weight,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => sets().prop_map(Step::Set),
        2 => (0..9u64).prop_map(Step::Remove),
        2 => (1..300_000_000u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..30)
}

/// What the steps leave behind: the schedule, what it was told, and what it told whom.
#[derive(Debug, Default, PartialEq)]
struct After {
    schedule: Schedule,
    sets: BTreeMap<SetId, Set>,
    turns: BTreeMap<SetId, Turn>,
    time_ns: u64,
}

fn after(steps: &[Step]) -> After {
    let mut all = After::default();
    all.schedule.machine(&Machine::flat(CPUS));
    for step in steps {
        match step {
            Step::Set(set) => {
                all.schedule.set(set.clone());
                all.sets.insert(set.id, set.clone());
            }
            Step::Remove(id) => {
                all.schedule.remove(SetId(*id));
                all.sets.remove(&SetId(*id));
            }
            Step::Wait(ns) => {
                all.time_ns += ns;
                all.plan();
            }
        }
    }
    all.plan();
    all
}

impl After {
    fn plan(&mut self) -> Vec<Change> {
        let changes = self.schedule.plan(self.time_ns);
        for change in &changes {
            self.turns.remove(&change.set);
            if let Some(turn) = &change.turn {
                self.turns.insert(change.set, turn.clone());
            }
        }
        changes
    }

    fn needs(&self, id: SetId) -> u32 {
        let (set, cpus) = (&self.sets[&id], self.schedule.cpus(id).unwrap().count());
        match set.keeps_idle {
            true => cpus,
            false => set.demand.clamp(1, cpus.max(1)),
        }
    }

    /// Whether nothing was promised to a set: its threads sleep while they wait, and it runs always.
    fn is_left_to_linux(&self, id: SetId) -> bool {
        let set = &self.sets[&id];
        set.sleeps && !set.keeps_idle && !self.turns.contains_key(&id)
    }

    /// Sets that run at an offset of a period.
    fn running(&self, time_ns: u64) -> Vec<SetId> {
        let runs = |id: &&SetId| {
            self.turns
                .get(id)
                .is_none_or(|t| t.runs_at(time_ns) != Some(false))
        };
        self.sets.keys().filter(runs).copied().collect()
    }
}

/// Whether every set can have the CPUs that it needs at once, each CPU for one set: by augmenting paths.
fn all_have_cpus(wants: &[(CpuSet, u32)]) -> bool {
    fn find(
        wants: &[(CpuSet, u32)],
        who: usize,
        seen: &mut CpuSet,
        owner: &mut BTreeMap<u32, usize>,
    ) -> bool {
        wants[who].0.iter().any(|cpu| {
            if !seen.insert(cpu) {
                return false;
            }
            let free = match owner.get(&cpu).copied() {
                None => true,
                Some(other) => find(wants, other, seen, owner),
            };
            if free {
                owner.insert(cpu, who);
            }
            free
        })
    }
    let mut owner = BTreeMap::new();
    wants.iter().enumerate().all(|(who, (_, needs))| {
        (0..*needs).all(|_| find(wants, who, &mut CpuSet::new(), &mut owner))
    })
}

proptest! {
    #[test]
    fn no_cpu_is_promised_to_more_than_it_has(steps in steps()) {
        let all = after(&steps);
        let begin = all.time_ns + LEAD_NS;
        let edges = all.turns.values().flat_map(|t| t.windows.iter().map(|w| begin + w.begin_ns));
        for time in edges.chain([begin]) {
            let placed = |id: &SetId| (all.schedule.cpus(*id).unwrap(), all.needs(*id));
            let running = all.running(time).into_iter().filter(|id| !all.is_left_to_linux(*id));
            let running: Vec<(CpuSet, u32)> = running.map(|id| placed(&id)).collect();
            let running: Vec<_> = running.into_iter().filter(|(cpus, _)| !cpus.is_empty()).collect();
            prop_assert!(all_have_cpus(&running), "{running:?} at {time}");
        }
    }

    #[test]
    fn every_turn_is_valid_and_lets_its_set_run(steps in steps()) {
        let all = after(&steps);
        for (id, turn) in &all.turns {
            prop_assert!(turn.is_valid(), "{turn:?}");
            prop_assert!(all.sets.contains_key(id));
            prop_assert_eq!(all.schedule.turn(*id), Some(turn));
        }
    }

    #[test]
    fn slices_are_neither_too_short_nor_too_long_for_others(steps in steps()) {
        let all = after(&steps);
        for window in all.turns.values().flat_map(|t| &t.windows) {
            prop_assert!(window.end_ns - window.begin_ns >= SHORTEST_SLICE_NS);
        }
    }

    #[test]
    fn the_same_calls_give_the_same_answers(steps in steps()) {
        prop_assert_eq!(after(&steps), after(&steps));
    }

    #[test]
    fn turns_of_a_ring_have_one_epoch_and_one_period(steps in steps()) {
        let all = after(&steps);
        for (a, x) in &all.turns {
            for (b, y) in &all.turns {
                let apart = all.schedule.cpus(*a).unwrap().is_disjoint(&all.schedule.cpus(*b).unwrap());
                prop_assert!(apart || (x.epoch_ns, x.period_ns) == (y.epoch_ns, y.period_ns));
            }
        }
    }

    #[test]
    fn what_is_planned_again_without_a_change_is_not_told(steps in steps(), later in 0..1_000_000_000u64) {
        let mut all = after(&steps);
        for set in all.sets.values() {
            all.schedule.set(set.clone());
        }
        all.time_ns += later;
        prop_assert_eq!(all.plan(), []);
    }

    #[test]
    fn a_change_in_one_ring_changes_no_turn_of_another(steps in steps(), changed in sets()) {
        // The upper CPUs are a part of their own. Only sets that say where they are: others may go there.
        let apart = |set: &Set| matches!(&set.cpus, Where::On(_));
        let steps: Vec<Step> = steps
            .into_iter()
            .filter(|step| match step {
                Step::Set(set) => apart(set),
                _ => true,
            })
            .collect();
        let upper = CPUS + 6..CPUS + 10;
        let mut all = after(&steps);
        all.schedule.machine(&Machine::flat(CPUS + 10));
        for id in 20..23 {
            let cpus = Where::On(upper.clone().collect());
            let set = Set { id: SetId(id), cpus, demand: 3, keeps_idle: false, sleeps: false, weight: 100 };
            all.schedule.set(set.clone());
            all.sets.insert(set.id, set);
        }
        all.plan();
        let before: Vec<Option<Turn>> = (20..23).map(|id| all.turns.get(&SetId(id)).cloned()).collect();
        prop_assert!(before.iter().all(Option::is_some));
        if apart(&changed) {
            all.schedule.set(changed);
        }
        all.time_ns += 1;
        prop_assert!(all.plan().iter().all(|change| change.set < SetId(20)));
    }

    #[test]
    fn shares_of_sets_that_never_fit_together_follow_their_weights(
        weights in prop::collection::vec(50..=1_000u32, 2..9),
    ) {
        let mut schedule = Schedule::new();
        schedule.machine(&Machine::flat(4));
        for (id, weight) in (0..).zip(&weights) {
            let cpus = Where::On(CpuSet::first(4));
            schedule.set(Set { id: SetId(id), cpus, demand: 3, keeps_idle: false, sleeps: false, weight: *weight });
        }
        schedule.plan(0);
        let total: u32 = weights.iter().sum();
        for (id, weight) in (0..).zip(&weights) {
            let turn = schedule.turn(SetId(id)).unwrap();
            let fair = turn.period_ns as f64 * f64::from(*weight) / f64::from(total);
            let off = turn.runs_ns() as f64 - fair;
            prop_assert!(off.abs() <= LONGEST_SLICE_NS as f64, "{off} of {turn:?}");
        }
    }
}
