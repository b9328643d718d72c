//! Deferred calls follow the claim: as many threads may process them as the claim has.

use crate::Claim;

impl corewise_defer::Capacity for Claim {
    fn threads(&self) -> u32 {
        Claim::threads(self)
    }
}
