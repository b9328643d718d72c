//! What `corewise status` is told.

use corewise_abi::message::ToProgram;
use corewise_decide::global::GlobalManager;
use corewise_decide::status::{Program, ProgramId};
use serde_json::{Value, json};

/// Bytes of an answer in one packet: a message has room for 8,192 with its own few.
const PART_BYTES: usize = 8000;

/// The status as JSON, without what the world adds of its own.
pub(crate) fn json(manager: &GlobalManager) -> Value {
    let status = manager.status();
    json!({
        "policy": manager.policy().name(),
        "programs": status.programs.iter().map(program).collect::<Vec<_>>(),
        "machine": {
            "allowed": status.machine.allowed,
            "capacity": status.machine.capacity,
        },
        "load": status.load,
        "time_ns": status.time_ns,
        "next_reading_ns": manager.next_reading_ns(),
    })
}

fn program((id, program): (&ProgramId, &Program)) -> Value {
    json!({
        "program": id,
        "pid": program.pid,
        "name": program.name,
        "claim": program.claim,
        "wants": program.wants,
        "threads": program.threads,
        "could_use": program.could_use,
        "blocked": program.blocked,
        "uses": program.uses,
        "progress_rate": program.progress_rate,
        "overridden": program.overridden,
        "joined_ns": program.joined_ns,
    })
}

/// An answer in parts that fit into messages.
pub(crate) fn parts(answer: &Value) -> Vec<ToProgram> {
    let bytes = answer.to_string().into_bytes();
    let count = bytes.len().div_ceil(PART_BYTES);
    let parts = bytes.chunks(PART_BYTES).enumerate();
    parts
        .map(|(index, part)| ToProgram::Part {
            more: index + 1 < count,
            bytes: part.to_vec(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_abi::message::encode;

    #[test]
    fn a_long_answer_comes_in_parts_that_fit() {
        let answer = Value::String("x".repeat(20_000));
        let parts = parts(&answer);
        assert_eq!(parts.len(), 3);
        let mut whole = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            assert!(encode(part).is_ok());
            let ToProgram::Part { more, bytes } = part else {
                panic!("{part:?}");
            };
            assert_eq!(*more, index < 2);
            whole.extend(bytes);
        }
        assert_eq!(serde_json::from_slice::<Value>(&whole).unwrap(), answer);
    }
}
