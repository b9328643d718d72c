//! How work is cut into pieces that differ: always the same, whoever does them, and never losing any.

use rand_core::Rng as _;
use rand_pcg::Lcg64Xsh32;

/// How much pieces differ from their mean, in 65,536ths of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread(u32);

impl Spread {
    /// All pieces are the same, up to a nanosecond.
    pub const NONE: Spread = Spread(0);

    /// `of_mean` is 0 to 1.
    pub fn new(of_mean: f64) -> Spread {
        Spread((of_mean.clamp(0.0, 1.0) * 65_536.0) as u32)
    }
}

/// A cut of `total` into pieces. The ends of even pieces are moved by up to half of the spread either way,
/// so that pieces lie between (1 − spread) and (1 + spread) of their mean, and add up to the total.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// At most 2^60.
    pub total: u64,
    /// At least 1, at most 2^40.
    pub pieces: u64,
    /// How much they differ.
    pub spread: Spread,
    /// Another seed, another cut.
    pub seed: u64,
}

impl Cut {
    /// Where piece `index` begins; past the last piece: the total.
    pub fn begin(&self, index: u64) -> u64 {
        if index == 0 {
            return 0;
        }
        if index >= self.pieces {
            return self.total;
        }
        let even = i128::from(index) << 16;
        let ends = even + self.moved_by(index);
        let whole = i128::from(self.pieces) << 16;
        // Within 0..=total: the ends of neighbours are moved by half a piece at most.
        (i128::from(self.total) * ends / whole) as u64
    }

    /// How large piece `index` is.
    pub fn size(&self, index: u64) -> u64 {
        self.begin(index + 1).saturating_sub(self.begin(index))
    }

    /// In 65,536ths of a piece.
    fn moved_by(&self, index: u64) -> i128 {
        let Spread(spread @ 1..) = self.spread else {
            return 0;
        };
        let mut random = Lcg64Xsh32::new(self.seed, 0);
        random.advance(index);
        let random = i64::from(random.next_u32() >> 16) - 32_768;
        i128::from((random * i64::from(spread)) >> 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_add_up_and_keep_within_their_spread(
            total in 0u64..1 << 50, pieces in 1u64..3000, spread in 0.0f64..=1.0, seed: u64,
        ) {
            let cut = Cut { total, pieces, spread: Spread::new(spread), seed };
            let sizes: Vec<u64> = (0..pieces).map(|index| cut.size(index)).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), total);
            let mean = total as f64 / pieces as f64;
            for size in sizes {
                let off = (size as f64 - mean).abs();
                prop_assert!(off <= mean * spread + 2.0 + mean / 10_000.0, "{size} of {mean}");
            }
        }
    }

    #[test]
    fn pieces_differ_where_they_should() {
        let cut = |spread| Cut {
            total: 1_000_000,
            pieces: 10,
            spread: Spread::new(spread),
            seed: 7,
        };
        let sizes: Vec<u64> = (0..10).map(|index| cut(0.5).size(index)).collect();
        assert!(sizes.iter().max() > sizes.iter().min().map(|least| least * 5 / 4).as_ref());
        assert!((0..10).all(|index| cut(0.0).size(index) == 100_000));
    }
}
