//! Why spinning collapses beside a neighbour.

use super::support::*;
use corewise_decide::cpus::CpuSet;
use corewise_sim::kernel::{Demand, Event, GroupId, Kernel, ProcessId, ThreadId, ThreadSpec, Why};
use corewise_sim::machine::SimMachine;

#[derive(Clone, Copy, PartialEq)]
enum Neighbour {
    None,
    SameSession,
    OwnSession,
}

/// How long a team of two takes for 5,000 regions of 100 µs each on two CPUs, with a barrier after each.
fn takes_ns(beside: Neighbour, spins: bool) -> u64 {
    let mut k = Kernel::new(&SimMachine::flat(2), 1);
    let (session, other) = (k.add_group(1024, None), k.add_group(1024, None));
    let mut spawn = |group: GroupId| {
        k.spawn(ThreadSpec {
            process: ProcessId(group.0),
            group,
            allowed: CpuSet::first(2),
            parent: None,
            demand: Demand::default(),
        })
    };
    spawn(session);
    spawn(session);
    let hog = match beside {
        Neighbour::None => None,
        Neighbour::SameSession => Some(spawn(session)),
        Neighbour::OwnSession => Some(spawn(other)),
    };
    let mut arrived: Option<ThreadId> = None;
    let mut regions = 0;
    let mut working = [false; 2];
    while regions < 5_000 {
        let Some(Event::Ready(t)) = k.next(600 * S) else {
            panic!("{regions} regions in ten minutes")
        };
        if Some(t) == hog {
            k.run(t, 10 * MS);
        } else if !std::mem::replace(&mut working[t.0 as usize], true) {
            k.run(t, 100_000);
        } else if let Some(first) = arrived.take() {
            // The second at the barrier lets the first one go.
            regions += 1;
            match spins {
                true => k.release(first),
                false => k.wake(first, Some(t)),
            }
            k.run(t, 100_000);
        } else {
            arrived = Some(t);
            // When it is ready again it works.
            working[t.0 as usize] = false;
            match spins {
                true => k.spin(t, None, false),
                false => k.block(t, Why::Futex),
            }
        }
    }
    k.now()
}

#[test]
fn a_spinning_team_collapses_beside_a_hog_and_most_beside_one_of_another_session() {
    let alone = takes_ns(Neighbour::None, true);
    assert!(near(alone, S / 2, 2), "{alone}");
    let same = takes_ns(Neighbour::SameSession, true);
    let own = takes_ns(Neighbour::OwnSession, true);
    let blocking = takes_ns(Neighbour::OwnSession, false);
    // Every second tick is the hog's, and the other one spins meanwhile; while balancing has both on one CPU,
    // each spins in its slice.
    assert!((2 * alone..4 * alone).contains(&same), "{same} {alone}");
    // The hog weighs as much as both: balancing puts them on one CPU, where each spins in its slice.
    assert!(own > 10 * same, "{own} {same}");
    assert!(blocking < own / 5, "{blocking} {own}");
}
