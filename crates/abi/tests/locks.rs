//! The locks page: what is counted is found again.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::locks::{Kind, LocksPage, MOST_CALLERS, MOST_OBJECTS, PATH_BYTES, Waited};
use std::sync::atomic::Ordering;

fn page() -> LocksPage {
    let page = LocksPage::new();
    page.initialise();
    assert!(page.is_valid());
    page
}

#[test]
fn what_is_waited_is_found_under_its_caller_and_its_kind() {
    let page = page();
    let object = page.object(b"/usr/lib/libz.so");
    let first = page.caller(Kind::Mutex, object, 0x1234);
    let second = page.caller(Kind::Barrier, object, 0x1234);
    assert_ne!(first, second);
    page.add(Kind::Mutex, first, 5);
    page.add(Kind::Mutex, page.caller(Kind::Mutex, object, 0x1234), 6);
    page.add(Kind::Barrier, second, 7);
    assert_eq!(page.total(Kind::Mutex), Waited { ns: 11, waits: 2 });
    assert_eq!(page.total(Kind::Barrier), Waited { ns: 7, waits: 1 });
    let called: Vec<_> = page.callers().filter(|c| c.kind == Kind::Mutex).collect();
    let [called] = called[..] else {
        panic!("{called:?}");
    };
    assert_eq!((called.address, called.waited.ns), (0x1234, 11));
    let Some((path, length)) = page.path(called.object) else {
        panic!("the path is gone");
    };
    assert_eq!(&path[..length], b"/usr/lib/libz.so");
}

#[test]
fn the_same_file_has_one_number_and_a_long_path_keeps_its_end() {
    let page = page();
    assert_eq!(page.object(b"/a"), page.object(b"/a"));
    assert_ne!(page.object(b"/a"), page.object(b"/b"));
    let long = [b'x'; PATH_BYTES + 9];
    let number = page.object(&long);
    assert_eq!(page.object(&long), number);
    let length = number.and_then(|n| page.path(n)).map(|(_, length)| length);
    assert_eq!(length, Some(PATH_BYTES));
}

#[test]
fn what_has_no_room_is_counted_all_the_same() {
    let page = page();
    for number in 0..MOST_OBJECTS {
        assert_eq!(page.object(&[b'a' + number as u8]), Some(number));
    }
    let none = page.object(b"one more");
    assert_eq!(none, None);
    page.add(Kind::Mutex, page.caller(Kind::Mutex, none, 1), 3);
    for address in 0..10_000 {
        page.add(Kind::Mutex, page.caller(Kind::Mutex, Some(0), address), 1);
    }
    assert_eq!(page.total(Kind::Mutex).waits, 10_001);
    let known: u64 = page.callers().map(|called| called.waited.waits).sum();
    assert!(known > MOST_CALLERS as u64 / 2, "{known}");
    assert_eq!(known + page.others().waits, 10_001);
    // An address that no file has.
    assert_eq!(page.caller(Kind::Mutex, Some(0), u64::MAX), MOST_CALLERS);
}

#[test]
fn threads_of_a_pool_have_one_name() {
    let page = page();
    for name in [&b"worker-1"[..], b"worker-12", b"main", b"worker-2"] {
        page.name(name);
    }
    let names: Vec<_> = page.names().collect();
    assert_eq!(
        names,
        [
            *b"worker-#\0\0\0\0\0\0\0\0",
            *b"main\0\0\0\0\0\0\0\0\0\0\0\0"
        ]
    );
    assert_eq!(page.named(), 4);
}

#[test]
fn nothing_is_counted_before_it_is_wanted() {
    let page = page();
    assert_eq!(page.counting().load(Ordering::Relaxed), 0);
    page.count(true);
    assert_ne!(page.counting().load(Ordering::Relaxed), 0);
}
