//! The files by which the hardware is set.
//!
//! The paths may come from an undo log that somebody damaged, so what is none of these files is refused, and
//! no symbolic link is followed: a file is known by the folder in which it really is.

use std::io;
use std::path::Path;

use super::group_files::{plain, read_any, write_any};

const COOLING: &str = "/sys/devices/virtual/thermal/cooling_device";
const CPUS: &str = "/sys/devices/system/cpu/cpu";

/// The text of a file, without the last newline.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    of_hardware(path)?;
    read_any(path)
}

/// Writes a file.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    of_hardware(path)?;
    write_any(path, value)
}

/// Whether a path is that of a file which may be set.
pub(crate) fn is_known(path: &Path) -> bool {
    plain(path).is_ok() && (is_frequency(path) || is_cooling(path))
}

/// Whether it limits frequencies: `…/cpufreq/policyN/scaling_max_freq`, or `…/cpuN/cpufreq/scaling_max_freq`.
pub(crate) fn is_frequency(path: &Path) -> bool {
    let numbered = |text: &str, before: &str, after: &str| {
        let rest = text
            .rsplit_once(CPUS)
            .and_then(|(_, rest)| rest.strip_prefix(before));
        rest.and_then(|rest| rest.strip_suffix(after))
            .is_some_and(is_number)
    };
    path.to_str().is_some_and(|text| {
        numbered(text, "freq/policy", "/scaling_max_freq")
            || numbered(text, "", "/cpufreq/scaling_max_freq")
    })
}

/// Whether it is the state of a cooling device.
pub(crate) fn is_cooling(path: &Path) -> bool {
    let number = path
        .to_str()
        .and_then(|text| text.rsplit_once(COOLING))
        .and_then(|(_, rest)| rest.strip_suffix("/cur_state"));
    number.is_some_and(is_number)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn of_hardware(path: &Path) -> io::Result<()> {
    match is_known(path) {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is no file by which the hardware is set", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_that_are_set_here_are_known() {
        for path in [
            "/sys/devices/system/cpu/cpufreq/policy12/scaling_max_freq",
            "/made/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
            "/sys/devices/virtual/thermal/cooling_device3/cur_state",
        ] {
            assert!(is_known(Path::new(path)), "{path}");
        }
        for path in [
            "/sys/devices/system/cpu/cpufreq/policy/scaling_max_freq",
            "/sys/devices/system/cpu/cpufreq/policy0/../policy1/scaling_max_freq",
            "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
            "/sys/devices/system/cpu/cpu0/online",
            "/sys/devices/virtual/thermal/cooling_device3/max_state",
            "sys/devices/virtual/thermal/cooling_device3/cur_state",
            "/etc/passwd",
        ] {
            assert!(!is_known(Path::new(path)), "{path}");
            assert!(write(Path::new(path), "0").is_err(), "{path}");
        }
    }
}
