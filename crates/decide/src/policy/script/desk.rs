//! Where a script and the policy meet: what the script may look at during an event, and what it
//! orders. The script's functions are called by the interpreter and get nothing else.

use super::engine::{MAX_OPERATIONS, MAX_ORDERS};
use super::error::Exceeded;
use super::objects::{LoadView, MachineView, ProgramView};
use super::state::StateView;
use crate::policy::plan::{self, Planned};
use crate::policy::{Order, Orders};
use crate::status::Status;
use rhai::{Array, Dynamic, EvalAltResult, Map, Position};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What every function of a script sees without having been given it.
pub(super) const GLOBALS: [&str; 7] = [
    "machine", "programs", "load", "free", "now_ms", "now_ns", "state",
];

/// Operations beyond the limit, in which a variable may be named: then the error has a place. A loop
/// that names none is stopped without.
const GRACE: u64 = 1_000;

/// Shared by the policy and the functions that it gives the interpreter.
#[derive(Clone)]
pub(super) struct SharedDesk(Arc<Mutex<Desk>>);

impl SharedDesk {
    /// An empty desk; `seed` starts the sequence of `permute`.
    pub(super) fn new(seed: u64) -> SharedDesk {
        SharedDesk(Arc::new(Mutex::new(Desk {
            status: None,
            orders: Vec::new(),
            state: Map::new(),
            constants: BTreeMap::new(),
            random: fastrand::Rng::with_seed(seed),
            operations: Operations::default(),
            exceeded: None,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Desk> {
        // What a panic may have left is closed with the event that it happened in.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) struct Desk {
    /// The status while an event goes on.
    status: Option<Arc<Status>>,
    orders: Vec<Order>,
    /// What the script keeps.
    pub(super) state: Map,
    /// The constants of the script's top level.
    pub(super) constants: BTreeMap<String, Dynamic>,
    /// Where `permute` is in its sequence.
    pub(super) random: fastrand::Rng,
    pub(super) operations: Operations,
    /// The first limit that was exceeded in this event: scripts may catch the error, the event fails
    /// nevertheless.
    exceeded: Option<Exceeded>,
}

/// Counts operations. The interpreter's own count starts anew in functions that it calls for `map` and
/// the like, and forgets what they took; this one does not.
#[derive(Clone, Default)]
pub(super) struct Operations(Arc<Counted>);

#[derive(Default)]
struct Counted {
    used: AtomicU64,
    stopped: AtomicBool,
}

impl Operations {
    pub(super) fn reset(&self) {
        self.0.used.store(0, Ordering::Relaxed);
        self.0.stopped.store(false, Ordering::Relaxed);
    }

    /// How many were used; of more than there may be, one more.
    pub(super) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed).min(MAX_OPERATIONS + 1)
    }

    /// Counts some more.
    pub(super) fn take(&self, operations: u64) {
        self.0.used.fetch_add(operations, Ordering::Relaxed);
    }

    /// Counts one; whether there was one left, and [`GRACE`] beyond.
    pub(super) fn take_one(&self) -> bool {
        let left = self.0.used.fetch_add(1, Ordering::Relaxed) < MAX_OPERATIONS + GRACE;
        left && !self.0.stopped.load(Ordering::Relaxed)
    }

    /// There is none left.
    fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
    }
}

/// The interpreter's kind of error.
pub(super) type Failed = Box<EvalAltResult>;

impl Desk {
    /// Begins an event; gives what was kept before it.
    pub(super) fn open(&mut self, status: Arc<Status>) -> Map {
        self.status = Some(status);
        self.orders.clear();
        self.exceeded = None;
        self.state.clone()
    }

    /// Remembers that a limit is exceeded; the error for the script, which can still catch it, and then
    /// not go on.
    pub(super) fn exceeded(&mut self, what: Exceeded) -> Failed {
        self.operations.stop();
        self.exceeded.get_or_insert_with(|| what.clone());
        EvalAltResult::ErrorRuntime(Dynamic::from(what), Position::NONE).into()
    }

    /// Which limit was exceeded in this event.
    pub(super) fn was_exceeded(&self) -> Option<Exceeded> {
        let too_long = self.operations.used() > MAX_OPERATIONS;
        let operations = too_long.then(Exceeded::operations);
        self.exceeded.clone().or(operations)
    }

    /// Ends an event, and gives what was ordered in it.
    ///
    /// All grants of an event are one plan (the last one for each program counts), so that a script
    /// need not know in which order CPUs can go from one program to another. They come first.
    pub(super) fn close(&mut self) -> Vec<Order> {
        let ordered = std::mem::take(&mut self.orders);
        let Some(status) = self.status.take() else {
            return Vec::new();
        };
        let mut grants = BTreeMap::new();
        let mut others = Vec::new();
        for order in ordered {
            match order {
                Order::Grant {
                    program,
                    claim,
                    reason,
                } => {
                    let planned = Planned {
                        program,
                        claim,
                        reason,
                    };
                    grants.insert(program, planned);
                }
                other => others.push(other),
            }
        }
        let mut orders = Orders::default();
        plan::carry_out(grants.into_values().collect(), &status, &mut orders);
        orders.list.extend(others);
        orders.list
    }

    pub(super) fn status(&self) -> Result<&Arc<Status>, Failed> {
        self.status.as_ref().ok_or_else(|| {
            "there is a machine, and there are programs, only while an event is handled".into()
        })
    }

    /// One order more.
    pub(super) fn order(&mut self, order: Order) -> Result<(), Failed> {
        self.status()?;
        if self.orders.len() >= MAX_ORDERS {
            return Err(format!("more than {MAX_ORDERS} orders in one event").into());
        }
        self.orders.push(order);
        Ok(())
    }
}

fn whole(number: u64) -> Dynamic {
    i64::try_from(number).unwrap_or(i64::MAX).into()
}

impl SharedDesk {
    /// A name that no function has defined itself: one of [`GLOBALS`] or a constant.
    pub(super) fn resolve(&self, name: &str) -> Result<Option<Dynamic>, Failed> {
        let desk = self.lock();
        if !GLOBALS.contains(&name) {
            return Ok(desk.constants.get(name).cloned());
        }
        let status = desk.status()?;
        Ok(Some(match name {
            "state" => Dynamic::from(StateView(self.clone())),
            "machine" => Dynamic::from(MachineView(Arc::clone(status))),
            "programs" => {
                let all = status.programs.keys();
                let all: Array = all
                    .map(|id| Dynamic::from(ProgramView::new(status, *id)))
                    .collect();
                all.into()
            }
            "load" => status
                .load
                .map_or(Dynamic::UNIT, |l| Dynamic::from(LoadView(l))),
            "free" => super::data::array(&status.unallocated()).into(),
            "now_ns" => whole(status.time_ns),
            _ => whole(status.time_ns / 1_000_000),
        }))
    }
}
