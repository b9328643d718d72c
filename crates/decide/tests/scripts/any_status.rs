//! Whatever the status is.

use crate::*;
use corewise_decide::policy::{Event, Orders};
use corewise_decide::status::{Load, Program};
use proptest::prelude::*;

/// Looks at everything, and orders something of each kind.
const LOOKS: &str = r#"
    fn period_ms() { if load == () { () } else { 100 } }
    fn on_event(what) {
        note(`${what} ${now_ms} ${machine.capacity} ${machine.threads} ${free.len()}`);
        note(`${machine.cores.len()} ${machine.l2.len()} ${machine.l3.len()} ${machine.nodes.len()} ${machine.packages.len()}`);
        if load != () { note(`${load.busy} ${load.others} ${load.runnable}`); }
        for p in permute(programs) {
            note(`${p.id} ${p.pid} ${p.min} ${p.max} ${p.placement} ${p.malleable} ${p.overridden}`);
            note(`${p.threads} ${p.blocked} ${p.could_use} ${p.uses} ${p.rate} ${p.joined_ms}`);
            let have = if p.claim == () { [] } else { p.claim.cpus };
            grant(p, resize(have, free, p.min, p.placement), p.max, "some");
            ask(p, if p.malleable { "expand" } else { "shrink" }, "why not");
        }
    }
"#;

fn cpus() -> impl Strategy<Value = CpuSet> {
    proptest::collection::btree_set(0_u32..40, 0..12).prop_map(|s| s.into_iter().collect())
}

fn figure() -> impl Strategy<Value = f64> {
    prop_oneof![Just(f64::NAN), Just(f64::INFINITY), -1e9..1e9_f64]
}

prop_compose! {
    fn program()(
        numbers in proptest::array::uniform6(any::<u32>()),
        pid in any::<i32>(),
        name in "\\PC{0,40}",
        claim in proptest::option::of((cpus(), any::<u32>(), any::<bool>())),
        flags in any::<(bool, bool)>(),
        uses in proptest::option::of(figure()),
        joined_ns in any::<u64>(),
    ) -> Program {
        Program {
            pid,
            name,
            wants: Wants {
                min_threads: numbers[0],
                max_threads: numbers[1],
                placement: [Placement::Any, Placement::Compact, Placement::Scatter][numbers[2] as usize % 3],
                malleable: flags.0,
            },
            claim: claim.map(|(cpus, threads, exclusive)| Claim { cpus, threads, exclusive }),
            group: None,
            spins: flags.0,
            waits: None,
            overridden: flags.1,
            joined_ns,
            threads: numbers[3],
            could_use: uses.map(|_| numbers[4]),
            blocked: numbers[5],
            uses,
            progress_rate: uses,
        }
    }
}

prop_compose! {
    fn status()(
        time_ns in any::<u64>(),
        allowed in cpus(),
        places in proptest::collection::vec(proptest::array::uniform6(0_u32..40), 0..20),
        figures in (figure(), figure(), figure()),
        loaded in any::<bool>(),
        programs in proptest::collection::btree_map(any::<u64>().prop_map(ProgramId), program(), 0..8),
    ) -> Status {
        let place = |p: [u32; 6]| CpuPlace { cpu: p[0], core: p[1], l2: p[2], l3: p[3], node: p[4], package: p[5] };
        Status {
            time_ns,
            machine: Machine { places: places.into_iter().map(place).collect(), allowed, capacity: figures.0 },
            heat: Vec::new(),
            cpu_use: Vec::new(),
            load: loaded.then_some(Load { busy: figures.1, others: figures.2, runnable: Some(3), elsewhere: figures.1, idle: figures.2, ..Load::default() }),
            programs,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_status_makes_a_script_panic(status in status(), id in any::<u64>(), what in "\\PC{0,600}") {
        let mut policy = policy(LOOKS);
        let report = policy.report();
        let program = status.programs.keys().next().copied().unwrap_or(ProgramId(id));
        let claim = status.programs.get(&program).and_then(|p| p.claim.clone());
        for event in [
            Event::Machine,
            Event::Joined(program),
            Event::Joined(ProgramId(id)),
            Event::Left { program, claim },
            Event::Threads { program, before: 0, now: u32::MAX },
            Event::Readings,
            Event::Failed(what),
        ] {
            policy.on(&event, &status, &mut Orders::default());
        }
        prop_assert_eq!(&report.lock().unwrap().failures, &Vec::new());
    }
}
