//! MIL to MIL: what makes a lowered program small and fast.

pub(crate) mod dead;
