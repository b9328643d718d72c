//! What the experiments about managing share: a manager in a runtime folder of its own, and programs
//! that play a part ([`crate::actor`]).

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use corewise_abi::VERSION;
use corewise_abi::message::{Join, Placement, ToManager, ToProgram, Wants};
use corewise_wire::Channel;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use crate::actor;
use crate::experiment::Context;

/// How long anything of ours may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A manager, as `corewise manage` runs it. It ends when this is dropped.
pub struct Manager {
    child: Child,
    folder: tempfile::TempDir,
    command: PathBuf,
    words: Vec<String>,
}

impl Manager {
    /// Starts `corewise manage --policy POLICY` in a runtime folder of its own, and waits until it
    /// listens.
    pub fn start(context: &Context, policy: &str) -> Result<Manager> {
        Manager::start_with(context, &["--policy", policy])
    }

    /// Starts one that observes and changes nothing, with so many milliseconds between readings.
    pub fn observer(context: &Context, period_ms: u64) -> Result<Manager> {
        let period = period_ms.to_string();
        Manager::start_with(context, &["--policy", "observe", "--period", &period])
    }

    fn start_with(context: &Context, words: &[&str]) -> Result<Manager> {
        let folder = tempfile::tempdir().context("no temporary runtime folder")?;
        let command = context.corewise()?;
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let child = spawn(&command, folder.path(), &words)?;
        let mut manager = Manager {
            child,
            folder,
            command,
            words,
        };
        manager.wait_until_it_listens()?;
        Ok(manager)
    }

    /// Its runtime folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// CPU time that it has used, in nanoseconds.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(self.pid())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Ends it by SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("the manager cannot be killed")?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts another one in its place, after [`Manager::kill`].
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.command, self.folder.path(), &self.words)?;
        self.wait_until_it_listens()
    }

    /// What `corewise status --json` says.
    pub fn status(&self) -> Result<serde_json::Value> {
        let output = Command::new(&self.command)
            .args(["status", "--json"])
            .env("COREWISE_RUNTIME_DIR", self.folder.path())
            .output()
            .context("could not start `corewise status`")?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!(
                "`corewise status --json` gave no JSON: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// Sets a program's claim by hand, as `corewise claim` does. False where the program is not there any more.
    ///
    /// # Errors
    /// If the manager cannot be talked to.
    pub fn set_claim(&self, pid: i32, threads: u32, cpus: Vec<u32>) -> Result<bool> {
        let socket = self.folder.path().join("manager.sock");
        let channel = Channel::connect_within(&socket, PATIENCE)?;
        channel.send(&ToManager::Override { pid, threads, cpus }, &[])?;
        match channel.receive_within::<ToProgram>(PATIENCE)?.message {
            ToProgram::Done => Ok(true),
            _ => Ok(false),
        }
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let socket = self.folder.path().join("manager.sock");
        loop {
            if Channel::connect(&socket).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("`corewise manage {}` ended: {status}", self.words.join(" "));
            }
            if Instant::now() > until {
                bail!("the manager does not listen on {}", socket.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = kill_process_of(&self.child, Signal::TERM);
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &Path, folder: &Path, words: &[String]) -> Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(command)
        .arg("manage")
        .args(words)
        .env("COREWISE_RUNTIME_DIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("could not start `corewise manage` with setpriv (package util-linux)")
}

fn kill_process_of(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no process")?;
    Ok(kill_process(pid, signal)?)
}

/// What the lab says when it joins itself, as a malleable program.
pub fn join_as(name: impl Into<String>, min_threads: u32, max_threads: u32) -> Join {
    Join {
        version: VERSION,
        features: 0,
        pid: i32::try_from(std::process::id()).unwrap_or(0),
        name: name.into(),
        wants: Wants {
            min_threads,
            max_threads,
            placement: Placement::Any,
            malleable: true,
        },
    }
}

/// CPU time of a process and its threads, in nanoseconds.
pub fn cpu_ns(pid: i32) -> Result<u64> {
    corewise_machine::program::process_cpu_ns(pid)
        .with_context(|| format!("the CPU time of process {pid} cannot be read"))
}

/// A process that is killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that plays a part. Its input's end is its end; it is killed when this is dropped.
pub struct Player {
    process: Process,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    part: String,
}

/// A program's lines as they come, read by a thread of their own.
pub struct Lines {
    lines: Receiver<String>,
    _process: Process,
}

impl Lines {
    /// The next line, if one comes within some seconds, as JSON.
    pub fn says<T: DeserializeOwned>(&self) -> Result<T> {
        let line = self
            .lines
            .recv_timeout(PATIENCE)
            .context("a program said nothing")?;
        serde_json::from_str(&line).with_context(|| format!("a program said {line:?}"))
    }

    /// Forgets what has been said so far; the last of it.
    pub fn last_so_far<T: DeserializeOwned>(&self) -> Option<T> {
        let line = self.lines.try_iter().last()?;
        serde_json::from_str(&line).ok()
    }
}

impl Player {
    /// Starts the lab as `words` (see [`crate::actor`]), under a manager or under none.
    pub fn start(words: &[&str], manager: Option<&Manager>) -> Result<Player> {
        Player::start_at(words, manager, 0)
    }

    /// As [`Player::start`]; what shares out work begins to at this time, by the monotonic clock.
    pub fn start_at(words: &[&str], manager: Option<&Manager>, time_ns: u64) -> Result<Player> {
        let own = std::env::current_exe().context("the lab cannot find itself")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(own);
        command.arg(actor::ARGUMENT).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Where no manager is meant, none may be found either.
        let folder = manager.map_or(Path::new("/nonexistent"), Manager::folder);
        command.env("COREWISE_RUNTIME_DIR", folder);
        command.env(actor::START_AT, time_ns.to_string());
        let mut child = command
            .spawn()
            .context("could not start a program with setpriv (package util-linux)")?;
        let output = child.stdout.take().context("the program has no output")?;
        Ok(Player {
            input: child.stdin.take(),
            output: BufReader::new(output),
            process: Process(child),
            part: words.join(" "),
        })
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.process.0.id()).unwrap_or(0)
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let length = self.output.read_line(&mut line)?;
        if length == 0 {
            bail!("`{}` ended early: {}", self.part, self.process.0.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    /// The next line that it prints, as JSON.
    pub fn says<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("`{}` said {line:?}", self.part))
    }

    /// Reads what it says from now on as it comes.
    pub fn follow(self) -> Lines {
        let (send, lines) = channel();
        let output = self.output;
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Lines {
            lines,
            _process: self.process,
        }
    }

    /// Ends its input, and gives the last thing that it says.
    pub fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        drop(self.input.take());
        let last = self.says()?;
        self.end()?;
        Ok(last)
    }

    /// Ends its input, and waits until it is gone.
    pub fn end(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.process.0.wait()?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.part);
        }
        Ok(())
    }

    /// Ends it by SIGKILL, and waits until it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }
}
