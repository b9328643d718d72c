//! Controls on real threads, processes and groups of this machine.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

#[path = "common/live.rs"]
mod live;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use corewise_machine::Root;
use corewise_machine::control::process::threads;
use corewise_machine::control::{
    AffinityControl, Controller, Done, Error, FreezeOk, Process, ProgramCgroup, SLICE_NS,
    SliceControl, Thread,
};
use corewise_machine::sensors::controls;
use corewise_machine::undo::{Report, Setting, UndoLog, restore_abandoned};
use live::{Running, affinities, affinity, cpus, files_in, logs, skip, until};

/// Plays a part in another process; as a test of its own it does nothing.
#[test]
fn helper() {
    let Ok(role) = std::env::var("TEST_ROLE") else {
        return;
    };
    match role.as_str() {
        "breeder" => breed(),
        role => panic!("{role}"),
    }
}

/// Makes threads all the time, each of which makes more, and starts a process at each line that it
/// is given.
fn breed() {
    let stop = Arc::new(AtomicBool::new(false));
    let go_on = Arc::clone(&stop);
    let makers = std::thread::spawn(move || {
        while !go_on.load(Ordering::Relaxed) {
            let made: Vec<_> = (0..4)
                .map(|_| {
                    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_millis(3)))
                })
                .collect();
            made.into_iter().for_each(|thread| thread.join().unwrap());
        }
    });
    println!("ready");
    let mut children = Vec::new();
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "start" => children.push(Running::sleeper()),
            "quiet" => break,
            _ => {}
        }
    }
    stop.store(true, Ordering::Relaxed);
    makers.join().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn tell(helper: &mut Running, line: &str) {
    let to = helper.0.stdin.as_mut().unwrap();
    writeln!(to, "{line}").unwrap();
    to.flush().unwrap();
}

/// The list of CPUs and one of them, where there are two.
fn two_cpus() -> Option<(String, u32)> {
    let (list, cpus) = cpus();
    if cpus.len() < 2 {
        skip("needs two CPUs");
        return None;
    }
    Some((list, cpus[1]))
}

#[test]
fn a_process_that_makes_threads_all_the_time_is_confined_and_let_go() {
    let Some((list, cpu)) = two_cpus() else {
        return;
    };
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = AffinityControl::new(&log);
    let mut breeder = Running::helper("breeder", Path::new("/"), 0);
    tell(&mut breeder, "start");
    let pid = breeder.pid();
    until("confined", || {
        control.confine_process(breeder.process(), &[cpu]).unwrap();
        affinities(pid).iter().all(|a| *a == cpu.to_string())
    });
    // Whoever is born now is confined from the first instruction.
    for _ in 0..20 {
        assert!(affinities(pid).iter().all(|a| *a == cpu.to_string()));
    }
    tell(&mut breeder, "start");
    let children = || {
        let mut below = corewise_machine::control::process::processes_below(pid);
        below.retain(|p| *p != pid);
        below
    };
    until("children", || children().len() == 2);
    tell(&mut breeder, "quiet");
    until("quiet", || threads(pid).len() <= 2);
    control.release_process(breeder.process());
    assert!(
        affinities(pid).iter().all(|a| *a == list),
        "{:?}",
        affinities(pid)
    );
    // A process that was started while its parent was confined has inherited that.
    for child in children() {
        assert_eq!(affinity(child, child), list);
    }
    assert!(log.is_empty());
}

#[test]
fn a_thread_that_inherited_our_value_gets_its_process_original() {
    let Some((list, cpu)) = two_cpus() else {
        return;
    };
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = AffinityControl::new(&log);
    let (sender, receiver) = mpsc::channel::<()>();
    let (tids, tid) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        tids.send(own).unwrap();
        receiver.recv().unwrap();
        let (to_heir, heir_waits) = mpsc::channel::<()>();
        let heir = std::thread::spawn(move || {
            tids.send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            let _ = heir_waits.recv();
        });
        let _ = receiver.recv();
        drop(to_heir);
        heir.join().unwrap();
    });
    let pid = i32::try_from(std::process::id()).unwrap();
    let parent = tid.recv().unwrap();
    control
        .confine(Thread::of(pid, parent).unwrap(), &[cpu])
        .unwrap();
    sender.send(()).unwrap();
    let heir = tid.recv().unwrap();
    assert_eq!(affinity(pid, heir), cpu.to_string());
    // Set again, it is known whence its value came.
    let heir_thread = Thread::of(pid, heir).unwrap();
    assert_eq!(control.confine(heir_thread, &[cpu]).unwrap(), Done::Set);
    log.restore(|what| *what == Setting::Affinity(heir_thread));
    assert_eq!(affinity(pid, heir), list);
    assert_eq!(affinity(pid, parent), cpu.to_string());
    log.close();
    assert_eq!(affinity(pid, parent), list);
    drop(sender);
    thread.join().unwrap();
}

#[test]
fn a_thread_that_sets_its_own_affinity_is_left_alone_from_then_on() {
    let Some((list, cpu)) = two_cpus() else {
        return;
    };
    let (_folder, logs) = logs();
    let (_other_folder, other_logs) = live::logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = AffinityControl::new(&log);
    let program = Running::sleeper();
    let thread = program.first_thread();
    assert_eq!(control.confine(thread, &[cpu]).unwrap(), Done::Set);
    // Somebody else, here by another log, sets it.
    let other_log = UndoLog::create(&other_logs, "other").unwrap();
    let all = corewise_machine::cpu_list::parse(&list).unwrap();
    AffinityControl::new(&other_log)
        .confine(thread, &all)
        .unwrap();
    for _ in 0..2 {
        let sweep = control.confine_process(program.process(), &[cpu]).unwrap();
        assert_eq!(sweep.left_alone, [program.pid()]);
        assert_eq!(affinity(program.pid(), program.pid()), list);
    }
}

#[test]
fn impossible_confinements_are_errors_that_say_what_to_do() {
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = AffinityControl::new(&log);
    let program = Running::sleeper();
    let (list, _) = cpus();
    let thread = program.first_thread();
    assert!(matches!(
        control.confine(thread, &[]),
        Err(Error::Refused { .. })
    ));
    let error = control.confine(thread, &[60_000]).unwrap_err();
    assert!(error.to_string().contains("offline"), "{error}");
    assert!(log.is_empty());
    assert_eq!(affinity(program.pid(), program.pid()), list);
    let process = program.process();
    drop(program);
    assert!(control.confine(thread, &[0]).unwrap_err().is_gone());
    assert!(
        control
            .confine_process(process, &[0])
            .unwrap_err()
            .is_gone()
    );
}

#[test]
fn cpus_that_the_machine_lacks_are_narrowed_and_put_back() {
    let Some((list, cpu)) = two_cpus() else {
        return;
    };
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = AffinityControl::new(&log);
    let program = Running::sleeper();
    let done = control
        .confine(program.first_thread(), &[cpu, 5000])
        .unwrap();
    let narrowed = Done::Narrowed {
        present: cpu.to_string(),
    };
    assert_eq!(done, narrowed);
    assert_eq!(log.close().restored, 1);
    assert_eq!(affinity(program.pid(), program.pid()), list);
}

#[test]
fn a_slice_is_set_and_the_kernels_own_comes_back() {
    let listed = controls(&Root::system());
    let listed = listed.iter().find(|c| c.name == "slice").unwrap();
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let control = SliceControl::new(&log);
    let program = Running::sleeper();
    let thread = program.first_thread();
    if !listed.available {
        let error = control.set(thread, 5_000_000).unwrap_err();
        assert!(
            matches!(error, Error::Unavailable { .. } | Error::Read { .. }),
            "{error}"
        );
        return skip(&listed.why);
    }
    let slice = || Setting::Slice(thread).present().unwrap().unwrap();
    let usual = slice();
    assert_eq!(control.set(thread, 5_000_000).unwrap(), Done::Set);
    assert_eq!(slice(), "5000000");
    assert_eq!(control.set(thread, *SLICE_NS.end()).unwrap(), Done::Set);
    assert!(matches!(
        control.set(thread, 99),
        Err(Error::Refused { .. })
    ));
    assert_eq!(control.set(thread, 0).unwrap(), Done::Set);
    assert_eq!(slice(), usual);
    assert!(log.is_empty());
    control.set(thread, 7_000_000).unwrap();
    assert_eq!(log.close().restored, 1);
    assert_eq!(slice(), usual);
}

#[test]
fn slices_of_real_time_threads_are_refused_with_the_reason() {
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let mut command = std::process::Command::new("chrt");
    command.args(["--idle", "0", "sleep", "1000"]);
    let Ok(child) = command.spawn() else {
        return skip("chrt is not there");
    };
    let program = Running(child);
    let name = || fs::read_to_string(format!("/proc/{}/comm", program.pid())).unwrap();
    until("exec", || name().trim() == "sleep");
    let error = SliceControl::new(&log)
        .set(program.first_thread(), 1_000_000)
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("policy"), "{error}");
}

/// The groups of a process, as the kernel lists them.
fn groups(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

/// A program's group, or the reason why there can be none here.
fn made<'log>(
    log: &'log UndoLog,
    program: Process,
    wanted: &[Controller],
) -> Option<ProgramCgroup<'log>> {
    match ProgramCgroup::create(log, program, wanted) {
        Ok(group) => Some(group),
        Err(error @ (Error::Unavailable { .. } | Error::Write { .. })) => {
            // Then the list of controls must say so too.
            let listed = controls(&Root::system());
            let named = |name: &str| listed.iter().any(|c| c.name == name && c.available);
            let all = wanted.iter().all(|c| match c {
                Controller::Cpu => named("cgroup-weight"),
                Controller::Cpuset => named("cgroup-cpuset"),
                Controller::Freezer => named("cgroup-freeze"),
            });
            assert!(!all, "the list says that it works: {error}");
            skip(&error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_program_is_moved_into_a_group_with_its_children_and_back() {
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let mut program = Running::helper("breeder", Path::new("/"), 0);
    tell(&mut program, "start");
    let pid = program.pid();
    let below = || corewise_machine::control::process::processes_below(pid);
    until("a child", || below().len() == 2);
    let before = groups(pid);
    let wanted = [Controller::Cpu, Controller::Cpuset];
    let Some(group) = made(&log, program.process(), &wanted) else {
        return;
    };
    let folders: Vec<_> = group.folders().map(Path::to_owned).collect();
    assert_eq!(group.move_in().unwrap(), 2);
    assert_ne!(groups(pid), before);
    // One that is born there goes back too.
    tell(&mut program, "start");
    until("another child", || below().len() == 3);
    for pid in below() {
        assert_ne!(groups(pid), before);
    }
    let report = group.leave();
    assert!(report.is_clean(), "{report:?}");
    for pid in below() {
        assert_eq!(groups(pid), before);
    }
    assert!(folders.iter().all(|folder| !folder.exists()));
    assert!(log.is_empty());
}

#[test]
fn a_groups_files_take_cpus_weight_and_idleness() {
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let program = Running::sleeper();
    let wanted = [Controller::Cpu, Controller::Cpuset];
    let (list, all) = cpus();
    let Some(group) = made(&log, program.process(), &wanted) else {
        return;
    };
    group.move_in().unwrap();
    let cpu = all[all.len() - 1];
    assert!(matches!(
        group.set_cpus(&[cpu]).unwrap(),
        Done::Set | Done::AlreadySo
    ));
    assert_eq!(affinity(program.pid(), program.pid()), cpu.to_string());
    assert_eq!(group.set_weight(200).unwrap(), Done::Set);
    assert_eq!(group.set_weight(50).unwrap(), Done::Set);
    for weight in [0, 10_001] {
        assert!(matches!(
            group.set_weight(weight),
            Err(Error::Refused { .. })
        ));
    }
    match group.set_idle(true) {
        Ok(done) => assert_eq!(done, Done::Set),
        Err(error) => skip(error),
    }
    assert!(matches!(group.set_cpus(&[]), Err(Error::Refused { .. })));
    let freeze = group.freeze(FreezeOk { kept_by: "test" });
    assert!(matches!(freeze, Err(Error::Refused { .. })));
    assert!(group.leave().is_clean());
    assert_eq!(affinity(program.pid(), program.pid()), list);
}

#[test]
fn a_threads_own_affinity_survives_a_stay_in_another_cpuset() {
    let Some((_, cpu)) = two_cpus() else {
        return;
    };
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let program = Running::sleeper();
    AffinityControl::new(&log)
        .confine(program.first_thread(), &[cpu])
        .unwrap();
    let Some(group) = made(&log, program.process(), &[Controller::Cpuset]) else {
        return;
    };
    group.move_in().unwrap();
    let (_, all) = cpus();
    group.set_cpus(&[all[0]]).unwrap();
    assert_eq!(affinity(program.pid(), program.pid()), all[0].to_string());
    group.leave();
    assert_eq!(affinity(program.pid(), program.pid()), cpu.to_string());
}

#[test]
fn a_frozen_program_runs_again_after_the_group_is_left() {
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let program = Running::sleeper();
    let Some(group) = made(&log, program.process(), &[Controller::Freezer]) else {
        return;
    };
    group.move_in().unwrap();
    let ok = FreezeOk {
        kept_by: "this test",
    };
    assert_eq!(group.freeze(ok).unwrap(), Done::Set);
    assert!(matches!(group.freeze(ok).unwrap(), Done::AlreadySo));
    assert_eq!(group.thaw().unwrap(), Done::Set);
    assert_eq!(group.freeze(ok).unwrap(), Done::Set);
    assert!(group.leave().is_clean());
    let state = || fs::read_to_string(format!("/proc/{}/wchan", program.pid())).unwrap_or_default();
    until("thawed", || !state().contains("freez"));
}

#[test]
fn a_group_of_a_program_that_ended_is_removed() {
    let (_folder, logs) = logs();
    let log = UndoLog::create(&logs, "test").unwrap();
    let program = Running::sleeper();
    let Some(group) = made(&log, program.process(), &[Controller::Freezer]) else {
        return;
    };
    group.move_in().unwrap();
    let process = program.process();
    drop(program);
    assert!(group.move_in().unwrap_err().is_gone());
    let folders: Vec<_> = group.folders().map(Path::to_owned).collect();
    log.close();
    assert!(folders.iter().all(|folder| !folder.exists()));
    assert_eq!(files_in(&logs), 0);
    let log = UndoLog::create(&logs, "test").unwrap();
    let error = ProgramCgroup::create(&log, process, &[Controller::Cpu]).unwrap_err();
    assert!(error.is_gone());
    // Of this log there is nothing to put back, and its writer lives.
    let nothing = Report {
        logs_in_use: 1,
        ..Report::default()
    };
    assert_eq!(restore_abandoned(&logs), nothing);
}
