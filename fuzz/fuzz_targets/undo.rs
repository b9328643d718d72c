//! Undo logs with anything in them. Reading one puts settings back, so this refuses to run as root: as
//! somebody who owns no process but itself, it can change nothing.
//!
//! With and without the first line that this boot and PID namespace would have: without it nothing after
//! it counts.
#![no_main]

use corewise_machine::undo::restore_abandoned;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if rustix::process::geteuid().is_root() {
            eprintln!("not as root: undo logs are obeyed. See CONTRIBUTING.md");
            std::process::exit(1);
        }
        let kept = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        kept.unwrap().keep()
    })
}

fn first_line() -> &'static str {
    static LINE: OnceLock<String> = OnceLock::new();
    LINE.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
        format!(
            "{{\"log\":{{\"version\":1,\"boot\":\"{}\",\"pid_namespace\":\"{}\",\"owner\":\"fuzz\",\
             \"pid\":1,\"start_time\":1}}}}\n",
            boot.trim(),
            namespace.display()
        )
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let with_first_line = first % 2 == 1;
    let log = folder().join("1-1.jsonl");
    let mut text = Vec::new();
    if with_first_line {
        text.extend(first_line().as_bytes());
    }
    text.extend(bytes);
    std::fs::write(&log, &text).unwrap();
    let report = restore_abandoned(folder());
    assert_eq!(report.restored + report.inherited, 0, "{report:?}");
    assert_eq!(report.logs_removed + report.logs_kept, 1, "{report:?}");
    let _ = std::fs::remove_file(&log);
});
