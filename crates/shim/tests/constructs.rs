//! OpenMP's constructs, compiled by gcc and, where it is installed, by clang, while the claim changes every
//! millisecond.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use corewise_wire::Link;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

const ROUNDS: &str = "60";

/// What the program prints by itself.
fn alone(program: &Path) -> String {
    let mut command = Command::new(program);
    said(settings(command.arg(ROUNDS)))
}

/// What it prints while its claim changes from one to the next all the time.
fn with_claims(program: &Path, claims: &[u32]) -> String {
    let link = Link::create().unwrap();
    let (name, value) = link.variable().unwrap();
    std::thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let link = &link;
        scope.spawn(move || {
            for claim in claims.iter().cycle() {
                link.grant(*claim, []);
                let woken = stopped.recv_timeout(Duration::from_millis(1));
                // Also where the program has failed, and nobody says anything.
                if woken != Err(mpsc::RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        let mut command = Command::new(program);
        command.env(name, value).env("LD_PRELOAD", common::shim());
        let said = said(settings(command.arg(ROUNDS)));
        stop.send(()).unwrap();
        said
    })
}

fn settings(command: &mut Command) -> &mut Command {
    command
        .env("OMP_NUM_THREADS", "4")
        .env("OMP_CANCELLATION", "true")
        .env("OMP_WAIT_POLICY", "passive")
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {said}", output.status);
    said
}

fn check(program: &Path) {
    let expected = alone(program);
    for claims in [&[1][..], &[3], &[4, 1], &[1, 3, 2, 4]] {
        assert_eq!(with_claims(program, claims), expected, "claims {claims:?}");
    }
}

#[test]
fn what_gcc_compiled_computes_the_same_while_its_claim_changes() {
    check(&common::build("constructs.cpp", &[]).file);
}

#[test]
fn what_clang_compiled_computes_the_same_while_its_claim_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/constructs.cpp");
    let versions = (14..=22).rev().map(|version| format!("clang++-{version}"));
    let compiled = versions.chain(["clang++".to_owned()]).any(|compiler| {
        let mut command = Command::new(compiler);
        command
            .args(["-O1", "-fopenmp", "-DFORKS", "-o"])
            .arg(&file);
        let compiled = command.arg(&source).output();
        compiled.is_ok_and(|output| output.status.success())
    });
    match compiled {
        true => check(&file),
        false => {
            eprintln!("skipped: no clang++ here that compiles OpenMP (clang-14, libomp-14-dev)")
        }
    }
}
