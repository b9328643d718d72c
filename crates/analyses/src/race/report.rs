//! What a search found, with names: each race once.
#![allow(
    unsafe_code,
    reason = "buffers of processes that are gone; see `settle`"
)]

use super::access::{Access, kind};
use super::lines::{Lines, Place};
use super::records::{DESCRIPTOR_BYTES, DESCRIPTORS, ThreadRecord};
use super::search::{Order, Search};
use super::unseen::unseen;
use super::words::{Counter, Reserve};
use crate::race::AccessesBuffer;
use crate::region::{Entered, Module, Region};
use corewise_defer::execute_left;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// A side of a race.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// What was done: "write", "read", "atomic write", "atomic read" or "free".
    pub what: &'static str,
    /// How many bytes.
    pub bytes: u32,
    /// The thread.
    pub thread: Thread,
    /// Where, the innermost first.
    pub stack: Vec<Place>,
    /// The locks that were held: their variables, or addresses.
    pub locks: Vec<String>,
}

/// A thread, as people know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thread {
    /// Counted from 0, the main thread.
    pub index: u32,
    /// The system's number.
    pub tid: u32,
    /// Its name; empty: it has none of its own.
    pub name: String,
    /// Where it was created, the innermost first.
    pub created: Vec<Place>,
    /// The thread that created it.
    pub parent: u32,
}

/// What memory two threads accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A variable.
    Variable {
        /// Its name.
        name: String,
        /// The file that it is in.
        module: String,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// An allocated block.
    Block {
        /// Its size in bytes.
        bytes: u64,
        /// Where in it, in bytes.
        offset: u64,
        /// Where it was allocated, the innermost first.
        allocated: Vec<Place>,
        /// The thread that did.
        thread: Thread,
        /// The memory has been given to somebody else since.
        again: bool,
    },
    /// A file descriptor, which stands for what the kernel keeps.
    Descriptor(u64),
    /// Something else: a stack, or a mapping.
    Unknown,
}

/// A race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The process.
    pub pid: u32,
    /// The address of one such access.
    pub address: u64,
    /// Its two sides.
    pub sides: [Side; 2],
    /// What is there.
    pub memory: Memory,
    /// Pairs of accesses that were seen to race so.
    pub seen: u64,
}

/// What all searches of a region found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The races.
    pub races: Vec<Report>,
    /// The processes that were seen.
    pub processes: Vec<Seen>,
    /// Mapped files whose accesses were not seen: they were not compiled to tell of them.
    pub unseen: BTreeSet<String>,
    /// Processes that could not be searched: there were too many, or a limit on their memory forbade it.
    pub unseen_processes: u32,
}

/// What was seen of a process, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The process.
    pub pid: u32,
    /// Its threads.
    pub threads: u64,
    /// Accesses that its threads recorded, after those were left out that repeat others.
    pub recorded: u64,
    /// Accesses that were compared.
    pub compared: u64,
    /// Of these, those that were compared when the process was gone.
    pub left: u64,
    /// Memory that the search used, in bytes.
    pub bytes: u64,
    /// Earlier accesses that made room for later ones of the same code and thread.
    pub shortened: u64,
    /// Pairs that were not judged: when they were is forgotten.
    pub forgotten: u64,
    /// Accesses that were not compared: no memory.
    pub no_room: u64,
    /// Stacks, places and sets of locks without a name: no room.
    pub no_names: u64,
    /// Races that there was no room for.
    pub races_lost: u64,
    /// Threads that were not seen: there are too many.
    pub threads_lost: u64,
    /// Accesses in signal handlers that came in the middle of another's being recorded.
    pub interrupted: u64,
}

/// How far the searches of a region are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoFar {
    /// Accesses that were recorded and handed over.
    pub recorded: u64,
    /// Accesses that were compared.
    pub compared: u64,
}

/// Looks how far they are, while the program runs: two numbers for each process.
pub fn so_far(region: &Region) -> SoFar {
    let mut all = SoFar::default();
    for entered in region.images() {
        let Some(words) = entered.words() else {
            continue;
        };
        let count = |counter: Counter| words[counter as usize].load(Ordering::Relaxed);
        all.recorded += count(Counter::Recorded);
        all.compared += count(Counter::Compared);
    }
    all
}

/// Reads what is there. The program's processes have to be gone: what they left is compared first.
pub fn read(region: &Region, lines: &mut Lines) -> Findings {
    let mut findings = Findings {
        unseen_processes: region.unseen(),
        ..Findings::default()
    };
    // A race of a program that runs in many processes is one.
    let mut known = BTreeSet::new();
    let order = Order::of(region.wanted().order);
    for entered in region.images() {
        image(&entered, order, lines, &mut known, &mut findings);
    }
    findings
}

fn image(
    entered: &Entered<'_>,
    order: Order,
    lines: &mut Lines,
    known: &mut BTreeSet<Key>,
    findings: &mut Findings,
) {
    let words = entered.words();
    let Some(search) = words.and_then(|all| Search::new(all, Reserve::Region(*entered), order))
    else {
        return;
    };
    let left = settle(entered, &search);
    let modules = entered.modules();
    findings.unseen.append(&mut unseen(&modules));
    let pid = entered.image.pid.load(Ordering::Relaxed);
    let count = |counter| search.words.count(counter);
    let threads = search.threads();
    findings.processes.push(Seen {
        pid,
        threads: threads.len() as u64,
        recorded: count(Counter::Recorded),
        compared: count(Counter::Compared),
        left,
        bytes: 8 * search.words.used() as u64,
        shortened: count(Counter::Shortened),
        forgotten: count(Counter::Forgotten),
        no_room: count(Counter::NoRoom),
        no_names: count(Counter::NoNames),
        races_lost: count(Counter::RacesLost),
        threads_lost: count(Counter::ThreadsLost),
        interrupted: count(Counter::Interrupted),
    });
    let mut naming = Naming {
        search: &search,
        modules: &modules,
        threads: &threads,
        lines,
    };
    let mut races = search.races();
    races.sort_by_key(|race| race.accesses);
    for race in races {
        let report = naming.report(pid, &race);
        if known.insert(report.key()) {
            findings.races.push(report);
        }
    }
}

/// Compares what is left in the image's buffers. How many accesses those were.
fn settle(entered: &Entered<'_>, search: &Search<'_>) -> u64 {
    let mut left = 0;
    for (memory, bytes) in entered.buffers() {
        // SAFETY: the runtime takes this memory for buffers of `AccessesBuffer` alone, whose arguments are
        // numbers; their processes are gone. What a program scribbled over is caught as a panic.
        let executed = catch_unwind(AssertUnwindSafe(|| unsafe {
            let mut executed = 0;
            search.sorting(|sorting| {
                executed = execute_left::<AccessesBuffer, _>(memory, bytes, sorting).executed;
            });
            executed
        }));
        left += u64::from(executed.unwrap_or(0));
    }
    left
}

struct Naming<'a, 's> {
    search: &'a Search<'s>,
    modules: &'a [Module],
    threads: &'a [ThreadRecord],
    lines: &'a mut Lines,
}

impl Naming<'_, '_> {
    fn report(&mut self, pid: u32, race: &super::Race) -> Report {
        let [one, other] = race.accesses;
        let common = one.mask & other.mask;
        let address = (one.granule << 3) + u64::from(common.trailing_zeros().min(7));
        Report {
            pid,
            address,
            memory: self.memory(address, one.life),
            sides: [self.side(&one), self.side(&other)],
            seen: race.seen,
        }
    }

    fn side(&mut self, access: &Access) -> Side {
        let site = self.search.site_of(access.site);
        Side {
            what: match access.kind {
                k if k & kind::FREE != 0 => "free",
                k if k & (kind::WRITE | kind::ATOMIC) == kind::WRITE | kind::ATOMIC => {
                    "atomic write"
                }
                k if k & kind::ATOMIC != 0 => "atomic read",
                k if k & kind::WRITE != 0 => "write",
                _ => "read",
            },
            bytes: access.mask.count_ones(),
            thread: self.thread(access.thread, access.segment),
            stack: self.stack(access.site),
            locks: self
                .search
                .locks_of(site.locks)
                .iter()
                .map(|lock| self.lock(*lock))
                .collect(),
        }
    }

    fn lock(&mut self, lock: u64) -> String {
        let address = lock & !1;
        let name = match self.memory(address, 0) {
            Memory::Variable {
                name, offset: 0, ..
            } => name,
            Memory::Variable { name, offset, .. } => format!("{name}+{offset}"),
            Memory::Block { offset, bytes, .. } => {
                format!("0x{address:x} ({offset} bytes inside a block of {bytes})")
            }
            Memory::Descriptor(_) | Memory::Unknown => format!("0x{address:x}"),
        };
        match lock & 1 {
            0 => name,
            _ => format!("{name} (shared)"),
        }
    }

    fn stack(&mut self, site: u32) -> Vec<Place> {
        let site = self.search.site_of(site);
        if site.code <= 1 {
            return Vec::new();
        }
        let mut codes = vec![site.code];
        codes.extend(self.search.context(site.context));
        let mut stack = Vec::new();
        for code in codes {
            stack.extend_from_slice(self.lines.of(self.modules, code));
        }
        // What called `main`, or a thread's start routine, is the C library's.
        if let Some(main) = stack.iter().position(|place| place.function == "main") {
            stack.truncate(main + 1);
        }
        if stack.len() > 1
            && stack
                .last()
                .is_some_and(|last| last.function == "start_thread")
        {
            stack.pop();
        }
        stack
    }

    fn thread(&mut self, thread: u16, segment: u32) -> Thread {
        let mine = |record: &&ThreadRecord| record.thread == thread && record.first <= segment;
        let Some(record) = self
            .threads
            .iter()
            .filter(mine)
            .max_by_key(|record| record.first)
        else {
            return Thread::default();
        };
        let record = record.clone();
        Thread {
            index: record.index,
            tid: record.tid,
            name: record.name,
            parent: record.parent,
            created: self.stack(record.site),
        }
    }

    fn memory(&mut self, address: u64, life: u32) -> Memory {
        if let Some(block) = self.search.block_of(address) {
            return Memory::Block {
                bytes: block.bytes,
                offset: address - block.start,
                allocated: self.stack(block.site),
                thread: self.thread(block.thread, u32::MAX),
                again: block.life != life,
            };
        }
        match self.lines.names().variable(self.modules, address) {
            Some((name, offset, _)) if name == DESCRIPTORS => {
                Memory::Descriptor(offset / DESCRIPTOR_BYTES)
            }
            Some((name, offset, module)) => Memory::Variable {
                name,
                offset,
                module,
            },
            None => Memory::Unknown,
        }
    }
}

/// What makes a race the same as another: places, and kinds of accesses.
type Key = (Vec<(String, String, u32)>, [&'static str; 2]);

impl Report {
    /// What makes it the same race as another: the two places in the source.
    fn key(&self) -> Key {
        let mut places: Vec<_> = self
            .sides
            .iter()
            .map(|side| {
                let place = side.stack.first().cloned().unwrap_or_default();
                match place.line {
                    0 => (
                        format!("{}+0x{:x}", place.module, place.offset),
                        String::new(),
                        0,
                    ),
                    line => (place.function, place.file, line),
                }
            })
            .collect();
        places.sort();
        let mut what = [self.sides[0].what, self.sides[1].what];
        what.sort_unstable();
        (places, what)
    }
}
