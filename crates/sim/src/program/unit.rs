//! A unit of work: work, between which locks are taken and held, and a device that is waited for.

use super::lock::Locks;
use super::plan::UnitPlan;
use super::share::{Cut, Spread};
use super::task::{Context, Id};
use crate::kernel::Why;

/// The unit that a thread has in hand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unit {
    work_ns: u64,
    /// Sections that are done.
    section: usize,
    at: At,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    Work,
    Lock,
    Held,
    Device,
    #[default]
    Done,
}

impl Unit {
    /// A unit that is yet to be done.
    pub(super) fn of(work_ns: u64) -> Unit {
        Unit {
            work_ns,
            section: 0,
            at: At::Work,
        }
    }
}

/// Tells the thread the next piece of its unit. Whether it has been told something; otherwise the unit is
/// done.
pub(super) fn go_on(cx: &mut Context<'_>, locks: &mut Locks, id: Id, plan: &UnitPlan) -> bool {
    loop {
        let unit = &mut cx.tasks.get_mut(id).unit;
        let section = plan.sections.get(unit.section).copied();
        match (unit.at, section) {
            (At::Work, section) => {
                // The work is done before and between the sections.
                let pieces = Cut {
                    total: unit.work_ns,
                    pieces: plan.sections.len().max(1) as u64,
                    spread: Spread::NONE,
                    seed: 0,
                };
                unit.at = match section {
                    Some(_) => At::Lock,
                    None => At::Device,
                };
                let piece_ns = pieces.size(unit.section as u64);
                if piece_ns > 0 {
                    cx.run(id, piece_ns);
                    return true;
                }
            }
            (At::Lock, Some((lock, hold_ns))) => {
                if !locks.take(cx, id, lock) {
                    return true;
                }
                cx.tasks.get_mut(id).unit.at = At::Held;
                if hold_ns > 0 {
                    cx.run(id, hold_ns);
                    return true;
                }
            }
            (At::Held, Some((lock, _))) => {
                unit.section += 1;
                unit.at = match unit.section < plan.sections.len() {
                    true => At::Work,
                    false => At::Device,
                };
                locks.give_back(cx, id, lock);
            }
            (At::Device, _) => {
                unit.at = At::Done;
                if plan.io_ns > 0 {
                    cx.pause(id, plan.io_ns, Why::Io);
                    return true;
                }
            }
            (At::Done | At::Lock | At::Held, _) => return false,
        }
    }
}
