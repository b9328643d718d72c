//! The atomics of the lock-free parts. `tests/loom.rs` compiles those parts over loom's in their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
