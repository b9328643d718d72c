//! The charts, drawn as SVG by hand: a few shapes need no chart library.

use super::style::COLOURS;
use crate::kernel::Doing;
use crate::report::Seconds;
use crate::report::rows::{Row, kinds};
use crate::timeline::{Segment, Timeline, coarser};
use crate::world::{ClaimStep, Outcome};
use maud::{Markup, html};
use std::fmt::Write as _;

/// The width of the drawing area, and what is left of it for labels.
const WIDTH: u32 = 1200;
const LEFT: u32 = 70;

/// Columns of a timeline, the finest first; each divides the width.
const COLUMNS: [u32; 5] = [1200, 600, 300, 150, 100];

/// Cells of a timeline: what keeps the page small.
const MOST_CELLS: u32 = 20_000;

/// CPUs that a timeline shows.
const MOST_CPUS: usize = 128;

/// Programs whose claims are shown.
const MOST_CLAIMS: usize = 30;

/// A square of that colour.
fn swatch(colour: usize) -> Markup {
    html! {
        svg class=(format!("swatch {}", class(colour))) viewBox="0 0 10 10" aria-hidden="true" {
            rect width="10" height="10" fill="currentColor" {}
        }
    }
}

fn class(colour: usize) -> String {
    format!("c{}", colour % COLOURS)
}

/// What a cell of the timeline shows: a kind of program, and whether it spins.
type Shown = (usize, bool);

/// Who ran where: a row for each CPU.
pub(super) fn timeline(outcome: &Outcome, timeline: &Timeline) -> Markup {
    let report = &outcome.report;
    let kinds = kinds(report, COLOURS);
    let names = &kinds.names;
    let total_ns = ns(report.wall_seconds);
    let shown = timeline.cpus().len().min(MOST_CPUS);
    let count = u32::try_from(shown).unwrap_or(1).max(1);
    let columns = COLUMNS.into_iter().find(|c| c * count <= MOST_CELLS);
    let columns = columns.unwrap_or(COLUMNS[COLUMNS.len() - 1]);
    let grain = total_ns.div_ceil(u64::from(columns)).max(1);
    let height = (900 / count).clamp(5, 26);
    let mut work = vec![String::new(); names.len()];
    let mut spin = String::new();
    for (cpu, segments) in (0..).zip(&timeline.cpus()[..shown]) {
        let segments = segments.iter().filter_map(|s| {
            let program = outcome.program_of_thread.get(s.what.0.0 as usize)?;
            let what: Shown = (*kinds.of_program.get(*program)?, s.what.1 == Doing::Spin);
            Some(Segment {
                start_ns: s.start_ns,
                end_ns: s.end_ns,
                what,
            })
        });
        let y = cpu * height;
        // What one program does without a gap is one line, whether it works or spins.
        let mut line: Option<(usize, u32, u32)> = None;
        for cell in coarser(segments, grain) {
            let x = column(cell.start_ns, grain, columns);
            let end = column(cell.end_ns.next_multiple_of(grain), grain, columns).max(x + 1);
            let (kind, spins) = cell.what;
            line = match line {
                Some((same, start, until)) if same == kind && until == x => {
                    Some((kind, start, end))
                }
                before => {
                    draw(&mut work, before, y + height / 2);
                    Some((kind, x, end))
                }
            };
            if spins {
                let wide = end - x;
                // Writing to a string cannot fail.
                let _ = write!(spin, "M{x} {y}h{wide}v{}h-{wide}z", height - 1);
            }
        }
        draw(&mut work, line, y + height / 2);
    }
    let bottom = count * height;
    html! {
        p.legend {
            @for (kind, name) in names.iter().enumerate().take(24) {
                span { (swatch(kind)) " " (name) }
            }
            @if !spin.is_empty() { span { "▨ hatched: spinning" } }
            span.dim { "empty: idle" }
        }
        svg viewBox=(format!("-{LEFT} -4 {} {}", WIDTH + LEFT + 30, bottom + 30)) role="img"
            aria-label="Which program ran on which CPU, over time" {
            defs {
                pattern id="spin" width="5" height="5" patternUnits="userSpaceOnUse"
                    patternTransform="rotate(45)" {
                    rect width="2.4" height="5" fill="var(--page)" {}
                }
            }
            rect width=(WIDTH) height=(bottom) fill="var(--empty)" {}
            @for cpu in labelled(count, height) {
                text x="-6" y=(cpu * height + height / 2 + 4) text-anchor="end" { "CPU " (cpu) }
            }
            @for (kind, path) in work.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
                path class=(class(kind)) d=(path) stroke="currentColor"
                    stroke-width=(height - 1) fill="none" { title { (names[kind]) } }
            }
            @if !spin.is_empty() { path d=(spin) fill="url(#spin)" { title { "spinning" } } }
            (time_axis(total_ns, bottom))
        }
        p.dim {
            "Each cell of " (Seconds(grain.max(timeline.grain_ns()) as f64 / 1e9))
            " shows what took most of it; what took little of each is shown in some."
            @if timeline.cpus().len() > MOST_CPUS {
                " The first " (MOST_CPUS) " of " (timeline.cpus().len()) " CPUs are shown."
            }
        }
    }
}

/// Adds a line of a kind, from one x to another, to its path.
fn draw(paths: &mut [String], line: Option<(usize, u32, u32)>, y: u32) {
    if let Some((kind, start, end)) = line {
        let _ = write!(paths[kind], "M{start} {y}h{}", end - start);
    }
}

/// Where a time is, in the drawing's units.
fn column(time_ns: u64, grain: u64, columns: u32) -> u32 {
    let column = u32::try_from(time_ns / grain)
        .unwrap_or(columns)
        .min(columns);
    column * (WIDTH / columns)
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// CPUs whose rows have a label: all where there is room.
fn labelled(cpus: u32, height: u32) -> impl Iterator<Item = u32> {
    let step = 12_u32.div_ceil(height);
    (0..cpus).filter(move |cpu| cpu % step == 0)
}

fn time_axis(total_ns: u64, y: u32) -> Markup {
    let x = |time_ns: u64| time_ns as f64 * f64::from(WIDTH) / total_ns.max(1) as f64;
    html! {
        @for time in ticks(total_ns) {
            line x1=(format!("{:.1}", x(time))) x2=(format!("{:.1}", x(time))) y1=(y) y2=(y + 4)
                stroke="var(--dim)" {}
            text x=(format!("{:.1}", x(time))) y=(y + 17) text-anchor="middle" { (tick(time)) }
        }
    }
}

fn tick(time_ns: u64) -> String {
    match time_ns {
        0 => "0".to_owned(),
        ns if ns % 1_000_000_000 == 0 => format!("{} s", ns / 1_000_000_000),
        ns if ns < 1_000_000 => format!("{} µs", ns / 1_000),
        ns if ns < 1_000_000_000 => format!("{} ms", ns as f64 / 1e6),
        ns => format!("{} s", ns as f64 / 1e9),
    }
}

/// At most eleven round times.
fn ticks(total_ns: u64) -> Vec<u64> {
    let mut step = 1_000_u64;
    let rounds = [2, 5, 10];
    let mut round = 0;
    let mut unit = step;
    while total_ns / step > 10 {
        step = unit.saturating_mul(rounds[round]);
        round += 1;
        if round == rounds.len() {
            (round, unit) = (0, step);
        }
    }
    (0..=total_ns / step).map(|n| n * step).collect()
}

/// What was granted, as steps: a strip for each program.
pub(super) fn claims(outcome: &Outcome) -> Markup {
    const HIGH: u32 = 36;
    let report = &outcome.report;
    let kinds = kinds(report, COLOURS);
    let mut order: Vec<usize> = Vec::new();
    let mut steps: Vec<Vec<&ClaimStep>> = vec![Vec::new(); report.programs.len()];
    for step in &outcome.claims {
        let Some(of_program) = steps.get_mut(step.program) else {
            continue;
        };
        if of_program.is_empty() {
            order.push(step.program);
        }
        of_program.push(step);
    }
    let hidden = order.len().saturating_sub(MOST_CLAIMS);
    order.truncate(MOST_CLAIMS);
    let most = outcome
        .claims
        .iter()
        .map(|s| s.threads)
        .max()
        .unwrap_or(1)
        .max(1);
    let total_ns = ns(report.wall_seconds).max(1);
    let bottom = order.len() as u32 * (HIGH + 8);
    html! {
        p.dim { "Threads granted over time; the highest step is " (most) "." }
        svg viewBox=(format!("-190 -4 {} {}", WIDTH + 220, bottom + 30)) role="img"
            aria-label="Threads granted to each program, over time" {
            @for (at, program) in order.iter().enumerate() {
                @let top = at as u32 * (HIGH + 8);
                @let name = &report.programs[*program].name;
                g class=(class(kinds.of_program[*program])) {
                    text x="-6" y=(top + HIGH / 2 + 4) text-anchor="end" { (super::cut_name(name)) }
                    path d=(stair(&steps[*program], total_ns, top, HIGH, most))
                        stroke="currentColor" stroke-width="2" fill="currentColor" fill-opacity=".2" {
                        title { (name) }
                    }
                }
            }
            (time_axis(total_ns, bottom))
        }
        @if hidden > 0 { p.dim { "And of " (hidden) " programs more." } }
    }
}

fn stair(steps: &[&ClaimStep], total_ns: u64, top: u32, high: u32, most: u32) -> String {
    let base = top + high;
    let x = |ns: u64| (u128::from(ns) * u128::from(WIDTH) / u128::from(total_ns)) as u32;
    let y = |threads: u32| base - (u64::from(threads) * u64::from(high) / u64::from(most)) as u32;
    let mut path = String::new();
    let mut at = None;
    for (index, step) in steps.iter().enumerate() {
        let here = x(step.time_ns);
        // Of several within the width of a line the last one is drawn.
        if steps
            .get(index + 1)
            .is_some_and(|next| x(next.time_ns) == here)
            && at.is_some()
        {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = match at {
            None => write!(path, "M{here} {base}V{}", y(step.threads)),
            Some(_) => write!(path, "H{here}V{}", y(step.threads)),
        };
        at = Some(here);
    }
    let end = WIDTH.min(at.unwrap_or(WIDTH).max(1));
    let last = steps.last().map_or(0, |step| step.threads);
    let end = if last == 0 { end } else { WIDTH };
    let _ = write!(path, "H{end}V{base}z");
    path
}

/// Work, spinning, waiting and blocking, as parts of all threads' time.
pub(super) fn shares(rows: &[Row]) -> Markup {
    const HIGH: u32 = 18;
    let bottom = rows.len() as u32 * (HIGH + 4);
    html! {
        p.legend {
            span { (swatch(2)) " work" }
            span { "▨ spinning" }
            span { (swatch(5)) " waiting for a CPU" }
            span { (swatch(7)) " blocked on others" }
            span { (swatch(4)) " blocked on input, output or sleep" }
        }
        svg viewBox=(format!("-190 0 {} {}", WIDTH + 220, bottom + 4)) role="img"
            aria-label="What each program's threads did with their time" {
            defs {
                pattern id="spins" width="5" height="5" patternUnits="userSpaceOnUse"
                    patternTransform="rotate(45)" {
                    rect width="2.4" height="5" fill="var(--page)" {}
                }
            }
            @for (at, row) in rows.iter().enumerate() {
                @let top = at as u32 * (HIGH + 4);
                text x="-6" y=(top + HIGH - 4) text-anchor="end" { (super::cut_name(&row.name)) }
                @for part in parts(row) {
                    rect class=(class(part.colour)) x=(part.x) width=(part.wide) y=(top) height=(HIGH)
                        fill="currentColor" {
                        title { (part.name) ": " (Seconds(part.seconds)) }
                    }
                    @if part.hatched {
                        rect x=(part.x) width=(part.wide) y=(top) height=(HIGH) fill="url(#spins)" {}
                    }
                }
            }
        }
    }
}

struct Part {
    name: &'static str,
    seconds: f64,
    colour: usize,
    hatched: bool,
    x: u32,
    wide: u32,
}

fn parts(row: &Row) -> Vec<Part> {
    let work = (row.run_seconds - row.spin_seconds).max(0.0);
    let all = [
        ("work", work, 2, false),
        ("spinning", row.spin_seconds, 2, true),
        ("waiting for a CPU", row.wait_seconds, 5, false),
        ("blocked on others", row.lock_seconds, 7, false),
        (
            "blocked on input, output or sleep",
            row.io_seconds,
            4,
            false,
        ),
    ];
    let total: f64 = all.iter().map(|(_, seconds, ..)| seconds).sum();
    let mut parts = Vec::new();
    let mut sum = 0.0;
    let at = |sum: f64| (sum / total * f64::from(WIDTH)) as u32;
    for (name, seconds, colour, hatched) in all {
        if total > 0.0 && seconds > 0.0 {
            let x = at(sum);
            sum += seconds;
            let wide = at(sum).saturating_sub(x);
            parts.push(Part {
                name,
                seconds,
                colour,
                hatched,
                x,
                wide,
            });
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_round_times_from_the_beginning_on() {
        assert_eq!(ticks(1_000_000_000).last(), Some(&1_000_000_000));
        for total in [0, 1, 999, 12_345_678, 600_000_000_000, u64::MAX / 2] {
            let ticks = ticks(total);
            assert!(ticks.len() <= 11 && ticks[0] == 0, "{total}: {ticks:?}");
        }
        assert_eq!(tick(1_500_000_000), "1.5 s");
        assert_eq!(tick(200_000_000), "200 ms");
    }

    #[test]
    fn parts_of_a_bar_add_up_to_it() {
        let mut row = Row::default();
        row.run_seconds = 3.0;
        row.spin_seconds = 1.0;
        row.wait_seconds = 2.0;
        row.lock_seconds = 0.5;
        let wide: u32 = parts(&row).iter().map(|part| part.wide).sum();
        assert_eq!(wide, WIDTH);
        assert!(parts(&Row::default()).is_empty());
    }
}
