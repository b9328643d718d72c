//! What is kept for each thread, and how its accesses are recorded.
//!
//! **Coalescing.** An access to bytes that the thread accessed before in the same segment, in a way that
//! races with as much, is not recorded again: a small table says what was accessed lately.
//!
//! **Why it is sound.** Only the thread itself uses its [`Thread`], through the pointer in its word; the
//! pointer is taken away before it is freed. Code that a signal brings in while something is recorded sees
//! `busy`.

use crate::lives;
use crate::process::Process;
use corewise_analyses::inside::word;
use corewise_analyses::race::{
    Access, Accesses, AccessesBuffer, Counter, Search, Site, ThreadClock, kind,
};
use corewise_defer::Producer;
use std::sync::atomic::{Ordering, compiler_fence};

/// Calls deeper than this are not told apart.
const DEEPEST: usize = 1 << 15;
/// Depths of the machine's stack that are further apart than this are of different stacks (coroutines,
/// signal stacks): no call is taken for gone by them.
const SAME_STACK: usize = 64 << 20;
/// Granules of which it is known what was accessed in this segment. A power of two.
const RECENT: usize = 1 << 17;
/// Places in the code whose numbers are known. A power of two.
const SITES: usize = 1 << 10;
/// Granules that one record goes on for, at most.
const LONGEST: u64 = 1 << 15;

/// Where accesses are recorded.
pub(crate) enum Front {
    /// In a buffer.
    Deferred(Producer<AccessesBuffer>),
    /// They are compared at once.
    Sequential(&'static Search<'static>),
    /// Nowhere.
    Nothing,
}

/// A function that has begun and not ended.
#[derive(Clone, Copy, Default)]
struct Frame {
    /// Where it was called.
    code: u64,
    /// How deep the machine's stack was.
    depth: usize,
    /// The number of the stack with this frame; 0: not asked for yet.
    context: u32,
}

/// What was accessed of a granule in a segment, for each kind of access the bytes.
#[derive(Clone, Copy, Default)]
struct Recent {
    granule: u64,
    segment: u32,
    masks: [u8; 4],
}

#[derive(Clone, Copy, Default)]
struct KnownSite {
    site: Site,
    number: u32,
}

/// One thread.
pub(crate) struct Thread {
    segment: u32,
    /// Nobody else runs, and everything that others did comes before: nothing needs to be recorded.
    pub(crate) alone: bool,
    /// The program asked for accesses not to be recorded, so many times.
    pub(crate) ignored: u32,
    /// The same of what orders threads.
    pub(crate) orders_ignored: u32,
    /// How deep the machine's stack was in what runs here now; 0: nothing.
    busy: usize,
    len: usize,
    beyond: usize,
    /// The number of the set of locks held.
    locks: u32,
    recent: Box<[Recent; RECENT]>,
    sites: Box<[KnownSite; SITES]>,
    frames: Box<[Frame; DEEPEST]>,
    held: Vec<u64>,
    pub(crate) clock: ThreadClock,
    pub(crate) front: Front,
    pub(crate) process: &'static Process,
    /// Accesses recorded and not yet counted.
    recorded: u64,
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
            segment: clock.segment(),
            alone: false,
            ignored: 0,
            orders_ignored: 0,
            busy: 0,
            len: 0,
            beyond: 0,
            locks: 0,
            recent: filled(),
            sites: filled(),
            frames: filled(),
            held: Vec::new(),
            clock,
            front,
            process,
            recorded: 0,
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

    /// Runs something of ours, which nothing of the program interrupts.
    #[inline(always)]
    pub(crate) fn quietly<T>(&mut self, run: impl FnOnce(&mut Thread) -> T) -> T {
        self.busy = stack();
        compiler_fence(Ordering::SeqCst);
        let result = run(self);
        compiler_fence(Ordering::SeqCst);
        self.busy = 0;
        result
    }

    /// Accesses of up to eight bytes.
    #[inline(always)]
    pub(crate) fn access(&mut self, address: u64, size: u32, kind: u8, code: u64) {
        if self.alone {
            return;
        }
        let granule = address >> 3;
        let bytes = ((1_u32 << size) - 1) << (address & 7);
        self.touch(granule, bytes as u8, kind, code);
        if bytes > 0xff {
            self.touch(granule + 1, (bytes >> 8) as u8, kind, code);
        }
    }

    #[inline(always)]
    fn touch(&mut self, granule: u64, mask: u8, kind: u8, code: u64) {
        let recent = &mut self.recent[granule as usize & (RECENT - 1)];
        if recent.granule == granule && recent.segment == self.segment {
            let [read, write, atomic_read, atomic_write] = recent.masks;
            let covered = match kind & 3 {
                0 => read | write,
                kind::WRITE => write,
                kind::ATOMIC => read | write | atomic_read | atomic_write,
                _ => write | atomic_write,
            };
            if mask & !covered == 0 {
                return;
            }
        } else {
            *recent = Recent {
                granule,
                segment: self.segment,
                masks: [0; 4],
            };
        }
        recent.masks[usize::from(kind & 3)] |= mask;
        self.record(granule, mask, kind, code, 1);
    }

    /// Forgets what was accessed of a block, which is no longer the same.
    pub(crate) fn forget(&mut self, address: u64, bytes: u64) {
        let granules = (address >> 3)..=(address.saturating_add(bytes) >> 3);
        for granule in granules.take(RECENT) {
            self.recent[granule as usize & (RECENT - 1)].granule = 0;
        }
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
        if self.ignored > 0 || crate::annotations::is_benign(granule << 3) {
            return;
        }
        let depth = stack();
        // One that lies deeper was left by `longjmp`, and will never end.
        if self.busy > depth {
            self.process.search.words.add(Counter::Interrupted, 1);
            return;
        }
        self.busy = depth;
        compiler_fence(Ordering::SeqCst);
        let site = self.site(code);
        let access = Access {
            granule,
            mask,
            life: lives::of(granule << 3),
            kind,
            thread: self.clock.thread(),
            segment: self.segment,
            site,
        };
        let (place, extent) = access.packed(granules);
        self.recorded += u64::from(granules);
        match &self.front {
            Front::Deferred(producer) => {
                if producer.is_nearly_full() {
                    let _quiet = corewise_analyses::inside::Quiet::now();
                    self.process.at_exchange(self.recorded);
                    self.recorded = 0;
                    producer.access(place, self.segment, site, extent);
                } else {
                    producer.access(place, self.segment, site, extent);
                }
            }
            Front::Sequential(search) => search.access(place, self.segment, site, extent),
            Front::Nothing => {}
        }
        compiler_fence(Ordering::SeqCst);
        self.busy = 0;
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

    /// The number of the stack of calls.
    fn context(&mut self) -> u32 {
        let len = self.len;
        if len == 0 {
            return 0;
        }
        let known = self.frames[len - 1].context;
        if known != 0 {
            return known;
        }
        let from = (0..len)
            .rev()
            .find(|index| self.frames[*index].context != 0)
            .map_or(0, |index| index + 1);
        let mut outer = match from {
            0 => 0,
            from => self.frames[from - 1].context,
        };
        for frame in &mut self.frames[from..len] {
            let number = self.process.search.called(frame.code, outer);
            if number == 0 {
                break;
            }
            outer = number;
            frame.context = number;
        }
        outer
    }

    /// A function begins.
    #[inline(always)]
    pub(crate) fn enter(&mut self, code: u64, depth: usize) {
        // Functions that were left without their hook (`longjmp`, exceptions) are deeper, or as deep.
        while self.len > 0 {
            let top = self.frames[self.len - 1].depth;
            if top > depth || depth - top > SAME_STACK {
                break;
            }
            self.len -= 1;
            self.beyond = 0;
        }
        if self.len < DEEPEST {
            self.frames[self.len] = Frame {
                code,
                depth,
                context: 0,
            };
            self.len += 1;
        } else {
            self.beyond += 1;
        }
    }

    /// A function ends.
    #[inline(always)]
    pub(crate) fn exit(&mut self) {
        if self.beyond > 0 {
            self.beyond -= 1;
        } else {
            self.len = self.len.saturating_sub(1);
        }
    }

    /// Its clock changed: what was accessed before is of another segment.
    pub(crate) fn clock_changed(&mut self, learned: bool) {
        self.segment = self.clock.segment();
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
        let recorded = std::mem::take(&mut self.recorded);
        self.process.search.words.add(Counter::Recorded, recorded);
        if let Front::Deferred(producer) = &self.front
            && recorded > 0
        {
            let _quiet = corewise_analyses::inside::Quiet::now();
            producer.process_current();
        }
    }

    /// Takes what the thread had out of its parent's hands, in a forked child: its buffer is the parent's.
    pub(crate) fn abandon_front(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.front, Front::Nothing));
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
