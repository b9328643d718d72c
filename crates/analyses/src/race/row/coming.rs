//! Brings what is kept of a row into the processor's cache before it is needed: programs access tables at random,
//! and waiting for one row after the other takes longer than all that is done with them.
//!
//! **Why it is sound.** The processor is given a hint about an address; nothing is read or written.
#![allow(unsafe_code, reason = "see the module's head")]

use super::super::access::ROW;
use super::super::words::Words;
use super::APART;
use super::list::List;
use std::sync::atomic::AtomicU64;

/// Words of a cache's line.
const LINE: usize = 8;

/// What is to be brought next for one access.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) enum Coming {
    /// Nothing more.
    #[default]
    Nothing,
    /// What the word of its row, or granule, leads to.
    Word { at: usize, granule: u64 },
}

impl Coming {
    /// The access to this granule, whose row's word is there.
    pub(in super::super) fn to(words: &Words<'_>, at: usize, granule: u64) -> Coming {
        bring(words.word(at));
        Coming::Word { at, granule }
    }

    /// Brings what is next. What was brought last should have come meanwhile.
    #[inline]
    pub(in super::super) fn step(&mut self, words: &Words<'_>) {
        *self = match *self {
            Coming::Nothing => return,
            Coming::Word { at, granule } => {
                let word = words.get(at);
                if word & APART != 0 {
                    let at = word as u32 as usize + (granule % ROW) as usize;
                    Coming::to(words, at, granule)
                } else {
                    bring_list(words, word);
                    Coming::Nothing
                }
            }
        };
    }

    /// Brings what is kept of a row, whose word is there.
    #[inline(always)]
    pub(in super::super) fn list(words: &Words<'_>, at: usize) {
        let word = words.get(at);
        if word & APART == 0 {
            bring_list(words, word);
        }
    }
}

#[inline(always)]
fn bring_list(words: &Words<'_>, word: u64) {
    if let Some(list) = List::of(word) {
        for line in list.block(words).chunks(LINE) {
            bring(&line[0]);
        }
    }
}

#[inline(always)]
fn bring(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(word.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}
