//! What there is where Core ML is not: `Device::check` has refused its devices before.

use std::path::PathBuf;
use std::sync::Arc;

use coremill_coreml::{ComputeUnits, availability};
use coremill_mil::verify::Verified;
use coremill_runtime::Backend;

use super::Machine;
use crate::error::{Error, Result};

/// Refuses a model.
pub(crate) fn load(
    _verified: &Verified<'_>,
    _compute_units: ComputeUnits,
    _cache: Option<&PathBuf>,
) -> Result<Box<dyn Machine>> {
    Err(refused())
}

/// Refuses what a program delegates.
pub(super) fn backend() -> Result<Arc<dyn Backend>> {
    Err(refused())
}

fn refused() -> Error {
    availability().expect_err("there is no Core ML").into()
}
