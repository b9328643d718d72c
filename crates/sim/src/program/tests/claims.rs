//! Following a claim.

use super::*;

const TEAM: &str = "name = \"team\"\nmalleable = true\nmin_threads = 2\nmax_threads = 6\n[[phase]]\n\
                    region = { work_ms = 1000, schedule = \"dynamic\", units = 1000, imbalance = 0.5 }";

fn claim(bench: &mut Bench, p: ProgramNumber, threads: u32) {
    let cpus = CpuSet::first(bench.cpus);
    bench
        .programs
        .set_claim(&mut bench.kernel, p, &cpus, threads);
}

#[test]
fn a_malleable_program_shrinks_and_grows_within_a_unit() {
    for join in ["work", "leader", "all"] {
        let text = TEAM.replace("units = 1000", &format!("units = 1000, join = \"{join}\""));
        let mut bench = Bench::new(8);
        let p = bench.start(&text, 4);
        bench.run(50 * MS, |_| false).unwrap();
        assert_eq!(bench.state(p).team, 4);
        claim(&mut bench, p, 2);
        // A unit takes 1.5 ms at most.
        bench.run(52 * MS, |_| false).unwrap();
        assert_eq!(bench.state(p).team, 2);
        let before = bench.counters(p).work_ns;
        bench.run(72 * MS, |_| false).unwrap();
        let done = bench.counters(p).work_ns - before;
        assert!((39 * MS..=40 * MS).contains(&done), "{done}");
        claim(&mut bench, p, 6);
        let before = bench.counters(p).work_ns;
        bench.run(92 * MS, |_| false).unwrap();
        assert_eq!(bench.state(p).team, 6);
        let done = bench.counters(p).work_ns - before;
        assert!((118 * MS..=120 * MS).contains(&done), "{done}");
        let end = bench.finish(p);
        let work = bench.counters(p).work_ns;
        assert!(work.abs_diff(1000 * MS) < 100, "{work}");
        assert!((197 * MS..203 * MS).contains(&end), "{end}");
    }
}

#[test]
fn a_claim_is_followed_within_the_programs_bounds() {
    let mut bench = Bench::new(8);
    let p = bench.start(TEAM, 4);
    for (threads, team) in [(1, 2), (100, 6), (0, 2), (5, 5)] {
        claim(&mut bench, p, threads);
        let now = bench.kernel.now();
        bench.run(now + 5 * MS, |_| false).unwrap();
        assert_eq!(bench.state(p).team, team, "claim of {threads}");
    }
}

#[test]
fn a_static_region_follows_with_the_next_one() {
    let mut bench = Bench::new(8);
    let p = bench.start(
        "name = \"a\"\nmalleable = true\nwait = \"spin\"\n[[phase]]\nrepeat = 10\nregion = { work_ms = 40 }",
        4,
    );
    bench.run(5 * MS, |_| false).unwrap();
    claim(&mut bench, p, 2);
    assert_eq!(bench.state(p).team, 4);
    bench.run(9 * MS, |_| false).unwrap();
    assert_eq!(bench.state(p).team, 4);
    bench.run(12 * MS, |_| false).unwrap();
    assert_eq!(bench.state(p).team, 2);
    // Those that are too many are parked, even where workers spin.
    let before = bench.counters(p).spin_ns;
    bench.run(28 * MS, |_| false).unwrap();
    assert!(bench.counters(p).spin_ns - before < MS / 10);
    claim(&mut bench, p, 8);
    bench.run(31 * MS, |_| false).unwrap();
    assert_eq!(bench.state(p).team, 8);
    assert_eq!(bench.state(p).threads, 8);
}

#[test]
fn a_rigid_program_ignores_the_number_of_threads() {
    let mut bench = Bench::new(4);
    let text =
        "name = \"a\"\n[[phase]]\nregion = { work_ms = 40, schedule = \"dynamic\", units = 400 }";
    let p = bench.start(text, 4);
    claim(&mut bench, p, 1);
    bench.run(5 * MS, |_| false).unwrap();
    assert_eq!(bench.state(p).team, 4);
    assert_eq!(bench.state(p).could_use, None);
}

#[test]
fn a_claim_moves_all_threads_and_those_to_come() {
    let mut bench = Bench::new(8);
    let p = bench.start(TEAM, 2);
    bench.run(5 * MS, |_| false).unwrap();
    let cpus: CpuSet = [5, 6, 7].into_iter().collect();
    bench.programs.set_claim(&mut bench.kernel, p, &cpus, 6);
    let busy = |bench: &Bench| (0..5).map(|cpu| bench.kernel.cpu(cpu).busy_ns).sum::<u64>();
    bench.run(6 * MS, |_| false).unwrap();
    let before = busy(&bench);
    bench.run(40 * MS, |_| false).unwrap();
    assert_eq!(busy(&bench), before);
    assert_eq!(bench.state(p).threads, 6);
    let places: Vec<CpuSet> = (0..6).map(|cpu| [cpu].into_iter().collect()).collect();
    bench.programs.place(&mut bench.kernel, p, &places);
    bench.run(41 * MS, |_| false).unwrap();
    let before: Vec<u64> = (0..8).map(|cpu| bench.kernel.cpu(cpu).busy_ns).collect();
    bench.run(51 * MS, |_| false).unwrap();
    let used = |cpu: usize| bench.kernel.cpu(cpu as u32).busy_ns - before[cpu];
    assert!((0..6).all(|cpu| used(cpu) == 10 * MS) && used(6) + used(7) == 0);
}

#[test]
fn a_team_says_what_it_could_use() {
    let mut bench = Bench::new(8);
    let p = bench.start(
        "name = \"a\"\nmalleable = true\n[[phase]]\nserial = { work_ms = 5 }\n\
         [[phase]]\nregion = { work_ms = 20, schedule = \"dynamic\", units = 20 }",
        2,
    );
    bench.run(4 * MS, |_| false).unwrap();
    assert_eq!(
        (bench.state(p).could_use, bench.state(p).team),
        (Some(1), 1)
    );
    // Two are being done and none yet; then fewer and fewer are left.
    bench.run(5 * MS + MS / 2, |_| false).unwrap();
    assert_eq!(
        (bench.state(p).could_use, bench.state(p).team),
        (Some(20), 2)
    );
    bench.run(10 * MS + MS / 2, |_| false).unwrap();
    assert_eq!(bench.state(p).could_use, Some(10));
    bench.finish(p);
    assert_eq!(bench.state(p).progress, 21);
}

#[test]
fn a_claim_is_divided_among_processes() {
    let mut bench = Bench::new(8);
    let text = TEAM.replace("min_threads = 2\n", "processes = 2\n");
    let p = bench.start(&text, 1);
    claim(&mut bench, p, 5);
    bench.run(20 * MS, |_| false).unwrap();
    assert_eq!(bench.state(p).team, 5);
    assert_eq!(bench.state(p).threads, 5);
}
