//! `sim-together`: two policies at once on the quad-core machine with a broken screw, from one file: one
//! moves programs to cooler cores, the other switches prefetchers. Each gain is set against that of either
//! policy alone. REEact's paper combines its policies by hand and measures each alone.

use anyhow::Result;
use corewise_decide::policy::configuration;
use corewise_decide::policy::source::Source;
use corewise_sim::machine::SimMachine;
use corewise_sim::scenario::Scenario;

use super::{entry, machine, ran};
use crate::experiment::{Bar, Context, Report, Table, number};

/// Both, as a person writes it.
const BOTH: &str = r#"
    [[policy]]
    use = "broken-screw"
    [[policy]]
    use = "prefetch"
    claims = false
"#;

/// What warms a core more or less, as in `sim-broken-screw`.
const POWERS: [f64; 4] = [0.84, 0.92, 1.0, 1.06];

/// How much longer a program takes without prefetchers, and the power that they use for it, as in
/// `sim-prefetch`: one that they hurt, and one that needs them.
const PREFETCHES: [(&str, f64, f64); 2] = [("hurt", -0.074, 0.027), ("needs them", 0.30, 0.15)];

/// How long each takes at full speed, in seconds.
const SECONDS: u32 = 400;

/// Who decides.
const WAYS: [&str; 4] = ["plain Linux", "broken-screw", "prefetch", "both"];

/// Runs the experiment.
///
/// # Errors
/// If the machine's file is missing or wrong, or a run does not end.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "sim-together",
        "simulated: programs of one thread under broken-screw, prefetch, both at once, and plain Linux",
        "one program at a time",
    );
    let machine = machine(&context.root, "q6600-broken-screw.toml")?;
    let seeds = u64::from(context.rounds(5, 2));
    let mut table = Table::new(
        "seconds that a program of 400 s takes, and how much faster both are than if gains multiplied",
        &[
            "power",
            "prefetchers",
            WAYS[0],
            WAYS[1],
            WAYS[2],
            WAYS[3],
            "apart, %",
        ],
    );
    let (mut worst, mut apart) = (f64::NEG_INFINITY, 0.0_f64);
    let (mut gain, mut runs) = (0.0, 0.0);
    for power in POWERS {
        for (name, slower, extra) in PREFETCHES {
            let mut seconds = [0.0; WAYS.len()];
            // Seed by seed, so that what is compared has begun alike.
            for seed in 0..seeds {
                for (sum, way) in seconds.iter_mut().zip(WAYS) {
                    *sum += once(&machine, power, (slower, extra), way, seed)? / seeds as f64;
                }
            }
            let [plain, moved, switched, both] = seconds;
            let product = moved * switched / plain;
            let off = 100.0 * (product / both - 1.0);
            table.row([
                number(power),
                name.to_owned(),
                number(plain),
                number(moved),
                number(switched),
                number(both),
                number(off),
            ]);
            worst = worst.max(100.0 * (both / moved.min(switched) - 1.0));
            apart = apart.max(off.abs());
            gain += 100.0 * (plain / both - 1.0);
            runs += 1.0;
        }
    }
    report.tables.push(table);
    report.figure("gain_of_both_mean_percent", gain / runs);
    report.figure("slower_than_the_better_alone_most_percent", worst);
    report.figure("apart_from_the_product_most_percent", apart);
    report.bars.push(Bar::at_most(
        "slower than under the better of the two alone, %, the worst program (at most)",
        worst,
        1.0,
    ));
    report.bars.push(Bar::at_most(
        "apart from the product of both gains, %, the worst program (at most)",
        apart,
        3.0,
    ));
    report.note(format!(
        "means of {seeds} seeds; a core without prefetchers is cooler, too: only one of the two policies can gain from that"
    ));
    Ok(report)
}

fn once(
    machine: &SimMachine,
    power: f64,
    (gain, extra): (f64, f64),
    way: &str,
    seed: u64,
) -> Result<f64> {
    let mut scenario = Scenario::new(way, machine.clone());
    scenario.seed = seed;
    scenario.limit_ns = 4_000_000_000_000;
    let text = format!(
        "name = \"spec\"\nthreads = 1\npower = {power:?}\nprefetch = {{ gain = {gain:?}, power = {extra:?} }}\n\
         [[phase]]\nserial = {{ work_ms = {} }}\n",
        SECONDS * 1000,
    );
    let mut program = entry("spec", &text)?;
    program.threads = Some(1);
    program.start_ns = 1_000_000_000;
    let source = match way {
        "plain Linux" => None,
        "both" => Some(
            configuration::read(BOTH, "both.toml", seed, &|_| {
                Err(std::io::ErrorKind::NotFound.into())
            })
            .map_err(anyhow::Error::msg)?,
        ),
        name => Some(Source::built_in(name)),
    };
    if source.is_none() {
        program.managed = None;
    }
    scenario.policy = source.map(|source| Source { seed, ..source });
    scenario.entries.push(program);
    scenario.entries.push(super::system()?);
    let report = ran(&scenario)?;
    let program = report.programs.iter().find(|p| p.entry == "spec");
    Ok(program.map_or(f64::NAN, |p| p.wall_seconds))
}
