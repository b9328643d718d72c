use super::*;
use proptest::prelude::*;

/// Two packages of one node each; a node has two L3 caches of two cores; a core has two CPUs, numbered
/// as Linux does on many machines: 0-7 are the cores' first CPUs, 8-15 their siblings.
fn smt() -> Machine {
    let place = |cpu: u32| {
        let core = cpu % 8;
        CpuPlace {
            cpu,
            core,
            l2: core,
            l3: core / 2,
            node: core / 4,
            package: core / 4,
        }
    };
    Machine {
        places: (0..16).map(place).collect(),
        allowed: CpuSet::first(16),
        capacity: 16.0,
    }
}

fn set(cpus: &[u32]) -> CpuSet {
    cpus.iter().copied().collect()
}

fn new_claim(count: u32, placement: Placement) -> CpuSet {
    let machine = smt();
    resize(&machine, &CpuSet::new(), &machine.allowed, count, placement)
}

#[test]
fn a_compact_claim_fills_a_core_then_its_cache_then_its_node() {
    assert_eq!(new_claim(2, Placement::Compact), set(&[0, 8]));
    assert_eq!(new_claim(4, Placement::Compact), set(&[0, 1, 8, 9]));
    assert_eq!(
        new_claim(8, Placement::Compact),
        set(&[0, 1, 2, 3, 8, 9, 10, 11])
    );
}

#[test]
fn a_compact_claim_goes_where_it_just_fits() {
    // Node 0 has only the cache of cores 2 and 3 left.
    let free = smt().allowed.difference(&set(&[0, 1, 8, 9]));
    let chosen = more(&smt(), &CpuSet::new(), &free, 4, Placement::Compact);
    assert_eq!(chosen, set(&[2, 3, 10, 11]));
}

#[test]
fn a_scattered_claim_takes_nodes_then_caches_then_cores_in_turn() {
    assert_eq!(new_claim(2, Placement::Scatter), set(&[0, 4]));
    assert_eq!(new_claim(4, Placement::Scatter), set(&[0, 2, 4, 6]));
    assert_eq!(new_claim(8, Placement::Scatter), CpuSet::first(8));
}

#[test]
fn a_claim_anywhere_has_a_core_for_each_thread_and_stays_in_its_node() {
    assert_eq!(new_claim(3, Placement::Any), set(&[0, 1, 2]));
    assert_eq!(new_claim(8, Placement::Any), CpuSet::first(8));
}

#[test]
fn a_claim_anywhere_avoids_cores_that_others_are_on() {
    let free = smt().allowed.difference(&set(&[0, 1, 2]));
    let chosen = more(&smt(), &CpuSet::new(), &free, 3, Placement::Any);
    assert_eq!(chosen, set(&[4, 5, 6]));
}

#[test]
fn what_is_given_back_leaves_a_compact_claim_compact_and_a_scattered_one_scattered() {
    let compact = set(&[0, 8, 1, 4]);
    assert_eq!(fewer(&smt(), &compact, 2, Placement::Compact), set(&[1, 4]));
    let scattered = set(&[0, 1, 4]);
    assert_eq!(fewer(&smt(), &scattered, 1, Placement::Scatter), set(&[1]));
}

#[test]
fn siblings_are_given_back_before_cores() {
    assert_eq!(
        fewer(&smt(), &set(&[0, 1, 8]), 1, Placement::Any),
        set(&[8])
    );
}

#[test]
fn cpus_of_which_nobody_knows_the_place_can_be_chosen() {
    let machine = Machine {
        places: Vec::new(),
        ..Machine::flat(4)
    };
    for placement in [Placement::Any, Placement::Compact, Placement::Scatter] {
        let chosen = resize(&machine, &set(&[2]), &machine.allowed, 3, placement);
        assert_eq!(chosen.len(), 3, "{placement:?}");
        assert!(chosen.contains(2));
    }
}

fn machines() -> impl Strategy<Value = Machine> {
    let sizes = (1..3_u32, 1..3_u32, 1..3_u32, 1..4_u32, 1..3_u32);
    sizes.prop_map(|(packages, nodes, l3s, cores, siblings)| {
        let mut places = Vec::new();
        for core in 0..packages * nodes * l3s * cores {
            for sibling in 0..siblings {
                places.push(CpuPlace {
                    cpu: core * siblings + sibling,
                    core,
                    l2: core,
                    l3: core / cores,
                    node: core / cores / l3s,
                    package: core / cores / l3s / nodes,
                });
            }
        }
        let allowed: CpuSet = places.iter().map(|p| p.cpu).collect();
        Machine {
            capacity: f64::from(allowed.count()),
            places,
            allowed,
        }
    })
}

fn placements() -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::Any),
        Just(Placement::Compact),
        Just(Placement::Scatter)
    ]
}

proptest! {
    #[test]
    fn a_claim_has_as_many_as_it_can_of_its_own_and_free_cpus_and_never_moves(
        machine in machines(),
        bits in any::<(u64, u64)>(),
        count in 0..50_u32,
        placement in placements(),
    ) {
        let of = |bits: u64| -> CpuSet { machine.allowed.iter().filter(|c| bits >> (c % 64) & 1 == 1).collect() };
        let have = of(bits.0);
        let free = of(bits.1).difference(&have);
        let claim = resize(&machine, &have, &free, count, placement);
        prop_assert!(claim.is_subset(&have.union(&free)));
        prop_assert_eq!(claim.count(), count.min(have.count() + free.count()));
        // It has all of its own, or nothing but its own.
        prop_assert!(have.is_subset(&claim) || claim.is_subset(&have));
    }

    #[test]
    fn growing_step_by_step_and_at_once_end_with_the_same_number_of_nodes(
        machine in machines(),
        count in 1..20_u32,
    ) {
        let nodes = |cpus: &CpuSet| {
            let nodes: std::collections::BTreeSet<u32> =
                cpus.iter().filter_map(|c| machine.place(c)).map(|p| p.node).collect();
            nodes.len()
        };
        let free = &machine.allowed;
        let count = count.min(free.count());
        let scattered = resize(&machine, &CpuSet::new(), free, count, Placement::Scatter);
        let all = nodes(free);
        prop_assert_eq!(nodes(&scattered), all.min(count as usize));
        let compact = resize(&machine, &CpuSet::new(), free, count, Placement::Compact);
        let in_a_node = free.count() as usize / all;
        prop_assert_eq!(nodes(&compact), (count as usize).div_ceil(in_a_node));
    }
}
