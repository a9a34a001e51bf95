//! The lowerings, a file for each family of operators.

mod activation;
mod adaptive;
mod attention;
mod convolution;
mod elementwise;
mod linear;
mod normalization;
mod pooling;
mod reduction;
mod resize;
mod sampling;
mod shape;

use super::table::Row;

/// Every family's rows.
pub(crate) const FAMILIES: &[&[Row]] = &[
    activation::ROWS,
    adaptive::ROWS,
    attention::ROWS,
    convolution::ROWS,
    elementwise::ROWS,
    linear::ROWS,
    normalization::ROWS,
    pooling::ROWS,
    reduction::ROWS,
    resize::ROWS,
    sampling::ROWS,
    shape::ROWS,
];
