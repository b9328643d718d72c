//! What a change comes to: who comes in of those that wait, what each gets, and who has to be told. Pure.

use super::permits::{Handle, Notice, Permit, Permits, State};
use super::share::{Demand, Hold, divide, fits};
use std::collections::BTreeMap;

/// How a permit was before: its state, and what its parts had.
type Before = BTreeMap<Handle, (State, Vec<u32>)>;

impl Permits {
    /// Lets those in who wait and fit, and divides anew. `initiator` knows of its own changes.
    pub(super) fn settle(&mut self, initiator: Option<Handle>) -> Vec<Notice> {
        let before: Before = self
            .permits
            .iter()
            .map(|(h, p)| (*h, (p.state, p.given.clone())))
            .collect();
        for permit in self
            .permits
            .values_mut()
            .filter(|p| p.state == State::Inactive)
        {
            permit.given.fill(0);
        }
        let mut waiting: Vec<(bool, u32, Handle)> = self
            .permits
            .iter()
            .filter(|(_, permit)| permit.state == State::Pending)
            .map(|(handle, permit)| (Some(*handle) != initiator, permit.min, *handle))
            .collect();
        waiting.sort_unstable();
        for (_, _, handle) in waiting {
            let fits = self.fits(handle);
            if let Some(permit) = self.permits.get_mut(&handle) {
                permit.given.fill(0);
                if fits {
                    permit.state = State::Active;
                }
            }
        }
        self.share(&before);
        let mut notices = Vec::new();
        for (handle, permit) in &self.permits {
            let Some((state, given)) = before.get(handle).filter(|_| Some(*handle) != initiator)
            else {
                continue;
            };
            let callback = self
                .clients
                .get(&permit.client)
                .map_or(0, |client| client.callback);
            // What an inactive one showed was nothing that it could use.
            let new_number = *given != permit.given && *state != State::Inactive;
            let new_state = *state != permit.state;
            if callback != 0 && (new_number || new_state) {
                notices.push(Notice {
                    handle: *handle,
                    callback,
                    new_number,
                    new_state,
                });
            }
        }
        notices
    }

    /// The limit for what permits are given: the claim without the threads beside which workers work.
    fn for_permits(&self) -> Option<u32> {
        self.limit.map(|limit| limit.saturating_sub(self.callers()))
    }

    fn fits(&self, handle: Handle) -> bool {
        let Some(permit) = self.permits.get(&handle) else {
            return false;
        };
        if self.counts_workers_only(permit) {
            return true;
        }
        let others: Vec<Demand> = self
            .permits
            .values()
            .filter_map(|p| demand(p, p.rigid))
            .collect();
        if others.is_empty() {
            // A claim that is smaller than its minimum is no reason to wait for ever.
            return true;
        }
        let now = vec![0; permit.parts.len()];
        let more = Demand {
            hold: Hold::Shares,
            now: &now,
            ..all_of(permit)
        };
        fits(self.for_permits(), &others, &more)
    }

    /// Divides among those that take part; `before` says who was active already.
    fn share(&mut self, before: &Before) {
        let was_active =
            |handle: &Handle| before.get(handle).is_some_and(|(s, _)| *s == State::Active);
        let mut handles = Vec::new();
        let mut demands = Vec::new();
        for (handle, permit) in &self.permits {
            if let Some(demand) = demand(permit, permit.rigid && was_active(handle)) {
                handles.push(*handle);
                demands.push(demand);
            }
        }
        let shares = divide(self.for_permits(), &demands);
        drop(demands);
        for (handle, share) in handles.into_iter().zip(shares) {
            if let Some(permit) = self.permits.get_mut(&handle) {
                match share {
                    Some(share) => permit.given = share,
                    None => {
                        permit.given.fill(0);
                        permit.state = State::Inactive;
                    }
                }
            }
        }
    }
}

/// What an active or idle permit takes part with.
fn demand(permit: &Permit, fixed: bool) -> Option<Demand<'_>> {
    let hold = match permit.state {
        State::Active if fixed => Hold::Fixed,
        State::Active => Hold::Shares,
        State::Idle => Hold::Idle { all: permit.rigid },
        State::Inactive | State::Pending => return None,
    };
    Some(Demand {
        hold,
        ..all_of(permit)
    })
}

fn all_of(permit: &Permit) -> Demand<'_> {
    Demand {
        min: permit.min,
        max: permit.max,
        priority: permit.priority,
        inherits: u32::from(permit.nested),
        hold: Hold::Shares,
        now: &permit.given,
        parts: &permit.parts,
    }
}
