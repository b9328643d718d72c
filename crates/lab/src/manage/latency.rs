//! `claim-latency`: what reading a claim costs, and how long it takes from an event (a program joins, a
//! program ends) until another program sees its new claim: one that spins on it, and one that sleeps.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::actor::{ReadCosts, Saw, now_ns};
use crate::experiment::{Bar, Context, Report, Table, number};
use crate::manage::stage::{Lines, Manager, Player, join_as};
use crate::stats::{median, percentile};

/// What happens, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    /// A program joins: from before it connects.
    Joins,
    /// A program leaves by closing its connection.
    Leaves,
    /// A program's process comes to its end.
    Ends,
}

/// How the other program waits for its claim.
const READERS: [&str; 2] = ["spinning", "sleeping"];

/// Runs the experiment. `--only reads` and `--only events` pick one part.
///
/// # Errors
/// If a program or the manager cannot be started, or a claim does not change in ten seconds.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "claim-latency",
        "the time to read a claim; and the time from another program's join or end until a program \
         sees its new claim, spinning or sleeping",
        "everything in the lab's session, the machine otherwise idle",
    );
    let parts = context.pick(&["reads", "events"]);
    if parts.contains(&"reads") {
        reads(context, &mut report)?;
    }
    if parts.contains(&"events") {
        events(context, &mut report)?;
    }
    Ok(report)
}

fn reads(context: &Context, report: &mut Report) -> Result<()> {
    let manager = Manager::start(context, "balanced")?;
    let mut words = Vec::new();
    let mut sets = Vec::new();
    for _ in 0..context.rounds(7, 3) {
        let costs: ReadCosts = Player::start(&["reads"], Some(&manager))?.finish()?;
        if !costs.managed {
            bail!("the program that reads its claim was not managed");
        }
        words.push(costs.threads_ns);
        sets.push(costs.cpus_ns);
    }
    report.figure("read_generation_and_threads_ns", median(&words));
    report.figure("read_cpu_set_ns", median(&sets));
    report.bars.push(Bar::at_most(
        "reading generation and threads, ns (at most)",
        median(&words),
        2.0,
    ));
    report.bars.push(Bar::at_most(
        "reading a consistent CPU set, ns (at most)",
        median(&sets),
        10.0,
    ));
    Ok(())
}

fn events(context: &Context, report: &mut Report) -> Result<()> {
    let mut table = Table::new(
        "microseconds until the claim is seen",
        &["event", "reader", "median", "p99", "worst"],
    );
    for reader in READERS {
        for (happens, name) in [
            (Happens::Joins, "joins"),
            (Happens::Leaves, "leaves"),
            (Happens::Ends, "ends"),
        ] {
            let times = times(context, reader, happens)?;
            let p99 = percentile(&times, 0.99);
            let worst = percentile(&times, 1.0);
            report.figure(format!("{name}_{reader}_median_us"), median(&times));
            report.figure(format!("{name}_{reader}_p99_us"), p99);
            table.row([
                name.to_owned(),
                reader.to_owned(),
                number(median(&times)),
                number(p99),
                number(worst),
            ]);
            if reader == "spinning" {
                report.bars.push(Bar::at_most(
                    format!("a program {name}: median, µs (at most)"),
                    median(&times),
                    200.0,
                ));
                report.bars.push(Bar::at_most(
                    format!("a program {name}: p99, µs (at most)"),
                    p99,
                    2_000.0,
                ));
            } else {
                // Every change was seen: a sleeper that is not woken ends the experiment.
                report.figure(format!("{name}_sleeper_woken"), 1.0);
            }
        }
    }
    report.tables.push(table);
    Ok(())
}

/// The times of many events of a kind, in microseconds.
fn times(context: &Context, reader: &str, happens: Happens) -> Result<Vec<f64>> {
    let manager = Manager::start(context, "balanced")?;
    let folder = corewise_wire::Folder::at(manager.folder())?;
    let reader = Player::start(&["reader", reader], Some(&manager))?.follow();
    let mut last: Saw = reader.says()?;
    let mut times = Vec::new();
    for _ in 0..context.rounds(300, 50) {
        last = settled(&reader, last);
        let came = match happens {
            Happens::Ends => Other::process(&manager)?,
            _ => Other::connection(&folder)?,
        };
        last = changed(&reader, &last)?;
        if happens == Happens::Joins {
            times.push(microseconds(came.began_ns, &last));
        }
        last = settled(&reader, last);
        let left_ns = came.leave()?;
        last = changed(&reader, &last)?;
        if happens != Happens::Joins {
            times.push(microseconds(left_ns, &last));
        }
    }
    Ok(times)
}

/// The other program.
struct Other {
    /// From before it joined.
    began_ns: u64,
    is: Is,
}

enum Is {
    Connection(Box<corewise_wire::Joined>),
    Process(Player, TempDir),
}

/// Where a program that ends writes when it did, in its folder.
const END: &str = "end";

impl Other {
    fn connection(folder: &corewise_wire::Folder) -> Result<Other> {
        let began_ns = now_ns();
        let joined = corewise_wire::join(folder, join_as("member", 1, 64))?;
        Ok(Other {
            began_ns,
            is: Is::Connection(Box::new(joined)),
        })
    }

    fn process(manager: &Manager) -> Result<Other> {
        let began_ns = now_ns();
        let folder = tempfile::tempdir()?;
        let file = folder.path().join(END).display().to_string();
        let mut player = Player::start(&["member", &file], Some(manager))?;
        player.line().context("the program did not join")?;
        Ok(Other {
            began_ns,
            is: Is::Process(player, folder),
        })
    }

    /// It leaves; when it did, by its own clock.
    fn leave(self) -> Result<u64> {
        match self.is {
            Is::Connection(joined) => {
                let left_ns = now_ns();
                drop(joined);
                Ok(left_ns)
            }
            Is::Process(player, folder) => {
                player.end()?;
                let written = std::fs::read_to_string(folder.path().join(END))?;
                Ok(written.parse()?)
            }
        }
    }
}

/// The reader's next claim, which must be another one.
fn changed(reader: &Lines, last: &Saw) -> Result<Saw> {
    let saw: Saw = reader.says()?;
    if saw.generation == last.generation {
        bail!("the claim did not change: {last:?}, then {saw:?}");
    }
    Ok(saw)
}

/// Waits until the manager has done all that an event makes it do; what the reader saw last.
fn settled(reader: &Lines, last: Saw) -> Saw {
    std::thread::sleep(Duration::from_millis(5));
    reader.last_so_far().unwrap_or(last)
}

fn microseconds(began: u64, saw: &Saw) -> f64 {
    saw.seen_ns.saturating_sub(began) as f64 / 1e3
}
