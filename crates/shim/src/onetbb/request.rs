//! What can be asked for, and whether it makes sense. Pure.

use super::share::{Mask, Part};

/// What a request, or another call, has wrong about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

/// One part of a request. `None` leaves a number to us.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartRequest {
    pub(crate) min: Option<u32>,
    pub(crate) max: Option<u32>,
    pub(crate) mask: Option<Mask>,
    /// The mask is one of several, and which is not known before there is something to run on it.
    pub(crate) any: bool,
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) min: Option<u32>,
    pub(crate) max: Option<u32>,
    pub(crate) priority: i32,
    /// Its number must not change while it is active.
    pub(crate) rigid: bool,
    /// It is for later.
    pub(crate) as_inactive: bool,
    /// Empty: one part, anywhere.
    pub(crate) parts: Vec<PartRequest>,
}

impl Request {
    /// With all numbers known, where `cpus` is what there is of them: the minimum, the maximum, the parts.
    pub(super) fn bounds(&self, cpus: u32) -> Result<(u32, u32, Vec<Part>), Invalid> {
        let mut parts = Vec::with_capacity(self.parts.len().max(1));
        for part in &self.parts {
            let weight = part.mask.as_ref().map(Mask::weight).filter(|w| *w > 0);
            let min = part.min.unwrap_or(0);
            let max = part.max.or(weight).ok_or(Invalid)?;
            if max < min {
                return Err(Invalid);
            }
            let mask = part.mask.clone();
            parts.push(Part { min, max, mask });
        }
        // The interface's numbers have a sign.
        let largest = u32::MAX >> 1;
        let sum = |of: fn(&Part) -> u32| {
            let mut all = parts.iter().map(of);
            let sum = all.try_fold(0u32, |sum, n| sum.checked_add(n));
            sum.filter(|sum| *sum <= largest).ok_or(Invalid)
        };
        let (least, most) = match parts.is_empty() {
            true => (0, largest),
            false => (sum(|p| p.min)?, sum(|p| p.max)?),
        };
        let min = self.min.unwrap_or(least);
        let max = self.max.unwrap_or(most.min(cpus).max(min));
        if min < least || max < min || max > most {
            return Err(Invalid);
        }
        if parts.is_empty() {
            let mask = None;
            parts.push(Part { min: 0, max, mask });
        }
        Ok((min, max, parts))
    }
}
