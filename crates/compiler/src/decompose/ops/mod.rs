//! Operator families, each with a table of its rules.

mod activation;
mod arithmetic;
mod attention;
mod cast;
mod convolution;
mod creation;
mod einsum;
mod experts;
mod index;
mod join;
mod linear;
mod loss;
mod normalization;
mod order;
mod pooling;
mod random;
mod recurrent;
mod reduction;
mod resize;
mod scalars;
mod shape;
mod special;
mod vision;

pub(crate) use self::arithmetic::largest;
pub(crate) use self::convolution::{Convolution, plane as convolution};
pub(crate) use self::join::padded;
pub(crate) use self::shape::in_parts;
use super::row::Row;

/// The tables of all families.
pub(crate) const FAMILIES: &[&[Row]] = &[
    activation::ROWS,
    arithmetic::ROWS,
    attention::ROWS,
    cast::ROWS,
    convolution::ROWS,
    creation::ROWS,
    experts::ROWS,
    index::ROWS,
    join::ROWS,
    linear::ROWS,
    loss::ROWS,
    normalization::ROWS,
    order::ROWS,
    pooling::ROWS,
    random::ROWS,
    recurrent::ROWS,
    reduction::ROWS,
    resize::ROWS,
    scalars::ROWS,
    shape::ROWS,
    special::ROWS,
    vision::ROWS,
];
