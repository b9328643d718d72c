//! An environment: what its calls are executed on, by whom, and the buffers of all its threads.

use crate::account::{Account, Report, count, nanoseconds};
use crate::block::Block;
use crate::columns::{Columns, Execute};
use crate::ending;
use crate::local;
use crate::memory::{Heap, Memory};
use crate::progress::Progress;
use crate::settings::Settings;
use crate::sizing;
use crate::slot::{Producer, Slot};
use crate::strategy::{Strategy, Synchronous};
use crate::work::{By, Direct, Pending, Process, Work, discard_payload};
use crate::{Checkpoint, sync::lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// Calls that are stored, and executed later: see the [crate]'s documentation.
///
/// `C` is the buffer that `#[deferred]` makes from a trait (`CallsBuffer` for a trait `Calls`); an
/// environment implements that trait, and calling its methods is what defers a call. It costs a few
/// nanoseconds, takes no lock and makes no system call, until the buffer is full.
///
/// Dropping an environment [finishes](Environment::finish) it.
pub struct Environment<C: Columns> {
    pub(crate) core: Arc<Core<C>>,
}

/// What the ends of an environment share.
pub(crate) struct Core<C: Columns> {
    pub(crate) id: u64,
    process: Box<dyn Process<C>>,
    memory: Arc<dyn Memory>,
    strategy: RwLock<Arc<dyn Strategy>>,
    capacity: AtomicU32,
    /// Whether the capacity is to be found.
    finds: AtomicBool,
    slots: Mutex<Vec<Weak<Slot<C>>>>,
    /// Empty buffers, for the next exchange: making one anew costs page faults.
    empty: Mutex<Vec<Block<C>>>,
    account: Account,
    pending: AtomicU64,
    /// How often a buffer was exchanged.
    exchanges: AtomicU64,
    idle: Mutex<()>,
    became_idle: Condvar,
}

/// Every environment has another number, and it is never used again: a thread that remembers an
/// environment that is gone does not take the next one for it.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl<C: Columns> Environment<C> {
    /// An environment that executes its calls on `target`, with the [default](Settings) settings.
    pub fn new<T: Send + Sync + 'static>(target: T) -> Environment<C>
    where
        C: Execute<T>,
    {
        Settings::default().environment(target)
    }

    /// An environment with something done around each buffer (see [`Process`]).
    pub fn around(process: impl Process<C>) -> Environment<C> {
        Settings::default().environment_around(process)
    }

    pub(crate) fn with<T: Send + Sync + 'static>(target: T, settings: Settings) -> Environment<C>
    where
        C: Execute<T>,
    {
        Environment::with_process(Box::new(Direct(target)), settings)
    }

    pub(crate) fn with_process(process: Box<dyn Process<C>>, settings: Settings) -> Environment<C> {
        let core = Arc::new(Core {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            process,
            memory: settings.memory.unwrap_or_else(|| Arc::new(Heap)),
            strategy: RwLock::new(settings.strategy),
            capacity: AtomicU32::new(settings.capacity.unwrap_or(sizing::SMALLEST)),
            finds: AtomicBool::new(settings.capacity.is_none()),
            slots: Mutex::new(Vec::new()),
            empty: Mutex::new(Vec::new()),
            account: Account::default(),
            pending: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
            idle: Mutex::new(()),
            became_idle: Condvar::new(),
        });
        if settings.ends {
            ending::remember(Arc::downgrade(&core));
        }
        Environment { core }
    }

    /// An end of this environment for one thread at a time, with a buffer of its own: appending through it
    /// need not look up what belongs to the thread.
    pub fn producer(&self) -> Producer<C> {
        Producer::new(self.core.slot())
    }

    /// Submits this thread's buffer now, however full it is.
    pub fn process_current(&self) {
        local::owned(&self.core).exchange();
    }

    /// A checkpoint behind the calls that this thread made so far.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint::behind(&local::owned(&self.core))
    }

    /// Processes everything that was called until now, on all threads, and waits for what others process.
    /// The calling thread helps.
    pub fn finish(&self) {
        self.core.finish();
    }

    /// Processes, on the calling thread, what waits in the buffers of threads that are idle: that have not exchanged
    /// theirs since this thread's exchange before; and first what these threads gave to a queue. So what they called
    /// is not held up until they go on, where what this thread is about to submit should come after it. Where there is
    /// nothing, it costs a look at each thread's buffer.
    ///
    /// Where there is something, what this thread has in its buffer is processed together with it: which of the calls
    /// came first is for whoever executes them to say. What others process at this moment of what idle threads called is
    /// waited for, though not longer than a second, and not again where that was in vain: order is worth no more.
    ///
    /// What threads called that are not idle, or that have ended, or this thread in earlier buffers, may be processed
    /// later. A body must not call this: it would wait for itself.
    pub fn process_idle(&self) {
        local::owned(&self.core).process_idle();
    }

    /// Exchanges the strategy. Buffers that the old one holds are processed by it.
    pub fn set_strategy(&self, strategy: impl Strategy) {
        self.core.set_strategy(Arc::new(strategy));
    }

    /// The strategy.
    pub fn strategy(&self) -> Arc<dyn Strategy> {
        self.core.strategy()
    }

    /// Sets the capacity of buffers that are made from now on, in calls, at least 1. It is not searched for
    /// any longer.
    pub fn set_capacity(&self, calls: u32) {
        self.core.finds.store(false, Ordering::Relaxed);
        self.core.capacity.store(calls.max(1), Ordering::Relaxed);
    }

    /// The capacity of buffers that are made now, in calls.
    pub fn capacity(&self) -> u32 {
        self.core.capacity()
    }

    /// What the environment knows of itself.
    pub fn report(&self) -> Report {
        let pending = self.core.pending.load(Ordering::Relaxed);
        self.core.account.report(pending, self.core.capacity())
    }
}

impl<C: Columns> Drop for Environment<C> {
    fn drop(&mut self) {
        self.core.finish();
        // Threads remember their ends of this environment until they end; its consumers end now.
        self.core.set_strategy(Arc::new(Synchronous));
    }
}

impl<C: Columns> std::fmt::Debug for Environment<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment")
            .field("report", &self.report())
            .finish_non_exhaustive()
    }
}

impl<C: Columns> Core<C> {
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// What a producer found; another may have found more already.
    pub(crate) fn found_capacity(&self, calls: u32) {
        if self.finds.load(Ordering::Relaxed) {
            self.capacity.fetch_max(calls, Ordering::Relaxed);
        }
    }

    pub(crate) fn slot(self: &Arc<Self>) -> Arc<Slot<C>> {
        let (block, _) = self.fresh();
        let slot = Arc::new(Slot::new(Arc::clone(self), block));
        let mut slots = lock(&self.slots);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// An empty buffer, and whether memory is short.
    pub(crate) fn fresh(&self) -> (Block<C>, bool) {
        let capacity = self.capacity();
        {
            let mut empty = lock(&self.empty);
            while let Some(block) = empty.pop() {
                if block.capacity() == capacity {
                    return (block, false);
                }
                self.account.unmade(block.bytes());
            }
        }
        let (block, short) = match Block::new(&self.memory, capacity) {
            Some(block) => (block, false),
            None => {
                let heap: Arc<dyn Memory> = Arc::new(Heap);
                let small = capacity.min(sizing::SMALLEST);
                (self.must(Block::new(&heap, small)), true)
            }
        };
        self.account.made(block.bytes());
        (block, short)
    }

    /// The heap's answer: where it has nothing more, a Rust program ends.
    fn must(&self, block: Option<Block<C>>) -> Block<C> {
        block.unwrap_or_else(|| std::alloc::handle_alloc_error(std::alloc::Layout::new::<u64>()))
    }

    /// A processed buffer comes back.
    pub(crate) fn ended(&self, mut block: Block<C>) {
        block.reset();
        if block.capacity() == self.capacity() {
            let mut empty = lock(&self.empty);
            // As many as one exchange each of a few threads can use; the rest was a peak.
            if empty.len() < 16 {
                empty.push(block);
                return;
            }
        }
        self.account.unmade(block.bytes());
    }

    pub(crate) fn strategy(&self) -> Arc<dyn Strategy> {
        let strategy = self.strategy.read();
        Arc::clone(&strategy.unwrap_or_else(PoisonError::into_inner))
    }

    fn set_strategy(&self, strategy: Arc<dyn Strategy>) {
        let mut current = self
            .strategy
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, strategy);
        drop(current);
        // It may wait for its consumers.
        drop(old);
    }

    pub(crate) fn wrap(
        self: &Arc<Self>,
        block: Block<C>,
        number: u64,
        progress: Arc<Progress>,
    ) -> Work {
        self.begins();
        Work::new(block, number, progress, Arc::clone(self))
    }

    /// One more buffer is to be processed.
    pub(crate) fn begins(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a full buffer to the strategy. How long the producer processed buffers, or waited.
    pub(crate) fn submit(&self, work: Work) -> Duration {
        let spent = self.strategy().submit(work);
        count(&self.account.helping_ns, nanoseconds(spent.helping));
        count(&self.account.waiting_ns, nanoseconds(spent.waiting));
        spent.helping + spent.waiting
    }

    /// Processes a buffer on the thread that filled it. How long that took.
    pub(crate) fn process_here(&self, work: Work) -> Duration {
        let began = Instant::now();
        work.run(By::Producer);
        let helping = began.elapsed();
        count(&self.account.helping_ns, nanoseconds(helping));
        helping
    }

    /// Executes what a submitted buffer holds.
    pub(crate) fn process(&self, block: &mut Block<C>, by: By) {
        count(&self.account.by[by as usize], 1);
        self.execute(block);
        self.processed();
    }

    /// Moves what a buffer holds that a thread is still filling into one of its own, with room for so many calls at
    /// least, where there is memory for them, and in any case for these.
    pub(crate) fn moved(&self, from: &mut Block<C>, capacity: u32) -> Block<C> {
        let mut to = match self.capacity() >= capacity {
            true => self.fresh().0,
            false => self.large(capacity),
        };
        if to.capacity() < from.left() {
            self.account.unmade(to.bytes());
            to = self.large(from.capacity());
        }
        from.move_to(&mut to);
        to
    }

    fn large(&self, capacity: u32) -> Block<C> {
        let heap: Arc<dyn Memory> = Arc::new(Heap);
        let large = Block::new(&self.memory, capacity);
        let large = large.or_else(|| Block::new(&heap, capacity));
        let large = self.must(large);
        self.account.made(large.bytes());
        large
    }

    fn execute(&self, block: &mut Block<C>) {
        let calls = block.left();
        let mut pending = Pending::new(block);
        // What is merged after the calls may panic, too.
        let result = catch_unwind(AssertUnwindSafe(|| self.process.process(&mut pending)));
        let mut panics = pending.panics();
        if let Err(payload) = result {
            panics += 1;
            discard_payload(payload);
        }
        count(&self.account.panics, panics);
        let taken = calls.saturating_sub(block.left());
        count(&self.account.calls, u64::from(taken));
        if taken < calls {
            self.discard(block);
        }
        block.mark_done();
    }

    fn discard(&self, block: &mut Block<C>) {
        let before = block.left();
        while let Err(payload) = catch_unwind(AssertUnwindSafe(|| block.discard())) {
            discard_payload(payload);
        }
        count(&self.account.lost, u64::from(before));
    }

    /// Drops the calls of a submitted buffer.
    pub(crate) fn throw_away(&self, block: &mut Block<C>) {
        self.discard(block);
        block.mark_done();
        self.processed();
    }

    fn processed(&self) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(lock(&self.idle));
            self.became_idle.notify_all();
        }
    }

    /// The slots of all threads.
    pub(crate) fn slots(&self) -> Vec<Arc<Slot<C>>> {
        let slots = lock(&self.slots);
        slots.iter().filter_map(Weak::upgrade).collect()
    }

    /// How often a buffer was exchanged so far.
    pub(crate) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }

    /// Another one is; which one it is, counted from 1.
    pub(crate) fn count_exchange(&self) -> u64 {
        self.exchanges.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// See [`Environment::finish`].
    pub(crate) fn finish(&self) {
        while self.strategy().help() {}
        self.process_together(&self.slots());
        loop {
            while self.strategy().help() {}
            let guard = lock(&self.idle);
            if self.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            // A strategy of a user's own may get more to help with meanwhile, and not say so.
            let waited = self
                .became_idle
                .wait_timeout(guard, Duration::from_millis(10));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl<C: Columns> ending::Finish for Core<C> {
    fn finish(&self) {
        Core::finish(self);
    }

    fn process_free(&self) {
        let slots = self.slots.try_lock().map(|slots| slots.clone());
        for slot in slots.iter().flatten().filter_map(Weak::upgrade) {
            slot.drain_if_free();
        }
        while self.strategy().help() {}
    }
}

impl<C: Columns> Drop for Core<C> {
    fn drop(&mut self) {
        for block in lock(&self.empty).drain(..) {
            self.account.unmade(block.bytes());
        }
    }
}
