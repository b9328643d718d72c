//! Eraser's question: is there a lock that is held at every access?
//!
//! After Savage, Burrows, Nelson, Sobalvarro and Anderson, *Eraser: A Dynamic Data Race Detector for
//! Multithreaded Programs* (TOCS 1997), sections 2 and 3, with the refinements of Bodden and Havelund, *Racer:
//! Effective Race Detection Using AspectJ* (ISSTA 2008): what one thread did before it started others, or
//! after it joined them, is no reason to report.
//!
//! Eraser refines one set of locks for each variable as accesses come, and leaves the state "exclusive" with
//! the first access of a second thread: what it says depends on the order. Here the same is asked of each
//! pair of accesses, so that the order in which they are compared does not matter: two accesses race if no
//! lock was held at both (for writing at one of them at least), and neither comes before the other by
//! creation, join, barrier, condition variable or an atomic operation; locks themselves order nothing.

use super::access::Access;
use super::search::Search;

/// Whether two conflicting accesses race by this question.
pub(super) fn race(search: &Search<'_>, one: &Access, other: &Access) -> bool {
    let locks = |access: &Access| search.locks_of(search.site_of(access.site).locks);
    let (mine, theirs) = (locks(one), locks(other));
    !have_common(&mine, &theirs) && !search.ordered(one, other)
}

/// Whether two sets have a lock in common that one of them at least has not only for reading.
fn have_common(mine: &[u64], theirs: &[u64]) -> bool {
    mine.iter().any(|lock| {
        theirs
            .iter()
            .any(|other| lock & !1 == other & !1 && lock & other & 1 == 0)
    })
}
