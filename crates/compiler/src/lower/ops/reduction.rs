//! Reductions.

use crate::lower::table::Row;

pub(crate) const ROWS: &[Row] = &[];
