//! How it is known for how long a program's threads are blocked in locks.

use corewise_machine::Root;
use corewise_machine::sensors::sensors;
use corewise_wire::LocksReader;
use corewise_wire::abi::locks::{Kind, Waited};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// Adds to each program of a status how blocked time is known: by the `adapter` that counts it now, with what it
/// has counted; else how a probe of the program would read it: by the kernel's `tracepoints`, by `samples`, or
/// `not`.
pub(crate) fn tell(status: &mut Value) {
    let Some(programs) = status["programs"].as_array_mut() else {
        return;
    };
    let otherwise = match programs.is_empty() {
        true => "not",
        false => without_adapter(),
    };
    for program in programs {
        program["blocked_time"] = counted(program).unwrap_or_else(|| json!({"by": otherwise}));
    }
}

/// What the adapter has counted, if it does.
fn counted(program: &Value) -> Option<Value> {
    let pid = i32::try_from(program["pid"].as_i64()?).ok()?;
    let page = LocksReader::of_process(pid)?;
    if !page.is_loaded() || page.counting().load(Ordering::Relaxed) == 0 {
        return None;
    }
    let totals = Kind::ALL.map(|kind| page.total(kind));
    let all: Waited = totals.into_iter().sum();
    Some(json!({
        "by": "adapter",
        "seconds": all.ns as f64 / 1e9,
        "waits": all.waits,
        "blocked_now": page.blocked_now(),
    }))
}

fn without_adapter() -> &'static str {
    let sensors = sensors(&Root::system());
    let available = |name: &str| sensors.iter().any(|s| s.name == name && s.available);
    if available("lock-time") {
        "tracepoints"
    } else if available("lock-time-sampled") {
        "samples"
    } else {
        "not"
    }
}
