//! Sets of CPUs: the process's own, those that a constraint describes, and those in hwloc's bitmaps.
//!
//! Safety: bitmaps are only touched by hwloc's own functions, of the copy that is loaded under its usual
//! name. A client that has one hidden within itself is served without masks.

use super::abi::{ANY, AUTOMATIC, Bitmap, Constraints};
use super::share::Mask;
use libc::{c_int, c_ulong, c_void};
use std::ffi::CStr;
use std::fs::read_to_string;

/// Words of 64 CPUs in the largest bitmap that is read.
const MOST_WORDS: usize = 64;

/// hwloc's functions, where the client has brought them along.
#[derive(Clone, Copy)]
pub(crate) struct Hwloc {
    words: unsafe extern "C" fn(Bitmap) -> c_int,
    to_words: unsafe extern "C" fn(Bitmap, u32, *mut c_ulong) -> c_int,
    from_words: unsafe extern "C" fn(Bitmap, u32, *const c_ulong) -> c_int,
}

impl Hwloc {
    /// Looks for them among what is loaded. Takes the loader's lock.
    pub(crate) fn find() -> Option<Hwloc> {
        // SAFETY: a string that ends with a zero; nothing is loaded that is not loaded yet. The handle is
        // kept: what is found there must stay.
        let handle = unsafe {
            libc::dlopen(
                c"libhwloc.so.15".as_ptr(),
                libc::RTLD_LAZY | libc::RTLD_NOLOAD,
            )
        };
        let function = |name: &CStr| {
            // SAFETY: an open handle, or null for everything that all see, and a string.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let words = function(c"hwloc_bitmap_nr_ulongs")?;
        let to_words = function(c"hwloc_bitmap_to_ulongs")?;
        let from_words = function(c"hwloc_bitmap_from_ulongs")?;
        // SAFETY: hwloc 2's functions of these names.
        unsafe {
            Some(Hwloc {
                words: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Bitmap) -> c_int>(
                    words,
                ),
                to_words: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Bitmap, u32, *mut c_ulong) -> c_int,
                >(to_words),
                from_words: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Bitmap, u32, *const c_ulong) -> c_int,
                >(from_words),
            })
        }
    }

    /// Reads a bitmap. `None`: it has no end.
    fn read(self, bitmap: Bitmap) -> Option<Mask> {
        // SAFETY: the client's bitmap.
        let words = usize::try_from(unsafe { (self.words)(bitmap) }).ok()?;
        let mut mask = vec![0u64; words.min(MOST_WORDS)];
        let length = u32::try_from(mask.len()).ok()?;
        // SAFETY: so many words, each an unsigned long, of which this system's have 64 bits.
        let failed = unsafe { (self.to_words)(bitmap, length, mask.as_mut_ptr().cast()) };
        (failed == 0).then_some(Mask(mask))
    }

    /// Overwrites a bitmap.
    pub(crate) fn write(self, bitmap: Bitmap, mask: &Mask) {
        let Ok(length) = u32::try_from(mask.0.len()) else {
            return;
        };
        // SAFETY: the client's bitmap, to be written; so many words.
        unsafe { (self.from_words)(bitmap, length, mask.0.as_ptr().cast()) };
    }
}

/// The CPUs that this process may use.
pub(crate) fn of_process() -> Mask {
    let mut set = [0u64; 16];
    // SAFETY: it writes at most 128 bytes.
    let failed = unsafe {
        libc::sched_getaffinity(
            0,
            size_of_val(&set),
            set.as_mut_ptr().cast::<libc::cpu_set_t>(),
        )
    };
    match failed {
        0 => Mask(set.to_vec()),
        _ => Mask(vec![u64::MAX]),
    }
}

/// The CPUs that a constraint names or describes. `None`: it does neither.
///
/// "Any" NUMA node or core type stands for all of them: which one is left to the client.
pub(crate) fn of_constraint(constraint: &Constraints, hwloc: Option<Hwloc>) -> Option<Mask> {
    if !constraint.mask.is_null() {
        let named = hwloc.and_then(|hwloc| hwloc.read(constraint.mask));
        return Some(named.unwrap_or_else(of_process));
    }
    let Constraints {
        numa_id,
        core_type_id,
        threads_per_core,
        ..
    } = *constraint;
    if [numa_id, core_type_id, threads_per_core] == [AUTOMATIC; 3] {
        return None;
    }
    let mut cpus = of_process();
    if let Some(node) = chosen(numa_id) {
        keep(
            &mut cpus,
            &format!("/sys/devices/system/node/node{node}/cpulist"),
        );
    }
    if let Some(kind) = chosen(core_type_id) {
        // Where the cores are all of one kind, there are no such files.
        keep(
            &mut cpus,
            ["/sys/devices/cpu_atom/cpus", "/sys/devices/cpu_core/cpus"][kind.min(1)],
        );
    }
    if let Some(threads) = chosen(threads_per_core) {
        first_of_each_core(&mut cpus, threads);
    }
    Some(cpus)
}

fn chosen(number: i32) -> Option<usize> {
    match number {
        AUTOMATIC | ANY => None,
        number => usize::try_from(number).ok(),
    }
}

/// Keeps those CPUs that are in the list in a file; all, where there is no such file.
fn keep(cpus: &mut Mask, file: &str) {
    if let Some(list) = read_to_string(file).ok().and_then(|text| parse(&text)) {
        for (i, word) in cpus.0.iter_mut().enumerate() {
            *word &= list.0.get(i).copied().unwrap_or(0);
        }
    }
}

/// Keeps so many CPUs of each core.
fn first_of_each_core(cpus: &mut Mask, threads: usize) {
    let all = cpus.clone();
    let has = |cpu: usize| {
        all.0
            .get(cpu / 64)
            .is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    };
    for cpu in (0..all.0.len() * 64).filter(|cpu| has(*cpu)) {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let Some(core) = read_to_string(file).ok().and_then(|text| parse(&text)) else {
            continue;
        };
        let before = |sibling: &usize| {
            core.0
                .get(sibling / 64)
                .is_some_and(|w| w >> (sibling % 64) & 1 == 1)
        };
        let earlier = (0..cpu)
            .filter(before)
            .filter(|sibling| has(*sibling))
            .count();
        if earlier >= threads
            && let Some(word) = cpus.0.get_mut(cpu / 64)
        {
            *word &= !(1 << (cpu % 64));
        }
    }
}

/// Reads a list as the kernel writes it: `0-3,8`.
fn parse(list: &str) -> Option<Mask> {
    let mut mask = Mask(vec![0; 16]);
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
            *mask.0.get_mut(cpu / 64)? |= 1 << (cpu % 64);
        }
    }
    Some(mask)
}
