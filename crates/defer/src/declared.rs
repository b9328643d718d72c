//! Calls that are declared at run time, for callers in other languages: functions of C that get their
//! arguments as words.
//!
//! **Why it is sound.** Whoever [declares](Declared) a call promises that its functions may be called on any
//! thread with the pointer and words that they are given. Each stored call carries its declaration, which is
//! never freed.
#![allow(unsafe_code, reason = "functions of C; see the module's head")]

use crate::columns::{Column, Columns, Execute, Places};
use crate::environment::Environment;
use std::ffi::c_void;

/// Arguments that a call can have.
pub const MOST_WORDS: usize = 6;

/// A function of C: the pointer that was declared with it, and its arguments.
pub type Function = unsafe extern "C" fn(data: *mut c_void, words: *const u64);

/// A call, as it was declared.
#[derive(Debug)]
pub struct Declared {
    body: Function,
    thrown_away: Option<Function>,
    words: u8,
    data: *mut c_void,
}

// SAFETY: the promise of `Declared::new`.
unsafe impl Send for Declared {}
// SAFETY: as above.
unsafe impl Sync for Declared {}

impl Declared {
    /// Declares a call with `words` arguments, at most [`MOST_WORDS`]; the declaration stays until the process
    /// ends. `thrown_away` gets the arguments of calls that are not executed, to free what they own. `None`:
    /// too many arguments.
    ///
    /// # Safety
    /// The functions may be called on any thread, several times at once, with `data` and the words of the
    /// calls that are made.
    pub unsafe fn new(
        body: Function,
        thrown_away: Option<Function>,
        words: u8,
        data: *mut c_void,
    ) -> Option<&'static Declared> {
        (usize::from(words) <= MOST_WORDS).then(|| {
            &*Box::leak(Box::new(Declared {
                body,
                thrown_away,
                words,
                data,
            }))
        })
    }

    /// How many arguments it has.
    pub fn words(&self) -> usize {
        usize::from(self.words)
    }
}

/// The buffer of declared calls. Columns that no call uses take address space, and no memory.
#[derive(Clone, Copy)]
pub struct DeclaredBuffer {
    calls: Column<&'static Declared>,
    words: [Column<u64>; MOST_WORDS],
}

impl DeclaredBuffer {
    /// # Safety
    /// As for [`Column::put`] of every column.
    #[inline(always)]
    unsafe fn put(&self, index: usize, call: &'static Declared, words: &[u64]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.calls.put(index, call);
            for (column, word) in self.words.iter().zip(words).take(call.words()) {
                column.put(index, *word);
            }
        }
    }

    /// # Safety
    /// As for [`Column::take`] of every column that the call has.
    #[inline(always)]
    unsafe fn take(&self, index: usize) -> (&'static Declared, [u64; MOST_WORDS]) {
        let mut words = [0; MOST_WORDS];
        // SAFETY: the caller's promise.
        unsafe {
            let call = self.calls.take(index);
            for (word, column) in words.iter_mut().zip(&self.words).take(call.words()) {
                *word = column.take(index);
            }
            (call, words)
        }
    }
}

// SAFETY: a call's words are put, moved and taken by the number that its declaration says.
unsafe impl Columns for DeclaredBuffer {
    fn place(places: &mut Places) -> Self {
        DeclaredBuffer {
            calls: places.column(),
            words: std::array::from_fn(|_| places.column()),
        }
    }

    unsafe fn relocate(&self, index: usize, to: &Self, to_index: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (call, words) = self.take(index);
            to.put(to_index, call, &words);
        }
    }

    unsafe fn discard(&self, index: usize) {
        // SAFETY: the caller's promise, and that of `Declared::new`.
        unsafe {
            let (call, words) = self.take(index);
            if let Some(thrown_away) = call.thrown_away {
                thrown_away(call.data, words.as_ptr());
            }
        }
    }
}

/// What declared calls are executed on: they bring everything with them.
#[derive(Clone, Copy, Debug)]
pub struct Functions;

// SAFETY: `next` is counted up before the call is taken out.
unsafe impl Execute<Functions> for DeclaredBuffer {
    unsafe fn execute(&self, next: &mut u32, len: u32, _: &Functions) {
        while *next < len {
            let index = *next as usize;
            *next += 1;
            // SAFETY: the caller's promise, and that of `Declared::new`.
            unsafe {
                let (call, words) = self.take(index);
                (call.body)(call.data, words.as_ptr());
            }
        }
    }
}

impl Environment<DeclaredBuffer> {
    /// Stores a call. False: it has another number of arguments.
    #[inline]
    pub fn call(&self, call: &'static Declared, words: &[u64]) -> bool {
        if words.len() != call.words() {
            return false;
        }
        // SAFETY: the whole call is stored.
        unsafe { self.append(|buffer, index| buffer.put(index, call, words)) };
        true
    }
}
