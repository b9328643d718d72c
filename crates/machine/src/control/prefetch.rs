//! Hardware prefetchers, through the registers of Intel's processors.

use super::registers::{self, Register};
use super::{Error, processor};
use crate::Root;
use crate::undo::{Report, Setting, UndoLog};

const WHAT: &str = "switching prefetchers";

/// Switches hardware prefetchers, through an undo log.
#[derive(Clone, Debug)]
pub struct PrefetchControl<'log> {
    log: &'log UndoLog,
    root: Root,
    register: Register,
}

impl<'log> PrefetchControl<'log> {
    /// A control that writes to this log.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the processor's prefetchers cannot be switched, or nobody knows how.
    pub fn new(log: &'log UndoLog, root: &Root) -> Result<Self, Error> {
        let register = register(root).map_err(|why| Error::Unavailable { what: WHAT, why })?;
        let root = root.clone();
        Ok(Self {
            log,
            root,
            register,
        })
    }

    /// Switches the prefetchers of these CPUs' cores. On means those that were on at first, or all if none
    /// was. The CPUs of one core share its prefetchers. Costs two or three reads and
    /// a write for each CPU, and a line in the log.
    ///
    /// # Errors
    /// [`Error::Write`] without the right to, [`Error::Gone`] for a CPU that is offline or has no file of
    /// registers. Some of the CPUs may be switched then.
    pub fn switch(&self, cpus: &[u32], on: bool) -> Result<(), Error> {
        let off = self.register.mask();
        for cpu in cpus {
            let what = self.setting(*cpu);
            let first = self.log.original(&what).or(what.present()?);
            let first = first.and_then(|text| self.register.bits(&text).ok());
            let bits = match on {
                true => first.filter(|bits| *bits != off).unwrap_or(0),
                false => off,
            };
            self.log.set(&what, &format!("{bits:#x}"))?;
        }
        Ok(())
    }

    /// Puts the prefetchers of these CPUs back, where they are still as they were switched here.
    pub fn release(&self, cpus: &[u32]) -> Report {
        let settings: Vec<Setting> = cpus.iter().map(|cpu| self.setting(*cpu)).collect();
        self.log.restore(|what| settings.contains(what))
    }

    fn setting(&self, cpu: u32) -> Setting {
        Setting::Register {
            path: self.root.path(format!("{}/{cpu}/msr", registers::FOLDER)),
            register: self.register,
        }
    }
}

/// The register that switches this processor's prefetchers; why there is none.
pub(crate) fn register(root: &Root) -> Result<Register, String> {
    let model = processor::intel(root)?;
    match model {
        // Core 2 (Merom, Conroe, Penryn, Yorkfield) and the Xeons of its time.
        0x0f | 0x16 | 0x17 | 0x1d => Ok(Register::MiscEnable),
        // Bonnell and Saltwell (Atom), and Xeon Phi, have other bits.
        0x1c | 0x26 | 0x27 | 0x35 | 0x36 | 0x57 | 0x85 => Err(format!(
            "how the prefetchers of this processor (family 6, model {model:#x}) are switched is not known"
        )),
        // From Nehalem on.
        0x1a.. => Ok(Register::MiscFeatureControl),
        _ => Err(format!(
            "this processor (family 6, model {model:#x}) is older than Core 2"
        )),
    }
}
