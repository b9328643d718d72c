//! How much memory a script can take. On its own, because it looks at the whole process.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

use corewise_decide::policy::script::ScriptPolicy;
use corewise_decide::policy::{Event, Orders, Policy as _};
use corewise_decide::status::{Machine, Status};

/// Mebibytes of memory that the process has had at most.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024
}

/// The largest value that the limits let through, in as many variables and calls as they let.
const LARGEST: &str = r#"
fn largest() {
    let map = #{};
    let name = "";
    name.pad(60, "n");
    for n in 0..400 { map[name + n] = n; }
    let list = [];
    for n in 0..2000 { list.push([]); }
    map.list = list;
    map
}
fn fill(v, level) {
    let a = v; let b = v; let c = v; let d = v; let e = v; let f = v; let g = v; let h = v;
    let i = v; let j = v; let k = v; let l = v; let m = v; let n = v; let o = v; let p = v;
    let q = v; let r = v; let s = v; let t = v;
    if level > 0 { fill(v, level - 1); }
}
fn on_readings() { fill(largest(), 5); }
"#;

/// Others that try to have more than that; each fails.
const BOMBS: [&str; 6] = [
    "let big = []; big.pad(2000, 0); let all = []; loop { all.push(big); }",
    "let big = []; big.pad(2000, 0); let all = #{}; let n = 0; loop { all[`${n}`] = big; n += 1; }",
    "let big = []; big.pad(2000, 0); let all = #{of: #{}}; let n = 0; loop { all.of[`${n}`] = big; n += 1; }",
    "let a = [0, 0]; loop { let b = a; a[0] = b; a[1] = b; }",
    "let a = [0, 0]; loop { try { let b = a; a[0] = b; a[1] = b; } catch { } }",
    "let big = []; big.pad(2000, 0); state.n = 0; loop { state[`${state.n}`] = big; state.n += 1; }",
];

#[test]
fn the_worst_scripts_stay_below_128_mib() {
    let status = Status {
        machine: Machine::flat(4),
        ..Status::default()
    };
    let before = peak_mib();
    let mut policy = ScriptPolicy::new(LARGEST, "largest.rhai").unwrap();
    policy.on(&Event::Readings, &status, &mut Orders::default());
    assert_eq!(policy.report().lock().unwrap().failures, []);
    let took = peak_mib() - before;
    assert!((8..128).contains(&took), "took {took} MiB");
    for bomb in BOMBS {
        let text = format!("fn on_readings() {{ {bomb} }}");
        let mut policy = ScriptPolicy::new(&text, "bomb.rhai").unwrap();
        for _ in 0..3 {
            policy.on(&Event::Readings, &status, &mut Orders::default());
        }
        assert_eq!(policy.report().lock().unwrap().failures.len(), 3, "{bomb}");
        let took = peak_mib() - before;
        assert!(took < 128, "took {took} MiB: {bomb}");
    }
}
