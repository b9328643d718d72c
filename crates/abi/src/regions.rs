//! The regions page: how long each parallel region of a program takes, as the adapters in its processes time
//! it, and the number of threads that its local manager has found for it. Regions of several processes that
//! run the same code are one.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{PAGE_BYTES, PageHeader};

const MAGIC: u32 = u32::from_le_bytes(*b"CWrg");

/// Regions of one program that can be timed. Others run as their claim says.
pub const MOST_REGIONS: usize = 63;

/// How far from its place a region is looked for.
const PROBES: usize = 8;

/// One region. The adapters write what they time, the local manager writes the number.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Region {
    /// Which region: made of its library's name and of the place of its code therein; 0: none.
    key: AtomicU64,
    /// The number of threads that it is to have, in the lower half; 0: as many as the claim allows. The
    /// upper half counts the numbers that it was given.
    given: AtomicU64,
    /// Runs with that number, and their time in nanoseconds.
    runs: AtomicU64,
    time_ns: AtomicU64,
    /// The number of threads that it would have on its own.
    asked: AtomicU32,
}

/// What a region is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The number of threads; 0: as many as the claim allows.
    pub threads: u32,
    /// Which of the numbers that it was given this is: what was timed with another is not added.
    pub trial: u32,
}

impl Given {
    fn of(word: u64) -> Given {
        Given {
            threads: word as u32,
            trial: (word >> 32) as u32,
        }
    }
}

/// What was timed of a region with the number that it has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Which region.
    pub key: u64,
    /// The number of threads that it would have on its own.
    pub asked: u32,
    /// Runs.
    pub runs: u64,
    /// Their time, in nanoseconds.
    pub time_ns: u64,
}

impl Region {
    fn new() -> Region {
        Region {
            key: AtomicU64::new(0),
            given: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            asked: AtomicU32::new(0),
        }
    }

    /// What it is to have. One load.
    #[inline]
    pub fn given(&self) -> Given {
        Given::of(self.given.load(Ordering::Acquire))
    }

    /// It ran for so long with the number of `trial`; `asked` is what it would have had on its own. Three
    /// atomic additions at most.
    #[inline]
    pub fn add(&self, trial: u32, asked: u32, time_ns: u64) {
        if self.given().trial != trial {
            return;
        }
        if self.asked.load(Ordering::Relaxed) != asked {
            self.asked.store(asked, Ordering::Relaxed);
        }
        self.time_ns.fetch_add(time_ns, Ordering::Relaxed);
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives it another number. Only the local manager does this.
    pub fn give(&self, threads: u32) {
        let trial = self.given().trial.wrapping_add(1);
        let word = u64::from(trial) << 32 | u64::from(threads);
        // Whoever adds after this adds to the new number; whoever is in between adds to nothing much.
        self.given.store(word, Ordering::Release);
        self.runs.store(0, Ordering::Relaxed);
        self.time_ns.store(0, Ordering::Relaxed);
    }
}

/// The regions page. All fields are atomics at fixed offsets.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RegionsPage {
    header: PageHeader,
    /// Other than 0: regions are to be timed.
    timing: AtomicU32,
    _reserved: [AtomicU32; 11],
    regions: [Region; MOST_REGIONS],
}

const _: () = assert!(size_of::<RegionsPage>() <= PAGE_BYTES && size_of::<Region>() == 64);

impl Default for RegionsPage {
    fn default() -> RegionsPage {
        RegionsPage::new()
    }
}

impl RegionsPage {
    /// A page of zeroes in ordinary memory, as a mapped page is before [`RegionsPage::initialise`].
    pub fn new() -> RegionsPage {
        RegionsPage {
            header: PageHeader::new(),
            timing: AtomicU32::new(0),
            _reserved: core::array::from_fn(|_| AtomicU32::new(0)),
            regions: core::array::from_fn(|_| Region::new()),
        }
    }

    /// Makes a page of zeroes a regions page.
    pub fn initialise(&self) {
        self.header.initialise(MAGIC, size_of::<RegionsPage>(), 0);
    }

    /// Whether this is a regions page of a version that we can write.
    pub fn is_valid(&self) -> bool {
        self.header
            .read(MAGIC)
            .is_some_and(|(version, size)| version >= 1 && usize::from(size) >= size_of::<Self>())
    }

    /// Has regions timed from now on, or no longer.
    pub fn time(&self, timing: bool) {
        self.timing.store(u32::from(timing), Ordering::Relaxed);
    }

    /// Whether regions are to be timed. One load.
    #[inline]
    pub fn is_timing(&self) -> bool {
        self.timing.load(Ordering::Relaxed) != 0
    }

    /// The region of this key, which is taken in if it is new. `None` where there is no room near its place.
    /// Costs a few nanoseconds.
    #[inline]
    pub fn region(&self, key: u64) -> Option<&Region> {
        // 0 means that there is none.
        let key = key.max(1);
        let start = (key % MOST_REGIONS as u64) as usize;
        for step in 0..PROBES {
            let region = self.regions.get((start + step) % MOST_REGIONS)?;
            match region.key.load(Ordering::Relaxed) {
                found if found == key => return Some(region),
                0 => {
                    let taken =
                        region
                            .key
                            .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
                    if taken.is_ok() || taken == Err(key) {
                        return Some(region);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The regions that have been timed, each with what was timed.
    pub fn timed(&self) -> impl Iterator<Item = (&Region, Timed)> {
        let taken = |region: &&Region| region.key.load(Ordering::Relaxed) != 0;
        self.regions.iter().filter(taken).map(|region| {
            let timed = Timed {
                key: region.key.load(Ordering::Relaxed),
                asked: region.asked.load(Ordering::Relaxed),
                runs: region.runs.load(Ordering::Relaxed),
                time_ns: region.time_ns.load(Ordering::Relaxed),
            };
            (region, timed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(page: &RegionsPage, key: u64) -> &Region {
        let Some(region) = page.region(key) else {
            panic!("there is room on a new page");
        };
        region
    }

    #[test]
    fn a_region_has_one_place() {
        let page = RegionsPage::new();
        page.initialise();
        assert!(page.is_valid());
        // Two that begin to look at the same place.
        let (first, second) = (3, 3 + MOST_REGIONS as u64);
        region(&page, first).add(0, 4, 10);
        region(&page, second).add(0, 4, 20);
        region(&page, first).add(0, 4, 10);
        let mut timed = page.timed().map(|(_, t)| (t.key, t.runs, t.time_ns));
        assert_eq!(timed.next(), Some((first, 2, 20)));
        assert_eq!(timed.next(), Some((second, 1, 20)));
        assert_eq!(timed.next(), None);
    }

    #[test]
    fn what_was_timed_with_another_number_is_not_added() {
        let page = RegionsPage::new();
        let region = region(&page, 3);
        let before = region.given();
        assert_eq!(before.threads, 0);
        region.add(before.trial, 4, 10);
        region.give(2);
        let now = region.given();
        assert_eq!(now.threads, 2);
        region.add(before.trial, 4, 10);
        region.add(now.trial, 4, 30);
        let timed = page
            .timed()
            .next()
            .map(|(_, t)| (t.asked, t.runs, t.time_ns));
        assert_eq!(timed, Some((4, 1, 30)));
    }

    #[test]
    fn a_full_page_takes_no_more_and_loses_none() {
        let page = RegionsPage::new();
        let taken = (1..1000).filter(|key| page.region(*key).is_some()).count();
        assert_eq!(taken, MOST_REGIONS);
        assert_eq!(page.timed().count(), MOST_REGIONS);
        assert!(page.region(5).is_some());
    }
}
