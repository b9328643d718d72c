//! What tells one machine from another, as far as results of a search depend on it.

use crate::{Root, cpu_list};

/// The CPUs' model as `/proc/cpuinfo` names it; empty where it names none.
pub fn cpu_model(root: &Root) -> String {
    let text = std::fs::read_to_string(root.path("/proc/cpuinfo")).unwrap_or_default();
    // x86 says "model name", 64-bit Arm only numbers of implementer and part.
    let field = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    field("model name").unwrap_or_else(|| {
        ["CPU implementer", "CPU part"]
            .iter()
            .filter_map(|name| field(name))
            .collect::<Vec<_>>()
            .join(" ")
    })
}

/// CPUs that are online on the whole machine; at least 1.
pub fn cpus_online(root: &Root) -> u32 {
    let listed = std::fs::read_to_string(root.path("/sys/devices/system/cpu/online"))
        .ok()
        .and_then(|text| cpu_list::parse(text.trim()))
        .map_or(0, |cpus| cpus.len());
    u32::try_from(listed).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn the_model_is_named_on_x86_and_numbered_on_arm() {
        let (_x86, root) =
            root_with(&[("proc/cpuinfo", "model\t: 8\nmodel name\t: Opteron 8431\n")]);
        assert_eq!(cpu_model(&root), "Opteron 8431");
        let (_arm, root) = root_with(&[(
            "proc/cpuinfo",
            "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
        )]);
        assert_eq!(cpu_model(&root), "0x41 0xd0c");
    }

    #[test]
    fn online_cpus_are_counted_over_gaps() {
        let (_keep, root) = root_with(&[("sys/devices/system/cpu/online", "0-3,6-7\n")]);
        assert_eq!(cpus_online(&root), 6);
        let (_keep, root) = root_with(&[]);
        assert_eq!(cpus_online(&root), 1);
    }
}
