//! Which numbers of threads are tried, in which order.

use std::collections::BTreeMap;

/// How each number that was tried compares: the logarithm of its time over that of the first one.
pub(super) type Scores = BTreeMap<u32, f64>;

/// Halves are tried on as long as they are not so many times slower than the best (a logarithm).
const HOPELESS: f64 = 0.22;

/// What to try against `best`, the best so far, when up to `most` may be had. `None` when enough was tried.
///
/// Its half and its double first; then halves downwards while they are not hopeless, since a program may have
/// two optima; then the middle between the best and each neighbour that was tried, as long as that can make a
/// difference.
pub(super) fn next_to_try(best: u32, most: u32, scores: &Scores) -> Option<u32> {
    let below = scores.range(..best).next_back().map(|(n, _)| *n);
    let above = scores.range(best + 1..).next().map(|(n, _)| *n);
    if below.is_none() && best > 1 {
        return Some(best / 2);
    }
    if above.is_none() && best < most {
        return Some((best * 2).min(most));
    }
    let (&smallest, &score) = scores.iter().next()?;
    let of_best = scores.get(&best).copied().unwrap_or(0.0);
    if smallest > 1 && score - of_best <= HOPELESS {
        return Some(smallest / 2);
    }
    [above, below].into_iter().flatten().find_map(|neighbour| {
        let gap = neighbour.abs_diff(best);
        // A number that is less than an eighth away is hardly another one.
        (gap >= 2 && gap * 8 >= best).then(|| neighbour.midpoint(best))
    })
}
