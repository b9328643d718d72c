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
    /// Which of its lives the memory had: what was freed and allocated again is not what it was. Of
    /// [`LIFE_BITS`] bits.
    pub life: u32,
    /// See [`kind`].
    pub kind: u8,
    /// Which thread, of twelve bits.
    pub thread: u16,
    /// Which of the thread's segments: the pieces of its run between those operations that order it with
    /// other threads.
    pub segment: u32,
    /// Where in the code, with which callers and which locks held: a number in the table of sites, of twenty
    /// bits.
    pub site: u32,
}

/// Granules of a row: what a thread accessed lately, and what is remembered of all accesses, is kept by rows.
pub(super) const ROW: u64 = 16;

/// Bits of [`Access::life`]. Accesses to lives that are a multiple of so many apart look like accesses to one,
/// but that takes longer than anything waits to be compared.
pub const LIFE_BITS: u32 = 24;

/// By how many lives the first comes after the second; negative: before.
#[inline(always)]
pub fn lives_between(later: u32, earlier: u32) -> i32 {
    (later.wrapping_sub(earlier) << (32 - LIFE_BITS)) as i32 >> (32 - LIFE_BITS)
}

impl Access {
    /// What [`Accesses::access`] is told of it, and of so many granules in a row. The life is in three parts,
    /// where the others leave room.
    #[inline(always)]
    pub fn packed(&self, granules: u16) -> (u64, u32, u32, u32) {
        let place = self.granule << 20
            | u64::from(self.mask) << 12
            | u64::from(self.life as u8) << 4
            | u64::from(self.kind & 15);
        let site = self.site & 0xf_ffff | self.life << 12 & 0xfff0_0000;
        let extent = u32::from(self.thread) << 20 | self.life >> 4 & 0xf_0000 | u32::from(granules);
        (place, self.segment, site, extent)
    }

    /// The reverse of [`Access::packed`].
    #[inline(always)]
    pub fn unpacked(place: u64, segment: u32, site: u32, extent: u32) -> Run {
        let access = Access {
            granule: Access::granule_of(place),
            mask: (place >> 12) as u8,
            life: u32::from((place >> 4) as u8)
                | (site & 0xfff0_0000) >> 12
                | (extent & 0xf_0000) << 4,
            kind: place as u8 & 15,
            thread: (extent >> 20) as u16,
            segment,
            site: site & 0xf_ffff,
        };
        Run {
            access,
            granules: extent as u16,
        }
    }

    /// The granule of a packed access.
    #[inline(always)]
    pub fn granule_of(place: u64) -> u64 {
        place >> 20
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

    /// Whether it is of the same kind, life and place in the code.
    #[inline(always)]
    pub(super) fn is_alike(&self, other: &Access) -> bool {
        self.kind == other.kind && self.site == other.site && self.life == other.life
    }

    /// Whether everything that races with the other races with this one, both being of one segment and to the
    /// same bytes in the same life.
    #[inline(always)]
    pub fn kind_stands_for(&self, other: &Access) -> bool {
        match self.kind {
            k if k & kind::FREE != 0 => other.kind & kind::FREE != 0,
            kind::WRITE => other.kind & kind::FREE == 0,
            0 => other.kind & kind::WRITE == 0,
            k if k & kind::WRITE != 0 => other.kind & kind::ATOMIC != 0,
            _ => other.kind == self.kind,
        }
    }

    /// The same where the other one is of an earlier segment: there it is said of who uses memory too late that it was
    /// freed, and not how it was used before.
    #[inline(always)]
    pub fn later_stands_for(&self, other: &Access) -> bool {
        self.kind & kind::FREE != 0 || self.kind_stands_for(other)
    }
}

/// Accesses to several granules in a row, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// That to the first granule.
    pub access: Access,
    /// How many.
    pub granules: u16,
}

impl Run {
    /// Behind its last granule.
    #[inline(always)]
    fn end(&self) -> u64 {
        self.access.granule + u64::from(self.granules)
    }

    /// The run in pieces that end where the address of a granule is a multiple of so many.
    #[inline(always)]
    pub fn pieces(&self, granules: u64) -> impl Iterator<Item = Run> + use<> {
        let (mut first, end, access) = (self.access.granule, self.end(), self.access);
        std::iter::from_fn(move || {
            let next = (first - first % granules + granules).min(end);
            let piece = Run {
                access: Access {
                    granule: first,
                    ..access
                },
                granules: next.saturating_sub(first) as u16,
            };
            first = next;
            (piece.granules > 0).then_some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_keeps_everything(
            granule in 0_u64..1 << 44, mask: u8, life in 0_u32..1 << LIFE_BITS, kind in 0_u8..16,
            thread in 0_u16..1 << 12, segment: u32, site in 0_u32..1 << 20, granules: u16,
        ) {
            let access = Access { granule, mask, life, kind, thread, segment, site };
            let (place, segment, site, extent) = access.packed(granules);
            prop_assert_eq!(Access::unpacked(place, segment, site, extent), Run { access, granules });
        }

        #[test]
        fn the_pieces_of_a_run_are_all_of_it_and_within_their_bounds(
            granule in 0_u64..1 << 43, granules in 0_u16..2000, of in prop_oneof![Just(1_u64), Just(16), Just(512)],
        ) {
            let access = Access { granule, ..write() };
            let run = Run { access, granules };
            let mut at = granule;
            for piece in run.pieces(of) {
                prop_assert_eq!(piece.access.granule, at);
                at += u64::from(piece.granules);
                prop_assert_eq!(piece.access.granule / of, (at - 1) / of);
            }
            prop_assert_eq!(at, granule + u64::from(granules));
        }
    }

    fn write() -> Access {
        Access {
            granule: 1,
            mask: 0x0f,
            life: 0,
            kind: kind::WRITE,
            thread: 0,
            segment: 1,
            site: 1,
        }
    }

    #[test]
    fn reads_do_not_conflict_nor_atomics_nor_different_bytes_or_lives() {
        let write = write();
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
