//! Turns within a turn.

use super::SetId;
use super::timing::no_more_windows;
use corewise_abi::turn::{MOST_WINDOWS, Turn, Window};
use std::collections::BTreeMap;

/// A window shorter than this, in nanoseconds, is left out beside longer ones: an edge of the one turn that lies
/// beside an edge of the other.
const SLIVER_NS: u64 = 1_000_000;

/// The turn of a set within its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// When it runs; `None`: always.
    pub(super) turn: Option<Turn>,
    /// Whether it shares its group's time with others.
    pub(super) of_inside: bool,
}

/// Lays the turns of sets, which count the time that their group runs, along the windows of the group's own turn
/// (`None`: it runs always). Sets that take turns with each other have the same epoch and period, and stay in step.
pub(super) fn within<'a>(
    group: Option<&Turn>,
    sets: impl Iterator<Item = (SetId, Option<&'a Turn>)>,
) -> Vec<(SetId, Place)> {
    let mut places = Vec::new();
    let mut rings: BTreeMap<(u64, u64), Vec<(SetId, &Turn)>> = BTreeMap::new();
    for (set, turn) in sets {
        match (group, turn) {
            (Some(_), Some(turn)) => {
                let ring = rings.entry((turn.epoch_ns, turn.period_ns)).or_default();
                ring.push((set, turn));
            }
            (None, _) => places.push((
                set,
                Place {
                    turn: turn.cloned(),
                    of_inside: true,
                },
            )),
            (group, None) => places.push((
                set,
                Place {
                    turn: group.cloned(),
                    of_inside: false,
                },
            )),
        }
    }
    let Some(group) = group else {
        return places;
    };
    for ((_, period_ns), ring) in rings {
        let periods = periods(group, period_ns, &ring);
        for (set, turn) in ring {
            let mut windows = along(group, periods, turn);
            no_more_windows(&mut windows);
            let turn = (!windows.is_empty()).then(|| Turn {
                epoch_ns: group.epoch_ns,
                period_ns: group.period_ns * periods,
                windows,
            });
            places.push((
                set,
                Place {
                    turn,
                    of_inside: true,
                },
            ));
        }
    }
    places
}

/// After how many of the group's periods what is inside repeats: so many that its slices are as long as they would
/// be without a group, as far as nobody has too many windows then.
fn periods(group: &Turn, period_ns: u64, ring: &[(SetId, &Turn)]) -> u64 {
    let runs_ns = group.runs_ns().max(1);
    let wanted = ((period_ns + runs_ns / 2) / runs_ns).max(1);
    let fits = |periods: &u64| {
        let mut sets = ring.iter();
        sets.all(|(_, turn)| along(group, *periods, turn).len() <= MOST_WINDOWS)
    };
    // With more periods than this the last of them would have to do without.
    let most = wanted.min(4 * MOST_WINDOWS as u64);
    (1..=most).rev().find(fits).unwrap_or(1)
}

/// When a set runs in so many periods of its group.
fn along(group: &Turn, periods: u64, turn: &Turn) -> Vec<Window> {
    let runs_ns = group.runs_ns();
    let total_ns = u128::from(runs_ns) * u128::from(periods);
    // From the time that counts inside to the time that the group runs in all.
    let scaled = |inside_ns: u64| {
        let scaled = u128::from(inside_ns) * total_ns / u128::from(turn.period_ns.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    };
    let inside: Vec<(u64, u64)> = turn
        .windows
        .iter()
        .map(|w| (scaled(w.begin_ns), scaled(w.end_ns)))
        .collect();
    let mut found: Vec<Window> = Vec::new();
    let mut ran_ns = 0;
    for period in 0..periods {
        for outside in &group.windows {
            let length_ns = outside.end_ns - outside.begin_ns;
            let begin_ns = period * group.period_ns + outside.begin_ns;
            for (from, to) in &inside {
                let from = (*from).clamp(ran_ns, ran_ns + length_ns) - ran_ns;
                let to = (*to).clamp(ran_ns, ran_ns + length_ns) - ran_ns;
                if from == to {
                    continue;
                }
                let window = Window {
                    begin_ns: begin_ns + from,
                    end_ns: begin_ns + to,
                };
                match found
                    .last_mut()
                    .filter(|last| last.end_ns == window.begin_ns)
                {
                    Some(last) => last.end_ns = window.end_ns,
                    None => found.push(window),
                }
            }
            ran_ns += length_ns;
        }
    }
    if found.iter().any(|w| w.end_ns - w.begin_ns >= SLIVER_NS) {
        found.retain(|w| w.end_ns - w.begin_ns >= SLIVER_NS);
    }
    found
}
