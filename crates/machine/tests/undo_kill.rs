//! Writers of undo logs that are killed at random moments leave nothing behind.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

#[path = "common/live.rs"]
mod live;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corewise_machine::control::{
    AffinityControl, Controller, Process, ProgramCgroup, SLICE_NS, SliceControl,
};
use corewise_machine::undo::{Setting, UndoLog, restore_abandoned};
use live::{Running, affinity, cpus, files_in};

/// Programs that are managed, and files of a made group.
const PROGRAMS: usize = 3;
const FILES: usize = 3;
/// Kills, and the time after which no further one is begun.
const KILLS: u64 = 120;
const TIME: Duration = Duration::from_secs(25);

/// A generator (xorshift) that needs no crate.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Plays a part in another process; as a test of its own it does nothing.
#[test]
fn helper() {
    let Ok(folder) = std::env::var("TEST_FOLDER") else {
        return;
    };
    let seed: u64 = std::env::var("TEST_SEED").unwrap().parse().unwrap();
    let folder = Path::new(&folder);
    let pids = fs::read_to_string(folder.join("pids")).unwrap();
    let programs: Vec<Process> = pids
        .lines()
        .map(|pid| Process::of(pid.parse().unwrap()).unwrap())
        .collect();
    manage(folder, &programs, Random(seed));
}

/// Changes one thing after the other until it is killed.
fn manage(folder: &Path, programs: &[Process], mut random: Random) {
    let undo = folder.join("undo");
    restore_abandoned(&undo);
    println!("ready");
    let (_, cpus) = cpus();
    loop {
        let log = UndoLog::create(&undo, "killed").unwrap();
        let affinity = AffinityControl::new(&log);
        let slice = SliceControl::new(&log);
        for _ in 0..random.below(60) {
            let program = programs[random.below(programs.len() as u64) as usize];
            let first = corewise_machine::control::Thread::of(program.pid, program.pid).unwrap();
            match random.below(6) {
                0 => {
                    let cpu = cpus[random.below(cpus.len() as u64) as usize];
                    affinity.confine_process(program, &[cpu]).unwrap();
                }
                1 => drop(slice.set(first, SLICE_NS.start() + random.below(1_000_000))),
                2 => drop(affinity.release_process(program)),
                3 => in_a_group(&log, program, &mut random),
                _ => {
                    let path = file(folder, random.below(FILES as u64) as usize);
                    // All as long as the original: a plain file does not change in one step else.
                    let value = (100 + random.below(900)).to_string();
                    log.set(&Setting::CgroupFile { path }, &value).unwrap();
                }
            }
        }
    }
}

fn in_a_group(log: &UndoLog, program: Process, random: &mut Random) {
    let wanted = [Controller::Cpu, Controller::Freezer];
    // Not root, or no groups: the other settings are enough.
    let Ok(group) = ProgramCgroup::create(log, program, &wanted) else {
        return;
    };
    group.move_in().unwrap();
    group.set_weight(1 + random.below(1000) as u32).unwrap();
    for idle in [true, false] {
        // As turns do it; not before Linux 5.15.
        let _ = group.set_idle(idle);
    }
    if random.below(2) == 0 {
        let ok = corewise_machine::control::FreezeOk {
            kept_by: "the test",
        };
        group.freeze(ok).unwrap();
    }
    assert!(group.leave().is_clean());
}

fn file(folder: &Path, number: usize) -> PathBuf {
    folder.join("corewise-made").join(format!("file{number}"))
}

/// All that the helper can change.
fn everything(folder: &Path, programs: &[Running]) -> Vec<String> {
    let mut all = Vec::new();
    for program in programs {
        let pid = program.pid();
        all.push(affinity(pid, pid));
        let slice = Setting::Slice(program.first_thread()).present();
        all.push(slice.ok().flatten().unwrap_or_default());
        all.push(fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap());
    }
    for number in 0..FILES {
        all.push(fs::read_to_string(file(folder, number)).unwrap());
    }
    all
}

#[test]
fn everything_is_as_before_after_a_kill_at_any_moment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    fs::create_dir(path.join("corewise-made")).unwrap();
    for number in 0..FILES {
        fs::write(file(&path, number), format!("{}\n", 500 + number)).unwrap();
    }
    let programs: Vec<Running> = (0..PROGRAMS).map(|_| Running::sleeper()).collect();
    let pids: Vec<String> = programs.iter().map(|p| p.pid().to_string()).collect();
    fs::write(path.join("pids"), pids.join("\n")).unwrap();
    let before = everything(&path, &programs);
    let undo = path.join("undo");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    let (mut kills, mut restored) = (0, 0);
    while kills < KILLS && start.elapsed() < TIME {
        let seed = 1 + random.below(u64::MAX >> 12);
        let mut helper = Running::helper("manage", &path, seed);
        // The random moment.
        std::thread::sleep(Duration::from_micros(random.below(12_000)));
        let ended = helper.0.try_wait().unwrap();
        assert!(ended.is_none(), "seed {seed}: the helper failed by itself");
        drop(helper);
        if random.below(2) == 0 {
            // The next one begins with putting back, and is killed too, perhaps in the middle.
            let next = Running::unready_helper("manage", &path, seed + 1);
            std::thread::sleep(Duration::from_micros(random.below(9_000)));
            drop(next);
        }
        let report = restore_abandoned(&undo);
        assert!(report.is_clean(), "seed {seed}: {report:?}");
        assert_eq!(
            everything(&path, &programs),
            before,
            "seed {seed}: {report:?}"
        );
        assert_eq!(files_in(&undo), 0, "seed {seed}");
        restored += report.restored;
        kills += 1;
    }
    eprintln!("{kills} kills, {restored} settings put back");
    assert!(restored > 0, "no kill hit anything that was to be put back");
}
