//! Time on a CPU that is spent waiting: in loops that watch memory, or yielding.
//!
//! Samples of where threads run say, for each thread, which part of them met it in a wait (see
//! [`super::code`]); that part of its run time, which is known exactly, is its spin time. A stretch
//! of run time that no sample fell into waits for the next sample.

use std::collections::HashMap;
use std::io;

use super::code;
use super::perf::{Event, Sampler};
use super::sys;

/// Answers about places in code that are kept; beyond, all are asked again.
const KNOWN_PLACES: usize = 16_384;

/// Estimates spin time for each thread of a tree.
#[derive(Debug)]
pub(super) struct SpinSensor {
    sampler: Sampler,
    places: HashMap<(i32, u64), bool>,
    threads: HashMap<i32, Share>,
    /// Why code could not be read, if it never could.
    unreadable: Option<String>,
}

/// One thread's samples since its run time was last shared out.
#[derive(Debug, Default)]
struct Share {
    samples: u64,
    spins: u64,
    /// Run time that has been shared out, in nanoseconds.
    run_ns: u64,
    spin_ns: u64,
}

impl SpinSensor {
    /// Starts sampling `threads` (number and run time until now), and all that they create.
    pub(super) fn start(threads: &[(i32, u64)], cpus: &[i32]) -> io::Result<Self> {
        let tids: Vec<i32> = threads.iter().map(|(tid, _)| *tid).collect();
        let sampler = Sampler::start(&tids, cpus)?;
        let threads = threads
            .iter()
            .map(|(tid, run_ns)| {
                let share = Share {
                    run_ns: *run_ns,
                    ..Share::default()
                };
                (*tid, share)
            })
            .collect();
        Ok(Self {
            sampler,
            places: HashMap::new(),
            threads,
            unreadable: None,
        })
    }

    /// Whether time in the kernel is sampled too, so that yielding is seen in full.
    pub(super) fn sees_kernel(&self) -> bool {
        self.sampler.sees_kernel
    }

    /// Why the program's code cannot be read, if so.
    pub(super) fn unreadable(&self) -> Option<&str> {
        self.unreadable.as_deref()
    }

    /// Takes the samples out of the rings. Costs about 0.2 µs a sample, 5 µs for a new place.
    pub(super) fn drain(&mut self) {
        let places = &mut self.places;
        let threads = &mut self.threads;
        let unreadable = &mut self.unreadable;
        self.sampler.drain(|event| match event {
            Event::Exec { pid } => places.retain(|(of, _), _| *of != pid),
            Event::Sample {
                pid,
                tid,
                user_ip,
                bits,
            } => {
                if places.len() > KNOWN_PLACES {
                    places.clear();
                }
                let spins = match places.get(&(pid, user_ip)) {
                    Some(spins) => *spins,
                    None => match waits_at(pid, user_ip, bits) {
                        Ok(spins) => {
                            places.insert((pid, user_ip), spins);
                            spins
                        }
                        // The process is gone: nothing can be said about this sample.
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return,
                        Err(error) => {
                            if error.raw_os_error() == Some(libc::EPERM) {
                                *unreadable = Some(error.to_string());
                            }
                            return;
                        }
                    },
                };
                let share = threads.entry(tid).or_default();
                share.samples += 1;
                share.spins += u64::from(spins);
            }
        });
    }

    /// A thread's spin time, given its run time so far; both in nanoseconds.
    pub(super) fn spin_ns(&mut self, tid: i32, run_ns: u64) -> u64 {
        self.threads.entry(tid).or_default().spin_ns(run_ns)
    }

    /// A thread's spin time at its end; its number may then be used again.
    pub(super) fn finish(&mut self, tid: i32, run_ns: u64) -> u64 {
        self.threads
            .remove(&tid)
            .map_or(0, |mut share| share.spin_ns(run_ns))
    }
}

impl Share {
    fn spin_ns(&mut self, run_ns: u64) -> u64 {
        if self.samples > 0 {
            let open = run_ns.saturating_sub(self.run_ns);
            let part = u128::from(open) * u128::from(self.spins) / u128::from(self.samples);
            self.spin_ns += part as u64;
            self.run_ns = self.run_ns.max(run_ns);
            self.samples = 0;
            self.spins = 0;
        }
        self.spin_ns
    }
}

/// Reads the code around a place and judges it.
fn waits_at(pid: i32, user_ip: u64, bits: u32) -> io::Result<bool> {
    let mut buffer = [0u8; code::BEFORE + code::AFTER];
    let mut start = user_ip.saturating_sub(code::BEFORE as u64);
    let mut result = sys::read_memory(pid, start, &mut buffer);
    if matches!(&result, Err(e) if e.raw_os_error() == Some(libc::EFAULT)) {
        // The page before is not mapped: start at this one.
        start = user_ip - user_ip % rustix::param::page_size() as u64;
        result = sys::read_memory(pid, start, &mut buffer);
    }
    let length = match result {
        Ok(length) => length,
        // Execute-only memory or code that is gone by now: not a wait that we know.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return Ok(false),
        Err(error) => return Err(error),
    };
    let at = usize::try_from(user_ip - start).unwrap_or(usize::MAX);
    if at >= length {
        return Ok(false);
    }
    Ok(code::waits_at(&buffer[..length], at, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_is_shared_as_the_samples_say() {
        let mut share = Share {
            samples: 4,
            spins: 1,
            run_ns: 1000,
            spin_ns: 0,
        };
        assert_eq!(share.spin_ns(5000), 1000);
        // Without samples nothing is shared out; the next sample takes it up.
        assert_eq!(share.spin_ns(6000), 1000);
        share.samples = 1;
        share.spins = 1;
        assert_eq!(share.spin_ns(7000), 3000);
    }
}
