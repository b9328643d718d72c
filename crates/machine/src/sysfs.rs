//! The kernel's small files: one value each, in folders that number what there is.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;

use crate::Root;

/// The folder in which each CPU has one.
pub(crate) const CPUS: &str = "/sys/devices/system/cpu";

/// Paths in a folder, in order; none if it cannot be read.
pub(crate) fn entries(root: &Root, folder: &str) -> Vec<String> {
    let Ok(list) = std::fs::read_dir(root.path(folder)) else {
        return Vec::new();
    };
    let names = list.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut paths: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
    paths.sort();
    paths
}

/// What is in a folder by its number, such as `cpu12` of `prefix` `cpu`, ascending; with its path.
pub(crate) fn numbered(root: &Root, folder: &str, prefix: &str) -> Vec<(u32, String)> {
    let mut found: Vec<(u32, String)> = entries(root, folder)
        .into_iter()
        .filter_map(|path| {
            let name = path.rsplit('/').next()?;
            Some((name.strip_prefix(prefix)?.parse().ok()?, path))
        })
        .collect();
    found.sort();
    found
}

/// A file's text without the space around it.
pub(crate) fn text(root: &Root, path: &str) -> Option<String> {
    Some(root.read(path).ok()?.trim().to_owned())
}

/// A file that holds a number.
pub(crate) fn value<T: FromStr>(root: &Root, path: &str) -> Option<T> {
    text(root, path)?.parse().ok()
}

/// The number in a file that is kept open; `None` where it does not answer.
pub(crate) fn again<T: FromStr>(file: &File) -> Option<T> {
    let mut buffer = [0; 32];
    let length = file.read_at(&mut buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..length])
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_order_of_numbers_and_other_names_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        for name in ["cpu10", "cpu2", "cpufreq", "cpu", "online"] {
            std::fs::create_dir_all(root.path(format!("{CPUS}/{name}"))).unwrap();
        }
        let found: Vec<u32> = numbered(&root, CPUS, "cpu").iter().map(|f| f.0).collect();
        assert_eq!(found, [2, 10]);
        assert!(numbered(&root, "/nowhere", "cpu").is_empty());
    }
}
