//! `defer-append`: what one deferred call with two words costs the thread that makes it, beside libraries
//! that store an event as cheaply as they can; and how many calls a second the strategies bear.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use corewise_defer::{
    Adaptive, Environment, Pool, Settings, Spent, Strategy, Work, available, deferred,
};
use fastrace::Span;
use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::LocalSpan;

use crate::experiment::{Bar, Context, Report, Table, number};
use crate::stats::{interleaved, median, paired_ratio};

#[deferred]
trait Calls {
    fn call(&self, caller: u64, callee: u64);
}

/// As little as a body can do.
#[derive(Default)]
struct Sum(AtomicU64);

impl Calls for Sum {
    #[inline]
    fn call(&self, caller: u64, callee: u64) {
        let sum = self.0.load(Ordering::Relaxed);
        self.0.store(sum ^ caller ^ callee, Ordering::Relaxed);
    }
}

/// Takes buffers, and throws their calls away: what is left is what the caller does.
struct Nobody;

impl Strategy for Nobody {
    fn submit(&self, work: Work) -> Spent {
        drop(work);
        Spent::default()
    }
}

/// Calls of one measurement; a few milliseconds to some hundred.
const CALLS: u64 = 4_000_000;
/// A span of a library is stored with a time, and costs more.
const EVENTS: u64 = 200_000;
const PRODUCERS: [u64; 3] = [1, 2, 8];

/// Runs the experiment.
///
/// # Errors
/// None of its own.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "defer-append",
        "appending calls with two words, beside puffin's scopes and fastrace's spans",
        "one session",
    );
    one_call(context, &mut report);
    throughput(context, &mut report);
    Ok(report)
}

fn one_call(context: &Context, report: &mut Report) {
    fastrace::set_reporter(Forgets, Config::default());
    let kept = Environment::<CallsBuffer>::new(Sum::default());
    let thrown: Environment<CallsBuffer> = Settings::new(Nobody).environment(Sum::default());
    let producer = thrown.producer();
    let sum = Sum::default();
    let cells: [(&str, &dyn Fn() -> f64); 7] = [
        ("the loop itself", &|| per_call(CALLS, |_| {})),
        ("the body itself", &|| {
            per_call(CALLS, |i| sum.call(i, i + 1))
        }),
        ("deferred, a producer in hand", &|| {
            per_call(CALLS, |i| producer.call(i, i + 1))
        }),
        ("deferred, by the environment", &|| {
            per_call(CALLS, |i| thrown.call(i, i + 1))
        }),
        ("deferred, adaptive", &|| {
            per_call(CALLS, |i| kept.call(i, i + 1))
        }),
        ("puffin, a scope", &|| {
            puffin::set_scopes_on(true);
            let each = per_call(EVENTS, |i| {
                puffin::profile_scope!("call");
                black_box(i);
            });
            puffin::GlobalProfiler::lock().new_frame();
            each
        }),
        ("fastrace, a local span", &|| {
            let root = Span::root("root", SpanContext::random());
            let _in_root = root.set_local_parent();
            per_call(EVENTS / 20, |i| {
                let _span = LocalSpan::enter_with_local_parent("call");
                black_box(i);
            })
        }),
    ];
    // The capacity that is found settles first.
    for _ in 0..3 {
        for (_, measure) in &cells {
            measure();
        }
    }
    let mut times = vec![Vec::new(); cells.len()];
    for (_, cell) in interleaved(0..cells.len(), context.rounds(31, 5), 12) {
        times[cell].push(cells[cell].1());
    }
    let mut table = Table::new("one call, ns", &["what", "median", "least"]);
    for ((name, _), times) in cells.iter().zip(&times) {
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        table.row([(*name).to_owned(), number(median(times)), number(least)]);
        report.figure(
            format!("{}_ns", name.replace([',', ' '], "_").replace("__", "_")),
            median(times),
        );
    }
    report.tables.push(table);
    report.figure("capacity_found", f64::from(kept.capacity()));
    report.bars.push(Bar::at_most(
        "a deferred call with two words, by a producer in hand, ns",
        median(&times[2]),
        2.5,
    ));
    report.bars.push(Bar::at_most(
        "a deferred call with two words, by the environment, ns",
        median(&times[3]),
        2.5,
    ));
    for (other, name) in [(5, "puffin"), (6, "fastrace")] {
        report.bars.push(Bar::at_most(
            format!("a deferred call over an event of {name}"),
            paired_ratio(&times[3], &times[other]).median,
            1.0,
        ));
    }
    report.note(
        "The first two deferred rows hand buffers to a strategy that throws them away: exchange of buffers included, \
         execution not. Adaptive: the same while consumers execute the calls. Puffin and fastrace store two times, \
         or a duration, with each event, which costs most of what they take; a deferred call has none unless it is \
         given one.",
    );
}

fn per_call(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let began = Instant::now();
    for index in 0..calls {
        call(black_box(index));
    }
    began.elapsed().as_secs_f64() * 1e9 / calls as f64
}

struct Forgets;

impl Reporter for Forgets {
    fn report(&mut self, spans: Vec<SpanRecord>) {
        drop(spans);
    }
}

fn throughput(context: &Context, report: &mut Report) {
    let mut table = Table::new(
        "million calls a second, executed",
        &["producers", "adaptive", "pool"],
    );
    for producers in PRODUCERS {
        let mut rates = [Vec::new(), Vec::new()];
        for (_, cell) in interleaved(0..2, context.rounds(7, 2), 13) {
            rates[cell].push(match cell {
                0 => rate(Settings::new(Adaptive::new()), producers),
                _ => rate(Settings::new(Pool::new(available(), 16)), producers),
            });
        }
        let [adaptive, pool] = rates.map(|rates| median(&rates));
        report.figure(
            format!("adaptive.{producers}_producers.million_calls_per_s"),
            adaptive,
        );
        report.figure(
            format!("pool.{producers}_producers.million_calls_per_s"),
            pool,
        );
        table.row([producers.to_string(), number(adaptive), number(pool)]);
    }
    report.tables.push(table);
}

/// Million calls a second, from the first that is made until the last is executed.
fn rate(settings: Settings, producers: u64) -> f64 {
    let environment: Environment<CallsBuffer> = settings.environment(Sum::default());
    let each = 3 * CALLS / producers;
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                let producer = environment.producer();
                (0..each).for_each(|index| producer.call(black_box(index), index));
            });
        }
    });
    environment.finish();
    (each * producers) as f64 / began.elapsed().as_secs_f64() / 1e6
}
