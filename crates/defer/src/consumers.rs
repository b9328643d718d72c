//! Threads that do nothing but process buffers, and the two strategies that have them.
//!
//! The threads start with the first buffer, have signals blocked (the program's signals are for the
//! program's threads), and end with their strategy, when the queue is empty. Those that are to run where a CPU
//! is free ask for one first (`gate.rs`), and hold nothing while they do.
#![allow(
    unsafe_code,
    reason = "scheduling of our own threads: system calls on plain data"
)]

use crate::capacity::{Capacity, available};
use crate::gate::Gate;
use crate::queue::Queue;
use crate::signals::SignalsBlocked;
use crate::strategy::{Spent, Strategy, run_here};
use crate::sync::{Sleeper, lock};
use crate::work::{By, Work};
use std::os::unix::thread::JoinHandleExt as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A consumer beyond the capacity looks again so often.
const LOOKS: Duration = Duration::from_millis(20);

/// A consumer that found a CPU free takes buffers for so long before it asks again: asking takes two switches
/// between threads, and what wants the CPU meanwhile has to share it.
const KEEPS: Duration = Duration::from_micros(500);

/// Buffers that may wait in the queue of an adaptive strategy: few, so that memory stays small and warm
/// (the paper's Tables 1 and 2: with large buffers, short queues are best).
const ADAPTIVE_QUEUE: usize = 16;

struct Consumers {
    shared: Arc<Shared>,
    most: u32,
    where_free: bool,
    /// Started with the first buffer.
    threads: OnceLock<Mutex<Vec<JoinHandle<()>>>>,
}

struct Shared {
    queue: Queue<Work>,
    capacity: Arc<dyn Capacity>,
    /// Of the consumers that ask for a CPU.
    scouts: Mutex<Vec<Scout>>,
}

/// A consumer's gate, and the thread that answers there.
#[derive(Clone)]
struct Scout {
    gate: Arc<Gate>,
    thread: Sleeper,
}

impl Consumers {
    fn new(most: u32, queue: usize, where_free: bool, capacity: Arc<dyn Capacity>) -> Consumers {
        Consumers {
            shared: Arc::new(Shared {
                queue: Queue::new(queue),
                capacity,
                scouts: Mutex::default(),
            }),
            most,
            where_free,
            threads: OnceLock::new(),
        }
    }

    /// The queue, and how many threads there are to take from it: fewer than wanted, or none, where the
    /// system allows no more.
    fn ready(&self) -> (&Queue<Work>, usize) {
        let threads = self.threads.get_or_init(|| Mutex::new(self.start()));
        (&self.shared.queue, lock(threads).len())
    }

    fn start(&self) -> Vec<JoinHandle<()>> {
        let _masked = SignalsBlocked::now();
        let start = |index| {
            let shared = Arc::clone(&self.shared);
            let where_free = self.where_free;
            std::thread::Builder::new()
                .name(format!("corewise-{index}"))
                .stack_size(1 << 20)
                .spawn(move || {
                    let scout = match where_free {
                        true => shared.scout(index),
                        false => None,
                    };
                    if where_free && scout.is_none() {
                        lowest_priority();
                    }
                    consume(&shared, index, scout.as_ref());
                })
        };
        (0..self.most)
            .map_while(|index| start(index).ok())
            .collect()
    }

    fn help(&self) -> bool {
        match self.shared.queue.try_pop() {
            Some(work) => {
                work.run(By::Waiter);
                true
            }
            None => false,
        }
    }
}

impl Drop for Consumers {
    fn drop(&mut self) {
        self.shared.queue.close();
        for scout in lock(&self.shared.scouts).iter() {
            scout.gate.open(&scout.thread);
        }
        let Some(threads) = self.threads.get() else {
            return;
        };
        // Rust's own handle of the current thread is not to be had in destructors at a thread's end.
        // SAFETY: asks which thread this is.
        let this = unsafe { libc::pthread_self() };
        for thread in lock(threads).drain(..) {
            // The last buffer of an environment may be the last thing that holds its strategy.
            if thread.as_pthread_t() != this {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// A scout for the consumer that calls this. `None`: the system allows no further thread. It is not joined:
    /// where no CPU is free it ends late, and it uses nothing but its gate. (The C library keeps this library
    /// loaded meanwhile, as it does for every thread that has destructors of thread-locals to run.)
    fn scout(&self, index: u32) -> Option<Scout> {
        let gate = Arc::new(Gate::new(Sleeper::this()));
        let answers = Arc::clone(&gate);
        let thread = std::thread::Builder::new()
            .name(format!("corewise-idle-{index}"))
            .stack_size(1 << 16)
            .spawn(move || {
                lowest_priority();
                answers.scout(&Sleeper::this());
            });
        let scout = Scout {
            gate,
            thread: Sleeper::of(thread.ok()?.thread().clone()),
        };
        lock(&self.scouts).push(scout.clone());
        // Whoever closes the queue opens the gates after that, of those that are known then.
        if self.queue.is_closed() {
            scout.gate.open(&scout.thread);
        }
        Some(scout)
    }
}

fn consume(shared: &Shared, index: u32, scout: Option<&Scout>) {
    let mut found: Option<Instant> = None;
    loop {
        // The first one always runs: producers may wait for room.
        while index > 0 && index >= shared.capacity.threads() && !shared.queue.is_closed() {
            std::thread::sleep(LOOKS);
        }
        let work = match scout {
            None => shared.queue.pop(),
            Some(_) if !shared.queue.wait() => None,
            Some(scout) => {
                if found.is_none_or(|found| found.elapsed() > KEEPS) {
                    scout.gate.pass(&scout.thread);
                    found = Some(Instant::now());
                }
                match shared.queue.try_pop() {
                    None => continue,
                    work => work,
                }
            }
        };
        match work {
            Some(work) => work.run(By::Consumer),
            None => return,
        }
    }
}

/// Linux's lowest: runs where nothing else wants the CPU. Where that is not allowed, the thread runs as it
/// is.
fn lowest_priority() {
    // SAFETY: a plain structure, and a system call on the calling thread.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
}

/// A fixed number of threads processes all buffers; producers wait where the queue is full (section 4.2).
///
/// Choose it where producers must never process anything themselves. Where they keep all CPUs busy, it only
/// takes CPUs from them.
pub struct Pool(Consumers);

impl Pool {
    /// `threads` consumers at the priority of the program (at least one), and a queue of at most `queue`
    /// buffers (at least one).
    pub fn new(threads: u32, queue: usize) -> Pool {
        let threads = threads.max(1);
        Pool(Consumers::new(threads, queue, false, Arc::new(threads)))
    }

    /// The same with consumers that run only where a CPU is free: the paper's control (section 5.3). Where none
    /// ever is, producers wait.
    pub fn at_lowest_priority(threads: u32, queue: usize) -> Pool {
        let threads = threads.max(1);
        Pool(Consumers::new(threads, queue, true, Arc::new(threads)))
    }
}

impl Strategy for Pool {
    fn submit(&self, work: Work) -> Spent {
        let (queue, threads) = self.0.ready();
        if threads == 0 {
            return run_here(work);
        }
        let Err(work) = queue.try_push(work) else {
            return Spent::default();
        };
        let began = Instant::now();
        let pushed = queue.push(work);
        let waiting = began.elapsed();
        match pushed {
            Ok(()) => Spent {
                waiting,
                ..Spent::default()
            },
            Err(work) => Spent {
                waiting,
                ..run_here(work)
            },
        }
    }

    fn help(&self) -> bool {
        self.0.help()
    }

    fn queued(&self) -> usize {
        self.0.shared.queue.len()
    }
}

/// Consumers, one for each CPU, take buffers where CPUs are free; where the queue is full, nobody kept up, and the
/// producer processes its buffer itself. It never waits (section 4.3).
///
/// Whether a CPU is free is found out by a second thread for each consumer, which has the lowest priority and
/// does nothing else; the paper's consumers have it themselves. Those would hold what they process, and locks,
/// while other processes keep them from running, and everybody who waits for it.
///
/// The default. Buffers of one thread are often processed out of order.
pub struct Adaptive(Consumers);

impl Adaptive {
    /// Consumers as many as CPUs may be used, and a short queue.
    pub fn new() -> Adaptive {
        Adaptive::with_queue(ADAPTIVE_QUEUE)
    }

    /// The same with a queue of at most `queue` buffers (at least one).
    pub fn with_queue(queue: usize) -> Adaptive {
        let cpus = available();
        Adaptive(Consumers::new(cpus, queue, true, Arc::new(cpus)))
    }

    /// Consumers follow a capacity that may change while they run, up to one for each CPU. At least one
    /// runs.
    pub fn following(capacity: impl Capacity, queue: usize) -> Adaptive {
        Adaptive(Consumers::new(available(), queue, true, Arc::new(capacity)))
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Adaptive::new()
    }
}

impl Strategy for Adaptive {
    fn submit(&self, work: Work) -> Spent {
        let (queue, threads) = self.0.ready();
        if threads == 0 {
            return run_here(work);
        }
        match queue.try_push(work) {
            Ok(()) => Spent::default(),
            Err(work) => run_here(work),
        }
    }

    fn help(&self) -> bool {
        self.0.help()
    }

    fn queued(&self) -> usize {
        self.0.shared.queue.len()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.0.most).finish()
    }
}

impl std::fmt::Debug for Adaptive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Adaptive").field(&self.0.most).finish()
    }
}
