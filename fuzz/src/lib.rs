//! What the targets share.

use corewise_decide::global::GlobalManager;
use corewise_decide::status::Claim;

/// Panics where a claim is not as programs may rely on it, whatever was done.
pub fn check_claims(manager: &GlobalManager) {
    let status = manager.status();
    let mut exclusive: Vec<&Claim> = Vec::new();
    let mut claims: Vec<&Claim> = Vec::new();
    for (id, program) in &status.programs {
        let Some(claim) = &program.claim else {
            panic!("{id} has no claim");
        };
        assert!(claim.threads >= program.wants.min_threads.max(1), "{id}");
        assert!(claim.cpus.is_subset(&status.machine.allowed), "{id}");
        let nowhere = claim.cpus.is_empty() && !status.machine.allowed.is_empty();
        assert!(!nowhere, "{id} has nowhere to run");
        for other in &exclusive {
            assert!(other.cpus.is_disjoint(&claim.cpus), "{id}: {other:?}");
        }
        if claim.exclusive {
            for other in &claims {
                assert!(other.cpus.is_disjoint(&claim.cpus), "{id}: {other:?}");
            }
            exclusive.push(claim);
        }
        claims.push(claim);
    }
}
