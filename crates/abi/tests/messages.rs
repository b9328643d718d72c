//! Messages: what goes in comes out, and any bytes at all are either a message or an error.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_abi::message::{
    Gang, Join, LocalRule, MAX_MESSAGE, MAX_NAME, MOST_NAMES, Malformed, Placement, Request,
    ToManager, ToProgram, TurnsBy, Waits, Wants, decode, encode,
};
use proptest::prelude::*;

fn wants() -> impl Strategy<Value = Wants> {
    let placement = prop_oneof![
        Just(Placement::Any),
        Just(Placement::Compact),
        Just(Placement::Scatter)
    ];
    (any::<u32>(), any::<u32>(), placement, any::<bool>()).prop_map(
        |(min_threads, max_threads, placement, malleable)| Wants {
            min_threads,
            max_threads,
            placement,
            malleable,
        },
    )
}

fn join() -> impl Strategy<Value = Join> {
    (any::<u16>(), any::<u64>(), any::<i32>(), ".{0,80}", wants()).prop_map(
        |(version, features, pid, name, wants)| Join {
            version,
            features,
            pid,
            name,
            wants,
        },
    )
}

fn to_manager() -> impl Strategy<Value = ToManager> {
    prop_oneof![
        join().prop_map(ToManager::Join),
        wants().prop_map(ToManager::Ask),
        any::<u32>().prop_map(ToManager::Threads),
        (any::<u32>(), any::<bool>()).prop_map(|(request, yes)| ToManager::Answer { request, yes }),
        Just(ToManager::Status),
        (
            any::<i32>(),
            any::<u32>(),
            prop::collection::vec(any::<u32>(), 0..600)
        )
            .prop_map(|(pid, threads, cpus)| ToManager::Override { pid, threads, cpus }),
        Just(ToManager::Stop),
        prop::collection::vec(any::<i32>(), 0..600).prop_map(ToManager::Members),
        (names(), names()).prop_map(|(runtimes, stay)| ToManager::Follows { runtimes, stay }),
        prop::option::of((".{0,20}", any::<bool>(), any::<u32>())).prop_map(|gang| {
            ToManager::Gang(gang.map(|(name, keeps_idle, weight)| Gang {
                name,
                keeps_idle,
                weight,
            }))
        }),
        any::<bool>().prop_map(ToManager::Spins),
        (prop::option::of(".{0,20}"), prop::option::of(".{0,200}"))
            .prop_map(|(means, why_not)| ToManager::TurnsBy(TurnsBy { means, why_not })),
        (any::<u32>(), any::<Option<u32>>(), any::<u32>()).prop_map(
            |(awake, spinning, switch_ns)| {
                ToManager::Waits(Waits {
                    awake,
                    spinning,
                    switch_ns,
                })
            }
        ),
    ]
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(".{0,20}", 0..MOST_NAMES)
}

fn rule() -> impl Strategy<Value = LocalRule> {
    prop_oneof![
        Just(LocalRule::Leave),
        Just(LocalRule::Whole),
        Just(LocalRule::OneEach)
    ]
}

fn to_program() -> impl Strategy<Value = ToProgram> {
    let what = prop_oneof![Just(Request::Expand), Just(Request::Shrink)];
    prop_oneof![
        (any::<u16>(), any::<u64>(), any::<u64>(), rule()).prop_map(
            |(version, features, program, rule)| ToProgram::Welcome {
                version,
                features,
                program,
                rule,
            }
        ),
        ".{0,200}".prop_map(ToProgram::Refused),
        (any::<u32>(), what).prop_map(|(request, what)| ToProgram::Request { request, what }),
        (any::<bool>(), prop::collection::vec(any::<u8>(), 0..4096))
            .prop_map(|(more, bytes)| ToProgram::Part { more, bytes }),
        Just(ToProgram::Done),
        rule().prop_map(ToProgram::Rule),
        Just(ToProgram::Again),
    ]
}

proptest! {
    #[test]
    fn what_a_program_says_comes_out_as_it_went_in(message in to_manager()) {
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<ToManager>(&bytes), Ok(message));
    }

    #[test]
    fn what_a_manager_says_comes_out_as_it_went_in(message in to_program()) {
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<ToProgram>(&bytes), Ok(message));
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..MAX_MESSAGE + 99)) {
        let long = bytes.len() > MAX_MESSAGE;
        for malformed in [decode::<ToManager>(&bytes).err(), decode::<ToProgram>(&bytes).err()] {
            prop_assert!(!long || malformed == Some(Malformed::TooLong));
        }
    }

    /// Random bytes hardly ever get past the first field: these are messages with one byte changed.
    #[test]
    fn a_damaged_message_is_another_message_or_an_error(message in to_manager(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode(&message).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(other) = decode::<ToManager>(&bytes) {
            prop_assert!(encode(&other).unwrap().len() <= MAX_MESSAGE);
        }
    }

    #[test]
    fn a_message_followed_by_anything_is_an_error(message in to_program(), rest in prop::collection::vec(any::<u8>(), 1..9)) {
        let mut bytes = encode(&message).unwrap();
        bytes.extend(rest);
        prop_assert!(decode::<ToProgram>(&bytes).is_err());
    }
}

/// The first byte of a message is its place in the enum: whoever knows fewer of them must not take a
/// later one for an earlier one.
#[test]
fn messages_keep_their_places() {
    let join = Join {
        version: 1,
        features: 0,
        pid: 1,
        name: String::new(),
        wants: Wants {
            min_threads: 1,
            max_threads: 1,
            placement: Placement::Any,
            malleable: true,
        },
    };
    let up = [
        ToManager::Join(join.clone()),
        ToManager::Ask(join.wants),
        ToManager::Threads(0),
        ToManager::Answer {
            request: 0,
            yes: true,
        },
        ToManager::Status,
        ToManager::Override {
            pid: 0,
            threads: 0,
            cpus: Vec::new(),
        },
        ToManager::Stop,
        ToManager::Members(Vec::new()),
        ToManager::Follows {
            runtimes: Vec::new(),
            stay: Vec::new(),
        },
        ToManager::Gang(None),
        ToManager::Spins(false),
        ToManager::Waits(Waits::default()),
        ToManager::TurnsBy(TurnsBy::default()),
    ];
    let down = [
        ToProgram::Welcome {
            version: 1,
            features: 0,
            program: 0,
            rule: LocalRule::Leave,
        },
        ToProgram::Refused(String::new()),
        ToProgram::Request {
            request: 0,
            what: Request::Expand,
        },
        ToProgram::Part {
            more: false,
            bytes: Vec::new(),
        },
        ToProgram::Done,
        ToProgram::Rule(LocalRule::Leave),
        ToProgram::Again,
    ];
    for (place, message) in up.iter().enumerate() {
        assert_eq!(usize::from(encode(message).unwrap()[0]), place);
    }
    for (place, message) in down.iter().enumerate() {
        assert_eq!(usize::from(encode(message).unwrap()[0]), place);
    }
}

#[test]
fn a_message_that_promises_more_than_it_has_is_an_error() {
    // A part whose length says four gigabytes.
    let mut bytes = encode(&ToProgram::Part {
        more: false,
        bytes: Vec::new(),
    })
    .unwrap();
    bytes.pop();
    bytes.extend([0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert_eq!(decode::<ToProgram>(&bytes), Err(Malformed::Unreadable));
}

#[test]
fn a_message_that_is_too_long_is_not_written() {
    let bytes = vec![0; MAX_MESSAGE];
    let message = ToProgram::Part { more: false, bytes };
    assert_eq!(encode(&message), Err(Malformed::TooLong));
}

#[test]
fn the_longest_lists_of_names_fit_into_a_message() {
    let longest = vec!["x".repeat(MAX_NAME); MOST_NAMES];
    let message = ToManager::Follows {
        runtimes: longest.clone(),
        stay: longest,
    };
    assert!(encode(&message).is_ok());
}
