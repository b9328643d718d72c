//! Model-specific registers of CPUs, through the kernel's `msr` module (`/dev/cpu/N/msr`, msr(4)).
//!
//! Only the registers that are listed here are ever touched, and of them only the bits that are: they are
//! read, and written back with nothing else changed. The numbers and bits are those of Intel's Software
//! Developer's Manual, volume 4, tables 2-2 (IA32 registers), 2-3 (Core 2) and 2-15 (Nehalem and later).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::group_files::{open, plain};
use crate::Root;
use crate::sysfs::numbered;

/// The folder of the CPUs' registers.
pub(crate) const FOLDER: &str = "/dev/cpu";

/// A register, and which bits of it are set here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Register {
    /// MISC_FEATURE_CONTROL: a set bit switches a prefetcher off: that of the L2 cache (0), of its adjacent
    /// line (1), of the L1 data cache (2), and the one of it that goes by instruction addresses (3).
    MiscFeatureControl,
    /// IA32_MISC_ENABLE on Core 2: a set bit switches the hardware prefetcher (9), and that of the adjacent
    /// line (19), off.
    MiscEnable,
    /// IA32_CLOCK_MODULATION: whether the clock is stopped for a part of the time (4), and for how many
    /// eighths of it it runs (1 to 3); bit 0 makes them sixteenths where the processor has that.
    ClockModulation,
}

impl Register {
    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Register::MiscFeatureControl => 0x1a4,
            Register::MiscEnable => 0x1a0,
            Register::ClockModulation => 0x19a,
        }
    }

    /// The bits that are set here.
    pub fn mask(self) -> u64 {
        match self {
            Register::MiscFeatureControl => 0xf,
            Register::MiscEnable => 1 << 9 | 1 << 19,
            Register::ClockModulation => 0x1f,
        }
    }

    /// Bits of it as the undo log writes them.
    pub(crate) fn bits(self, text: &str) -> io::Result<u64> {
        text.strip_prefix("0x")
            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
            .filter(|bits| bits & !self.mask() == 0)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not bits of this register"))
    }
}

/// The bits of a register that are ours.
pub(crate) fn read(path: &Path, register: Register) -> io::Result<u64> {
    Ok(whole(&device(path, OFlags::RDONLY)?, register)? & register.mask())
}

/// Sets the bits of a register that are ours, and no others.
pub(crate) fn write(path: &Path, register: Register, bits: u64) -> io::Result<()> {
    let device = device(path, OFlags::RDWR)?;
    let mask = register.mask();
    let value = whole(&device, register)? & !mask | bits & mask;
    device.write_all_at(&value.to_le_bytes(), u64::from(register.number()))
}

/// Whether a path can be that of a CPU's registers.
pub(crate) fn is_file_of_registers(path: &Path) -> bool {
    let number = path
        .to_str()
        .and_then(|text| text.rsplit_once("/dev/cpu/"))
        .and_then(|(_, rest)| rest.strip_suffix("/msr"));
    plain(path).is_ok() && number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The CPUs whose registers can be seen.
pub(crate) fn cpus(root: &Root) -> Vec<u32> {
    let all = numbered(root, FOLDER, "").into_iter();
    all.filter(|(_, folder)| root.exists(format!("{folder}/msr")))
        .map(|(cpu, _)| cpu)
        .collect()
}

fn device(path: &Path, flags: OFlags) -> io::Result<File> {
    match is_file_of_registers(path) {
        true => open(path, flags),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is no file of a CPU's registers", path.display()),
        )),
    }
}

fn whole(device: &File, register: Register) -> io::Result<u64> {
    let mut bytes = [0; 8];
    device.read_exact_at(&mut bytes, u64::from(register.number()))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("dev/cpu/2/msr");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, [0xff; 0x1b0]).unwrap();
        (folder, path)
    }

    #[test]
    fn only_bits_that_are_ours_change() {
        let (_keep, path) = made();
        write(&path, Register::MiscFeatureControl, 0).unwrap();
        assert_eq!(read(&path, Register::MiscFeatureControl).unwrap(), 0);
        let bytes = std::fs::read(&path).unwrap();
        let changed: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] != 0xff).collect();
        assert_eq!((changed, bytes[0x1a4]), (vec![0x1a4], 0xf0));
    }

    #[test]
    fn bits_of_another_register_are_no_bits_of_it() {
        let register = Register::MiscFeatureControl;
        assert_eq!(register.bits("0xf").unwrap(), 0xf);
        for text in ["0x1f", "15", "", "0x", "0xg"] {
            assert!(register.bits(text).is_err(), "{text:?}");
        }
        assert_eq!(Register::MiscEnable.bits("0x80200").unwrap(), 0x80200);
    }

    #[test]
    fn other_files_are_no_registers() {
        for path in [
            "/dev/cpu/x/msr",
            "/dev/mem",
            "/dev/cpu/0/../1/msr",
            "dev/cpu/0/msr",
        ] {
            assert!(
                read(Path::new(path), Register::MiscEnable).is_err(),
                "{path}"
            );
        }
    }
}
