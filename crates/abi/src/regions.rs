//! The regions page: how long each parallel region of a program takes, as the adapters in its processes time
//! it, and the numbers of threads that its local manager tries, or has found. Regions of several processes that
//! run the same code are one.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{PAGE_BYTES, PageHeader};

const MAGIC: u32 = u32::from_le_bytes(*b"CWrg");

/// Regions of one program that can be timed. Others run as their claim says.
pub const MOST_REGIONS: usize = 63;

/// How far from its place a region is looked for.
const PROBES: usize = 8;

/// One region. The adapters write what they time, the local manager writes the numbers.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Region {
    /// Which region: made of its library's name and of the place of its code therein; 0: none.
    key: AtomicU64,
    /// The numbers of threads that it is to have; see [`Given`].
    given: AtomicU64,
    /// Runs with each of the numbers, and their time in nanoseconds.
    sides: [Side; 2],
    /// The number of threads that it would have on its own.
    asked: AtomicU32,
    /// Runs that began since it was given two numbers.
    begun: AtomicU32,
}

/// Runs with one number.
#[repr(C)]
#[derive(Debug)]
struct Side {
    runs: AtomicU64,
    time_ns: AtomicU64,
}

/// What a region is to have: one number of threads, or two that take turns, so that what changes meanwhile
/// meets both alike. As a word: two numbers of 16 bits, the length of a turn in 8, the trial in 24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The number of threads; 0: as many as the claim allows.
    pub first: u16,
    /// The number that takes turns with it; 0: none does.
    pub second: u16,
    /// Runs of a turn, as a power of two. Of several the first one is not counted: threads wake up, caches
    /// are cold.
    pub log2_runs: u8,
    /// Which of the things that it was given this is, modulo 2 to the 24th: what was timed with another is
    /// not added.
    trial: u32,
}

impl Given {
    fn of(word: u64) -> Given {
        Given {
            first: word as u16,
            second: (word >> 16) as u16,
            log2_runs: (word >> 32) as u8 % 32,
            trial: (word >> 40) as u32,
        }
    }

    fn word(self) -> u64 {
        let trial = u64::from(self.trial & 0xff_ffff) << 40;
        let turns = u64::from(self.log2_runs) << 32;
        trial | turns | u64::from(self.second) << 16 | u64::from(self.first)
    }
}

/// One run of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// With how many threads; 0: as many as the claim allows.
    pub threads: u16,
    /// Which of two numbers this is; [`UNCOUNTED`]: its time is not to be added.
    side: u16,
    trial: u32,
}

const UNCOUNTED: u16 = 2;

impl Run {
    /// One that counts nowhere.
    pub const NONE: Run = Run {
        threads: 0,
        side: UNCOUNTED,
        trial: 0,
    };
}

/// Runs that were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// How many.
    pub runs: u64,
    /// Their time, in nanoseconds.
    pub time_ns: u64,
}

/// What was timed of a region with the numbers that it has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Which region.
    pub key: u64,
    /// The number of threads that it would have on its own.
    pub asked: u32,
    /// Runs with the first number.
    pub first: Runs,
    /// Runs with the second.
    pub second: Runs,
}

impl Region {
    fn new() -> Region {
        Region {
            key: AtomicU64::new(0),
            given: AtomicU64::new(0),
            sides: core::array::from_fn(|_| Side {
                runs: AtomicU64::new(0),
                time_ns: AtomicU64::new(0),
            }),
            asked: AtomicU32::new(0),
            begun: AtomicU32::new(0),
        }
    }

    /// What it is to have.
    pub fn given(&self) -> Given {
        Given::of(self.given.load(Ordering::Acquire))
    }

    /// A run of it begins. One load, and an atomic addition where two numbers take turns.
    #[inline]
    pub fn begin(&self) -> Run {
        let given = self.given();
        let mut run = Run {
            threads: given.first,
            side: 0,
            trial: given.trial,
        };
        if given.second != 0 {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            let turn = 1_u32 << given.log2_runs;
            if number & turn != 0 {
                run.threads = given.second;
                run.side = 1;
            }
            if turn > 1 && number & (turn - 1) == 0 {
                run.side = UNCOUNTED;
            }
        }
        run
    }

    /// That run has taken so long; `asked` is what it would have had on its own. Three atomic additions
    /// at most.
    #[inline]
    pub fn add(&self, run: Run, asked: u32, time_ns: u64) {
        let Some(side) = self.sides.get(usize::from(run.side)) else {
            return;
        };
        if self.given().trial != run.trial {
            return;
        }
        if self.asked.load(Ordering::Relaxed) != asked {
            self.asked.store(asked, Ordering::Relaxed);
        }
        side.time_ns.fetch_add(time_ns, Ordering::Relaxed);
        side.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives it another number. Only the local manager does this.
    pub fn give(&self, threads: u32) {
        self.give_both([threads, 0], 0);
    }

    /// Gives it two numbers, neither 0, that take turns of 2 to the power of `log2_runs` runs (below 32) each.
    /// Only the local manager does this.
    pub fn compare(&self, numbers: [u32; 2], log2_runs: u8) {
        self.give_both(numbers, log2_runs.min(31));
    }

    fn give_both(&self, numbers: [u32; 2], log2_runs: u8) {
        let number = |threads: u32| u16::try_from(threads).unwrap_or(u16::MAX);
        let given = Given {
            first: number(numbers[0]),
            second: number(numbers[1]),
            log2_runs,
            trial: self.given().trial.wrapping_add(1),
        };
        // Whoever adds after this adds to the new numbers; whoever is in between adds to nothing much.
        self.given.store(given.word(), Ordering::Release);
        for side in &self.sides {
            side.runs.store(0, Ordering::Relaxed);
            side.time_ns.store(0, Ordering::Relaxed);
        }
    }

    fn side(&self, side: usize) -> Runs {
        self.sides.get(side).map_or(Runs::default(), |side| Runs {
            runs: side.runs.load(Ordering::Relaxed),
            time_ns: side.time_ns.load(Ordering::Relaxed),
        })
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
                first: region.side(0),
                second: region.side(1),
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

    fn runs(runs: u64, time_ns: u64) -> Runs {
        Runs { runs, time_ns }
    }

    #[test]
    fn a_region_has_one_place() {
        let page = RegionsPage::new();
        page.initialise();
        assert!(page.is_valid());
        // Two that begin to look at the same place.
        let (one, other) = (3, 3 + MOST_REGIONS as u64);
        for (key, time) in [(one, 10), (other, 20), (one, 10)] {
            let region = region(&page, key);
            region.add(region.begin(), 4, time);
        }
        let mut timed = page.timed().map(|(_, t)| (t.key, t.first));
        assert_eq!(timed.next(), Some((one, runs(2, 20))));
        assert_eq!(timed.next(), Some((other, runs(1, 20))));
        assert_eq!(timed.next(), None);
    }

    #[test]
    fn what_was_timed_with_another_number_is_not_added() {
        let page = RegionsPage::new();
        let region = region(&page, 3);
        let before = region.begin();
        assert_eq!(before.threads, 0);
        region.add(before, 4, 10);
        region.give(2);
        let now = region.begin();
        assert_eq!(now.threads, 2);
        region.add(before, 4, 10);
        region.add(now, 4, 30);
        let timed = page.timed().next().map(|(_, t)| (t.asked, t.first));
        assert_eq!(timed, Some((4, runs(1, 30))));
    }

    #[test]
    fn two_numbers_take_turns_whose_first_run_is_not_counted() {
        let page = RegionsPage::new();
        let region = region(&page, 3);
        region.compare([8, 1], 2);
        let mut threads = alloc::vec::Vec::new();
        for _ in 0..16 {
            let run = region.begin();
            threads.push(run.threads);
            region.add(run, 8, u64::from(run.threads));
        }
        assert_eq!(threads, [8, 8, 8, 8, 1, 1, 1, 1, 8, 8, 8, 8, 1, 1, 1, 1]);
        let timed = page.timed().next().map(|(_, t)| (t.first, t.second));
        assert_eq!(timed, Some((runs(6, 48), runs(6, 6))));
        // Of a turn of one run, that one counts.
        region.compare([8, 4], 0);
        for _ in 0..3 {
            region.add(region.begin(), 8, 1);
        }
        let timed = page.timed().next().map(|(_, t)| (t.first, t.second));
        assert_eq!(timed, Some((runs(2, 2), runs(1, 1))));
    }

    #[test]
    fn numbers_that_do_not_fit_are_as_large_as_can_be() {
        let page = RegionsPage::new();
        let region = region(&page, 3);
        region.compare([u32::MAX, 1 << 20], 255);
        let given = region.given();
        assert_eq!((given.first, given.second), (u16::MAX, u16::MAX));
        assert_eq!(given.log2_runs, 31);
        region.begin();
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
