//! A profile as a flame graph of calls. Who was below whom further down than one call is not recorded: calls
//! of a function are shared out over its callers in proportion, as gprof does with time (Graham, Kessler and
//! McKusick, *gprof: a call graph execution profiler*, 1982, section 4).

use crate::graph::Graph;
use inferno::flamegraph::{Options, from_lines};

/// Deeper calls are left out.
const DEEPEST: usize = 100;
/// Parts of the whole that are smaller cannot be seen.
const SMALLEST: f64 = 1.0 / 20_000.0;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
#[error("no flame graph: {0}")]
pub struct Error(String);

/// The picture, as SVG.
///
/// # Errors
/// If nothing was called.
pub fn flame(graph: &Graph, title: &str) -> Result<String, Error> {
    let lines = stacks(graph);
    let mut options = Options::default();
    options.title = title.to_owned();
    options.subtitle = Some("calls, shared out over callers in proportion".to_owned());
    options.count_name = "calls".to_owned();
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .map_err(|error| Error(error.to_string()))?;
    String::from_utf8(svg).map_err(|error| Error(error.to_string()))
}

/// Lines of functions from the outermost in, and the calls of the innermost.
fn stacks(graph: &Graph) -> Vec<String> {
    let mut out: Vec<Vec<(usize, f64)>> = vec![Vec::new(); graph.nodes.len()];
    let mut roots = Vec::new();
    for edge in &graph.edges {
        match edge.caller {
            Some(caller) if caller == edge.callee => {}
            Some(caller) => {
                let share = edge.calls as f64 / graph.nodes[caller].calls.max(1) as f64;
                out[caller].push((edge.callee, share));
            }
            None => roots.push((edge.callee, edge.calls as f64)),
        }
    }
    let least = graph.calls() as f64 * SMALLEST;
    let mut lines = Vec::new();
    for (root, calls) in roots {
        descend(graph, &out, &mut vec![root], calls, least, &mut lines);
    }
    lines
}

fn descend(
    graph: &Graph,
    out: &[Vec<(usize, f64)>],
    path: &mut Vec<usize>,
    calls: f64,
    least: f64,
    lines: &mut Vec<String>,
) {
    let Some(&last) = path.last() else { return };
    if calls >= 0.5 {
        let names = path
            .iter()
            .map(|&node| graph.nodes[node].name.replace(';', ":"));
        lines.push(format!(
            "{} {calls:.0}",
            names.collect::<Vec<_>>().join(";")
        ));
    }
    if path.len() >= DEEPEST {
        return;
    }
    for (callee, share) in &out[last] {
        let calls = calls * share;
        // Recursion is where it began.
        if calls >= least && !path.contains(callee) {
            path.push(*callee);
            descend(graph, out, path, calls, least, lines);
            path.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Edge, Node};

    fn graph() -> Graph {
        let node = |name: &str, calls| Node {
            name: name.into(),
            calls,
            ..Node::default()
        };
        let edge = |caller, callee, calls| Edge {
            caller,
            callee,
            calls,
        };
        Graph {
            nodes: vec![
                node("leaf", 40),
                node("a", 3),
                node("b", 1),
                node("main", 1),
            ],
            edges: vec![
                edge(None, 3, 1),
                edge(Some(3), 1, 3),
                edge(Some(3), 2, 1),
                edge(Some(1), 0, 30),
                edge(Some(2), 0, 10),
                edge(Some(0), 0, 0),
            ],
            ..Graph::default()
        }
    }

    #[test]
    fn calls_are_shared_out_over_callers() {
        let mut lines = stacks(&graph());
        lines.sort();
        assert_eq!(
            lines,
            [
                "main 1",
                "main;a 3",
                "main;a;leaf 30",
                "main;b 1",
                "main;b;leaf 10"
            ]
        );
    }

    #[test]
    fn the_picture_has_the_names_and_nothing_called_is_an_error() {
        assert!(flame(&graph(), "t").unwrap().contains("leaf"));
        assert!(flame(&Graph::default(), "t").is_err());
    }
}
