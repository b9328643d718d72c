//! Messages, in both directions: any bytes are one or an error, and what was read can be written and
//! read again.
#![no_main]

use corewise_abi::message::{MAX_MESSAGE, Malformed, ToManager, ToProgram, decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode::<ToManager>(bytes) {
        let again = encode(&message).unwrap();
        assert!(again.len() <= MAX_MESSAGE && again.len() <= bytes.len());
        assert_eq!(decode::<ToManager>(&again), Ok(message));
    }
    match decode::<ToProgram>(bytes) {
        Ok(message) => {
            let again = encode(&message).unwrap();
            assert!(again.len() <= MAX_MESSAGE && again.len() <= bytes.len());
            assert_eq!(decode::<ToProgram>(&again), Ok(message));
        }
        Err(why) => assert!(bytes.len() <= MAX_MESSAGE || why == Malformed::TooLong),
    }
});
