#![allow(clippy::unwrap_used, reason = "tests end where something fails")]

mod claims;
mod conservation;
mod deadlocks;
mod files;
mod neighbours;
mod order;

use super::*;
use crate::machine::SimMachine;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A machine and programs on it.
struct Bench {
    kernel: Kernel,
    programs: Programs,
    cpus: u32,
    /// Of programs that are started.
    group: GroupId,
    events: Vec<(u64, Event)>,
}

impl Bench {
    fn new(cpus: u32) -> Bench {
        Bench::seeded(cpus, 1)
    }

    fn seeded(cpus: u32, seed: u64) -> Bench {
        Bench {
            kernel: Kernel::new(&SimMachine::flat(cpus), seed),
            programs: Programs::new(seed),
            cpus,
            group: GroupId::ROOT,
            events: Vec::new(),
        }
    }

    fn start(&mut self, text: &str, threads: u32) -> ProgramNumber {
        self.start_as(text, threads, None)
    }

    fn start_as(&mut self, text: &str, threads: u32, wait: Option<WaitPolicy>) -> ProgramNumber {
        let spec = ProgramSpec::from_toml(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let start = Start {
            threads: Some(threads),
            group: self.group,
            allowed: CpuSet::first(self.cpus),
            malleable_under_claim: true,
            wait,
        };
        self.programs
            .start(&mut self.kernel, &Arc::new(spec), start)
    }

    /// Goes on until `until_ns`, or until `enough` after an event.
    fn run(&mut self, until_ns: u64, mut enough: impl FnMut(&Bench) -> bool) -> Result<(), Stuck> {
        while let Some(event) = self.kernel.next(until_ns) {
            self.events.push((self.kernel.now(), event));
            assert!(self.programs.on(&mut self.kernel, event)?);
            for program in &self.programs.list {
                program.check();
            }
            if enough(self) {
                break;
            }
        }
        Ok(())
    }

    /// Runs `p` to its end, which comes within an hour.
    fn finish(&mut self, p: ProgramNumber) -> u64 {
        self.run(3600 * SECOND, |bench| bench.state(p).ended_ns.is_some())
            .unwrap();
        self.state(p).ended_ns.expect("it ends")
    }

    fn state(&self, p: ProgramNumber) -> ProgramState {
        self.programs.state(p)
    }

    fn counters(&self, p: ProgramNumber) -> ThreadCounters {
        self.programs.counters(&self.kernel, p)
    }
}

/// The time that a program takes alone.
fn alone(text: &str, cpus: u32, threads: u32) -> u64 {
    let mut bench = Bench::new(cpus);
    let p = bench.start(text, threads);
    bench.finish(p)
}

impl Program {
    /// What always holds.
    fn check(&self) {
        for (index, process) in self.processes.iter().enumerate() {
            let own = || self.tasks.alive().filter(|task| task.process == index);
            let holding = own().filter(|task| task.holds_unit).count() as u32;
            assert_eq!(
                process.team.in_hand(),
                holding,
                "someone is in a region that is over"
            );
            assert!(
                process
                    .flow
                    .as_ref()
                    .is_none_or(|flow| flow.is_within_bounds())
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_one_others() {
    let events = |seed| {
        let mut bench = Bench::seeded(3, seed);
        let region = "[[phase]]\nrepeat = 20\nregion = { work_ms = 1, imbalance = 0.5 }";
        let spins = format!("name = \"a\"\nwait = \"spin\"\n{region}");
        let blocks = format!("name = \"b\"\n{region}");
        let (a, b) = (bench.start(&spins, 3), bench.start(&blocks, 2));
        bench.finish(a);
        bench.finish(b);
        bench.events
    };
    assert_eq!(events(5), events(5));
    assert_ne!(events(5), events(6));
}

#[test]
fn a_program_says_when_its_threads_change_and_when_it_has_ended() {
    let mut bench = Bench::new(4);
    let p = bench.start("name = \"a\"\n[[phase]]\nregion = { work_ms = 4 }", 4);
    assert_eq!(bench.programs.notices(), [Notice::Threads(p, 1)]);
    bench.finish(p);
    let notices = bench.programs.notices();
    assert_eq!(notices.first(), Some(&Notice::Threads(p, 4)));
    assert_eq!(notices.last(), Some(&Notice::Ended(p)));
    assert!(bench.programs.notices().is_empty());
    assert_eq!(bench.programs.running().count(), 0);
    assert_eq!(bench.programs.threads(p).len(), 4);
    bench.run(u64::MAX, |_| false).unwrap();
    assert!(bench.kernel.is_idle() && bench.programs.stuck(&bench.kernel).is_none());
}

#[test]
fn what_is_not_a_programs_is_the_callers() {
    let mut bench = Bench::new(1);
    let on = bench.programs.on(&mut bench.kernel, Event::Timer(7));
    assert_eq!(on, Ok(false));
    let on = bench
        .programs
        .on(&mut bench.kernel, Event::Ready(ThreadId(7)));
    assert_eq!(on, Ok(false));
}

#[test]
fn a_description_that_was_not_checked_does_nothing() {
    let mut bench = Bench::new(1);
    let spec = "name = \"a\"\n[[phase]]\nserial = { work_ms = -1 }";
    let spec: ProgramSpec = toml::from_str(spec).unwrap();
    assert!(spec.check().is_err());
    let start = Start {
        threads: None,
        group: GroupId::ROOT,
        allowed: CpuSet::first(1),
        malleable_under_claim: false,
        wait: None,
    };
    let p = bench
        .programs
        .start(&mut bench.kernel, &Arc::new(spec), start);
    assert_eq!(bench.state(p).ended_ns, Some(0));
    assert_eq!(bench.programs.notices(), [Notice::Ended(p)]);
}
