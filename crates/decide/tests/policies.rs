//! What each built-in policy does, by scenario.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "policies/automax.rs"]
mod automax;
#[path = "policies/balanced.rs"]
mod balanced;
#[path = "policies/combined.rs"]
mod combined;
#[path = "policies/fcfs.rs"]
mod fcfs;
#[path = "policies/hardware.rs"]
mod hardware;
mod support;
