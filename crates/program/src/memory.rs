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

/// A NUMA node that has memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    number: u32,
    /// The CPUs that are next to it.
    cpus: Mask,
}

/// The pages of one node that go to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    from: u32,
    to: u32,
}

/// Moves the process's pages to the nodes of `cpus`.
pub(crate) fn follow(cpus: &Mask) -> Result<Moved, MemoryError> {
    let steps = plan(&nodes(Path::new(NODES))?, cpus);
    if steps.is_empty() {
        return Ok(Moved::NothingToDo);
    }
    let mut left = 0;
    for step in steps {
        left += carry_out(step)?;
    }
    Ok(Moved::Moved { left })
}

/// How many pages could not be moved.
fn carry_out(step: Step) -> Result<u64, MemoryError> {
    let only = |node| [node].into_iter().collect();
    sys::migrate_pages(&only(step.from), &only(step.to)).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EPERM) => MemoryError::NotAllowed(error),
            Some(libc::ENOSYS) => MemoryError::NotSupported(error),
            _ => MemoryError::System(error),
        }
    })
}

/// Which pages go where: those of each node that the claim has no CPU of go to one that it has, in turn.
/// (Not all at once by one call for two sets of nodes: there the kernel chooses, and it takes the
/// first of several for the pages of a single node, too.) Empty if there is nothing to do: the claim has CPUs
/// of every node, or of none that has memory.
fn plan(nodes: &[Node], cpus: &Mask) -> Vec<Step> {
    let (to, from): (Vec<&Node>, Vec<&Node>) = nodes
        .iter()
        .partition(|node| !node.cpus.intersection(cpus).is_empty());
    let steps = from.into_iter().zip(to.into_iter().cycle());
    steps
        .map(|(from, to)| Step {
            from: from.number,
            to: to.number,
        })
        .collect()
}

/// The nodes that have memory. `folder` is the kernel's; a kernel without NUMA has none.
fn nodes(folder: &Path) -> Result<Vec<Node>, MemoryError> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let with_memory = list(&folder.join("has_memory"))?;
    let node = |number| {
        let cpus = list(&folder.join(format!("node{number}/cpulist")))?;
        Ok(Node { number, cpus })
    };
    with_memory.iter().map(node).collect()
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

    fn mask(cpus: &[u32]) -> Mask {
        cpus.iter().copied().collect()
    }

    /// Nodes of four CPUs each.
    fn four_each(numbers: &[u32]) -> Vec<Node> {
        let nodes = numbers.iter().zip(0..);
        nodes
            .map(|(&number, index)| Node {
                number,
                cpus: (4 * index..4 * index + 4).collect(),
            })
            .collect()
    }

    fn steps(nodes: &[Node], cpus: &[u32]) -> Vec<(u32, u32)> {
        let plan = plan(nodes, &mask(cpus));
        plan.iter().map(|step| (step.from, step.to)).collect()
    }

    #[test]
    fn on_two_nodes_pages_go_to_the_one_of_the_claim_and_back() {
        let nodes = four_each(&[0, 1]);
        assert_eq!(steps(&nodes, &[4, 5]), [(0, 1)]);
        assert_eq!(steps(&nodes, &[3]), [(1, 0)]);
        assert_eq!(steps(&nodes, &[3, 4]), [], "it has CPUs of both");
        assert_eq!(steps(&nodes, &[]), [], "of none");
        assert_eq!(steps(&nodes, &[99]), [], "of a node without memory");
    }

    #[test]
    fn several_nodes_share_what_comes_to_them() {
        let nodes = four_each(&[0, 2, 3, 7]);
        assert_eq!(steps(&nodes, &[12]), [(0, 7), (2, 7), (3, 7)]);
        assert_eq!(steps(&nodes, &[4, 12]), [(0, 2), (3, 7)]);
        assert_eq!(steps(&nodes, &[0, 1, 4, 8]), [(7, 0)]);
    }

    #[test]
    fn nodes_are_read_as_the_kernel_lists_them() {
        let machine = machine(&["0-3", "4-7,12", "8-11"]);
        std::fs::write(machine.path().join("has_memory"), "0,2\n").unwrap();
        let nodes = nodes(machine.path()).unwrap();
        let read: Vec<_> = nodes.iter().map(|n| (n.number, n.cpus.count())).collect();
        assert_eq!(read, [(0, 4), (2, 4)]);
        assert_eq!(steps(&nodes, &[9]), [(0, 2)]);
        assert_eq!(steps(&nodes, &[4]), [], "its node has no memory");
    }

    #[test]
    fn on_one_node_there_is_nothing_to_do() {
        assert_eq!(steps(&four_each(&[0]), &[1]), []);
    }

    #[test]
    fn a_machine_that_cannot_be_read_is_an_error_that_names_the_file() {
        let machine = machine(&["0-1", "2-3"]);
        std::fs::remove_file(machine.path().join("node1/cpulist")).unwrap();
        let error = nodes(machine.path()).unwrap_err();
        assert!(error.to_string().contains("node1/cpulist"), "{error}");
    }

    #[test]
    fn a_kernel_without_numa_has_no_nodes() {
        assert_eq!(nodes(Path::new("/nowhere")).unwrap(), []);
    }

    /// Pages of this test's own, with something in each.
    fn touched() -> Vec<u8> {
        let page = rustix::param::page_size();
        let mut bytes = vec![0; 64 * page];
        for (index, page) in bytes.chunks_mut(page).enumerate() {
            page[0] = index as u8;
        }
        bytes
    }

    /// On a machine of one node this shows that the kernel takes the calls and where it says that the
    /// pages are; that they move shows where there are two.
    #[test]
    fn the_kernel_moves_pages_from_node_to_node_and_says_where_they_are() {
        let all = nodes(Path::new(NODES)).unwrap();
        let bytes = touched();
        let before = match sys::nodes_of(&bytes) {
            Ok(before) => before,
            Err(error) => {
                eprintln!("skipped: where pages are cannot be asked here ({error})");
                return;
            }
        };
        let numbers: Vec<u32> = all.iter().map(|node| node.number).collect();
        assert!(before.iter().all(|on| numbers.contains(on)), "{before:?}");
        if all.len() < 2 {
            eprintln!("one node with memory: that pages move is not seen here");
        }
        for to in &all {
            // From everywhere, also from where they are to go: that moves nothing.
            for from in &all {
                let (from, to) = (from.number, to.number);
                match carry_out(Step { from, to }) {
                    // Others' pages may stay, as those of shared libraries.
                    Ok(_) => {}
                    Err(MemoryError::NotAllowed(error)) => {
                        eprintln!("skipped: pages cannot be moved here ({error})");
                        return;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            let now = sys::nodes_of(&bytes).unwrap();
            assert!(now.iter().all(|on| *on == to.number), "{now:?}");
        }
        let whole = bytes.chunks(rustix::param::page_size()).zip(0..);
        assert!(
            whole
                .into_iter()
                .all(|(page, index): (_, u8)| page[0] == index)
        );
    }
}
