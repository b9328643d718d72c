//! Journals with anything in them: read, replayed to a manager, and rehearsed with a script, as `corewise
//! policy check --readings` does.
#![no_main]

use corewise_decide::policy::script::{ScriptPolicy, rehearse};
use corewise_fuzz::check_claims;
use corewise_manager::recorded;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

const SCRIPT: &str = include_str!("../../experiments/policies/automax.rhai");

fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let kept = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        kept.unwrap().keep().join("journal.jsonl")
    })
}

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(file(), bytes).unwrap();
    let Ok(read) = recorded(file()) else { return };
    if let Ok(mut manager) = read.manager() {
        let known = manager.known().status;
        for entry in &read.entries {
            manager.on(entry.time_ns, &entry.input);
            // What a made-up beginning claims is not ours to answer for.
            if known.programs.is_empty() {
                check_claims(&manager);
            }
        }
    }
    let mut history = Vec::new();
    history.extend(read.header.known.iter().flat_map(|known| known.history()));
    history.extend(read.entries);
    let policy = ScriptPolicy::new(SCRIPT, "automax.rhai").unwrap();
    rehearse(policy, history);
});
