//! Sharing a number of threads among programs.

use crate::status::ProgramId;
use std::collections::BTreeMap;

/// What a program could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) program: ProgramId,
    /// It has these in any case.
    pub(super) least: u32,
    /// It can use no more; at least `least`.
    pub(super) most: u32,
    /// What it has now: of two that have the same claim to a thread, the one that has it keeps it.
    pub(super) has: u32,
    /// Whether it uses what it has now: of two that are otherwise equal, it gets a thread first.
    pub(super) busy: bool,
}

/// Gives everyone their least, then one thread after the other to whoever has fewest and can use more,
/// until `available` threads are given. So nobody has two threads more than another who could use
/// one more.
pub(super) fn share(available: u32, wishes: &[Wish]) -> BTreeMap<ProgramId, u32> {
    let mut shares: Vec<(Wish, u32)> = wishes.iter().map(|w| (*w, w.least)).collect();
    let given = shares.iter().fold(0_u32, |sum, s| sum.saturating_add(s.1));
    for _ in given..available {
        let next = shares
            .iter_mut()
            .filter(|(wish, share)| *share < wish.most)
            .min_by_key(|(wish, share)| (*share, wish.has <= *share, !wish.busy, wish.program));
        let Some((_, share)) = next else { break };
        *share += 1;
    }
    shares
        .iter()
        .map(|(w, share)| (w.program, *share))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(program: u64, least: u32, most: u32, has: u32) -> Wish {
        Wish {
            program: ProgramId(program),
            least,
            most,
            has,
            busy: false,
        }
    }

    fn shares(available: u32, wishes: &[Wish]) -> Vec<u32> {
        share(available, wishes).into_values().collect()
    }

    #[test]
    fn what_one_cannot_use_goes_to_the_others() {
        let wishes = [wish(1, 1, 2, 0), wish(2, 1, 8, 0), wish(3, 1, 8, 0)];
        assert_eq!(shares(8, &wishes), [2, 3, 3]);
    }

    #[test]
    fn the_odd_thread_stays_with_the_one_who_has_it() {
        let wishes = [wish(1, 1, 8, 1), wish(2, 1, 8, 2)];
        assert_eq!(shares(3, &wishes), [1, 2]);
    }

    #[test]
    fn the_odd_thread_goes_to_the_one_who_uses_what_it_has() {
        let busy = Wish {
            busy: true,
            ..wish(2, 1, 8, 2)
        };
        assert_eq!(shares(5, &[wish(1, 1, 8, 2), busy]), [2, 3]);
    }

    #[test]
    fn everyone_has_their_least_even_if_there_is_not_enough() {
        let wishes = [wish(1, 3, 8, 0), wish(2, 1, 8, 0)];
        assert_eq!(shares(2, &wishes), [3, 1]);
    }
}
