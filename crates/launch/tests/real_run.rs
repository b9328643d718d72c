//! The real run is as if corewise were not there.
#![allow(clippy::unwrap_used, unsafe_code)]

mod common;

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};

use common::{Who, corewise, eventually, open_folder, own_program};

#[test]
fn helper() {
    common::helper_main();
}

fn play_inside(part: &str, _: &str) {
    panic!("unknown part {part}");
}

fn run(script: &str) -> ExitStatus {
    corewise("run", script, Who::Me).status().unwrap()
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) };
}

#[test]
fn the_exit_code_is_the_programs() {
    for code in [0, 1, 42, 255] {
        assert_eq!(run(&format!("exit {code}")).code(), Some(code));
    }
}

#[test]
fn the_signal_that_kills_the_program_is_raised_again() {
    for number in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT] {
        if is_ignored(number) {
            continue;
        }
        let status = run(&format!("kill -{number} $$"));
        assert_eq!(status.signal(), Some(number));
        assert!(!status.core_dumped());
    }
}

#[test]
fn a_broken_pipe_kills_the_program_as_from_a_shell() {
    assert_eq!(run("kill -PIPE $$; exit 5").signal(), Some(libc::SIGPIPE));
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let program = own_program().display();
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            &format!("trap '' HUP INT; exec {program} --exact helper --nocapture"),
        ])
        .envs([
            ("HELPER_PART", "run"),
            ("HELPER_SCRIPT", "kill -HUP $$; kill -INT $$; exit 5"),
        ])
        .status();
    assert_eq!(status.unwrap().code(), Some(5));
}

#[test]
fn the_exit_code_is_known_where_ends_of_children_are_ignored() {
    // dash cannot ignore SIGCHLD for others; perl can.
    let program = own_program();
    let status = std::process::Command::new("perl")
        .args(["-e", "$SIG{CHLD}='IGNORE'; exec @ARGV"])
        .arg(program)
        .args(["--exact", "helper", "--nocapture"])
        .envs([("HELPER_PART", "run"), ("HELPER_SCRIPT", "exit 6")])
        .status();
    assert_eq!(status.unwrap().code(), Some(6));
}

#[test]
fn the_program_runs_on_the_cpus_that_it_is_given() {
    use corewise_launch::{Probe, Sandbox, Spool};
    let mut command = common::shell("grep Cpus_allowed_list /proc/self/status >&2");
    command.affinity = Some(vec![0]);
    let mut probe = Probe::start(&Sandbox::none().unwrap(), &command, &Spool::none()).unwrap();
    if let Err(why) = probe.release() {
        eprintln!("skipped: CPU 0 is not ours: {why}");
        assert_eq!(why.exit_code(), 125);
        return;
    }
    assert!(
        probe
            .wait_timeout(common::LONG)
            .unwrap()
            .unwrap()
            .status
            .success()
    );
    assert_eq!(probe.stderr_tail(), b"Cpus_allowed_list:\t0\n");
}

#[test]
fn standard_input_passes_through() {
    let folder = open_folder();
    let mut child = corewise(
        "run",
        "read first; echo \"$first\" > got; cat >> got",
        Who::Me,
    )
    .current_dir(folder.path())
    .stdin(Stdio::piped())
    .spawn()
    .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"one\ntwo\nthree")
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(
        std::fs::read(folder.path().join("got")).unwrap(),
        b"one\ntwo\nthree"
    );
}

/// Whether this process was started with a signal ignored.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|l| l.strip_prefix("SigIgn:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (number - 1)) != 0
}

#[test]
fn signals_sent_to_corewise_alone_reach_the_program() {
    for (name, number) in [
        ("TERM", libc::SIGTERM),
        ("HUP", libc::SIGHUP),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("INT", libc::SIGINT),
    ] {
        // Under nohup and the like: what is ignored stays ignored, in shells too.
        if is_ignored(number) {
            continue;
        }
        let folder = open_folder();
        let script = format!("trap 'exit 7' {name}; : > ready; while :; do sleep 0.02; done");
        let mut child = corewise("run", &script, Who::Me)
            .current_dir(folder.path())
            .spawn()
            .unwrap();
        eventually("ready", || folder.path().join("ready").exists());
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(7), "{name}");
    }
}

#[test]
fn the_program_goes_on_when_corewise_is_killed() {
    let folder = open_folder();
    let script = ": > ready; while [ ! -e go ]; do sleep 0.02; done; echo yes > finished";
    let mut child = corewise("run", script, Who::Me)
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    eventually("ready", || folder.path().join("ready").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::write(folder.path().join("go"), "").unwrap();
    eventually("finished", || {
        std::fs::read(folder.path().join("finished")).is_ok_and(|f| f == b"yes\n")
    });
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let folder = open_folder();
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: fills two numbers; no name, settings or size are asked for.
    let made = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut slave,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    assert_eq!(made, 0);
    // SAFETY: just made, owned by nobody else.
    let (mut master, slave) = unsafe {
        (
            std::fs::File::from_raw_fd(master),
            std::fs::File::from_raw_fd(slave),
        )
    };
    let program = own_program().display();
    let script = format!(
        "{program} --exact helper --nocapture; echo $? > stopped; : > go; fg; echo $? > done"
    );
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-mc", &script])
        .current_dir(folder.path())
        .env("HELPER_PART", "run")
        .env(
            "HELPER_SCRIPT",
            ": > ready; while [ ! -e go ]; do sleep 0.02; done; exit 9",
        )
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(slave.try_clone().unwrap());
    let terminal = slave.as_raw_fd();
    // SAFETY: system calls only: a session whose terminal is the new one.
    unsafe {
        shell.pre_exec(move || {
            libc::setsid();
            libc::ioctl(terminal, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    let mut shell = shell.spawn().unwrap();
    eventually("ready", || folder.path().join("ready").exists());
    master.write_all(b"\x1a").unwrap();
    assert!(shell.wait().unwrap().success());
    let said = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(said("stopped"), format!("{}\n", 128 + libc::SIGTSTP));
    assert_eq!(said("done"), "9\n");
}

#[test]
fn what_probes_took_from_a_pipe_is_given_back_before_the_rest() {
    // Longer than what is kept; more than a pipe holds.
    let lines: String = (0..300_000).map(|i| format!("{i}\n")).collect();
    for (limit, completeness) in [("1000000", "CutAtLimit"), ("100000000", "Whole")] {
        let folder = open_folder();
        let mut child = corewise("probes-then-run", "cat > got", Who::Me)
            .current_dir(folder.path())
            .env("HELPER_LIMIT", limit)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let text = lines.clone();
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success());
        assert!(std::fs::read(folder.path().join("got")).unwrap() == lines.as_bytes());
        // Both probes saw the same beginning: the last 64 KiB of it, twice, then the verdict.
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.ends_with(&format!("{completeness}\n")));
        let seen = &stderr.as_bytes()[..128 << 10];
        assert!(seen[..64 << 10] == seen[64 << 10..]);
        let end = limit.parse::<usize>().unwrap().min(lines.len());
        assert!(seen[..64 << 10] == lines.as_bytes()[end - (64 << 10)..end]);
    }
}

#[test]
fn a_slow_pipe_is_not_waited_for_and_nothing_of_it_is_lost() {
    let folder = open_folder();
    let mut child = corewise("probes-then-run", "cat > got", Who::Me)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"early ").unwrap();
    eventually("the real run has begun", || {
        folder.path().join("got").exists()
    });
    input.write_all(b"late").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "early early CutAtTime\n"
    );
    assert_eq!(
        std::fs::read(folder.path().join("got")).unwrap(),
        b"early late"
    );
}

#[test]
fn a_program_that_stops_reading_ends_although_its_input_goes_on() {
    let mut child = corewise("probes-then-run", "read x; exit 3", Who::Me)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"line\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    // The writer learns it too, as without corewise.
    eventually("a broken pipe", || input.write_all(b"more\n").is_err());
}

#[test]
fn a_file_on_standard_input_is_read_from_its_offset_by_probes_and_the_run() {
    let folder = open_folder();
    let path = folder.path().join("in");
    std::fs::write(&path, "skipped\nrest\n").unwrap();
    let program = own_program().display();
    let script = format!("(read x; {program} --exact helper --nocapture) < in");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(folder.path())
        // One byte at a time: the shell leaves the offset behind the line.
        .env("HELPER_PART", "probes-then-run")
        .env("HELPER_SCRIPT", "cat > got")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "rest\nrest\nWhole\n"
    );
    assert_eq!(std::fs::read(folder.path().join("got")).unwrap(), b"rest\n");
}

#[test]
fn a_program_that_cannot_be_executed_is_an_error_with_the_right_code() {
    use corewise_launch::{Command, RunOptions};
    let mut command = Command::new("/bin/true").unwrap();
    command.program = "/no/such/program".into();
    let error = corewise_launch::run::run(&command, &RunOptions::default()).unwrap_err();
    assert_eq!(error.exit_code(), 127);
}
