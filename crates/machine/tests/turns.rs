//! Turns of real programs: all their threads stop, and all go on.
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

#[path = "common/live.rs"]
mod live;

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corewise_machine::control::process::{processes_below, threads};
use corewise_machine::control::turns::{Means, Seizing};
use corewise_machine::program::process_cpu_ns;
use live::{Running, skip, until};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, waitid};

/// Plays a part in another process; as a test of its own it does nothing.
#[test]
fn helper() {
    let Ok(role) = std::env::var("TEST_ROLE") else {
        return;
    };
    let seed: u64 = std::env::var("TEST_SEED").unwrap().parse().unwrap();
    match role.as_str() {
        "spin" => spin(seed),
        "poll" => poll(seed > 0),
        "breed" => breed(),
        "execute" => execute(),
        "keep" => keep(i32::try_from(seed).unwrap()),
        role => panic!("{role}"),
    }
}

/// So many threads that spin.
fn spin(count: u64) {
    let spinning = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                spinning.fetch_add(1, Ordering::Relaxed);
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        while spinning.load(Ordering::Relaxed) < count {
            std::thread::yield_now();
        }
        println!("ready");
    });
}

/// Waits for events, and says how often it was interrupted when its standard input ends. `events`: whether another
/// thread makes some all the time.
fn poll(events: bool) {
    use rustix::event::{EventfdFlags, epoll, eventfd};
    let all = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let made = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let end = epoll::EventData::new_u64(0);
    let event = epoll::EventData::new_u64(1);
    epoll::add(&all, std::io::stdin(), end, epoll::EventFlags::IN).unwrap();
    epoll::add(&all, &made, event, epoll::EventFlags::IN).unwrap();
    let maker = made.try_clone().unwrap();
    if events {
        std::thread::spawn(move || {
            loop {
                let _ = rustix::io::write(&maker, &1_u64.to_ne_bytes());
                (0..500).for_each(|_| std::hint::spin_loop());
            }
        });
    }
    println!("ready");
    let mut interrupted = 0_u64;
    loop {
        let mut found = Vec::with_capacity(2);
        if epoll::wait(&all, rustix::buffer::spare_capacity(&mut found), None).is_err() {
            interrupted += 1;
        }
        if found.iter().any(|event| event.data.u64() == 0) {
            break;
        }
        let _ = rustix::io::read(&made, &mut [0; 8]);
    }
    let folder = std::env::var("TEST_FOLDER").unwrap();
    std::fs::write(Path::new(&folder).join("said"), interrupted.to_string()).unwrap();
    // Nobody reads what the frame of the tests would print.
    std::process::exit(0);
}

/// Makes threads and processes all the time, which spin for a moment.
fn breed() {
    let spin = || {
        let end = std::time::Instant::now() + Duration::from_millis(2);
        while std::time::Instant::now() < end {
            std::hint::spin_loop();
        }
    };
    println!("ready");
    loop {
        let made: Vec<_> = (0..3).map(|_| std::thread::spawn(spin)).collect();
        Command::new("true").status().unwrap();
        made.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Executes itself anew all the time, from a thread that is not the first, beside others that spin. Counts the
/// executions in its folder.
fn execute() {
    use std::os::unix::process::CommandExt as _;
    let folder = std::env::var("TEST_FOLDER").unwrap();
    let file = Path::new(&folder).join("count");
    let count: u64 = std::fs::read_to_string(&file).map_or(0, |text| text.parse().unwrap_or(0));
    std::fs::write(&file, (count + 1).to_string()).unwrap();
    println!("ready");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
        }
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2));
            let own = std::env::current_exe().unwrap();
            // Nobody reads what the frame of the tests prints.
            let error = Command::new(own)
                .args(std::env::args_os().skip(1))
                .stdout(Stdio::null())
                .exec();
            panic!("{error}");
        });
    });
}

/// Stops a program that is not its child, and says so; lives until it is killed.
fn keep(pid: i32) {
    let mut means = Seizing::of(pid).unwrap();
    means.stop().unwrap();
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn spinner(threads: u64) -> Running {
    Running::helper("spin", Path::new("/"), threads)
}

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// CPU time of a process and all below it.
fn cpu_ns(pid: i32) -> u64 {
    let all = processes_below(pid).into_iter();
    all.filter_map(process_cpu_ns).sum()
}

/// Stops a program, and looks until it does: threads of it may have been asleep.
fn stop(means: &mut Seizing, pid: i32) {
    means.stop().unwrap();
    until("it stands still", || {
        means.look().unwrap();
        stands_still(pid)
    });
}

/// Whether it uses no CPU time for a while.
fn stands_still(pid: i32) -> bool {
    let before = cpu_ns(pid);
    std::thread::sleep(Duration::from_millis(30));
    cpu_ns(pid) == before
}

fn go(means: &mut Seizing) {
    until("all were let go", || means.go().awaited == 0);
}

fn runs(pid: i32) {
    let before = cpu_ns(pid);
    until("it runs", || cpu_ns(pid) > before + 2_000_000);
}

fn state(pid: i32) -> u8 {
    let text = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
    let end = text.iter().rposition(|b| *b == b')').unwrap();
    text[end + 2]
}

/// What a parent is told of its child; the child's end and stops stay to be asked for.
fn told(child: &Running, of: WaitIdOptions) -> Option<WaitIdStatus> {
    let pid = Pid::from_raw(child.pid()).unwrap();
    waitid(
        WaitId::Pid(pid),
        of | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT,
    )
    .unwrap()
}

/// Whether a child has ended. (The library's own question takes a stop by tracing for an end.)
fn has_ended(child: &Running) -> bool {
    told(child, WaitIdOptions::EXITED).is_some_and(|told| !told.trapped())
}

/// Whether the test process may trace its children.
fn may_trace() -> bool {
    let sleeper = Running::sleeper();
    match Seizing::of(sleeper.pid()) {
        Ok(_) => true,
        Err(refused) => {
            skip(refused);
            false
        }
    }
}

#[test]
fn every_spinning_thread_stops_and_goes_on() {
    if !may_trace() {
        return;
    }
    let program = spinner(6);
    let mut means = Seizing::of(program.pid()).unwrap();
    for _ in 0..20 {
        stop(&mut means, program.pid());
        go(&mut means);
        runs(program.pid());
    }
}

#[test]
fn a_thread_that_sleeps_is_left_asleep() {
    if !may_trace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = Running::helper("poll", folder.path(), 0);
    let mut means = Seizing::of(program.pid()).unwrap();
    until("it sleeps", || stands_still(program.pid()));
    for _ in 0..50 {
        assert_eq!(means.stop().unwrap().threads, 0);
        means.look().unwrap();
        go(&mut means);
    }
    assert_eq!(interrupted(program, folder.path()), 0);
}

#[test]
fn a_thread_that_is_about_to_sleep_is_not_told_that_it_was_interrupted() {
    if !may_trace() || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = Running::helper("poll", folder.path(), 1);
    let mut means = Seizing::of(program.pid()).unwrap();
    let mut stopped = 0;
    let began = std::time::Instant::now();
    for _ in 0..2_000 {
        // Beside others each takes long; then fewer do.
        if began.elapsed() > Duration::from_secs(10) {
            break;
        }
        stopped += means.stop().unwrap().threads;
        go(&mut means);
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(stopped > 0);
    assert_eq!(interrupted(program, folder.path()), 0);
}

/// Ends a program that polls, and reads how often it was interrupted.
fn interrupted(mut poller: Running, folder: &Path) -> u64 {
    drop(poller.0.stdin.take());
    assert!(poller.0.wait().unwrap().success());
    let said = std::fs::read_to_string(folder.join("said")).unwrap();
    said.parse().unwrap()
}

#[test]
fn threads_and_processes_that_are_made_meanwhile_are_stopped_too() {
    if !may_trace() {
        return;
    }
    let program = Running::helper("breed", Path::new("/"), 0);
    let mut means = Seizing::of(program.pid()).unwrap();
    for _ in 0..20 {
        stop(&mut means, program.pid());
        go(&mut means);
        runs(program.pid());
    }
}

#[test]
fn a_process_of_several_threads_that_executes_another_program_lives_on() {
    if !may_trace() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = Running::helper("execute", folder.path(), 0);
    let mut means = Seizing::of(program.pid()).unwrap();
    let count = || -> u64 {
        let text = std::fs::read_to_string(folder.path().join("count")).unwrap();
        text.parse().unwrap_or(0)
    };
    until("it was executed a hundred times", || {
        means.stop().unwrap();
        means.look().unwrap();
        means.go();
        std::thread::sleep(Duration::from_micros(count() * 97 % 3_000));
        count() > 100
    });
}

#[test]
fn it_can_be_killed_while_it_stands_still() {
    if !may_trace() {
        return;
    }
    let program = spinner(3);
    let mut means = Seizing::of(program.pid()).unwrap();
    stop(&mut means, program.pid());
    kill(program.pid(), Signal::KILL);
    until("its end is known", || {
        means.look().unwrap();
        has_ended(&program)
    });
    assert_eq!(means.go().awaited, 0);
}

#[test]
fn a_signal_that_comes_while_it_stands_still_is_delivered_when_it_goes_on() {
    if !may_trace() {
        return;
    }
    let program = spinner(3);
    let mut means = Seizing::of(program.pid()).unwrap();
    stop(&mut means, program.pid());
    kill(program.pid(), Signal::TERM);
    std::thread::sleep(Duration::from_millis(20));
    go(&mut means);
    until("it has ended", || has_ended(&program));
}

#[test]
fn whoever_was_stopped_by_somebody_else_stays_stopped_and_is_continued() {
    if !may_trace() {
        return;
    }
    let program = spinner(3);
    let mut means = Seizing::of(program.pid()).unwrap();
    // Before, and meanwhile.
    for meanwhile in [false, true] {
        if meanwhile {
            stop(&mut means, program.pid());
            kill(program.pid(), Signal::STOP);
        } else {
            kill(program.pid(), Signal::STOP);
            until("it is stopped", || state(program.pid()) == b'T');
            stop(&mut means, program.pid());
        }
        go(&mut means);
        until("it is stopped", || state(program.pid()) == b'T');
        until("its parent is told", || {
            told(&program, WaitIdOptions::STOPPED).is_some_and(|told| told.stopped())
        });
        until("it stands still", || stands_still(program.pid()));
        kill(program.pid(), Signal::CONT);
        runs(program.pid());
        go(&mut means);
    }
}

#[test]
fn a_program_that_was_continued_by_somebody_else_stays_stopped_out_of_turn() {
    if !may_trace() {
        return;
    }
    let program = spinner(2);
    let mut means = Seizing::of(program.pid()).unwrap();
    kill(program.pid(), Signal::STOP);
    until("it is stopped", || state(program.pid()) == b'T');
    stop(&mut means, program.pid());
    kill(program.pid(), Signal::CONT);
    stop(&mut means, program.pid());
    go(&mut means);
    runs(program.pid());
}

#[test]
fn whoever_waits_for_a_process_in_the_middle_of_the_tree_sees_nothing() {
    if !may_trace() {
        return;
    }
    // A shell with job control on: its children's stops would be told.
    let script = "set -m; for i in 1 2 3 4 5 6 7 8 9 10; do \
                  head -c 3000000 /dev/zero | sha256sum | tail -c 4; (exit $i); echo $?; done";
    let alone = Command::new("sh").args(["-c", script]).output().unwrap();
    let mut shell = Running(
        Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut means = Seizing::of(shell.pid()).unwrap();
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            from.read_to_end(&mut text).unwrap();
            text
        })
    };
    let out = read(Box::new(shell.0.stdout.take().unwrap()));
    let err = read(Box::new(shell.0.stderr.take().unwrap()));
    until("the shell has ended", || {
        means.stop().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        means.look().unwrap();
        means.go();
        std::thread::sleep(Duration::from_millis(1));
        has_ended(&shell)
    });
    assert_eq!(out.join().unwrap(), alone.stdout);
    assert_eq!(err.join().unwrap(), alone.stderr);
}

#[test]
fn a_program_that_somebody_else_traces_is_left_alone_as_a_whole() {
    if !may_trace() {
        return;
    }
    let program = spinner(3);
    let mut means = Seizing::of(program.pid()).unwrap();
    let keeper = Running::helper("keep", Path::new("/"), u64::from(program.0.id()));
    // All that runs is traced by the other one.
    until("it stands still", || stands_still(program.pid()));
    let all = threads(program.pid()).into_iter();
    let refused: Vec<_> = all.filter_map(|tid| Seizing::of(tid).err()).collect();
    // And whoever had made them, if it had not gone to sleep yet.
    assert!(refused.len() >= 3, "those that spin: {}", refused.len());
    assert!(refused[0].why.contains("traced"), "{}", refused[0]);
    means.stop().unwrap();
    assert_eq!(means.go().threads, 0);
    // Nothing stays stopped when a tracer is killed.
    kill(keeper.pid(), Signal::KILL);
    runs(program.pid());
    drop(keeper);
    stop(&mut means, program.pid());
    go(&mut means);
}

#[test]
fn what_is_stopped_goes_on_when_nobody_stops_it_any_more() {
    if !may_trace() {
        return;
    }
    let program = spinner(3);
    let mut means = Seizing::of(program.pid()).unwrap();
    stop(&mut means, program.pid());
    drop(means);
    runs(program.pid());
}
