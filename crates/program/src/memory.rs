//! Memory that follows a claim to other NUMA nodes.

use crate::error::MemoryError;
use crate::mask::{Mask, parse_list};
use crate::sys;
use std::io;
use std::path::Path;

/// What became of the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// There was nothing to do: the claim has CPUs of every node that has memory, or the machine has
    /// one node only.
    NothingToDo,
    /// Pages elsewhere were moved to the claim's nodes.
    Moved {
        /// Pages that could not be moved (locked, shared with other processes).
        left: u64,
    },
}

const NODES: &str = "/sys/devices/system/node";

/// Moves the process's pages to the nodes of `cpus`.
pub(crate) fn follow(cpus: &Mask) -> Result<Moved, MemoryError> {
    let Some((from, to)) = plan(Path::new(NODES), cpus)? else {
        return Ok(Moved::NothingToDo);
    };
    match sys::migrate_pages(&from, &to) {
        Ok(left) => Ok(Moved::Moved { left }),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EPERM) => MemoryError::NotAllowed(error),
            Some(libc::ENOSYS) => MemoryError::NotSupported(error),
            _ => MemoryError::System(error),
        }),
    }
}

/// From which nodes to which; `None` if there is nothing to do. `nodes` is the kernel's folder.
fn plan(nodes: &Path, cpus: &Mask) -> Result<Option<(Mask, Mask)>, MemoryError> {
    // A kernel without NUMA has no such folder.
    if !nodes.exists() {
        return Ok(None);
    }
    let with_memory = list(&nodes.join("has_memory"))?;
    let mut to = Mask::default();
    for node in with_memory.iter() {
        let local = list(&nodes.join(format!("node{node}/cpulist")))?;
        if !local.intersection(cpus).is_empty() {
            to.insert(node);
        }
    }
    let from: Mask = with_memory.iter().filter(|&n| !to.contains(n)).collect();
    // CPUs of nodes without memory: nowhere to go.
    Ok((!from.is_empty() && !to.is_empty()).then_some((from, to)))
}

fn list(path: &Path) -> Result<Mask, MemoryError> {
    let fail = |source| MemoryError::Nodes {
        path: path.display().to_string(),
        source,
    };
    let text = std::fs::read_to_string(path).map_err(fail)?;
    parse_list(&text).ok_or_else(|| fail(io::Error::new(io::ErrorKind::InvalidData, "no list")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(nodes: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let last = nodes.len() - 1;
        std::fs::write(folder.path().join("has_memory"), format!("0-{last}\n")).unwrap();
        for (node, cpus) in nodes.iter().enumerate() {
            let node = folder.path().join(format!("node{node}"));
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), cpus).unwrap();
        }
        folder
    }

    #[test]
    fn memory_goes_to_the_nodes_of_the_claim() {
        let machine = machine(&["0-3", "4-7", "8-11"]);
        let cpus: Mask = [5, 9].into_iter().collect();
        let (from, to) = plan(machine.path(), &cpus).unwrap().unwrap();
        assert_eq!(from.iter().collect::<Vec<_>>(), [0]);
        assert_eq!(to.iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn on_one_node_there_is_nothing_to_do() {
        let machine = machine(&["0-3"]);
        let cpus: Mask = [1].into_iter().collect();
        assert_eq!(plan(machine.path(), &cpus).unwrap(), None);
    }

    #[test]
    fn a_claim_of_every_node_has_nothing_to_do() {
        let machine = machine(&["0-1", "2-3"]);
        let cpus: Mask = [0, 2].into_iter().collect();
        assert_eq!(plan(machine.path(), &cpus).unwrap(), None);
    }

    #[test]
    fn a_machine_that_cannot_be_read_is_an_error_that_names_the_file() {
        let machine = machine(&["0-1", "2-3"]);
        std::fs::remove_file(machine.path().join("node1/cpulist")).unwrap();
        let error = plan(machine.path(), &[0].into_iter().collect()).unwrap_err();
        assert!(error.to_string().contains("node1/cpulist"), "{error}");
    }

    #[test]
    fn a_kernel_without_numa_has_nothing_to_do() {
        let cpus: Mask = [0].into_iter().collect();
        assert_eq!(plan(Path::new("/nowhere"), &cpus).unwrap(), None);
    }
}
