//! Probes reach nobody outside, and nothing of them stays.
#![allow(clippy::unwrap_used, unsafe_code)]

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use common::{
    Who, corewise, eventually, marker, open_folder, own_program, probe, processes_with, who_can,
};
use corewise_launch::{Command, Probe, Sandbox, Spool};

#[test]
fn helper() {
    common::helper_main();
}

/// Parts that are played inside a probe: exit code 0 means that the outside could not be reached.
fn play_inside(part: &str, target: &str) {
    let reached = match part {
        "connect-path" => UnixStream::connect(target).is_ok(),
        "connect-abstract" => {
            let address = SocketAddr::from_abstract_name(target).unwrap();
            UnixStream::connect_addr(&address).is_ok()
        }
        "connect-tcp" => std::net::TcpStream::connect(target).is_ok(),
        "own-loopback" => {
            let own = TcpListener::bind("127.0.0.1:0").unwrap();
            std::net::TcpStream::connect(own.local_addr().unwrap()).is_err()
        }
        // SAFETY: a system call.
        "attach-shared-memory" => unsafe { libc::shmget(target.parse().unwrap(), 1, 0) >= 0 },
        _ => panic!("unknown part {part}"),
    };
    std::process::exit(i32::from(reached));
}

/// The shell command that plays a part inside.
fn inside(part: &str, target: &str) -> String {
    format!(
        "HELPER_PART={part} HELPER_SCRIPT='{target}' exec {} --exact helper --nocapture",
        own_program().display()
    )
}

fn not_reached(part: &str, target: &str) {
    for who in who_can() {
        let ran = probe(who, Path::new("/"), &inside(part, target));
        assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
    }
}

#[test]
fn a_listener_on_a_unix_socket_outside_is_not_reached() {
    use std::os::unix::fs::PermissionsExt;
    let folder = open_folder();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    UnixStream::connect(&path).unwrap();
    not_reached("connect-path", path.to_str().unwrap());
    // In the folder of the socket too, where an ordinary user's view is put together differently.
    for who in who_can() {
        let ran = probe(who, folder.path(), &inside("connect-path", "socket"));
        assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
    }
}

#[test]
fn a_listener_on_an_abstract_socket_outside_is_not_reached() {
    let name = format!("corewise-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    UnixStream::connect_addr(&address).unwrap();
    not_reached("connect-abstract", &name);
}

#[test]
fn a_tcp_listener_on_localhost_outside_is_not_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    not_reached("connect-tcp", &listener.local_addr().unwrap().to_string());
}

#[test]
fn a_program_can_talk_to_itself_over_localhost() {
    not_reached("own-loopback", "");
}

#[test]
fn shared_memory_outside_is_not_attached() {
    let key = 0x5eed_0000 + i32::try_from(std::process::id()).unwrap();
    // SAFETY: system calls; the segment is removed at the end.
    let id = unsafe { libc::shmget(key, 4096, libc::IPC_CREAT | 0o666) };
    assert!(id >= 0);
    let tried = std::panic::catch_unwind(|| not_reached("attach-shared-memory", &key.to_string()));
    // SAFETY: as above.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    tried.unwrap();
}

#[test]
fn what_is_written_to_a_fifo_does_not_come_out_outside() {
    for who in who_can() {
        let folder = open_folder();
        let path = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo")
            .args(["-m", "666"])
            .arg(&path)
            .status();
        assert!(made.unwrap().success());
        let mut outside = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        for place in [folder.path(), Path::new("/")] {
            let script = format!("exec 3<>{0} && echo hello >&3", path.display());
            probe(who, place, &script);
            let read = outside.read(&mut [0; 16]);
            assert_eq!(
                read.unwrap_err().kind(),
                std::io::ErrorKind::WouldBlock,
                "{who:?}"
            );
        }
    }
}

#[test]
fn a_daemon_dies_with_its_probe() {
    for (i, who) in who_can().into_iter().enumerate() {
        let word = marker(i as u32);
        let script = format!("setsid sh -c 'sleep {word} & sleep {word} &' & sleep 0.2; exit 4");
        for part in ["probe", "probe-without-walls"] {
            let ended = corewise(part, &script, who).status().unwrap();
            assert_eq!(ended.code(), Some(4), "{who:?}");
            assert_eq!(processes_with(&word), [0; 0], "{who:?} {part}");
        }
    }
}

#[test]
fn signals_to_its_group_and_to_everyone_reach_nobody_outside() {
    for who in who_can() {
        for target in ["0", "-1"] {
            // The bystander has the same user, so that without walls it could be signalled.
            let mut bystander = corewise("run", "sleep 60", who).spawn().unwrap();
            let ran = probe(
                who,
                Path::new("/"),
                &format!("kill -TERM {target}; sleep 0.1"),
            );
            // The helper that ran the probe has survived, to tell how the probe ended.
            assert!([0, 128 + 15].contains(&ran.code), "{who:?}: {}", ran.stderr);
            assert_eq!(bystander.try_wait().unwrap(), None, "{who:?}");
            bystander.kill().unwrap();
            bystander.wait().unwrap();
        }
    }
}

#[test]
fn processes_outside_are_not_seen() {
    for who in who_can() {
        let script = format!(
            "test ! -e /proc/{}/stat || test {0} -lt 10",
            std::process::id()
        );
        let ran = probe(who, Path::new("/"), &script);
        assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
    }
}

#[test]
fn the_sandboxs_own_first_process_cannot_be_touched() {
    for who in who_can() {
        let ran = probe(who, Path::new("/"), "kill -KILL 1; kill -TERM 1; exit 3");
        assert_eq!(ran.code, 3, "{who:?}: {}", ran.stderr);
        let ran = probe(
            who,
            Path::new("/"),
            "readlink /proc/1/fd/0 /proc/1/root || head -c 1 /proc/1/environ || exit 3",
        );
        assert_eq!(ran.code, 3, "{who:?}: {}", ran.stderr);
    }
}

#[test]
fn the_machines_settings_cannot_be_written() {
    let script = "
        for f in /proc/sys/vm/swappiness /proc/sysrq-trigger /sys/kernel/uevent_seqnum; do
            if [ -e $f ] && sh -c \"exec 3>>$f\" 2>/dev/null; then echo $f can be written >&2; exit 1; fi
        done
        for d in /sys/fs/cgroup /sys/kernel/debug /proc/sys/kernel; do
            if mkdir $d/corewise-test 2>/dev/null; then echo $d can be changed >&2; exit 1; fi
        done
        for d in /dev/mem /dev/kmsg /dev/tty /dev/vda /dev/sda; do
            if [ -e $d ]; then echo $d is there >&2; exit 1; fi
        done
        if mknod /tmp/corewise-device c 1 1 2>/dev/null; then echo mknod works >&2; exit 1; fi
        if mount -t tmpfs none /mnt 2>/dev/null; then echo mount works >&2; exit 1; fi
        echo x > /dev/null && head -c 4 /dev/urandom > /dev/zero";
    for who in who_can() {
        let ran = probe(who, Path::new("/"), script);
        assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
    }
}

#[test]
fn inherited_descriptors_are_closed() {
    for who in who_can() {
        let inner = format!(
            "HELPER_PART=probe HELPER_SCRIPT='ls /proc/self/fd >&2' {} --exact helper --nocapture 7</etc/passwd 9>/dev/null",
            own_program().display()
        );
        // The shell that runs corewise has two descriptors open that are not closed on exec.
        let output = corewise("run", &inner, who).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        // 3 is the folder that `ls` reads.
        assert_eq!(stderr, "0\n1\n2\n3\n", "{who:?}");
    }
}

#[test]
fn killing_corewise_leaves_no_process() {
    for (i, who) in who_can().into_iter().enumerate() {
        for (j, part) in ["probe", "probe-without-walls"].into_iter().enumerate() {
            let word = marker(100 + 2 * i as u32 + j as u32);
            let script = format!("setsid sleep {word} & trap '' TERM HUP; sleep {word}");
            let mut helper = corewise(part, &script, who).spawn().unwrap();
            eventually("the probe runs", || processes_with(&word).len() >= 2);
            helper.kill().unwrap();
            helper.wait().unwrap();
            eventually("all are gone", || processes_with(&word).is_empty());
        }
    }
}

#[test]
fn killing_a_probe_returns_when_all_are_gone() {
    for (k, sandbox) in [Sandbox::prepare(), Sandbox::none()]
        .into_iter()
        .enumerate()
    {
        let sandbox = match sandbox {
            Ok(sandbox) => sandbox,
            Err(why) => {
                eprintln!("skipped: {why}");
                continue;
            }
        };
        let word = marker(200 + k as u32);
        let script = format!("setsid sleep {word} & sleep {word} & exec sleep {word}");
        let mut probe = Probe::start(&sandbox, &common::shell(&script), &Spool::none()).unwrap();
        assert!(Path::new(&format!("/proc/{}", probe.root_pid())).exists());
        assert_eq!(
            processes_with(&word),
            [0; 0],
            "nothing runs before the release"
        );
        probe.release().unwrap();
        eventually("three sleep", || processes_with(&word).len() == 3);
        assert_eq!(probe.poll().unwrap(), None);
        probe.kill();
        assert_eq!(processes_with(&word), [0; 0]);
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_told_from_one_that_fails() {
    let folder = open_folder();
    let script = folder.path().join("script");
    std::fs::write(&script, "exit 126\n").unwrap();
    let mut command = Command::new("/bin/true").unwrap();
    let start = |sandbox: &Sandbox, command: &Command| {
        let mut probe = Probe::start(sandbox, command, &Spool::none()).unwrap();
        probe.release().map(|()| probe.wait_timeout(common::LONG))
    };
    for sandbox in [Sandbox::prepare(), Sandbox::none()].into_iter().flatten() {
        command.program = "/no/such/program".into();
        assert_eq!(start(&sandbox, &command).unwrap_err().exit_code(), 127);
        command.program.clone_from(&script);
        assert_eq!(start(&sandbox, &command).unwrap_err().exit_code(), 126);
    }
    // Without an interpreter line it is a script for the shell, as with execvp.
    let chmod = std::process::Command::new("chmod")
        .arg("755")
        .arg(&script)
        .status();
    assert!(chmod.unwrap().success());
    for sandbox in [Sandbox::prepare(), Sandbox::none()].into_iter().flatten() {
        let end = start(&sandbox, &command).unwrap().unwrap().unwrap();
        assert_eq!(end.status, corewise_launch::Status::Exited(126));
    }
}

#[test]
fn output_is_discarded_without_being_taken_for_the_null_device() {
    for who in who_can() {
        let script = "echo out && sh -c 'echo more' && test ! /proc/self/fd/1 -ef /dev/null && cat";
        let ran = probe(who, Path::new("/"), script);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{who:?}");
    }
}

#[test]
fn the_last_part_of_standard_error_is_kept() {
    for who in who_can() {
        let script = "seq 1 100000 >&2; echo out; echo the end >&2; exit 3";
        let ran = probe(who, Path::new("/"), script);
        assert_eq!(ran.code, 3);
        assert_eq!(ran.stderr.len(), 64 << 10);
        let lines: Vec<&str> = ran.stderr.lines().rev().take(2).collect();
        assert_eq!(lines, ["the end", "100000"], "{who:?}");
    }
}

#[test]
fn a_probe_finds_its_signals_as_from_a_shell() {
    let ran = probe(Who::Me, Path::new("/"), "kill -PIPE $$; exit 5");
    if !who_can().is_empty() {
        assert_eq!(ran.code, 128 + libc::SIGPIPE, "{}", ran.stderr);
    }
}
