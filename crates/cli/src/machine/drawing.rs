//! The topology as a picture: boxes in boxes, from the machine down to its CPUs, with what is known of each
//! CPU.
//!
//! Colours are those of Okabe and Ito, which colour-blind people can tell apart, and nothing is said by
//! colour alone: a CPU's temperature stands in it, and one that may not be used has a dashed border and says
//! so.

use super::hardware::Hardware;
use super::{bytes, named};
use corewise_machine::Topology;
use corewise_machine::topology::{Kind, Object};
use maud::{Markup, html};

/// Sizes in pixels: of a CPU, between boxes, of a line of text.
const CPU: (f64, f64) = (92.0, 58.0);
const GAP: f64 = 8.0;
const LINE: f64 = 15.0;
/// What is wider than this goes on in the next row.
const WIDEST: f64 = 1500.0;
/// About the width of a letter.
const LETTER: f64 = 6.6;

/// What is drawn, and what is known of it.
pub(super) struct Drawing<'a> {
    pub(super) topology: &'a Topology,
    pub(super) allowed: &'a [u32],
    pub(super) hardware: &'a Hardware,
}

/// A box and what is in it, by its upper left corner within the one around it.
struct Placed<'a> {
    object: &'a Object,
    at: (f64, f64),
    size: (f64, f64),
    inside: Vec<Placed<'a>>,
}

impl Drawing<'_> {
    /// The picture, as one SVG file without outside parts.
    pub(super) fn svg(&self) -> String {
        let placed = place(&self.topology.root, WIDEST);
        let title = format!(
            "Topology of {}: {}",
            self.topology.origin,
            self.topology.summary()
        );
        let known = self.hardware.text();
        let mut lines = vec![format!("{} may be used", named(self.allowed))];
        lines.extend(known.lines().map(|line| line.trim().to_owned()));
        if known.is_empty() {
            lines.push("no sensor tells frequencies or temperatures".to_owned());
        }
        // The title's letters are larger.
        let longest = lines
            .iter()
            .map(|line| line.chars().count() as f64)
            .fold(0.0, f64::max);
        let longest = longest.max(title.chars().count() as f64 * 1.4) * LETTER;
        let heading = LINE * (lines.len() as f64 + 1.5);
        let width = placed.size.0.max(longest) + 2.0 * GAP;
        let height = placed.size.1 + heading + 2.0 * GAP;
        let drawn = self.draw(&placed, (GAP, heading + GAP));
        let markup = html! {
            svg xmlns="http://www.w3.org/2000/svg" width=(n(width)) height=(n(height))
                viewBox=(format!("0 0 {} {}", n(width), n(height)))
                font-family="sans-serif" font-size="11" {
                rect width="100%" height="100%" fill="#ffffff" {}
                text x=(n(GAP)) y="20" font-size="15" { (title) }
                @for (index, line) in lines.iter().enumerate() {
                    text x=(n(GAP)) y=(n(LINE * (index as f64 + 2.5))) { (line) }
                }
                (drawn)
            }
        };
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n",
            markup.into_string()
        )
    }

    fn draw(&self, placed: &Placed<'_>, around: (f64, f64)) -> Markup {
        let (x, y) = (around.0 + placed.at.0, around.1 + placed.at.1);
        let (width, height) = placed.size;
        let object = placed.object;
        if object.kind == Kind::Cpu {
            return self.cpu(object, x, y);
        }
        html! {
            g {
                title { (label(object)) ": " (named(&object.cpus)) }
                rect x=(n(x)) y=(n(y)) width=(n(width)) height=(n(height)) rx="4"
                    fill=(shade(object.kind)) stroke="#666666" {}
                text x=(n(x + GAP)) y=(n(y + LINE)) { (label(object)) }
            }
            @for inside in &placed.inside { (self.draw(inside, (x, y))) }
        }
    }

    fn cpu(&self, object: &Object, x: f64, y: f64) -> Markup {
        let cpu = object.os_index.unwrap_or_default();
        let allowed = self.allowed.binary_search(&cpu).is_ok();
        let frequency = self.hardware.frequencies.iter().find(|f| f.cpu == cpu);
        let heat = self.hardware.temperatures.iter().find(|h| h.cpu == cpu);
        let throttled = self.hardware.throttling.iter().find(|t| t.cpu == cpu);
        let mut title = vec![format!("CPU {cpu}")];
        let mut lines = Vec::new();
        if !allowed {
            title.push("may not be used".to_owned());
            lines.push("not allowed".to_owned());
        }
        if let Some(frequency) = frequency {
            lines.push(ghz(frequency.now_hz));
            title.push(format!("runs at {}", ghz(frequency.now_hz)));
            if let (Some(least), Some(most)) = (frequency.least_hz, frequency.most_hz) {
                title.push(format!("may choose {} to {}", ghz(least), ghz(most)));
            }
        }
        let mut fill = if allowed { "#ffffff" } else { "#dddddd" };
        if let Some(heat) = heat {
            lines.push(format!("{:.0} °C", heat.celsius));
            title.push(format!("{:.0} °C", heat.celsius));
            if let Some(limit) = heat.slows_at {
                title.push(format!("is slowed down from {limit:.0} °C on"));
                fill = match heat.celsius {
                    hot if hot >= limit => "#D55E00",
                    warm if warm >= limit - 15.0 => "#E69F00",
                    _ => "#8fd0f5",
                };
            }
        }
        if let Some(throttled) = throttled.filter(|t| t.core_events > 0) {
            title.push(format!(
                "was slowed down {} times since boot",
                throttled.core_events
            ));
        }
        let dashes = if allowed { "none" } else { "4 3" };
        let middle = n(x + CPU.0 / 2.0);
        html! {
            g {
                title { (title.join("; ")) }
                rect x=(n(x)) y=(n(y)) width=(n(CPU.0)) height=(n(CPU.1)) rx="3"
                    fill=(fill) stroke="#000000" stroke-dasharray=(dashes) {}
                text x=(middle) y=(n(y + LINE)) text-anchor="middle" font-weight="bold" { "CPU " (cpu) }
                @for (index, line) in lines.iter().take(3).enumerate() {
                    text x=(middle) y=(n(y + LINE * (index as f64 + 2.0) - 2.0)) text-anchor="middle" { (line) }
                }
            }
        }
    }
}

/// Boxes side by side in rows of at most `widest`, below a line of text.
fn place(object: &Object, widest: f64) -> Placed<'_> {
    if object.kind == Kind::Cpu {
        return Placed {
            object,
            at: (0.0, 0.0),
            size: CPU,
            inside: Vec::new(),
        };
    }
    let room = (widest - 2.0 * GAP).max(CPU.0);
    let (mut x, mut y, mut row) = (GAP, LINE + GAP, 0.0_f64);
    let mut width = label(object).chars().count() as f64 * LETTER + 2.0 * GAP;
    let mut inside = Vec::new();
    for child in &object.children {
        let mut placed = place(child, room);
        if x > GAP && x + placed.size.0 > room + GAP {
            (x, y, row) = (GAP, y + row + GAP, 0.0);
        }
        placed.at = (x, y);
        x += placed.size.0 + GAP;
        row = row.max(placed.size.1);
        width = width.max(x);
        inside.push(placed);
    }
    Placed {
        object,
        at: (0.0, 0.0),
        size: (width, y + row + GAP),
        inside,
    }
}

fn label(object: &Object) -> String {
    let kind = match object.kind {
        Kind::Machine => "machine",
        Kind::Package => "package",
        Kind::NumaNode => "NUMA node",
        Kind::L3 => "L3",
        Kind::L2 => "L2",
        Kind::Core => "core",
        Kind::Cpu => "CPU",
    };
    // Caches have numbers that say nothing to people.
    let number = object
        .os_index
        .filter(|_| !matches!(object.kind, Kind::L2 | Kind::L3));
    let number = number.map_or_else(String::new, |index| format!(" {index}"));
    let size = object
        .size_bytes
        .map_or_else(String::new, |size| format!(", {}", bytes(size)));
    format!("{kind}{number}{size}")
}

fn shade(kind: Kind) -> &'static str {
    match kind {
        Kind::Machine => "#fafafa",
        Kind::Package => "#eef3f7",
        Kind::NumaNode => "#e6f2ea",
        Kind::L3 => "#fbf6e3",
        Kind::L2 => "#f6ecdc",
        Kind::Core | Kind::Cpu => "#f3f3f3",
    }
}

fn ghz(hz: u64) -> String {
    format!("{:.2} GHz", hz as f64 / 1e9)
}

/// A coordinate: tenths of a pixel are fine enough.
fn n(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::reading::CpuHeat;
    use corewise_machine::frequency::CpuFrequency;
    use corewise_machine::throttling::CpuThrottling;

    fn hardware() -> Hardware {
        let heat = |cpu, celsius| CpuHeat {
            cpu,
            celsius,
            slows_at: Some(80.0),
            stops_at: None,
        };
        Hardware {
            frequencies: vec![CpuFrequency {
                cpu: 1,
                now_hz: 1_900_000_000,
                least_hz: Some(1_600_000_000),
                most_hz: Some(3_800_000_000),
                hardware_most_hz: None,
            }],
            temperatures: vec![heat(0, 81.0), heat(1, 40.0)],
            throttling: vec![CpuThrottling {
                cpu: 0,
                core_events: 12,
                ..CpuThrottling::default()
            }],
            power: Vec::new(),
        }
    }

    #[test]
    fn each_part_is_drawn_with_what_is_known_of_it() {
        let topology = Topology::from_synthetic("package:2 numa:1 l3:1 core:2 pu:2").unwrap();
        let svg = Drawing {
            topology: &topology,
            allowed: &[0, 1, 2],
            hardware: &hardware(),
        }
        .svg();
        assert_eq!(svg.matches(">CPU ").count(), 16, "a label and a title each");
        for text in [
            "package 1",
            "NUMA node 0",
            "CPU 0; 81 °C; is slowed down from 80 °C on; was slowed down 12 times since boot",
            "CPU 1; runs at 1.90 GHz; may choose 1.60 GHz to 3.80 GHz; 40 °C",
            "CPU 7; may not be used",
            "CPUs 0-2 may be used",
            "the most at CPU 0",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("#D55E00").count(), 1, "one is too hot");
        assert_eq!(svg.matches("4 3").count(), 5);
    }

    #[test]
    fn no_box_reaches_out_of_the_one_around_it_and_none_overlap() {
        fn check(placed: &Placed<'_>) {
            let inside: Vec<_> = placed.inside.iter().collect();
            for (index, one) in inside.iter().enumerate() {
                let right = one.at.0 + one.size.0;
                let bottom = one.at.1 + one.size.1;
                assert!(right < placed.size.0 && bottom < placed.size.1);
                for other in &inside[index + 1..] {
                    let beside = right <= other.at.0 || bottom <= other.at.1;
                    assert!(beside, "{:?} and {:?}", one.object.cpus, other.object.cpus);
                }
                check(one);
            }
        }
        for description in [
            "package:4 numa:1 l3:1 core:6 pu:1",
            "package:2 numa:4 l3:2 l2:4 core:1 pu:2",
            "pu:3",
        ] {
            let topology = Topology::from_synthetic(description).unwrap();
            let placed = place(&topology.root, WIDEST);
            assert!(placed.size.0 < WIDEST + 2.0 * GAP, "{description}");
            check(&placed);
        }
    }
}
