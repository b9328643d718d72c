//! The permits of one process: who asked for what, in which state they are, and what each is given. Pure:
//! the numbers of clients, permits and threads come in, and whom to call back goes out.
//!
//! The states are those of oneTBB's permit manager interface (its documentation, and tcm.h):
//!
//! ```text
//!             request                       its minimum fits
//!   (none) ────────────▶ pending ────────────────────────────▶ active ◀──▶ idle
//!      │                    │                                    │          │
//!      └──▶ inactive ◀──────┴─────────── deactivate ─────────────┴──────────┘
//! ```
//!
//! What differs from one client to another is whom it counts. oneTBB asks for *workers* beside the thread
//! that calls: each such thread takes one of the claim's, and a request that needs a worker (a task was put
//! into a queue, and nobody waits for it) is never kept waiting. Other clients count the calling thread in:
//! where it already works for another permit, the nested one inherits it.

use super::request::{Invalid, Request};
use super::share::{Mask, Part};
use std::collections::{BTreeMap, BTreeSet};

/// A permit, as its client names it. Never used twice.
pub(crate) type Handle = u64;

/// A thread, as the C library names it: as long as it lives, no other has this number.
pub(crate) type Thread = u64;

/// The states, with the interface's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Inactive = 1,
    Pending = 2,
    Idle = 3,
    Active = 4,
}

/// Someone who asks for permits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    /// The function to call back, or 0.
    pub(crate) callback: usize,
    /// It asks for threads beside the one that calls.
    pub(crate) workers_only: bool,
}

/// A permit.
#[derive(Clone, Debug)]
pub(super) struct Permit {
    pub(super) client: u64,
    pub(super) argument: usize,
    pub(super) state: State,
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) parts: Vec<Part>,
    /// Which parts' masks are one of several; empty: it was asked for without parts.
    pub(super) any: Vec<bool>,
    pub(super) priority: i32,
    pub(super) rigid: bool,
    pub(super) as_inactive: bool,
    pub(super) given: Vec<u32>,
    /// It was asked for by a thread that works for another permit.
    pub(super) nested: bool,
    /// The thread beside which its workers work, as long as that is no worker of another permit.
    pub(super) caller: Option<Thread>,
}

/// What a permit is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) given: Vec<u32>,
    pub(crate) masks: Vec<Option<Mask>>,
    pub(crate) state: State,
    pub(crate) rigid: bool,
    pub(crate) as_inactive: bool,
}

/// A permit has changed other than by its client's own call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) handle: Handle,
    pub(crate) callback: usize,
    pub(crate) new_number: bool,
    pub(crate) new_state: bool,
}

/// All permits of a process.
#[derive(Debug)]
pub(crate) struct Permits {
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) permits: BTreeMap<Handle, Permit>,
    /// The permits that each thread works for, the innermost last.
    working: BTreeMap<Thread, Vec<Handle>>,
    /// The number of the last client or permit.
    last: u64,
    /// The threads of the claim; `None`: no claim binds.
    pub(super) limit: Option<u32>,
    /// CPUs that there are without a claim.
    cpus: u32,
}

impl Permits {
    pub(crate) const fn new() -> Permits {
        Permits {
            clients: BTreeMap::new(),
            permits: BTreeMap::new(),
            working: BTreeMap::new(),
            last: 0,
            limit: None,
            cpus: 1,
        }
    }

    /// A client comes, on a machine where it could use so many CPUs.
    pub(crate) fn connect(&mut self, client: Client, cpus: u32) -> u64 {
        self.cpus = cpus;
        self.last += 1;
        self.clients.insert(self.last, client);
        self.last
    }

    /// A client goes, with its permits. Gives theirs, and whom to tell.
    pub(crate) fn disconnect(
        &mut self,
        client: u64,
    ) -> Result<(Vec<Handle>, Vec<Notice>), Invalid> {
        self.clients.remove(&client).ok_or(Invalid)?;
        let own = |(_, permit): &(&Handle, &Permit)| permit.client == client;
        let gone: Vec<Handle> = self.permits.iter().filter(own).map(|(h, _)| *h).collect();
        for handle in &gone {
            self.permits.remove(handle);
        }
        Ok((gone, self.settle(None)))
    }

    /// The claim has changed.
    pub(crate) fn set_limit(&mut self, limit: Option<u32>) -> Vec<Notice> {
        if self.limit == limit {
            return Vec::new();
        }
        self.limit = limit;
        self.settle(None)
    }

    /// The thread `thread` asks for a new permit, or for something else for one that it has.
    pub(crate) fn request(
        &mut self,
        client: u64,
        handle: Option<Handle>,
        request: Request,
        argument: usize,
        thread: Thread,
    ) -> Result<(Handle, Vec<Notice>), Invalid> {
        let (min, max, mut parts) = request.bounds(self.limit.unwrap_or(self.cpus))?;
        let client_of = self.clients.get(&client).ok_or(Invalid)?;
        // Whoever waits for its minimum would wait for ever.
        if !client_of.workers_only && min > self.cpus.max(self.limit.unwrap_or(0)) {
            return Err(Invalid);
        }
        let handle = match handle {
            Some(handle) => {
                let old = self.permits.get(&handle).ok_or(Invalid)?;
                let in_use = request.as_inactive && old.state != State::Inactive;
                if in_use || old.any.len() != request.parts.len() {
                    return Err(Invalid);
                }
                // An update may leave out where the threads must run.
                for (part, old) in parts.iter_mut().zip(&old.parts) {
                    part.mask = part.mask.take().or(old.mask.clone());
                }
                handle
            }
            None => {
                self.last += 1;
                self.last
            }
        };
        let new = Permit {
            client,
            argument,
            state: State::Inactive,
            min,
            max,
            given: vec![0; parts.len()],
            parts,
            any: request.parts.iter().map(|part| part.any).collect(),
            priority: request.priority,
            rigid: request.rigid,
            as_inactive: request.as_inactive,
            nested: false,
            caller: None,
        };
        let old = self.permits.remove(&handle);
        let mut permit = Permit {
            nested: old.as_ref().is_some_and(|old| old.nested),
            caller: old.as_ref().and_then(|old| old.caller),
            ..new
        };
        let notices = match request.as_inactive {
            true => {
                // What it kept is its own until somebody wants it.
                permit.given = old.map_or(permit.given, |old| old.given);
                self.permits.insert(handle, permit);
                self.place(handle, thread);
                Vec::new()
            }
            false => {
                permit.state = State::Pending;
                self.permits.insert(handle, permit);
                self.place(handle, thread);
                self.settle(Some(handle))
            }
        };
        Ok((handle, notices))
    }

    /// An active permit has no work just now.
    pub(crate) fn idle(&mut self, handle: Handle) -> Result<Vec<Notice>, Invalid> {
        let permit = self.permits.get_mut(&handle).ok_or(Invalid)?;
        if permit.state != State::Active {
            return Err(Invalid);
        }
        permit.state = State::Idle;
        Ok(self.settle(None))
    }

    /// A permit has work again.
    pub(crate) fn activate(
        &mut self,
        handle: Handle,
        thread: Thread,
    ) -> Result<Vec<Notice>, Invalid> {
        let permit = self.permits.get_mut(&handle).ok_or(Invalid)?;
        match permit.state {
            State::Active => return Ok(Vec::new()),
            State::Pending => return Err(Invalid),
            State::Inactive | State::Idle => {}
        }
        permit.state = State::Pending;
        permit.as_inactive = false;
        self.place(handle, thread);
        Ok(self.settle(Some(handle)))
    }

    /// A permit has no work, and none in sight. It shows what it had until others want it.
    pub(crate) fn deactivate(&mut self, handle: Handle) -> Result<Vec<Notice>, Invalid> {
        let permit = self.permits.get_mut(&handle).ok_or(Invalid)?;
        let before = std::mem::replace(&mut permit.state, State::Inactive);
        if before == State::Inactive {
            return Ok(Vec::new());
        }
        let kept = std::mem::take(&mut permit.given);
        permit.given = vec![0; kept.len()];
        let demand = |permit: &Permit| matches!(permit.state, State::Active | State::Pending);
        let wanted = self.permits.values().any(demand);
        let notices = self.settle(None);
        if !wanted && let Some(permit) = self.permits.get_mut(&handle) {
            permit.given = kept;
        }
        Ok(notices)
    }

    /// A permit is given back.
    pub(crate) fn release(&mut self, handle: Handle) -> Result<Vec<Notice>, Invalid> {
        self.permits.remove(&handle).ok_or(Invalid)?;
        Ok(self.settle(None))
    }

    /// A thread begins to work for a permit.
    pub(crate) fn register(&mut self, handle: Handle, thread: Thread) {
        self.working.entry(thread).or_default().push(handle);
    }

    /// It ends the latest such work.
    pub(crate) fn unregister(&mut self, thread: Thread) {
        if let Some(stack) = self.working.get_mut(&thread) {
            stack.pop();
            if stack.is_empty() {
                self.working.remove(&thread);
            }
        }
    }

    /// What a client must know to call it back: the argument, if the permit is still there.
    pub(crate) fn argument(&self, handle: Handle) -> Option<usize> {
        self.permits.get(&handle).map(|permit| permit.argument)
    }

    /// In how many parts a permit was asked for, which cannot change.
    pub(crate) fn parts(&self, handle: Handle) -> Option<usize> {
        self.permits.get(&handle).map(|permit| permit.any.len())
    }

    /// What a permit is.
    pub(crate) fn data(&self, handle: Handle) -> Option<Data> {
        let permit = self.permits.get(&handle)?;
        let mut given = permit.given.clone();
        if permit.state != State::Pending && permit.nested {
            let room = given
                .iter()
                .zip(&permit.parts)
                .position(|(given, part)| *given < part.max);
            if let Some(given) = given.get_mut(room.unwrap_or(0)) {
                *given += 1;
            }
        }
        let mask = |(i, part): (usize, &Part)| match permit.state {
            State::Pending if permit.any.get(i) == Some(&true) => Some(Mask::default()),
            _ => part.mask.clone(),
        };
        Some(Data {
            given,
            masks: permit.parts.iter().enumerate().map(mask).collect(),
            state: permit.state,
            rigid: permit.rigid,
            as_inactive: permit.as_inactive,
        })
    }

    /// How many threads the process would run without a claim, and how many it may: callers and workers.
    pub(crate) fn threads(&self) -> (u32, u32) {
        let active = || {
            self.permits
                .values()
                .filter(|permit| permit.state == State::Active)
        };
        let callers = self.callers();
        let wanted = active().fold(0u32, |sum, permit| sum.saturating_add(permit.max));
        // By itself oneTBB has one thread a CPU, and more where one arena is larger.
        let largest = active().map(|permit| permit.max).max().unwrap_or(0);
        let own = wanted.min(largest.max(self.cpus.saturating_sub(1)));
        let given = active()
            .flat_map(|permit| &permit.given)
            .fold(0u32, |sum, n| sum.saturating_add(*n));
        (callers.saturating_add(own), callers.saturating_add(given))
    }

    /// Whether its client asks for threads beside the one that calls.
    pub(super) fn counts_workers_only(&self, permit: &Permit) -> bool {
        self.clients
            .get(&permit.client)
            .is_some_and(|client| client.workers_only)
    }

    /// The threads beside which workers work, each of which is one of the claim's.
    pub(super) fn callers(&self) -> u32 {
        let active = self
            .permits
            .values()
            .filter(|p| p.state == State::Active && p.max > 0);
        let mut any = false;
        let callers: BTreeSet<Thread> = active
            .filter(|permit| self.counts_workers_only(permit))
            .inspect(|_| any = true)
            .filter_map(|permit| permit.caller)
            .collect();
        u32::try_from(callers.len())
            .unwrap_or(u32::MAX)
            .max(u32::from(any))
    }

    /// Notes from where a permit is asked for.
    fn place(&mut self, handle: Handle, thread: Thread) {
        // A thread may have ended without a word, and another have its number now: what is gone is gone.
        let stack = self.working.get(&thread).map_or(&[][..], Vec::as_slice);
        let mut there = stack.iter().filter(|h| self.permits.contains_key(h));
        let innermost = there.next_back().copied();
        let Some(permit) = self.permits.get(&handle) else {
            return;
        };
        let workers_only = self.counts_workers_only(permit);
        if let Some(permit) = self.permits.get_mut(&handle) {
            match innermost {
                None => (permit.nested, permit.caller) = (false, Some(thread)),
                Some(working) => {
                    permit.nested = !workers_only && (permit.nested || working != handle)
                }
            }
        }
    }
}
