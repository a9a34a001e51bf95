//! The parts of the FlatBuffers format that programs use.
//!
//! A file begins with the offset of its root table. A table begins with the distance back to its vtable, which
//! says where in the table each field lies; fields are numbers in place, or offsets forward to strings, vectors
//! and other tables. Absent fields have a default.
//!
//! The usual crate is not used: its accessors trust what a verifier of a generated schema has seen, the verifier
//! knows nothing of tables that many offsets lead to, and fields beyond the schema are lost.

mod read;
mod write;

pub(crate) use read::{Bytes, Table};
pub(crate) use write::{Builder, Fields, Offset};
