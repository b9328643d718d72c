//! What a claim is with a manager, without one, and when one dies or comes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Manager, Ways, runtime, until};
use corewise_program::{Claim, Cpus, Numa, Request};
use corewise_wire::abi::message::Placement;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn effective() -> u32 {
    u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap()
}

#[test]
fn without_a_manager_the_claim_is_the_effective_cpus() {
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "alone");
    assert!(!claim.is_managed());
    assert_eq!(claim.threads(), effective());
    let mut words = [0; 64];
    assert!(claim.cpus_into(&mut words));
    assert_eq!(claim.cpus().words()[..1], words[..1]);
    assert!(claim.cpus().count() >= 1);
}

#[test]
fn without_a_manager_invading_and_retreating_bound_the_threads_at_once() {
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "alone");
    let granted = claim.invade(Cpus(3..=1000), Numa::Any);
    assert_eq!(granted.threads, effective().max(3));
    assert!(!granted.managed);
    assert_eq!(claim.retreat(1).threads, 1);
    assert_eq!(claim.threads(), 1);
    // Retreating gives back, and never takes.
    assert_eq!(claim.retreat(500).threads, 1);
    assert_eq!(claim.retreat(0).threads, 1);
}

#[test]
fn under_a_manager_a_claim_starts_with_one_thread_and_invades() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "invader");
    assert!(claim.is_managed());
    assert_eq!(claim.threads(), 1);
    let granted = claim.invade(Cpus(2..=8), Numa::Scatter);
    assert_eq!((granted.threads, granted.managed), (8, true));
    assert_eq!(granted, claim.now());
    assert_eq!(
        claim.cpus().iter().collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );
    assert_eq!(claim.retreat(3).threads, 3);
    manager.with(0, |program| {
        assert_eq!(program.name, "invader");
        let asked: Vec<_> = program
            .wants
            .iter()
            .map(|w| (w.min_threads, w.max_threads))
            .collect();
        assert_eq!(asked, [(1, 1), (2, 8), (2, 3)]);
        assert_eq!(program.wants[2].placement, Placement::Scatter);
        assert!(program.wants[2].malleable);
    });
}

#[test]
fn who_cannot_have_more_goes_on_with_what_there_is() {
    for says_done in [true, false] {
        let (_runtime, folder) = runtime();
        let ways = Ways {
            most: 1,
            says_done,
            ..Ways::default()
        };
        let manager = Manager::start(&folder, ways);
        let claim = Claim::join_at(&folder, "invader");
        assert_eq!(claim.invade(Cpus(1..=8), Numa::Any).threads, 1);
        // Asking for the same again is not worth a message.
        assert_eq!(claim.invade(Cpus(1..=8), Numa::Any).threads, 1);
        until("the question arrives", || {
            manager.with(0, |p| p.wants.len() == 2)
        });
        assert_eq!(claim.invade(Cpus(1..=4), Numa::Any).threads, 1);
        until("the other question arrives", || {
            manager.with(0, |p| p.wants.len() == 3)
        });
    }
}

#[test]
fn changes_are_told_to_callbacks_descriptors_and_sleepers() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "listener");
    let told = Arc::new(Mutex::new(Vec::new()));
    let fd = claim.change_fd().unwrap();
    assert!(!fd.clear());
    let broken = claim.on_change(|_| panic!("this panic is part of the test"));
    let callback = {
        let told = Arc::clone(&told);
        claim.on_change(move |now| told.lock().unwrap().push(now.threads))
    };
    let sleeper = {
        let (claim, before) = (claim.clone(), claim.generation());
        std::thread::spawn(move || claim.wait_change(before, None))
    };
    manager.grant(5, &[0, 64, 4095]);
    assert!(sleeper.join().unwrap());
    let minute = Timespec::try_from(Duration::from_secs(60)).unwrap();
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&minute)),
        Ok(1)
    );
    assert!(fd.clear() && !fd.clear());
    until("the callback is told", || *told.lock().unwrap() == [5]);
    assert_eq!(claim.cpus().iter().collect::<Vec<_>>(), [0, 64, 4095]);
    until("the manager sees that it was seen", || {
        manager.progress().seen_generation == 2
    });

    assert!(claim.remove_callback(callback) && !claim.remove_callback(callback));
    assert!(claim.remove_callback(broken));
    manager.grant(6, &[0]);
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&minute)),
        Ok(1)
    );
    assert_eq!(*told.lock().unwrap(), [5]);
}

#[test]
fn who_waits_for_a_change_that_does_not_come_is_told_so() {
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "patient");
    let now = claim.generation();
    assert!(!claim.wait_change(now, Some(Duration::from_millis(20))));
    assert!(!claim.wait_change(now, Some(Duration::ZERO)));
    assert!(claim.wait_change(now.wrapping_add(1), None));
}

#[test]
fn a_claim_fails_open_when_its_manager_dies_and_joins_the_next_one() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "survivor");
    let most = effective() + 3;
    assert_eq!(claim.invade(Cpus(1..=most), Numa::Compact).threads, most);
    let changes = Arc::new(AtomicU32::new(0));
    {
        let changes = Arc::clone(&changes);
        claim.on_change(move |_| {
            changes.fetch_add(1, Ordering::Relaxed);
        });
    }
    let before = claim.generation();
    drop(manager);
    assert!(claim.wait_change(before, None));
    until("the claim is open", || !claim.is_managed());
    until("it is what Linux gives", || claim.threads() == effective());
    until("callbacks are told", || changes.load(Ordering::Relaxed) > 0);
    // What is asked for meanwhile is what the next manager hears.
    claim.invade(Cpus(2..=most), Numa::Scatter);

    for _ in 0..3 {
        let manager = Manager::start(&folder, Ways::default());
        until("the next manager is joined", || claim.is_managed());
        assert_eq!(claim.threads(), most);
        manager.with(0, |program| {
            assert_eq!(program.name, "survivor");
            assert_eq!(program.wants[0].min_threads, 2);
            assert_eq!(program.wants[0].placement, Placement::Scatter);
        });
        drop(manager);
        until("the claim is open again", || !claim.is_managed());
    }
}

#[test]
fn a_program_that_started_alone_joins_the_manager_that_comes() {
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "early");
    assert!(!claim.is_managed());
    let _manager = Manager::start(&folder, Ways::default());
    until("it is joined", || claim.is_managed());
    until("one thread is granted", || claim.threads() == 1);
}

#[test]
fn a_manager_that_says_that_it_has_ended_is_gone_even_if_its_socket_is_not() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "orderly");
    // Somebody must look at the page.
    claim.on_change(|_| ());
    manager.end();
    until("the program has left", || manager.with(0, |p| p.left));
}

#[test]
fn requests_are_answered_within_what_was_asked_for() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "asked");
    let answer = |request, what| {
        manager.request(request, what);
        until("the answer comes", || {
            manager.with(0, |p| p.answers.last().is_some_and(|a| a.0 == request))
        });
        manager.with(0, |p| p.answers.last().unwrap().1)
    };
    // One thread is all that was asked for.
    assert!(!answer(1, Request::Expand));
    assert!(!answer(2, Request::Shrink));
    claim.invade(Cpus(2..=4), Numa::Any);
    manager.grant(3, &[0]);
    assert!(answer(3, Request::Expand));
    assert!(answer(4, Request::Shrink));
    claim.set_could_use(2);
    assert!(!answer(5, Request::Expand));
    claim.on_request(|what, now| what == Request::Expand && now.threads == 3);
    assert!(answer(6, Request::Expand));
    assert!(!answer(7, Request::Shrink));
    claim.on_request(|_, _| panic!("this panic is part of the test"));
    assert!(answer(8, Request::Shrink));
}

#[test]
fn what_a_program_says_of_itself_arrives() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "talker");
    claim.add_progress(40);
    claim.add_progress(2);
    claim.set_could_use(7);
    claim.tell_threads(9);
    until("the threads are told", || {
        manager.with(0, |p| p.threads == [9])
    });
    let progress = manager.progress();
    assert_eq!((progress.progress, progress.could_use), (42, 7));
}

#[test]
fn the_last_handle_ends_a_claim_that_is_not_the_processs() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "guest");
    claim.on_change(|_| ());
    let other = claim.clone();
    drop(claim);
    assert!(other.is_managed());
    drop(other);
    until("the program has left", || manager.with(0, |p| p.left));
}

#[test]
fn a_manager_that_sends_nonsense_is_as_good_as_dead() {
    let (_runtime, folder) = runtime();
    let manager = Manager::start(&folder, Ways::default());
    let claim = Claim::join_at(&folder, "careful");
    manager.nonsense();
    until("the program has left", || manager.with(0, |p| p.left));
    until("and joins again", || {
        manager.joined() == 2 && claim.is_managed()
    });
}

#[test]
fn memory_that_is_where_the_claim_is_stays_there() {
    let (_runtime, folder) = runtime();
    let claim = Claim::join_at(&folder, "heavy");
    // The claim is everything, on any machine.
    assert_eq!(
        claim.move_memory().unwrap(),
        corewise_program::Moved::NothingToDo
    );
}
