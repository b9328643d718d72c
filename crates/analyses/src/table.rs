//! Tables that any number of threads and processes count in at once, without locks: open addressing over
//! atomics, in memory that is zero at first. What was put in is never taken out.

use std::sync::atomic::{AtomicU64, Ordering};

/// Entries that are looked at before a table counts as full.
const PROBES: usize = 128;

/// One function.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Function {
    /// Where it is; 0: the entry is free.
    pub address: AtomicU64,
    /// How often memory was allocated while it was the innermost function.
    pub allocations: AtomicU64,
    /// How many bytes those were.
    pub bytes: AtomicU64,
}

/// How often one function called another.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Edge {
    /// The places of both in the table of functions, each plus one; a caller of 0 is outside. 0: the entry
    /// is free.
    pub pair: AtomicU64,
    /// The calls.
    pub calls: AtomicU64,
}

/// The tables of one program.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    /// As many as a power of two.
    pub functions: &'a [Function],
    /// As many as a power of two.
    pub edges: &'a [Edge],
    /// Calls and allocations for which there was no room.
    pub lost: &'a AtomicU64,
}

/// Spreads what differs in few bits (Fibonacci hashing: Knuth, TAOCP 3, 6.4).
fn spread(key: u64, slots: usize) -> usize {
    let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 32) as usize & (slots - 1)
}

impl Tables<'_> {
    /// `calls` calls of `callee` by `caller`, an address of 0: from outside.
    #[inline]
    pub fn call(&self, caller: u64, callee: u64, calls: u64) {
        if self.counted(caller, callee, calls).is_none() {
            self.lost.fetch_add(calls, Ordering::Relaxed);
        }
    }

    fn counted(&self, caller: u64, callee: u64, calls: u64) -> Option<()> {
        let caller = match caller {
            0 => 0,
            address => self.function(address)? as u64 + 1,
        };
        let pair = caller << 32 | (self.function(callee)? as u64 + 1);
        let slots = self.edges.len();
        // Both halves are small numbers: shaken together they differ in more bits.
        let start = spread(pair ^ pair >> 29, slots);
        let index = find(slots, start, pair, |index| &self.edges[index].pair)?;
        self.edges[index].calls.fetch_add(calls, Ordering::Relaxed);
        Some(())
    }

    /// `count` allocations of `bytes` together in a function, an address of 0: outside.
    #[inline]
    pub fn allocated(&self, function: u64, count: u64, bytes: u64) {
        // Outside has an entry of its own; no function is there.
        match self.function(if function == 0 { OUTSIDE } else { function }) {
            Some(index) => {
                let entry = &self.functions[index];
                entry.allocations.fetch_add(count, Ordering::Relaxed);
                entry.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            None => {
                self.lost.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    fn function(&self, address: u64) -> Option<usize> {
        let slots = self.functions.len();
        // Functions begin at multiples of 16, mostly.
        let start = spread(address >> 4, slots);
        find(slots, start, address, |index| {
            &self.functions[index].address
        })
    }
}

/// The address under which allocations outside of all functions are counted: in the first page, where
/// nothing is mapped.
pub const OUTSIDE: u64 = 1;

/// The slot of a key, which is put in where it is not yet. `None`: no room.
#[inline]
fn find<'a>(
    slots: usize,
    start: usize,
    key: u64,
    at: impl Fn(usize) -> &'a AtomicU64,
) -> Option<usize> {
    for step in 0..PROBES.min(slots) {
        let index = (start + step) & (slots - 1);
        let slot = at(index);
        let mut there = slot.load(Ordering::Relaxed);
        if there == 0 {
            there = match slot.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => key,
                Err(there) => there,
            };
        }
        if there == key {
            return Some(index);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn made(functions: usize, edges: usize) -> (Vec<Function>, Vec<Edge>, AtomicU64) {
        let functions = (0..functions).map(|_| Function::default()).collect();
        let edges = (0..edges).map(|_| Edge::default()).collect();
        (functions, edges, AtomicU64::new(0))
    }

    /// What is in the tables, by addresses.
    fn counted(functions: &[Function], edges: &[Edge]) -> BTreeMap<(u64, u64), u64> {
        let address = |place: u64| match place {
            0 => 0,
            place => functions[place as usize - 1]
                .address
                .load(Ordering::Relaxed),
        };
        let used = edges.iter().filter(|e| e.pair.load(Ordering::Relaxed) != 0);
        let each = used.map(|edge| {
            let pair = edge.pair.load(Ordering::Relaxed);
            let calls = edge.calls.load(Ordering::Relaxed);
            ((address(pair >> 32), address(pair & 0xffff_ffff)), calls)
        });
        each.collect()
    }

    proptest! {
        #[test]
        fn calls_are_counted_by_pair_or_counted_as_lost(
            calls in proptest::collection::vec((0_u64..40, 1_u64..40), 0..300),
            size in 2_u32..7,
        ) {
            let (functions, edges, lost) = made(1 << size, 1 << size);
            let tables = Tables { functions: &functions, edges: &edges, lost: &lost };
            let mut expected = BTreeMap::<_, u64>::new();
            for (caller, callee) in &calls {
                tables.call(caller * 16, callee * 16, 1);
                *expected.entry((caller * 16, callee * 16)).or_default() += 1;
            }
            let counted = counted(&functions, &edges);
            for (pair, calls) in &counted {
                prop_assert!(expected[pair] >= *calls);
            }
            let sum = counted.values().sum::<u64>() + lost.load(Ordering::Relaxed);
            prop_assert_eq!(sum, calls.len() as u64);
        }
    }

    #[test]
    fn threads_count_in_the_same_tables_at_once() {
        let (functions, edges, lost) = made(1 << 10, 1 << 12);
        let tables = Tables {
            functions: &functions,
            edges: &edges,
            lost: &lost,
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..10_000_u64 {
                        tables.call(number % 31 * 16, 16 + number % 37 * 16, 1);
                        tables.allocated(number % 3, 1, 8);
                    }
                });
            }
        });
        let counted = counted(&functions, &edges);
        assert_eq!(counted.values().sum::<u64>(), 40_000);
        assert_eq!(counted.len(), 31 * 37, "no pair twice");
        let bytes = functions.iter().map(|f| f.bytes.load(Ordering::Relaxed));
        assert_eq!(bytes.sum::<u64>(), 320_000);
        assert_eq!(lost.load(Ordering::Relaxed), 0);
    }
}
