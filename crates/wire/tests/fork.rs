//! A forked child has no claim, and can still look at its parent's without a fault.
#![allow(clippy::unwrap_used, unsafe_code, reason = "tests")]

use corewise_wire::{ClaimReader, ClaimWriter};

#[test]
fn a_forked_child_sees_that_the_claim_is_not_its_own() {
    let (mut writer, file) = ClaimWriter::create(1).unwrap();
    let claim = ClaimReader::map(file).unwrap();
    writer.grant(5, [0]);
    assert!(claim.is_ours());
    // SAFETY: the child only reads memory and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = !claim.is_ours() && claim.granted().threads == 5;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: a child of ours that nobody else waits for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(claim.is_ours());
}
