//! The lowerings, a file for each family of operators.

mod activation;
mod adaptive;
mod arithmetic;
mod attention;
mod bitwise;
mod cast;
mod comparison;
mod complex;
mod contraction;
mod convolution;
mod index;
mod linear;
mod normalization;
mod operand;
mod pooling;
mod recurrent;
mod reduction;
mod resize;
mod sampling;
mod shape;
mod softmax;
mod symbolic;
mod unary;

pub(crate) use self::shape::{expanded, to_sizes};
use super::table::Row;

/// Families whose rows stand in several files.
pub(crate) const GROUPS: &[&[&[Row]]] = &[index::ROWS, shape::ROWS];

/// Every other family's rows.
pub(crate) const FAMILIES: &[&[Row]] = &[
    activation::ROWS,
    adaptive::ROWS,
    arithmetic::ROWS,
    attention::ROWS,
    bitwise::ROWS,
    cast::ROWS,
    comparison::ROWS,
    complex::ROWS,
    contraction::ROWS,
    convolution::ROWS,
    linear::ROWS,
    normalization::ROWS,
    pooling::ROWS,
    recurrent::ROWS,
    reduction::ROWS,
    resize::ROWS,
    sampling::ROWS,
    softmax::ROWS,
    symbolic::ROWS,
    unary::ROWS,
];
