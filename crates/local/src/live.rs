//! Live tuning: the number of threads of each parallel region of a running program, searched by
//! [`corewise_decide::live`] from what the adapters in its processes time.

use corewise_abi::claim::ClaimPage;
use corewise_abi::regions::RegionsPage;
use corewise_decide::live::{Seen, Tuner};
use serde::Serialize;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between looks while a region is searched; a look costs some 2 µs.
const SEARCHING: Duration = Duration::from_millis(5);
/// Between looks otherwise.
const WATCHING: Duration = Duration::from_millis(40);

/// A region with the number of threads that was found for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Which region: made of its library's name and of the place of its code therein.
    pub region: String,
    /// How many threads.
    pub threads: u32,
    /// Its mean time with these, in microseconds.
    pub microseconds: f64,
}

/// What came of live tuning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tuned {
    /// The regions that have found their numbers.
    pub found: Vec<Found>,
    /// How long any region was searched, in seconds.
    pub searching_seconds: f64,
}

/// Live tuning of one program.
#[derive(Debug)]
pub struct Live {
    stop: Sender<()>,
    thread: JoinHandle<Tuned>,
}

impl Live {
    /// Begins to time and to search regions, within the claim.
    ///
    /// # Errors
    /// When no thread is to be had: then every region has what the claim allows.
    pub fn start(
        claim: &'static ClaimPage,
        regions: &'static RegionsPage,
    ) -> std::io::Result<Live> {
        let (stop, stopped) = channel();
        let thread = corewise_launch::run::beside("live", move || {
            regions.time(true);
            let (mut tuner, began) = (Tuner::new(), Instant::now());
            let mut searching = Duration::ZERO;
            loop {
                let searches = tuner.is_searching();
                let period = if searches { SEARCHING } else { WATCHING };
                let before = Instant::now();
                let woken = stopped.recv_timeout(period);
                if searches {
                    searching += before.elapsed();
                }
                match woken {
                    Err(RecvTimeoutError::Timeout) => look(&mut tuner, began, claim, regions),
                    _ => break,
                }
            }
            Tuned {
                found: found(&tuner),
                searching_seconds: searching.as_secs_f64(),
            }
        })?;
        Ok(Live { stop, thread })
    }

    /// Ends it; what was found.
    pub fn finish(self) -> Tuned {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

fn look(tuner: &mut Tuner, began: Instant, claim: &ClaimPage, regions: &RegionsPage) {
    let now = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let seen = regions.timed().map(|(_, timed)| {
        let seen = Seen {
            asked: timed.asked,
            runs: timed.runs,
            time_ns: timed.time_ns,
        };
        (timed.key, seen)
    });
    for give in tuner.look(now, claim.binding(), seen) {
        if let Some(region) = regions.region(give.key) {
            region.give(give.threads);
        }
    }
}

fn found(tuner: &Tuner) -> Vec<Found> {
    let kept = tuner.kept().map(|(key, threads, mean_ns)| Found {
        region: format!("{key:016x}"),
        threads,
        microseconds: mean_ns / 1e3,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_wire::Link;

    #[test]
    fn a_region_that_is_timed_is_given_the_number_with_which_it_is_fastest() {
        let link = Link::create().unwrap();
        let live = Live::start(link.claim(), link.regions()).unwrap();
        let region = link.regions().region(7).unwrap();
        let began = Instant::now();
        // Its time as if it ran: 300 µs with one thread, more with more.
        while began.elapsed() < Duration::from_secs(20) {
            let given = region.given();
            let threads = if given.threads == 0 { 4 } else { given.threads };
            std::thread::sleep(Duration::from_micros(300));
            region.add(given.trial, 4, 200_000 + 100_000 * u64::from(threads));
            if given.threads == 1 && given.trial > 3 {
                break;
            }
        }
        // The last trial is measured and kept.
        for _ in 0..2_000 {
            std::thread::sleep(Duration::from_micros(200));
            region.add(region.given().trial, 4, 300_000);
        }
        let found = live.finish().found;
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].region.as_str(), found[0].threads),
            ("0000000000000007", 1)
        );
    }
}
