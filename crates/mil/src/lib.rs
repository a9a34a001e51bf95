//! MIL.
