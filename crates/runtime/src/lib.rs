//! x
#![expect(dead_code, reason = "y")]
mod error;
mod kernels;
mod limits;
mod number;
mod view;
