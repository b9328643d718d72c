//! The claim page as writer and reader see it: real threads, torn writes, odd sets.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::claim::{ClaimPage, Granted, State};
use corewise_abi::{MAX_CPUS, PageHeader, VERSION};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const WORDS: usize = MAX_CPUS as usize / 64;

fn page() -> ClaimPage {
    let page = ClaimPage::new();
    page.initialise(1);
    page
}

/// What the page says, as a set.
fn read(page: &ClaimPage) -> Option<(u32, BTreeSet<u32>)> {
    let mut words = [0_u64; WORDS];
    let generation = page.cpus(&mut words)?;
    let set = (0..MAX_CPUS).filter(|cpu| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1);
    Some((generation, set.collect()))
}

/// The page's lock, as a writer has it that is in the middle of a write.
fn sequence(page: &ClaimPage) -> &AtomicU32 {
    let (_, at) = ClaimPage::layout()
        .find(|(name, _)| *name == "sequence")
        .unwrap();
    let start = std::ptr::from_ref(page).cast::<u8>();
    #[allow(unsafe_code, reason = "a test that plays a writer which dies")]
    // SAFETY: at this offset of the page there is an AtomicU32, as the layout says; it lives as long as
    // the page does.
    unsafe {
        &*start.add(at).cast::<AtomicU32>()
    }
}

#[test]
fn a_new_page_is_valid_and_waits() {
    let page = page();
    assert!(page.is_valid());
    assert_eq!(page.state(), State::Waiting);
    assert_eq!(page.granted().generation, 0);
    assert_eq!(read(&page), Some((0, BTreeSet::new())));
}

#[test]
fn a_page_of_zeroes_is_not_a_claim_page() {
    assert!(!ClaimPage::new().is_valid());
    assert_eq!(VERSION, 1);
    assert_eq!(size_of::<PageHeader>(), 16);
}

#[test]
fn a_claim_has_a_thread_at_least() {
    let page = page();
    page.grant(0, []);
    let granted = Granted {
        generation: 1,
        threads: 1,
    };
    assert_eq!(page.granted(), granted);
}

#[test]
fn the_end_is_a_new_generation() {
    let page = page();
    page.grant(2, [0, 1]);
    page.end();
    assert_eq!(page.state(), State::Ended);
    assert_eq!(page.granted().generation, 2);
    assert_eq!(page.futex().load(Ordering::Relaxed), 2);
}

#[test]
fn a_set_whose_writer_died_in_the_middle_is_none_and_the_next_writer_repairs_it() {
    let page = page();
    page.grant(2, [0, 1]);
    sequence(&page).fetch_add(1, Ordering::Relaxed);
    assert_eq!(read(&page), None);
    assert_eq!(page.granted().threads, 2);
    page.grant(1, [5]);
    assert_eq!(read(&page), Some((2, BTreeSet::from([5]))));
}

/// The set of a generation: a number of CPUs that changes, spread over all words.
fn set_of(generation: u32) -> BTreeSet<u32> {
    let count = generation % 40;
    (0..count)
        .map(|i| (generation * 31 + i * 97) % MAX_CPUS)
        .collect()
}

#[test]
fn a_reader_beside_a_writer_never_sees_a_torn_set() {
    const GRANTS: u32 = 20_000;
    let page = Arc::new(page());
    let writer = {
        let page = Arc::clone(&page);
        std::thread::spawn(move || {
            for generation in 1..=GRANTS {
                page.grant(generation, set_of(generation));
            }
        })
    };
    let mut last = 0;
    while last < GRANTS {
        let granted = page.granted();
        assert!(granted.generation == 0 || granted.threads == granted.generation);
        if let Some((generation, set)) = read(&page) {
            assert!(generation >= granted.generation && generation >= last);
            assert_eq!(set, set_of(generation));
            last = generation;
        }
    }
    writer.join().unwrap();
}

proptest! {
    #[test]
    fn what_is_granted_is_read(
        grants in prop::collection::vec((0_u32..100, prop::collection::btree_set(0..MAX_CPUS + 99, 0..99)), 1..9)
    ) {
        let page = page();
        for (count, (threads, cpus)) in grants.iter().enumerate() {
            let generation = page.grant(*threads, cpus.iter().copied());
            prop_assert_eq!(generation as usize, count + 1);
            prop_assert_eq!(page.granted(), Granted { generation, threads: (*threads).max(1) });
            let known = cpus.iter().copied().filter(|cpu| *cpu < MAX_CPUS).collect();
            prop_assert_eq!(read(&page), Some((generation, known)));
        }
    }

    #[test]
    fn a_short_buffer_gets_the_first_cpus(cpus in prop::collection::btree_set(0..MAX_CPUS, 0..99), length in 0..WORDS) {
        let page = page();
        page.grant(1, cpus.iter().copied());
        let mut words = vec![u64::MAX; length];
        prop_assert_eq!(page.cpus(&mut words), Some(1));
        for (index, word) in words.iter().enumerate() {
            let expected = cpus.iter().filter(|cpu| **cpu as usize / 64 == index).fold(0, |all, cpu| all | 1_u64 << (cpu % 64));
            prop_assert_eq!(*word, expected);
        }
    }

    /// Whatever a page holds, as one that a hostile writer filled: no panic, no hang, no access beyond.
    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u64>(), size_of::<ClaimPage>() / 8)) {
        let page = Box::new(ClaimPage::new());
        let start = std::ptr::from_ref(&*page).cast::<std::sync::atomic::AtomicU64>();
        for (index, word) in bytes.iter().enumerate() {
            #[allow(unsafe_code, reason = "a test that plays a hostile writer")]
            // SAFETY: within the page, which is aligned to 64 bytes, all of it atomics or padding, and
            // any bytes are valid in them.
            unsafe {
                (*start.add(index)).store(*word, Ordering::Relaxed);
            }
        }
        let _ = (page.is_valid(), page.manager_pid(), page.state(), page.granted(), read(&page));
    }
}
