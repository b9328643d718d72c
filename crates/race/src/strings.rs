//! Functions that read and write strings and blocks of bytes, interposed: compilers leave these accesses to
//! the C library, which was not compiled to tell of them.
//!
//! **Why it is sound.** As in [`crate::interposed`]. What is looked at of a string, the function that was
//! called has looked at, too, or is about to.

use crate::interposed::{Call, interposed, nothing_after, nothing_before};
use crate::locks::is_ours;
use crate::thread::Thread;
use corewise_analyses::race::kind;

fn accesses(call: &Call, pieces: &[(u64, u64, u8)]) {
    // First of all: looking for a thread may come here again.
    if is_ours(call.code) {
        return;
    }
    if let Some(thread) = Thread::active()
        && !thread.alone
    {
        for (at, bytes, kind) in pieces {
            thread.range(*at, *bytes, *kind, call.code);
        }
    }
}

/// Whether anybody listens: finding the end of a string costs.
fn heard(call: &Call) -> bool {
    !is_ours(call.code) && Thread::active().is_some_and(|thread| !thread.alone)
}

unsafe fn byte(at: u64) -> u8 {
    // SAFETY: the caller's.
    unsafe { (at as *const u8).read_volatile() }
}

/// The bytes of a string, its end included, of which at most so many are looked at.
///
/// # Safety
/// It ends, or there are as many.
unsafe fn length(at: u64, most: u64) -> u64 {
    // SAFETY: as above.
    let end = (0..most).find(|index| unsafe { byte(at + index) } == 0);
    end.map_or(most, |index| index + 1)
}

/// How many bytes are compared: up to the first that differ, or end both strings.
///
/// # Safety
/// As above.
unsafe fn compared([one, other]: [u64; 2], most: u64, strings: bool) -> u64 {
    let ends = |index: &u64| {
        // SAFETY: as above.
        let (a, b) = unsafe { (byte(one + index), byte(other + index)) };
        a != b || strings && a == 0
    };
    (0..most).find(ends).map_or(most, |index| index + 1)
}

fn compares(call: &Call, most: u64, strings: bool) {
    if heard(call) {
        let [one, other, ..] = call.arguments;
        // SAFETY: what was compared just now.
        let bytes = unsafe { compared([one, other], most, strings) };
        accesses(call, &[(one, bytes, 0), (other, bytes, 0)]);
    }
}

fn compares_blocks(call: &Call, _: i64) {
    compares(call, call.arguments[2], false);
}

fn compares_strings(call: &Call, _: i64) {
    compares(call, u64::MAX, true);
}

fn compares_pieces(call: &Call, _: i64) {
    compares(call, call.arguments[2], true);
}

fn looks(call: &Call, answer: i64) {
    let [at, _, most, ..] = call.arguments;
    let bytes = match answer {
        0 => most,
        found => (found as u64).wrapping_sub(at) + 1,
    };
    accesses(call, &[(at, bytes, 0)]);
}

fn measures(call: &Call, answer: i64) {
    accesses(call, &[(call.arguments[0], answer as u64 + 1, 0)]);
}

fn copies(call: &Call) {
    if heard(call) {
        let [to, from, ..] = call.arguments;
        // SAFETY: a string that is about to be copied.
        let bytes = unsafe { length(from, u64::MAX) };
        accesses(call, &[(from, bytes, 0), (to, bytes, kind::WRITE)]);
    }
}

fn copies_piece(call: &Call) {
    if heard(call) {
        let [to, from, most, ..] = call.arguments;
        // SAFETY: as above.
        let bytes = unsafe { length(from, most) };
        accesses(call, &[(from, bytes, 0), (to, most, kind::WRITE)]);
    }
}

fn appends(call: &Call) {
    if heard(call) {
        let [to, from, ..] = call.arguments;
        // SAFETY: as above, and what it is added to.
        let (before, bytes) = unsafe { (length(to, u64::MAX) - 1, length(from, u64::MAX)) };
        let pieces = [
            (from, bytes, 0),
            (to, before, 0),
            (to + before, bytes, kind::WRITE),
        ];
        accesses(call, &pieces);
    }
}

fn prints(call: &Call) {
    if heard(call) {
        // SAFETY: a string that is about to be printed.
        let bytes = unsafe { length(call.arguments[0], u64::MAX) };
        accesses(call, &[(call.arguments[0], bytes, 0)]);
    }
}

fn block(call: &Call, pieces: u64, kind: u8) {
    let [at, bytes, ..] = call.arguments;
    accesses(call, &[(at, bytes.saturating_mul(pieces), kind)]);
}

fn puts_out(call: &Call) {
    block(call, call.arguments[2], 0);
}

fn has_got_in(call: &Call, answer: i64) {
    block(call, answer as u64, kind::WRITE);
}

interposed! { 0;
    memcmp c"memcmp" nothing_before compares_blocks;
    bcmp c"bcmp" nothing_before compares_blocks;
    memchr c"memchr" nothing_before looks;
    strlen c"strlen" nothing_before measures;
    strcmp c"strcmp" nothing_before compares_strings;
    strncmp c"strncmp" nothing_before compares_pieces;
    strcpy c"strcpy" copies nothing_after;
    strncpy c"strncpy" copies_piece nothing_after;
    strcat c"strcat" appends nothing_after;
    puts c"puts" prints nothing_after;
    fputs c"fputs" prints nothing_after;
    fwrite c"fwrite" puts_out nothing_after;
    fread c"fread" nothing_before has_got_in;
}
