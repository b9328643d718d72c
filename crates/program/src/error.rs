//! What can go wrong. Joining and claims cannot: a program that cannot be managed runs unmanaged.

use std::io;

/// Why memory did not follow the claim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The kernel or its sandbox does not let this process move its pages.
    #[error(
        "this process may not move its memory between NUMA nodes ({0}); give it CAP_SYS_NICE or a cpuset with those nodes"
    )]
    NotAllowed(io::Error),
    /// The kernel cannot move pages.
    #[error("this kernel cannot move memory between NUMA nodes ({0}); it needs CONFIG_MIGRATION")]
    NotSupported(io::Error),
    /// The machine's NUMA nodes cannot be read.
    #[error("cannot read the machine's NUMA nodes from {path}: {source}")]
    Nodes {
        /// Which file.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// Moving failed otherwise.
    #[error("cannot move this process's memory: {0}")]
    System(io::Error),
}
