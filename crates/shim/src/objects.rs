//! Which copy of a runtime a caller uses. A program can have several (wheels bring copies of their own),
//! and a function that we interpose is called by the users of all of them: the real one is looked for
//! from the library that calls, as the loader would have bound it.
//!
//! What was found is kept for each library, and for each address that called, so that a call costs one
//! look into a table. Everything that was kept is void when a library is unloaded (`dlclose` is
//! interposed for that alone): other code may then be at the same address.
//!
//! Safety: the loader's functions are called with valid strings and with memory that outlives the call;
//! pointers that they give to a library's description are only followed before control returns to the
//! program, which could unload it.

use crate::listed;
use libc::{c_char, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Functions of a runtime that can be kept for a library.
pub(crate) const FUNCTIONS: usize = 64;
/// Libraries that can be kept. Others are looked at anew for each call: slow, but right.
const OBJECTS: usize = 256;
/// Addresses that can be kept, a power of two.
const SITES: usize = 4096;
/// How far from its place an address is looked for.
const PROBES: usize = 8;

/// A library, or the program itself, that calls functions which we interpose.
#[derive(Debug)]
pub(crate) struct Object {
    start: AtomicUsize,
    end: AtomicUsize,
    /// The epoch in which this was found; 0: not yet.
    epoch: AtomicU64,
    /// Whether a number that it demands may be changed, and what it keeps in its threads be lost.
    pub(crate) listed: AtomicU32,
    /// Whether it keeps data of its own in each thread.
    pub(crate) keeps_thread_data: AtomicU32,
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

    fn holds(&self, address: usize) -> bool {
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

    /// The places where an address may be kept.
    fn near(&self, address: usize) -> impl Iterator<Item = &Site> {
        // Fibonacci hashing: code addresses differ in their lower bits.
        let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SITES.trailing_zeros());
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
        let listed = listed::is_listed(library.path().to_bytes());
        object.listed.store(u32::from(listed), Ordering::Relaxed);
        let keeps = u32::from(library.keeps_thread_data());
        object.keeps_thread_data.store(keeps, Ordering::Relaxed);
        object.end.store(library.end, Ordering::Relaxed);
        object.start.store(library.start, Ordering::Release);
        object.epoch.store(epoch, Ordering::Release);
    }
}

/// What glibc's `_dl_find_object` writes (2.35 and later). It takes no lock.
#[repr(C)]
struct FoundObject {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    map: *const LinkMap,
    _more: [u64; 12],
}

/// The public part of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    _dynamic: *const c_void,
    _next: *const c_void,
    previous: *const c_void,
}

/// A library that is loaded, or the program.
pub(crate) struct Library {
    start: usize,
    end: usize,
    map: *const LinkMap,
}

impl Library {
    /// The one that `address` belongs to. Takes no lock.
    pub(crate) fn at(address: usize) -> Option<Library> {
        type Find = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;
        static FIND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
        let mut find = FIND.load(Ordering::Relaxed);
        if find.is_null() {
            // SAFETY: a string that ends with a zero.
            find = unsafe { libc::dlsym(libc::RTLD_NEXT, c"_dl_find_object".as_ptr()) };
            FIND.store(find, Ordering::Relaxed);
        }
        if find.is_null() {
            return None;
        }
        // SAFETY: this is what the C library has under that name.
        let find: Find = unsafe { std::mem::transmute(find) };
        let mut found = MaybeUninit::<FoundObject>::zeroed();
        // SAFETY: it writes no more than its own struct, which is smaller than ours.
        if unsafe { find(address as *mut c_void, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: zeroes are a valid one, too.
        let found = unsafe { found.assume_init() };
        (!found.map.is_null()).then_some(Library {
            start: found.start as usize,
            end: found.end as usize,
            map: found.map,
        })
    }

    /// Where it begins in memory.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Its path; empty for the program itself.
    pub(crate) fn path(&self) -> &CStr {
        // SAFETY: the library is loaded, since code of it calls us.
        let name = unsafe { (*self.map).name };
        if name.is_null() {
            return c"";
        }
        // SAFETY: the loader's names end with a zero.
        unsafe { CStr::from_ptr(name) }
    }

    /// Opens it, to look for what it sees. Takes the loader's lock.
    pub(crate) fn open(&self) -> Handle {
        let path = self.path();
        if path.is_empty() {
            return Handle(null_mut());
        }
        // SAFETY: a string that ends with a zero; nothing is loaded that is not loaded yet.
        Handle(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) })
    }

    /// Whether it has thread-local data, as variables that OpenMP calls threadprivate are.
    fn keeps_thread_data(&self) -> bool {
        struct Wanted {
            base: usize,
            start: usize,
            end: usize,
            found: bool,
        }
        unsafe extern "C" fn look(
            info: *mut dl_phdr_info,
            _size: size_t,
            wanted: *mut c_void,
        ) -> c_int {
            // SAFETY: the loader's, and ours, both for as long as this call.
            let (info, wanted) = unsafe { (&*info, &mut *wanted.cast::<Wanted>()) };
            let headers = info.dlpi_phdr as usize;
            let same = info.dlpi_addr as usize == wanted.base
                && (wanted.start..wanted.end).contains(&headers);
            if !same {
                return 0;
            }
            for i in 0..usize::from(info.dlpi_phnum) {
                // SAFETY: the loader says that there are so many.
                let header = unsafe { &*info.dlpi_phdr.add(i) };
                wanted.found |= header.p_type == libc::PT_TLS && header.p_memsz > 0;
            }
            1
        }
        let mut wanted = Wanted {
            // SAFETY: as in `path`.
            base: unsafe { (*self.map).base },
            start: self.start,
            end: self.end,
            found: false,
        };
        // SAFETY: called back only during this call, with what it takes.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
        wanted.found
    }
}

/// A library that was opened; null: the program.
pub(crate) struct Handle(*mut c_void);

impl Handle {
    /// The program's.
    pub(crate) fn of_program() -> Handle {
        Handle(null_mut())
    }

    /// The library's own function of that name, or one of those that it needs. Null: there is none.
    pub(crate) fn own_function(&self, name: &CStr) -> *mut c_void {
        match self.0.is_null() {
            true => null_mut(),
            // SAFETY: an open handle, and a string that ends with a zero.
            false => unsafe { libc::dlsym(self.0, name.as_ptr()) },
        }
    }

    /// The function that code of this library means by `name`: its own or its dependencies', else, for the
    /// program and for libraries that leave it to others, the next one after ours. Null: there is none.
    pub(crate) fn function(&self, name: &CStr) -> *mut c_void {
        let own = self.own_function(name);
        match own.is_null() {
            // SAFETY: a string that ends with a zero.
            true => unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) },
            false => own,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: opened once, closed once. Not through our own `dlclose`: nothing is unloaded.
            unsafe { real_dlclose(self.0) };
        }
    }
}

/// The C library's `dlclose`.
unsafe fn real_dlclose(handle: *mut c_void) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        // SAFETY: a string that ends with a zero.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlclose".as_ptr()) };
        REAL.store(real, Ordering::Relaxed);
    }
    if real.is_null() {
        return -1;
    }
    // SAFETY: this is what the C library has under that name.
    let real: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { std::mem::transmute(real) };
    // SAFETY: the caller's handle.
    unsafe { real(handle) }
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

const _: () = assert!(SITES.is_power_of_two());
