//! A forked child has no claim until it joins, and does not keep its parent's. A program of its own
//! without a test harness: it forks.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests")]

mod common;

use common::{Manager, Ways, runtime, until};
use corewise_program::{Claim, Cpus, Numa, Team};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `body` in a forked child, which ends with 0 if it is true.
fn in_child(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child runs `body` on the one thread that it has, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = body();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    assert!(child > 0);
    child
}

fn wait(child: libc::pid_t) -> bool {
    let mut status = -1;
    // SAFETY: a child of ours that nobody else waits for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

fn main() {
    let (_runtime, folder) = runtime();
    // SAFETY: no other thread exists yet.
    unsafe { std::env::set_var("COREWISE_RUNTIME_DIR", folder.path()) };
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join("parent");
    claim.on_change(|_| ());
    let effective = std::thread::available_parallelism().unwrap().get() as u32;
    let asked = effective + 4;
    assert_eq!(claim.invade(Cpus(1..=asked), Numa::Any).threads, asked);
    let team = Team::new(&claim);
    let two = Barrier::new(2);
    team.for_each(0..2, |_| {
        two.wait();
    });

    // What the child has of its parent's is neither managed nor dangerous.
    let child = in_child(|| {
        let mut words = [0; 64];
        let open = !claim.is_managed() && claim.threads() == effective;
        let read = claim.cpus_into(&mut words) && words[0] != 0;
        claim.add_progress(1_000_000);
        claim.tell_threads(77);
        claim.pin_threads(true);
        let invaded = claim.invade(Cpus(1..=1), Numa::Any).threads == 1;
        let retreated = claim.retreat(1).threads == 1;
        let done = AtomicUsize::new(0);
        team.for_each(0..10, |n| {
            Team::blocking(|| done.fetch_add(n, Ordering::Relaxed));
        });
        let background = team.run(|| 5).wait() == 5;
        drop((team.clone(), claim.clone()));
        open && read && invaded && retreated && background && done.into_inner() == 45
    });
    assert!(wait(child), "a child sees what is not so");
    assert!(manager.progress().progress < 1_000_000);
    assert!(manager.with(0, |p| p.threads.is_empty()));

    // It can join on its own.
    let child = in_child(|| {
        let own = Claim::current();
        own.is_managed() && own.threads() == 1 && own.invade(Cpus(1..=2), Numa::Any).threads == 2
    });
    assert!(wait(child), "a child cannot join");
    assert_eq!(manager.joined(), 2);
    until("the child has left", || manager.with(1, |p| p.left));
    assert!(!manager.with(0, |p| p.left));

    // The parent's connection does not live on in a child that outlives it.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let held = writer.as_raw_fd();
    let parent = in_child(|| {
        let managed = Claim::current().is_managed();
        // Stays until this program, the other holder of the pipe, lets go of it.
        in_child(|| {
            // SAFETY: the copy of this process, which nothing else in it uses.
            unsafe { libc::close(held) };
            reader.read(&mut [0]).is_ok()
        });
        managed
    });
    assert!(wait(parent), "the parent of the one that stays behind");
    until("its end is seen", || {
        manager.joined() == 3 && manager.with(2, |p| p.left)
    });
    drop(writer);
    println!("a forked child has no claim until it joins: ok");
}
