//! Every function of corewise_defer.h, from C and as C++ sees it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Build, Link, said};

fn run(flags: &[&str], link: Link) {
    let program = Build {
        compiler: "cc",
        source: "defer.c",
        flags,
        link,
    };
    said(&program.build().run_alone());
}

#[test]
fn deferred_calls_of_c_are_executed_once_with_every_strategy() {
    run(&["-std=c11", "-pthread"], Link::Library);
}

#[test]
fn their_arguments_are_freed_once() {
    let flags = ["-std=c11", "-pthread", "-fsanitize=address,undefined"];
    let trial = Build {
        compiler: "cc",
        source: "empty.c",
        flags: &flags,
        link: Link::Library,
    };
    match trial.try_build() {
        Ok(_) => run(&flags, Link::Library),
        Err(why) => eprintln!("skipped: the compiler has no sanitizers: {why}"),
    }
}
