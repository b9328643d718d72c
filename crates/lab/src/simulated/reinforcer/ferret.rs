//! ferret's stages: Table IV, and what section II.D.1 says of other numbers of threads.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use corewise_sim::machine::SimMachine;
use corewise_sim::program::{ProgramSpec, StageThreads};

use super::catalogue::Paper;
use crate::experiment::{Bar, Report, Table, number};

/// Table IV: n, and the speed-up.
const TABLE_IV: [(u32, f64); 10] = [
    (3, 3.3),
    (7, 7.5),
    (11, 11.5),
    (13, 12.5),
    (15, 14.1),
    (17, 13.8),
    (21, 13.7),
    (25, 13.4),
    (29, 13.2),
    (31, 13.1),
];

/// Threads of segment, extract, vector and rank, and the speed-up (section II.D.1).
const OTHERS: [([u32; 4], f64); 2] = [([10, 10, 10, 16], 13.9), ([16, 16, 16, 16], 13.9)];

/// Adds the table, and how far it is off.
///
/// # Errors
/// If a run does not end.
pub(super) fn add(report: &mut Report, paper: &Paper, machine: &SimMachine) -> Result<()> {
    let mut table = Table::new(
        "ferret (Table IV), and other numbers of threads in its stages",
        &["threads of each stage", "speed-up", "paper", "off, %"],
    );
    let one = paper.seconds(machine, 1, 0)?;
    let mut worst: f64 = 0.0;
    let mut add = |name: String, speed_up: f64, said: f64| {
        let off = 100.0 * (speed_up / said - 1.0);
        worst = worst.max(off.abs());
        table.row([
            name,
            format!("{speed_up:.2}"),
            number(said),
            format!("{off:.1}"),
        ]);
    };
    for (n, said) in TABLE_IV {
        add(format!("{n}"), one / paper.seconds(machine, n, 0)?, said);
    }
    for (threads, said) in OTHERS {
        let other = Paper {
            spec: Arc::new(
                with(&paper.spec, threads).context("ferret is no pipeline of six stages")?,
            ),
            ..paper.clone()
        };
        let [a, b, c, d] = threads;
        add(
            format!("(1,{a},{b},{c},{d},1)"),
            one / other.seconds(machine, 1, 0)?,
            said,
        );
    }
    report.tables.push(table);
    report.bars.push(Bar::at_most(
        "ferret's stages (Table IV): speed-up, % off, the worst row (at most)",
        worst,
        10.0,
    ));
    Ok(())
}

/// The same program with so many threads in its middle stages.
fn with(spec: &ProgramSpec, threads: [u32; 4]) -> Option<ProgramSpec> {
    let mut spec = spec.clone();
    let phase = spec.phases.first_mut()?.get_mut();
    let stages = &mut phase.pipeline.as_mut()?.stages;
    let middle = stages.get_mut(1..5)?;
    for (stage, threads) in middle.iter_mut().zip(threads) {
        let stage = stage.get_mut();
        let span = stage.threads.as_ref()?.span();
        stage.threads = Some(toml::Spanned::new(span, StageThreads::Fixed(threads)));
    }
    Some(spec)
}
