//! The atomics of the pages. `tests/loom.rs` compiles the pages' modules over loom's in their place.

pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
