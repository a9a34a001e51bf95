//! One module a command, each with its arguments and `run`.

pub(crate) mod completions;
pub(crate) mod ops;
