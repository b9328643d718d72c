//! The claim page: what a program may use now. The manager writes it, the program maps it read-only.

use crate::cpus::LockedCpus;
use crate::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use crate::turn::{LockedTurn, Turn};
use crate::{PAGE_BYTES, PageHeader};

const MAGIC: u32 = u32::from_le_bytes(*b"CWcl");

/// Length of a keeper's mutex in words: a `pthread_mutex_t` of 40 bytes.
pub const KEEPER_WORDS: usize = 10;

/// `FUTEX_OWNER_DIED`: what the kernel sets in the futex of a robust mutex when its owner is gone.
const OWNER_DIED: u32 = 0x4000_0000;

/// Who stands behind a claim page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing has been granted yet.
    Waiting,
    /// A manager keeps the claim.
    Managed,
    /// The manager has ended in good order: the claim no longer binds.
    Ended,
}

/// One claim word: which grant this is, and how many threads it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Counts grants; it wraps around, so compare for equality only. 0: nothing was granted yet.
    pub generation: u32,
    /// Threads that the program may run at the same time, at least 1 once granted.
    pub threads: u32,
}

/// The claim page. All fields are atomics at fixed offsets; the rest of the page is reserved, and zero.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ClaimPage {
    header: PageHeader,
    manager_pid: AtomicI32,
    state: AtomicU32,
    /// A robust mutex of the C library's, held as long as its owner keeps the page; zeroes where the page
    /// is kept by other means (a connection that ends). Its first word is the futex.
    keeper: [AtomicU32; KEEPER_WORDS],
    /// Generation in the upper half, threads in the lower: what is read before every piece of work
    /// has its own cache line.
    word: AtomicU64,
    /// The generation again, for futex(2).
    wake: AtomicU32,
    _reserved_line: [AtomicU32; 13],
    cpus: LockedCpus,
    turn: LockedTurn,
}

/// Length of the page before it had a turn: what a reader of claims cannot do without.
const WITHOUT_TURN: usize = 704;

const _: () = assert!(core::mem::offset_of!(ClaimPage, turn) <= WITHOUT_TURN);
const _: () = assert!(size_of::<ClaimPage>() <= PAGE_BYTES);

impl Default for ClaimPage {
    fn default() -> ClaimPage {
        ClaimPage::new()
    }
}

impl ClaimPage {
    /// The offset of each field of the header file's `struct corewise_claim_page`, in bytes.
    #[doc(hidden)]
    pub fn layout() -> impl Iterator<Item = (&'static str, usize)> {
        let cpus = core::mem::offset_of!(ClaimPage, cpus);
        let own = [
            ("manager_pid", core::mem::offset_of!(ClaimPage, manager_pid)),
            ("state", core::mem::offset_of!(ClaimPage, state)),
            ("keeper", core::mem::offset_of!(ClaimPage, keeper)),
            ("word", core::mem::offset_of!(ClaimPage, word)),
            ("wake", core::mem::offset_of!(ClaimPage, wake)),
        ];
        let set = LockedCpus::LAYOUT.map(|(name, offset)| (name, cpus + offset));
        let turn = core::mem::offset_of!(ClaimPage, turn);
        let turn = LockedTurn::LAYOUT.map(|(name, offset)| (name, turn + offset));
        let lines = own.into_iter().chain(set).chain(turn);
        PageHeader::LAYOUT.into_iter().chain(lines)
    }

    /// A page of zeroes in ordinary memory, as a mapped page is before [`ClaimPage::initialise`]: for
    /// a claim that no manager keeps, and for tests.
    pub fn new() -> ClaimPage {
        ClaimPage {
            header: PageHeader::new(),
            manager_pid: AtomicI32::new(0),
            state: AtomicU32::new(0),
            keeper: core::array::from_fn(|_| AtomicU32::new(0)),
            word: AtomicU64::new(0),
            wake: AtomicU32::new(0),
            _reserved_line: core::array::from_fn(|_| AtomicU32::new(0)),
            cpus: LockedCpus::new(),
            turn: LockedTurn::new(),
        }
    }

    /// Makes a page of zeroes a claim page of the manager `manager_pid`.
    pub fn initialise(&self, manager_pid: i32) {
        self.manager_pid.store(manager_pid, Ordering::Relaxed);
        self.header.initialise(MAGIC, size_of::<ClaimPage>(), 0);
    }

    /// Whether this is a claim page of a version that we can read.
    pub fn is_valid(&self) -> bool {
        self.header
            .read(MAGIC)
            .is_some_and(|(version, size)| version >= 1 && usize::from(size) >= WITHOUT_TURN)
    }

    /// The process that keeps the claim, as its own PID namespace numbers it.
    pub fn manager_pid(&self) -> i32 {
        self.manager_pid.load(Ordering::Relaxed)
    }

    /// Who stands behind the page.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            1 => State::Managed,
            2 => State::Ended,
            _ => State::Waiting,
        }
    }

    /// Where whoever keeps the page has a robust mutex, for those who have no connection to tell them of
    /// its end: the kernel marks it when the owner dies, however it dies (robust futexes, Linux 2.6.17).
    pub fn keeper(&self) -> &[AtomicU32; KEEPER_WORDS] {
        &self.keeper
    }

    /// Whether the page had a keeper who has died: then the claim does not bind. Costs a load.
    #[inline]
    pub fn keeper_has_died(&self) -> bool {
        self.keeper[0].load(Ordering::Relaxed) & OWNER_DIED != 0
    }

    /// How many threads the claim allows, or `None` where no claim binds: nothing was granted, it was
    /// ended, or its keeper has died. Costs three loads.
    #[inline]
    pub fn binding(&self) -> Option<u32> {
        let binds = self.state() == State::Managed && !self.keeper_has_died();
        binds.then(|| self.granted().threads.max(1))
    }

    /// Generation and number of threads: one load with acquire ordering, about a nanosecond.
    #[inline]
    pub fn granted(&self) -> Granted {
        let word = self.word.load(Ordering::Acquire);
        Granted {
            generation: (word >> 32) as u32,
            threads: word as u32,
        }
    }

    /// The futex word for those who sleep until the next grant: wait while it holds the generation
    /// that was seen. It changes after the claim has.
    pub fn futex(&self) -> &AtomicU32 {
        &self.wake
    }

    /// Copies the CPU set into `into`, a word for each 64 CPUs, and gives the generation it belongs
    /// to. `None` if no consistent set could be read, as when the manager was killed while it wrote:
    /// then the claim does not bind. Costs a few nanoseconds.
    pub fn cpus(&self, into: &mut [u64]) -> Option<u32> {
        self.cpus.read(into)
    }

    /// When the program runs; `None`: always, as where no claim binds. Costs some 30 ns and an allocation.
    pub fn turn(&self) -> Option<Turn> {
        self.binding().and_then(|_| self.turn.read())
    }

    /// Says when the program runs (`None`: always). Readers look at it at the next grant: only the manager
    /// may call this, and grants afterwards.
    pub fn set_turn(&self, turn: Option<&Turn>) {
        self.turn.write(turn);
    }

    /// Grants: writes the CPU set, then the claim word, then the futex word; gives the new
    /// generation. Only the manager may call this. It must wake the sleepers afterwards.
    pub fn grant(&self, threads: u32, cpus: impl IntoIterator<Item = u32>) -> u32 {
        let generation = match self.granted().generation.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        self.cpus.write(generation, cpus);
        self.state.store(1, Ordering::Relaxed);
        let word = u64::from(generation) << 32 | u64::from(threads.max(1));
        self.word.store(word, Ordering::Release);
        self.wake.store(generation, Ordering::Release);
        generation
    }

    /// Says that the manager has ended. It must wake the sleepers afterwards.
    pub fn end(&self) {
        self.state.store(2, Ordering::Release);
        let generation = self.granted().generation.wrapping_add(1).max(1);
        // A new generation, so that readers of the word alone look at the state.
        let word = u64::from(generation) << 32 | u64::from(self.granted().threads);
        self.word.store(word, Ordering::Release);
        self.wake.store(generation, Ordering::Release);
    }
}
