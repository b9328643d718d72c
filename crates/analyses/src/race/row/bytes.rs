//! Sets of bytes of a row, in thirty-two bits and a few: either whole quads of bytes of all of the row, or bytes of a
//! quarter of it. Most programs access memory by four bytes or more.

/// Bits of a quarter's bytes.
const QUARTER: u32 = 32;
/// The lowest bit of each four.
const LOWEST: u64 = 0x1111_1111_1111_1111;

/// A set of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    /// The quarter; `None`: the bits are of quads.
    pub(super) quarter: Option<u8>,
    pub(super) bits: u32,
}

impl Bytes {
    /// A set in one, if that is possible, and it is not empty.
    pub(super) fn of(bytes: u128) -> Option<Bytes> {
        let quads = whole_quads(bytes);
        if quads != 0 && all_of(quads) == bytes {
            return Some(Bytes {
                quarter: None,
                bits: quads,
            });
        }
        let quarter = bytes.checked_ilog2()? / QUARTER;
        let set = in_quarter(bytes, quarter);
        (set.all() == bytes).then_some(set)
    }

    /// A bit for each byte of the row.
    #[inline]
    pub(super) fn all(self) -> u128 {
        match self.quarter {
            None => all_of(self.bits),
            Some(quarter) => u128::from(self.bits) << (QUARTER * u32::from(quarter)),
        }
    }
}

/// A set that others are joined with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    pub(super) bytes: u128,
    said: Option<Bytes>,
}

impl Joined {
    pub(super) fn new(bytes: u128) -> Joined {
        let said = Bytes::of(bytes);
        Joined { bytes, said }
    }

    /// Both sets in one, if that is possible.
    #[inline]
    pub(super) fn with(&self, other: Bytes) -> Option<Bytes> {
        match self.said {
            // Nearly always.
            Some(said) if said.quarter == other.quarter => Some(Bytes {
                bits: said.bits | other.bits,
                ..other
            }),
            _ => Bytes::of(self.bytes | other.all()),
        }
    }
}

/// A set that others are compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    /// Quads of which some byte is in it, and its bytes by quarters.
    quads: u32,
    pub(super) bytes: u128,
}

impl Compared {
    #[inline]
    pub(super) fn new(bytes: u128) -> Compared {
        let halves = bytes | bytes >> 1;
        let quads = lowest(halves | halves >> 2);
        Compared { quads, bytes }
    }

    /// Whether it has a byte of the other.
    #[inline(always)]
    pub(super) fn meets(&self, other: Bytes) -> bool {
        let own = match other.quarter {
            None => self.quads,
            Some(quarter) => (self.bytes >> (QUARTER * u32::from(quarter & 3))) as u32,
        };
        own & other.bits != 0
    }
}

fn in_quarter(bytes: u128, quarter: u32) -> Bytes {
    Bytes {
        quarter: Some(quarter as u8),
        bits: (bytes >> (QUARTER * quarter)) as u32,
    }
}

/// The quads of which all bytes are there.
fn whole_quads(bytes: u128) -> u32 {
    let pairs = bytes & bytes >> 1;
    lowest(pairs & pairs >> 2)
}

/// The lowest bit of each four.
#[inline]
fn lowest(bits: u128) -> u32 {
    let half = |mut bits: u64| {
        bits &= LOWEST;
        bits = (bits | bits >> 3) & 0x0303_0303_0303_0303;
        bits = (bits | bits >> 6) & 0x000f_000f_000f_000f;
        bits = (bits | bits >> 12) & 0x0000_00ff_0000_00ff;
        (bits | bits >> 24) as u32 & 0xffff
    };
    half(bits as u64) | half((bits >> 64) as u64) << 16
}

/// The bytes of quads.
#[inline]
fn all_of(quads: u32) -> u128 {
    let half = |bits: u32| {
        let mut bits = u64::from(bits & 0xffff);
        bits = (bits | bits << 24) & 0x0000_00ff_0000_00ff;
        bits = (bits | bits << 12) & 0x000f_000f_000f_000f;
        bits = (bits | bits << 6) & 0x0303_0303_0303_0303;
        ((bits | bits << 3) & LOWEST) * 0xf
    };
    u128::from(half(quads)) | u128::from(half(quads >> 16)) << 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sets as accesses have them, and any.
    fn sets() -> impl Strategy<Value = u128> {
        let quads = any::<u32>().prop_map(all_of);
        let piece = (0_u32..128, 1_u32..=128)
            .prop_map(|(from, count)| (u128::MAX >> (128 - count)) << from);
        prop_oneof![quads, piece, any::<u128>()]
    }

    proptest! {
        #[test]
        fn a_set_is_what_it_was_and_meets_what_it_has_bytes_of(bytes in sets(), other in sets()) {
            if let Some(set) = Bytes::of(bytes) {
                prop_assert_eq!(set.all(), bytes);
                prop_assert_eq!(Compared::new(other).meets(set), other & bytes != 0);
                let both = Joined::new(other).with(set);
                prop_assert_eq!(both.is_some(), Bytes::of(bytes | other).is_some());
                prop_assert!(both.is_none_or(|both| both.all() == bytes | other));
            }
        }
    }

    #[test]
    fn what_programs_access_is_in_one() {
        for bytes in [u128::MAX, 0xff, 0xff << 120, 0xf0f0 << 64, 0x3, 1 << 127] {
            assert!(Bytes::of(bytes).is_some(), "{bytes:x}");
        }
        assert_eq!(Bytes::of(0), None);
        assert_eq!(Bytes::of(1 | 1 << 64), None);
    }
}
