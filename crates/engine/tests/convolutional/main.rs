//! Tests that plans have the expected steps, with convolutions in channels-last layout, and compute
//! the same results as the single operations.

mod caches;
mod check;

mod convolutions;
mod layouts;
mod pools;
