//! The CPU time of programs that joined themselves.
//!
//! The kernel counts the time of a process, and a process may be several programs: two of its libraries
//! join, each for itself. Which of them a thread worked for nobody can tell from outside. If each were
//! given the whole, the sum over all programs would be more than the machine has done, and the policy
//! would see less of what others do, and programs that use twice what they may. So what a process uses
//! between two readings is divided equally among the programs that it is at the second one: the sum is
//! right, and none of them looks asleep while the process works.

use corewise_decide::status::ProgramId;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ProcessClocks {
    /// The time of each process when it was read last, in nanoseconds.
    seen: BTreeMap<i32, u64>,
    /// What each program has been given so far, in nanoseconds. It never goes back.
    given: BTreeMap<ProgramId, u64>,
}

impl ProcessClocks {
    /// The CPU time of programs that joined themselves, each with its process, in nanoseconds: its part
    /// of what was used since it joined, and of what a process had used before its first program did.
    /// `clock` reads a process's time, once for each; programs of processes that it cannot read are left
    /// out. Who is not named any more is forgotten.
    pub(crate) fn read(
        &mut self,
        programs: impl IntoIterator<Item = (ProgramId, i32)>,
        clock: impl Fn(i32) -> Option<u64>,
    ) -> BTreeMap<ProgramId, u64> {
        let mut processes: BTreeMap<i32, Vec<ProgramId>> = BTreeMap::new();
        for (program, pid) in programs {
            processes.entry(pid).or_default().push(program);
        }
        let mut seen = BTreeMap::new();
        let mut given = BTreeMap::new();
        for (pid, programs) in processes {
            let Some(now) = clock(pid) else { continue };
            let before = self.seen.get(&pid).copied().unwrap_or(0);
            seen.insert(pid, now);
            let used = now.saturating_sub(before);
            let count = programs.len() as u64;
            // Nanoseconds that do not divide go to those who came first.
            let rest = used % count;
            for (program, index) in programs.into_iter().zip(0..) {
                let had = self.given.get(&program).copied().unwrap_or(0);
                let part = used / count + u64::from(index < rest);
                given.insert(program, had.saturating_add(part));
            }
        }
        self.seen = seen;
        self.given.clone_from(&given);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProgramId = ProgramId(1);
    const B: ProgramId = ProgramId(2);
    const C: ProgramId = ProgramId(3);

    /// Reads with the process 7 at this time, and process 8 always at 1,000.
    fn read(clocks: &mut ProcessClocks, of: &[(ProgramId, i32)], ns: u64) -> Vec<u64> {
        let clock = |pid| match pid {
            7 => Some(ns),
            8 => Some(1_000),
            _ => None,
        };
        let read = clocks.read(of.iter().copied(), clock);
        of.iter()
            .filter_map(|(id, _)| read.get(id).copied())
            .collect()
    }

    #[test]
    fn a_process_that_is_one_program_gives_it_all_its_time() {
        let mut clocks = ProcessClocks::default();
        assert_eq!(read(&mut clocks, &[(A, 7), (B, 8)], 500), [500, 1_000]);
        assert_eq!(read(&mut clocks, &[(A, 7), (B, 8)], 700), [700, 1_000]);
    }

    #[test]
    fn programs_of_one_process_have_its_time_between_them() {
        let mut clocks = ProcessClocks::default();
        read(&mut clocks, &[(A, 7)], 500);
        assert_eq!(read(&mut clocks, &[(A, 7), (B, 7)], 601), [551, 50]);
        let three = [(A, 7), (B, 7), (C, 7)];
        assert_eq!(read(&mut clocks, &three, 901), [651, 150, 100]);
        // The others leave: the rest has it all, and nobody jumps.
        assert_eq!(read(&mut clocks, &[(B, 7)], 1_001), [250]);
    }

    #[test]
    fn a_time_never_goes_back_and_another_process_begins_anew() {
        let mut clocks = ProcessClocks::default();
        read(&mut clocks, &[(A, 7)], 500);
        // The number was given to another process meanwhile.
        assert_eq!(read(&mut clocks, &[(A, 7)], 100), [500]);
        assert_eq!(read(&mut clocks, &[(A, 7)], 150), [550]);
        assert_eq!(read(&mut clocks, &[], 160), [0; 0]);
        assert_eq!(read(&mut clocks, &[(A, 7)], 170), [170]);
    }

    #[test]
    fn who_cannot_be_read_is_left_out() {
        let mut clocks = ProcessClocks::default();
        assert_eq!(read(&mut clocks, &[(A, 9), (B, 7)], 5), [5]);
    }
}
