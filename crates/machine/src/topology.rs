//! The shape of a machine: packages, NUMA nodes, caches, cores and CPUs, as a plain tree. It comes
//! from hwloc, and nobody else needs to know hwloc.
//!
//! hwloc hangs NUMA nodes beside the tree of processors, at whatever object has the same CPUs. Here
//! a NUMA node is a level of the tree like any other: it stands below the package (or above it, if
//! it spans several) and above the caches. A second memory of the same CPUs (high-bandwidth memory)
//! is a node without children. Levels that no decision looks at (groups, dies, L1) are left out,
//! their children move up.

mod place;

use hwlocality::Topology as Hwloc;
use hwlocality::errors::RawHwlocError;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder};
use serde::{Deserialize, Serialize};

use crate::Error;

pub use place::{Place, unknown_place};

/// Descriptions of more CPUs than this are refused, so that a slip of a key cannot fill the memory.
pub const MAX_CPUS: u64 = 16_384;

/// What an object of a topology is, from the whole to the smallest part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The whole.
    Machine,
    /// What sits in a socket.
    Package,
    /// CPUs and the memory nearest to them.
    NumaNode,
    /// A cache of level 3.
    L3,
    /// A cache of level 2.
    L2,
    /// What executes; several CPUs share one where there is simultaneous multithreading.
    Core,
    /// What Linux numbers as a CPU (hwloc: a PU).
    Cpu,
}

/// A part of a machine and what it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// The operating system's number for it, where there is one. A CPU always has one; cores'
    /// numbers are unique only within their package.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub os_index: Option<u32>,
    /// Size of a cache or of a NUMA node's memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size_bytes: Option<u64>,
    /// The CPUs that belong to it, ascending.
    pub cpus: Vec<u32>,
    /// What it is made of, in hwloc's order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<Object>,
}

/// A machine's topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Where it comes from: `this machine`, `XML` or the synthetic description.
    pub origin: String,
    /// The machine.
    pub root: Object,
}

impl Topology {
    /// This machine's, all of it: also CPUs that this process may not use (see
    /// [`crate::effective_cpus`] for those that it may).
    ///
    /// Cost: some milliseconds (more with more CPUs); read it once.
    ///
    /// # Errors
    /// [`Error::Topology`] when hwloc cannot read `/sys`.
    pub fn this_machine() -> Result<Self, Error> {
        let what = "this machine";
        let fail = |why: String| Error::Topology {
            what: what.into(),
            why,
            advice: "check that /sys is mounted and readable",
        };
        let builder = TopologyBuilder::new()
            .with_flags(BuildFlags::INCLUDE_DISALLOWED)
            .map_err(|e| fail(e.to_string()))?
            // hwloc's x86 component asks the processor itself, by moving the calling thread over
            // all CPUs; Linux has told everything that is wanted here.
            .without_component("x86")
            .map_err(|e| fail(e.to_string()))?;
        let hwloc = builder.build().map_err(|e| fail(load(&e)))?;
        Self::of(what, &hwloc).ok_or_else(|| fail("hwloc found no CPU".into()))
    }

    /// One from hwloc's XML, as `lstopo --of xml` writes it.
    ///
    /// # Errors
    /// [`Error::Topology`] when hwloc refuses it.
    pub fn from_xml(xml: &str) -> Result<Self, Error> {
        let fail = |why: String| Error::Topology {
            what: "XML".into(),
            why,
            advice: "make the file with `lstopo FILE.xml` (hwloc 2)",
        };
        let hwloc = TopologyBuilder::new()
            .from_xml(xml)
            .map_err(|e| fail(e.to_string()))?
            .with_flags(BuildFlags::INCLUDE_DISALLOWED)
            .map_err(|e| fail(e.to_string()))?
            .build()
            .map_err(|e| fail(load(&e)))?;
        Self::of("XML", &hwloc).ok_or_else(|| fail("it has no CPU".into()))
    }

    /// One from hwloc's synthetic notation: `package:4 numa:1 l3:1 core:6 pu:1`.
    ///
    /// # Errors
    /// [`Error::Topology`] when hwloc refuses it, or when it would have more than [`MAX_CPUS`].
    pub fn from_synthetic(description: &str) -> Result<Self, Error> {
        let fail = |why: String| Error::Topology {
            what: format!("the synthetic description {description:?}"),
            why,
            advice: "write levels from the largest to the smallest, such as \"package:4 numa:1 l3:1 core:6 pu:1\"",
        };
        let cpus = synthetic_cpus(description);
        if cpus > MAX_CPUS {
            return Err(fail(format!("it has more than {MAX_CPUS} CPUs")));
        }
        let hwloc = TopologyBuilder::new()
            .from_synthetic(description)
            .map_err(|e| fail(e.to_string()))?
            .build()
            .map_err(|e| fail(load(&e)))?;
        Self::of(description, &hwloc).ok_or_else(|| fail("it has no CPU".into()))
    }

    /// `None` when there is no CPU in it.
    fn of(origin: &str, hwloc: &Hwloc) -> Option<Self> {
        let mut objects = convert(hwloc.root_object());
        let root = objects.pop()?;
        (objects.is_empty() && !root.cpus.is_empty()).then(|| Self {
            origin: origin.to_owned(),
            root,
        })
    }

    /// Every object of a kind, in the tree's order.
    pub fn objects(&self, kind: Kind) -> Vec<&Object> {
        fn walk<'a>(object: &'a Object, kind: Kind, found: &mut Vec<&'a Object>) {
            if object.kind == kind {
                found.push(object);
            }
            for child in &object.children {
                walk(child, kind, found);
            }
        }
        let mut found = Vec::new();
        walk(&self.root, kind, &mut found);
        found
    }

    /// How many objects of a kind there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.objects(kind).len()
    }

    /// The machine's CPUs, ascending.
    pub fn cpus(&self) -> &[u32] {
        &self.root.cpus
    }

    /// Where each CPU stands, in the order of their numbers.
    pub fn places(&self) -> Vec<Place> {
        fn walk(object: &Object, mut at: Place, counts: &mut [u32; 5], places: &mut Vec<Place>) {
            let (slot, field) = match object.kind {
                Kind::Package => (0, &mut at.package),
                Kind::NumaNode => (1, &mut at.numa_node),
                Kind::L3 => (2, &mut at.l3),
                Kind::L2 => (3, &mut at.l2),
                Kind::Core => (4, &mut at.core),
                Kind::Cpu => {
                    at.cpu = object.os_index.unwrap_or_default();
                    places.push(at);
                    return;
                }
                Kind::Machine => {
                    for child in &object.children {
                        walk(child, at, counts, places);
                    }
                    return;
                }
            };
            *field = Some(counts[slot]);
            counts[slot] += 1;
            for child in &object.children {
                walk(child, at, counts, places);
            }
        }
        let mut places = Vec::new();
        walk(&self.root, Place::default(), &mut [0; 5], &mut places);
        places.sort_by_key(|p| p.cpu);
        places
    }

    /// One line: `2 CPUs: 1 package, 1 NUMA node, 1 L3, 2 L2, 2 cores`.
    pub fn summary(&self) -> String {
        let counted = |kind, one: &str, many: &str| match self.count(kind) {
            0 => None,
            1 => Some(format!("1 {one}")),
            n => Some(format!("{n} {many}")),
        };
        let levels: Vec<String> = [
            counted(Kind::Package, "package", "packages"),
            counted(Kind::NumaNode, "NUMA node", "NUMA nodes"),
            counted(Kind::L3, "L3", "L3"),
            counted(Kind::L2, "L2", "L2"),
            counted(Kind::Core, "core", "cores"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let cpus = counted(Kind::Cpu, "CPU", "CPUs").unwrap_or_default();
        match levels.is_empty() {
            true => cpus,
            false => format!("{cpus}: {}", levels.join(", ")),
        }
    }
}

/// Why hwloc did not load a topology, in words.
fn load(error: &RawHwlocError) -> String {
    match &error.errno {
        Some(errno) => format!(
            "hwloc cannot load it ({})",
            std::io::Error::from_raw_os_error(errno.0)
        ),
        None => "hwloc cannot load it".to_owned(),
    }
}

/// An upper bound of the CPUs in a synthetic description: the product of the counts of all levels.
/// Memory in brackets (`[numa]`) and attributes in parentheses do not multiply.
fn synthetic_cpus(description: &str) -> u64 {
    let mut plain = String::new();
    let mut depth = 0_u32;
    for c in description.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    plain
        .split_whitespace()
        .filter_map(|level| level.rsplit(':').next()?.parse::<u64>().ok())
        .fold(1, u64::saturating_mul)
}

/// The objects that stand for a hwloc object: itself, or its children where its kind is left out.
fn convert(object: &TopologyObject) -> Vec<Object> {
    let mut children: Vec<Object> = object.normal_children().flat_map(convert).collect();
    let nodes = memory(object);
    let kind = kind(object.object_type());
    // The memory of a machine with one package, which hwloc may hang at the machine: into it.
    if kind == Some(Kind::Machine)
        && let [package] = &mut children[..]
        && package.kind == Kind::Package
        && !nodes.is_empty()
    {
        package.children = wrap(nodes, std::mem::take(&mut package.children));
        return own(object, Kind::Machine, children);
    }
    match kind {
        Some(kind @ (Kind::Machine | Kind::Package)) => own(object, kind, wrap(nodes, children)),
        // Memory at a cache, a core or a group stands above it.
        Some(kind) => wrap(nodes, own(object, kind, children)),
        None => wrap(nodes, children),
    }
}

fn own(object: &TopologyObject, kind: Kind, children: Vec<Object>) -> Vec<Object> {
    let os_index = object.os_index().and_then(|i| u32::try_from(i).ok());
    let cpus = match kind {
        Kind::Cpu => os_index.into_iter().collect(),
        _ => union(&children),
    };
    // A machine's and a cache's numbers say nothing.
    let os_index = os_index.filter(|_| !matches!(kind, Kind::Machine | Kind::L3 | Kind::L2));
    let size_bytes = match object.attributes() {
        Some(ObjectAttributes::Cache(cache)) => cache.size().map(|s| s.get()),
        _ => None,
    };
    vec![Object {
        kind,
        os_index,
        size_bytes,
        cpus,
        children,
    }]
}

fn union(objects: &[Object]) -> Vec<u32> {
    let mut cpus: Vec<u32> = objects.iter().flat_map(|o| &o.cpus).copied().collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// The NUMA nodes that hang at an object, without children, those behind a memory-side cache too.
fn memory(object: &TopologyObject) -> Vec<Object> {
    let mut nodes = Vec::new();
    for child in object.memory_children() {
        if child.object_type() == ObjectType::NUMANode {
            let size_bytes = match child.attributes() {
                Some(ObjectAttributes::NUMANode(node)) => node.local_memory().map(|s| s.get()),
                _ => None,
            };
            nodes.push(Object {
                kind: Kind::NumaNode,
                os_index: child.os_index().and_then(|i| u32::try_from(i).ok()),
                size_bytes,
                cpus: Vec::new(),
                children: Vec::new(),
            });
        }
        nodes.extend(memory(child));
    }
    nodes
}

/// Puts objects into the first of their NUMA nodes; the others stand beside it with the same CPUs.
fn wrap(mut nodes: Vec<Object>, children: Vec<Object>) -> Vec<Object> {
    let cpus = union(&children);
    for node in &mut nodes {
        node.cpus.clone_from(&cpus);
    }
    match nodes.first_mut() {
        Some(first) => {
            first.children = children;
            nodes
        }
        None => children,
    }
}

fn kind(hwloc: ObjectType) -> Option<Kind> {
    match hwloc {
        ObjectType::Machine => Some(Kind::Machine),
        ObjectType::Package => Some(Kind::Package),
        ObjectType::NUMANode => Some(Kind::NumaNode),
        ObjectType::L3Cache => Some(Kind::L3),
        ObjectType::L2Cache => Some(Kind::L2),
        ObjectType::Core => Some(Kind::Core),
        ObjectType::PU => Some(Kind::Cpu),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_packages_of_six_cores() {
        let t = Topology::from_synthetic("package:4 numa:1 l3:1 core:6 pu:1").unwrap();
        assert_eq!(t.cpus().len(), 24);
        assert_eq!(t.count(Kind::Package), 4);
        assert_eq!(t.count(Kind::NumaNode), 4);
        assert_eq!(t.count(Kind::L3), 4);
        assert_eq!(t.count(Kind::Core), 24);
        let package = &t.root.children[3];
        assert_eq!(package.kind, Kind::Package);
        assert_eq!(package.cpus, [18, 19, 20, 21, 22, 23]);
        assert_eq!(package.children[0].kind, Kind::NumaNode);
        assert_eq!(package.children[0].cpus, package.cpus);
        assert_eq!(package.children[0].children[0].kind, Kind::L3);
        let places = t.places();
        assert_eq!(places[7].cpu, 7);
        assert_eq!(places[7].package, Some(1));
        assert_eq!(places[7].core, Some(7));
        assert_eq!(places[7].l2, None);
        assert_eq!(
            t.summary(),
            "24 CPUs: 4 packages, 4 NUMA nodes, 4 L3, 24 cores"
        );
    }

    #[test]
    fn numa_nodes_below_and_above_packages_are_levels() {
        let below = Topology::from_synthetic("package:1 numa:4 l3:2 core:2 pu:2").unwrap();
        assert_eq!(below.count(Kind::Package), 1);
        assert_eq!(below.count(Kind::NumaNode), 4);
        assert_eq!(below.root.children[0].children.len(), 4);
        assert_eq!(below.places()[31].numa_node, Some(3));
        assert_eq!(below.places()[31].l3, Some(7));
        let above = Topology::from_synthetic("numa:2 package:2 core:2 pu:1").unwrap();
        assert_eq!(above.root.children[0].kind, Kind::NumaNode);
        assert_eq!(above.root.children[0].children.len(), 2);
        assert_eq!(above.places()[7].package, Some(3));
    }

    #[test]
    fn two_memories_of_the_same_cpus_do_not_count_cpus_twice() {
        let t = Topology::from_synthetic("package:2 [numa] [numa] core:2 pu:1").unwrap();
        assert_eq!(t.count(Kind::NumaNode), 4);
        assert_eq!(t.count(Kind::Cpu), 4);
        assert_eq!(t.places().len(), 4);
    }

    #[test]
    fn simultaneous_multithreading_puts_two_cpus_on_a_core() {
        let t = Topology::from_synthetic("package:1 core:4 pu:2").unwrap();
        assert_eq!(t.count(Kind::Core), 4);
        assert!(t.objects(Kind::Core).iter().all(|c| c.cpus.len() == 2));
    }

    #[test]
    fn bad_descriptions_are_refused_with_advice() {
        for text in [
            "",
            "nonsense",
            "core:0",
            "pu:1 core:2",
            "core:100000 pu:100000",
        ] {
            let error = Topology::from_synthetic(text).unwrap_err().to_string();
            assert!(error.contains("package:4"), "{text}: {error}");
        }
    }

    #[test]
    fn bad_xml_is_refused() {
        for text in [
            "",
            "<topology",
            "no xml",
            "<topology version=\"2.0\"></topology>",
        ] {
            assert!(Topology::from_xml(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_topology_survives_json() {
        let t = Topology::from_synthetic("package:2 l3:1 l2:2 core:1 pu:2").unwrap();
        let text = serde_json::to_string(&t).unwrap();
        assert_eq!(serde_json::from_str::<Topology>(&text).unwrap(), t);
    }

    #[test]
    fn this_machine_has_the_cpus_that_this_thread_may_use() {
        let t = Topology::this_machine().unwrap();
        for cpu in crate::affinity::of(0).unwrap() {
            assert!(t.cpus().contains(&cpu), "{cpu} is not in {:?}", t.cpus());
        }
        assert!(t.count(Kind::Core) >= 1);
    }
}
