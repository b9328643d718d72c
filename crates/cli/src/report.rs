//! The report: one page without outside parts: the curve of speed over threads, the readings, the
//! choice with its reason. Drawn as SVG by hand, since one small chart needs no chart library.

use anyhow::{Context as _, Result};
use corewise_decide::setting::WaitPolicy;
use corewise_launch::Outcome;
use corewise_local::history::{Point, Record};
use corewise_local::memory::record;
use corewise_local::tune::Tuned;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::path::Path;

const STYLE: &str = "
:root { --ink: #1d2430; --dim: #667085; --line: #d0d5dd; --a: #1f6feb; --b: #c2570c; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #98a2b3; --line: #3a4252; --a: #6ea8fe; --b: #f0a35e; --page: #161a21; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } p.choice { font-size: 1.15rem; }
.dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
tr.chosen td { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 12px; }
";

/// Writes the report of a search made now, and of the run after it, if there was one.
pub(crate) fn write(path: &Path, tuned: &Tuned, outcome: Option<&Outcome>) -> Result<()> {
    let facts = format!(
        "{} probes in {:.2} s, {:.2} s of them the program's own start-ups. Lock time: {}. Spinning: {}.",
        tuned.probes.len(),
        tuned.total_seconds,
        tuned.startup_seconds,
        tuned.lock_method,
        tuned.spin_method
    );
    save(path, &page(&record(tuned), &facts, outcome))
}

/// Writes the report of a run that went by a past search.
pub(crate) fn write_recalled(path: &Path, record: &Record, outcome: &Outcome) -> Result<()> {
    save(
        path,
        &page(record, "Recalled from the history.", Some(outcome)),
    )
}

fn save(path: &Path, page: &Markup) -> Result<()> {
    std::fs::write(path, &page.0)
        .with_context(|| format!("the report cannot be written to {}", path.display()))
}

fn page(record: &Record, facts: &str, outcome: Option<&Outcome>) -> Markup {
    let setting = record.setting();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "corewise: " (setting) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "corewise" }
                p.choice { strong { (setting) } ": " (record.stop_reason) "." }
                p.dim {
                    "Confidence " (format!("{:.0}", 100.0 * record.confidence)) " %. "
                    "Search: " (record.algorithm) ". " (facts)
                }
                @if let Some(outcome) = outcome { (run(outcome)) }
                @if !record.points.is_empty() {
                    h2 { "Speed over threads" }
                    (chart(record))
                    h2 { "Readings" }
                    (readings(record))
                }
            }
        }
    }
}

fn run(outcome: &Outcome) -> Markup {
    let seconds = |ns: u64| format!("{:.2} s", ns as f64 / 1e9);
    html! {
        p {
            "The run took " strong { (seconds(outcome.wall_ns)) } ", with " (seconds(outcome.user_ns))
            " of CPU time in the program and " (seconds(outcome.system_ns)) " in the kernel."
        }
    }
}

fn readings(record: &Record) -> Markup {
    let number = |value: Option<f64>, decimals: usize| {
        value.map_or("–".to_owned(), |v| format!("{v:.decimals$}"))
    };
    let percent = |value: Option<f64>| number(value.map(|v| 100.0 * v), 0);
    let best = best_speed(record);
    html! {
        table {
            tr {
                th { "threads" } th { "waiting" } th { "speed, %" } th { "CPUs busy" } th { "spin, %" }
                th { "lock, %" } th { "switches/s" } th { "moves/s" } th { "window, s" }
            }
            @for p in &record.points {
                tr.chosen[is_chosen(record, p)] {
                    td { (p.threads) } td { (p.wait_policy) }
                    td { (format!("{:.0}", 100.0 * p.speed / best)) }
                    td { (number(p.cpu_util, 2)) } td { (percent(p.spin)) } td { (percent(p.lock)) }
                    td { (number(p.vcx_rate, 0)) } td { (number(p.migration_rate, 0)) }
                    td { (number(p.seconds, 2)) }
                }
            }
        }
    }
}

fn is_chosen(record: &Record, p: &Point) -> bool {
    p.threads == record.chosen_threads && p.wait_policy == record.wait_policy
}

fn best_speed(record: &Record) -> f64 {
    let best = record.points.iter().map(|p| p.speed).fold(0.0, f64::max);
    if best > 0.0 { best } else { 1.0 }
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 44.0;

/// Speed relative to the fastest point, over threads; a line for each way of waiting.
fn chart(record: &Record) -> Markup {
    let best = best_speed(record);
    let most = record.points.iter().map(|p| p.threads).max().unwrap_or(1);
    let x = |threads: u32| MARGIN + (WIDTH - 2.0 * MARGIN) * f64::from(threads) / f64::from(most);
    let y = |speed: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * speed / best;
    let line = |wait: WaitPolicy| -> Vec<&Point> {
        let mut points: Vec<&Point> = record
            .points
            .iter()
            .filter(|p| p.wait_policy == wait)
            .collect();
        points.sort_by_key(|p| p.threads);
        points
    };
    let (left, right, bottom) = (MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN);
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
            aria-label="Speed over the number of threads" {
            @for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
                line x1=(left) x2=(right) y1=(y(part * best)) y2=(y(part * best))
                    stroke="var(--line)" {}
                text x=(left - 6.0) y=(y(part * best) + 4.0) text-anchor="end" {
                    (format!("{:.0} %", 100.0 * part))
                }
            }
            @for threads in ticks(most) {
                text x=(x(threads)) y=(bottom + 18.0) text-anchor="middle" { (threads) }
            }
            text x=(WIDTH / 2.0) y=(HEIGHT - 6.0) text-anchor="middle" { "threads" }
            @for (wait, colour, name) in [
                (WaitPolicy::Default, "var(--a)", "waiting as by default"),
                (WaitPolicy::Passive, "var(--b)", "waiting passively"),
            ] {
                @let points = line(wait);
                @if !points.is_empty() {
                    polyline fill="none" stroke=(colour) stroke-width="2"
                        points=(points.iter()
                            .map(|p| format!("{:.1},{:.1}", x(p.threads), y(p.speed)))
                            .collect::<Vec<_>>().join(" ")) {}
                    @for p in points {
                        circle cx=(x(p.threads)) cy=(y(p.speed)) fill=(colour)
                            r=(if is_chosen(record, p) { 7 } else { 4 }) {
                            title { (p.threads) ", " (name) }
                        }
                    }
                }
            }
            text x=(left) y="18" { tspan fill="var(--a)" { "● waiting as by default" }
                @if !line(WaitPolicy::Passive).is_empty() {
                    tspan fill="var(--b)" dx="14" { "● waiting passively" }
                }
                tspan dx="14" { "large: chosen" }
            }
        }
    }
}

/// At most a dozen marks.
fn ticks(most: u32) -> Vec<u32> {
    let step = most.div_ceil(12).max(1);
    (1..=most).filter(|n| n % step == 0 || *n == most).collect()
}
