//! What holds for every built-in policy, whatever happens: checked after every input of random
//! histories.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_decide::cpus::CpuSet;
use corewise_decide::gang::Turn;
use corewise_decide::global::{GlobalManager, Known};
use corewise_decide::policy::combined::Part;
use corewise_decide::policy::source::Source;
use corewise_decide::policy::{NAMES, Policy, built_in};
use corewise_decide::reading::{CpuReading, MachineReading};
use corewise_decide::status::{
    Claim, CpuPlace, Gang, Machine, Placement, ProgramId, Status, Waits, Wants,
};
use corewise_decide::world::{Entry, Input, Output, ProgramUse, Readings};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One thing that happens. Programs are meant by their place among those that are there.
#[derive(Clone, Debug)]
enum Step {
    Join(Wants),
    Ask(usize, Wants),
    Threads(usize, u32),
    /// Answers an open request, or one that was never made.
    Answer(usize, bool),
    Leave(usize),
    /// A program is of the gang of that number (0: one of its own), or of none.
    Gang(usize, Option<(u32, bool, u32)>),
    /// So many of its threads hardly sleep, and so many thousandths of its time go to loops that wait.
    Waits(usize, u32, Option<u32>),
    Override(usize, Option<(u16, u32)>),
    /// CPUs that may be used, and the quota in tenths of a CPU.
    Machine(u16, u32),
    /// Readings: threads runnable, CPU use by others in tenths, and what programs show.
    Read(Option<u32>, u32, Vec<(u32, u32, u32, u32)>),
}

fn wants() -> impl Strategy<Value = Wants> {
    let placements = prop_oneof![
        Just(Placement::Any),
        Just(Placement::Compact),
        Just(Placement::Scatter)
    ];
    // 0 and numbers the wrong way round are what a message may say, too.
    (0..6_u32, 0..24_u32, placements, any::<bool>()).prop_map(
        |(min_threads, max_threads, placement, malleable)| Wants {
            min_threads,
            max_threads,
            placement,
            malleable,
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let which = 0..16_usize;
    let shown = (0..40_u32, 0..20_u32, 0..20_u32, 0..4_u32);
    let shown = prop::collection::vec(shown, 16);
    prop_oneof![
        4 => wants().prop_map(Step::Join),
        1 => (which.clone(), wants()).prop_map(|(p, w)| Step::Ask(p, w)),
        3 => (which.clone(), 0..20_u32).prop_map(|(p, t)| Step::Threads(p, t)),
        4 => (which.clone(), any::<bool>()).prop_map(|(p, yes)| Step::Answer(p, yes)),
        2 => which.clone().prop_map(Step::Leave),
        2 => (which.clone(), prop::option::weighted(0.8, (0..4_u32, any::<bool>(), 0..20_000_u32)))
            .prop_map(|(p, g)| Step::Gang(p, g)),
        2 => (which.clone(), 0..5_u32, prop::option::of(0..2_000_u32))
            .prop_map(|(p, a, s)| Step::Waits(p, a, s)),
        1 => (which, prop::option::of((any::<u16>(), 0..20_u32))).prop_map(|(p, c)| Step::Override(p, c)),
        1 => (any::<u16>(), 1..200_u32).prop_map(|(c, q)| Step::Machine(c, q)),
        12 => (prop::option::weighted(0.9, 0..30_u32), 0..200_u32, shown)
            .prop_map(|(r, o, s)| Step::Read(r, o, s)),
    ]
}

fn machine(bits: u16, tenths: u32) -> Machine {
    let place = |cpu: u32| CpuPlace {
        cpu,
        core: cpu % 8,
        l2: cpu % 8,
        l3: cpu % 8 / 2,
        node: cpu % 8 / 4,
        package: cpu % 8 / 4,
    };
    let allowed = CpuSet::from_iter((0..16).filter(|cpu| bits >> cpu & 1 == 1 || bits == 0));
    Machine {
        places: (0..16).map(place).collect(),
        capacity: f64::from(allowed.count()).min(f64::from(tenths) / 10.0),
        allowed,
    }
}

/// A manager, and the programs as they see themselves.
struct History {
    manager: GlobalManager,
    journal: Vec<Entry>,
    now_ns: u64,
    next: u64,
    /// Each program's claim by the grants that came out.
    granted: BTreeMap<ProgramId, (CpuSet, u32)>,
    turns: BTreeMap<ProgramId, Turn>,
    open: Vec<(ProgramId, u32)>,
    run_ns: BTreeMap<ProgramId, u64>,
    busy_ns: u64,
}

impl History {
    fn new(policy: Box<dyn Policy>) -> History {
        let mut history = History {
            manager: GlobalManager::new(policy),
            journal: Vec::new(),
            now_ns: 1_000,
            next: 1,
            granted: BTreeMap::new(),
            turns: BTreeMap::new(),
            open: Vec::new(),
            run_ns: BTreeMap::new(),
            busy_ns: 0,
        };
        history.on(Input::Machine(machine(0xff, 160)));
        history
    }

    fn which(&self, index: usize) -> Option<ProgramId> {
        let programs = &self.manager.status().programs;
        let index = index.checked_rem(programs.len())?;
        programs.keys().nth(index).copied()
    }

    fn step_with(&mut self, after_ms: u64, input: Input) {
        self.now_ns += after_ms * 1_000_000;
        self.on(input);
    }

    fn step(&mut self, after_ms: u64, step: &Step) {
        self.now_ns += after_ms * 1_000_000;
        let input = match step {
            Step::Join(wants) => {
                let program = ProgramId(self.next);
                self.next += 1;
                Some(Input::Joined {
                    program,
                    pid: 1,
                    name: String::new(),
                    wants: *wants,
                })
            }
            Step::Ask(index, wants) => self.which(*index).map(|program| Input::Asked {
                program,
                wants: *wants,
            }),
            Step::Threads(index, count) => self.which(*index).map(|program| Input::Threads {
                program,
                count: *count,
            }),
            Step::Answer(index, yes) => {
                let none = (ProgramId(1), 12_345);
                let open = index.checked_rem(self.open.len());
                let (program, request) = open.map_or(none, |i| self.open.remove(i));
                Some(Input::Answered {
                    program,
                    request,
                    yes: *yes,
                })
            }
            Step::Leave(index) => self.which(*index).map(|program| Input::Left { program }),
            Step::Gang(index, gang) => self.which(*index).map(|program| Input::Gang {
                program,
                gang: gang.map(|(number, keeps_idle, weight)| Gang {
                    name: if number == 0 {
                        String::new()
                    } else {
                        number.to_string()
                    },
                    keeps_idle,
                    weight,
                }),
            }),
            Step::Waits(index, awake, spinning) => self.which(*index).map(|program| Input::Waits {
                program,
                waits: Waits {
                    awake: *awake,
                    spinning: *spinning,
                    switch_ns: awake * 40_000,
                },
            }),
            Step::Override(index, claim) => self.which(*index).map(|program| Input::Overridden {
                program,
                claim: claim.map(|(bits, threads)| {
                    let cpus = (0..16).filter(|cpu| bits >> cpu & 1 == 1);
                    (cpus.collect(), threads)
                }),
            }),
            Step::Machine(bits, tenths) => Some(Input::Machine(machine(*bits, *tenths))),
            Step::Read(runnable, others, shown) => {
                Some(self.readings(after_ms, *runnable, *others, shown))
            }
        };
        if let Some(input) = input {
            self.on(input);
        }
    }

    fn readings(
        &mut self,
        after_ms: u64,
        runnable: Option<u32>,
        others: u32,
        shown: &[(u32, u32, u32, u32)],
    ) -> Input {
        let tenth_ns = after_ms * 100_000;
        self.busy_ns += u64::from(others) * tenth_ns / 16;
        let mut programs = Vec::new();
        for (index, program) in self.manager.status().programs.keys().enumerate() {
            // Not every program can be read.
            let Some(&(uses, team, could_use, blocked)) = shown.get(index) else {
                break;
            };
            let run_ns = self.run_ns.entry(*program).or_default();
            *run_ns += u64::from(uses) * tenth_ns;
            self.busy_ns += u64::from(uses) * tenth_ns / 16;
            programs.push(ProgramUse {
                program: *program,
                run_ns: *run_ns,
                progress: 0,
                team,
                could_use,
                blocked,
            });
        }
        let cpu = |cpu| CpuReading {
            cpu,
            busy_ns: self.busy_ns,
            idle_ns: 0,
            steal_ns: 0,
        };
        Input::Readings(Readings {
            machine: MachineReading {
                time_ns: self.now_ns,
                cpus: (0..16).map(cpu).collect(),
                runnable,
                pressure_ns: None,
                ..MachineReading::default()
            },
            programs,
        })
    }

    fn on(&mut self, input: Input) {
        if let Input::Left { program } = &input {
            self.granted.remove(program);
            self.turns.remove(program);
        }
        let outputs = self.manager.on(self.now_ns, &input);
        self.check_outputs(&input, &outputs);
        check(self.manager.status(), &self.granted);
        self.journal.push(Entry {
            time_ns: self.now_ns,
            input,
            outputs,
        });
    }

    /// Follows what comes out, and checks that it is no storm.
    fn check_outputs(&mut self, input: &Input, outputs: &[Output]) {
        let mut grants: BTreeMap<ProgramId, u32> = BTreeMap::new();
        let mut others = 0;
        for output in outputs {
            match output {
                Output::Grant {
                    program,
                    cpus,
                    threads,
                    reason,
                } => {
                    assert!(!reason.is_empty());
                    *grants.entry(*program).or_default() += 1;
                    self.granted.insert(*program, (cpus.clone(), *threads));
                }
                Output::Tell {
                    program, request, ..
                } => {
                    others += 1;
                    self.open.push((*program, *request));
                }
                Output::Turn { program, turn, .. } => {
                    assert!(turn.as_ref().is_none_or(Turn::is_valid), "{output:?}");
                    let before = self.turns.get(program);
                    assert_ne!(turn.as_ref(), before, "{output:?} changes nothing");
                    self.turns.remove(program);
                    self.turns.extend(turn.clone().map(|turn| (*program, turn)));
                }
                _ => others += 1,
            }
        }
        let there = &self.manager.status().programs;
        assert!(self.turns.keys().all(|program| there.contains_key(program)));
        assert!(grants.values().all(|n| *n <= 2), "{input:?} → {outputs:?}");
        assert!(others <= 3, "{input:?} → {outputs:?}");
    }
}

fn check(status: &Status, granted: &BTreeMap<ProgramId, (CpuSet, u32)>) {
    let mut exclusive: Vec<&Claim> = Vec::new();
    let mut claims: Vec<&Claim> = Vec::new();
    for (id, program) in &status.programs {
        let claim = program.claim.as_ref();
        let claim = claim.unwrap_or_else(|| panic!("{id} has no claim"));
        assert!(claim.threads >= program.wants.min_threads.max(1), "{id}");
        assert!(claim.threads <= program.wants.max_threads, "{id}");
        assert!(!claim.cpus.is_empty(), "{id} has nowhere to run");
        assert!(claim.cpus.is_subset(&status.machine.allowed), "{id}");
        // What the program was told is what it has.
        let told = &granted[id];
        assert_eq!((&told.0, told.1), (&claim.cpus, claim.threads), "{id}");
        for other in &exclusive {
            assert!(other.cpus.is_disjoint(&claim.cpus), "{id}: {other:?}");
        }
        if claim.exclusive {
            for other in &claims {
                assert!(other.cpus.is_disjoint(&claim.cpus), "{id}: {other:?}");
            }
            exclusive.push(claim);
        }
        claims.push(claim);
    }
}

fn policies() -> Vec<Box<dyn Policy>> {
    let all = NAMES.iter().map(|name| built_in(name).unwrap());
    all.chain([three().make().unwrap()]).collect()
}

/// Three policies at once.
fn three() -> Source {
    let part = |name: &str, programs: &[&str]| Part {
        source: Source::built_in(name),
        programs: programs.iter().map(|p| (*p).to_owned()).collect(),
        cpus: None,
        claims: name != "prefetch",
    };
    Source {
        parts: vec![
            part("broken-screw", &["*1", "*2"]),
            part("automax", &[]),
            part("prefetch", &[]),
        ],
        ..Source::built_in("three.toml")
    }
}

proptest! {
    #[test]
    fn claims_are_fit_whatever_happens_and_a_journal_replays(
        steps in prop::collection::vec((0..60_u64, steps()), 1..60),
    ) {
        for (index, policy) in policies().into_iter().enumerate() {
            let mut history = History::new(policy);
            for (after_ms, step) in &steps {
                history.step(*after_ms, step);
            }
            while let Some(program) = history.which(0) {
                history.on(Input::Left { program });
            }
            let status = history.manager.status();
            prop_assert!(status.allocated().is_empty());
            prop_assert_eq!(status.unallocated(), status.machine.allowed.clone());
            prop_assert_eq!(history.manager.next_reading_ns(), None);

            let mut again = GlobalManager::new(policies().remove(index));
            for entry in &history.journal {
                let line = serde_json::to_string(entry).unwrap();
                let entry: Entry = serde_json::from_str(&line).unwrap();
                let outputs = again.on(entry.time_ns, &entry.input);
                prop_assert_eq!(outputs, entry.outputs);
            }
            prop_assert_eq!(again.status(), status);
        }
    }
}

/// The sources of all policies: those that are built in, with one that takes its time from outside, and
/// a script that keeps things and draws lots.
fn sources() -> Vec<Source> {
    let mut sources: Vec<Source> = NAMES.iter().map(|name| Source::built_in(*name)).collect();
    sources.push(Source {
        period_ns: Some(30_000_000),
        ..Source::built_in("balanced")
    });
    #[cfg(feature = "scripts")]
    sources.push(Source {
        seed: 5,
        ..Source::script(
            "automax.rhai",
            include_str!("../../../experiments/policies/automax.rhai"),
        )
    });
    sources.push(three());
    sources
}

/// Whether a manager that is made of what this one knows, written and read as JSON, is the same one.
fn again(manager: &GlobalManager, first: &Source) -> GlobalManager {
    let known = manager.known();
    let text = serde_json::to_string(&known).unwrap();
    let read: Known = serde_json::from_str(&text).unwrap();
    assert_eq!(read, known);
    GlobalManager::resume(read, first).unwrap()
}

proptest! {
    /// As at the head of a journal's further part. Another policy may have taken over before.
    #[test]
    fn a_manager_goes_on_where_another_one_was(
        steps in prop::collection::vec((0..60_u64, steps()), 2..60),
        cut in any::<prop::sample::Index>(),
        change in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let sources = sources();
        for (index, source) in sources.iter().enumerate() {
            let mut history = History::new(source.make().unwrap());
            let cut = cut.index(steps.len());
            let mut other = None;
            for (at, (after_ms, step)) in steps.iter().enumerate() {
                if change.is_some_and(|change| change.index(steps.len()) == at) {
                    let next = sources[(index + 1) % sources.len()].clone();
                    history.step_with(*after_ms, Input::Policy(next));
                }
                if at == cut {
                    other = Some((history.journal.len(), again(&history.manager, source)));
                }
                history.step(*after_ms, step);
            }
            let (from, mut other) = other.unwrap();
            for entry in &history.journal[from..] {
                let outputs = other.on(entry.time_ns, &entry.input);
                prop_assert_eq!(&outputs, &entry.outputs, "{} {:?}", source.name, entry.input);
            }
            prop_assert_eq!(other.known(), history.manager.known());
        }
    }
}

#[test]
fn every_name_is_a_policys() {
    for name in NAMES {
        assert_eq!(built_in(name).unwrap().name(), name);
    }
    assert!(built_in("no such policy").is_none());
}
