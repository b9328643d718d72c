//! A probe run: a program started in a sandbox, watched, and ended.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::command::Command;
use crate::exec::ExecImage;
use crate::outcome::Status;
use crate::sandbox::init::{InitPlan, Input, Inside};
use crate::sandbox::wire::{Event, RECORD};
use crate::sandbox::{self, Error, SETUP_LIMIT, Sandbox};
use crate::spool::Spool;
use crate::tail::Tail;

/// How a probe's program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeEnd {
    /// Exit code or signal.
    pub status: Status,
    /// From the program's first instruction to its end, in nanoseconds.
    pub wall_ns: u64,
    /// User time of the program and the children that it waited for, in nanoseconds.
    pub user_ns: u64,
    /// System time of the same, in nanoseconds.
    pub system_ns: u64,
    /// The largest resident set among them, in bytes.
    pub max_rss_bytes: u64,
}

/// A file system that a probe did not see copy-on-write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Where it is mounted.
    pub place: String,
    /// Not there at all, rather than read-only.
    pub omitted: bool,
    /// Why (an error number of Linux).
    pub errno: i32,
}

/// A program in a sandbox. Dropping it kills the program and everything that it started.
#[derive(Debug)]
pub struct Probe {
    root: Pid,
    /// Closing it ends everything.
    control: Option<File>,
    status: File,
    stderr: Tail,
    program: String,
    limits: Vec<Limit>,
    setup_ns: u64,
    exec_ns: Option<u64>,
    end: Option<ProbeEnd>,
    isolated: bool,
    reaped: bool,
}

impl Probe {
    /// Makes the sandbox and its first process, which waits; the program does not run until
    /// [`release`](Self::release). Costs some milliseconds ([`setup_ns`](Self::setup_ns)).
    pub fn start(sandbox: &Sandbox, command: &Command, stdin: &Spool) -> Result<Self, Error> {
        let image = ExecImage::new(command)?;
        let (input, keep) = stdin
            .probe_input()
            .map_err(Error::io("open the probe's standard input"))?;
        let program = command.program.display().to_string();
        let probe = Self::spawn(sandbox, Some(&image), input, program);
        drop(keep);
        probe
    }

    /// A sandbox without a program, to see whether one can be made.
    pub(crate) fn trial(sandbox: &Sandbox) -> Result<Self, Error> {
        let (input, keep) = Spool::none()
            .probe_input()
            .map_err(Error::io("open /dev/null"))?;
        let probe = Self::spawn(sandbox, None, input, String::new());
        drop(keep);
        probe
    }

    fn spawn(
        sandbox: &Sandbox,
        exec: Option<&ExecImage>,
        input: Input,
        program: String,
    ) -> Result<Self, Error> {
        let began = Instant::now();
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
        let (control_in, control) = pipe().map_err(Error::io("make a pipe"))?;
        let (status, status_out) = pipe().map_err(Error::io("make a pipe"))?;
        let (stderr, stderr_out) = pipe().map_err(Error::io("make a pipe"))?;
        let plan = InitPlan {
            inside: sandbox.walls.as_ref().map(|walls| Inside {
                mounts: &walls.plan,
                scratch_options: &walls.scratch_options,
                id_maps: walls.id_maps.as_ref(),
            }),
            control: control_in.as_raw_fd(),
            status: status_out.as_raw_fd(),
            input,
            stderr: stderr_out.as_raw_fd(),
            cwd: &sandbox.cwd,
            exec,
        };
        let flags = sandbox.walls.as_ref().map_or(0, |w| w.flags);
        let root = sandbox::init::spawn(flags, &plan).map_err(|errno| {
            if flags == 0 {
                Error::Io {
                    what: "make a process",
                    source: io::Error::from_raw_os_error(errno),
                }
            } else {
                sandbox.why_no_namespaces(errno)
            }
        })?;
        // The write ends must be the sandbox's alone, so that their end can be seen.
        let ours: [OwnedFd; 3] = [control_in, status_out, stderr_out];
        drop(ours);
        let mut probe = Self {
            root: Pid::from_raw(root).ok_or(Error::Lost)?,
            control: Some(control.into()),
            status: status.into(),
            stderr: Tail::follow(stderr.into()).map_err(Error::io("start a thread"))?,
            program,
            limits: Vec::new(),
            setup_ns: 0,
            exec_ns: None,
            end: None,
            isolated: flags != 0,
            reaped: false,
        };
        probe.wait_ready(sandbox)?;
        probe.setup_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(probe)
    }

    fn wait_ready(&mut self, sandbox: &Sandbox) -> Result<(), Error> {
        let give_up = Instant::now() + SETUP_LIMIT;
        let mut last_step = None;
        loop {
            match self.next_event(give_up.saturating_duration_since(Instant::now()))? {
                Some(Event::Ready) => return Ok(()),
                Some(Event::Degraded {
                    step,
                    errno,
                    omitted,
                }) => {
                    last_step = Some(step);
                    self.limits.push(Limit {
                        place: sandbox.place_of(step).unwrap_or_default(),
                        omitted,
                        errno,
                    });
                }
                Some(Event::SetupFailed { stage, errno }) => {
                    let step = last_step.filter(|_| stage == sandbox::wire::Stage::Step);
                    return Err(sandbox.why_no_setup(stage, errno, step));
                }
                Some(_) => {}
                None => {
                    return Err(Error::Unavailable {
                        why: format!(
                            "making the sandbox took over {} s; is a network file system hanging?",
                            SETUP_LIMIT.as_secs()
                        ),
                    });
                }
            }
        }
    }

    /// The next record from the sandbox; `None` when there is none in time. The end of the pipe
    /// before the end of the program is an error.
    fn next_event(&mut self, timeout: Duration) -> Result<Option<Event>, Error> {
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut polled = [PollFd::new(&self.status, PollFlags::IN)];
            match poll(&mut polled, Some(&wait)) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io("wait for the sandbox")(e.into())),
            }
        }
        let mut record = [0; RECORD];
        match self.status.read_exact(&mut record) {
            Ok(()) => Event::decode(&record).ok_or(Error::Lost).map(Some),
            Err(_) => Err(Error::Lost),
        }
    }

    /// The sandbox's first process, as seen from outside: the parent of the program. Attach sensors
    /// to it before [`release`](Self::release), and they see the program from its start.
    pub fn root_pid(&self) -> i32 {
        self.root.as_raw_nonzero().get()
    }

    /// Starts the program. Returns when it has replaced the waiting process, or could not.
    pub fn release(&mut self) -> Result<(), Error> {
        let mut control = self.control.as_ref().ok_or(Error::Lost)?;
        control.write_all(b"r").map_err(|_| Error::Lost)?;
        loop {
            match self.next_event(SETUP_LIMIT)? {
                Some(Event::Started { exec_ns }) => {
                    self.exec_ns = Some(exec_ns);
                    return Ok(());
                }
                Some(Event::StartFailed { stage, errno }) => {
                    return Err(Error::Start {
                        what: stage.what(),
                        program: self.program.clone(),
                        source: io::Error::from_raw_os_error(errno),
                    });
                }
                Some(_) => {}
                None => return Err(Error::Lost),
            }
        }
    }

    /// How the program ended, if it has.
    pub fn poll(&mut self) -> Result<Option<ProbeEnd>, Error> {
        self.wait_timeout(Duration::ZERO)
    }

    /// Waits for the end of the program, at most so long.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<ProbeEnd>, Error> {
        let until = Instant::now() + timeout;
        while self.end.is_none() {
            match self.next_event(until.saturating_duration_since(Instant::now()))? {
                Some(Event::Ended {
                    wait_status,
                    wall_ns,
                    user_ns,
                    system_ns,
                    max_rss_kib,
                }) => {
                    self.end = Some(ProbeEnd {
                        status: Status::from_wait(wait_status),
                        wall_ns,
                        user_ns,
                        system_ns,
                        max_rss_bytes: max_rss_kib * 1024,
                    });
                    // The first process ends now, and takes what the program left behind with it.
                    self.kill();
                }
                Some(_) => {}
                None => break,
            }
        }
        Ok(self.end)
    }

    /// Kills the program and everything that it started; returns when all are gone.
    pub fn kill(&mut self) {
        if self.reaped {
            return;
        }
        self.control = None;
        if self.isolated {
            let _ = kill_process(self.root, Signal::KILL);
        }
        // The first process is reaped only after everything in its namespace is (without one, after
        // it has killed its descendants).
        while let Err(rustix::io::Errno::INTR) = waitpid(Some(self.root), WaitOptions::empty()) {}
        self.reaped = true;
    }

    /// The last 64 KiB that the program wrote to its standard error.
    pub fn stderr_tail(&self) -> Vec<u8> {
        self.stderr.get(self.reaped)
    }

    /// File systems that the program cannot write to, or not see, in here.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// What making the sandbox took, in nanoseconds.
    pub fn setup_ns(&self) -> u64 {
        self.setup_ns
    }

    /// From [`release`](Self::release) to the program's first instruction, in nanoseconds.
    pub fn exec_ns(&self) -> Option<u64> {
        self.exec_ns
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.kill();
    }
}
