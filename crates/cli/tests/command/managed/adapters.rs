//! Programs whose runtimes follow their claim while they run, by adapters that are loaded into them.
use super::frame::*;
use crate::common::{Place, compile, json, sandbox_or_skip, stderr};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::OnceLock;

/// A program that begins regions until it is told to end.
fn regions() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("regions", &["-fopenmp"]))
}

/// One of three threads under `corewise run`.
struct Regions {
    child: Child,
    place: Place,
}

impl Regions {
    fn start(options: &[&str]) -> Regions {
        Regions::start_in(Place::new(), options)
    }

    fn start_in(place: Place, options: &[&str]) -> Regions {
        let mut args = vec!["run", "--summary", "summary.json"];
        args.extend(options);
        args.extend(["--", regions().to_str().unwrap(), "gate"]);
        let child = place
            .command(&args)
            // A fixed number: nothing is probed.
            .env("OMP_NUM_THREADS", "3")
            .env("OMP_WAIT_POLICY", "passive")
            .stdout(std::fs::File::create(place.path().join("out")).unwrap())
            .stderr(std::fs::File::create(place.path().join("err")).unwrap())
            .spawn()
            .unwrap();
        Regions { child, place }
    }

    /// Waits until its regions have so many threads.
    fn have(&self, threads: &str) {
        until(&format!("regions of {threads} threads"), || {
            let printed = std::fs::read_to_string(self.place.path().join("out")).unwrap();
            (printed.lines().last() == Some(threads)).then_some(())
        });
    }

    fn claim(&self, what: &[&str]) {
        let pid = pid_of(&programs(&self.place, 1)[0]).to_string();
        let mut args = vec!["claim", &pid];
        args.extend(what);
        let output = self.place.corewise(&args);
        assert!(output.status.success(), "{}", stderr(&output));
    }

    fn open(&self) {
        std::fs::write(self.place.path().join("gate"), "").unwrap();
    }

    /// Lets it end; where its summary is.
    fn end(mut self) -> Place {
        self.open();
        let status = until("the end of corewise run", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        std::mem::replace(&mut self.place, Place::new())
    }

    /// Lets it end; what its summary says of the adapters.
    fn followed(self) -> Value {
        summary(&self.end())["managed"]["followed"].clone()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.open();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_openmp_program_follows_its_claim_while_it_runs() {
    let regions = Regions::start(&[]);
    for threads in ["1", "2", "1"] {
        regions.claim(&["--threads", threads]);
        regions.have(threads);
    }
    let shown = &programs(&regions.place, 1)[0];
    assert_eq!(shown["wants"]["malleable"], true, "{shown}");
    until("what follows to be told", || {
        let shown = &programs(&regions.place, 1)[0];
        let told = shown["follows"] == serde_json::json!(["libgomp"]);
        (told && shown["stay"] == serde_json::json!([])).then_some(())
    });
    let followed = regions.followed();
    assert_eq!(followed["runtimes"], serde_json::json!(["libgomp"]));
    assert!(followed["shrunk"].as_u64().unwrap() > 0, "{followed}");
}

#[test]
fn without_a_manager_nothing_bounds_it_any_more() {
    let regions = Regions::start(&[]);
    regions.claim(&["--threads", "1"]);
    regions.have("1");
    kill(manager(&regions.place).unwrap());
    regions.have("3");
}

#[test]
fn when_corewise_run_is_killed_nothing_bounds_it_any_more() {
    let mut regions = Regions::start(&[]);
    regions.claim(&["--threads", "1"]);
    regions.have("1");
    regions.child.kill().unwrap();
    regions.child.wait().unwrap();
    regions.have("3");
}

#[test]
fn regions_are_searched_while_the_program_runs_with_or_without_a_manager() {
    for options in [&["--live"][..], &["--live", "--alone"]] {
        let regions = Regions::start(options);
        // Nothing is gained by more than one thread: it does nothing.
        regions.have("1");
        let place = regions.end();
        assert_eq!(summary(&place)["source"], "live");
        let found = summary(&place)["live"]["found"].clone();
        assert!(found.is_array(), "{found}");
    }
}

#[test]
fn a_second_run_begins_with_what_was_found_for_its_regions() {
    let mut place = Place::new();
    until("something to be found", || {
        let regions = Regions::start_in(
            std::mem::replace(&mut place, Place::new()),
            &["--live", "--alone"],
        );
        regions.have("1");
        // It has one in its turns, too: they need a moment to end. If this is too short, the next run goes on.
        std::thread::sleep(std::time::Duration::from_secs(1));
        place = regions.end();
        let known = summary(&place)["live"]["known"].as_u64().unwrap();
        // The next one is another program's run.
        std::fs::remove_file(place.path().join("gate")).unwrap();
        (known > 0).then_some(())
    });
    let shown = place.corewise(&["history", "--json"]);
    let results = json(&shown)["results"].clone();
    let region = &results[0]["record"]["regions"][0];
    assert_eq!(
        (&region["threads"], &region["most"]),
        (&1.into(), &3.into()),
        "{results}"
    );
    let fresh = Regions::start_in(place, &["--live", "--alone", "--fresh"]);
    fresh.have("1");
    let place = fresh.end();
    assert_eq!(summary(&place)["live"]["known"], 0);
}

#[test]
fn regions_are_searched_unasked_where_a_number_was_found_for_the_program_and_a_manager_leads_it() {
    if !sandbox_or_skip() {
        return;
    }
    let place = Place::new();
    // It begins some regions, and ends.
    std::fs::write(place.path().join("gate"), "").unwrap();
    for (option, searched) in [
        (None, true),
        (Some("--no-live"), false),
        (Some("--as-is"), false),
        (Some("--alone"), false),
    ] {
        let mut args = vec!["run", "--summary", "summary.json"];
        args.extend(option);
        args.extend(["--", regions().to_str().unwrap(), "gate"]);
        let output = place.corewise(&args);
        assert!(output.status.success(), "{}", stderr(&output));
        let summary = summary(&place);
        assert_eq!(
            summary["live"].is_object(),
            searched,
            "{option:?}: {summary}"
        );
    }
}

#[test]
fn a_program_can_be_run_as_it_is() {
    let regions = Regions::start(&["--as-is"]);
    regions.claim(&["--threads", "1"]);
    regions.have("1");
    let place = regions.end();
    assert_eq!(summary(&place)["source"], "plain");
}

#[test]
fn where_the_user_wants_no_adapters_none_are_loaded() {
    let regions = Regions::start(&["--no-adapters"]);
    regions.have("3");
    let shown = &programs(&regions.place, 1)[0];
    assert_eq!(shown["wants"]["malleable"], false, "{shown}");
    // It could follow, but nothing was loaded.
    until("what stays to be told", || {
        let shown = &programs(&regions.place, 1)[0];
        let told = shown["stay"] == serde_json::json!(["GNU OpenMP (libgomp)"]);
        (told && shown["follows"] == serde_json::json!([])).then_some(())
    });
    assert_eq!(regions.followed(), Value::Null);
}

/// What `corewise adapters` says of a program.
fn adapters(place: &Place, program: &Path) -> Value {
    let output = place.corewise(&["adapters", "--json", program.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    json(&output)
}

#[test]
fn programs_that_could_be_harmed_are_recognised() {
    let place = Place::new();
    let plan = adapters(&place, regions());
    let shim = plan["preload"].as_str().unwrap();
    assert!(shim.ends_with("/libcorewise_shim.so"), "{plan}");
    let cases: [(&[&str], &str); 3] = [
        (&["-fopenmp", "-static"], "statically"),
        (
            &["-fopenmp", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"],
            "musl",
        ),
        (&["-fopenmp", "-fsanitize=address"], "AddressSanitizer"),
    ];
    for (options, why) in cases {
        let plan = adapters(&place, &compile("regions", options));
        assert_eq!(plan["preload"], Value::Null, "{plan}");
        assert!(plan["why"].as_str().unwrap().contains(why), "{plan}");
    }
    let other = place.path().join("with-rights");
    std::fs::copy(regions(), &other).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let plan = adapters(&place, &other);
    assert!(plan["why"].as_str().unwrap().contains("rights"), "{plan}");
    let plan = adapters(&place, &crate::common::made().canonicalize().unwrap());
    assert!(
        plan["why"].as_str().unwrap().contains("no runtime"),
        "{plan}"
    );
}
