//! Hardware counters: how many instructions are retired, by a CPU or by the calling thread.
//!
//! The kernel's perf events, through the crate `perf-event2`: it maps an event's page, so that a thread reads
//! its own counter in user space (`rdpmc`, without a system call) where the kernel and the
//! processor allow it.
//!
//! Counting a whole CPU needs root, CAP_PERFMON or a `kernel.perf_event_paranoid` of 0 or less; a virtual
//! machine has the counters only if its host passes them on.

use std::fs::File;
use std::io;

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter, Sampler};

use crate::Root;
use crate::sysfs::again;

/// Stands in a made tree for the system call: the instructions that all its CPUs have retired. No machine has
/// this file.
pub const MADE: &str = "/sys/corewise/instructions";

/// The instructions that CPUs retire.
#[derive(Debug)]
pub struct InstructionReader {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Events(Vec<Counter>),
    Made(File),
}

impl InstructionReader {
    /// Counts on these CPUs from now on, for everything that runs there, in user mode and in the kernel.
    ///
    /// # Errors
    /// What the kernel answered: no such counter here, or no right to it. Then nothing is counted.
    pub fn open(root: &Root, cpus: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        if !root.is_system() {
            let file = File::open(root.path(MADE))?;
            return Ok(Self {
                source: Source::Made(file),
            });
        }
        let counters: io::Result<Vec<Counter>> = cpus.into_iter().map(of_cpu).collect();
        Ok(Self {
            source: Source::Events(counters?),
        })
    }

    /// How many instructions were retired since counting began. Costs a system call for each CPU.
    /// An event that shares its counter with others is scaled by the time in which it counted. `None`: a
    /// counter does not answer.
    pub fn read(&mut self) -> Option<u64> {
        match &mut self.source {
            Source::Made(file) => again(file),
            Source::Events(counters) => {
                let mut sum = 0;
                for counter in counters {
                    let data = counter.read_full().ok()?;
                    let (enabled, running) = (data.time_enabled()?, data.time_running()?);
                    let part = running.as_secs_f64() / enabled.as_secs_f64().max(1e-9);
                    sum += match running.is_zero() {
                        true => 0,
                        false => (data.count() as f64 / part) as u64,
                    };
                }
                Some(sum)
            }
        }
    }
}

fn of_cpu(cpu: u32) -> io::Result<Counter> {
    let mut counter = Builder::new(Hardware::INSTRUCTIONS)
        .any_pid()
        .one_cpu(cpu as usize)
        .include_kernel()
        .build()?;
    counter.enable()?;
    Ok(counter)
}

/// A counter of the thread that opened it.
pub struct ThreadCounter {
    event: Sampler,
}

impl ThreadCounter {
    /// Counts the instructions that the calling thread retires in user mode from now on. Ask it on that
    /// thread only: on another one each reading is a system call.
    ///
    /// # Errors
    /// What the kernel answered: no such counter here, or no right to it.
    pub fn instructions() -> io::Result<ThreadCounter> {
        ThreadCounter::of(Hardware::INSTRUCTIONS)
    }

    fn of(event: impl Event) -> io::Result<ThreadCounter> {
        let mut counter = Builder::new(event).build()?;
        counter.enable()?;
        // One page of data, which stays empty: the page before it is what is read.
        Ok(ThreadCounter {
            event: counter.sampled(1)?,
        })
    }

    /// How many so far, read in user space where that is possible, else by a system call.
    ///
    /// # Errors
    /// What the kernel answered.
    pub fn read(&mut self) -> io::Result<u64> {
        match self.event.read_user().scaled_count() {
            Some(count) => Ok(count),
            None => self.event.as_counter_mut().read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;

    #[test]
    fn a_thread_s_own_counter_only_grows() {
        let mut counter = match ThreadCounter::of(Software::TASK_CLOCK) {
            Ok(counter) => counter,
            Err(why) => return eprintln!("skipped: no perf events here: {why}"),
        };
        let first = counter.read().unwrap();
        std::hint::black_box((0..100_000_u64).fold(0, |a, b| a ^ b));
        assert!(counter.read().unwrap() > first);
    }

    #[test]
    fn instructions_are_counted_or_it_is_said_why_not() {
        match ThreadCounter::instructions() {
            Ok(mut counter) => assert!(counter.read().is_ok()),
            Err(why) => eprintln!("skipped: {why}"),
        }
        match InstructionReader::open(&Root::system(), [0]) {
            Ok(mut reader) => {
                let first = reader.read().unwrap();
                assert!(reader.read().unwrap() >= first);
            }
            Err(why) => eprintln!("skipped: {why}"),
        }
    }

    #[test]
    fn a_tree_without_the_file_has_no_counter() {
        let folder = tempfile::tempdir().unwrap();
        assert!(InstructionReader::open(&Root::at(folder.path()), [0, 1]).is_err());
    }
}
