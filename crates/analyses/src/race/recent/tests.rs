//! Tests of recent.rs.

use super::*;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

/// A byte of memory, in one of its lives.
type Byte = (u64, u32, u32);

fn bytes(run: &Run) -> impl Iterator<Item = Byte> {
    let access = run.access;
    (access.granule..access.granule + u64::from(run.granules)).flat_map(move |granule| {
        let bits = (0..8).filter(move |bit| access.mask >> bit & 1 != 0);
        bits.map(move |bit| (granule, bit, access.life))
    })
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Access {
        granule: u64,
        mask: u8,
        writes: bool,
        site: u32,
    },
    /// So many granules, from one place in the code.
    Sweep {
        granule: u64,
        granules: u64,
        writes: bool,
    },
    Allocate {
        granule: u64,
        granules: u64,
        /// As many times, one after the other.
        by: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Some share lines with others.
    let granule = || (0_u64..3, 0_u64..100).prop_map(|(far, near)| (far << 37 | near) + 4000);
    prop_oneof![
        4 => (granule(), prop_oneof![Just(0x0f), Just(0xf0), 1_u8..], any::<bool>(), 1_u32..4)
            .prop_map(|(granule, mask, writes, site)| Step::Access { granule, mask, writes, site }),
        2 => (granule(), 1_u64..60, any::<bool>())
            .prop_map(|(granule, granules, writes)| Step::Sweep { granule, granules, writes }),
        1 => (granule(), 1_u64..40, prop_oneof![Just(1_u32), Just(255), Just(256), 1_u32..70_000])
            .prop_map(|(granule, granules, by)| Step::Allocate { granule, granules, by }),
    ]
}

proptest! {
    #[test]
    fn what_comes_out_is_what_was_accessed_and_stands_for_all_of_it(
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut recent = Recent::default();
        let mut out = Vec::new();
        let mut lives: HashMap<u64, u32> = HashMap::new();
        let mut accesses = Vec::new();
        for step in steps {
            let (granule, granules, mask, writes, site) = match step {
                Step::Access { granule, mask, writes, site } => (granule, 1, mask, writes, site),
                Step::Sweep { granule, granules, writes } => (granule, granules, 0xff, writes, 9),
                Step::Allocate { granule, granules, by } => {
                    recent.forget(granule << 3, (granules - 1) << 3, |run| out.push(run));
                    for granule in granule..granule + granules {
                        *lives.entry(granule).or_default() += by;
                    }
                    continue;
                }
            };
            for granule in granule..granule + granules {
                let kind = if writes { kind::WRITE } else { 0 };
                let life = lives.get(&granule).copied().unwrap_or_default();
                let access = Access { granule, mask, life, kind, thread: 0, segment: 0, site };
                accesses.push(access);
                if !recent.covers(granule, mask, writes) {
                    recent.add(&access, |run| out.push(run));
                }
            }
        }
        recent.end_segment(|run| out.push(run));
        // Each byte that comes out was accessed so, from there.
        let all = |accesses: &[Access]| -> HashSet<(Byte, u8, u32)> {
            let runs = accesses.iter().map(|access| Run { access: *access, granules: 1 });
            runs.flat_map(|run| bytes(&run).map(move |byte| (byte, run.access.kind, run.access.site)).collect::<Vec<_>>())
                .collect()
        };
        let accessed = all(&accesses);
        let (mut read, mut written) = (HashSet::new(), HashSet::new());
        for run in &out {
            for byte in bytes(run) {
                prop_assert!(accessed.contains(&(byte, run.access.kind, run.access.site)), "{run:?}");
                match run.access.kind {
                    0 => read.insert(byte),
                    _ => written.insert(byte),
                };
            }
        }
        for (byte, kind, _) in accessed {
            prop_assert!(written.contains(&byte) || kind == 0 && read.contains(&byte), "{byte:?} {kind}");
        }
        // Nothing of it is left for the next segment.
        let before = out.len();
        recent.end_segment(|run| out.push(run));
        prop_assert_eq!(out.len(), before);
        prop_assert!(!recent.covers(accesses.first().map_or(7, |access| access.granule), 1, false));
    }
}

#[test]
fn a_long_sweep_comes_out_as_few_runs() {
    let mut recent = Recent::default();
    let mut out = Vec::new();
    let access = |granule, mask| Access {
        granule,
        mask,
        life: 1,
        kind: kind::WRITE,
        thread: 0,
        segment: 0,
        site: 5,
    };
    // Four bytes at a time.
    for granule in 10_000..20_000 {
        recent.add(&access(granule, 0x0f), |run| out.push(run));
        recent.add(&access(granule, 0xf0), |run| out.push(run));
    }
    recent.end_segment(|run| out.push(run));
    // Whenever the table grows, what it had comes out.
    assert!(out.len() < AT_ONCE as usize + 10, "{}", out.len());
    let last = out[out.len() - 1];
    assert!(last.access.mask == 0xff && last.granules > 2000, "{last:?}");
}
