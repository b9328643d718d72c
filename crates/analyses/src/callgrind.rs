//! A profile in callgrind's format, for kcachegrind and callgrind_annotate (Valgrind's manual, "Callgrind
//! Format Specification"). The events are calls, allocations and bytes, not instructions; costs are of the
//! function itself.

use crate::graph::Graph;
use std::fmt::Write as _;

/// The file's text, of the program that was run by this command.
pub fn callgrind(graph: &Graph, command: &str) -> String {
    let mut text = format!(
        "# callgrind format\nversion: 1\ncreator: corewise\ncmd: {}\npositions: line\nevents: Calls Allocations Bytes\n\n",
        line(command)
    );
    let mut out: Vec<Vec<(usize, u64)>> = vec![Vec::new(); graph.nodes.len()];
    for edge in &graph.edges {
        if let Some(caller) = edge.caller {
            out[caller].push((edge.callee, edge.calls));
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let _ = writeln!(
            text,
            "ob={}\nfn=({index}) {}",
            line(&node.file),
            line(&node.name)
        );
        let _ = writeln!(text, "0 {} {} {}", node.calls, node.allocations, node.bytes);
        for (callee, calls) in &out[index] {
            let to = &graph.nodes[*callee];
            let _ = writeln!(
                text,
                "cob={}\ncfn=({callee}) {}\ncalls={calls} 0\n0 {calls} 0 0",
                line(&to.file),
                line(&to.name)
            );
        }
        text.push('\n');
    }
    text
}

/// Without what would end a line.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Edge, Node};

    #[test]
    fn each_function_has_its_own_costs_and_its_calls() {
        let node = |name: &str, calls| Node {
            name: name.into(),
            file: "/p".into(),
            calls,
            ..Node::default()
        };
        let graph = Graph {
            nodes: vec![node("inner", 7), node("main", 1)],
            edges: vec![Edge {
                caller: Some(1),
                callee: 0,
                calls: 7,
            }],
            ..Graph::default()
        };
        let text = callgrind(&graph, "p -x");
        assert!(text.contains("cmd: p -x\n"));
        let expected = "ob=/p\nfn=(1) main\n0 1 0 0\ncob=/p\ncfn=(0) inner\ncalls=7 0\n0 7 0 0\n";
        assert!(text.contains(expected), "{text}");
    }
}
