//! What of the hardware is read: only what the policy decides by.

use corewise_decide::cpus::CpuSet;
use corewise_decide::policy::Policy;
use corewise_decide::reading::MachineReading;
use corewise_machine::Root;
use corewise_machine::counters::InstructionReader;
use corewise_machine::heat::HeatReader;

/// See the module.
#[derive(Debug)]
pub(crate) struct HardwareSensors {
    root: Root,
    heat: Option<HeatReader>,
    instructions: Instructions,
    /// What earlier counters had counted: CPUs that come and go are no reason to begin again.
    counted: u64,
}

#[derive(Debug)]
enum Instructions {
    Unwanted,
    /// On these CPUs.
    Counted(InstructionReader, CpuSet),
    /// They cannot be, which was said.
    Refused,
}

impl HardwareSensors {
    /// Nothing is read yet.
    pub(crate) fn new(root: Root) -> HardwareSensors {
        HardwareSensors {
            root,
            heat: None,
            instructions: Instructions::Unwanted,
            counted: 0,
        }
    }

    /// Reads from now on what this policy wants, of these CPUs. What cannot be read, and why, is said once.
    pub(crate) fn follow(&mut self, policy: &dyn Policy, cpus: &CpuSet) -> Option<String> {
        match policy.wants_heat() {
            true if self.heat.is_none() => self.heat = Some(HeatReader::open(&self.root)),
            true => {}
            false => self.heat = None,
        }
        let wanted = policy.decides().instructions;
        match &mut self.instructions {
            Instructions::Counted(_, on) if wanted && on == cpus => return None,
            Instructions::Counted(reader, _) => self.counted += reader.read().unwrap_or(0),
            Instructions::Refused if wanted => return None,
            Instructions::Refused | Instructions::Unwanted => {}
        }
        if !wanted {
            self.instructions = Instructions::Unwanted;
            return None;
        }
        match InstructionReader::open(&self.root, cpus.iter()) {
            Ok(reader) => {
                self.instructions = Instructions::Counted(reader, cpus.clone());
                None
            }
            Err(error) => {
                self.instructions = Instructions::Refused;
                Some(format!(
                    "instructions cannot be counted: {error}; corewise machine says what would help"
                ))
            }
        }
    }

    /// Adds what is read to a reading.
    pub(crate) fn read(&mut self, machine: &mut MachineReading) {
        if let Some(heat) = &self.heat {
            machine.heat = heat.read();
        }
        if let Instructions::Counted(reader, _) = &mut self.instructions {
            machine.instructions = reader.read().map(|now| self.counted + now);
        }
    }
}
