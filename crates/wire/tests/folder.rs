//! The runtime folder is only used if nobody else can have put anything into it.
#![allow(clippy::unwrap_used, reason = "tests")]

use corewise_wire::{Error, Folder, System};
use std::os::unix::fs::{PermissionsExt, symlink};

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_folder_is_made_for_its_user_alone() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    let folder = Folder::at(&path).unwrap();
    assert_eq!(mode(&path), 0o700);
    assert_eq!(folder.path(), path);
    assert_eq!(folder.socket(), path.join("manager.sock"));
    assert_eq!(Folder::at(&path).unwrap(), folder);
}

#[test]
fn a_symbolic_link_is_refused_even_to_a_good_folder() {
    let parent = tempfile::tempdir().unwrap();
    let real = parent.path().join("real");
    Folder::at(&real).unwrap();
    let link = parent.path().join("link");
    symlink(&real, &link).unwrap();
    let error = Folder::at(&link).unwrap_err();
    assert!(matches!(error, Error::Folder { .. }), "{error}");
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("open");
    std::fs::create_dir(&path).unwrap();
    for bad in [0o777, 0o770, 0o1777] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(bad)).unwrap();
        assert!(Folder::at(&path).is_err(), "{bad:o}");
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o711)).unwrap();
    assert!(Folder::at(&path).is_ok());
}

#[test]
fn a_folder_of_another_user_is_refused() {
    // As root, a folder given away; as a user, root's.
    let parent = tempfile::tempdir().unwrap();
    let given = parent.path().join("given");
    std::fs::create_dir(&given).unwrap();
    let path = match std::os::unix::fs::chown(&given, Some(12_345), None) {
        Ok(()) => given,
        Err(_) => "/proc".into(),
    };
    let error = Folder::at(path).unwrap_err().to_string();
    assert!(error.contains("belongs to user"), "{error}");
}

#[test]
fn a_file_is_no_folder_and_a_missing_parent_is_not_made() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(Folder::at(&file).is_err());
    assert!(Folder::at(parent.path().join("a/b")).is_err());
}

#[test]
fn the_systems_folder_is_roots_alone_to_write_and_may_come_and_go() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("system");
    let system = System::at(&path);
    assert_eq!(system.folder(), None, "it is not there");
    let folder = Folder::at(&path).unwrap();
    assert!(system.is_at(&folder));
    folder.let_everyone_in().unwrap();
    assert_eq!(mode(&path), 0o711);
    let root = rustix::process::geteuid().is_root();
    assert_eq!(system.folder().is_some(), root, "only root's is one");
    let link = parent.path().join("link");
    symlink(&path, &link).unwrap();
    assert_eq!(System::at(&link).folder(), None, "a link is none");
    assert!(System::at(&link).is_at(&folder), "but it leads there");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(system.folder(), None, "others may write");
    if root {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o711)).unwrap();
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        assert_eq!(system.folder(), None, "another user's");
    }
}

#[test]
fn another_folder_is_not_the_systems() {
    let parent = tempfile::tempdir().unwrap();
    let own = Folder::at(parent.path().join("own")).unwrap();
    let system = System::at(parent.path().join("system"));
    assert!(!system.is_at(&own));
    Folder::at(parent.path().join("system")).unwrap();
    assert!(!system.is_at(&own));
}
