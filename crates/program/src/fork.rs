//! What happens to claims in a forked child: they are its parent's, not its own.
//!
//! A child keeps a copy of the parent's memory but only the thread that forked. So the handler here may
//! wait for no lock; it stores to the pages of each claim that they are nobody's any more (threads are
//! read from the page that is used without a manager), closes the parent's socket, whose end the
//! manager takes for the parent's end, and forgets the process's claim, so that the child can join on
//! its own.
//!
//! And what happens at the program's end: the manager hears of it at once, and not only when the kernel
//! has taken the program's memory apart (some 150 µs for a small program). A program that is killed has
//! no such moment; there the kernel closes the socket.
//!
//! Safety: the list is only ever added to, and its nodes are never freed ([`Pages`] are leaked).
#![allow(unsafe_code)]

use crate::pages::Pages;
use crate::{claim, sys};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

static CLAIMS: AtomicPtr<Pages> = AtomicPtr::new(std::ptr::null_mut());
/// Not a `Once`: a child that was forked while one was being done would wait for ever.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Has these pages looked after in forked children.
pub(crate) fn register(pages: &'static Pages) {
    if !HANDLED.swap(true, Ordering::AcqRel) {
        sys::at_fork(in_child);
        sys::at_exit(at_end);
    }
    let own = std::ptr::from_ref(pages).cast_mut();
    let mut first = CLAIMS.load(Ordering::Acquire);
    loop {
        pages.next.store(first, Ordering::Relaxed);
        match CLAIMS.compare_exchange_weak(first, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

extern "C" fn in_child() {
    for_each(|pages| {
        pages.become_orphan();
        let socket = pages.socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            sys::close_inherited(socket);
        }
    });
    claim::forget_current();
}

extern "C" fn at_end() {
    for_each(|pages| {
        let socket = pages.socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            sys::end_connection(socket);
        }
    });
}

fn for_each(what: impl Fn(&'static Pages)) {
    let mut next = CLAIMS.load(Ordering::Acquire);
    // SAFETY: null, or made from a `&'static Pages` in `register`.
    while let Some(pages) = unsafe { next.as_ref() } {
        what(pages);
        next = pages.next.load(Ordering::Relaxed);
    }
}
