//! `sim-broken-screw`: programs of one thread on the quad-core machine with a broken screw, under the policy that
//! moves them, under plain Linux, which knows nothing of heat, and on each CPU in turn (REEact, section 4.1 and
//! Figure 4).
//!
//! Figure 4's programs are those of SPEC CPU2006; how warm each makes a core is not published. Here they differ in
//! their power, over a range that was fitted to what the text says of the figure.

use anyhow::Result;
use corewise_decide::cpus::CpuSet;
use corewise_decide::policy::source::Source;
use corewise_sim::machine::SimMachine;
use corewise_sim::scenario::Scenario;

use super::{entry, machine, ran};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::median;

/// Power of the programs, as a part of the usual.
const POWERS: [f64; 12] = [
    0.84, 0.86, 0.88, 0.90, 0.92, 0.94, 0.96, 0.98, 1.0, 1.02, 1.04, 1.06,
];

/// How long each takes at full speed, in seconds. SPEC's take several minutes each.
const SECONDS: u32 = 400;

/// How it is run.
#[derive(Clone, Copy)]
enum Way {
    Unaware,
    Policy,
    On(u32),
}

/// Runs the experiment.
///
/// # Errors
/// If the machine's file is missing or wrong, or a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-broken-screw",
        "simulated: programs of one thread under the policy broken-screw, plain Linux, and each CPU in turn",
        "one program at a time",
    );
    let machine = machine(&context.root, "q6600-broken-screw.toml")?;
    let seeds = u64::from(context.rounds(9, 3));
    let mut table = Table::new(
        "seconds that a program of 400 s takes",
        &[
            "power",
            "plain Linux",
            "broken-screw",
            "the best CPU",
            "gain, %",
            "over the best, %",
        ],
    );
    let (mut gains, mut losses) = (Vec::new(), Vec::new());
    for power in POWERS {
        let seconds = |way| -> Result<f64> {
            let runs = (0..seeds).map(|seed| once(&machine, power, way, seed));
            let runs = runs.collect::<Result<Vec<f64>>>()?;
            Ok(runs.iter().sum::<f64>() / runs.len() as f64)
        };
        let (unaware, policy) = (seconds(Way::Unaware)?, seconds(Way::Policy)?);
        let best = (0..machine.cpus()).map(|cpu| seconds(Way::On(cpu)));
        let best = best.collect::<Result<Vec<f64>>>()?;
        let best = best.into_iter().fold(f64::INFINITY, f64::min);
        let (gain, loss) = (
            100.0 * (unaware / policy - 1.0),
            100.0 * (policy / best - 1.0),
        );
        table.row([power, unaware, policy, best, gain, loss].map(number));
        gains.push(gain);
        losses.push(loss);
    }
    report.tables.push(table);
    let most = |of: &[f64]| of.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    report.figure("gain_mean_percent", mean);
    report.figure("gain_median_percent", median(&gains));
    report.figure("gain_most_percent", most(&gains));
    report.figure("over_the_best_most_percent", most(&losses));
    let bar = |name: &str, value: f64, limit: f64| Bar::at_most(name, value, limit);
    report.bars.push(bar(
        "largest gain, percentage points off the paper's 16 (at most)",
        (most(&gains) - 16.0).abs(),
        3.0,
    ));
    report.bars.push(bar(
        "mean gain, percentage points off the paper's 9.5 (at most)",
        (mean - 9.5).abs(),
        3.0,
    ));
    report.bars.push(bar(
        "slower than on the best CPU, %, the worst program (at most)",
        most(&losses),
        3.0,
    ));
    report.note(
        "fitted to the text's largest and mean gain: by how much the first core is warmed more than the others, and the \
         range of the programs' power; what comes out is how near the policy comes to the best CPU",
    );
    report.note(format!("means of {seeds} seeds: under the policy they decide the first CPU, on plain Linux where the \
         system's own short wake-ups push the program"));
    Ok(report)
}

fn once(machine: &SimMachine, power: f64, way: Way, seed: u64) -> Result<f64> {
    let mut scenario = Scenario::new(format!("power {power}"), machine.clone());
    scenario.seed = seed;
    scenario.limit_ns = 4_000_000_000_000;
    let text = format!(
        "name = \"spec\"\nthreads = 1\npower = {power:?}\n[[phase]]\nserial = {{ work_ms = {} }}\n",
        SECONDS * 1000,
    );
    let mut program = entry("spec", &text)?;
    program.threads = Some(1);
    program.start_ns = 1_000_000_000;
    match way {
        Way::Unaware => program.managed = None,
        Way::Policy => {
            let source = Source::built_in("broken-screw");
            scenario.policy = Some(Source { seed, ..source });
        }
        Way::On(cpu) => {
            program.managed = None;
            program.cpus = Some(CpuSet::from_iter([cpu]));
        }
    }
    scenario.entries.push(program);
    scenario.entries.push(super::system()?);
    let report = ran(&scenario)?;
    let program = report.programs.iter().find(|p| p.entry == "spec");
    Ok(program.map_or(f64::NAN, |p| p.wall_seconds))
}
