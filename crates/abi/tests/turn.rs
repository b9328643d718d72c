//! Turns, and the turn on a claim page.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::claim::ClaimPage;
use corewise_abi::turn::{Turn, Window};
use std::sync::atomic::{AtomicU32, Ordering};

fn turn() -> Turn {
    let window = |begin_ns, end_ns| Window { begin_ns, end_ns };
    Turn {
        epoch_ns: 1_000,
        period_ns: 100,
        windows: vec![window(0, 20), window(50, 60)],
    }
}

/// A page with a claim.
fn page() -> ClaimPage {
    let page = ClaimPage::new();
    page.initialise(1);
    page.grant(2, [0, 1]);
    page
}

/// The turn's lock, as a writer has it that is in the middle of a write.
fn sequence(page: &ClaimPage) -> &AtomicU32 {
    let (_, at) = ClaimPage::layout()
        .find(|(name, _)| *name == "turn_sequence")
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
fn nothing_is_said_before_the_epoch() {
    assert_eq!(turn().runs_at(999), None);
    assert_eq!(turn().next_change(0), 1_000);
}

#[test]
fn it_runs_in_its_windows_of_every_period() {
    let runs = [1_000, 1_019, 1_020, 1_049, 1_150, 1_160].map(|time| turn().runs_at(time).unwrap());
    assert_eq!(runs, [true, true, false, false, true, false]);
}

#[test]
fn each_change_is_followed_by_the_next_edge() {
    let changes = [1_000, 1_020, 1_050, 1_060, 1_099].map(|time| turn().next_change(time));
    assert_eq!(changes, [1_020, 1_050, 1_060, 1_100, 1_100]);
}

#[test]
fn windows_out_of_order_or_beyond_the_period_are_not_valid() {
    assert!(turn().is_valid());
    for (at, window) in [(0, (30, 30)), (0, (0, 50)), (1, (50, 101))] {
        let mut wrong = turn();
        wrong.windows[at] = Window {
            begin_ns: window.0,
            end_ns: window.1,
        };
        assert!(!wrong.is_valid(), "{wrong:?}");
    }
    let none = Turn {
        windows: Vec::new(),
        ..turn()
    };
    assert!(!none.is_valid());
}

#[test]
fn what_is_written_on_the_page_is_read_until_the_claim_ends() {
    let page = page();
    assert_eq!(page.turn(), None);
    page.set_turn(Some(&turn()));
    assert_eq!(page.turn(), Some(turn()));
    page.end();
    assert_eq!(page.turn(), None);
}

#[test]
fn without_a_turn_a_program_runs_always() {
    let page = page();
    page.set_turn(Some(&turn()));
    page.set_turn(None);
    assert_eq!(page.turn(), None);
}

#[test]
fn a_turn_that_makes_no_sense_is_none() {
    let page = page();
    page.set_turn(Some(&Turn {
        period_ns: 10,
        ..turn()
    }));
    assert_eq!(page.turn(), None);
}

#[test]
fn a_writer_that_died_in_the_middle_leaves_a_program_that_runs() {
    let page = page();
    page.set_turn(Some(&turn()));
    sequence(&page).fetch_add(1, Ordering::Relaxed);
    assert_eq!(page.turn(), None);
}
