//! `defer-table1`: the capacities of queue and buffers against the speed-up over the sequential analysis (the
//! paper's Table 1), the capacity that is found while running, and the memory that buffers take (Figure 10).

use anyhow::Result;
use corewise_analyses::region::{Manner, Wanted};

use crate::defer::programs::{manner, these};
use crate::defer::strategies::{BETWEEN, CAPACITY};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::load::capacity;
use crate::stats::{geometric_mean, interleaved, median, paired_ratio};

const BUFFERS: [u32; 7] = [32, 128, 512, 1024, 8192, 16384, 32768];
const QUEUES: [u32; 3] = [16, 128, 1024];
/// Programs of one thread, short ones: there are many cells.
const PROGRAMS: [&str; 3] = ["lua", "mujs", "bzip2"];

/// Runs the experiment.
///
/// # Errors
/// If a program does not build or run, or loses a call.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "defer-table1",
        "the profiler with buffers and queues of many capacities, and of those found while running, over the \
         sequential analysis",
        "one session",
    );
    let programs = these(context, &PROGRAMS)?;
    let hooks = context.hooks()?;
    let mut cells = vec![manner(Manner::Sequential)];
    let adaptive = manner(Manner::Adaptive);
    for queue in QUEUES {
        // A capacity of 0: found while running.
        for capacity in BUFFERS.into_iter().chain([0]) {
            cells.push(Wanted {
                queue,
                capacity,
                ..adaptive
            });
        }
    }
    let count = cells.len() * programs.len();
    let mut seconds = vec![Vec::new(); count];
    let mut bytes = vec![Vec::new(); cells.len()];
    let mut capacities = Vec::new();
    let order = interleaved(0..count, context.rounds(5, 1), 9);
    for (index, (_, cell)) in order.into_iter().enumerate() {
        if index % BETWEEN == 0 {
            capacities.push(capacity(CAPACITY)?);
        }
        let wanted = cells[cell % cells.len()];
        let sample = programs[cell / cells.len()].profiled(&hooks, wanted)?;
        bytes[cell % cells.len()].push(sample.most_bytes() as f64 / 1e6);
        seconds[cell].push(sample.seconds);
    }
    report.figure("capacity", median(&capacities));
    let speedup = |cell: usize| {
        let each = (0..programs.len()).map(|program| {
            let of = |cell: usize| &seconds[program * cells.len() + cell];
            paired_ratio(of(0), of(cell)).median
        });
        geometric_mean(&each.collect::<Vec<_>>())
    };
    let names: Vec<String> = BUFFERS.iter().map(u32::to_string).collect();
    let mut columns = vec!["queue"];
    columns.extend(names.iter().map(String::as_str));
    columns.push("found");
    let mut table = Table::new("speed-up by the capacities of queue and buffers", &columns);
    let mut memory = Table::new("memory of buffers, MB", &columns);
    let (mut best, mut found) = (0.0_f64, Vec::new());
    let row = BUFFERS.len() + 1;
    for (index, queue) in QUEUES.iter().enumerate() {
        let of = |column: usize| 1 + index * row + column;
        let speedups: Vec<f64> = (0..row).map(|column| speedup(of(column))).collect();
        best = speedups[..BUFFERS.len()]
            .iter()
            .fold(best, |best, s| best.max(*s));
        found.push(speedups[BUFFERS.len()]);
        for (capacity, speedup) in names
            .iter()
            .map(String::as_str)
            .chain(["found"])
            .zip(&speedups)
        {
            report.figure(format!("queue_{queue}.buffer_{capacity}.speedup"), *speedup);
        }
        let text = |values: Vec<f64>| {
            let numbers = values.into_iter().map(number);
            [queue.to_string()]
                .into_iter()
                .chain(numbers)
                .collect::<Vec<_>>()
        };
        let held = (0..row).map(|column| median(&bytes[of(column)]));
        memory.row(text(held.collect()));
        table.row(text(speedups));
    }
    report.tables.extend([table, memory]);
    report.bars.push(Bar::at_least(
        "the capacity found while running, with the usual queue, over the best cell",
        found[0] / best,
        0.95,
    ));
    report.note("Geometric means over the programs, of medians of the rounds' ratios.");
    Ok(report)
}
