//! The coremill command.
fn main() {}
