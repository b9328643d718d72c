//! The policies that are shown, and the history that they are tried on.

use crate::*;
use corewise_decide::policy::observe::Observe;
use corewise_decide::policy::script::rehearse;
use corewise_decide::policy::{Policy, built_in};
use corewise_decide::reading::{CpuReading, MachineReading};
use corewise_decide::world::Entry;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const AUTOMAX: &str = include_str!("../../../../experiments/policies/automax.rhai");
const GUIDE: &str = include_str!("../../../../docs/policies.md");

fn recorded_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/policies/recorded.jsonl")
}

/// A machine whose threads all want to run all the time, and share its CPUs evenly.
struct Scene {
    cpus: u32,
    time_ns: u64,
    busy_ns: u64,
    run_ns: BTreeMap<u64, u64>,
}

impl Scene {
    fn new(cpus: u32) -> Scene {
        Scene {
            cpus,
            time_ns: 0,
            busy_ns: 0,
            run_ns: BTreeMap::new(),
        }
    }

    /// Half a second on: programs with these threads, and `others` threads of nobody's.
    fn readings(&mut self, threads: &[(u64, u32)], others: u32) -> Input {
        const STEP_NS: u64 = 500_000_000;
        let all = others + threads.iter().map(|(_, count)| count).sum::<u32>();
        let running = f64::from(all.min(self.cpus));
        self.time_ns += STEP_NS;
        self.busy_ns += (STEP_NS as f64 * running / f64::from(self.cpus)) as u64;
        let mut programs = Vec::new();
        for (id, count) in threads {
            let run_ns = self.run_ns.entry(*id).or_default();
            *run_ns += (STEP_NS as f64 * running * f64::from(*count) / f64::from(all)) as u64;
            programs.push(ProgramUse {
                program: ProgramId(*id),
                run_ns: *run_ns,
                progress: *run_ns / 1_000_000,
                team: *count,
                could_use: 0,
                blocked: 0,
            });
        }
        let cpu = |cpu| CpuReading {
            cpu,
            busy_ns: self.busy_ns,
            idle_ns: self.time_ns - self.busy_ns,
            steal_ns: 0,
        };
        Input::Readings(Readings {
            machine: MachineReading {
                time_ns: self.time_ns,
                cpus: (0..self.cpus).map(cpu).collect(),
                runnable: Some(all),
                pressure_ns: None,
                ..MachineReading::default()
            },
            programs,
        })
    }
}

/// Programs that do what they are asked, within their bounds, under a policy.
struct Play {
    scene: Scene,
    manager: GlobalManager,
}

impl Play {
    fn new(cpus: u32, policy: Box<dyn Policy>) -> Play {
        let mut manager = GlobalManager::new(policy);
        manager.on(0, &Input::Machine(Machine::flat(cpus)));
        Play {
            scene: Scene::new(cpus),
            manager,
        }
    }

    fn joins(&mut self, program: u64, max_threads: u32, malleable: bool) {
        let input = Input::Joined {
            program: ProgramId(program),
            pid: 1,
            name: String::new(),
            wants: Wants {
                min_threads: 1,
                max_threads,
                placement: Placement::Any,
                malleable,
            },
        };
        self.manager.on(self.scene.time_ns, &input);
    }

    fn threads(&self) -> Vec<(u64, u32)> {
        let programs = self.manager.status().programs.iter();
        programs
            .map(|(id, p)| (id.0, p.claim.as_ref().map_or(0, |c| c.threads)))
            .collect()
    }

    /// Readings, and what follows; how many programs changed.
    fn round(&mut self, others: u32) -> usize {
        let before = self.threads();
        let readings = self.scene.readings(&before, others);
        let mut outputs = self.manager.on(self.scene.time_ns, &readings);
        while let Some(output) = outputs.pop() {
            let Output::Tell {
                program,
                request,
                what,
                ..
            } = output
            else {
                continue;
            };
            let known = &self.manager.status().programs[&program];
            let threads = known.claim.as_ref().unwrap().threads;
            let can = match what {
                Request::Expand => threads < known.wants.max_threads,
                Request::Shrink => threads > known.wants.min_threads,
            };
            let answer = Input::Answered {
                program,
                request,
                yes: known.wants.malleable && can,
            };
            outputs.extend(self.manager.on(self.scene.time_ns, &answer));
        }
        let after = self.threads();
        before.iter().zip(&after).filter(|(b, a)| b != a).count()
    }

    fn rounds(&mut self, count: usize, others: u32) {
        for _ in 0..count {
            assert!(self.round(others) <= 1, "one program a round");
        }
    }
}

fn automax() -> ScriptPolicy {
    ScriptPolicy::new(AUTOMAX, "automax.rhai").unwrap()
}

/// What a malleable program has while it is alone, beside two threads of others', beside nine, and
/// alone again.
fn in_waves(policy: Box<dyn Policy>) -> Vec<u32> {
    let mut play = Play::new(4, policy);
    play.joins(1, 8, true);
    let mut had = Vec::new();
    for others in [0, 2, 9, 0] {
        play.rounds(40, others);
        had.push(play.threads()[0].1);
    }
    had
}

#[test]
fn automax_in_script_does_what_the_built_in_one_does() {
    let waves = in_waves(Box::new(automax()));
    assert_eq!(waves, [4, 2, 1, 4]);
    assert_eq!(waves, in_waves(built_in("automax").unwrap()));
}

#[test]
fn automax_in_script_asks_the_next_one_where_one_declines_and_favours_nobody() {
    let mut play = Play::new(8, Box::new(automax()));
    play.joins(1, 8, false);
    for program in 2..=4 {
        play.joins(program, 8, true);
    }
    play.rounds(60, 0);
    let threads = play.threads();
    assert_eq!(threads[0], (1, 1), "it is rigid");
    assert_eq!(threads.iter().map(|(_, count)| count).sum::<u32>(), 8);
    let most = threads.iter().map(|(_, count)| *count).max().unwrap();
    assert!(most < 6, "nobody got everything: {threads:?}");
}

#[test]
fn the_guide_shows_automax_as_it_is_and_in_at_most_40_lines() {
    let shown = GUIDE
        .split("```rhai\n")
        .filter_map(|part| part.split_once("```"))
        .any(|(listing, _)| listing == AUTOMAX);
    assert!(
        shown,
        "docs/policies.md does not show automax.rhai as it is"
    );
    assert!(AUTOMAX.lines().count() <= 40);
}

#[test]
fn every_listing_of_the_guide_is_a_policy() {
    let listings = GUIDE
        .split("```rhai\n")
        .skip(1)
        .filter_map(|part| part.split_once("```"));
    let history = recorded();
    let mut count = 0;
    for (listing, _) in listings {
        let policy = ScriptPolicy::new(listing, "guide.rhai").unwrap();
        let rehearsal = rehearse(policy, history.clone());
        assert_eq!(rehearsal.report.failures, [], "{listing}");
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn the_guide_says_the_limits_as_they_are() {
    use corewise_decide::policy::script as limits;
    for (what, limit) in [
        ("operations", limits::MAX_OPERATIONS as usize),
        ("elements", limits::MAX_ARRAY),
        ("entries", limits::MAX_MAP),
        ("bytes", limits::MAX_STRING),
        ("calls", limits::MAX_CALLS),
        ("variables", limits::MAX_VARIABLES),
        ("orders", limits::MAX_ORDERS),
        ("deep", limits::MAX_DEPTH),
    ] {
        let row = format!("| {limit} {what}");
        assert!(GUIDE.contains(&row), "no row `{row}`");
    }
}

/// The committed history.
fn recorded() -> Vec<Entry> {
    let text = std::fs::read_to_string(recorded_path()).unwrap();
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

/// Three programs and others' work on eight CPUs, as a manager that only observes records it.
fn history() -> Vec<Entry> {
    let mut manager = GlobalManager::new(Box::new(Observe::default()));
    let mut scene = Scene::new(8);
    let mut entries = Vec::new();
    let mut on = |time_ns, input: Input| {
        let outputs = manager.on(time_ns, &input);
        entries.push(Entry {
            time_ns,
            input,
            outputs,
        });
    };
    let place = |cpu| CpuPlace {
        cpu,
        core: cpu / 2,
        l2: cpu / 2,
        l3: cpu / 4,
        node: cpu / 4,
        package: cpu / 4,
    };
    let machine = Machine {
        places: (0..8).map(place).collect(),
        ..Machine::flat(8)
    };
    on(0, Input::Machine(machine));
    let joins = |program, name: &str, max_threads, malleable| Input::Joined {
        program: ProgramId(program),
        pid: 1_000 + i32::try_from(program).unwrap(),
        name: name.to_owned(),
        wants: Wants {
            min_threads: 1,
            max_threads,
            placement: Placement::Compact,
            malleable,
        },
    };
    let program = ProgramId(2);
    on(1_000_000, joins(1, "render", 8, true));
    for _ in 0..6 {
        let readings = scene.readings(&[(1, 4)], 0);
        on(scene.time_ns, readings);
    }
    on(scene.time_ns, joins(2, "solve", 6, false));
    on(scene.time_ns, Input::Threads { program, count: 6 });
    for others in [0, 0, 0, 3, 3, 3] {
        let readings = scene.readings(&[(1, 4), (2, 6)], others);
        on(scene.time_ns, readings);
    }
    on(scene.time_ns, joins(3, "index", 4, true));
    let wants = Wants {
        min_threads: 1,
        max_threads: 2,
        placement: Placement::Any,
        malleable: true,
    };
    let asker = ProgramId(3);
    on(
        scene.time_ns,
        Input::Asked {
            program: asker,
            wants,
        },
    );
    for _ in 0..4 {
        let readings = scene.readings(&[(1, 4), (2, 6), (3, 2)], 0);
        on(scene.time_ns, readings);
    }
    on(scene.time_ns, Input::Left { program });
    for _ in 0..6 {
        let readings = scene.readings(&[(1, 2), (3, 2)], 0);
        on(scene.time_ns, readings);
    }
    on(scene.time_ns, Input::Left { program: asker });
    entries
}

#[test]
fn the_recorded_history_is_what_a_manager_records() {
    let history = history();
    if std::env::var_os("COREWISE_WRITE_RECORDED").is_some() {
        let lines = history.iter().map(|e| serde_json::to_string(e).unwrap());
        let text: String = lines.map(|line| line + "\n").collect();
        std::fs::write(recorded_path(), text).unwrap();
    }
    assert_eq!(recorded(), history);
}

#[test]
fn a_rehearsal_shows_what_a_script_would_have_ordered() {
    let rehearsal = rehearse(automax(), recorded());
    assert_eq!(rehearsal.report.failures, []);
    assert!(rehearsal.report.most_operations > 0);
    let outputs = || rehearsal.entries.iter().flat_map(|e| &e.outputs);
    let asked =
        |wanted| outputs().any(|o| matches!(o, Output::Tell { what, .. } if *what == wanted));
    assert!(asked(Request::Expand) && asked(Request::Shrink));
    assert!(outputs().any(|o| matches!(o, Output::Grant { threads: 2, .. })));
}
