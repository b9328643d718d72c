//! What is kept for each thread, and how its accesses are recorded.
//!
//! **Coalescing.** An access to bytes that the thread accessed before in the same segment, in a way that
//! races with as much, is not recorded again, and accesses to neighbours are recorded together: see
//! [`Recent`].
//!
//! **Why it is sound.** Only the thread itself uses its [`Thread`], through the pointer in its word; the
//! pointer is taken away before it is freed. Signals that come while something is recorded wait until it ends
//! ([`crate::signals`]); code that one brings in nevertheless sees `busy`.

mod calls;
mod quiet;

use crate::lives;
use crate::process::Process;
use crate::recorder::{Front, Recorder};
use calls::{Aside, Frame};
use corewise_analyses::inside::word;
use corewise_analyses::race::{Access, Counter, Recent, Run, Site, ThreadClock, kind};

/// Granules of which it is known that atomic operations accessed them in this segment. A power of two.
const ATOMICS: usize = 1 << 8;
/// Places in the code whose numbers are known. A power of two.
const SITES: usize = 1 << 10;
/// Granules that one record goes on for, at most.
const LONGEST: u64 = 1 << 15;

/// What atomic operations accessed of a granule in a segment: the bytes that were only read, and the others.
#[derive(Clone, Copy, Default)]
struct Atomic {
    granule: u64,
    segment: u32,
    masks: [u8; 2],
}

#[derive(Clone, Copy, Default)]
struct KnownSite {
    site: Site,
    number: u32,
}

/// One thread.
pub(crate) struct Thread {
    /// Nobody else runs, and everything that others did comes before: nothing needs to be recorded.
    pub(crate) alone: bool,
    /// The program asked for accesses not to be recorded, so many times.
    pub(crate) ignored: u32,
    /// The same of what orders threads.
    pub(crate) orders_ignored: u32,
    /// What was ignored where signals came whose handlers run now.
    aside: Vec<Aside>,
    /// How deep the machine's stack was in what runs here now; 0: nothing.
    busy: usize,
    /// Signals that came while something did, and are blocked until it ends.
    late: u64,
    /// It can be cancelled at any instruction.
    pub(crate) cancelled_anywhere: bool,
    len: usize,
    beyond: usize,
    /// The number of the set of locks held.
    locks: u32,
    recent: Recent,
    atomics: Box<[Atomic; ATOMICS]>,
    sites: Box<[KnownSite; SITES]>,
    frames: Vec<Frame>,
    held: Vec<u64>,
    pub(crate) clock: ThreadClock,
    recorder: Recorder,
    pub(crate) process: &'static Process,
    /// What `pthread_once` is to call.
    pub(crate) once: Vec<(u64, extern "C-unwind" fn())>,
    /// Where the thread was entered, for its name.
    pub(crate) record: Option<usize>,
    pub(crate) index: u32,
    /// What the last fence of each kind leaves to the next relaxed operations.
    pub(crate) fences: crate::order::Fences,
    pub(crate) round: u32,
}

impl Thread {
    pub(crate) fn new(
        process: &'static Process,
        clock: ThreadClock,
        front: Front,
        index: u32,
    ) -> Box<Thread> {
        Box::new(Thread {
            alone: false,
            ignored: 0,
            orders_ignored: 0,
            aside: Vec::new(),
            busy: 0,
            late: 0,
            cancelled_anywhere: false,
            len: 0,
            beyond: 0,
            locks: 0,
            recent: Recent::default(),
            atomics: filled(),
            sites: filled(),
            frames: calls::room(),
            held: Vec::new(),
            recorder: Recorder::new(front, process, clock.thread(), clock.segment()),
            clock,
            process,
            once: Vec::new(),
            record: None,
            index,
            fences: crate::order::Fences::default(),
            round: 0,
        })
    }

    /// The calling thread's, if it has one.
    #[inline(always)]
    pub(crate) fn existing() -> Option<&'static mut Thread> {
        // SAFETY: null, or this thread's own; what could use it at once sees `busy`.
        unsafe { word::get().cast::<Thread>().as_mut() }
    }

    /// The calling thread's, if it has one and nothing of ours runs on it.
    #[inline(always)]
    pub(crate) fn active() -> Option<&'static mut Thread> {
        Thread::existing().filter(|thread| thread.busy <= stack())
    }

    /// Accesses of up to eight bytes.
    #[inline(always)]
    pub(crate) fn access(&mut self, address: u64, size: u32, kind: u8, code: u64) {
        if self.alone {
            return;
        }
        // By far the most accesses end here, so that nothing is prepared for what follows.
        let mask = (((1_u32 << size) - 1) << (address & 7)) as u8;
        let within = address & 7 <= u64::from(8 - size);
        let plain = kind & (kind::ATOMIC | kind::FREE) == 0;
        let writes = kind & kind::WRITE != 0;
        if !(plain && within && self.recent.covers(address >> 3, mask, writes)) {
            self.new_access(address, size, kind, code);
        }
    }

    #[cold]
    #[inline(never)]
    fn new_access(&mut self, address: u64, size: u32, kind: u8, code: u64) {
        let granule = address >> 3;
        let bytes = ((1_u32 << size) - 1) << (address & 7);
        self.touch(granule, bytes as u8, kind, code);
        if bytes > 0xff {
            self.touch(granule + 1, (bytes >> 8) as u8, kind, code);
        }
    }

    #[inline]
    fn touch(&mut self, granule: u64, mask: u8, kind: u8, code: u64) {
        if kind & kind::ATOMIC != 0 {
            self.touch_atomically(granule, mask, kind, code);
        } else if !self.recent.covers(granule, mask, kind & kind::WRITE != 0) {
            match kind & kind::FREE {
                0 => self.add(granule, mask, kind, code),
                _ => self.record(granule, mask, kind, code, 1),
            }
        }
    }

    #[inline(never)]
    fn add(&mut self, granule: u64, mask: u8, kind: u8, code: u64) {
        self.records(granule, |thread| {
            let access = thread.made(granule, mask, kind, code);
            thread
                .recent
                .add(&access, |run| thread.recorder.record(run));
        });
    }

    fn touch_atomically(&mut self, granule: u64, mask: u8, kind: u8, code: u64) {
        let segment = self.recorder.segment();
        let atomic = &mut self.atomics[granule as usize & (ATOMICS - 1)];
        if atomic.granule != granule || atomic.segment != segment {
            *atomic = Atomic {
                granule,
                segment,
                masks: [0; 2],
            };
        }
        let writes = usize::from(kind & kind::WRITE != 0);
        let [read, written] = atomic.masks;
        let covered = if writes == 1 { written } else { read | written };
        if mask & !covered != 0 {
            atomic.masks[writes] |= mask;
            self.record(granule, mask, kind, code, 1);
        }
    }

    /// Forgets what was accessed of a block, which is no longer the same.
    fn forget(&mut self, address: u64, bytes: u64) {
        let recorder = &mut self.recorder;
        self.recent
            .forget(address, bytes, |run| recorder.record(run));
        let granules = (address >> 3)..=(address.saturating_add(bytes) >> 3);
        for granule in granules.take(ATOMICS) {
            self.atomics[granule as usize & (ATOMICS - 1)].granule = 0;
        }
    }

    /// Memory begins another life, which it says.
    pub(crate) fn next_life(&mut self, address: u64, bytes: u64) -> u32 {
        self.forget(address, bytes);
        lives::next(address, bytes)
    }

    /// Accesses of any number of bytes.
    pub(crate) fn range(&mut self, address: u64, bytes: u64, kind: u8, code: u64) {
        if self.alone || bytes == 0 {
            return;
        }
        let Some(end) = address.checked_add(bytes).filter(|end| *end < 1 << 47) else {
            return;
        };
        let (mut first, last) = (address >> 3, end >> 3);
        if first == last {
            let mask = ((1_u32 << bytes) - 1) << (address & 7);
            return self.touch(first, mask as u8, kind, code);
        }
        if address & 7 != 0 {
            self.touch(first, 0xff << (address & 7), kind, code);
            first += 1;
        }
        if end & 7 != 0 {
            self.touch(last, (1 << (end & 7)) - 1, kind, code);
        }
        if first + 8 > last {
            for granule in first..last {
                self.touch(granule, 0xff, kind, code);
            }
            return;
        }
        while first < last {
            let most = (last - first).min(LONGEST);
            let alike = lives::alike(first << 3, most * 8)
                .div_ceil(8)
                .clamp(1, most);
            self.record(first, 0xff, kind, code, alike as u16);
            first += alike;
        }
    }

    #[inline(never)]
    fn record(&mut self, granule: u64, mask: u8, kind: u8, code: u64, granules: u16) {
        self.records(granule, |thread| {
            let access = thread.made(granule, mask, kind, code);
            thread.recorder.record(Run { access, granules });
        });
    }

    /// Records something, unless that is not wanted or comes in the middle of another.
    #[inline(always)]
    fn records(&mut self, granule: u64, record: impl FnOnce(&mut Thread)) {
        if self.ignored > 0 || crate::annotations::is_benign(granule << 3) {
            return;
        }
        // One that lies deeper was left by `longjmp`, and will never end.
        if self.busy > stack() {
            self.process.search.words.add(Counter::Interrupted, 1);
            return;
        }
        self.quietly_here(record);
    }

    /// An access that is made now.
    fn made(&mut self, granule: u64, mask: u8, kind: u8, code: u64) -> Access {
        Access {
            granule,
            mask,
            life: lives::of_accessed(granule << 3),
            kind,
            thread: self.clock.thread(),
            segment: self.recorder.segment(),
            site: self.site(code),
        }
    }

    /// The number of a place in the code, reached as the thread is now.
    pub(crate) fn site(&mut self, code: u64) -> u32 {
        let site = Site {
            code,
            context: self.context(),
            locks: self.locks,
        };
        let mixed = (code ^ u64::from(site.context) << 20 ^ u64::from(site.locks) << 40)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let known = &mut self.sites[(mixed >> 50) as usize & (SITES - 1)];
        if known.site != site || known.number == 0 {
            *known = KnownSite {
                site,
                number: self.process.search.site(site),
            };
        }
        known.number
    }

    /// Its clock changed: what was accessed before is of another segment.
    pub(crate) fn clock_changed(&mut self, learned: bool) {
        if self.clock.segment() != self.recorder.segment() {
            let recorder = &mut self.recorder;
            self.recent.end_segment(|run| recorder.record(run));
            recorder.begin_segment(self.clock.segment());
        }
        if learned {
            let search = self.process.search;
            search.timelines().note(&search.words, &self.clock);
        }
    }

    /// Holds a lock from now on; `shared`: with others.
    pub(crate) fn hold(&mut self, lock: u64, shared: bool) {
        self.held.push(lock & !1 | u64::from(shared));
        self.locks = self.process.search.locks(&self.held);
    }

    /// Whether it holds it with others.
    pub(crate) fn is_shared(&self, lock: u64) -> bool {
        self.held.contains(&(lock | 1))
    }

    /// Holds it no longer.
    pub(crate) fn let_go(&mut self, lock: u64) {
        if let Some(index) = self.held.iter().rposition(|held| held & !1 == lock & !1) {
            self.held.remove(index);
            self.locks = self.process.search.locks(&self.held);
        }
    }

    /// Gives what is recorded away: the thread is about to wait, or to end.
    pub(crate) fn hand_over(&mut self) {
        let recorder = &mut self.recorder;
        self.recent.end_segment(|run| recorder.record(run));
        recorder.hand_over();
    }

    /// The same, for the last time.
    pub(crate) fn end(&mut self) {
        self.hand_over();
        self.recorder.end();
    }

    /// Takes what the thread had out of its parent's hands, in a forked child: its buffer is the parent's.
    pub(crate) fn abandon_front(&mut self) {
        self.recorder.abandon();
    }
}

fn filled<T: Default + Copy, const N: usize>() -> Box<[T; N]> {
    let all = vec![T::default(); N].into_boxed_slice();
    // SAFETY: a box of so many.
    unsafe { Box::from_raw(Box::into_raw(all).cast::<[T; N]>()) }
}

/// How deep the machine's stack is.
#[inline(always)]
pub(crate) fn stack() -> usize {
    let depth: usize;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mov {}, rsp", out(reg) depth, options(nomem, nostack, preserves_flags));
    }
    depth
}
