//! (being built)

fn main() {}
