//! What a library says in its dynamic section of the functions of others that it uses.
//!
//! Safety: as in [`loaded`](super): the tables are those that the loader has used itself, and stay as long as
//! the library.

use super::Library;
use libc::{Elf64_Rela, Elf64_Sym, c_char};
use std::ffi::CStr;

/// By the first two, compilers have LLVM's and Intel's runtime keep threadprivate variables (Intel's classic
/// ones by default). The third is for tasks of `target nowait`: libomp 14 ends the program (an assertion in
/// kmp_runtime.cpp) if they are begun in a team of one.
pub(super) const RELYING: [&CStr; 3] = [
    c"__kmpc_threadprivate_cached",
    c"__kmpc_threadprivate",
    c"__kmpc_omp_target_task_alloc",
];

/// An entry of a library's dynamic section.
#[repr(C)]
pub(super) struct Dynamic {
    tag: i64,
    value: usize,
}

/// How a version that is needed is described (`Elf64_Verneed`, `Elf64_Vernaux`): offsets are from where each
/// description begins, 0 at the last one.
#[repr(C)]
struct Needed {
    _version: u16,
    _count: u16,
    _file: u32,
    first: u32,
    next: u32,
}

#[repr(C)]
struct NeededVersion {
    _hash: u32,
    _flags: u16,
    number: u16,
    name: u32,
    next: u32,
}

impl Library {
    /// Whether its code uses one of these functions of others: what the loader had to bind says so.
    pub(super) fn uses(&self, functions: [&CStr; 3]) -> bool {
        // SAFETY: the library is loaded, since code of it calls us.
        unsafe { self.bound(|name| functions.contains(&name)) }.is_some()
    }

    /// With which version its code uses a function of others: `None`, it does not; `Some(None)`, it names no
    /// version. Costs up to some 100 µs, and takes no lock.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn version_of(&self, function: &CStr) -> Option<Option<&CStr>> {
        const NUMBERS: i64 = 0x6fff_fff0;
        const NEEDED: i64 = 0x6fff_fffe;
        /// Numbers up to this one name no version.
        const GLOBAL: u16 = 1;
        /// Of the bits of a number, this one is another matter.
        const HIDDEN: u16 = 1 << 15;
        const UNDEFINED: u16 = 0;
        // SAFETY: as above; these tables are as long as the loader has needed them before.
        unsafe {
            let symbol = self.bound(|name| name == function)?;
            let symbols = self.table(SYMBOLS)? as *const Elf64_Sym;
            if (*symbols.add(symbol)).st_shndx != UNDEFINED {
                // It stands for others' itself, as sanitizers do, and has found the real one by other ways.
                return None;
            }
            let (Some(numbers), Some(mut at)) = (self.table(NUMBERS), self.table(NEEDED)) else {
                return Some(None);
            };
            let number = *(numbers as *const u16).add(symbol) & !HIDDEN;
            if number <= GLOBAL {
                return Some(None);
            }
            let strings = self.table(STRINGS)?;
            loop {
                let file = &*(at as *const Needed);
                let mut version_at = at + file.first as usize;
                loop {
                    let version = &*(version_at as *const NeededVersion);
                    if version.number & !HIDDEN == number {
                        let name = (strings + version.name as usize) as *const c_char;
                        return Some(Some(CStr::from_ptr(name)));
                    }
                    match version.next {
                        0 => break,
                        next => version_at += next as usize,
                    }
                }
                match file.next {
                    0 => return Some(None),
                    next => at += next as usize,
                }
            }
        }
    }

    /// The number of the first symbol that the loader had to bind, and whose name is `wanted`.
    ///
    /// # Safety
    /// The library stays loaded meanwhile.
    unsafe fn bound(&self, wanted: impl Fn(&CStr) -> bool) -> Option<usize> {
        const BINDINGS: [(i64, i64); 2] = [(23, 2), (7, 8)];
        // SAFETY: the loader's tables of a library that is loaded stay for as long.
        unsafe {
            let strings = self.table(STRINGS)?;
            let symbols = self.table(SYMBOLS)?;
            let is_wanted = |symbol: &usize| {
                let symbol = &*(symbols as *const Elf64_Sym).add(*symbol);
                let name = (strings + symbol.st_name as usize) as *const c_char;
                wanted(CStr::from_ptr(name))
            };
            BINDINGS.iter().find_map(|(tag, size)| {
                let (first, size) = (self.table(*tag)?, self.value(*size)?);
                let all = (0..size / size_of::<Elf64_Rela>())
                    .map(|i| (*(first as *const Elf64_Rela).add(i)).r_info >> 32);
                all.filter(|symbol| *symbol != 0)
                    .map(|symbol| symbol as usize)
                    .find(is_wanted)
            })
        }
    }

    /// An entry of its dynamic section.
    ///
    /// # Safety
    /// The library stays loaded meanwhile.
    unsafe fn value(&self, tag: i64) -> Option<usize> {
        // SAFETY: the loader's description of a library that is loaded; the section ends with a zero.
        unsafe {
            let dynamic = (*self.map).dynamic;
            if dynamic.is_null() {
                return None;
            }
            let entries = (0..).map(|i| &*dynamic.add(i));
            let mut entries = entries.take_while(|entry| entry.tag != 0);
            entries.find(|entry| entry.tag == tag).map(|e| e.value)
        }
    }

    /// The address of a table that the dynamic section names. The loader has made addresses of most.
    ///
    /// # Safety
    /// The library stays loaded meanwhile.
    unsafe fn table(&self, tag: i64) -> Option<usize> {
        // SAFETY: as the caller says.
        let at = unsafe { self.value(tag) }?;
        Some(if at < self.base() {
            self.base() + at
        } else {
            at
        })
    }
}

/// What the tables of the dynamic section are called there.
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
