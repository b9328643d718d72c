//! The claim page under every interleaving and every reordering that the memory model allows: the
//! library's own modules, compiled over loom's atomics, with a page that names fewer CPUs.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the library's modules, of which this looks at a part"
)]

extern crate alloc;

mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{
        AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
    };
}

#[path = "../src/claim.rs"]
mod claim;
#[path = "../src/cpus.rs"]
mod cpus;
#[path = "../src/header.rs"]
mod header;
#[path = "../src/turn.rs"]
mod turn;

use claim::{ClaimPage, State};
use header::PageHeader;

const VERSION: u16 = 1;
/// Two words of CPUs: as many as a torn read needs.
const MAX_CPUS: u32 = 128;
/// Loom's atomics are larger than those they stand for.
const PAGE_BYTES: usize = 1 << 20;
/// Every attempt multiplies what is to be explored.
const READ_TRIES: u32 = 2;

use loom::sync::Arc;
use loom::thread;

/// The set that grant `generation` of these tests names: one CPU in each word.
fn set_of(generation: u32) -> [u32; 2] {
    [generation, 64 + generation]
}

fn words_of(generation: u32) -> [u64; 2] {
    [1 << generation, 1 << generation]
}

/// The writer grants `grants` times after the first one, on a thread of its own.
fn granting(page: &Arc<ClaimPage>, grants: u32) -> thread::JoinHandle<()> {
    let page = Arc::clone(page);
    thread::spawn(move || {
        for _ in 0..grants {
            let next = page.granted().generation + 1;
            page.grant(next, set_of(next));
        }
    })
}

/// Every interleaving with at most three switches between threads that could go on: enough for each
/// error that was planted here, and seconds instead of minutes.
fn model(what: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(what);
}

fn granted_once() -> Arc<ClaimPage> {
    let page = ClaimPage::new();
    page.initialise(1);
    page.grant(1, set_of(1));
    Arc::new(page)
}

#[test]
fn a_set_that_was_read_is_one_that_was_written() {
    model(|| {
        let page = granted_once();
        let writer = granting(&page, 1);
        let mut words = [0; 2];
        if let Some(generation) = page.cpus(&mut words) {
            assert_eq!(words, words_of(generation));
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_set_read_after_the_word_is_not_older_than_it() {
    model(|| {
        let page = granted_once();
        let writer = granting(&page, 1);
        let granted = page.granted();
        assert_eq!(granted.threads, granted.generation);
        let mut words = [0; 2];
        if let Some(generation) = page.cpus(&mut words) {
            assert!(generation >= granted.generation);
        }
        writer.join().unwrap();
    });
}

#[test]
fn who_sees_the_futex_word_change_sees_the_claim() {
    model(|| {
        let page = granted_once();
        let writer = granting(&page, 1);
        let woken_by = page.futex().load(sync::Ordering::Acquire);
        assert!(page.granted().generation >= woken_by);
        assert_eq!(page.state(), State::Managed);
        writer.join().unwrap();
    });
}

#[test]
fn who_sees_the_last_generation_sees_that_the_manager_has_ended() {
    model(|| {
        let page = granted_once();
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.end())
        };
        if page.granted().generation == 2 {
            assert_eq!(page.state(), State::Ended);
        }
        writer.join().unwrap();
    });
}
