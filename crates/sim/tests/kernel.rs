//! The simulated scheduler, through what callers can do and read.

#![allow(
    clippy::unwrap_used,
    reason = "a panic is the failure that a test is for"
)]

#[path = "kernel/any_history.rs"]
mod any_history;
#[path = "kernel/balancing.rs"]
mod balancing;
#[path = "kernel/collapse.rs"]
mod collapse;
#[path = "kernel/fair.rs"]
mod fair;
#[path = "kernel/groups.rs"]
mod groups;
#[path = "kernel/machine.rs"]
mod machine;
#[path = "kernel/solaris.rs"]
mod solaris;
#[path = "kernel/support.rs"]
mod support;
#[path = "kernel/waiting.rs"]
mod waiting;
