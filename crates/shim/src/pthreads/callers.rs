//! Who waits: the place in the file of the code that called. It is looked for once for each address that
//! calls; after that a call costs one look into a table.

use crate::loaded::Library;
use crate::objects::epoch;
use corewise_abi::locks::{Kind, LocksPage, MOST_CALLERS};
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses that are kept, each at one place; a power of two.
const SITES: usize = 512;

/// Bits of the entry's number (and 1), and of the epoch: an address has 47.
const ENTRY_BITS: u32 = 7;
const EPOCH_BITS: u32 = 10;

const _: () = assert!(MOST_CALLERS + 1 < 1 << ENTRY_BITS && SITES.is_power_of_two());

/// Address, epoch, and the number of the entry and 1, in one word, so that they always belong together.
static KEPT: [AtomicU64; SITES] = [const { AtomicU64::new(0) }; SITES];

/// The entry of the page for calls that return to `address`.
pub(super) fn place(page: &LocksPage, kind: Kind, address: usize) -> usize {
    let epoch = epoch() & ((1 << EPOCH_BITS) - 1);
    let known = (address as u64) << EPOCH_BITS | epoch;
    let spread = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SITES.trailing_zeros());
    let Some(site) = KEPT.get(spread) else {
        return MOST_CALLERS;
    };
    let kept = site.load(Ordering::Relaxed);
    if kept >> ENTRY_BITS == known {
        return (kept & ((1 << ENTRY_BITS) - 1)) as usize - 1;
    }
    let entry = find(page, kind, address);
    site.store(known << ENTRY_BITS | (entry as u64 + 1), Ordering::Relaxed);
    entry
}

/// Takes no lock, and leaves `errno` as it was.
#[cold]
fn find(page: &LocksPage, kind: Kind, address: usize) -> usize {
    let Some(library) = Library::at(address) else {
        // Code that was made while the program runs.
        return MOST_CALLERS;
    };
    let place = address.wrapping_sub(library.base()) as u64;
    let path = library.path().to_bytes();
    let object = match path.is_empty() {
        false => page.object(path),
        true => {
            let mut own = [0; 1024];
            program_path(&mut own).and_then(|length| page.object(own.get(..length)?))
        }
    };
    page.caller(kind, object, place)
}

/// The path of the program itself, which the loader does not know.
fn program_path(into: &mut [u8]) -> Option<usize> {
    // SAFETY: no more is written than there is room; the calling thread's own `errno`.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let link = c"/proc/self/exe";
        let length = libc::readlink(link.as_ptr(), into.as_mut_ptr().cast(), into.len());
        *errno = before;
        usize::try_from(length).ok()
    }
}
