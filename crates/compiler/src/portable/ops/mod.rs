//! The families of operators, each with a table of what becomes of its calls.

mod arithmetic;
mod cast;
mod shape;

use super::table::Row;

/// All tables.
pub(crate) const FAMILIES: &[&[Row]] = &[arithmetic::ROWS, cast::ROWS, shape::ROWS];
