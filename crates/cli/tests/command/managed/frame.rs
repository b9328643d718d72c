//! Programs that run until they are told to end, and what is seen of them and of their manager.
use crate::common::{Place, gate, json, stderr};
use corewise_wire::Channel;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

/// Longer than anything takes here, however busy the machine is.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something; panics with `what` was waited for otherwise.
pub(super) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that is ended when its test is over, whatever became of that.
pub(super) struct Running {
    pub(super) child: Child,
    gate: PathBuf,
    output: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program, wherever it is by now, ends by itself.
        let _ = std::fs::write(&self.gate, "");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// `corewise run` of a program of two threads that runs until [`open`](Running::open); before it
    /// come the words of `launcher`.
    pub(super) fn start(place: &Place, name: &str, launcher: &[&str], options: &[&str]) -> Running {
        let gate_file = place.path().join(format!("{name}.gate"));
        let output = place.path().join(format!("{name}.out"));
        let mut args = vec!["run", "--summary", "summary.json"];
        args.extend(options);
        let program = gate().to_str().unwrap();
        let path = gate_file.to_str().unwrap();
        args.extend(["--", program, path, "child"]);
        let child = place
            .command_under(launcher, &args)
            // A fixed number: nothing is probed.
            .env("OMP_NUM_THREADS", "2")
            .stdout(std::fs::File::create(&output).unwrap())
            .stderr(std::fs::File::create(place.path().join(format!("{name}.err"))).unwrap())
            .spawn()
            .unwrap();
        Running {
            child,
            gate: gate_file,
            output,
        }
    }

    /// Lets the program end.
    pub(super) fn open(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }

    /// Lets the program end, and waits for `corewise run`.
    pub(super) fn ends_well(mut self) {
        self.open();
        let status = until("the end of corewise run", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        assert_eq!(self.printed(), "3\n");
    }

    pub(super) fn printed(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }
}

pub(super) fn status(place: &Place) -> Value {
    let output = place.corewise(&["status", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    json(&output)
}

/// The managed programs once there are `count` of them with claims.
pub(super) fn programs(place: &Place, count: usize) -> Vec<Value> {
    until("programs with claims", || {
        let all = status(place)["programs"].as_array().unwrap().clone();
        let granted = |p: &&Value| p["claim"]["threads"].as_u64().is_some();
        (all.iter().filter(granted).count() == count).then_some(all)
    })
}

pub(super) fn pid_of(program: &Value) -> i32 {
    i32::try_from(program["pid"].as_i64().unwrap()).unwrap()
}

/// The manager's process.
pub(super) fn manager(place: &Place) -> Option<i32> {
    let socket = place.runtime().join("manager.sock");
    Some(Channel::connect(&socket).ok()?.peer().unwrap().pid)
}

pub(super) fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// The CPUs of every thread of a process and of its children.
pub(super) fn affinities(pid: i32) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name));
        let status = read("status").unwrap_or_default();
        let cpus = status
            .lines()
            .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        found.extend(cpus.map(|cpus| cpus.trim().to_owned()));
        for child in read("children").unwrap_or_default().split_whitespace() {
            found.extend(affinities(child.parse().unwrap()));
        }
    }
    found
}

/// Waits until every thread of the program has just these CPUs.
pub(super) fn all_on(pid: i32, cpus: &str) {
    let wanted = BTreeSet::from([cpus.to_owned()]);
    until(&format!("all threads on CPUs {cpus}"), || {
        (affinities(pid) == wanted).then_some(())
    });
}

/// The CPUs of this test, ascending, and as the kernel writes them.
pub(super) fn own_cpus() -> (Vec<u32>, String) {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let list = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    let list = list.unwrap().trim().to_owned();
    (corewise_machine::cpu_list::parse(&list).unwrap(), list)
}

pub(super) fn two_cpus_or_skip() -> Option<(u32, u32, String)> {
    let (cpus, list) = own_cpus();
    if let [first, .., last] = cpus[..] {
        return Some((first, last, list));
    }
    eprintln!("skipped: one CPU");
    None
}

/// Gives a program one CPU, by hand.
pub(super) fn confine(place: &Place, pid: i32, cpu: u32) {
    let (pid, cpu) = (pid.to_string(), cpu.to_string());
    let output = place.corewise(&["claim", &pid, "--cpus", &cpu]);
    assert!(output.status.success(), "{}", stderr(&output));
}

pub(super) fn summary(place: &Place) -> Value {
    let text = std::fs::read_to_string(place.path().join("summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The parent of a process; `None` if it is gone.
pub(super) fn parent_of(pid: i32) -> Option<i64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}
