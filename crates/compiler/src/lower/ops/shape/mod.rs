//! Operations that move elements without computing: reshapes, permutations, slices, padding and writes.

use crate::lower::prelude::*;

mod diagonal;
mod expand;
mod join;
mod pad;
mod permute;
mod reshape;
mod slice;
mod window;
mod write;

pub(super) const ROWS: &[&[Row]] = &[
    diagonal::ROWS,
    expand::ROWS,
    join::ROWS,
    pad::ROWS,
    permute::ROWS,
    reshape::ROWS,
    slice::ROWS,
    window::ROWS,
    write::ROWS,
];
