//! A profile with names: who called whom, what was allocated where. What is shown is made from this.

use crate::names::Names;
use crate::read::{Found, Losses};
use std::collections::BTreeMap;

/// A function of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name, demangled; its file and offset where it has none.
    pub name: String,
    /// The file that it is in, with its path; empty where that is not known.
    pub file: String,
    /// How often it was called.
    pub calls: u64,
    /// How often memory was allocated while it was the innermost function.
    pub allocations: u64,
    /// How many bytes those were.
    pub bytes: u64,
}

/// Calls of one function by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The caller; `None`: from outside of all functions that are seen.
    pub caller: Option<usize>,
    /// The callee.
    pub callee: usize,
    /// How often.
    pub calls: u64,
}

/// Functions, and who called whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// The functions, those that were called most first.
    pub nodes: Vec<Node>,
    /// The calls, the most first.
    pub edges: Vec<Edge>,
    /// Allocations outside of all functions that are seen: their number, and bytes.
    pub outside: (u64, u64),
    /// What was not counted.
    pub losses: Losses,
    /// Files that were mapped where another was, or had been: their functions may be confused.
    pub confused: u64,
}

impl Graph {
    /// The graph of everything that was found: functions of one name and file are one, in all processes.
    pub fn new(found: &[Found], names: &mut Names) -> Graph {
        let mut graph = Graph::default();
        let mut index = BTreeMap::<(String, String), usize>::new();
        let mut edges = BTreeMap::<(Option<usize>, usize), u64>::new();
        for image in found {
            let mut known = BTreeMap::<u64, usize>::new();
            let mut node = |graph: &mut Graph, address: u64| {
                *known.entry(address).or_insert_with(|| {
                    let named = names.of(&image.modules, address);
                    *index
                        .entry((named.file, named.name))
                        .or_insert_with_key(|key| {
                            graph.nodes.push(Node {
                                file: key.0.clone(),
                                name: key.1.clone(),
                                ..Node::default()
                            });
                            graph.nodes.len() - 1
                        })
                })
            };
            for (caller, callee, calls) in &image.calls {
                let caller = (*caller != 0).then(|| node(&mut graph, *caller));
                let callee = node(&mut graph, *callee);
                graph.nodes[callee].calls += calls;
                *edges.entry((caller, callee)).or_default() += calls;
            }
            for (function, allocations, bytes) in &image.allocations {
                if *function == 0 {
                    graph.outside.0 += allocations;
                    graph.outside.1 += bytes;
                    continue;
                }
                let at = node(&mut graph, *function);
                graph.nodes[at].allocations += allocations;
                graph.nodes[at].bytes += bytes;
            }
            graph.losses.no_room += image.losses.no_room;
            graph.losses.interrupted += image.losses.interrupted;
            graph.losses.unreadable += image.losses.unreadable;
            graph.losses.in_doubt += image.losses.in_doubt;
            graph.confused += overlaps(image);
        }
        graph.edges = edges
            .into_iter()
            .map(|((caller, callee), calls)| Edge {
                caller,
                callee,
                calls,
            })
            .collect();
        graph.sorted()
    }

    /// The most called first; by name where they are equal, so that the same profile always looks the same.
    fn sorted(mut self) -> Graph {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&self.nodes[a], &self.nodes[b]);
            (b.calls.cmp(&a.calls)).then_with(|| (&a.name, &a.file).cmp(&(&b.name, &b.file)))
        });
        let mut place = vec![0; order.len()];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new;
        }
        self.nodes = order.iter().map(|&old| self.nodes[old].clone()).collect();
        for edge in &mut self.edges {
            edge.caller = edge.caller.map(|old| place[old]);
            edge.callee = place[edge.callee];
        }
        self.edges
            .sort_by_key(|edge| (std::cmp::Reverse(edge.calls), edge.caller, edge.callee));
        self
    }

    /// All calls.
    pub fn calls(&self) -> u64 {
        self.nodes.iter().map(|node| node.calls).sum()
    }

    /// How many different functions each function called, and by how many it was called.
    pub fn degrees(&self) -> Vec<(usize, usize)> {
        let mut degrees = vec![(0, 0); self.nodes.len()];
        for edge in &self.edges {
            if let Some(caller) = edge.caller {
                degrees[caller].0 += 1;
                degrees[edge.callee].1 += 1;
            }
        }
        degrees
    }
}

fn overlaps(image: &Found) -> u64 {
    let modules = &image.modules;
    let pairs = modules.iter().enumerate().filter(|(index, one)| {
        let mut others = modules[index + 1..].iter();
        others.any(|other| one.path != other.path && one.start < other.end && other.start < one.end)
    });
    pairs.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_program_are_added_up_and_libraries_in_one_place_are_told() {
        let module = |path: &str| crate::region::Module {
            bias: 0,
            start: 0x1000,
            end: 0x2000,
            path: path.into(),
        };
        let image = |path: &str| Found {
            modules: vec![module(path)],
            calls: vec![(0, 0x1010, 1), (0x1010, 0x1020, 5)],
            allocations: vec![(0, 1, 8), (0x1020, 2, 32)],
            ..Found::default()
        };
        let mut twice = image("/nowhere/a");
        twice.modules.push(module("/nowhere/b"));
        let graph = Graph::new(&[image("/nowhere/a"), twice], &mut Names::default());
        assert_eq!(graph.nodes.len(), 2);
        assert_eq!((graph.nodes[0].calls, graph.nodes[1].calls), (10, 2));
        assert_eq!((graph.nodes[0].allocations, graph.nodes[0].bytes), (4, 64));
        assert_eq!((graph.edges[0].caller, graph.edges[0].calls), (Some(1), 10));
        assert_eq!((graph.outside, graph.confused), ((2, 16), 1));
        assert_eq!(graph.degrees(), [(0, 1), (1, 0)]);
    }
}
