//! Lowerings, one file per operator family.

mod activation;
mod adaptive;
mod arithmetic;
mod attention;
mod bitwise;
mod cast;
mod comparison;
mod control_flow;
mod convolution;
mod creation;
mod divisors;
mod index;
mod inverse;
mod linear;
mod normalization;
mod operand;
mod pooling;
mod quantization;
mod random;
mod recurrent;
mod reduction;
mod resize;
mod sampling;
mod scan;
mod shape;
mod softmax;
mod sorting;
mod statistics;
mod symbolic;
mod unary;
mod vision;

use super::row::Row;

/// Families with several files.
pub(crate) const GROUPS: &[&[&[Row]]] = &[index::ROWS, shape::ROWS];

/// All other families.
pub(crate) const FAMILIES: &[&[Row]] = &[
    activation::ROWS,
    adaptive::ROWS,
    arithmetic::ROWS,
    attention::ROWS,
    bitwise::ROWS,
    cast::ROWS,
    comparison::ROWS,
    control_flow::ROWS,
    convolution::ROWS,
    creation::ROWS,
    divisors::ROWS,
    inverse::ROWS,
    linear::ROWS,
    normalization::ROWS,
    pooling::ROWS,
    quantization::ROWS,
    random::ROWS,
    recurrent::ROWS,
    reduction::ROWS,
    resize::ROWS,
    sampling::ROWS,
    scan::ROWS,
    softmax::ROWS,
    sorting::ROWS,
    statistics::ROWS,
    symbolic::ROWS,
    unary::ROWS,
    vision::ROWS,
];
