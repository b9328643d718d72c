//! Probes change files of their own view only.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{Who, corewise, open_folder, own_program, probe, snapshot, who_can};

#[test]
fn helper() {
    common::helper_main();
}

fn play_inside(part: &str, _: &str) {
    panic!("unknown part {part}");
}

/// A folder with files and folders that belong to whom runs the probe.
fn prepared(who: Who) -> tempfile::TempDir {
    let folder = open_folder();
    let made = helper_shell(
        who,
        folder.path(),
        "umask 022; for f in a b c d; do echo old-$f > $f; done; mkdir -p sub/deep; echo x > sub/deep/x",
    );
    assert!(made);
    folder
}

/// Runs a script as `who` without any sandbox.
fn helper_shell(who: Who, folder: &Path, script: &str) -> bool {
    corewise("run", script, who)
        .current_dir(folder)
        .status()
        .unwrap()
        .success()
}

/// Runs a script that must succeed in the probe and change nothing in the folder.
fn harmless(script: &str) {
    for who in who_can() {
        let folder = prepared(who);
        let before = snapshot(folder.path());
        let ran = probe(who, folder.path(), script);
        assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
        assert_eq!(snapshot(folder.path()), before, "{who:?}");
    }
}

#[test]
fn a_file_overwritten_in_place_is_as_before() {
    harmless("echo new > a && test \"$(cat a)\" = new");
}

#[test]
fn a_deleted_file_is_still_there() {
    harmless("rm b && test ! -e b && echo again > b");
}

#[test]
fn a_file_appended_to_is_as_before() {
    harmless("echo more >> c && test \"$(wc -l < c)\" -eq 2");
}

#[test]
fn a_renamed_file_has_its_name() {
    harmless("mv d e && test -e e && test ! -e d && mv a sub/a");
}

#[test]
fn a_renamed_folder_has_its_name() {
    harmless("mv sub other && test \"$(cat other/deep/x)\" = x && rm -r other");
}

#[test]
fn new_files_and_folders_are_gone() {
    harmless(
        "mkdir -p new/er && echo x > new/er/x && echo y > sub/deep/y && ln -s a link && ln b hard",
    );
}

#[test]
fn changed_modes_and_times_are_as_before() {
    harmless("chmod 777 a && touch -d '2001-01-01' b && chmod 700 sub");
}

#[test]
fn a_file_truncated_through_a_shared_mapping_of_dd_is_as_before() {
    harmless("dd if=/dev/zero of=a bs=1 count=3 conv=notrunc && truncate -s 0 b");
}

#[test]
fn places_for_temporary_files_can_be_written_and_stay_clean() {
    for who in who_can() {
        let name = format!("corewise-test-{}-{who:?}", std::process::id());
        let places = ["/tmp", "/var/tmp", "/dev/shm"];
        let script = places
            .map(|p| format!("echo x > {p}/{name} && test -s {p}/{name}"))
            .join(" && ");
        let ran = probe(who, Path::new("/"), &script);
        assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
        for place in places {
            assert!(!Path::new(place).join(&name).exists(), "{who:?} {place}");
        }
    }
}

#[test]
fn every_other_mounted_file_system_is_copy_on_write_too() {
    let mut trial = std::process::Command::new("unshare");
    if !trial.args(["-m", "true"]).status().unwrap().success() {
        eprintln!("skipped: nothing may be mounted here");
        return;
    }
    for who in who_can() {
        let folder = open_folder();
        let (user, owner) = match who {
            Who::Me => ("", "0:0"),
            Who::Nobody => (
                "setpriv --reuid 65534 --regid 65534 --clear-groups",
                "65534:65534",
            ),
        };
        // A file system in memory, another below it, a file bound over a file, a name with the
        // characters that overlayfs takes for separators.
        let script = format!(
            "set -e; mkdir mnt 'o:d,d'; mount -t tmpfs -o mode=777 one mnt; mkdir -m 777 mnt/two
             mount -t tmpfs -o mode=777 two mnt/two; mount -t tmpfs -o mode=777 odd 'o:d,d'
             echo old > mnt/f; echo old > mnt/two/f; echo old > 'o:d,d/f'; chown {owner} mnt/f mnt/two/f o*/f
             echo bound > file; echo under > over; mount --bind file over
             before=$(cat mnt/f mnt/two/f o*/f over)
             HELPER_SCRIPT='set -e; for f in mnt/f mnt/two/f o*/f; do echo new > \"$f\"; done
                 echo x > mnt/new; echo x > mnt/two/new; test \"$(cat over)\" = bound' \
             HELPER_PART=probe {user} {} --exact helper --nocapture
             test \"$before\" = \"$(cat mnt/f mnt/two/f o*/f over)\"
             test ! -e mnt/new; test ! -e mnt/two/new",
            own_program().display()
        );
        let output = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{who:?}: {stderr}");
    }
}

#[test]
fn each_probe_starts_from_the_same_state() {
    for who in who_can() {
        let folder = prepared(who);
        for _ in 0..2 {
            let ran = probe(who, folder.path(), "test ! -e mark && echo x > mark");
            assert_eq!(ran.code, 0, "{who:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn the_view_has_the_same_files_modes_and_folder() {
    for who in who_can() {
        let folder = prepared(who);
        let script = "pwd; umask; ulimit -n; nice; stat -c '%a %s %Y' a sub/deep/x /etc/passwd; stat -c %a /tmp . sub";
        let ran = probe(who, folder.path(), &format!("({script}) >&2"));
        let outside = corewise("run", &format!("({script}) >&2"), who)
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(
            ran.stderr,
            String::from_utf8_lossy(&outside.stderr),
            "{who:?}"
        );
    }
}
