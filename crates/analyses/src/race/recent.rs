//! What one thread accessed in its present segment, so that each access is recorded once, and those to
//! neighbours together.
//!
//! A direct-mapped table has a line for each row of sixteen granules: of each granule which bytes were read
//! and which written. What is new is kept there, too, with where in the code it was; it comes out when the
//! segment ends, when another row needs the line, or when the same bytes' neighbours in a granule are accessed
//! from elsewhere. Then accesses from one place in the code to granules side by side are one run. What a thread
//! does first in a segment comes out at once: of a process that is killed, that is seen.

use super::access::{Access, Run, kind};

/// Granules of a row.
const ROW: u64 = 16;
/// Lines of the table at first, and at most. Powers of two.
const LINES: [usize; 2] = [1 << 7, 1 << 15];
/// Accesses of a segment that come out at once.
const AT_ONCE: u32 = 64;
/// The longest run that comes out.
const LONGEST: u16 = 1 << 15;

/// Words of a line: its row, which bytes of each granule were read and written (a byte a granule), the last eight
/// bits of the granule's life, and which granules have something that did not come out yet. Above the latter are
/// the other bits of the lives: they are the same in a row, or nearly always.
type Line = [u64; 8];
const READ: usize = 1;
const WRITTEN: usize = 3;
const LIVES: usize = 5;
const KEPT: usize = 7;
/// Granules of a row, a bit each.
const ALL: u64 = 0xffff;

/// What did not come out: for each granule the bytes read and written.
type Bytes = [u64; 4];
/// And where in the code.
type Sites = [u32; 32];

/// The table. It grows with what a segment accesses, to seven megabytes.
#[derive(Debug)]
pub struct Recent {
    lines: Vec<Line>,
    bytes: Vec<Bytes>,
    sites: Vec<Sites>,
    /// Lines that are in use.
    used: Vec<u32>,
    at_once: u32,
}

/// Collects runs that go on.
struct Joining<'e, E> {
    open: [Option<Run>; 2],
    emit: &'e mut E,
}

impl<E: FnMut(Run)> Joining<'_, E> {
    fn add(&mut self, which: usize, access: Access) {
        if let Some(run) = &mut self.open[which] {
            let next = Access {
                granule: run.access.granule + u64::from(run.granules),
                ..run.access
            };
            if next == access && run.granules < LONGEST {
                run.granules += 1;
                return;
            }
            (self.emit)(*run);
        }
        self.open[which] = Some(Run {
            access,
            granules: 1,
        });
    }

    fn end(&mut self) {
        for run in self.open.iter_mut().filter_map(Option::take) {
            (self.emit)(run);
        }
    }
}

impl Default for Recent {
    fn default() -> Recent {
        Recent::with(LINES[0])
    }
}

#[inline(always)]
fn byte(words: &[u64], at: usize, index: u64) -> u8 {
    (words[at + (index >> 3) as usize] >> (8 * (index & 7))) as u8
}

#[inline(always)]
fn set_byte(words: &mut [u64], at: usize, index: u64, value: u8) {
    let shift = 8 * (index & 7);
    let word = &mut words[at + (index >> 3) as usize];
    *word = *word & !(0xff << shift) | u64::from(value) << shift;
}

/// The life of a granule.
#[inline(always)]
fn life(line: &Line, index: u64) -> u32 {
    (line[KEPT] >> 8) as u32 & !0xff | u32::from(byte(line, LIVES, index))
}

impl Recent {
    fn with(lines: usize) -> Recent {
        Recent {
            lines: vec![[0; 8]; lines],
            bytes: vec![[0; 4]; lines],
            sites: vec![[0; 32]; lines],
            used: Vec::new(),
            at_once: 0,
        }
    }

    #[inline(always)]
    fn line_of(&self, row: u64) -> usize {
        // Stacks and heaps are aligned so that their lowest bits alone would often be the same.
        (row ^ row >> 17) as usize & (self.lines.len() - 1)
    }

    /// Whether the thread accessed these bytes in this segment, in a way that races with as much.
    #[inline(always)]
    pub fn covers(&self, granule: u64, mask: u8, writes: bool) -> bool {
        let (row, index) = (granule / ROW, granule % ROW);
        let Some(line) = self.lines.get(self.line_of(row)) else {
            return false;
        };
        let written = byte(line, WRITTEN, index);
        let known = match writes {
            true => written,
            false => written | byte(line, READ, index),
        };
        line[0] == row && mask & !known == 0
    }

    /// Adds an access that is not covered, neither atomic nor of memory that is freed. What comes out says
    /// neither thread nor segment: they are the present ones.
    pub fn add(&mut self, access: &Access, emit: impl FnMut(Run)) {
        let (row, index) = (access.granule / ROW, access.granule % ROW);
        let slot = self.line_of(row);
        let writes = usize::from(access.kind & kind::WRITE != 0);
        let (line, bytes) = (&mut self.lines[slot], &mut self.bytes[slot]);
        let site = &mut self.sites[slot][16 * writes + index as usize];
        let kept = byte(bytes, 2 * writes, index);
        // The usual case, in which nothing comes out.
        if line[0] == row
            && life(line, index) == access.life
            && self.at_once == AT_ONCE
            && (kept == 0 || *site == access.site)
        {
            let known = READ + 2 * writes;
            let seen = byte(line, known, index) | access.mask;
            set_byte(line, known, index, seen);
            set_byte(bytes, 2 * writes, index, kept | access.mask);
            *site = access.site;
            line[KEPT] |= 1 << index;
        } else {
            self.add_slowly(access, emit);
        }
    }

    #[inline(never)]
    fn add_slowly(&mut self, access: &Access, mut emit: impl FnMut(Run)) {
        let (row, index) = (access.granule / ROW, access.granule % ROW);
        let mut slot = self.line_of(row);
        if self.used.len() > self.lines.len() / 2 && self.lines[slot][0] != row {
            self.grow(&mut emit);
            slot = self.line_of(row);
        }
        let mut joining = Joining {
            open: [None; 2],
            emit: &mut emit,
        };
        let empty = self.lines[slot] == [0; 8];
        if self.lines[slot][0] != row {
            self.come_out(slot, ALL, &mut joining);
            if empty {
                self.used.push(slot as u32);
            }
            self.lines[slot] = [row, 0, 0, 0, 0, 0, 0, 0];
        } else if empty {
            // The row of the address zero.
            self.used.push(slot as u32);
        }
        if life(&self.lines[slot], index) != access.life {
            // Another thread freed the memory and allocated it again.
            let high = u64::from(access.life & !0xff);
            let other = self.lines[slot][KEPT] & !ALL != high << 8;
            let granules = if other { ALL } else { 1 << index };
            self.forget_in(slot, granules, &mut joining);
            let line = &mut self.lines[slot];
            line[KEPT] = line[KEPT] & ALL | high << 8;
            set_byte(line, LIVES, index, access.life as u8);
        }
        let writes = usize::from(access.kind & kind::WRITE != 0);
        let line = &mut self.lines[slot];
        let known = READ + 2 * writes;
        let seen = byte(line, known, index) | access.mask;
        set_byte(line, known, index, seen);
        if self.at_once < AT_ONCE {
            self.at_once += 1;
            joining.end();
            emit(Run {
                access: Access {
                    thread: 0,
                    segment: 0,
                    ..*access
                },
                granules: 1,
            });
            return;
        }
        let site = &mut self.sites[slot][16 * writes + index as usize];
        let mut bytes = byte(&self.bytes[slot], 2 * writes, index);
        if bytes != 0 && *site != access.site {
            joining.add(
                writes,
                Access {
                    mask: bytes,
                    site: *site,
                    thread: 0,
                    segment: 0,
                    ..*access
                },
            );
            bytes = 0;
        }
        *site = access.site;
        set_byte(
            &mut self.bytes[slot],
            2 * writes,
            index,
            bytes | access.mask,
        );
        line[KEPT] |= 1 << index;
        joining.end();
    }

    /// Makes the table larger, unless it is as large as it gets. What it said is forgotten.
    #[cold]
    fn grow(&mut self, emit: impl FnMut(Run)) {
        if self.lines.len() < LINES[1] {
            let at_once = self.at_once;
            self.end_segment(emit);
            *self = Recent {
                at_once,
                ..Recent::with(2 * self.lines.len())
            };
        }
    }

    /// The segment ends: everything comes out, and nothing is covered any more.
    pub fn end_segment(&mut self, mut emit: impl FnMut(Run)) {
        self.at_once = 0;
        let mut used = std::mem::take(&mut self.used);
        // Runs go on from row to row.
        used.sort_unstable_by_key(|slot| self.lines[*slot as usize][0]);
        let mut joining = Joining {
            open: [None; 2],
            emit: &mut emit,
        };
        for slot in &used {
            let slot = *slot as usize;
            self.come_out(slot, ALL, &mut joining);
            self.lines[slot] = [0; 8];
        }
        joining.end();
        used.clear();
        self.used = used;
    }

    /// Memory is no longer what it was: what is known of it comes out, and is not covered any more.
    pub fn forget(&mut self, address: u64, bytes: u64, mut emit: impl FnMut(Run)) {
        let (first, last) = (address >> 3, address.saturating_add(bytes) >> 3);
        let mut joining = Joining {
            open: [None; 2],
            emit: &mut emit,
        };
        let rows = first / ROW..=last / ROW;
        // In each row, its granules from `first` to `last`.
        let granules = |row: u64| {
            let from = first.max(row * ROW) - row * ROW;
            let to = last.min(row * ROW + ROW - 1) - row * ROW;
            (ALL << from) & (ALL >> (ROW - 1 - to))
        };
        if last / ROW - first / ROW < self.used.len() as u64 {
            for row in rows {
                let slot = self.line_of(row);
                if self.lines[slot][0] == row {
                    self.forget_in(slot, granules(row), &mut joining);
                }
            }
        } else {
            for index in 0..self.used.len() {
                let slot = self.used[index] as usize;
                let row = self.lines[slot][0];
                if rows.contains(&row) {
                    self.forget_in(slot, granules(row), &mut joining);
                }
            }
        }
        joining.end();
    }

    /// The same for granules of a line, a bit each.
    fn forget_in(
        &mut self,
        slot: usize,
        granules: u64,
        joining: &mut Joining<'_, impl FnMut(Run)>,
    ) {
        self.come_out(slot, granules, joining);
        for index in (0..ROW).filter(|index| granules >> index & 1 != 0) {
            set_byte(&mut self.lines[slot], READ, index, 0);
            set_byte(&mut self.lines[slot], WRITTEN, index, 0);
        }
    }

    /// What was kept of granules of a line, a bit each.
    #[inline]
    fn come_out(&mut self, slot: usize, granules: u64, joining: &mut Joining<'_, impl FnMut(Run)>) {
        let line = &mut self.lines[slot];
        let (row, mut left) = (line[0], line[KEPT] & granules);
        line[KEPT] &= !granules;
        let (bytes, sites) = (&mut self.bytes[slot], &self.sites[slot]);
        while left != 0 {
            let index = u64::from(left.trailing_zeros());
            left &= left - 1;
            let written = byte(bytes, 2, index);
            // Whatever races with a read races with a write of the same bytes.
            let read = byte(bytes, 0, index) & !byte(line, WRITTEN, index);
            for (which, mask, kind) in [(0, read, 0), (1, written, kind::WRITE)] {
                if mask != 0 {
                    let access = Access {
                        granule: row * ROW + index,
                        mask,
                        life: life(line, index),
                        kind,
                        thread: 0,
                        segment: 0,
                        site: sites[16 * which + index as usize],
                    };
                    joining.add(which, access);
                }
            }
            set_byte(bytes, 0, index, 0);
            set_byte(bytes, 2, index, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// A byte of memory, in one of its lives.
    type Byte = (u64, u32, u32);

    fn bytes(run: &Run) -> impl Iterator<Item = Byte> {
        let access = run.access;
        (access.granule..access.granule + u64::from(run.granules)).flat_map(move |granule| {
            let bits = (0..8).filter(move |bit| access.mask >> bit & 1 != 0);
            bits.map(move |bit| (granule, bit, access.life))
        })
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Access {
            granule: u64,
            mask: u8,
            writes: bool,
            site: u32,
        },
        /// So many granules, from one place in the code.
        Sweep {
            granule: u64,
            granules: u64,
            writes: bool,
        },
        Allocate {
            granule: u64,
            granules: u64,
            /// As many times, one after the other.
            by: u32,
        },
    }

    fn step() -> impl Strategy<Value = Step> {
        // Some share lines with others.
        let granule = || (0_u64..3, 0_u64..100).prop_map(|(far, near)| (far << 37 | near) + 4000);
        prop_oneof![
            4 => (granule(), prop_oneof![Just(0x0f), Just(0xf0), 1_u8..], any::<bool>(), 1_u32..4)
                .prop_map(|(granule, mask, writes, site)| Step::Access { granule, mask, writes, site }),
            2 => (granule(), 1_u64..60, any::<bool>())
                .prop_map(|(granule, granules, writes)| Step::Sweep { granule, granules, writes }),
            1 => (granule(), 1_u64..40, prop_oneof![Just(1_u32), Just(255), Just(256), 1_u32..70_000])
                .prop_map(|(granule, granules, by)| Step::Allocate { granule, granules, by }),
        ]
    }

    proptest! {
        #[test]
        fn what_comes_out_is_what_was_accessed_and_stands_for_all_of_it(
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut recent = Recent::default();
            let mut out = Vec::new();
            let mut lives: HashMap<u64, u32> = HashMap::new();
            let mut accesses = Vec::new();
            for step in steps {
                let (granule, granules, mask, writes, site) = match step {
                    Step::Access { granule, mask, writes, site } => (granule, 1, mask, writes, site),
                    Step::Sweep { granule, granules, writes } => (granule, granules, 0xff, writes, 9),
                    Step::Allocate { granule, granules, by } => {
                        recent.forget(granule << 3, (granules - 1) << 3, |run| out.push(run));
                        for granule in granule..granule + granules {
                            *lives.entry(granule).or_default() += by;
                        }
                        continue;
                    }
                };
                for granule in granule..granule + granules {
                    let kind = if writes { kind::WRITE } else { 0 };
                    let life = lives.get(&granule).copied().unwrap_or_default();
                    let access = Access { granule, mask, life, kind, thread: 0, segment: 0, site };
                    accesses.push(access);
                    if !recent.covers(granule, mask, writes) {
                        recent.add(&access, |run| out.push(run));
                    }
                }
            }
            recent.end_segment(|run| out.push(run));
            // Each byte that comes out was accessed so, from there.
            let all = |accesses: &[Access]| -> HashSet<(Byte, u8, u32)> {
                let runs = accesses.iter().map(|access| Run { access: *access, granules: 1 });
                runs.flat_map(|run| bytes(&run).map(move |byte| (byte, run.access.kind, run.access.site)).collect::<Vec<_>>())
                    .collect()
            };
            let accessed = all(&accesses);
            let (mut read, mut written) = (HashSet::new(), HashSet::new());
            for run in &out {
                for byte in bytes(run) {
                    prop_assert!(accessed.contains(&(byte, run.access.kind, run.access.site)), "{run:?}");
                    match run.access.kind {
                        0 => read.insert(byte),
                        _ => written.insert(byte),
                    };
                }
            }
            for (byte, kind, _) in accessed {
                prop_assert!(written.contains(&byte) || kind == 0 && read.contains(&byte), "{byte:?} {kind}");
            }
            // Nothing of it is left for the next segment.
            let before = out.len();
            recent.end_segment(|run| out.push(run));
            prop_assert_eq!(out.len(), before);
            prop_assert!(!recent.covers(accesses.first().map_or(7, |access| access.granule), 1, false));
        }
    }

    #[test]
    fn a_long_sweep_comes_out_as_few_runs() {
        let mut recent = Recent::default();
        let mut out = Vec::new();
        let access = |granule, mask| Access {
            granule,
            mask,
            life: 1,
            kind: kind::WRITE,
            thread: 0,
            segment: 0,
            site: 5,
        };
        // Four bytes at a time.
        for granule in 10_000..20_000 {
            recent.add(&access(granule, 0x0f), |run| out.push(run));
            recent.add(&access(granule, 0xf0), |run| out.push(run));
        }
        recent.end_segment(|run| out.push(run));
        // Whenever the table grows, what it had comes out.
        assert!(out.len() < AT_ONCE as usize + 10, "{}", out.len());
        let last = out[out.len() - 1];
        assert!(last.access.mask == 0xff && last.granules > 2000, "{last:?}");
    }
}
