//! A profile for Graphviz.

use crate::graph::Graph;
use std::fmt::Write as _;

/// The graph in the language of `dot`, with at most `most` functions, those that were called most. Edges are
/// wider with the logarithm of their calls.
pub fn dot(graph: &Graph, most: usize) -> String {
    let mut text =
        String::from("digraph profile {\n    node [shape=box, fontname=\"sans-serif\"];\n");
    let shown = graph.nodes.len().min(most);
    for (index, node) in graph.nodes[..shown].iter().enumerate() {
        let _ = writeln!(
            text,
            "    n{index} [label=\"{}\\n{} calls, {} allocations, {} bytes\"];",
            escaped(&node.name),
            node.calls,
            node.allocations,
            node.bytes
        );
    }
    for edge in &graph.edges {
        if let Some(caller) = edge.caller.filter(|caller| *caller < shown)
            && edge.callee < shown
        {
            let width = 1.0 + (edge.calls as f64).log10().max(0.0) / 2.0;
            let _ = writeln!(
                text,
                "    n{caller} -> n{} [label=\"{}\", penwidth={width:.2}];",
                edge.callee, edge.calls
            );
        }
    }
    text + "}\n"
}

fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Edge, Node};

    #[test]
    fn names_with_quotes_are_escaped_and_edges_to_what_is_not_shown_left_out() {
        let node = |name: &str| Node {
            name: name.into(),
            ..Node::default()
        };
        let edge = |caller, callee| Edge {
            caller,
            callee,
            calls: 100,
        };
        let graph = Graph {
            nodes: vec![node("operator\"\" _s"), node("b"), node("c")],
            edges: vec![edge(Some(0), 1), edge(Some(0), 2), edge(None, 0)],
            ..Graph::default()
        };
        let text = dot(&graph, 2);
        assert!(
            text.contains(r#"label="operator\"\" _s\n0 calls"#),
            "{text}"
        );
        assert!(
            text.contains("n0 -> n1 [label=\"100\", penwidth=2.00]"),
            "{text}"
        );
        assert!(!text.contains("n2"), "{text}");
    }
}
