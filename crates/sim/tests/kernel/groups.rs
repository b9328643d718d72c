//! Groups share by weight, and keep to their quotas.

use super::support::*;
use corewise_decide::cpus::CpuSet;
use corewise_sim::kernel::{GroupId, ProcessId, Quota};

#[test]
fn groups_share_a_cpu_by_weight_however_many_threads_they_have() {
    let mut play = Play::flat(1);
    let heavy = play.k.add_group(2048, None);
    let light = play.k.add_group(1024, None);
    let all = cpus(&[0]);
    let one = play.add_to(Does::Hog, heavy, &all);
    let five: Vec<_> = (0..5)
        .map(|_| play.add_to(Does::Hog, light, &all))
        .collect();
    play.until(10 * S);
    let share = play.of(one).run_ns as f64 / (10 * S) as f64;
    assert!((0.65..0.68).contains(&share), "{share}");
    for t in five {
        assert!(near(play.of(t).run_ns, 10 * S / 15, 3));
    }
}

#[test]
fn a_changed_weight_changes_the_shares() {
    let mut play = Play::flat(1);
    let (a, b) = (play.k.add_group(1024, None), play.k.add_group(1024, None));
    let x = play.add_to(Does::Hog, a, &cpus(&[0]));
    let y = play.add_to(Does::Hog, b, &cpus(&[0]));
    play.until(2 * S);
    assert!(near(play.of(x).run_ns, play.of(y).run_ns, 2));
    play.k.set_weight(a, 3 * 1024);
    let before = play.of(x).run_ns;
    play.until(6 * S);
    assert!(near(play.of(x).run_ns - before, 3 * S, 2));
}

#[test]
fn a_groups_weight_is_divided_over_the_cpus_it_is_on() {
    let mut play = Play::flat(2);
    let (wide, narrow) = (play.k.add_group(1024, None), play.k.add_group(1024, None));
    let a = play.add_to(Does::Hog, wide, &cpus(&[0]));
    let b = play.add_to(Does::Hog, wide, &cpus(&[1]));
    let c = play.add_to(Does::Hog, narrow, &cpus(&[1]));
    play.until(10 * S);
    assert_eq!(play.of(a).run_ns, 10 * S);
    // Half of the wide group's weight is on CPU 1, against all of the narrow one's.
    assert!(
        near(play.of(b).run_ns, 10 * S / 3, 4),
        "{}",
        play.of(b).run_ns
    );
    assert!(near(play.of(c).run_ns, 20 * S / 3, 4));
}

#[test]
fn a_session_of_two_shares_a_cpu_beside_a_hog_in_another() {
    // The everyday loss: balancing goes by load, and two halves of a session weigh as much as a hog.
    let mut play = Play::flat(2);
    let (team, other) = (play.k.add_group(1024, None), play.k.add_group(1024, None));
    let all = CpuSet::first(2);
    let hog = play.add_to(Does::Hog, other, &all);
    let team: Vec<_> = (0..2).map(|_| play.add_to(Does::Hog, team, &all)).collect();
    play.until(20 * S);
    let both: u64 = team.iter().map(|t| play.of(*t).run_ns).sum();
    assert!(near(play.of(hog).run_ns + both, 40 * S, 1));
    assert!(play.of(hog).run_ns > 17 * S, "{}", play.of(hog).run_ns);
}

#[test]
fn a_quota_is_never_exceeded_by_more_than_a_tick_on_each_cpu() {
    for (quota_ms, n) in [(50, 1), (50, 2), (20, 3), (150, 4), (5, 2)] {
        let mut play = Play::flat(4);
        let quota = Quota {
            quota_ns: quota_ms * MS,
            period_ns: 100 * MS,
        };
        let group = play.k.add_group(1024, Some(quota));
        let all = CpuSet::first(4);
        let threads: Vec<_> = (0..n)
            .map(|_| play.add_to(Does::Hog, group, &all))
            .collect();
        let beside = play.add(Does::Rests(MS, 3 * MS));
        let mut before = 0;
        for period in 1..=50_u64 {
            play.until(period * 100 * MS);
            let used: u64 = threads.iter().map(|t| play.of(*t).run_ns).sum();
            let most = quota_ms * MS + 4 * MS * n;
            assert!(
                used - before <= most,
                "{quota_ms} {n}: {} in a period",
                used - before
            );
            before = used;
        }
        let share = before as f64 / (5 * S) as f64;
        let due = (quota_ms as f64 / 100.0).min(n as f64);
        // What was overdrawn last is still owed.
        let most = due + n as f64 * 0.004 / 5.0;
        assert!(
            (due * 0.95..=most).contains(&share),
            "{quota_ms} {n}: {share} not {due}"
        );
        assert!(play.of(beside).run_ns > 0);
        for t in threads {
            let used = play.of(t);
            assert_eq!(used.run_ns + used.wait_ns, 5 * S);
        }
    }
}

#[test]
fn a_quota_that_is_not_used_up_does_not_slow_anyone() {
    let mut play = Play::flat(1);
    let quota = Quota {
        quota_ns: 50 * MS,
        period_ns: 100 * MS,
    };
    let group = play.k.add_group(1024, Some(quota));
    let t = play.add_to(Does::Rests(4 * MS, 10 * MS), group, &cpus(&[0]));
    play.until(5 * S);
    assert_eq!(play.of(t).wait_ns, 0);
}

#[test]
fn a_quota_with_a_short_period_is_refilled_while_it_is_used() {
    let mut play = Play::flat(1);
    let quota = Quota {
        quota_ns: 2 * MS,
        period_ns: 2 * MS,
    };
    let group = play.k.add_group(1024, Some(quota));
    let t = play.add_to(Does::Hog, group, &cpus(&[0]));
    play.until(2 * S);
    // Ticks are further apart than periods: what is overdrawn at one is missing later.
    assert!(play.of(t).run_ns > 15 * S / 10, "{}", play.of(t).run_ns);
}

#[test]
fn a_frozen_process_uses_nothing_and_goes_on_where_it_was() {
    let mut play = Play::flat(2);
    let t = play.add(Does::Once(30 * MS));
    let sleeper = play.add(Does::Rests(MS, 5 * MS));
    play.until(10 * MS);
    play.k.freeze(ProcessId(0), true);
    play.k.freeze(ProcessId(1), true);
    let before = play.of(sleeper).run_ns;
    play.until(60 * MS);
    assert_eq!(play.of(t).run_ns, 10 * MS);
    assert_eq!(play.of(t).frozen_ns, 50 * MS);
    assert_eq!(play.of(sleeper).run_ns, before);
    play.k.freeze(ProcessId(0), false);
    play.until(S);
    assert_eq!(play.ended[0], Some(80 * MS));
    assert_eq!(play.of(sleeper).run_ns, before);
    play.k.freeze(ProcessId(1), false);
    play.until(2 * S);
    assert!(play.of(sleeper).run_ns > before + 100 * MS);
}

#[test]
fn a_thread_of_a_frozen_process_starts_when_it_thaws() {
    let mut play = Play::flat(1);
    play.k.freeze(ProcessId(0), true);
    let t = play.add_to(Does::Once(MS), GroupId::ROOT, &cpus(&[0]));
    play.until(10 * MS);
    assert_eq!(play.of(t).run_ns, 0);
    play.k.freeze(ProcessId(0), false);
    play.until(20 * MS);
    assert_eq!(play.ended[0], Some(11 * MS));
}
