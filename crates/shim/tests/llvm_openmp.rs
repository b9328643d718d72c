//! A program that nobody changed and that calls LLVM's OpenMP as its compiler has it, with the adapters
//! preloaded: on a small runtime of our own, and on libomp and libiomp5 where they are installed.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Built, Program, build, shared};
use corewise_wire::Link;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

const LLVM_OPENMP: u32 = corewise_abi::reports::adapters::LLVM_OPENMP;

/// A runtime to test with.
struct Runtime {
    file: PathBuf,
    /// Ours.
    fake: bool,
    /// `kmpc.cpp`, using it.
    program: PathBuf,
}

impl Runtime {
    /// Takes the runtime in `file`. What is compiled goes into `folder`.
    fn new(file: PathBuf, fake: bool, folder: &Path) -> Runtime {
        let name = format!("kmpc-{}", file.to_string_lossy().replace('/', "-"));
        let runtime = Runtime {
            file,
            fake,
            program: folder.join(name),
        };
        let built = runtime.build("kmpc.cpp", &[]);
        std::fs::copy(&built.file, &runtime.program).unwrap();
        runtime
    }

    /// Compiles a file of `programs/` that uses it.
    fn build(&self, source: &str, flags: &[&str]) -> Built {
        let path = format!("-Wl,-rpath,{}", self.file.parent().unwrap().display());
        let file = self.file.to_str().unwrap();
        let mut all = vec!["-fno-openmp", "-Wl,--no-as-needed", file, &path];
        all.extend_from_slice(flags);
        build(source, &all)
    }

    fn start(&self, link: &Link) -> Program {
        self.start_with(link, &[])
    }

    fn start_with(&self, link: &Link, variables: &[(&str, &str)]) -> Program {
        eprintln!("on {}", self.file.display());
        Program::start_file(&self.program, link, 4, variables)
    }
}

/// All runtimes that there are here. COREWISE_TEST_OPENMP may name one more.
fn runtimes() -> &'static [Runtime] {
    static RUNTIMES: OnceLock<Vec<Runtime>> = OnceLock::new();
    RUNTIMES.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let built = shared("fake_openmp.cpp", "libfakeomp.so", &["-fno-openmp"]);
        let fake = folder.join("libfakeomp.so");
        std::fs::copy(&built.file, &fake).unwrap();
        let mut runtimes = vec![Runtime::new(fake, true, folder)];
        let installed = ["libomp.so.5", "libiomp5.so"].map(|name| {
            let asked = Command::new("g++")
                .arg(format!("-print-file-name={name}"))
                .output();
            PathBuf::from(String::from_utf8(asked.unwrap().stdout).unwrap().trim())
        });
        let named = std::env::var_os("COREWISE_TEST_OPENMP").map(PathBuf::from);
        // Of a library that it does not know, the compiler says the name.
        let files = installed
            .into_iter()
            .chain(named)
            .filter(|f| f.is_absolute());
        runtimes.extend(files.map(|file| Runtime::new(file, false, folder)));
        if runtimes.len() == 1 {
            eprintln!("skipped: libomp and libiomp5, which are not installed (libomp5-14)");
        }
        runtimes
    })
}

/// Runs the program on each runtime, with a team of four, and its own pages.
fn on_each(with: impl Fn(&Link, &mut Program)) {
    for runtime in runtimes() {
        let link = Link::create().unwrap();
        with(&link, &mut runtime.start(&link));
    }
}

#[test]
fn a_region_has_the_claims_threads_and_never_more_than_its_own() {
    on_each(|link, program| {
        assert_eq!(program.ask("region"), "4", "no claim binds");
        for (claim, expected) in [(1, "1"), (3, "3"), (2, "2"), (16, "4"), (4, "4")] {
            link.grant(claim, []);
            assert_eq!(program.ask("region"), expected, "a claim of {claim}");
            assert_eq!(program.ask("other"), expected, "in a thread of its own");
        }
        link.grant(1, []);
        link.release();
        assert_eq!(program.ask("region"), "4", "the claim has ended");
    });
}

#[test]
fn the_program_is_told_its_own_number_all_the_time() {
    on_each(|link, program| {
        for claim in [4, 1, 2, 1] {
            link.grant(claim, []);
            assert_eq!(program.ask("max"), "4 4", "a claim of {claim}");
        }
    });
}

#[test]
fn what_the_program_sets_is_what_is_bounded() {
    on_each(|link, program| {
        link.grant(1, []);
        assert_eq!(program.ask("region"), "1");
        // Also where it is the number that the claim allows.
        assert_eq!(program.ask("set 1"), "1");
        assert_eq!(program.ask("region"), "1");
        link.grant(4, []);
        assert_eq!(program.ask("region"), "1");
        assert_eq!(program.ask("set 3"), "3");
        assert_eq!(program.ask("region"), "3");
        link.grant(2, []);
        assert_eq!(program.ask("region"), "2");
    });
}

#[test]
fn a_loop_gives_the_same_result_with_every_claim() {
    on_each(|link, program| {
        for claim in 1..=5 {
            link.grant(claim, []);
            let expected = format!("{} {}", claim.min(4), 1000 * 999 / 2);
            assert_eq!(program.ask("loop 1000"), expected);
            assert_eq!(program.ask("many"), "36");
        }
    });
}

#[test]
fn a_claim_that_changes_all_the_time_changes_no_result() {
    on_each(|link, program| {
        std::thread::scope(|scope| {
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                for claim in [1, 4, 2, 3].into_iter().cycle() {
                    link.grant(claim, []);
                    let millisecond = std::time::Duration::from_millis(1);
                    if stopped.recv_timeout(millisecond).is_ok() {
                        break;
                    }
                }
            });
            for _ in 0..300 {
                let answer = program.ask("loop 1000");
                assert_eq!(answer.split_once(' ').unwrap().1, "499500", "{answer}");
            }
            stop.send(()).unwrap();
        });
    });
}

#[test]
fn a_number_that_the_program_demands_is_left_alone() {
    on_each(|link, program| {
        link.grant(1, []);
        assert_eq!(program.ask("clause 3"), "3");
        // As many as it would have had without a clause.
        assert_eq!(program.ask("clause 4"), "4");
        let report = link.reports().taken().next().unwrap();
        assert_eq!(report.demanded.load(Ordering::Relaxed), 2);
        assert_eq!(report.shrunk.load(Ordering::Relaxed), 0);
        assert_eq!(program.ask("clause 1"), "1");
        // It holds for one region only.
        assert_eq!(program.ask("region"), "1");
    });
}

#[test]
fn a_demand_whose_region_ran_alone_is_forgotten() {
    on_each(|link, program| {
        link.grant(2, []);
        for _ in 0..2 {
            assert_eq!(program.ask("alone 3"), "2");
        }
    });
}

#[test]
fn the_user_may_have_demanded_numbers_changed() {
    for runtime in runtimes() {
        let link = Link::create().unwrap();
        let variables = [("COREWISE_OVERRIDE_CLAUSES", "1")];
        let mut program = runtime.start_with(&link, &variables);
        link.grant(2, []);
        assert_eq!(program.ask("clause 3"), "2");
        link.grant(4, []);
        assert_eq!(program.ask("clause 3"), "3");
    }
}

#[test]
fn a_library_that_relies_on_what_it_demands_gets_it_whatever_the_user_wants() {
    let library = shared("kmpc_library.cpp", "libmkl_some.so", &["-fno-openmp"]);
    for runtime in runtimes() {
        let link = Link::create().unwrap();
        let variables = [("COREWISE_OVERRIDE_CLAUSES", "1")];
        let mut program = runtime.start_with(&link, &variables);
        link.grant(2, []);
        let answer = program.ask(&format!("library {} 3", library.file.display()));
        assert_eq!(answer, "4 3");
    }
}

#[test]
fn a_library_on_the_list_follows_also_where_it_demands() {
    let library = |name| shared("kmpc_library.cpp", name, &["-fno-openmp"]);
    let (listed, other) = (library("lib_lightgbm.so"), library("libother.so"));
    on_each(|link, program| {
        for claim in [1, 2] {
            link.grant(claim, []);
            let listed = program.ask(&format!("library {} 3", listed.file.display()));
            assert_eq!(listed, format!("{claim} {claim}"));
            // Loaded where the first one was.
            let other = program.ask(&format!("library {} 3", other.file.display()));
            assert_eq!(other, format!("{claim} 3"));
        }
    });
}

#[test]
fn a_program_that_keeps_data_in_its_threads_is_left_alone() {
    for runtime in runtimes() {
        // Its compiler has made variables of each thread of them, or lets the runtime keep them; or it has
        // tasks that an old runtime cannot begin in a team of one.
        for keeps in [
            "-DKEEPS_THREAD_DATA",
            "-DRUNTIME_KEEPS_DATA",
            "-DTARGET_TASKS",
        ] {
            let link = Link::create().unwrap();
            let built = runtime.build("kmpc.cpp", &[keeps]);
            let mut program = Program::start(&built, &link, 4);
            link.grant(2, []);
            assert_eq!(program.ask("region"), "4", "{keeps}");
            let report = link.reports().taken().next().unwrap();
            assert_eq!(report.demanded.load(Ordering::Relaxed), 1);
        }
    }
}

#[test]
fn regions_within_regions_share_the_claim() {
    on_each(|link, program| {
        link.grant(3, []);
        assert_eq!(program.ask("nest 1"), "1");
        assert_eq!(program.ask("nested"), "3 1");
        assert_eq!(program.ask("nest 2"), "2");
        assert_eq!(program.ask("nested"), "3 1");
        // One that is alone leaves all of it to those that it begins.
        assert_eq!(program.ask("set 2"), "2");
        link.grant(4, []);
        assert_eq!(program.ask("nested"), "2 2");
        link.grant(1, []);
        assert_eq!(program.ask("nested"), "1 1");
    });
}

#[test]
fn regions_are_timed_and_have_the_number_that_they_are_given() {
    on_each(|link, program| {
        assert_eq!(program.ask("region"), "4");
        assert_eq!(link.regions().timed().count(), 0, "nobody asked for it");
        link.regions().time(true);
        for _ in 0..5 {
            assert_eq!(program.ask("region"), "4");
        }
        let (region, timed) = link.regions().timed().next().unwrap();
        assert_eq!((timed.asked, timed.first.runs), (4, 5));
        assert!(timed.first.time_ns > 0);
        region.compare([4, 1], 1);
        let had: Vec<String> = (0..8).map(|_| program.ask("region")).collect();
        assert_eq!(had, ["4", "4", "1", "1", "4", "4", "1", "1"]);
        region.give(3);
        assert_eq!(program.ask("region"), "3");
        link.grant(2, []);
        assert_eq!(program.ask("region"), "2", "the claim bounds it");
        link.release();
        assert_eq!(program.ask("many"), "36", "arguments on the stack");
        assert_eq!(program.ask("clause 3"), "3", "demanded");
        assert_eq!(program.ask("nested"), "4 1");
        link.regions().time(false);
        assert_eq!(program.ask("region"), "4");
    });
}

#[test]
fn threads_that_leave_or_are_cancelled_do_so_where_regions_are_timed() {
    on_each(|link, program| {
        link.regions().time(true);
        assert_eq!(program.ask("exit"), "joined");
        assert_eq!(program.ask("cancel"), "joined");
    });
}

#[test]
fn threads_that_leave_or_are_cancelled_do_so() {
    on_each(|link, program| {
        for claim in [1, 3] {
            link.grant(claim, []);
            assert_eq!(program.ask("exit"), "joined");
            assert_eq!(program.ask("cancel"), "joined");
            assert_eq!(program.ask("region"), claim.to_string());
        }
    });
}

#[test]
fn a_forked_child_follows_too() {
    on_each(|link, program| {
        link.grant(2, []);
        assert_eq!(program.ask("fork"), "2");
        assert_eq!(program.ask("region"), "2");
    });
}

#[test]
fn what_regions_asked_for_is_told() {
    on_each(|link, program| {
        program.ask("region");
        link.grant(3, []);
        program.ask("region");
        link.grant(1, []);
        program.ask("region");
        let report = link.reports().taken().next().unwrap();
        assert_eq!(report.adapters.load(Ordering::Relaxed), LLVM_OPENMP);
        assert_eq!(report.asked.load(Ordering::Relaxed), 4);
        assert_eq!(report.given.load(Ordering::Relaxed), 1);
        assert_eq!(report.occasions.load(Ordering::Relaxed), 3);
        assert_eq!(report.shrunk.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn threads_of_a_smaller_team_sleep_at_once() {
    for runtime in runtimes() {
        let link = Link::create().unwrap();
        let start = |policy| {
            let variables = [("OMP_WAIT_POLICY", policy)];
            runtime.start_with(&link, &variables)
        };
        let mut program = start("");
        let own = program.ask("wait");
        assert_ne!(own, "0");
        link.grant(2, []);
        program.ask("region");
        assert_eq!(program.ask("wait"), "0");
        link.grant(4, []);
        program.ask("region");
        assert_eq!(program.ask("wait"), own);
        // What the program sets meanwhile is its own.
        link.grant(2, []);
        program.ask("region");
        program.ask("await 70");
        program.ask("region");
        assert_eq!(program.ask("wait"), "0");
        link.grant(4, []);
        program.ask("region");
        assert_eq!(program.ask("wait"), "70");
        // The user has said how to wait.
        let mut program = start("active");
        let own = program.ask("wait");
        link.grant(2, []);
        program.ask("region");
        assert_eq!(program.ask("wait"), own);
    }
}

#[test]
fn without_a_claim_the_runtime_is_asked_nothing() {
    for runtime in runtimes() {
        let link = Link::create().unwrap();
        link.grant(1, []);
        let variables = [("COREWISE_LINK", "1:2:3")];
        let mut program = runtime.start_with(&link, &variables);
        assert_eq!(program.ask("region"), "4");
        assert_eq!(program.ask("clause 3"), "3");
    }
}

#[test]
fn a_clause_that_says_more_and_the_runtimes_own_regions_are_left_alone() {
    for runtime in runtimes().iter().filter(|r| r.fake) {
        let link = Link::create().unwrap();
        let built = runtime.build("kmpc.cpp", &["-DSTRICT"]);
        // Whatever the user wants.
        let variables = [("COREWISE_OVERRIDE_CLAUSES", "1")];
        let mut program = Program::start_with(&built, &link, 4, &variables);
        link.grant(2, []);
        assert_eq!(program.ask("strict 3"), "3");
        let report = link.reports().taken().next().unwrap();
        assert_eq!(report.demanded.load(Ordering::Relaxed), 1);
        assert_eq!(program.ask("region"), "2");
        assert_eq!(program.ask("own 3"), "3");
    }
}

#[test]
fn each_library_uses_the_copy_that_the_loader_has_bound_it_to() {
    let fake = &runtimes()[0];
    let copy = |name| shared("fake_openmp.cpp", name, &["-fno-openmp"]);
    let copies = [copy("libompa.so"), copy("libompb.so")];
    let wheels = copies.each_ref().map(|copy| {
        let path = format!("-Wl,-rpath,{}", copy.file.parent().unwrap().display());
        let file = copy.file.to_str().unwrap();
        shared(
            "kmpc_library.cpp",
            "libwheel.so",
            &["-fno-openmp", file, &path],
        )
    });
    let everybodys = fake.build("copies.cpp", &[]);
    let nobodys = build("copies.cpp", &["-fno-openmp"]);
    for built in [everybodys, nobodys] {
        let link = Link::create().unwrap();
        let mut program = Program::start(&built, &link, 4);
        for wheel in &wheels {
            assert_eq!(
                program.ask(&format!("open {}", wheel.file.display())),
                "loaded"
            );
        }
        for claim in [1, 3, 2] {
            link.grant(claim, []);
            for wheel in &wheels {
                let answer = program.ask(&format!("team {}", wheel.file.display()));
                assert_eq!(answer, format!("{claim} {claim}"));
            }
        }
    }
}

#[test]
fn what_gcc_compiled_follows_once_also_on_libomp() {
    for runtime in runtimes().iter().filter(|r| !r.fake) {
        let built = runtime.build("regions.cpp", &["-fopenmp"]);
        let link = Link::create().unwrap();
        let mut program = Program::start(&built, &link, 4);
        for claim in [1, 2, 4] {
            link.grant(claim, []);
            assert_eq!(program.ask("region"), claim.to_string());
            assert_eq!(program.ask("clause 3"), "3");
            assert_eq!(program.ask("loop 1000"), format!("{claim} 499500"));
            assert_eq!(program.ask("max"), "4");
        }
        let report = link.reports().taken().next().unwrap();
        assert_eq!(report.occasions.load(Ordering::Relaxed), 9);
        assert_eq!(report.demanded.load(Ordering::Relaxed), 2);
    }
}
