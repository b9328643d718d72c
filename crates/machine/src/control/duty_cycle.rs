//! For how much of the time CPUs run.
//!
//! Two ways, the first that is there: the clock of single CPUs is stopped for some eighths of the time
//! (IA32_CLOCK_MODULATION, through the kernel's module msr); or the kernel's intel_powerclamp makes all CPUs
//! idle together (Documentation/admin-guide/thermal/intel_powerclamp.rst), which saves more, and cannot be
//! asked for less than the whole machine.

use super::registers::{self, Register};
use super::{Error, processor};
use crate::sysfs::{CPUS, numbered, text, value};
use crate::undo::{Report, Setting, UndoLog};
use crate::{Root, cpu_list};

const WHAT: &str = "setting a duty cycle";
const COOLING: &str = "/sys/devices/virtual/thermal";

/// Sets duty cycles, through an undo log.
#[derive(Clone, Debug)]
pub struct DutyCycleControl<'log> {
    log: &'log UndoLog,
    root: Root,
    by: By,
}

/// How it is done on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Each CPU's clock.
    Clock,
    /// A cooling device in this folder, with so many percent of idle time at most.
    Powerclamp { folder: String, most: u32 },
}

impl<'log> DutyCycleControl<'log> {
    /// A control that writes to this log.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: this machine has neither of the two ways.
    pub fn new(log: &'log UndoLog, root: &Root) -> Result<Self, Error> {
        let by = by(root).map_err(|why| Error::Unavailable { what: WHAT, why })?;
        let root = root.clone();
        Ok(Self { log, root, by })
    }

    /// Lets these CPUs run for `percent` of the time, as near to it as the hardware can: at least 1, and 100
    /// for always. Where a core has several CPUs, it runs for as long as the one that runs longest: name all
    /// of them.
    ///
    /// # Errors
    /// [`Error::Refused`] where only the whole machine can be slowed down; [`Error::Write`] without the right
    /// to. Some of the CPUs may be set then.
    pub fn set(&self, cpus: &[u32], percent: u32) -> Result<(), Error> {
        let percent = percent.clamp(1, 100);
        match &self.by {
            By::Clock => {
                let bits = clock_bits(percent);
                for cpu in cpus {
                    self.log.set(&self.clock(*cpu), &format!("{bits:#x}"))?;
                }
            }
            By::Powerclamp { folder, most } => {
                let online = text(&self.root, &format!("{CPUS}/online"));
                let all = online
                    .and_then(|list| cpu_list::parse(&list))
                    .unwrap_or_default();
                if !all.iter().all(|cpu| cpus.contains(cpu)) {
                    return Err(Error::Refused {
                        what: format!("slowing down CPUs {} alone", cpu_list::format(cpus)),
                        why: "intel_powerclamp slows down the whole machine: name all its CPUs, or load the module msr".into(),
                    });
                }
                let idle = (100 - percent).min(*most);
                self.log.set(&self.device(folder), &idle.to_string())?;
            }
        }
        Ok(())
    }

    /// Lets these CPUs run as they did, where what was set here is still set.
    pub fn release(&self, cpus: &[u32]) -> Report {
        let settings: Vec<Setting> = match &self.by {
            By::Clock => cpus.iter().map(|cpu| self.clock(*cpu)).collect(),
            By::Powerclamp { folder, .. } => vec![self.device(folder)],
        };
        self.log.restore(|what| settings.contains(what))
    }

    fn clock(&self, cpu: u32) -> Setting {
        Setting::Register {
            path: self.root.path(format!("{}/{cpu}/msr", registers::FOLDER)),
            register: Register::ClockModulation,
        }
    }

    fn device(&self, folder: &str) -> Setting {
        Setting::HardwareFile {
            path: self.root.path(format!("{folder}/cur_state")),
        }
    }
}

/// How it is done here; why it cannot be.
pub(crate) fn by(root: &Root) -> Result<By, String> {
    // `acpi` is the name of the feature that brought the register.
    let clock = processor::intel(root).is_ok() && processor::has(root, "acpi");
    if clock && !registers::cpus(root).is_empty() {
        return Ok(By::Clock);
    }
    let devices = numbered(root, COOLING, "cooling_device").into_iter();
    let clamp = devices.map(|(_, folder)| folder).find(|folder| {
        text(root, &format!("{folder}/type")).as_deref() == Some("intel_powerclamp")
    });
    match clamp {
        Some(folder) => Ok(By::Powerclamp {
            most: value(root, &format!("{folder}/max_state")).unwrap_or(50),
            folder,
        }),
        None => Err("neither registers of an Intel processor (/dev/cpu/*/msr, modprobe msr) nor the cooling device intel_powerclamp (modprobe intel_powerclamp)".into()),
    }
}

/// The clock runs for so many eighths of the time; for all of it without modulation.
fn clock_bits(percent: u32) -> u64 {
    const ENABLE: u64 = 1 << 4;
    let eighths = (u64::from(percent) * 8 + 50) / 100;
    match eighths {
        8.. => 0,
        eighths => ENABLE | eighths.max(1) << 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duty_cycle_is_the_nearest_number_of_eighths() {
        let bits: Vec<u64> = [1, 25, 50, 56, 57, 93, 94, 100].map(clock_bits).to_vec();
        assert_eq!(bits, [0x12, 0x14, 0x18, 0x18, 0x1a, 0x1e, 0, 0]);
    }
}
