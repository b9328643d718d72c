//! The page: a run as people can look at it, in one HTML file without scripts or outside parts.
//!
//! Colours are those of Okabe and Ito, which colour-blind people can tell apart (Color Universal Design,
//! 2008), and nothing is said by colour alone: spinning is hatched, every chart has its figures beside it.
//! The page stays below a megabyte however long the run was: timelines are drawn on a grid.

mod charts;
mod style;

use crate::report::rows::{Row, rows};
use crate::report::{Ended, Report, Seconds, listed};
use crate::world::{Outcome, Reason};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Reasons that the page shows.
const MOST_REASONS: usize = 400;

/// A run's page, as HTML.
pub fn page(outcome: &Outcome) -> String {
    let report = &outcome.report;
    let rows = rows(report);
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "corewise simulate: " (report.scenario) }
                style { (PreEscaped(style::STYLE)) }
            }
            body {
                h1 { (report.scenario) }
                p { (summary(report)) }
                @if !report.unfinished.is_empty() { (unfinished(report)) }
                @if !report.deadlock.is_empty() { (deadlock(report)) }
                h2 { "Programs" }
                (table(&rows))
                @if let Some(timeline) = &outcome.timeline {
                    h2 { "Who ran where" }
                    (charts::timeline(outcome, timeline))
                }
                @if !outcome.claims.is_empty() {
                    h2 { "Claims" }
                    (charts::claims(outcome))
                }
                h2 { "What threads did with their time" }
                (charts::shares(&rows))
                @if !outcome.reasons.is_empty() {
                    h2 { "Why" }
                    (reasons(outcome))
                }
            }
        }
    };
    markup.into_string()
}

fn summary(report: &Report) -> Markup {
    let how = match report.ended {
        Ended::Done => "All programs have ended",
        Ended::Limit => "The time was over",
        Ended::Deadlock => "The programs came to a standstill",
    };
    html! {
        (how) " after " strong { (Seconds(report.wall_seconds)) } " of virtual time on "
        (report.machine.name) " (" (report.machine.cpus) " CPUs, "
        (format!("{:.1}", report.machine.busy_cpus)) " of them busy in the mean), under "
        @if report.policy == "none" { "plain Linux without a manager" }
        @else { "the policy " strong { (report.policy) } }
        ". Seed " (report.seed) "."
    }
}

fn unfinished(report: &Report) -> Markup {
    html! {
        p.bad { "Not ended: " (listed(&report.unfinished)) "." }
    }
}

fn deadlock(report: &Report) -> Markup {
    html! {
        p.bad { "Deadlock: who waits for what:" }
        ul { @for line in report.deadlock.iter().take(50) { li { (line) } } }
    }
}

fn table(rows: &[Row]) -> Markup {
    html! {
        div.wide {
            table {
                tr {
                    th { "program" } th { "session" } th { "took" } th { "CPU time" } th { "spinning" }
                    th { "waited for a CPU" } th { "blocked" } th { "switches" } th { "moves" }
                    th { "claim, threads" } th { "progress" }
                }
                @for row in rows {
                    tr {
                        td { (row.name) }
                        td { (row.share) }
                        td { (row.took()) }
                        td { (Seconds(row.run_seconds)) }
                        td { (Seconds(row.spin_seconds)) }
                        td { (Seconds(row.wait_seconds)) }
                        td { (Seconds(row.blocked_seconds())) }
                        td { (row.switches) }
                        td { (row.migrations) }
                        td { (row.mean_claim().map_or("–".to_owned(), |n| format!("{n:.1}"))) }
                        td { (row.progress) }
                    }
                }
            }
        }
        @if rows.iter().any(|row| row.programs > 1) {
            p.dim { "× n: n programs of the same kind; times are sums, “took” is the mean of those that ended." }
        }
    }
}

fn reasons(outcome: &Outcome) -> Markup {
    let shown = outcome.reasons.iter().take(MOST_REASONS);
    let more = outcome.reasons.len().saturating_sub(MOST_REASONS) as u64 + outcome.reasons_left_out;
    html! {
        div.wide {
            table.reasons {
                tr { th { "time" } th { "program" } th { "decided" } th { "because" } }
                @for reason in shown {
                    tr {
                        td { (format!("{:.3} s", reason.time_ns as f64 / 1e9)) }
                        td { (name_of(outcome, reason)) }
                        td { (cut(&reason.what)) }
                        td { (cut(&reason.why)) }
                    }
                }
            }
        }
        @if more > 0 {
            p.dim { "And " (more) " more; " code { "--journal FILE" } " keeps all of them." }
        }
    }
}

fn name_of<'a>(outcome: &'a Outcome, reason: &Reason) -> &'a str {
    let program = reason
        .program
        .and_then(|index| outcome.report.programs.get(index));
    program.map_or("", |program| program.name.as_str())
}

/// A script may give reasons of any length.
fn cut(text: &str) -> String {
    const MOST: usize = 300;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A name as far as there is room beside a chart.
fn cut_name(name: &str) -> String {
    const MOST: usize = 26;
    match name.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name.to_owned(),
    }
}
