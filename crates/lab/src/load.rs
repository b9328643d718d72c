//! What keeps the machine busy beside a measured program, and how much machine there is.

use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where a hog runs. Linux shares CPUs between sessions first (autogroup), then between the threads
/// of each, so that a hog in a session of its own takes as much as a whole program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// In the lab's session, which is that of the measured program too.
    Same,
    /// In a new session of its own.
    Own,
}

/// A process that computes without end, pinned nowhere, with one thread. It ends when this is
/// dropped, and by a death signal when the lab dies.
pub struct Hog {
    child: Child,
}

impl Hog {
    /// Starts one and waits until it computes.
    pub fn start(session: Session) -> Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if session == Session::Own {
            // Replaces itself by the shell: it leads no process group, so it need not fork.
            command.arg("setsid");
        }
        command.args(["sh", "-c", "while :; do :; done"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        {
            use std::os::unix::process::CommandExt;
            if session == Session::Same {
                command.process_group(0);
            }
        }
        let hog = Hog {
            child: command
                .spawn()
                .context("could not start a hog with setpriv and sh")?,
        };
        let until = Instant::now() + Duration::from_secs(10);
        while hog.run_ns()? < 20_000_000 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(hog)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Time that it had a CPU since it was started, in nanoseconds.
    pub fn run_ns(&self) -> Result<u64> {
        run_ns(&format!("/proc/{}/schedstat", self.child.id()))
            .context("the hog's CPU time cannot be read (has it been ended?)")
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first number of a schedstat file: time on a CPU in nanoseconds.
pub fn run_ns(path: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The CPUs that this process may run on, as Linux numbers them.
pub fn allowed_cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("the lab's affinity cannot be read")?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// How many CPUs two of them are worth right now: the work that two threads do, pinned to two CPUs,
/// over what the first does alone. 2.0 where they are independent; 1.0 where they are one in truth
/// (a virtual machine's CPUs can be). 1.0 with a single CPU. Takes about `2 × duration`.
pub fn capacity(duration: Duration) -> Result<f64> {
    let cpus = allowed_cpus()?;
    let &[first, second, ..] = cpus.as_slice() else {
        return Ok(1.0);
    };
    let alone = spin(&[first], duration)?;
    let both = spin(&[first, second], duration)?;
    Ok(both / alone)
}

/// Loops done by one thread on each of these CPUs, together, in `duration`.
fn spin(cpus: &[usize], duration: Duration) -> Result<f64> {
    let barrier = Barrier::new(cpus.len());
    std::thread::scope(|scope| {
        let threads = cpus
            .iter()
            .map(|&cpu| {
                let barrier = &barrier;
                scope.spawn(move || -> Result<f64> {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    let pinned = sched_setaffinity(None, &set);
                    barrier.wait();
                    pinned.with_context(|| format!("could not pin a thread to CPU {cpu}"))?;
                    let (began, mut loops, mut state) = (Instant::now(), 0_u64, 1_u64);
                    while began.elapsed() < duration {
                        for _ in 0..10_000 {
                            state = std::hint::black_box(state).wrapping_mul(6_364_136_223) ^ 1;
                        }
                        loops += 1;
                    }
                    Ok(loops as f64 / began.elapsed().as_secs_f64())
                })
            })
            .collect::<Vec<_>>();
        let mut sum = 0.0;
        for thread in threads {
            sum += thread
                .join()
                .map_err(|_| anyhow::anyhow!("a spinning thread panicked"))??;
        }
        Ok(sum)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session_of(pid: u32) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after_name = &stat[stat.rfind(')').unwrap() + 1..];
        after_name
            .split_whitespace()
            .nth(3)
            .unwrap()
            .parse()
            .unwrap()
    }

    #[test]
    fn a_hog_runs_in_the_session_it_was_asked_for_and_ends_when_dropped() {
        let ours = session_of(std::process::id());
        for session in [Session::Same, Session::Own] {
            let hog = Hog::start(session).unwrap();
            let pid = hog.pid();
            match session {
                Session::Same => assert_eq!(session_of(pid), ours),
                Session::Own => assert_eq!(session_of(pid), pid as i32),
            }
            assert!(hog.run_ns().unwrap() > 0);
            drop(hog);
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        }
    }

    #[test]
    fn capacity_is_a_positive_number() {
        let capacity = capacity(Duration::from_millis(20)).unwrap();
        assert!(capacity.is_finite() && capacity > 0.0, "{capacity}");
    }
}
