//! The subset of the FlatBuffers format that programs use.
//!
//! A file starts with the offset of its root table. A table starts with the backward offset to its vtable, which
//! contains the offsets of its fields. Fields are numbers in place, or forward offsets to strings, vectors and other
//! tables. Absent fields have a default.
//!
//! The `flatbuffers` crate is not used: its accessors trust its verifier, which does not account for tables that are
//! referenced many times, and it drops unknown fields.

mod read;
mod write;

pub(crate) use read::{Bytes, Table};
pub(crate) use write::{Builder, Fields, Offset};
