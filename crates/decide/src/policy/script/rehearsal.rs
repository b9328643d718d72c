//! Trying a policy: a recorded history is played to it, and what it would have ordered is kept.

use super::{Report, ScriptPolicy};
use crate::global::GlobalManager;
use crate::policy::Policy;
use crate::status::{Request, Status};
use crate::world::{Entry, Input, Output};
use std::sync::PoisonError;

/// Answers to requests that one recorded input may lead to.
const MOST_ANSWERS: usize = 1_024;

/// What a policy did in a recorded history.
#[derive(Clone, Debug, PartialEq)]
pub struct Rehearsal {
    /// Each input and what was decided on it, in order.
    pub entries: Vec<Entry>,
    /// What the script took and where it failed.
    pub report: Report,
}

/// Plays recorded inputs to a policy, through the same checks as in a manager.
///
/// The programs of the history cannot answer what this policy asks and the recorded one did not, so
/// they are stood in for: one that is malleable expands while it has fewer threads than its maximum,
/// and shrinks while it has more than its minimum; one that is not does neither. Recorded answers are
/// left out. Readings are as they were recorded, whatever the policy decides.
pub fn rehearse(policy: ScriptPolicy, history: impl IntoIterator<Item = Entry>) -> Rehearsal {
    let report = policy.report();
    let entries = played(Box::new(policy), history);
    let report = report.lock().unwrap_or_else(PoisonError::into_inner);
    Rehearsal {
        entries,
        report: report.clone(),
    }
}

/// The same for any policy, of which nothing is reported.
pub fn played(policy: Box<dyn Policy>, history: impl IntoIterator<Item = Entry>) -> Vec<Entry> {
    let mut manager = GlobalManager::new(policy);
    let mut entries = Vec::new();
    for recorded in history {
        // Another policy's start is no event for this one.
        if matches!(recorded.input, Input::Answered { .. } | Input::Policy(_)) {
            continue;
        }
        let mut inputs = std::collections::VecDeque::from([recorded.input]);
        let mut answers = 0;
        while let Some(input) = inputs.pop_front() {
            let outputs = manager.on(recorded.time_ns, &input);
            for output in &outputs {
                if answers < MOST_ANSWERS {
                    let answer = answer(manager.status(), output);
                    answers += usize::from(answer.is_some());
                    inputs.extend(answer);
                }
            }
            entries.push(Entry {
                time_ns: recorded.time_ns,
                input,
                outputs,
            });
        }
    }
    entries
}

fn answer(status: &Status, output: &Output) -> Option<Input> {
    let Output::Tell {
        program,
        request,
        what,
        ..
    } = output
    else {
        return None;
    };
    let known = status.programs.get(program)?;
    let threads = known.claim.as_ref().map_or(0, |c| c.threads);
    let can = match what {
        Request::Expand => threads < known.wants.max_threads,
        Request::Shrink => threads > known.wants.min_threads,
    };
    Some(Input::Answered {
        program: *program,
        request: *request,
        yes: known.wants.malleable && can,
    })
}
