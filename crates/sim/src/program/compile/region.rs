//! Regions, and what their units do.

use super::super::error::Fault;
use super::super::plan::{MOST_THREADS, Op, RegionPlan, UnitPlan};
use super::super::spec::{Join, Region, Schedule, Section};
use super::numbers::{count, fault, spread, time};
use super::{Compiler, MOST_UNITS, MS, Sum, US};
use toml::Spanned;

/// Locks that a unit takes, and that the units of all of a program's parts do.
const MOST_SECTIONS: u64 = 4096;
const MOST_SECTIONS_IN_ALL: u64 = 65_536;

impl Compiler {
    pub(super) fn region(&mut self, region: &Region, demand: usize) -> Result<Sum, Fault> {
        let work_ns = time(&region.work_ms, MS, 1, "work_ms")?;
        let dynamic = region.schedule == Some(Schedule::Dynamic);
        let at = region.work_ms.span();
        let units = region.units.as_ref();
        let units = units
            .map(|n| count(n, 1..=MOST_UNITS, "units"))
            .transpose()?;
        if units.is_none() && (dynamic || !region.locks.is_empty() || region.io_us.is_some()) {
            let reason = "a region that is dynamic, or whose units take locks or wait for a device, says \
                          its number of units";
            return Err(fault(&at, reason));
        }
        if units.is_some_and(|units| units > work_ns) {
            return Err(fault(&at, "each unit takes at least a nanosecond"));
        }
        let join = match &region.join {
            None if self.malleable && dynamic => Join::Work,
            None => Join::All,
            Some(join) if *join.get_ref() == Join::Work && !dynamic => {
                let reason = "only of a dynamic region can the work be done before all have come";
                return Err(fault(&join.span(), reason));
            }
            Some(join) => *join.get_ref(),
        };
        let unit = self.unit(&region.locks, region.io_us.as_ref())?;
        let held = unit.held_ns().saturating_mul(units.unwrap_or(0));
        let threads = region.threads.as_ref();
        let most = MOST_THREADS / self.processes;
        self.ops.push(Op::Region(RegionPlan {
            work_ns,
            dynamic,
            units,
            imbalance: spread(region.imbalance.as_ref(), "imbalance")?,
            unit,
            threads: threads.map(|n| count(n, 1..=most, "threads")).transpose()?,
            join,
            wait: region.wait,
            demand,
        }));
        Ok(Sum::work(work_ns.saturating_add(held)))
    }

    pub(super) fn unit(
        &mut self,
        locks: &[Spanned<Section>],
        io_us: Option<&Spanned<f64>>,
    ) -> Result<UnitPlan, Fault> {
        let mut sections = Vec::new();
        for section in locks {
            let Section {
                name,
                hold_us,
                times,
            } = section.get_ref();
            let lock = self.lock(name.get_ref(), &name.span())?;
            let hold_ns = time(hold_us, US, 0, "hold_us")?;
            let times = times.as_ref().map(|n| count(n, 1..=MOST_SECTIONS, "times"));
            let times = times.transpose()?.unwrap_or(1);
            self.sections += times;
            let own = sections.len() as u64 + times;
            if own > MOST_SECTIONS || self.sections > MOST_SECTIONS_IN_ALL {
                let reason = format!(
                    "a unit takes at most {MOST_SECTIONS} locks, and all parts' units together at most \
                     {MOST_SECTIONS_IN_ALL}"
                );
                return Err(fault(&section.span(), reason));
            }
            sections.extend((0..times).map(|_| (lock, hold_ns)));
        }
        let io_ns = io_us.map(|us| time(us, US, 1, "io_us")).transpose()?;
        Ok(UnitPlan {
            sections,
            io_ns: io_ns.unwrap_or(0),
        })
    }
}
