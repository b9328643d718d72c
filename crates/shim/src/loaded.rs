//! What is loaded into this process, and which function of several of one name the code of a library
//! means: the loader looks among what was loaded with the program, or for everybody since
//! (`RTLD_GLOBAL`), and only then in the library and in what it needs. What was not there yet when the
//! library came does not count: its other calls were bound by then, and all must go to the same copy.
//!
//! Safety: the loader's functions are called with valid strings and with memory that outlives the call;
//! pointers that they give to a library's description are only followed before control returns to the
//! program, which could unload it.

mod dynamic;

use self::dynamic::{Dynamic, RELYING};
use crate::link;
use libc::{Elf64_Phdr, c_char, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

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
    dynamic: *const Dynamic,
    _next: *const c_void,
    _previous: *const c_void,
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

    /// Where it ends.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// What the addresses in its file count from.
    pub(crate) fn base(&self) -> usize {
        // SAFETY: the library is loaded, since code of it calls us.
        unsafe { (*self.map).base }
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
        let open = match path.is_empty() {
            true => null_mut(),
            false => open_loaded(path),
        };
        Handle {
            open,
            start: self.start,
        }
    }

    /// Whether it has thread-local data, as variables that OpenMP calls threadprivate are, or relies on the
    /// runtime in a way that another team breaks.
    pub(crate) fn keeps_thread_data(&self) -> bool {
        // A program that has its own regions follow says so knowing what it keeps.
        let knows = link::is_held() && self.path().is_empty();
        !knows && self.has_thread_local() || self.uses(RELYING)
    }

    fn has_thread_local(&self) -> bool {
        let mut found = false;
        each_loaded(|info| {
            let here = holds(info, self.start);
            found = here && segments(info).any(|s| s.p_type == libc::PT_TLS && s.p_memsz > 0);
            here
        });
        found
    }
}

/// A library that was opened.
pub(crate) struct Handle {
    /// Null: the program itself.
    open: *mut c_void,
    /// Where it begins in memory; 0: not known.
    start: usize,
}

impl Handle {
    /// The program's.
    pub(crate) fn of_program() -> Handle {
        Handle {
            open: null_mut(),
            start: 0,
        }
    }

    /// The library's own function of that name, or one of those that it needs. Null: there is none.
    pub(crate) fn own_function(&self, name: &CStr) -> *mut c_void {
        match self.open.is_null() {
            true => null_mut(),
            // SAFETY: an open handle, and a string that ends with a zero.
            false => unsafe { libc::dlsym(self.open, name.as_ptr()) },
        }
    }

    /// The function that code of this library means by `name`, as the loader would have bound it. Null:
    /// there is none.
    pub(crate) fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a string that ends with a zero.
        let everybodys = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        let own = self.own_function(name);
        match (everybodys.is_null(), own.is_null()) {
            (false, true) => everybodys,
            (true, false) => own,
            (false, false) if everybodys == own => own,
            (false, false) => match came_first(everybodys as usize, self.start) {
                true => everybodys,
                false => own,
            },
            // A library that does not say what it needs, loaded for one that does.
            (true, true) => anywhere(name),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.open.is_null() {
            // SAFETY: opened once, closed once. Not through our own `dlclose`: nothing is unloaded.
            unsafe { real_dlclose(self.open) };
        }
    }
}

/// A library that is loaded already; null: it is not.
fn open_loaded(path: &CStr) -> *mut c_void {
    // SAFETY: a string that ends with a zero; nothing is loaded that is not loaded yet.
    unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// How much was loaded when the program began. The loader lists it first, and never unloads it.
static AT_FIRST: AtomicUsize = AtomicUsize::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static COUNT: extern "C" fn() = count;

extern "C" fn count() {
    let mut number = 0;
    each_loaded(|_| {
        number += 1;
        false
    });
    AT_FIRST.store(number, Ordering::Relaxed);
}

/// Whether what holds `function` was there when the library at `library` was loaded.
fn came_first(function: usize, library: usize) -> bool {
    let at_first = AT_FIRST.load(Ordering::Relaxed);
    let mut number = 0;
    let mut first = true;
    each_loaded(|info| {
        number += 1;
        if holds(info, library) {
            // What is loaded with the program is bound when all of it is there.
            first = number <= at_first;
            return true;
        }
        holds(info, function)
    });
    first
}

/// The first function of that name in what is loaded, other than ours. Null: there is none.
#[cold]
fn anywhere(name: &CStr) -> *mut c_void {
    let Some(ours) = Library::at(anywhere as *const () as usize) else {
        return null_mut();
    };
    // Names are copied: nothing may be opened while the loader goes through its list.
    let mut path = [0u8; 4096];
    for number in 0.. {
        match copy_path(number, &mut path) {
            None => break,
            Some(false) => continue,
            Some(true) => {}
        }
        let Ok(file) = CStr::from_bytes_until_nul(&path) else {
            continue;
        };
        let open = open_loaded(file);
        if open.is_null() {
            continue;
        }
        let handle = Handle { open, start: 0 };
        let found = handle.own_function(name);
        let elsewhere = Library::at(found as usize).is_some_and(|l| l.start != ours.start);
        if !found.is_null() && elsewhere {
            return found;
        }
    }
    null_mut()
}

/// Copies the path of what was loaded as that `number`, with a zero at its end. `None`: there is none of
/// that number. False: it has no path that could be copied.
fn copy_path(number: usize, into: &mut [u8]) -> Option<bool> {
    let mut at = 0;
    let mut copied = None;
    each_loaded(|info| {
        if at == number {
            copied = Some(false);
            if !info.dlpi_name.is_null() {
                // SAFETY: the loader's names end with a zero.
                let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes_with_nul();
                if let Some(place) = into.get_mut(..name.len())
                    && name.len() > 1
                {
                    place.copy_from_slice(name);
                    copied = Some(true);
                }
            }
        }
        at += 1;
        at > number
    });
    copied
}

/// Goes through what is loaded, in the order in which it was loaded, until `look` returns true. The
/// loader's list is locked meanwhile: `look` must not load or close anything.
fn each_loaded<F: FnMut(&dl_phdr_info) -> bool>(mut look: F) {
    unsafe extern "C" fn one<F: FnMut(&dl_phdr_info) -> bool>(
        info: *mut dl_phdr_info,
        _size: size_t,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's, and ours, both for as long as this call.
        let (info, look) = unsafe { (&*info, &mut *look.cast::<F>()) };
        c_int::from(look(info))
    }
    // SAFETY: called back only during this call, with what it takes.
    unsafe { libc::dl_iterate_phdr(Some(one::<F>), (&raw mut look).cast()) };
}

/// The segments of what is loaded.
fn segments(info: &dl_phdr_info) -> impl Iterator<Item = &Elf64_Phdr> {
    // SAFETY: the loader says that there are so many.
    (0..usize::from(info.dlpi_phnum)).map(|i| unsafe { &*info.dlpi_phdr.add(i) })
}

/// Whether an address is in what is loaded.
fn holds(info: &dl_phdr_info, address: usize) -> bool {
    segments(info).any(|segment| {
        let start = (info.dlpi_addr as usize).wrapping_add(segment.p_vaddr as usize);
        let inside = address.wrapping_sub(start) < segment.p_memsz as usize;
        segment.p_type == libc::PT_LOAD && inside
    })
}

/// The C library's `dlclose`.
pub(crate) unsafe fn real_dlclose(handle: *mut c_void) -> c_int {
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
