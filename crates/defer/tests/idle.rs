//! What waits in the buffers of idle threads is processed by others that ask for it: once, whole, and before they go
//! on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::Lazy;
use corewise_defer::{Environment, Pending, Process, Settings, Strategy, Synchronous, deferred};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[deferred]
trait Calls {
    fn call(&self, thread: u32, number: u32);
}

/// What was executed, by buffer.
type Seen = Arc<Mutex<Vec<Vec<(u32, u32)>>>>;

struct Collect(Seen);

struct Buffer(Mutex<Vec<(u32, u32)>>);

impl Calls for Buffer {
    fn call(&self, thread: u32, number: u32) {
        self.0.lock().unwrap().push((thread, number));
    }
}

impl Process<CallsBuffer> for Collect {
    fn process(&self, calls: &mut Pending<'_, CallsBuffer>) {
        let buffer = Buffer(Mutex::default());
        calls.execute(&buffer);
        self.0.lock().unwrap().push(buffer.0.into_inner().unwrap());
    }
}

fn environment(strategy: impl Strategy, capacity: u32) -> (Environment<CallsBuffer>, Seen) {
    let seen = Seen::default();
    let settings = Settings::new(strategy).capacity(capacity);
    let environment = settings.environment_around(Collect(Arc::clone(&seen)));
    (environment, seen)
}

fn seen(seen: &Seen) -> Vec<(u32, u32)> {
    seen.lock().unwrap().concat()
}

#[test]
fn who_asks_processes_what_idle_threads_called_and_its_own_with_it_if_there_is_anything() {
    let (environment, all) = environment(Synchronous, 10);
    let [idle, busy] = [(); 2].map(|()| environment.producer());
    idle.call(0, 1);
    busy.call(1, 1);
    idle.call(0, 2);
    busy.process_idle();
    assert_eq!(all.lock().unwrap().len(), 1);
    assert_eq!(seen(&all), [(0, 1), (0, 2), (1, 1)]);
    busy.call(1, 2);
    busy.process_idle();
    assert_eq!(seen(&all).len(), 3);
    busy.process_current();
    idle.call(0, 3);
    busy.process_idle();
    assert_eq!(seen(&all)[3..], [(1, 2), (0, 3)]);
}

#[test]
fn threads_that_exchanged_a_buffer_since_are_not_idle() {
    let (environment, all) = environment(Synchronous, 10);
    let [other, asks] = [(); 2].map(|()| environment.producer());
    other.call(0, 1);
    other.process_current();
    other.call(0, 2);
    asks.process_idle();
    assert_eq!(seen(&all), [(0, 1)]);
    asks.process_current();
    asks.process_idle();
    assert_eq!(seen(&all), [(0, 1), (0, 2)]);
}

#[test]
fn a_new_thread_that_never_exchanged_one_is_idle_and_an_older_one_may_be_for_a_new_one() {
    let (environment, all) = environment(Synchronous, 10);
    let older = environment.producer();
    older.call(0, 1);
    older.process_current();
    older.call(0, 2);
    let newer = environment.producer();
    newer.call(1, 1);
    newer.process_idle();
    assert_eq!(seen(&all), [(0, 1), (0, 2), (1, 1)]);
    newer.call(1, 2);
    older.process_idle();
    assert_eq!(seen(&all)[3..], [(1, 2)]);
}

#[test]
fn what_waits_in_a_queue_comes_first() {
    let (environment, all) = environment(Lazy::default(), 10);
    let [idle, asks] = [(); 2].map(|()| environment.producer());
    idle.call(0, 1);
    idle.process_current();
    idle.call(0, 2);
    asks.process_current();
    asks.process_idle();
    assert_eq!(seen(&all), [(0, 1), (0, 2)]);
}

#[test]
fn calls_of_many_idle_threads_share_a_buffer_if_there_is_room() {
    for (capacity, buffers) in [(1, 3), (4, 3), (7, 2), (100, 1)] {
        let (environment, all) = environment(Synchronous, 4);
        let idle: Vec<_> = (0..5).map(|_| environment.producer()).collect();
        environment.set_capacity(capacity);
        let asks = environment.producer();
        for number in 0..3 {
            for (thread, idle) in (0..).zip(&idle) {
                idle.call(thread, number);
            }
        }
        asks.process_idle();
        let threads = (0..5).flat_map(|thread| (0..3).map(move |number| (thread, number)));
        assert!(seen(&all).into_iter().eq(threads), "{capacity}");
        assert_eq!(all.lock().unwrap().len(), buffers, "{capacity}");
        environment.finish();
        let report = environment.report();
        assert_eq!((report.calls, report.lost, report.pending), (15, 0, 0));
    }
}

#[test]
fn what_only_threads_that_are_not_idle_gave_to_a_queue_is_left_there() {
    let (environment, all) = environment(Lazy::default(), 10);
    let [busy, idle, asks] = [(); 3].map(|()| environment.producer());
    asks.process_current();
    busy.call(0, 1);
    busy.process_current();
    idle.call(1, 1);
    asks.process_idle();
    assert_eq!(seen(&all), [(1, 1)]);
    asks.process_current();
    asks.process_idle();
    assert_eq!(seen(&all), [(1, 1), (0, 1)]);
}

#[deferred]
trait Held {
    fn held(&self);
}

/// A body says that it has begun, and ends when it is told.
struct Holds {
    begun: SyncSender<()>,
    told: Mutex<Receiver<()>>,
    ended: Arc<Mutex<bool>>,
}

impl Held for Holds {
    fn held(&self) {
        self.begun.send(()).unwrap();
        self.told.lock().unwrap().recv().unwrap();
        *self.ended.lock().unwrap() = true;
    }
}

#[test]
fn what_somebody_else_took_from_an_idle_thread_is_waited_for() {
    let (begun, has_begun) = sync_channel(1);
    let (tells, told) = sync_channel(1);
    let ended = Arc::new(Mutex::new(false));
    let environment: Environment<HeldBuffer> = Settings::new(Synchronous).environment(Holds {
        begun,
        told: Mutex::new(told),
        ended: Arc::clone(&ended),
    });
    let idle = environment.producer();
    idle.held();
    std::thread::scope(|scope| {
        scope.spawn(|| environment.process_idle());
        has_begun.recv().unwrap();
        let waits = scope.spawn(|| {
            let began = Instant::now();
            environment.process_idle();
            // On a busy machine it may have given up.
            *ended.lock().unwrap() || began.elapsed() >= Duration::from_secs(1)
        });
        std::thread::yield_now();
        tells.send(()).unwrap();
        assert!(waits.join().unwrap());
    });
}

#[test]
fn nobody_waits_for_ever_for_what_somebody_took_and_does_not_process() {
    let (begun, has_begun) = sync_channel(1);
    let (tells, told) = sync_channel(1);
    let environment: Environment<HeldBuffer> = Settings::new(Synchronous).environment(Holds {
        begun,
        told: Mutex::new(told),
        ended: Arc::default(),
    });
    let idle = environment.producer();
    idle.held();
    std::thread::scope(|scope| {
        scope.spawn(|| environment.process_idle());
        has_begun.recv().unwrap();
        environment.process_idle();
        environment.process_idle();
        assert_eq!(environment.report().calls, 0);
        tells.send(()).unwrap();
    });
}

#[test]
fn others_ask_for_checkpoints_in_a_threads_calls_and_process_what_it_did_not_give_away() {
    let (environment, all) = environment(Synchronous, 10);
    let producer = environment.producer();
    let watch = producer.watch();
    std::thread::scope(|scope| {
        let other = watch.clone();
        let nothing = scope.spawn(move || other.checkpoint().unwrap().is_processed());
        assert!(nothing.join().unwrap());
        producer.call(0, 1);
        producer.call(0, 2);
        let other = watch.clone();
        let before_and_after = scope.spawn(move || {
            let behind = other.checkpoint().unwrap();
            let before = behind.is_processed();
            other.process();
            (before, behind.is_processed())
        });
        assert_eq!(before_and_after.join().unwrap(), (false, true));
    });
    assert_eq!(seen(&all), [(0, 1), (0, 2)]);
    producer.call(0, 3);
    drop(producer);
    assert!(watch.checkpoint().unwrap().is_processed());
    assert_eq!(seen(&all).len(), 3);
}
