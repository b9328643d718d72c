//! Which copy of a runtime a caller uses. A program can have several (wheels bring copies of their own),
//! and a function that we interpose is called by the users of all of them: the real one is looked for
//! from the library that calls, as the loader would have bound it (see [`loaded`](crate::loaded)).
//!
//! What was found is kept for each library, and for each address that called, so that a call costs one
//! look into a table. Everything that was kept is void when a library is unloaded (`dlclose` is
//! interposed for that alone): other code may then be at the same address.

use crate::listed;
use crate::loaded::{Handle, Library, real_dlclose};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Functions of a runtime that can be kept for a library.
pub(crate) const FUNCTIONS: usize = 64;
/// Libraries that can be kept. Others are looked at anew for each call: slow, but right.
const OBJECTS: usize = 256;
/// Addresses that can be kept, a power of two.
const SITES: usize = 4096;
/// 2 to the 64th over the golden ratio: spreads numbers that differ in their lower bits.
const FIBONACCI: u64 = 0x9e37_79b9_7f4a_7c15;
/// How far from its place an address is looked for.
const PROBES: usize = 8;

/// A library, or the program itself, that calls functions which we interpose.
#[derive(Debug)]
pub(crate) struct Object {
    start: AtomicUsize,
    end: AtomicUsize,
    /// The epoch in which this was found; 0: not yet.
    epoch: AtomicU64,
    /// What is known of its numbers; see [`listed`].
    pub(crate) listed: AtomicU32,
    /// Whether it keeps data of its own in each thread.
    pub(crate) keeps_thread_data: AtomicU32,
    /// Made of its file's name: the same whenever and wherever it is loaded.
    name: AtomicU64,
    functions: [AtomicPtr<c_void>; FUNCTIONS],
}

impl Object {
    const fn new() -> Object {
        Object {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            listed: AtomicU32::new(0),
            keeps_thread_data: AtomicU32::new(0),
            name: AtomicU64::new(0),
            functions: [const { AtomicPtr::new(null_mut()) }; FUNCTIONS],
        }
    }

    /// The real function of that number, null if its runtime has none.
    #[inline]
    pub(crate) fn function(&self, number: usize) -> *mut c_void {
        match self.functions.get(number) {
            Some(function) => function.load(Ordering::Relaxed),
            None => null_mut(),
        }
    }

    /// Names the code at `address` of it: the same whenever and wherever it is loaded. Never 0.
    #[inline]
    pub(crate) fn key(&self, address: usize) -> u64 {
        let offset = address.wrapping_sub(self.start.load(Ordering::Relaxed));
        let mixed = (self.name.load(Ordering::Relaxed) ^ offset as u64).wrapping_mul(FIBONACCI);
        (mixed ^ mixed >> 32).max(1)
    }

    /// Whether `address` is in it.
    #[inline]
    pub(crate) fn holds(&self, address: usize) -> bool {
        (self.start.load(Ordering::Acquire)..self.end.load(Ordering::Relaxed)).contains(&address)
    }
}

/// What is known in this process of the callers of one runtime.
#[derive(Debug)]
pub(crate) struct Objects {
    /// The functions' names, each with the zero at its end.
    names: &'static [&'static CStr],
    objects: [Object; OBJECTS],
    taken: AtomicUsize,
    sites: [Site; SITES],
}

/// An address that calls, and whose it is.
#[derive(Debug)]
struct Site {
    address: AtomicUsize,
    /// The object's number and 1, above the lower half of the epoch; 0: nothing.
    object: AtomicU64,
}

/// Counts what makes everything that was kept void. Never 0.
static EPOCH: AtomicU64 = AtomicU64::new(1);

impl Objects {
    pub(crate) const fn new(names: &'static [&'static CStr]) -> Objects {
        Objects {
            names,
            objects: [const { Object::new() }; OBJECTS],
            taken: AtomicUsize::new(0),
            sites: [const {
                Site {
                    address: AtomicUsize::new(0),
                    object: AtomicU64::new(0),
                }
            }; SITES],
        }
    }

    /// The library to which `address` belongs. `None` where it cannot be told, or no more can be kept.
    ///
    /// Costs a few nanoseconds for an address that has been asked for before, else up to some 50 µs.
    #[inline]
    pub(crate) fn of(&self, address: usize) -> Option<&Object> {
        let epoch = EPOCH.load(Ordering::Acquire) & u64::from(u32::MAX);
        for site in self.near(address) {
            if site.address.load(Ordering::Acquire) == address {
                let kept = site.object.load(Ordering::Acquire);
                if kept & u64::from(u32::MAX) == epoch && kept >> 32 != 0 {
                    return self.objects.get((kept >> 32) as usize - 1);
                }
                break;
            }
        }
        self.find(address)
    }

    /// The real function of that number for a caller of whom nothing can be kept. Null: there is none.
    #[cold]
    pub(crate) fn unkept(&self, function: usize, caller: usize) -> *mut c_void {
        let Some(name) = self.names.get(function) else {
            return null_mut();
        };
        match Library::at(caller) {
            Some(library) => library.open().function(name),
            None => Handle::of_program().function(name),
        }
    }

    /// The places where an address may be kept.
    fn near(&self, address: usize) -> impl Iterator<Item = &Site> {
        // Fibonacci hashing: code addresses differ in their lower bits.
        let hash = address.wrapping_mul(FIBONACCI as usize) >> (64 - SITES.trailing_zeros());
        (0..PROBES).filter_map(move |i| self.sites.get((hash + i) % SITES))
    }

    #[cold]
    fn find(&self, address: usize) -> Option<&Object> {
        let epoch = EPOCH.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Acquire).min(OBJECTS);
        let object = |number: usize| self.objects.get(number);
        let known = (0..taken).find(|i| object(*i).is_some_and(|o| o.holds(address)));
        let number = match known {
            Some(number) => number,
            None => {
                let number = self.taken.fetch_add(1, Ordering::AcqRel);
                if number >= OBJECTS {
                    self.taken.store(OBJECTS, Ordering::Release);
                    return None;
                }
                number
            }
        };
        let object = object(number)?;
        if known.is_none() || object.epoch.load(Ordering::Acquire) != epoch {
            self.fill(object, &Library::at(address)?, epoch);
        }
        let kept = (number as u64 + 1) << 32 | (epoch & u64::from(u32::MAX));
        for site in self.near(address) {
            let before =
                site.address
                    .compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire);
            if before.is_ok() || before == Err(address) {
                site.object.store(kept, Ordering::Release);
                break;
            }
        }
        self.objects.get(number)
    }

    /// Looks for everything that a library uses.
    fn fill(&self, object: &Object, library: &Library, epoch: u64) {
        let handle = library.open();
        for (function, name) in object.functions.iter().zip(self.names) {
            function.store(handle.function(name), Ordering::Relaxed);
        }
        let listed = listed::known(library.path().to_bytes());
        object.listed.store(listed, Ordering::Relaxed);
        let keeps = u32::from(library.keeps_thread_data());
        object.keeps_thread_data.store(keeps, Ordering::Relaxed);
        let name = hash(file_name(library.path().to_bytes()));
        object.name.store(name, Ordering::Relaxed);
        object.end.store(library.end(), Ordering::Relaxed);
        object.start.store(library.start(), Ordering::Release);
        object.epoch.store(epoch, Ordering::Release);
    }
}

/// Interposed: what was kept of libraries is void once one is unloaded. A library's own code at its end
/// runs below this frame; it cannot unwind through the loader's anyway.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // Before, for those who find another library at the same address; after, for those who have kept the
    // old one meanwhile.
    EPOCH.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the caller's handle.
    let answer = unsafe { real_dlclose(handle) };
    EPOCH.fetch_add(1, Ordering::AcqRel);
    answer
}

/// Makes void what was kept.
pub(crate) fn forget() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
}

/// Changes whenever what was kept is void. Never 0.
#[inline]
pub(crate) fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// FNV-1a: the names are few and nobody's attack.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

const _: () = assert!(SITES.is_power_of_two());
