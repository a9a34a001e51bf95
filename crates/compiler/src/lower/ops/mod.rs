//! The lowerings, a file for each family of operators.

mod activation;
mod adaptive;
mod attention;
mod contraction;
mod convolution;
mod elementwise;
mod index;
mod linear;
mod normalization;
mod pooling;
mod recurrent;
mod reduction;
mod resize;
mod sampling;
mod shape;
mod symbolic;

pub(crate) use self::shape::{expanded, to_sizes};
use super::table::Row;

/// Families whose rows stand in several files.
pub(crate) const GROUPS: &[&[&[Row]]] = &[index::ROWS, shape::ROWS];

/// Every other family's rows.
pub(crate) const FAMILIES: &[&[Row]] = &[
    activation::ROWS,
    adaptive::ROWS,
    attention::ROWS,
    contraction::ROWS,
    convolution::ROWS,
    elementwise::ROWS,
    linear::ROWS,
    normalization::ROWS,
    pooling::ROWS,
    recurrent::ROWS,
    reduction::ROWS,
    resize::ROWS,
    sampling::ROWS,
    symbolic::ROWS,
];
