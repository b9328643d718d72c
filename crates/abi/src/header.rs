//! How every page begins.

use crate::VERSION;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// How every page begins.
#[repr(C)]
#[derive(Debug)]
pub struct PageHeader {
    magic: AtomicU32,
    version: AtomicU16,
    size: AtomicU16,
    features: AtomicU64,
}

impl PageHeader {
    /// Offsets of the fields within every page, in bytes.
    pub(crate) const LAYOUT: [(&'static str, usize); 4] = [
        ("magic", core::mem::offset_of!(PageHeader, magic)),
        ("version", core::mem::offset_of!(PageHeader, version)),
        ("size", core::mem::offset_of!(PageHeader, size)),
        ("features", core::mem::offset_of!(PageHeader, features)),
    ];

    /// The header of a page that is not initialised yet: zeroes.
    pub(crate) fn new() -> PageHeader {
        PageHeader {
            magic: AtomicU32::new(0),
            version: AtomicU16::new(0),
            size: AtomicU16::new(0),
            features: AtomicU64::new(0),
        }
    }

    /// Writes the header of a page of which `size` bytes are in use.
    pub(crate) fn initialise(&self, magic: u32, size: usize, features: u64) {
        self.version.store(VERSION, Ordering::Relaxed);
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        self.size.store(size, Ordering::Relaxed);
        self.features.store(features, Ordering::Relaxed);
        self.magic.store(magic, Ordering::Release);
    }

    /// The version that the writer speaks, and how much of the page it knows, in bytes. `None` if the
    /// page is not of the kind that `magic` names.
    pub(crate) fn read(&self, magic: u32) -> Option<(u16, u16)> {
        (self.magic.load(Ordering::Acquire) == magic).then(|| {
            (
                self.version.load(Ordering::Relaxed),
                self.size.load(Ordering::Relaxed),
            )
        })
    }

    /// The writer's feature bits.
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }
}
