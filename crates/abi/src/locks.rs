//! The locks page: how long the threads of a program were blocked, in which kind of call, and who called; as
//! the adapters in its processes count it while its local manager wants it. The processes of a program write
//! to the same page, and callers are places in files, not addresses: so calls of several processes of the same
//! code are one entry, and what was counted can be read when they are gone.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{PAGE_BYTES, PageHeader};

const MAGIC: u32 = u32::from_le_bytes(*b"CWlk");

/// Callers of one program that can be told apart; what others wait goes to one entry more.
pub const MOST_CALLERS: usize = 84;

/// Files of one program whose calls can be told apart.
pub const MOST_OBJECTS: usize = 13;

/// Names of threads that can be kept.
pub const MOST_NAMES: usize = 16;

/// Bytes of a path that are kept: the last ones.
pub const PATH_BYTES: usize = 120;

/// Bytes of a thread's name, with the zero at its end where it is shorter.
pub const NAME_BYTES: usize = 16;

/// How far from its place a caller is looked for.
const PROBES: usize = 8;

/// Bits of a caller's key that are the place in its file.
const OFFSET_BITS: u32 = 56;

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `pthread_mutex_lock` and its kin.
    Mutex,
    /// `pthread_rwlock_rdlock`, `pthread_rwlock_wrlock` and their kin.
    Rwlock,
    /// `pthread_cond_wait` and its kin.
    Condition,
    /// `pthread_barrier_wait`.
    Barrier,
    /// `sem_wait` and its kin.
    Semaphore,
}

impl Kind {
    /// All of them, each at the place of its number.
    pub const ALL: [Kind; 5] = [
        Kind::Mutex,
        Kind::Rwlock,
        Kind::Condition,
        Kind::Barrier,
        Kind::Semaphore,
    ];

    /// Its name for people, and in summaries.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::Rwlock => "rwlock",
            Kind::Condition => "condition",
            Kind::Barrier => "barrier",
            Kind::Semaphore => "semaphore",
        }
    }
}

/// Time, and how often. Times are nanoseconds; counts are those of calls that had to wait.
#[repr(C)]
#[derive(Debug)]
struct Sum {
    ns: AtomicU64,
    waits: AtomicU64,
}

/// The calls of one place in a file.
#[repr(C)]
#[derive(Debug)]
struct Caller {
    /// Kind (3 bits), number of the object and 1 (5 bits), place in its file; 0: none.
    key: AtomicU64,
    sum: Sum,
}

/// A file with code of the program.
#[repr(C)]
#[derive(Debug)]
struct Object {
    /// 0: none; [`WRITING`]; else the length of its path, and 1.
    state: AtomicU32,
    _reserved: AtomicU32,
    path: [AtomicU64; PATH_BYTES / 8],
}

const WRITING: u32 = u32::MAX;

/// What was waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// Nanoseconds, added over all threads.
    pub ns: u64,
    /// Calls that had to wait.
    pub waits: u64,
}

impl core::iter::Sum for Waited {
    fn sum<I: Iterator<Item = Waited>>(all: I) -> Waited {
        all.fold(Waited::default(), |sum, one| Waited {
            ns: sum.ns.saturating_add(one.ns),
            waits: sum.waits.saturating_add(one.waits),
        })
    }
}

/// A place in a file that called, and what was waited there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Called {
    /// What for.
    pub kind: Kind,
    /// The number of the file, for [`LocksPage::path`].
    pub object: usize,
    /// The address that the call returns to, as the file numbers its addresses.
    pub address: u64,
    /// How long, and how often.
    pub waited: Waited,
}

/// The locks page. All fields are atomics at fixed offsets.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct LocksPage {
    header: PageHeader,
    /// Other than 0: it is to be counted.
    counting: AtomicU32,
    /// Processes that the adapter was loaded into so far.
    loaded: AtomicU32,
    _reserved: [AtomicU32; 4],
    /// Threads that were given a name.
    named: AtomicU64,
    /// By the number of the kind.
    totals: [Sum; Kind::ALL.len()],
    names: [[AtomicU64; NAME_BYTES / 8]; MOST_NAMES],
    objects: [Object; MOST_OBJECTS],
    callers: [Caller; MOST_CALLERS],
    /// Callers for whom there was no room.
    others: Sum,
}

const _: () = assert!(size_of::<LocksPage>() <= PAGE_BYTES);

impl Default for LocksPage {
    fn default() -> LocksPage {
        LocksPage::new()
    }
}

impl Sum {
    fn new() -> Sum {
        Sum {
            ns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }

    fn add(&self, ns: u64) {
        self.ns.fetch_add(ns, Ordering::Relaxed);
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> Waited {
        Waited {
            ns: self.ns.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }
}

impl LocksPage {
    /// A page of zeroes in ordinary memory, as a mapped page is before [`LocksPage::initialise`].
    pub fn new() -> LocksPage {
        let words = |_| AtomicU64::new(0);
        LocksPage {
            header: PageHeader::new(),
            counting: AtomicU32::new(0),
            loaded: AtomicU32::new(0),
            _reserved: core::array::from_fn(|_| AtomicU32::new(0)),
            named: AtomicU64::new(0),
            totals: core::array::from_fn(|_| Sum::new()),
            names: core::array::from_fn(|_| core::array::from_fn(words)),
            objects: core::array::from_fn(|_| Object {
                state: AtomicU32::new(0),
                _reserved: AtomicU32::new(0),
                path: core::array::from_fn(words),
            }),
            callers: core::array::from_fn(|_| Caller {
                key: AtomicU64::new(0),
                sum: Sum::new(),
            }),
            others: Sum::new(),
        }
    }

    /// Makes a page of zeroes a locks page.
    pub fn initialise(&self) {
        self.header.initialise(MAGIC, size_of::<LocksPage>(), 0);
    }

    /// Whether this is a locks page of a version that we can write.
    pub fn is_valid(&self) -> bool {
        self.header
            .read(MAGIC)
            .is_some_and(|(version, size)| version >= 1 && usize::from(size) >= size_of::<Self>())
    }

    /// Has blocked time counted from now on, or no longer.
    pub fn count(&self, counting: bool) {
        self.counting.store(u32::from(counting), Ordering::Relaxed);
    }

    /// The word that is other than 0 while blocked time is to be counted.
    #[inline]
    pub fn counting(&self) -> &AtomicU32 {
        &self.counting
    }

    /// The adapter was loaded into a process.
    pub fn note_loaded(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is anybody who counts, or could.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed) != 0
    }

    /// The number of a file, which is taken in if it is new. `None` where there is no room. Costs less than a
    /// microsecond. Two threads that bring the same file at once may have it twice.
    pub fn object(&self, path: &[u8]) -> Option<usize> {
        let path = &path[path.len().saturating_sub(PATH_BYTES)..];
        let state = path.len() as u32 + 1;
        for (number, object) in self.objects.iter().enumerate() {
            let found = object.state.load(Ordering::Acquire);
            if found == state && object.is(path) {
                return Some(number);
            }
            let taken = found == 0
                && object
                    .state
                    .compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if taken {
                for (word, bytes) in object.path.iter().zip(path.chunks(8)) {
                    word.store(u64_of(bytes), Ordering::Relaxed);
                }
                object.state.store(state, Ordering::Release);
                return Some(number);
            }
        }
        None
    }

    /// The entry of a caller, which is taken in if it is new; [`MOST_CALLERS`] where there is no room near its
    /// place, or `object` is not known. Costs a few nanoseconds.
    pub fn caller(&self, kind: Kind, object: Option<usize>, address: u64) -> usize {
        let Some(object) = object.filter(|_| address >> OFFSET_BITS == 0) else {
            return MOST_CALLERS;
        };
        let key = ((kind as u64) << 5 | (object as u64 + 1)) << OFFSET_BITS | address;
        // Fibonacci hashing: addresses differ in their lower bits.
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        for step in 0..PROBES {
            let number = (start + step) % MOST_CALLERS;
            let Some(caller) = self.callers.get(number) else {
                break;
            };
            let mut found = caller.key.load(Ordering::Relaxed);
            if found == 0 {
                let taken =
                    caller
                        .key
                        .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
                found = taken.err().unwrap_or(key);
            }
            if found == key {
                return number;
            }
        }
        MOST_CALLERS
    }

    /// A thread waited for so long, in a call of that caller ([`LocksPage::caller`]). Four atomic additions.
    pub fn add(&self, kind: Kind, caller: usize, ns: u64) {
        if let Some(total) = self.totals.get(kind as usize) {
            total.add(ns);
        }
        let entry = self.callers.get(caller).map(|caller| &caller.sum);
        entry.unwrap_or(&self.others).add(ns);
    }

    /// A thread was given a name. Its digits do not count: the threads of a pool have one name here.
    pub fn name(&self, name: &[u8]) {
        self.named.fetch_add(1, Ordering::Relaxed);
        let mut kept = [0; NAME_BYTES];
        let mut length = 0;
        for byte in name {
            let byte = if byte.is_ascii_digit() { b'#' } else { *byte };
            let repeats = byte == b'#' && length > 0 && kept.get(length - 1) == Some(&b'#');
            if let Some(place) = kept.get_mut(length).filter(|_| !repeats) {
                *place = byte;
                length += 1;
            }
        }
        let words = [u64_of(&kept[..8]), u64_of(&kept[8..])];
        for [first, second] in &self.names {
            // The second half follows the first: a reader may once see a name without its end.
            let taken = first.compare_exchange(0, words[0], Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                second.store(words[1], Ordering::Relaxed);
                return;
            }
            if taken == Err(words[0]) && second.load(Ordering::Relaxed) == words[1] {
                return;
            }
        }
    }

    /// What was waited for this kind of thing.
    pub fn total(&self, kind: Kind) -> Waited {
        let total = self.totals.get(kind as usize);
        total.map(Sum::read).unwrap_or_default()
    }

    /// Those who called, in no order.
    pub fn callers(&self) -> impl Iterator<Item = Called> {
        self.callers.iter().filter_map(|caller| {
            let key = caller.key.load(Ordering::Relaxed);
            let numbers = key >> OFFSET_BITS;
            Some(Called {
                kind: *Kind::ALL.get((numbers >> 5) as usize)?,
                object: ((numbers & 31) as usize).checked_sub(1)?,
                address: key & ((1 << OFFSET_BITS) - 1),
                waited: caller.sum.read(),
            })
        })
    }

    /// What those waited for whom there was no room.
    pub fn others(&self) -> Waited {
        self.others.read()
    }

    /// The last bytes of the path of a file, and how many they are: where they are [`PATH_BYTES`], there may
    /// have been more.
    pub fn path(&self, object: usize) -> Option<([u8; PATH_BYTES], usize)> {
        let object = self.objects.get(object)?;
        let state = object.state.load(Ordering::Acquire);
        let length = (state as usize).checked_sub(1)?;
        let mut path = [0; PATH_BYTES];
        for (bytes, word) in path.chunks_exact_mut(8).zip(&object.path) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        (length <= PATH_BYTES).then_some((path, length))
    }

    /// How many threads were given a name so far.
    pub fn named(&self) -> u64 {
        self.named.load(Ordering::Relaxed)
    }

    /// The names, with zeroes at their ends, and `#` for each number in them.
    pub fn names(&self) -> impl Iterator<Item = [u8; NAME_BYTES]> {
        let words = |[first, second]: &[AtomicU64; 2]| {
            let mut name = [0; NAME_BYTES];
            name[..8].copy_from_slice(&first.load(Ordering::Relaxed).to_le_bytes());
            name[8..].copy_from_slice(&second.load(Ordering::Relaxed).to_le_bytes());
            name
        };
        self.names.iter().map(words).filter(|name| name[0] != 0)
    }
}

impl Object {
    fn is(&self, path: &[u8]) -> bool {
        let mut words = self.path.iter().zip(path.chunks(8));
        words.all(|(word, bytes)| word.load(Ordering::Relaxed) == u64_of(bytes))
    }
}

/// Up to eight bytes as a word, zeroes behind them.
fn u64_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_can_be_read() {
        let page = LocksPage::new();
        for caller in &page.callers {
            caller.key.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(page.callers().count(), 0);
        for object in &page.objects {
            object.state.store(WRITING, Ordering::Relaxed);
        }
        assert_eq!(page.path(0), None);
        assert_eq!(page.object(b"/a"), None);
    }
}
