//! What `corewise status` is told.

use crate::connection::Managed;
use crate::world::LinuxWorld;
use corewise_abi::message::ToProgram;
use corewise_decide::global::GlobalManager;
use corewise_decide::status::{Program, ProgramId};
use serde_json::{Value, json};

/// Bytes of an answer in one packet: a message has room for 8,192 with its own few.
const PART_BYTES: usize = 8000;

impl LinuxWorld<'_> {
    /// The status as a connection's peer may see it: root, and the manager's own user, all of it; others
    /// their own programs, and nothing of what was done for anybody else.
    pub(crate) fn status_for(&self, connection: u64, manager: &GlobalManager) -> Value {
        let peer = self.connections.get(&connection).map(|c| c.peer.uid);
        let sees_all = peer.is_some_and(|uid| uid == 0 || uid == self.uid);
        let mut answer = json(manager, |id| {
            let managed = self.programs.get(id)?;
            (sees_all || peer == Some(managed.uid)).then_some(managed)
        });
        answer["outer"] = self.outer.json(self.machine.outer());
        answer["manager"] = json!({
            "pid": std::process::id(),
            "user": self.uid,
            "version": env!("CARGO_PKG_VERSION"),
            "on_demand": self.options.on_demand,
        });
        if !sees_all {
            return answer;
        }
        let (failures, last_failure) = self.journal.failures();
        answer["policy_error"] = json!(self.policy.failure());
        answer["journal"] = json!({
            "path": self.options.folder.journal(),
            "failures": failures,
            "last_failure": last_failure,
        });
        answer["undo"] = json!({
            "to_be_put_back": self.settings.len(),
            "found": self.settings.found,
        });
        answer["manager"]["connections"] = json!(self.connections.len());
        answer
    }
}

/// The status as JSON, without what the world adds of its own. `managed` gives what this
/// world knows of a program, if it is to be told at all.
fn json<'a>(manager: &GlobalManager, managed: impl Fn(&ProgramId) -> Option<&'a Managed>) -> Value {
    let status = manager.status();
    let programs = status.programs.iter();
    let programs = programs.filter_map(|(id, known)| {
        let mut told = program((id, known));
        let managed = managed(id)?;
        told["user"] = json!(managed.uid);
        let follows = managed.follows.as_ref();
        told["follows"] = json!(follows.map(|f| &f.runtimes));
        told["stay"] = json!(follows.map(|f| &f.stay));
        told["gang"] = json!(manager.gang(*id));
        told["waits"] = json!(known.waits);
        told["turn"] = json!(manager.turn(*id).map(|turn| json!({
            "runs_ns": turn.runs_ns(),
            "period_ns": turn.period_ns,
        })));
        told["turns_by"] = json!(managed.turns_by);
        told["place"] = json!(manager.place(*id));
        Some(told)
    });
    json!({
        "policy": manager.policy().name(),
        "programs": programs.collect::<Vec<_>>(),
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
