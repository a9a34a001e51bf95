//! One module a command, each with its arguments and `run`.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod inspect;
pub(crate) mod ops;
pub(crate) mod pack;
pub(crate) mod text;
