//! Each call is executed exactly once, in order within its buffer, whatever the strategy, the capacity, the
//! panics and the ends of threads; and arguments are dropped once.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Lazy;
use corewise_defer::{
    Adaptive, Environment, Pending, Pool, Process, Report, Settings, Spent, Strategy, Synchronous,
    Work, deferred, promise,
};
use proptest::prelude::{ProptestConfig, Strategy as _, any, prop_oneof, proptest};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// An argument that owns memory, and is counted while it lives.
struct Counted {
    value: Box<u64>,
    alive: Arc<AtomicI64>,
}

impl Counted {
    fn new(value: u64, alive: &Arc<AtomicI64>) -> Counted {
        alive.fetch_add(1, Ordering::Relaxed);
        Counted {
            value: Box::new(value),
            alive: Arc::clone(alive),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

#[deferred]
trait Calls {
    fn number(&self, thread: u32, number: u64);
    fn owned(&self, thread: u32, number: Counted, text: String);
    fn panics(&self, thread: u32, number: Counted);
    fn nothing(&self);
}

/// What was executed, by buffer.
#[derive(Default)]
struct Seen {
    buffers: Mutex<Vec<Vec<(u32, u64)>>>,
    nothings: AtomicU64,
}

struct Buffer<'a> {
    seen: &'a Seen,
    calls: Mutex<Vec<(u32, u64)>>,
}

impl Calls for Buffer<'_> {
    fn number(&self, thread: u32, number: u64) {
        self.calls.lock().unwrap().push((thread, number));
    }

    fn owned(&self, thread: u32, number: Counted, text: String) {
        assert_eq!(text, number.value.to_string());
        self.number(thread, *number.value);
    }

    fn panics(&self, thread: u32, number: Counted) {
        self.number(thread, *number.value);
        // Without the hook's message.
        std::panic::resume_unwind(Box::new(()));
    }

    fn nothing(&self) {
        self.seen.nothings.fetch_add(1, Ordering::Relaxed);
    }
}

struct Collect(Arc<Seen>);

impl Process<CallsBuffer> for Collect {
    fn process(&self, calls: &mut Pending<'_, CallsBuffer>) {
        let buffer = Buffer {
            seen: &self.0,
            calls: Mutex::default(),
        };
        calls.execute(&buffer);
        let calls = buffer.calls.into_inner().unwrap();
        self.0.buffers.lock().unwrap().push(calls);
    }
}

#[derive(Clone, Copy, Debug)]
enum Which {
    Synchronous,
    Pool(u32, usize),
    Lowest(u32, usize),
    Adaptive(usize),
    /// Gives buffers only to those who wait, and those the newest first.
    Lazy,
}

impl Drop for Lazy {
    fn drop(&mut self) {
        while self.help() {}
    }
}

fn settings(which: Which) -> Settings {
    match which {
        Which::Synchronous => Settings::new(Synchronous),
        Which::Pool(threads, queue) => Settings::new(Pool::new(threads, queue)),
        Which::Lowest(threads, queue) => Settings::new(Pool::at_lowest_priority(threads, queue)),
        Which::Adaptive(queue) => Settings::new(Adaptive::with_queue(queue)),
        Which::Lazy => Settings::new(Lazy::default()),
    }
}

fn strategies() -> impl proptest::strategy::Strategy<Value = Which> {
    prop_oneof![
        proptest::strategy::Just(Which::Synchronous),
        (1_u32..4, 1_usize..5).prop_map(|(threads, queue)| Which::Pool(threads, queue)),
        (1_u32..3, 1_usize..5).prop_map(|(threads, queue)| Which::Lowest(threads, queue)),
        (1_usize..5).prop_map(Which::Adaptive),
        proptest::strategy::Just(Which::Lazy),
    ]
}

/// What a thread does with its calls.
#[derive(Clone, Copy, Debug)]
enum Step {
    Number,
    Owned,
    Panics,
    Nothing,
    Submit,
    Wait,
    Capacity(u32),
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => proptest::strategy::Just(Step::Number),
        4 => proptest::strategy::Just(Step::Owned),
        1 => proptest::strategy::Just(Step::Panics),
        1 => proptest::strategy::Just(Step::Nothing),
        1 => proptest::strategy::Just(Step::Submit),
        1 => proptest::strategy::Just(Step::Wait),
        1 => (1_u32..40).prop_map(Step::Capacity),
    ];
    proptest::collection::vec(step, 0..200)
}

/// Does the steps; how many calls of each kind those were: numbered, panicking, others.
fn perform(
    steps: &[Step],
    thread: u32,
    calls: &impl Calls,
    environment: &Environment<CallsBuffer>,
    alive: &Arc<AtomicI64>,
) -> [u64; 3] {
    let [mut numbered, mut panicking, mut others] = [0; 3];
    for step in steps {
        match step {
            Step::Number => calls.number(thread, numbered),
            Step::Owned => {
                calls.owned(thread, Counted::new(numbered, alive), numbered.to_string());
            }
            Step::Panics => calls.panics(thread, Counted::new(numbered, alive)),
            Step::Nothing => calls.nothing(),
            Step::Submit => environment.process_current(),
            Step::Wait => environment.checkpoint().wait(),
            Step::Capacity(calls) => environment.set_capacity(*calls),
        }
        numbered += u64::from(matches!(step, Step::Number | Step::Owned | Step::Panics));
        panicking += u64::from(matches!(step, Step::Panics));
        others += u64::from(matches!(step, Step::Nothing));
    }
    [numbered, panicking, others]
}

fn check(which: Which, capacity: u32, threads: &[Vec<Step>], by_producer: bool, exchange: bool) {
    let seen = Arc::new(Seen::default());
    let alive = Arc::new(AtomicI64::new(0));
    let environment: Environment<CallsBuffer> = settings(which)
        .capacity(capacity)
        .environment_around(Collect(Arc::clone(&seen)));
    let made = std::thread::scope(|scope| {
        let each = (0..).zip(threads).map(|(thread, steps)| {
            let (environment, alive) = (&environment, &alive);
            scope.spawn(move || match by_producer {
                true => {
                    let producer = environment.producer();
                    perform(steps, thread, &producer, environment, alive)
                }
                false => perform(steps, thread, environment, environment, alive),
            })
        });
        let each = each.collect::<Vec<_>>();
        if exchange {
            environment.set_strategy(Adaptive::with_queue(2));
        }
        let made = each.into_iter().map(|thread| thread.join().unwrap());
        made.collect::<Vec<_>>()
    });
    // The ends of scoped threads are not waited for to their very end.
    environment.finish();
    while environment.report().calls < made.iter().map(|m| m[0] + m[2]).sum() {
        environment.finish();
        std::thread::yield_now();
    }
    let report = environment.report();
    drop(environment);
    let buffers = seen.buffers.lock().unwrap();
    let mut all = Vec::new();
    for buffer in buffers.iter() {
        all.extend_from_slice(buffer);
        let of_one = buffer.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(of_one, "in order, and of one thread: {buffer:?}");
    }
    all.sort_unstable();
    let expected = (0..)
        .zip(&made)
        .flat_map(|(thread, [numbered, ..])| (0..*numbered).map(move |number| (thread, number)));
    assert!(all.into_iter().eq(expected), "each exactly once");
    let sum = |index: usize| made.iter().map(|m| m[index]).sum::<u64>();
    assert_eq!(seen.nothings.load(Ordering::Relaxed), sum(2));
    assert_eq!(
        alive.load(Ordering::Relaxed),
        0,
        "every argument is dropped"
    );
    assert_eq!((report.panics, report.lost, report.pending), (sum(1), 0, 0));
    assert_eq!(report.calls, sum(0) + sum(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn each_call_is_executed_exactly_once_and_in_order_within_its_buffer(
        which in strategies(),
        capacity in 1_u32..40,
        threads in proptest::collection::vec(steps(), 1..4),
        by_producer in any::<bool>(),
        exchange in any::<bool>(),
    ) {
        check(which, capacity, &threads, by_producer, exchange);
    }
}

/// Drops every buffer.
struct Careless;

impl Strategy for Careless {
    fn submit(&self, work: Work) -> Spent {
        drop(work);
        Spent::default()
    }
}

fn with_owned(strategy: impl Strategy, calls: u64) -> (Report, Arc<AtomicI64>) {
    let alive = Arc::new(AtomicI64::new(0));
    let environment: Environment<CallsBuffer> = Settings::new(strategy)
        .capacity(8)
        .environment_around(Collect(Arc::default()));
    for number in 0..calls {
        environment.owned(0, Counted::new(number, &alive), number.to_string());
    }
    environment.process_current();
    environment.checkpoint().wait();
    (environment.report(), alive)
}

#[test]
fn arguments_of_a_buffer_that_is_thrown_away_are_dropped_once_and_its_calls_are_counted_as_lost() {
    let (report, alive) = with_owned(Careless, 20);
    assert_eq!((report.lost, report.calls, report.pending), (20, 0, 0));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

/// Executes nothing.
struct Leaves;

impl Process<CallsBuffer> for Leaves {
    fn process(&self, _: &mut Pending<'_, CallsBuffer>) {
        std::panic::resume_unwind(Box::new(()));
    }
}

#[test]
fn what_a_process_leaves_when_it_panics_is_dropped_and_counted() {
    let alive = Arc::new(AtomicI64::new(0));
    let environment = Settings::new(Synchronous)
        .capacity(4)
        .environment_around(Leaves);
    for number in 0..6 {
        environment.panics(0, Counted::new(number, &alive));
    }
    environment.finish();
    let report = environment.report();
    assert_eq!((report.lost, report.panics, report.calls), (6, 2, 0));
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

#[deferred]
trait Again {
    fn again(&self, left: u32);
}

/// Its bodies defer calls to the environment that they run in.
#[derive(Clone, Default)]
struct Repeats {
    environment: Arc<Mutex<Option<Arc<Environment<AgainBuffer>>>>>,
    calls: Arc<AtomicU64>,
}

impl Again for Repeats {
    fn again(&self, left: u32) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let environment = self.environment.lock().unwrap().clone().unwrap();
        for _ in 0..u32::from(left > 0) * 2 {
            environment.again(left - 1);
        }
    }
}

#[test]
fn bodies_may_defer_calls_themselves() {
    for capacity in [1, 3, 1000] {
        let target = Repeats::default();
        let environment = Settings::new(Synchronous)
            .capacity(capacity)
            .environment(target.clone());
        let environment = Arc::new(environment);
        *target.environment.lock().unwrap() = Some(Arc::clone(&environment));
        environment.again(9);
        while target.calls.load(Ordering::Relaxed) < (1 << 10) - 1 {
            environment.finish();
        }
        assert_eq!(target.calls.load(Ordering::Relaxed), (1 << 10) - 1);
        *target.environment.lock().unwrap() = None;
    }
}

#[test]
fn environments_of_one_trait_do_not_mix() {
    let seen: Vec<Arc<Seen>> = (0..20).map(|_| Arc::default()).collect();
    let environments: Vec<Environment<CallsBuffer>> = seen
        .iter()
        .map(|seen| Environment::around(Collect(Arc::clone(seen))))
        .collect();
    for number in 0..100 {
        for environment in &environments {
            environment.number(0, number);
        }
    }
    drop(environments);
    for seen in seen {
        let all = seen.buffers.lock().unwrap().concat();
        assert!(all.into_iter().eq((0..100).map(|number| (0, number))));
    }
}

#[deferred]
trait Asked {
    fn asked(&self, value: u64, answer: corewise_defer::Promise<u64>);
    fn told(&self, value: u64, room: corewise_defer::Semaphore);
}

#[derive(Default)]
struct Answers;

impl Asked for Answers {
    fn asked(&self, value: u64, answer: corewise_defer::Promise<u64>) {
        if value > 0 {
            answer.keep(value * 2);
        }
    }

    fn told(&self, _: u64, room: corewise_defer::Semaphore) {
        room.release();
    }
}

#[test]
fn futures_and_semaphores_come_back_from_calls_that_nobody_else_would_execute() {
    let environment = Settings::new(Lazy::default()).environment(Answers);
    let environment: Environment<AskedBuffer> = environment;
    let (first, outcome) = promise();
    let (second, broken) = promise();
    environment.asked(21, first);
    environment.asked(0, second);
    assert_eq!(outcome.try_take(), None, "it is only stored");
    assert_eq!(outcome.wait(&environment), Some(42));
    assert_eq!(broken.wait(&environment), None);
    let room = corewise_defer::Semaphore::new(0);
    environment.told(1, room.clone());
    room.acquire(&environment);
    assert!(!room.try_acquire());
}
