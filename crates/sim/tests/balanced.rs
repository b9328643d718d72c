//! `balanced` against plain Linux, in scenarios in which it once lost, made small; and `automax` as a script.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod common;

use common::{experiments, run, scenario};
use corewise_sim::report::{ProgramReport, Report};
use corewise_sim::scenario::{policy, read};

/// A scenario's programs, under balanced and under plain Linux.
fn both(machine: &str, programs: &str) -> (Report, Report) {
    let of = |policy: &str| {
        let head = format!("machine = \"{machine}\"\npolicy = \"{policy}\"\nlimit_ms = 60_000\n");
        run(&scenario(&format!("{head}{programs}"))).0.report
    };
    (of("balanced"), of("none"))
}

fn wall(report: &Report, name: &str) -> f64 {
    let found = report.programs.iter().find(|p| p.name == name);
    found.unwrap().wall_seconds
}

fn work(report: &Report) -> f64 {
    report
        .programs
        .iter()
        .map(|p: &ProgramReport| p.work_seconds)
        .sum()
}

/// Work for each second, over plain Linux's.
fn throughput(balanced: &Report, plain: &Report) -> f64 {
    assert!(balanced.is_done() && plain.is_done());
    (work(balanced) / balanced.wall_seconds) / (work(plain) / plain.wall_seconds)
}

fn team(name: &str, most: u32, keys: &str, phases: &str) -> String {
    format!(
        "[[program]]\nname = \"{name}\"\nmalleable = true\nmax_threads = {most}\n{keys}\n\
         [program.spec]\nname = \"{name}\"\nmalleable = true\n{phases}"
    )
}

fn rigid(name: &str, threads: u32, wait: &str, phases: &str) -> String {
    format!(
        "[[program]]\nname = \"{name}\"\nthreads = {threads}\n\
         [program.spec]\nname = \"{name}\"\nwait = {wait}\n{phases}"
    )
}

/// The team was left one thread of 8 for as long as the other one ran, and that one had hardly anything of
/// it: with one CPU shared, its threads wait for each other as with all of them.
#[test]
fn a_team_does_not_starve_beside_a_rigid_program_with_a_thread_for_each_cpu() {
    let region =
        "[[program.spec.phase]]\nrepeat = 800\nregion = { work_ms = 8, imbalance = 0.1 }\n";
    let units = "[[program.spec.phase]]\nregion = { work_ms = 8_000, schedule = \"dynamic\", \
                 units = 2_000 }\n";
    for wait in ["\"block\"", "{ spin_us = 5000 }"] {
        let programs = [rigid("fixed", 8, wait, region), team("team", 8, "", units)].concat();
        let (balanced, plain) = both("flat:8", &programs);
        let slower = wall(&balanced, "team") / wall(&plain, "team");
        assert!(slower < 1.1, "{wait}: {slower}");
        let throughput = throughput(&balanced, &plain);
        assert!(throughput > 0.98, "{wait}: {throughput}");
    }
}

/// While one team's serial part ran, its CPUs were idle: too short a time for them to be given to the other.
#[test]
fn cpus_that_a_serial_part_leaves_are_not_idle() {
    let serial = "[[program.spec.phase]]\nrepeat = 40\n\
                  [[program.spec.phase.phase]]\nserial = { work_ms = 60 }\n\
                  [[program.spec.phase.phase]]\nregion = { work_ms = 150, schedule = \"dynamic\", \
                  units = 50 }\n";
    let units = "[[program.spec.phase]]\nregion = { work_ms = 16_000, schedule = \"dynamic\", \
                 units = 4_000 }\n";
    let programs = [team("serial", 4, "", serial), team("units", 4, "", units)].concat();
    let (balanced, plain) = both("flat:4", &programs);
    let throughput = throughput(&balanced, &plain);
    // Plain Linux keeps the CPUs busier since sleepers with a debt stay where they are.
    assert!(throughput > 0.93, "{throughput}");
}

/// What had been left for a program that was gone stayed idle for a fifth of a second.
#[test]
fn waves_of_programs_that_use_half_of_their_room_cost_nothing_when_they_are_gone() {
    let units = "[[program.spec.phase]]\nregion = { work_ms = 40_000, schedule = \"dynamic\", \
                 units = 10_000 }\n";
    let job = "[[program]]\nname = \"job\"\nthreads = 4\nwaves = 4\npause_ms = 300\n\
               [program.spec]\nname = \"job\"\n[[program.spec.phase]]\nrepeat = 50\n\
               [[program.spec.phase.phase]]\nserial = { work_ms = 10 }\n\
               [[program.spec.phase.phase]]\nregion = { work_ms = 40 }\n";
    let programs = [team("team", 8, "", units).as_str(), job].concat();
    let (balanced, plain) = both("flat:8", &programs);
    let throughput = throughput(&balanced, &plain);
    assert!(throughput > 0.95, "{throughput}");
}

/// Threads that want CPUs by fits and starts made claims go to and fro with them.
#[test]
fn claims_do_not_oscillate_beside_a_program_that_works_by_fits_and_starts() {
    let fits = "[[program.spec.phase]]\nrepeat = 30\n\
                [[program.spec.phase.phase]]\nserial = { work_ms = 150 }\n\
                [[program.spec.phase.phase]]\nregion = { work_ms = 800, imbalance = 0.1 }\n";
    let units = "[[program.spec.phase]]\nregion = { work_ms = 60_000, schedule = \"dynamic\", \
                 units = 15_000 }\n";
    let programs = [
        rigid("fits", 8, "\"block\"", fits),
        team("team", 16, "", units),
    ]
    .concat();
    let (balanced, plain) = both("flat:16", &programs);
    let team = balanced.programs.iter().find(|p| p.name == "team").unwrap();
    let each_second = team.claims as f64 / team.wall_seconds;
    assert!(each_second < 8.0, "{each_second}");
    let throughput = throughput(&balanced, &plain);
    assert!(throughput > 0.98, "{throughput}");
}

/// Their serial parts and the ends of their regions left CPUs idle, too briefly to move threads: one thread
/// was lent, too late, and taken back before the next gap.
#[test]
fn two_teams_of_different_rhythms_fill_each_others_gaps() {
    let long = "[[program.spec.phase]]\nrepeat = 4\n\
                [[program.spec.phase.phase]]\nserial = { work_ms = 120 }\n\
                [[program.spec.phase.phase]]\nregion = { work_ms = 8_000, schedule = \"dynamic\", \
                units = 1_000 }\n";
    let short = "[[program.spec.phase]]\nrepeat = 20\n\
                 region = { work_ms = 1_600, schedule = \"dynamic\", units = 160, imbalance = 0.3 }\n";
    let programs = [
        team("long", 16, "", long),
        team("short", 16, "start_ms = 200", short),
    ]
    .concat();
    let (balanced, plain) = both("flat:16", &programs);
    let throughput = throughput(&balanced, &plain);
    assert!(throughput > 0.97, "{throughput}");
    for program in &balanced.programs {
        let each_second = program.claims as f64 / program.wall_seconds;
        assert!(each_second < 4.0, "{}: {each_second}", program.name);
    }
}

/// Two teams shared as many threads as there are CPUs beside a program that spins on all of them: so that
/// one had half of the machine, and wasted it.
#[test]
fn teams_have_their_part_beside_a_program_that_spins_on_all_cpus() {
    let spins =
        "[[program.spec.phase]]\nrepeat = 400\nregion = { work_ms = 16, imbalance = 0.1 }\n";
    let units = "[[program.spec.phase]]\nregion = { work_ms = 4_000, schedule = \"dynamic\", \
                 units = 1_000 }\n";
    let programs = [
        rigid("spins", 8, "\"spin\"", spins),
        team("one", 8, "", units),
        team("other", 8, "start_ms = 20", units),
    ]
    .concat();
    let (balanced, plain) = both("flat:8", &programs);
    for name in ["one", "other"] {
        let slower = wall(&balanced, name) / wall(&plain, name);
        assert!(slower < 1.1, "{name}: {slower}");
    }
    let throughput = throughput(&balanced, &plain);
    assert!(throughput > 0.98, "{throughput}");
}

/// Jobs were put on CPUs of their own, on which processes ran that nobody had seen yet.
#[test]
fn jobs_that_come_first_are_not_put_where_others_run_already() {
    let forever = "[[program]]\nname = \"hog\"\ncount = 8\nthreads = 1\nmanaged = false\n\
                   background = true\nsession = \"other\"\nstart_ms = 107\n[program.spec]\n\
                   name = \"hog\"\n[[program.spec.phase]]\n\
                   repeat = \"forever\"\nserial = { work_ms = 10 }\n";
    let jobs = "[[program]]\nname = \"job\"\ncount = 6\nthreads = 1\nstart_ms = 279\n\
                [program.spec]\nname = \"job\"\n[[program.spec.phase]]\nserial = { work_ms = 95 }\n";
    let (balanced, plain) = both("flat:48", &[forever, jobs].concat());
    let slower = balanced.programs.iter().zip(&plain.programs);
    for (balanced, plain) in slower.filter(|(p, _)| !p.background) {
        let slower = balanced.wall_seconds / plain.wall_seconds;
        assert!(slower < 1.02, "{}: {slower}", balanced.name);
    }
}

#[test]
fn automax_keeps_the_same_journal_as_a_script() {
    let built_in = common::mixed("automax");
    let mut script = built_in.clone();
    let folder = experiments("policies");
    // The built-in one draws its lots from here.
    script.policy = policy("automax-whole.rhai", &folder, 0, &read).unwrap();
    let lines = |scenario| -> Vec<String> {
        let entries = run(scenario).1;
        entries
            .iter()
            .map(|e| serde_json::to_string(e).unwrap())
            .collect()
    };
    let (one, other) = (lines(&built_in), lines(&script));
    assert!(one.len() > 20);
    assert_eq!(one, other);
}
