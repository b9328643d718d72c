//! Runs a command and measures it: wall time, user and system time, and what it printed.
//!
//! A command gets a process group of its own, so that one that takes too long can be ended with its
//! children; it stays in the lab's session, because Linux shares CPUs between sessions first. It is
//! started through `setpriv --pdeathsig`, so that it dies with the lab (Ctrl-C included).

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use corewise_machine::control::process::processes_below;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use wait4::Wait4;

/// A command to measure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Variables set for it, beyond the lab's own.
    pub variables: Vec<(String, String)>,
    /// Put into this cgroup's file of processes (`cgroup.procs`) before it starts.
    pub cgroup: Option<PathBuf>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Run {
    /// From before it was started until it was gone, in seconds.
    pub wall_seconds: f64,
    /// In user mode, with the children that it waited for, in seconds.
    pub user_seconds: f64,
    /// In the kernel, with the children that it waited for, in seconds.
    pub system_seconds: f64,
    /// Whether it was ended because its time was over.
    pub timed_out: bool,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output, where that was kept.
    pub stdout: Vec<u8>,
    /// The end of its standard error.
    pub stderr: String,
}

impl Job {
    /// A job without variables, outside any cgroup of its own.
    pub fn new<Word: Into<OsString>>(argv: impl IntoIterator<Item = Word>) -> Self {
        Job {
            argv: argv.into_iter().map(Into::into).collect(),
            ..Job::default()
        }
    }

    /// This job as another command's last arguments, such as `corewise run -- JOB`.
    pub fn under<Word: Into<OsString>>(&self, words: impl IntoIterator<Item = Word>) -> Self {
        let mut job = self.clone();
        job.argv = words.into_iter().map(Into::into).collect();
        job.argv.extend(self.argv.iter().cloned());
        job
    }

    /// Adds a variable.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// The command line as one would type it.
    pub fn text(&self) -> String {
        let words = self.argv.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(procs) = &self.cgroup {
            command.args(["sh", "-c", "echo $$ > \"$0\" && exec \"$@\""]);
            command.arg(procs);
        }
        command.args(&self.argv);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it, its output kept or thrown away. The caller waits (see [`Started::finish`]).
    pub fn start(&self, keep_output: bool) -> Result<Started> {
        use std::os::unix::process::CommandExt;
        let memory = |name| -> Result<File> {
            let file = memfd_create(name, MemfdFlags::CLOEXEC);
            Ok(File::from(file.context("no memory file for output")?))
        };
        let stderr = memory("stderr")?;
        let stdout = keep_output.then(|| memory("stdout")).transpose()?;
        let mut command = self.command();
        command.stdin(Stdio::null());
        command.stderr(stderr.try_clone()?);
        command.stdout(match &stdout {
            Some(file) => Stdio::from(file.try_clone()?),
            None => Stdio::null(),
        });
        command.process_group(0);
        let began = Instant::now();
        let child = command
            .spawn()
            .context("could not start setpriv (package util-linux)")?;
        Ok(Started {
            child,
            began,
            stdout,
            stderr,
            text: self.text(),
        })
    }

    /// Runs it with its output thrown away, as long as `timeout` at most. An error only where it
    /// could not be run; see [`Run::success`] for how it ended.
    pub fn run(&self, timeout: Duration) -> Result<Run> {
        self.start(false)?.finish(timeout)
    }

    /// Runs it and keeps its standard output.
    pub fn output(&self, timeout: Duration) -> Result<Run> {
        self.start(true)?.finish(timeout)
    }
}

/// A job that runs.
pub struct Started {
    child: Child,
    began: Instant,
    stdout: Option<File>,
    stderr: File,
    text: String,
}

impl Started {
    /// Its process (the program itself: what starts it is replaced by it).
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, or ends its process group and all below it when `timeout` (since its start) is over:
    /// with SIGTERM, and two seconds later with SIGKILL.
    pub fn finish(mut self, timeout: Duration) -> Result<Run> {
        let pid = Pid::from_child(&self.child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open failed")?;
        let mut timed_out = false;
        let mut limit = timeout;
        for signal in [Signal::TERM, Signal::KILL] {
            if ended(pidfd.as_fd(), limit.saturating_sub(self.began.elapsed()))? {
                break;
            }
            timed_out = true;
            // Those in sessions of their own are in no group of ours. Errors mean that they have just ended.
            for below in processes_below(pid.as_raw_nonzero().get()) {
                let _ = Pid::from_raw(below).map(|below| kill_process(below, signal));
            }
            let _ = kill_process_group(pid, signal);
            limit = self.began.elapsed() + Duration::from_secs(2);
        }
        let usage = self
            .child
            .wait4()
            .with_context(|| format!("could not wait for `{}`", self.text))?;
        let wall = self.began.elapsed();
        // What it left running in its group would disturb the next run.
        let _ = kill_process_group(pid, Signal::KILL);
        Ok(Run {
            wall_seconds: wall.as_secs_f64(),
            user_seconds: usage.rusage.utime.as_secs_f64(),
            system_seconds: usage.rusage.stime.as_secs_f64(),
            timed_out,
            status: usage.status,
            stdout: match &mut self.stdout {
                Some(file) => end_of(file, u64::MAX)?,
                None => Vec::new(),
            },
            stderr: String::from_utf8_lossy(&end_of(&mut self.stderr, 2000)?).into_owned(),
        })
    }
}

impl Run {
    /// The run, or an error with the end of what it said on standard error.
    pub fn success(self, job: &Job) -> Result<Run> {
        if self.timed_out {
            bail!("`{}` took too long", job.text());
        }
        if !self.status.success() {
            let said = self.stderr.trim();
            bail!("`{}` failed ({}): {said}", job.text(), self.status);
        }
        Ok(self)
    }

    /// User and system time together, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }
}

fn ended(pidfd: rustix::fd::BorrowedFd<'_>, within: Duration) -> Result<bool> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            result => return Ok(result.context("poll failed")? > 0),
        }
    }
}

fn end_of(file: &mut File, most: u64) -> Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Job {
        Job::new(["sh", "-c", script])
    }

    #[test]
    fn output_error_and_exit_code_are_kept() {
        let job = shell("echo out; echo err >&2; exit 3");
        let run = job.output(LONG).unwrap();
        assert_eq!(run.stdout, b"out\n");
        assert_eq!(run.stderr, "err\n");
        assert_eq!(run.status.code(), Some(3));
        let error = run.success(&job).unwrap_err().to_string();
        assert!(error.contains("err") && error.contains("sh -c"), "{error}");
    }

    #[test]
    fn cpu_time_of_children_counts() {
        let job = shell("sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; true");
        let run = job.run(LONG).unwrap();
        assert!(run.cpu_seconds() > 0.01, "{run:?}");
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        ends_with_its_children("sleep 1000 & echo $!; wait");
    }

    #[test]
    fn also_with_those_in_sessions_of_their_own() {
        ends_with_its_children("setsid --wait sh -c 'echo $$; exec sleep 1000'");
    }

    /// Runs a script that prints the number of one below it.
    fn ends_with_its_children(script: &str) {
        let job = shell(script);
        let run = job.output(Duration::from_millis(300)).unwrap();
        assert!(run.timed_out);
        assert!(run.wall_seconds < 500.0);
        let pid = String::from_utf8(run.stdout).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let gone = || match std::fs::read_to_string(&stat) {
            Err(_) => true,
            Ok(stat) => stat.contains(") Z ") || stat.contains(") X "),
        };
        // Signals are sent to the whole group at once, but each process ends in its own time.
        let began = Instant::now();
        while !gone() {
            assert!(began.elapsed() < LONG, "sleep still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_job_that_ignores_sigterm_is_killed() {
        let run = shell("trap '' TERM; while :; do sleep 0.1; done")
            .run(Duration::from_millis(300))
            .unwrap();
        assert!(run.timed_out && !run.status.success());
    }

    #[test]
    fn variables_and_wrapping_reach_the_program() {
        let job = shell("echo $LAB_TEST")
            .with("LAB_TEST", "x")
            .under(["env", "A=b"]);
        assert_eq!(job.output(LONG).unwrap().stdout, b"x\n");
    }
}
