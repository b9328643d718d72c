//! Policies that decide by the hardware and set it, on made trees of other machines.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Place, Player, until};
use corewise_machine::Root;
use corewise_machine::counters::MADE;
use corewise_manager::Options;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn helper() {
    common::helper_main();
}

/// A desktop of Intel's whose first CPU is too hot, as far as a manager looks at it.
struct Desktop {
    folder: tempfile::TempDir,
    root: Root,
    cpus: Vec<u32>,
}

impl Desktop {
    fn new() -> Desktop {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path().canonicalize().unwrap());
        // The manager grants this machine's CPUs: so the made one has the same.
        let desktop = Desktop {
            cpus: corewise_machine::effective_cpus(&Root::system(), None)
                .unwrap()
                .cpus,
            folder,
            root,
        };
        desktop.write(
            "proc/cpuinfo",
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 42\nflags\t\t: acpi\n",
        );
        desktop.write(MADE.trim_start_matches('/'), "0\n");
        let chip = "sys/class/hwmon/hwmon0";
        desktop.write(&format!("{chip}/name"), "coretemp\n");
        for cpu in &desktop.cpus {
            desktop.write(&format!("dev/cpu/{cpu}/msr"), &"\0".repeat(0x1b0));
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            desktop.write(&format!("{topology}/physical_package_id"), "0\n");
            desktop.write(&format!("{topology}/core_id"), &format!("{cpu}\n"));
            desktop.write(&format!("{chip}/temp{cpu}_label"), &format!("Core {cpu}\n"));
            desktop.write(&format!("{chip}/temp{cpu}_max"), "80000\n");
            desktop.write(&format!("{chip}/temp{cpu}_crit"), "95000\n");
            desktop.heat(*cpu, 40);
            let frequency = format!("sys/devices/system/cpu/cpufreq/policy{cpu}");
            desktop.write(&format!("{frequency}/affected_cpus"), &format!("{cpu}\n"));
            desktop.write(&format!("{frequency}/scaling_min_freq"), "1600000\n");
            desktop.write(&format!("{frequency}/cpuinfo_max_freq"), "3800000\n");
            desktop.write(&format!("{frequency}/scaling_max_freq"), "3800000\n");
        }
        desktop
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // At once: the manager reads meanwhile.
        let new = path.with_extension("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn heat(&self, cpu: u32, celsius: u32) {
        let file = self.path(&format!("sys/class/hwmon/hwmon0/temp{cpu}_input"));
        // The manager keeps it open. Two digits, whatever the temperature.
        std::fs::write(file, format!("{celsius:02}000\n")).unwrap();
    }

    fn prefetchers_are_off(&self) -> bool {
        let first = self.cpus[0];
        let device = std::fs::File::open(self.path(&format!("dev/cpu/{first}/msr"))).unwrap();
        let mut bits = [0];
        device.read_exact_at(&mut bits, 0x1a4).unwrap();
        bits == [0xf]
    }

    fn most_khz(&self, cpu: u32) -> String {
        let file = format!("sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq");
        std::fs::read_to_string(self.path(&file))
            .unwrap()
            .trim()
            .to_owned()
    }

    /// All that can be set of it.
    fn everything(&self) -> Vec<Vec<u8>> {
        let files = self.cpus.iter().flat_map(|cpu| {
            [
                format!("dev/cpu/{cpu}/msr"),
                format!("sys/devices/system/cpu/cpufreq/policy{cpu}/scaling_max_freq"),
            ]
        });
        files
            .map(|file| std::fs::read(self.path(&file)).unwrap())
            .collect()
    }

    fn options(&self, place: &Place, policy: &str) -> Options {
        let options = place.options(policy).hardware(self.root.clone());
        options.period(Duration::from_millis(40))
    }

    /// Retires instructions until the end of `work`: `with` and `without` prefetchers so many in a
    /// millisecond.
    fn retires(&self, with: u64, without: u64, work: impl FnOnce()) {
        let over = AtomicBool::new(false);
        let file = std::fs::File::options()
            .write(true)
            .open(self.path(MADE.trim_start_matches('/')))
            .unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut retired = 0;
                while !over.load(Ordering::Relaxed) {
                    retired += if self.prefetchers_are_off() {
                        without
                    } else {
                        with
                    };
                    // In one call, and always as long: the manager has it open.
                    file.write_all_at(format!("{retired:018}\n").as_bytes(), 0)
                        .unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            over.store(true, Ordering::Relaxed);
            if let Err(panic) = end {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

fn journal(place: &Place) -> String {
    std::fs::read_to_string(place.folder.journal()).unwrap_or_default()
}

fn cpus_of(place: &Place) -> Vec<u64> {
    let programs = place.programs();
    let cpus = programs[0]["claim"]["cpus"].as_array().unwrap().iter();
    cpus.map(|cpu| cpu.as_u64().unwrap()).collect()
}

#[test]
fn prefetchers_are_tried_and_stay_on_only_where_they_help_and_are_put_back_at_the_end() {
    // Far apart: how many milliseconds a window has is chance on a busy machine.
    for (with, without, word) in [(3_000, 1_000, "on"), (1_000, 3_000, "off")] {
        let desktop = Desktop::new();
        let before = desktop.everything();
        let place = Place::new();
        desktop.retires(with, without, || {
            let manager = Manager::start(&place, desktop.options(&place, "prefetch"));
            let mut player = Player::start("program", &place);
            player.says("joined");
            until(&format!("that they stay {word}"), || {
                journal(&place).contains(&format!("they stay {word}"))
            });
            assert_eq!(desktop.prefetchers_are_off(), word == "off");
            drop(player);
            place.until_programs(0);
            until("that nobody needs it", || desktop.everything() == before);
            manager.stop().unwrap();
        });
        assert_eq!(desktop.everything(), before);
    }
}

#[test]
fn a_program_leaves_the_cpu_that_is_too_hot() {
    let desktop = Desktop::new();
    if desktop.cpus.len() < 2 {
        return eprintln!("skipped: there is one CPU only");
    }
    let place = Place::new();
    let _manager = Manager::start(&place, desktop.options(&place, "broken-screw"));
    let _joined = corewise_wire::join(
        &place.folder,
        common::join_as(common::own_pid(), "hot", common::wants(1, 1)),
    )
    .unwrap();
    let [first] = cpus_of(&place)[..] else {
        panic!("it wants one CPU")
    };
    desktop.heat(u32::try_from(first).unwrap(), 85);
    until("a cooler one", || cpus_of(&place) != [first]);
    until("the reason in the journal", || {
        journal(&place).contains("has 85 °C, and it is slowed down from 80 °C")
    });
}

const LIMITS: &str = "fn on_joined(p) {
        grant(p, machine.cpus, 1, \"as a start\");
        set_frequency_mhz(machine.cpus, 2000, \"quiet\");
        set_duty_cycle(machine.cpus, 50, \"cool\");
    }";

#[test]
fn what_a_script_sets_is_put_back_when_another_policy_takes_over() {
    let desktop = Desktop::new();
    let before = desktop.everything();
    let place = Place::new();
    let file = place.folder.path().join("limits.rhai");
    std::fs::write(&file, LIMITS).unwrap();
    let _manager = Manager::start(&place, desktop.options(&place, file.to_str().unwrap()));
    let mut player = Player::start("program", &place);
    player.says("joined");
    for cpu in &desktop.cpus {
        assert_eq!(desktop.most_khz(*cpu), "2000000");
    }
    assert_eq!(
        place.status()["undo"]["to_be_put_back"],
        2 * desktop.cpus.len()
    );
    std::fs::write(&file, "fn on_joined(p) { }").unwrap();
    until("the other policy", || desktop.everything() == before);
    assert_eq!(place.status()["undo"]["to_be_put_back"], 0);
}

#[test]
fn a_killed_manager_s_limits_are_put_back_by_the_next_one() {
    let desktop = Desktop::new();
    let before = desktop.everything();
    let place = Place::new();
    let file = place.folder.path().join("limits.rhai");
    std::fs::write(&file, LIMITS).unwrap();
    let mut command = Player::command(&[], "manager");
    command
        .env("COREWISE_RUNTIME_DIR", place.folder.path())
        .env(common::POLICY, &file)
        .env(common::HARDWARE, desktop.root.folder());
    let manager = Player::spawn(command);
    until("a manager that listens", || place.listens());
    let mut player = Player::start("program", &place);
    player.says("joined");
    until("limits", || desktop.everything() != before);
    until("all limits", || {
        place.status()["undo"]["to_be_put_back"] == 2 * desktop.cpus.len()
    });
    kill_process(Pid::from_raw(manager.pid()).unwrap(), Signal::KILL).unwrap();
    drop(manager);
    assert_ne!(desktop.everything(), before);
    let _next = Manager::observing(&place);
    assert_eq!(desktop.everything(), before);
    assert_eq!(
        place.status()["undo"]["found"]["restored"],
        2 * desktop.cpus.len()
    );
}

#[test]
fn a_machine_without_anything_to_set_says_so_and_goes_on() {
    let empty = tempfile::tempdir().unwrap();
    let place = Place::new();
    let options = place.options("prefetch").hardware(Root::at(empty.path()));
    let _manager = Manager::start(&place, options.period(Duration::from_millis(20)));
    let mut player = Player::start("program", &place);
    player.says("joined");
    until("the reason", || {
        journal(&place).contains("instructions cannot be counted")
            && journal(&place).contains("nobody counts instructions")
    });
    assert_eq!(place.programs().len(), 1);
}
