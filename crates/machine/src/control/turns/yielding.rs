//! Programs that yield: out of its turn one runs only where its gang's neighbours leave a CPU.
//!
//! # Problem
//!
//! A program that a debugger or strace traces cannot be seized, and a container's filter may forbid ptrace
//! altogether. Whatever else stops a program (signals, freezers, quotas) stays when we die. So out of its turn it is
//! not stopped, but comes last.
//!
//! # Approach
//!
//! The program gets a cgroup of its own, which is idle (`cpu.idle`, Linux 5.15) out of its turn: it weighs 3 against
//! 1,024 there, and whoever else wants its CPU takes it at once. The group is made when there are turns, and removed
//! when there are none. Group, moves and the file are in the undo log: if we die, the program runs on, with whatever
//! the others leave, until the manager puts it back, a moment later.
//!
//! That alone is not enough. Where both threads of a program in its turn share a CPU, beside two that yield on another
//! one, each spins for the other for up to some milliseconds until Linux moves one. So whoever keeps these turns also
//! keeps threads that hardly sleep on a CPU each ([`Means::stops`] says so).
//!
//! # Measured
//!
//! Two programs of two threads with spinning barriers, slices of 50 ms, bin packing 3.80 s, everything set from one
//! place (Linux 6.18): this, with a CPU for each thread, 3.9 s; without, 4.5 to 5.7 s. `SCHED_IDLE` for the threads 7.3 s
//! in one session and over 12 s in two, because Linux shares CPUs out between sessions first; with a CPU for each
//! thread 3.9 s in one session, up to 5.2 s in two. The nice value of threads, or of sessions: over 16 s.
//!
//! # Limits
//!
//! - It needs a cgroup that may be written to, with the `cpu` controller: in practice root's.
//! - The gangs' groups must lie side by side. Programs that were started in different groups (systemd makes one for
//!   each session) are shared out between those first.
//! - Where v1 groups have a share of real-time time (`CONFIG_RT_GROUP_SCHED`) the new group has none: a program that has
//!   real-time threads is not moved, and runs always.

use super::sys::now_ns;
use super::{Gone, Means, Refused, Stopped};
use crate::control::{Controller, Done, Error, Process, ProgramCgroup};
use crate::undo::LogOnDemand;

/// Has a process tree come last out of its turn.
#[derive(Debug)]
pub struct Yielding<'log> {
    log: &'log LogOnDemand,
    program: Process,
    group: Option<ProgramCgroup<'log>>,
    yields: bool,
}

impl<'log> Yielding<'log> {
    /// For the process `pid` and all below it. Nothing is changed yet; that it can be is tried on a group without
    /// processes, some 200 µs.
    ///
    /// # Errors
    /// [`Refused`] where no such group can be made.
    pub fn of(pid: i32, log: &'log LogOnDemand) -> Result<Yielding<'log>, Refused> {
        let program = Process::of(pid).ok_or_else(|| Refused {
            why: "it has ended".to_owned(),
        })?;
        let yielding = Yielding {
            log,
            program,
            group: None,
            yields: false,
        };
        let tried = yielding.make()?;
        let works = tried.set_idle(true);
        tried.leave();
        works.map_err(refused)?;
        Ok(yielding)
    }

    fn make(&self) -> Result<ProgramCgroup<'log>, Refused> {
        let log = self.log.get().map_err(|error| Refused {
            why: error.to_string(),
        })?;
        ProgramCgroup::create(log, self.program, &[Controller::Cpu]).map_err(refused)
    }

    /// The group, with the program in it.
    fn group(&mut self) -> Result<&ProgramCgroup<'log>, Refused> {
        let group = match self.group.take() {
            Some(group) => group,
            None => {
                let group = self.make()?;
                if let Err(error) = group.move_in() {
                    group.leave();
                    return Err(refused(error));
                }
                group
            }
        };
        Ok(self.group.insert(group))
    }
}

fn refused(error: Error) -> Refused {
    Refused {
        why: error.to_string(),
    }
}

impl Means for Yielding<'_> {
    fn name(&self) -> &'static str {
        "cpu.idle"
    }

    fn stops(&self) -> bool {
        false
    }

    /// Cost: some 30 µs; the first time, 100 µs a process. The program counts as one thread.
    fn stop(&mut self) -> Result<Stopped, Refused> {
        let began_ns = now_ns();
        let done = self.group()?.set_idle(true).map_err(refused)?;
        if let Done::LeftAlone { present } = done {
            let why = format!("somebody else has set its group's cpu.idle to {present}");
            return Err(Refused { why });
        }
        let threads = u32::from(!self.yields);
        self.yields = true;
        Ok(Stopped {
            threads,
            awaited: 0,
            began_ns,
            last_ns: now_ns(),
        })
    }

    /// Does nothing: what it makes is born in its group.
    fn look(&mut self) -> Result<Stopped, Refused> {
        Ok(Stopped::nobody())
    }

    /// Cost: some 30 µs.
    fn go(&mut self) -> Gone {
        let mut gone = Gone::default();
        if !self.yields {
            return gone;
        }
        match self.group.as_ref().map(|group| group.set_idle(false)) {
            // It is as somebody else wants it, or it has ended with its group.
            None | Some(Ok(_)) => {
                self.yields = false;
                gone.threads = 1;
            }
            Some(Err(error)) if error.is_gone() => self.yields = false,
            Some(Err(_)) => gone.awaited = 1,
        }
        gone.first_ns = now_ns();
        gone.last_ns = gone.first_ns;
        gone
    }

    fn rest(&mut self) {
        if let Some(group) = self.group.take() {
            // What fails stays in the log.
            group.leave();
        }
        self.yields = false;
    }
}

impl Drop for Yielding<'_> {
    fn drop(&mut self) {
        self.rest();
    }
}
