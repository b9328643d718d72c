//! Numbers within their bounds.

use super::super::error::Fault;
use super::super::share::Spread;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;

/// The longest time or work that is said at one place, in nanoseconds: about 11 days; the largest sum of
/// many: about a year.
const LONGEST_NS: f64 = 1e15;
const LARGEST_NS: u64 = 1 << 55;

pub(super) fn fault(span: &Range<usize>, reason: impl Into<String>) -> Fault {
    Fault {
        span: span.clone(),
        reason: reason.into(),
    }
}

pub(super) fn count<T: Copy + PartialOrd + Display>(
    number: &Spanned<T>,
    bounds: RangeInclusive<T>,
    what: &str,
) -> Result<T, Fault> {
    if bounds.contains(number.get_ref()) {
        return Ok(*number.get_ref());
    }
    let (least, most) = bounds.into_inner();
    let reason = format!("{what} is {least} to {most}, not {}", number.get_ref());
    Err(fault(&number.span(), reason))
}

pub(super) fn fraction(number: &Spanned<f64>, what: &str) -> Result<f64, Fault> {
    if (0.0..=1.0).contains(number.get_ref()) {
        return Ok(*number.get_ref());
    }
    let reason = format!("{what} is 0 to 1, not {}", number.get_ref());
    Err(fault(&number.span(), reason))
}

/// A time in nanoseconds, said in units of `unit_ns`; `least` nanoseconds at least.
pub(super) fn time(
    number: &Spanned<f64>,
    unit_ns: f64,
    least: u64,
    what: &str,
) -> Result<u64, Fault> {
    let ns = *number.get_ref() * unit_ns + 0.5;
    if (0.0..=LONGEST_NS).contains(&ns) && ns as u64 >= least {
        return Ok(ns as u64);
    }
    let (least, most) = (least as f64 / unit_ns, LONGEST_NS / unit_ns);
    let reason = format!("{what} is {least} to {most}, not {}", number.get_ref());
    Err(fault(&number.span(), reason))
}

/// The work of many pieces.
pub(super) fn product(each_ns: u64, pieces: u64, span: &Range<usize>) -> Result<u64, Fault> {
    let all = each_ns.checked_mul(pieces).filter(|all| *all <= LARGEST_NS);
    all.ok_or_else(|| {
        let reason = format!("{pieces} times {each_ns} ns is more than a year of work");
        fault(span, reason)
    })
}

pub(super) fn spread(of_mean: Option<&Spanned<f64>>, what: &str) -> Result<Spread, Fault> {
    let of_mean = of_mean.map(|part| fraction(part, what)).transpose()?;
    Ok(of_mean.map_or(Spread::NONE, Spread::new))
}
