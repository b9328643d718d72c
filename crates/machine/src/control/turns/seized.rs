//! Threads stopped by ptrace.
//!
//! # How it goes
//!
//! `stop` asks each thread what it does (its `stat`), and seizes and interrupts those that run: the kernel stops
//! them at once if they are on a CPU in user mode, else when they next come there; in either case they execute no
//! instruction of the program's any more. That all have stopped is known when they say so, or when their processes'
//! CPU clocks stand still: those that wait for a CPU are left to find out when they get one. A thread that sleeps is left alone, because its system call would say
//! that it was interrupted (EINTR), which programs may not expect. Then all is listed again until nothing new runs.
//! `go` releases what was seized.
//!
//! A thread may have gone to sleep between question and interruption. Its call is begun anew by the kernel, as
//! after a stop and a continuation; for those calls where the kernel does not ([signal(7)]: `epoll_wait`, `semop`
//! and others), we have it do so (on x86-64).
//!
//! # What the kernel does for us (ptrace(2), and its `kernel/ptrace.c`, `kernel/exit.c`, `kernel/signal.c`)
//!
//! - The tracer is a thread, and only it may trace: this is why [`Seizing`] cannot be sent to another. When it
//!   ends, in whichever way, its threads go on.
//! - A process that somebody has stopped (SIGSTOP, Ctrl-Z) stays stopped when it is released, and only the real
//!   parent is told.
//! - A signal that was about to be delivered when a thread was seized is ours to give back: with the release.
//! - Whoever is seized and ends is a zombie until the tracer takes note, if it is not its process's first
//!   thread, or not a child of the tracer's own process; what waits for it waits so long. So we look for such
//!   all the time. A child of this process is left to whoever waits for it here.
//! - The waits of other threads of this process see stops of its own children, too (CLD_TRAPPED).
//! - A thread that executes another program takes its process's number: then we trace a number that we never
//!   seized. It is found because we ask for whatever we trace.
//!
//! # Limits
//!
//! - A process is not found if it was made, and lost its parent, within one turn.
//! - A thread in the first microseconds of executing a set-user-ID program when it is seized: the kernel
//!   leaves out the other user's rights, as for every traced program, unless we are root.
//! - A thread that was seized in the kernel, and is in an uninterruptible sleep there, is not waited for. Should it
//!   come back within its program's next turn, it stands still until [`Means::go`] is called again.
//!
//! [signal(7)]: https://man7.org/linux/man-pages/man7/signal.7.html

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use super::rescue::Rescue;
use super::sys::{self, Change, Of, What, now_ns};
use super::tasks::{Does, Tasks, does_now};
use super::{Gone, Means, Refused, Stopped};
use crate::control::process::{Process, parent};

/// A thread is waited for no longer than this until it stands still.
const LONGEST_WAIT_NS: u64 = 2_000_000;

/// Listings in one stop before it is given up that new threads come all the time: the next look finds them.
const MOST_PASSES: u32 = 6;

/// So often a thread is tried once more that cannot be seized though nothing seems to stand against it.
const SEIZE_TRIES: u32 = 3;

/// Changes that are taken in at once; what is left is taken in next time.
const MOST_CHANGES: u32 = 1_000;

/// Stops and continues a process tree by ptrace.
#[derive(Debug)]
pub struct Seizing {
    root: i32,
    tasks: Tasks,
    held: BTreeMap<i32, Held>,
    /// Somebody else has stopped the program since it was let go last.
    by_others: bool,
    rescue: Option<Rescue>,
    /// The tracer is the thread that made this.
    _of_this_thread: PhantomData<*const ()>,
}

/// A thread that was seized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// It will stand still before it executes anything.
    Awaited,
    /// It stands still; it is owed this signal (0: none).
    Stopped { signal: i32, repaired: bool },
}

impl Seizing {
    /// For the process `pid` and all below it. Nothing is stopped yet.
    ///
    /// # Errors
    /// [`Refused`] where tracing is not allowed, or somebody else traces it.
    pub fn of(pid: i32) -> Result<Seizing, Refused> {
        sys::may_trace().map_err(|error| Refused {
            why: format!("ptrace is not allowed here ({error})"),
        })?;
        permitted(pid)?;
        let mut seizing = Seizing {
            root: pid,
            tasks: Tasks::below(pid),
            held: BTreeMap::new(),
            by_others: false,
            rescue: Rescue::of(pid),
            _of_this_thread: PhantomData,
        };
        seizing.tasks.list();
        Ok(seizing)
    }

    /// Seizes and interrupts what runs and is not held yet. How many.
    fn seize_running(&mut self) -> Result<u32, Refused> {
        let mut running = Vec::new();
        let held = &self.held;
        self.tasks
            .running(|tid| !held.contains_key(&tid), &mut running);
        let mut seized = 0;
        for tid in running {
            if !self.seize(tid)? {
                continue;
            }
            self.held.insert(tid, Held::Awaited);
            // It can only fail if the thread has ended: that is found when its stop is asked for.
            let _ = sys::interrupt(tid);
            seized += 1;
        }
        Ok(seized)
    }

    /// False if there is no such thread any more.
    fn seize(&self, tid: i32) -> Result<bool, Refused> {
        let mut tries = 0..SEIZE_TRIES;
        loop {
            let Err(error) = sys::seize(tid) else {
                return Ok(true);
            };
            // To a thread that has ended the kernel says EPERM, too.
            if does_now(tid) == Does::Ended {
                return Ok(false);
            }
            let tracer = status(tid, "TracerPid");
            if tracer == Some(rustix::thread::gettid().as_raw_nonzero().get()) {
                // By another number: see the module.
                return Ok(true);
            }
            // Whoever has just executed another program has this number now, not who was asked.
            if tries.next().is_none() || tracer.is_some_and(|tracer| tracer != 0) {
                return Err(self.refused(tid, &error));
            }
        }
    }

    fn refused(&self, tid: i32, error: &io::Error) -> Refused {
        self.traced(tid).unwrap_or_else(|| Refused {
            why: format!("{} may not be traced ({error})", self.name_of(tid)),
        })
    }

    /// That somebody traces this thread, if so.
    fn traced(&self, tid: i32) -> Option<Refused> {
        let tracer = status(tid, "TracerPid").filter(|tracer| *tracer != 0)?;
        let why = format!(
            "{} is traced by process {tracer} already",
            self.name_of(tid)
        );
        Some(Refused { why })
    }

    fn name_of(&self, tid: i32) -> String {
        match tid == self.root {
            true => "it".to_owned(),
            false => format!("its thread {tid}"),
        }
    }

    /// Asks whether a thread stands still now.
    fn ask(&mut self, tid: i32) {
        match sys::change(Of::Stop(tid)) {
            Ok(None) => {}
            Ok(Some(change)) => self.take(change),
            // Not ours any more: it took its process's number, or somebody else took note of its end.
            Err(_) => {
                self.held.remove(&tid);
            }
        }
    }

    fn take(&mut self, change: Change) {
        match change.what {
            What::Stopped { signal, by_others } => {
                let repaired = false;
                let stopped = Held::Stopped { signal, repaired };
                self.held.insert(change.tid, stopped);
                self.by_others |= by_others;
            }
            What::Ended => {
                self.held.remove(&change.tid);
            }
            What::StoppedBySomebody => {}
        }
    }

    /// Asks every thread that does not stand still yet. How many still do not.
    fn ask_awaited(&mut self) -> u32 {
        for tid in self.awaited() {
            self.ask(tid);
        }
        u32::try_from(self.awaited().len()).unwrap_or(u32::MAX)
    }

    fn awaited(&self) -> Vec<i32> {
        let awaited = self.held.iter().filter(|(_, held)| **held == Held::Awaited);
        awaited.map(|(tid, _)| *tid).collect()
    }

    /// Waits until nothing of the program is on a CPU any more, not longer than until `end_ns`. When that was, and
    /// how many threads do not know yet that they are to stand still: they wait for a CPU to find out.
    fn await_stops(&mut self, end_ns: u64) -> (u64, u32) {
        let mut nap = Duration::from_micros(5);
        loop {
            let left = self.ask_awaited();
            let now = now_ns();
            if left == 0 || now >= end_ns {
                return (now, left);
            }
            self.tasks.have_run();
            // One of them may need the very CPU that we are on.
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_micros(200));
            if !self.tasks.have_run() {
                return (now, left);
            }
            self.sweep();
        }
    }

    /// Takes note of threads that have ended, and finds what is traced and was not known. Mostly nothing: one
    /// question for all.
    fn sweep(&mut self) {
        for _ in 0..MOST_CHANGES {
            let Ok(Some(change)) = sys::change(Of::Any) else {
                return;
            };
            let for_its_parent = match change.what {
                What::StoppedBySomebody => true,
                What::Ended => is_own_child(change.tid),
                What::Stopped { .. } => false,
            };
            if for_its_parent {
                // Until that one has asked it hides all others from the question.
                for tid in self.held.keys().copied().collect::<Vec<_>>() {
                    self.take_note(tid);
                }
                return;
            }
            self.take_note(change.tid);
        }
    }

    /// Takes in what has become of a thread. The end of a child of this process is for whoever waits for it.
    fn take_note(&mut self, tid: i32) {
        if does_now(tid) != Does::Ended {
            self.ask(tid);
        } else {
            self.held.remove(&tid);
            if !is_own_child(tid) {
                // What it was is known: nothing further is to be done about it.
                let _ = sys::change(Of::Thread(tid));
            }
        }
    }

    /// Has the kernel begin calls anew that were interrupted by our doing.
    fn repair(&mut self) {
        for (tid, held) in &mut self.held {
            if let Held::Stopped { repaired, .. } = held
                && !std::mem::replace(repaired, true)
            {
                // It is killed, then.
                let _ = sys::restart_call(*tid);
            }
        }
    }

    fn stop_all(&mut self) -> Result<Stopped, Refused> {
        let mut stopped = Stopped::nobody();
        for pass in 0..MOST_PASSES {
            let mut seized = match pass {
                0 => self.seize_running()?,
                _ => 0,
            };
            if self.tasks.may_be_new() {
                self.tasks.list();
                seized += self.seize_running()?;
            }
            if seized > 0 {
                let (last_ns, awaited) = self.await_stops(stopped.began_ns + LONGEST_WAIT_NS);
                stopped.last_ns = last_ns;
                stopped.awaited = awaited;
                stopped.threads += seized;
            }
            if seized == 0 || !self.tasks.may_be_new() {
                break;
            }
        }
        self.repair();
        Ok(stopped)
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut Seizing) -> T) -> T {
        if let Some(rescue) = &self.rescue {
            rescue.begin();
        }
        let done = work(self);
        if let Some(rescue) = &self.rescue {
            rescue.end();
        }
        done
    }

    /// Releases a thread that stands still. False if that could not be done now.
    fn release(&mut self, tid: i32) -> bool {
        let Some(Held::Stopped { signal, repaired }) = self.held.get(&tid).copied() else {
            return false;
        };
        if !repaired {
            let _ = sys::restart_call(tid);
        }
        match sys::detach(tid, signal) {
            Ok(()) => {
                self.held.remove(&tid);
                true
            }
            // It has been killed meanwhile.
            Err(_) => {
                self.take_note(tid);
                false
            }
        }
    }
}

impl Means for Seizing {
    fn name(&self) -> &'static str {
        "ptrace"
    }

    /// Cost: some 20 µs a process. That threads of a process are traced one by one shows only at the first stop.
    fn begin(&mut self) -> Result<(), Refused> {
        if self.tasks.may_be_new() {
            self.tasks.list();
        }
        match self.tasks.processes().find_map(|pid| self.traced(pid)) {
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }

    /// Cost: some 8 µs a thread that runs, 2.5 µs one that sleeps; more where threads have been made since.
    fn stop(&mut self) -> Result<Stopped, Refused> {
        let stopped = self.guarded(Seizing::stop_all);
        if stopped.is_err() {
            self.go();
        } else {
            // From here on whoever runs has woken up.
            self.tasks.have_run();
        }
        stopped
    }

    /// Cost: 3 µs and 0.5 µs a process where nothing has happened.
    fn look(&mut self) -> Result<Stopped, Refused> {
        self.sweep();
        self.ask_awaited();
        if self.tasks.have_run() || self.tasks.may_be_new() {
            return self.stop();
        }
        self.repair();
        Ok(Stopped::nobody())
    }

    /// Cost: some 3 µs a thread.
    fn go(&mut self) -> Gone {
        let mut gone = Gone::default();
        let all: Vec<i32> = self.held.keys().copied().collect();
        let mut late = Vec::new();
        let mut release = |seizing: &mut Seizing, tid| {
            let released = seizing.release(tid);
            if released {
                gone.last_ns = now_ns();
                if gone.threads == 0 {
                    gone.first_ns = gone.last_ns;
                }
                gone.threads += 1;
            }
            released
        };
        for tid in all {
            if !release(self, tid) && self.held.contains_key(&tid) {
                late.push(tid);
            }
        }
        self.sweep();
        late.extend(self.held.keys().copied());
        late.sort_unstable();
        late.dedup();
        for tid in late {
            self.ask(tid);
            release(self, tid);
        }
        gone.by_others = std::mem::take(&mut self.by_others);
        gone.awaited = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        gone
    }
}

impl Drop for Seizing {
    fn drop(&mut self) {
        // What does not stand still yet the kernel releases when this thread ends; until then we wait for it.
        let end = now_ns() + 50 * LONGEST_WAIT_NS;
        while self.go().awaited > 0 && now_ns() < end {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Whether this process may trace that one, and nobody else does; by what the kernel says of it, without touching
/// it.
fn permitted(pid: i32) -> Result<(), Refused> {
    if let Some(tracer) = status(pid, "TracerPid").filter(|tracer| *tracer != 0) {
        return Err(Refused {
            why: format!("it is traced by process {tracer} already"),
        });
    }
    // Reading it asks the same question as tracing (ptrace(2), PTRACE_MODE_ATTACH_REALCREDS), filters of security
    // modules included. A kernel without the file says nothing by it.
    match std::fs::read(format!("/proc/{pid}/syscall")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Refused {
            why: format!(
                "it may not be traced by this user ({error}): it has other rights than we have, or \
                 /proc/sys/kernel/yama/ptrace_scope is above 1"
            ),
        }),
        _ if Process::of(pid).is_none() => Err(Refused {
            why: "it has ended".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether a thread is the first of a child process of this one: its end is for whoever waits for it here.
fn is_own_child(tid: i32) -> bool {
    is_first(tid) && parent(tid) == i32::try_from(std::process::id()).ok()
}

fn is_first(tid: i32) -> bool {
    status(tid, "Tgid") == Some(tid)
}

/// A number in a thread's `status`.
fn status(tid: i32, key: &str) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.strip_prefix(':')?.trim().parse().ok()
}
