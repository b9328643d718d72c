//! An access to memory, as it is recorded, deferred and kept.

use corewise_defer::deferred;

/// Accesses that a program's threads made. A *granule* is eight bytes of memory whose address is a multiple
/// of eight.
#[deferred]
pub trait Accesses {
    /// One thread accessed one granule or several in a row, in the same way: see [`Access`].
    fn access(&self, place: u64, segment: u32, site: u32, extent: u32);
}

/// Bits of [`Access::kind`].
pub mod kind {
    /// Not only read.
    pub const WRITE: u8 = 1;
    /// One operation, which the compiler was told is ordered with others of its kind.
    pub const ATOMIC: u8 = 2;
    /// The memory was freed: as if everything in it was written.
    pub const FREE: u8 = 4;
}

/// An access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    /// The address divided by eight.
    pub granule: u64,
    /// Which of its bytes.
    pub mask: u8,
    /// Which of its lives the memory had: what was freed and allocated again is not what it was.
    pub life: u8,
    /// See [`kind`].
    pub kind: u8,
    /// Which thread.
    pub thread: u16,
    /// Which of the thread's segments: the pieces of its run between those operations that order it with
    /// other threads.
    pub segment: u32,
    /// Where in the code, with which callers and which locks held: a number in the table of sites.
    pub site: u32,
}

impl Access {
    /// The access in one word but for its segment and site; `granules` in a row, and the thread, in another.
    #[inline(always)]
    pub fn packed(&self, granules: u16) -> (u64, u32) {
        let place = self.granule << 20
            | u64::from(self.mask) << 12
            | u64::from(self.life) << 4
            | u64::from(self.kind & 15);
        (place, u32::from(self.thread) << 16 | u32::from(granules))
    }

    /// The reverse of [`Access::packed`]: the access, and how many granules it goes on for.
    #[inline(always)]
    pub fn unpacked(place: u64, segment: u32, site: u32, extent: u32) -> (Access, u16) {
        let access = Access {
            granule: place >> 20,
            mask: (place >> 12) as u8,
            life: (place >> 4) as u8,
            kind: place as u8 & 15,
            thread: (extent >> 16) as u16,
            segment,
            site,
        };
        (access, extent as u16)
    }

    /// Whether the two could race if nothing orders them.
    #[inline(always)]
    pub fn conflicts(&self, other: &Access) -> bool {
        self.thread != other.thread
            && self.mask & other.mask != 0
            && self.life == other.life
            && (self.kind | other.kind) & (kind::WRITE | kind::FREE) != 0
            && self.kind & other.kind & kind::ATOMIC == 0
    }

    /// Whether both are of one thread and kind, and to one life of the memory.
    #[inline(always)]
    pub fn is_alike(&self, other: &Access) -> bool {
        self.thread == other.thread && self.kind == other.kind && self.life == other.life
    }

    /// Whether everything that races with the other races with this one, both being of one segment.
    #[inline(always)]
    pub fn stands_for(&self, other: &Access) -> bool {
        let kinds = match self.kind {
            k if k & kind::FREE != 0 => other.kind & kind::FREE != 0,
            kind::WRITE => other.kind & kind::FREE == 0,
            0 => other.kind & kind::WRITE == 0,
            k if k & kind::WRITE != 0 => other.kind & kind::ATOMIC != 0,
            _ => other.kind == self.kind,
        };
        kinds && self.life == other.life && other.mask & !self.mask == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_keeps_everything(
            granule in 0_u64..1 << 44, mask: u8, life: u8, kind in 0_u8..16, thread: u16, segment: u32,
            site: u32, granules: u16,
        ) {
            let access = Access { granule, mask, life, kind, thread, segment, site };
            let (place, extent) = access.packed(granules);
            prop_assert_eq!(Access::unpacked(place, segment, site, extent), (access, granules));
        }
    }

    #[test]
    fn reads_do_not_conflict_nor_atomics_nor_different_bytes_or_lives() {
        let write = Access {
            granule: 1,
            mask: 0x0f,
            life: 0,
            kind: kind::WRITE,
            thread: 0,
            segment: 1,
            site: 1,
        };
        let other = Access {
            thread: 1,
            kind: 0,
            ..write
        };
        assert!(write.conflicts(&other) && other.conflicts(&write));
        assert!(!Access { kind: 0, ..write }.conflicts(&other));
        assert!(!write.conflicts(&Access {
            mask: 0xf0,
            ..other
        }));
        assert!(!write.conflicts(&Access { life: 1, ..other }));
        assert!(!write.conflicts(&Access { thread: 0, ..other }));
        let atomic = Access {
            kind: kind::WRITE | kind::ATOMIC,
            ..write
        };
        assert!(!atomic.conflicts(&Access {
            thread: 1,
            ..atomic
        }));
        assert!(atomic.conflicts(&other));
    }
}
