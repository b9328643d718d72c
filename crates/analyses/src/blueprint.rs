//! The profiling blueprint (Bergel, Robbes and Binder, *Visualizing Dynamic Metrics with Profiling
//! Blueprints*, TOOLS 2010, which the paper's section 2 builds on): each function a box, whose width and
//! height are two metrics that one chooses; callers above callees; edges wider with their calls.
//!
//! Metrics of programs range over many powers of ten, so widths and heights grow with their logarithm. A
//! box's title (hover over it) has the figures.

use crate::graph::Graph;
use crate::names::shortened;
use maud::{Markup, html};
use std::fmt;

/// What a box's side can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// How often the function was called.
    Calls,
    /// How many different functions it called.
    Callees,
    /// By how many different functions it was called.
    Callers,
    /// How often memory was allocated in it.
    Allocations,
    /// How many bytes those were.
    Bytes,
}

impl Metric {
    /// All, with the names that people use.
    pub const ALL: [(&'static str, Metric); 5] = [
        ("calls", Metric::Calls),
        ("callees", Metric::Callees),
        ("callers", Metric::Callers),
        ("allocations", Metric::Allocations),
        ("bytes", Metric::Bytes),
    ];

    fn of(self, graph: &Graph, degrees: &[(usize, usize)], index: usize) -> u64 {
        let node = &graph.nodes[index];
        match self {
            Metric::Calls => node.calls,
            Metric::Callees => degrees[index].0 as u64,
            Metric::Callers => degrees[index].1 as u64,
            Metric::Allocations => node.allocations,
            Metric::Bytes => node.bytes,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Metric::ALL.iter().find(|(_, metric)| metric == self);
        f.write_str(known.map_or("", |(name, _)| name))
    }
}

/// Pixels of a box for a metric of 0, and for each power of two.
const SMALLEST: f64 = 6.0;
const EACH_DOUBLING: f64 = 3.5;
/// Pixels between boxes, and between rows.
const GAP: f64 = 14.0;
const ROW_GAP: f64 = 46.0;
const MARGIN: f64 = 20.0;
/// Above the picture: what it is.
const HEADING: f64 = 48.0;
/// A row that is wider than this goes on in the next.
const WIDEST: f64 = 1600.0;

/// A box, by its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Placed {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// The picture, as SVG, of at most `most` functions: those for which the two metrics together are largest.
pub fn blueprint(graph: &Graph, title: &str, width: Metric, height: Metric, most: usize) -> String {
    let degrees = graph.degrees();
    let sides = |index: usize| {
        let side = |metric: Metric| side(metric.of(graph, &degrees, index));
        (side(width), side(height))
    };
    let mut shown: Vec<usize> = (0..graph.nodes.len()).collect();
    shown.sort_by(|&a, &b| {
        let area = |index| sides(index).0 * sides(index).1;
        area(b).total_cmp(&area(a)).then(a.cmp(&b))
    });
    shown.truncate(most);
    let rows = rows(graph, &shown);
    let (placed, size) = place(&rows, graph.nodes.len(), sides);
    let heading = format!(
        "width: {width}, height: {height} (each doubling adds as much); {} of {} functions",
        shown.len(),
        graph.nodes.len()
    );
    draw(graph, &placed, size, title, &heading).into_string()
}

fn side(value: u64) -> f64 {
    SMALLEST + EACH_DOUBLING * (value as f64 + 1.0).log2()
}

/// Functions by how many calls they are away from outside: callers above callees, as far as calls have no
/// circles. What is shown and cannot be reached through what is shown begins on top.
fn rows(graph: &Graph, shown: &[usize]) -> Vec<Vec<usize>> {
    let mut row = vec![usize::MAX; graph.nodes.len()];
    let mut next: Vec<usize> = graph
        .edges
        .iter()
        .filter(|edge| edge.caller.is_none())
        .map(|edge| edge.callee)
        .collect();
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for edge in &graph.edges {
        if let Some(caller) = edge.caller {
            out[caller].push(edge.callee);
        }
    }
    let mut depth = 0;
    while !next.is_empty() {
        let mut after = Vec::new();
        for node in next {
            if row[node] == usize::MAX {
                row[node] = depth;
                after.extend(&out[node]);
            }
        }
        next = after;
        depth += 1;
    }
    let mut rows = vec![Vec::new(); depth.max(1)];
    for &node in shown {
        rows[if row[node] == usize::MAX {
            0
        } else {
            row[node]
        }]
        .push(node);
    }
    rows.retain(|row| !row.is_empty());
    rows
}

fn place(
    rows: &[Vec<usize>],
    nodes: usize,
    sides: impl Fn(usize) -> (f64, f64),
) -> (Vec<Option<Placed>>, (f64, f64)) {
    let mut placed = vec![None; nodes];
    let (mut y, mut right) = (HEADING + MARGIN, 400.0_f64);
    for row in rows {
        let (mut x, mut tallest) = (MARGIN, 0.0_f64);
        for &node in row {
            let (width, height) = sides(node);
            if x + width > WIDEST && x > MARGIN {
                x = MARGIN;
                y += tallest + ROW_GAP / 2.0;
                tallest = 0.0;
            }
            placed[node] = Some(Placed {
                x,
                y,
                width,
                height,
            });
            x += width + GAP;
            right = right.max(x);
            tallest = tallest.max(height);
        }
        y += tallest + ROW_GAP;
    }
    (placed, (right + MARGIN, y))
}

fn draw(
    graph: &Graph,
    placed: &[Option<Placed>],
    (width, height): (f64, f64),
    title: &str,
    heading: &str,
) -> Markup {
    let number = |value: f64| format!("{value:.1}");
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(number(width)) height=(number(height))
            viewBox=(format!("0 0 {width:.1} {height:.1}")) font-family="sans-serif" {
            rect width="100%" height="100%" fill="white" {}
            text x=(number(MARGIN)) y="24" font-size="16" { (title) }
            text x=(number(MARGIN)) y="44" font-size="12" fill="#555" { (heading) }
            g stroke="#0072b2" stroke-opacity="0.45" fill="none" {
                @for edge in &graph.edges {
                    @if let (Some(Some(from)), Some(to)) = (edge.caller.map(|c| placed[c]), placed[edge.callee]) {
                        path d=(curve(from, to)) stroke-width=(number(0.5 + (edge.calls as f64 + 1.0).log2() / 6.0)) {
                            title {
                                (edge.caller.map_or("", |c| graph.nodes[c].name.as_str())) " calls "
                                (graph.nodes[edge.callee].name) ": " (edge.calls)
                            }
                        }
                    }
                }
            }
            g stroke="#222" fill="#f0e442" {
                @for (node, placed) in graph.nodes.iter().zip(placed) {
                    @if let Some(Placed { x, y, width, height }) = *placed {
                        rect x=(number(x)) y=(number(y)) width=(number(width)) height=(number(height)) {
                            title {
                                (node.name) ": " (node.calls) " calls, " (node.allocations) " allocations, "
                                (node.bytes) " bytes"
                            }
                        }
                    }
                }
            }
            g font-size="9" fill="#222" {
                @for (node, placed) in graph.nodes.iter().zip(placed) {
                    @if let Some(placed) = placed {
                        text x=(number(placed.x)) y=(number(placed.y + placed.height + 10.0)) {
                            (shortened(&node.name, ((placed.width + GAP) / 5.2) as usize))
                        }
                    }
                }
            }
        }
    }
}

fn curve(from: Placed, to: Placed) -> String {
    let (x1, y1) = (from.x + from.width / 2.0, from.y + from.height);
    let (x2, y2) = (to.x + to.width / 2.0, to.y);
    let bend = ((y2 - y1) / 2.0).abs().max(20.0);
    format!(
        "M{x1:.1} {y1:.1}C{x1:.1} {:.1} {x2:.1} {:.1} {x2:.1} {y2:.1}",
        y1 + bend,
        y2 - bend
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Edge, Node};
    use proptest::prelude::*;

    fn made(calls: &[(Option<usize>, usize, u64)], nodes: usize) -> Graph {
        let mut graph = Graph {
            nodes: vec![Node::default(); nodes],
            ..Graph::default()
        };
        for (caller, callee, calls) in calls {
            graph.nodes[*callee].calls += calls;
            graph.edges.push(Edge {
                caller: *caller,
                callee: *callee,
                calls: *calls,
            });
        }
        graph
    }

    #[test]
    fn a_box_grows_with_its_metrics_and_callers_stand_above_callees() {
        let graph = made(&[(None, 0, 1), (Some(0), 1, 1000), (Some(1), 1, 5)], 2);
        let rows = rows(&graph, &[0, 1]);
        assert_eq!(rows, [[0], [1]]);
        assert!(side(1000) > side(1) && side(1) > side(0) && side(0) > 0.0);
        let svg = blueprint(&graph, "a < b", Metric::Calls, Metric::Callees, 10);
        assert!(
            svg.contains("a &lt; b") && svg.matches("<rect").count() == 3,
            "{svg}"
        );
    }

    proptest! {
        #[test]
        fn boxes_never_overlap(
            calls in proptest::collection::vec((0_usize..61, 0_usize..60, 1_u64..1_000_000_000), 1..200),
            most in 1_usize..70,
        ) {
            let calls: Vec<_> = calls.into_iter().map(|(a, b, n)| (a.checked_sub(1), b, n)).collect();
            let graph = made(&calls, 60);
            let degrees = graph.degrees();
            let sides = |index| {
                (side(Metric::Calls.of(&graph, &degrees, index)), side(Metric::Callers.of(&graph, &degrees, index)))
            };
            let shown: Vec<usize> = (0..60).take(most).collect();
            let (placed, size) = place(&rows(&graph, &shown), 60, sides);
            let boxes: Vec<Placed> = placed.into_iter().flatten().collect();
            prop_assert_eq!(boxes.len(), shown.len());
            for (index, a) in boxes.iter().enumerate() {
                prop_assert!(a.x + a.width <= size.0 && a.y + a.height <= size.1);
                for b in &boxes[index + 1..] {
                    let apart = a.x + a.width <= b.x || b.x + b.width <= a.x
                        || a.y + a.height <= b.y || b.y + b.height <= a.y;
                    prop_assert!(apart, "{:?} {:?}", a, b);
                }
            }
        }
    }
}
