//! Live tuning: the number of threads of each parallel region of a running program, searched by
//! [`corewise_decide::live`] from what the adapters in its processes time.

use corewise_abi::claim::ClaimPage;
use corewise_abi::regions::{self, RegionsPage};
use corewise_decide::live::{Found, Known, Runs, Seen, Threads, Tuner};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between looks while a region is searched; a look costs some 2 µs.
const SEARCHING: Duration = Duration::from_millis(5);
/// Between looks at first.
const BEGINNING: Duration = Duration::from_millis(10);
const BEGINS_FOR: Duration = Duration::from_secs(1);
/// Between looks otherwise.
const WATCHING: Duration = Duration::from_millis(40);

/// A region with the number of threads that was found for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundRegion {
    /// Which region: made of its library's name and of the place of its code therein.
    pub region: String,
    /// How many threads.
    pub threads: u32,
    /// The most that it could have had.
    pub most: u32,
    /// Its mean time with these, in microseconds, if it has been seen.
    #[serde(default)]
    pub microseconds: Option<f64>,
}

/// What came of live tuning.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tuned {
    /// The regions that have found their numbers.
    pub found: Vec<FoundRegion>,
    /// How many of them were known from an earlier run.
    pub known: usize,
    /// How long any two numbers were compared, in seconds.
    pub searching_seconds: f64,
    /// What slower numbers have lost meanwhile, in seconds.
    pub lost_seconds: f64,
}

/// Live tuning of one program.
#[derive(Debug)]
pub struct Live {
    stop: Sender<()>,
    thread: JoinHandle<Tuned>,
}

impl Live {
    /// Begins to time and to search regions, within the claim; `known` is what an earlier run has found, `budget` the
    /// part of the time that slower numbers may lose.
    ///
    /// # Errors
    /// When no thread is to be had: then every region has what the claim allows.
    pub fn start(
        claim: &'static ClaimPage,
        regions: &'static RegionsPage,
        known: &[FoundRegion],
        budget: f64,
    ) -> std::io::Result<Live> {
        let known: BTreeMap<u64, Known> = known.iter().filter_map(FoundRegion::known).collect();
        let (stop, stopped) = channel();
        let thread = corewise_launch::run::beside("live", move || {
            regions.time(true);
            let count = known.len();
            let (mut tuner, began) = (Tuner::new(known, budget), Instant::now());
            let mut searching = Duration::ZERO;
            loop {
                let searches = tuner.is_searching();
                let period = match began.elapsed() < BEGINS_FOR {
                    _ if searches => SEARCHING,
                    true => BEGINNING,
                    false => WATCHING,
                };
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
                found: tuner.found().map(FoundRegion::from).collect(),
                known: count,
                searching_seconds: searching.as_secs_f64(),
                lost_seconds: tuner.lost_ns() as f64 / 1e9,
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
    let runs = |timed: regions::Runs| Runs {
        runs: timed.runs,
        time_ns: timed.time_ns,
    };
    let seen = regions.timed().map(|(_, timed)| {
        let seen = Seen {
            asked: timed.asked,
            first: runs(timed.first),
            second: runs(timed.second),
        };
        (timed.key, seen)
    });
    for give in tuner.look(now, claim.binding(), seen) {
        let Some(region) = regions.region(give.key) else {
            continue;
        };
        match give.threads {
            Threads::One(threads) => region.give(threads),
            Threads::Turns { numbers, log2_runs } => region.compare(numbers, log2_runs),
        }
    }
}

impl From<Found> for FoundRegion {
    fn from(found: Found) -> FoundRegion {
        FoundRegion {
            region: format!("{:016x}", found.key),
            threads: found.known.threads,
            most: found.known.most,
            microseconds: found.mean_ns.map(|ns| ns / 1e3),
        }
    }
}

impl FoundRegion {
    /// As the search has it; `None` where another version wrote it.
    fn known(&self) -> Option<(u64, Known)> {
        let key = u64::from_str_radix(&self.region, 16).ok()?;
        let known = Known {
            threads: self.threads,
            most: self.most,
        };
        (1..=self.most)
            .contains(&self.threads)
            .then_some((key, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_abi::regions::Region;
    use corewise_decide::live::ASKED_FOR;
    use corewise_wire::Link;

    /// Lets a region run, as an adapter in its process would: it takes so many nanoseconds with so many threads.
    fn run(region: &Region, time_ns: impl Fn(u64) -> u64) -> u16 {
        let run = region.begin();
        let threads = if run.threads == 0 { 4 } else { run.threads };
        let time = time_ns(u64::from(threads));
        std::thread::sleep(Duration::from_nanos(time));
        region.add(run, 4, time);
        region.given().first
    }

    #[test]
    fn a_region_that_is_timed_is_given_the_number_with_which_it_is_fastest() {
        let link = Link::create().unwrap();
        let live = Live::start(link.claim(), link.regions(), &[], ASKED_FOR).unwrap();
        let region = link.regions().region(7).unwrap();
        let began = Instant::now();
        // More with each thread.
        let time = |threads| 200_000 + 100_000 * threads;
        let mut runs = 0;
        while runs < 100 && began.elapsed() < Duration::from_secs(30) {
            let alone = run(region, time) == 1 && region.given().second == 0;
            runs = if alone { runs + 1 } else { 0 };
        }
        let tuned = live.finish();
        assert_eq!(tuned.found.len(), 1);
        assert_eq!(tuned.found[0].region, "0000000000000007");
        assert_eq!((tuned.found[0].threads, tuned.found[0].most), (1, 4));
        assert!(tuned.lost_seconds > 0.0);
    }

    #[test]
    fn what_was_found_before_is_had_from_the_start() {
        let found = |region: &str, threads, most| FoundRegion {
            region: region.to_owned(),
            threads,
            most,
            microseconds: None,
        };
        let known = [
            found("0000000000000007", 2, 4),
            found("not a region", 2, 4),
            found("0000000000000008", 5, 4),
        ];
        let link = Link::create().unwrap();
        let live = Live::start(link.claim(), link.regions(), &known, ASKED_FOR).unwrap();
        let region = link.regions().region(7).unwrap();
        let began = Instant::now();
        while run(region, |_| 300_000) != 2 {
            assert!(began.elapsed() < Duration::from_secs(30), "it is not given");
        }
        let tuned = live.finish();
        assert_eq!((tuned.known, tuned.searching_seconds), (1, 0.0));
        assert_eq!(tuned.found, known[..1]);
    }
}
