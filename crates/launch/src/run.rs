//! The real run: the program in this process's place, as nearly as a parent process allows.
//!
//! It gets the same terminal, process group, folder, limits and signal settings that corewise
//! inherited, and the original descriptors. While it runs:
//!
//! - what the terminal sends (Ctrl-C, Ctrl-\, Ctrl-Z, a hang-up) reaches both; corewise lets it pass
//!   and leaves the answer to the program. Stopping stops both, so the shell sees a stopped job;
//! - what somebody sends to corewise alone (SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2) is
//!   passed on to the program;
//! - if the program stops itself by a job-control signal, corewise stops too, and continues it when
//!   it is itself continued;
//! - a thread of corewise's own may hold the program still at times (crate::stops);
//! - if corewise dies, the program goes on.
//!
//! # Safety
//! The signal handler reads atomics and calls `kill`, both allowed there. New processes are copies
//! that make only system calls until they execute the program or end.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::command::Command;
use crate::exec::{ExecImage, errno};
use crate::outcome::Outcome;
use crate::pump;
use crate::sandbox::Error;
use crate::sandbox::wire::{Event, RECORD, Stage};
use crate::signals::{self, Inherited};
use crate::stops;
use crate::{Spool, Status};

/// After this time whoever holds the program has taken note that it stands still, mostly.
const TRAP_IS_NOTED: Duration = Duration::from_millis(1);

/// A continuation is counted within this time, in milliseconds; mostly at once.
const LONGEST_COUNT_MS: u32 = 20;

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions<'a> {
    /// Standard input that was captured for probes: what was taken from a pipe is given back.
    /// `None` when nothing was captured.
    pub stdin: Option<&'a Spool>,
}

/// Runs the program to its end.
pub fn run(command: &Command, options: &RunOptions<'_>) -> Result<Outcome, Error> {
    start(command, options)?.wait()
}

/// Runs the program to its end; `started` is called with its process number as soon as it runs.
pub fn run_with(
    command: &Command,
    options: &RunOptions<'_>,
    started: impl FnOnce(i32),
) -> Result<Outcome, Error> {
    let running = start(command, options)?;
    started(running.pid());
    running.wait()
}

/// Starts the program. Only one real run can be under way in a process.
pub fn start(command: &Command, options: &RunOptions<'_>) -> Result<Running, Error> {
    let image = ExecImage::new(command)?;
    let passing = Passing::begin()?;
    let taken = match options.stdin {
        Some(spool) => spool
            .taken_from_pipe()
            .map_err(Error::io("read back the standard input that was kept"))?,
        None => None,
    };
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
    let (input, pump) = match taken {
        Some(kept) => {
            let (read, write) = pipe().map_err(Error::io("make a pipe"))?;
            let pump = pump::start(&kept, &write).map_err(Error::io("make a process"))?;
            (Some(read), Some(pump))
        }
        None => (None, None),
    };
    let (failed, failed_out) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(|e| Error::io("make a pipe")(e.into()))?;
    let began = Instant::now();
    let pid = spawn(&image, input.as_ref(), &failed_out).map_err(Error::io("make a process"))?;
    PROGRAM.store(pid, Ordering::SeqCst);
    pass_on_early(pid);
    drop((failed_out, input));
    // The new process has executed the program or ended: what it had to say is in the pipe.
    let mut record = [0; RECORD];
    if File::from(failed).read_exact(&mut record).is_ok()
        && let Some(Event::StartFailed { stage, errno }) = Event::decode(&record)
    {
        wait_for(pid);
        return Err(Error::Start {
            what: stage.what(),
            program: command.program.display().to_string(),
            source: io::Error::from_raw_os_error(errno),
        });
    }
    Ok(Running {
        pid,
        began,
        pump,
        _passing: passing,
    })
}

/// Starts a thread of corewise's own beside a real run. No signal is delivered to it: what a signal
/// sets off here must have happened when the thread that waits for the program goes on.
///
/// # Errors
/// When there is no thread to be had.
pub fn beside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<std::thread::JoinHandle<T>> {
    // A thread inherits its maker's mask.
    let old = signals::change_mask(libc::SIG_SETMASK, &signals::all());
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    signals::change_mask(libc::SIG_SETMASK, &old);
    thread
}

/// A real run under way. Dropping it leaves the program running, without corewise in its way.
#[derive(Debug)]
pub struct Running {
    pid: i32,
    began: Instant,
    pump: Option<i32>,
    _passing: Passing,
}

impl Running {
    /// The program's process number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the program's end.
    pub fn wait(self) -> Result<Outcome, Error> {
        stops::waiter_is_here();
        loop {
            let continued = CONTINUED.load(Ordering::SeqCst);
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: a struct that lives through the call.
            let (result, info) = unsafe {
                let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT;
                let id = self.pid.cast_unsigned();
                let result = libc::waitid(libc::P_PID, id, info.as_mut_ptr(), flags);
                (result, info.assume_init())
            };
            if result < 0 {
                match errno() {
                    libc::EINTR => continue,
                    e => {
                        return Err(Error::io("wait for the program")(
                            io::Error::from_raw_os_error(e),
                        ));
                    }
                }
            }
            if info.si_code == libc::CLD_STOPPED {
                // SAFETY: the kernel filled the fields that belong to a child's change.
                let signal = unsafe { info.si_status() };
                self.stop_too(signal, continued);
                continue;
            }
            if info.si_code == libc::CLD_TRAPPED {
                // A thread of ours holds the program by ptrace, and takes note of this at once; it is not for us.
                std::thread::sleep(TRAP_IS_NOTED);
                continue;
            }
            break;
        }
        let wall_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // From here on the number may become somebody else's.
        PROGRAM.store(0, Ordering::SeqCst);
        let (wait_status, usage) = wait_for(self.pid);
        if let Some(pump) = self.pump {
            // It ends as soon as it sees that nobody reads; do not wait for other readers.
            // SAFETY: a system call.
            unsafe { libc::waitpid(pump, std::ptr::null_mut(), libc::WNOHANG) };
        }
        Ok(Outcome {
            pid: self.pid,
            wall_ns,
            user_ns: timeval_ns(usage.ru_utime),
            system_ns: timeval_ns(usage.ru_stime),
            max_rss_bytes: usage.ru_maxrss.cast_unsigned() * 1024,
            status: Status::from_wait(wait_status),
        })
    }

    /// The program has been stopped by `signal`. If it was job control, stop as well, so that the
    /// shell takes the terminal back; it continues us, we continue the program.
    ///
    /// Where the terminal has stopped both, this is seen only after the shell has continued both: then
    /// either the count of continuations has grown since `before`, which is from before the wait, or
    /// the program, which the shell continues with us, no longer stands still. Stopping once more
    /// would be a stop that nobody asked for.
    fn stop_too(&self, signal: i32, before: u32) {
        self.child_has(libc::WSTOPPED);
        if ![libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal) {
            return;
        }
        // The stop is sent before the question is asked, and takes effect after: being continued takes
        // back a stop that has not taken effect, so a continuation at any moment between is noticed.
        let stop = signals::set_of(&[signal]);
        let mask = signals::change_mask(libc::SIG_BLOCK, &stop);
        // SAFETY: a system call. To this very thread: it is stopped before it can go on here.
        unsafe { libc::raise(signal) };
        let taken_back =
            CONTINUED.load(Ordering::SeqCst) != before || self.child_has(libc::WCONTINUED);
        if taken_back {
            signals::discard(&stop);
        }
        signals::change_mask(libc::SIG_SETMASK, &mask);
        if !taken_back {
            await_continuation(before);
        }
        // SAFETY: a system call; the program has not been reaped.
        unsafe { libc::kill(self.pid, libc::SIGCONT) };
    }

    /// Whether the program has changed so (WSTOPPED or WCONTINUED) since this was last asked.
    fn child_has(&self, change: i32) -> bool {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: a struct that lives through the call, which leaves it zero where nothing changed.
        unsafe {
            let id = self.pid.cast_unsigned();
            let flags = change | libc::WNOHANG;
            libc::waitid(libc::P_PID, id, info.as_mut_ptr(), flags) == 0
                && info.assume_init().si_signo == libc::SIGCHLD
        }
    }
}

/// The program that signals are passed on to; 0: none.
static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// Signals that came before its number was known, a bit for each.
static EARLY: AtomicU64 = AtomicU64::new(0);
/// How often this process has been continued.
static CONTINUED: AtomicU32 = AtomicU32::new(0);
static BUSY: AtomicBool = AtomicBool::new(false);

/// Signals that are passed on when they are sent to corewise alone.
const PASSED_ON: [i32; 6] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// While this exists, signals are passed on.
#[derive(Debug)]
struct Passing;

impl Passing {
    fn begin() -> Result<Self, Error> {
        if BUSY.swap(true, Ordering::SeqCst) {
            return Err(Error::io("run a program")(io::Error::other(
                "this process already runs one",
            )));
        }
        EARLY.store(0, Ordering::SeqCst);
        let inherited = Inherited::get();
        let count: Handler = count_continuation;
        let handlers = PASSED_ON.map(|signal| (signal, pass_on as Handler));
        for (signal, handler) in handlers.into_iter().chain([(libc::SIGCONT, count)]) {
            // What was ignored stays ignored, in the program as well.
            if !inherited.ignores(signal) {
                // SAFETY: the handler keeps to what handlers may do; the struct is complete.
                unsafe {
                    let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                    action.sa_sigaction = handler as *const () as usize;
                    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                    libc::sigaction(signal, &raw const action, std::ptr::null_mut());
                }
            }
        }
        Ok(Self)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        PROGRAM.store(0, Ordering::SeqCst);
        for signal in PASSED_ON.into_iter().chain([libc::SIGCONT]) {
            signals::set_disposition(signal, Inherited::get().ignores(signal));
        }
        BUSY.store(false, Ordering::SeqCst);
    }
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// How often this process has been continued.
pub(crate) fn continuations() -> u32 {
    CONTINUED.load(Ordering::SeqCst)
}

/// Waits until the continuation is counted that ended this thread's stop: another thread of this process may
/// have been given the signal, and come to it later. It would be taken for one that came after the next stop.
/// Where the stop had no effect (in a process group without a shell) none comes.
pub(crate) fn await_continuation(before: u32) {
    for _ in 0..LONGEST_COUNT_MS {
        if continuations() != before {
            return;
        }
        // SAFETY: a system call that handlers may make, without descriptors.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
    }
}

extern "C" fn count_continuation(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    CONTINUED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn pass_on(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let program = PROGRAM.load(Ordering::SeqCst);
    // SAFETY: the kernel gives a valid record to a handler installed with SA_SIGINFO.
    let (code, sender) = unsafe { ((*info).si_code, (*info).si_pid()) };
    // The terminal (a positive code) told the whole group; the program, signalling its group, has
    // signalled itself.
    if code > 0 || sender == program {
        return;
    }
    EARLY.fetch_or(1 << signal, Ordering::SeqCst);
    // Whoever stores the number looks for early signals afterwards.
    let program = PROGRAM.load(Ordering::SeqCst);
    if program > 0 {
        pass_on_early(program);
    }
}

/// Passes on what has come and nobody has passed on yet. May be called in a handler.
fn pass_on_early(program: i32) {
    let signals = EARLY.swap(0, Ordering::SeqCst);
    for signal in PASSED_ON {
        if signals >> signal & 1 == 1 {
            // SAFETY: system calls allowed in handlers; the program has not been reaped while its
            // number stands in PROGRAM.
            unsafe {
                let kept = *libc::__errno_location();
                libc::kill(program, signal);
                *libc::__errno_location() = kept;
            }
        }
    }
}

/// Starts the program's process; returns when it has executed the program or ended.
fn spawn(image: &ExecImage, input: Option<&OwnedFd>, failed: &OwnedFd) -> io::Result<i32> {
    let old = signals::change_mask(libc::SIG_SETMASK, &signals::all());
    // SAFETY: the new process is a copy; this thread sleeps (CLONE_VFORK) until it is done.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(libc::CLONE_VFORK | libc::SIGCHLD),
            0,
            0,
            0,
            0,
        )
    };
    if pid == 0 {
        let (stage, errno) = become_program(image, input);
        let record = Event::StartFailed { stage, errno }.encode();
        // SAFETY: as many bytes as the record has; then the copy ends.
        unsafe {
            libc::write(failed.as_raw_fd(), record.as_ptr().cast(), record.len());
            libc::_exit(127)
        }
    }
    let error = io::Error::last_os_error();
    signals::change_mask(libc::SIG_SETMASK, &old);
    if pid < 0 {
        return Err(error);
    }
    Ok(pid as i32)
}

fn become_program(image: &ExecImage, input: Option<&OwnedFd>) -> (Stage, i32) {
    if let Some(input) = input {
        // SAFETY: a system call on an open descriptor.
        if unsafe { libc::dup2(input.as_raw_fd(), 0) } < 0 {
            return (Stage::Input, errno());
        }
    }
    if let Err(e) = image.apply_affinity() {
        return (Stage::Affinity, e);
    }
    (Stage::Exec, image.exec())
}

/// Reaps a process that has ended, or is about to.
fn wait_for(pid: i32) -> (i32, libc::rusage) {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: structs that live through the call; zeroes are a valid rusage.
    unsafe {
        while libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) < 0 && errno() == libc::EINTR
        {
        }
        (status, usage.assume_init())
    }
}

fn timeval_ns(time: libc::timeval) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_usec.cast_unsigned() * 1_000
}
