//! A jobserver whose tokens follow the claim of a build.
//!
//! The tokens are in a pipe without a name. The program inherits both of its ends; we keep a description of
//! our own that never blocks, because clients may change the flags of theirs (GNU make does). How many tokens
//! are put in or taken out is said by [`Tokens`]; a thread waits for those that are to be taken out
//! as they come back, and races with the build's own clients for them: each that it loses is one job more
//! until the next comes back. A relay between two pipes would win always, but every job would wait for it,
//! and tokens would be lost with it.
//!
//! **When we die**, the tokens that circulate then stay with the build, which goes on with as many jobs.

use super::{Follower, Managed, wait_for};
use corewise_decide::cpus::CpuSet;
use corewise_decide::jobserver::{Step, Tokens};
use corewise_decide::status::{Placement, Wants};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors from this number on are hardly used by programs; shells give out those from 10.
const HIGH: RawFd = 200;

/// The byte that make's own tokens are.
const TOKEN: u8 = b'+';

/// The jobserver of one build. Whoever drops it leaves the build with all the jobs that its user asked for.
#[derive(Debug)]
pub struct Jobserver {
    shared: Arc<Shared>,
}

/// The ends of the pipe that the program inherits. They are to be dropped once it runs.
#[derive(Debug)]
pub struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

/// How many jobs a build might run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Jobs {
    /// At most: what its user asked for.
    pub most: u32,
    /// By its claims, when it had fewest.
    pub fewest: u32,
}

#[derive(Debug)]
struct Shared {
    pipe: OwnedFd,
    /// Readable when the thread has something to do.
    wake: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tokens: Tokens,
    fewest: u32,
    done: bool,
}

impl Jobserver {
    /// Makes a jobserver for a build of at most `most` jobs, which begins with `first`.
    ///
    /// # Errors
    /// When there is no descriptor or thread to be had, or no /proc.
    pub fn create(most: u32, first: u32) -> std::io::Result<(Jobserver, Ends)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let ends = Ends {
            read: high(read)?,
            write: high(write)?,
        };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = open(
            format!("/proc/self/fd/{}", ends.read.as_raw_fd()),
            flags,
            Mode::empty(),
        )?;
        let mut tokens = Tokens::new(most);
        tokens.allow(first);
        let shared = Arc::new(Shared {
            pipe,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(State {
                tokens,
                fewest: tokens.allowed(),
                done: false,
            }),
        });
        shared.serve(&mut shared.state());
        let taking = Arc::clone(&shared);
        corewise_launch::run::beside("jobserver", move || taking.take_back())?;
        Ok((Jobserver { shared }, ends))
    }

    fn allow(&self, jobs: u32) {
        let mut state = self.shared.state();
        if state.tokens.allowed() == jobs {
            return;
        }
        state.tokens.allow(jobs);
        state.fewest = state.fewest.min(state.tokens.allowed());
        self.shared.serve(&mut state);
        drop(state);
        self.shared.wake();
    }

    fn jobs(&self) -> Jobs {
        let state = self.shared.state();
        Jobs {
            most: state.tokens.most(),
            fewest: state.fewest,
        }
    }
}

impl Drop for Jobserver {
    fn drop(&mut self) {
        self.release();
        self.shared.state().done = true;
        self.shared.wake();
    }
}

impl Ends {
    /// Their numbers: the one to read from, the one to write to.
    pub fn numbers(&self) -> (RawFd, RawFd) {
        (self.read.as_raw_fd(), self.write.as_raw_fd())
    }
}

impl Follower for Jobserver {
    fn grant(&self, threads: u32, _: &CpuSet) {
        self.allow(threads);
    }

    fn release(&self) {
        let most = self.shared.state().tokens.most();
        self.allow(most);
    }

    fn wants(&self) -> Option<Wants> {
        Some(Wants {
            min_threads: 1,
            max_threads: self.shared.state().tokens.most(),
            placement: Placement::Any,
            malleable: true,
        })
    }

    /// Jobs do not wait for each other spinning: they may be confined at once.
    fn running(&self) -> Option<(u32, u64)> {
        None
    }

    fn names(&self) -> Vec<&'static str> {
        vec!["jobserver"]
    }

    fn spins(&self) -> bool {
        false
    }

    fn tell(&self, managed: &mut Managed) {
        managed.jobs = Some(self.jobs());
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // What is in it is whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A counter that is full says the same as one that is not.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Does what can be done at once. What cannot is tried again when something happens.
    fn serve(&self, state: &mut State) {
        match state.tokens.step() {
            Step::Rest => {}
            Step::Put(tokens) => {
                let bytes = vec![TOKEN; tokens as usize];
                state
                    .tokens
                    .put(count(rustix::io::write(&self.pipe, &bytes)));
            }
            Step::Take(tokens) => {
                let mut bytes = vec![0; tokens as usize];
                state
                    .tokens
                    .taken(count(rustix::io::read(&self.pipe, &mut bytes)));
            }
        }
    }

    /// Takes tokens out as they come back, until the jobserver is dropped.
    fn take_back(&self) {
        corewise_launch::prompt::run_soon_when_woken();
        loop {
            let waits = {
                let mut state = self.state();
                self.serve(&mut state);
                if state.done {
                    return;
                }
                matches!(state.tokens.step(), Step::Take(_))
            };
            let all = [self.wake.as_fd(), self.pipe.as_fd()];
            let ready = wait_for(&all[..1 + usize::from(waits)], None);
            if ready[0] {
                // Only its being readable matters.
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
        }
    }
}

/// How many bytes were read or written.
fn count(done: Result<usize, Errno>) -> u32 {
    done.map_or(0, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// The same descriptor under a high number, or under any where there are not so many.
fn high(descriptor: OwnedFd) -> std::io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(&descriptor, HIGH).unwrap_or(descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn cpus() -> CpuSet {
        CpuSet::first(1)
    }

    /// Takes a token as a client does, if there is one.
    fn token(ends: &Ends) -> bool {
        let ready = wait_for(&[ends.read.as_fd()], Some(Duration::ZERO));
        ready[0] && rustix::io::read(&ends.read, &mut [0; 1]) == Ok(1)
    }

    fn give_back(ends: &Ends) {
        rustix::io::write(&ends.write, b"+").unwrap();
    }

    fn tokens(ends: &Ends) -> u32 {
        let mut found = 0;
        while token(ends) {
            found += 1;
        }
        for _ in 0..found {
            give_back(ends);
        }
        found
    }

    fn until(what: &str, mut look: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !look() {
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_pipe_holds_a_token_for_each_thread_of_the_claim_but_the_first() {
        let (jobserver, ends) = Jobserver::create(8, 4).unwrap();
        assert_eq!(tokens(&ends), 3);
        jobserver.grant(6, &cpus());
        assert_eq!(tokens(&ends), 5);
        jobserver.grant(2, &cpus());
        assert_eq!(tokens(&ends), 1);
        jobserver.release();
        assert_eq!(tokens(&ends), 7);
        let jobs = Jobs { most: 8, fewest: 2 };
        assert_eq!(jobserver.jobs(), jobs);
    }

    #[test]
    fn tokens_that_jobs_hold_are_taken_out_when_they_come_back() {
        let (jobserver, ends) = Jobserver::create(4, 4).unwrap();
        assert!(token(&ends) && token(&ends));
        jobserver.grant(1, &cpus());
        let circulating = || jobserver.shared.state().tokens.circulating();
        assert_eq!(circulating(), 2);
        give_back(&ends);
        until("the first", || circulating() == 1);
        give_back(&ends);
        until("the second", || circulating() == 0);
        assert!(!token(&ends));
    }

    #[test]
    fn a_build_whose_jobserver_is_gone_has_all_the_jobs_that_were_asked_for() {
        let (jobserver, ends) = Jobserver::create(4, 1).unwrap();
        assert_eq!(tokens(&ends), 0);
        drop(jobserver);
        assert_eq!(tokens(&ends), 3);
    }

    #[test]
    fn a_client_that_reads_without_blocking_does_not_make_others_do_so() {
        let (_jobserver, ends) = Jobserver::create(2, 1).unwrap();
        let flags = rustix::fs::fcntl_getfl(&ends.read).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_build_wants_from_one_thread_to_all_its_jobs() {
        let (jobserver, _ends) = Jobserver::create(8, 2).unwrap();
        let wants = jobserver.wants().unwrap();
        assert_eq!((wants.min_threads, wants.max_threads), (1, 8));
        assert!(wants.malleable);
    }
}
