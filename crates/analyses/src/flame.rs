//! A profile as a flame graph of calls (Gregg, *The Flame Graph*, CACM 59(6), 2016): outer functions below,
//! what they called on top of them, and each as wide as the calls in it and above it. The crate that draws
//! such pictures has a licence that this project does not link (CDDL); its input, folded stacks, is what
//! [`folded`] gives.
//!
//! Who was below whom further down than one call is not recorded: calls of a function are shared out over
//! its callers in proportion, as gprof does with time (Graham, Kessler and McKusick, *gprof: a call graph
//! execution profiler*, 1982, section 4).

use crate::graph::Graph;
use crate::names::shortened;
use maud::{Markup, html};
use std::collections::BTreeMap;

/// Deeper calls are left out.
const DEEPEST: usize = 100;
/// Parts of the whole that are smaller cannot be seen.
const SMALLEST: f64 = 1.0 / 20_000.0;
/// Boxes that are looked at: where functions call each other in circles, there can be any number.
const MOST: u32 = 100_000;
/// Pixels.
const WIDTH: f64 = 1200.0;
const ROW: f64 = 17.0;
const HEADING: f64 = 48.0;
const MARGIN: f64 = 10.0;
const LETTER: f64 = 6.6;
/// Narrower boxes are not drawn.
const NARROWEST: f64 = 0.2;

/// Stacks, one a line, as tools that draw flame graphs read them.
pub fn folded(graph: &Graph) -> String {
    let lines = stacks(graph).into_iter().map(|(names, calls)| {
        let names: Vec<_> = names.iter().map(|name| name.replace(';', ":")).collect();
        format!("{} {calls}\n", names.join(";"))
    });
    lines.collect()
}

/// The picture, as SVG.
pub fn flame(graph: &Graph, title: &str) -> String {
    let mut root = Box::<Frame>::default();
    for (names, calls) in stacks(graph) {
        root.calls += calls;
        let mut at = &mut root;
        for name in names {
            at = at.above.entry(name.to_owned()).or_default();
            at.calls += calls;
        }
    }
    let mut boxes = Vec::new();
    let scale = (WIDTH - 2.0 * MARGIN) / root.calls.max(1) as f64;
    root.place(MARGIN, 0, scale, &mut boxes);
    let rows = boxes.iter().map(|placed| placed.row + 1).max().unwrap_or(1);
    draw(&boxes, rows, root.calls, title).into_string()
}

/// A function in its callers.
#[derive(Default)]
struct Frame {
    calls: u64,
    above: BTreeMap<String, Box<Frame>>,
}

struct Placed<'a> {
    name: &'a str,
    calls: u64,
    row: usize,
    x: f64,
    width: f64,
}

impl Frame {
    fn place<'a>(&'a self, x: f64, row: usize, scale: f64, boxes: &mut Vec<Placed<'a>>) {
        let mut x = x;
        for (name, frame) in &self.above {
            let width = frame.calls as f64 * scale;
            if width >= NARROWEST {
                boxes.push(Placed {
                    name,
                    calls: frame.calls,
                    row,
                    x,
                    width,
                });
                frame.place(x, row + 1, scale, boxes);
            }
            x += width;
        }
    }
}

fn draw(boxes: &[Placed<'_>], rows: usize, calls: u64, title: &str) -> Markup {
    let height = HEADING + rows as f64 * ROW + MARGIN;
    let number = |value: f64| format!("{value:.1}");
    let share = |of: u64| 100.0 * of as f64 / calls.max(1) as f64;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(number(WIDTH)) height=(number(height))
            viewBox=(format!("0 0 {WIDTH:.1} {height:.1}")) font-family="monospace" font-size="11" {
            rect width="100%" height="100%" fill="white" {}
            text x=(number(MARGIN)) y="22" font-family="sans-serif" font-size="16" { (title) }
            text x=(number(MARGIN)) y="40" font-family="sans-serif" font-size="12" fill="#555" {
                (calls) " calls, shared out over callers in proportion"
            }
            @for placed in boxes {
                @let y = height - MARGIN - (placed.row + 1) as f64 * ROW;
                g {
                    title { (placed.name) ": " (placed.calls) " calls, " (format!("{:.2}", share(placed.calls))) " %" }
                    rect x=(number(placed.x)) y=(number(y)) width=(format!("{:.2}", placed.width))
                        height=(number(ROW - 1.0)) fill=(colour(placed.name)) {}
                    @if placed.width > 3.0 * LETTER {
                        text x=(number(placed.x + 2.0)) y=(number(y + ROW - 5.0)) {
                            (shortened(placed.name, (placed.width / LETTER) as usize))
                        }
                    }
                }
            }
        }
    }
}

/// A warm colour, the same for each name.
fn colour(name: &str) -> String {
    let sum = name.bytes().fold(7_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    format!("hsl({},75%,{}%)", 15 + sum % 40, 60 + sum / 64 % 15)
}

/// Functions from the outermost in, and the calls of the innermost.
fn stacks(graph: &Graph) -> Vec<(Vec<&str>, u64)> {
    let mut recursive = vec![0_u64; graph.nodes.len()];
    for edge in &graph.edges {
        if edge.caller == Some(edge.callee) {
            recursive[edge.callee] += edge.calls;
        }
    }
    let mut out: Vec<Vec<(usize, f64)>> = vec![Vec::new(); graph.nodes.len()];
    let mut roots = Vec::new();
    for edge in &graph.edges {
        // Whoever calls itself is called once from outside, and then so many times.
        let callee = graph.nodes[edge.callee].calls.max(1);
        let outer = callee.saturating_sub(recursive[edge.callee]).max(1);
        let calls = edge.calls as f64 * callee as f64 / outer as f64;
        match edge.caller {
            Some(caller) if caller == edge.callee => {}
            Some(caller) => {
                let share = calls / graph.nodes[caller].calls.max(1) as f64;
                out[caller].push((edge.callee, share));
            }
            None => roots.push((edge.callee, calls)),
        }
    }
    let all = graph.calls() as f64;
    let mut walk = Walk {
        graph,
        within: within(&out, all),
        out,
        least: all * SMALLEST,
        left: MOST,
        lines: Vec::new(),
    };
    for (root, calls) in roots {
        walk.descend(&mut vec![root], calls);
    }
    walk.lines
}

/// How many calls are in one call of each function, with itself, at most.
fn within(out: &[Vec<(usize, f64)>], all: f64) -> Vec<f64> {
    let mut within = vec![1.0; out.len()];
    for _ in 0..DEEPEST {
        let next: Vec<f64> = out
            .iter()
            .map(|callees| {
                let above = callees
                    .iter()
                    .map(|(callee, share)| share * within[*callee]);
                (1.0 + above.sum::<f64>()).min(all)
            })
            .collect();
        if next == within {
            break;
        }
        within = next;
    }
    within
}

struct Walk<'a> {
    graph: &'a Graph,
    out: Vec<Vec<(usize, f64)>>,
    within: Vec<f64>,
    least: f64,
    /// Steps that may still be made.
    left: u32,
    lines: Vec<(Vec<&'a str>, u64)>,
}

impl Walk<'_> {
    fn descend(&mut self, path: &mut Vec<usize>, calls: f64) {
        let Some(&last) = path.last() else { return };
        if calls >= 0.5 {
            let names = path
                .iter()
                .map(|&node| self.graph.nodes[node].name.as_str());
            self.lines.push((names.collect(), calls.round() as u64));
        }
        if path.len() >= DEEPEST {
            return;
        }
        for index in 0..self.out[last].len() {
            let (callee, share) = self.out[last][index];
            let calls = calls * share;
            // A function that is called once may be below all others. Recursion is where it began.
            let seen = calls * self.within[callee] >= self.least;
            if seen && self.left > 0 && !path.contains(&callee) {
                self.left -= 1;
                path.push(callee);
                self.descend(path, calls);
                path.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Edge, Node};

    fn node(name: &str, calls: u64) -> Node {
        Node {
            name: name.into(),
            calls,
            ..Node::default()
        }
    }

    fn edge(caller: Option<usize>, callee: usize, calls: u64) -> Edge {
        Edge {
            caller,
            callee,
            calls,
        }
    }

    fn graph() -> Graph {
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
        let text = folded(&graph());
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
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
    fn what_is_called_once_does_not_hide_what_it_calls_often_nor_recursion_itself() {
        let graph = Graph {
            nodes: vec![
                node("main", 1),
                node("run", 1),
                node("often", 1_000_000),
                node("fib", 900_000),
            ],
            edges: vec![
                edge(None, 0, 1),
                edge(Some(0), 1, 1),
                edge(Some(1), 2, 1_000_000),
                edge(Some(1), 3, 1),
                edge(Some(3), 3, 899_999),
            ],
            ..Graph::default()
        };
        let text = folded(&graph);
        assert!(text.contains("main;run;often 1000000\n"), "{text}");
        assert!(text.contains("main;run;fib 900000\n"), "{text}");
    }

    #[test]
    fn a_box_is_as_wide_as_what_is_above_it() {
        let svg = flame(&graph(), "a < b");
        for part in [
            "a &lt; b",
            "main: 45 calls, 100.00 %",
            "leaf: 30 calls, 66.67 %",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(flame(&Graph::default(), "nothing").contains("0 calls"));
    }
}
