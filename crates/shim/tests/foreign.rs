//! Programs with their own ideas of threads, memory and the loader, with the adapters preloaded and a claim of
//! one thread: they do what they do without. What is not installed is skipped.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::shim;
use corewise_wire::Link;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `words` in `folder`, with these libraries preloaded.
fn run(words: &[&str], folder: &Path, preload: &[PathBuf], link: Option<&Link>) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder);
    command.env("HOME", folder).env("OMP_NUM_THREADS", "3");
    let preload: Vec<_> = preload.iter().map(|p| p.to_str().unwrap()).collect();
    if !preload.is_empty() {
        command.env("LD_PRELOAD", preload.join(":"));
    }
    if let Some(link) = link {
        let (name, value) = link.variable().unwrap();
        command.env(name, value);
    }
    command.output().unwrap()
}

fn installed(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|f| f.join(program).is_file()));
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Compares a program with and without the adapters, beside `others` that are preloaded in both cases.
fn same_beside(others: &[PathBuf], words: &[&str]) {
    if !installed(words[0]) {
        return;
    }
    let link = Link::create().unwrap();
    link.grant(1, []);
    // What it waits for is counted meanwhile.
    link.locks().count(true);
    let (plain, led) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(words, plain.path(), others, None);
    let mut preload = others.to_vec();
    preload.push(shim());
    let found = run(words, led.path(), &preload, Some(&link));
    assert!(expected.status.success(), "{expected:?}");
    assert_eq!(found.status, expected.status, "{found:?}");
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&found), text(&expected));
    let errors = String::from_utf8_lossy(&found.stderr).into_owned();
    assert_eq!(errors, String::from_utf8_lossy(&expected.stderr));
}

fn same(words: &[&str]) {
    same_beside(&[], words);
}

#[test]
fn python_with_threads_processes_and_libraries() {
    let script = "
import ctypes, hashlib, multiprocessing, subprocess, sys, threading
def work(n): return hashlib.sha256(bytes(n)).hexdigest()[:8]
if __name__ == '__main__':
    threads = [threading.Thread(target=work, args=(i,)) for i in range(50)]
    [t.start() for t in threads]; [t.join() for t in threads]
    with multiprocessing.get_context('fork').Pool(3) as pool: print(pool.map(work, range(5)))
    print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True).stdout)
    for _ in range(20): ctypes.CDLL('libm.so.6').cos
";
    same(&["python3", "-c", script]);
}

#[test]
fn git_with_its_helpers() {
    let script = "git init -q . && for i in 1 2 3; do echo $i > $i; git add $i; \
                  git -c user.name=a -c user.email=b commit -qm $i; done; \
                  git -c pack.threads=4 gc -q && git fsck --no-progress && git log --format=%s";
    if installed("git") {
        same(&["sh", "-c", script]);
    }
}

#[test]
fn node_with_workers() {
    let script = "const {Worker} = require('worker_threads'); let n = 0; \
                  for (let i = 0; i < 4; i++) new Worker('require(\"worker_threads\").parentPort.postMessage(7)', \
                  {eval: true}).on('message', m => { n += m; if (n === 28) console.log(n); });";
    same(&["node", "-e", script]);
}

#[test]
fn java_with_a_pool() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Sum.java");
    let source = "import java.util.stream.*; public class Sum { public static void main(String[] a) { \
                  System.out.println(LongStream.range(0, 3000000).parallel().map(x -> x * x % 7).sum()); } }";
    std::fs::write(&file, source).unwrap();
    same(&["java", file.to_str().unwrap()]);
}

#[test]
fn perl_and_pipes_of_the_shell() {
    same(&[
        "sh",
        "-c",
        "seq 1000 | sort -r --parallel=3 | perl -ne '$s += $_; END { print \"$s\\n\" }'",
    ]);
}

#[test]
fn memory_allocators_of_the_users_own() {
    let folder = Path::new("/usr/lib/x86_64-linux-gnu");
    for name in [
        "libjemalloc.so.2",
        "libtcmalloc.so.4",
        "libtcmalloc_minimal.so.4",
    ] {
        let library = folder.join(name);
        if library.is_file() {
            let script = "import threading; [threading.Thread(target=lambda: bytes(10**6)).start() for _ in range(20)]";
            same_beside(std::slice::from_ref(&library), &["python3", "-c", script]);
            same_beside(
                &[library],
                &["sh", "-c", "seq 10000 | sort --parallel=4 | tail -1"],
            );
        } else {
            eprintln!("skipped: {name} is not installed");
        }
    }
}
