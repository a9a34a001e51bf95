//! Core ML on systems that lack it: every model is refused.

use std::sync::Arc;

use coremill_coreml::availability;
use coremill_mil::verify::Verified;

use crate::backend::{Backend, Executable};
use crate::error::{Error, Result};
use crate::options::RunOptions;

/// Runs models on Core ML's devices.
pub struct CoreMlBackend;

impl Backend<&Verified<'_>> for CoreMlBackend {
    fn prepare(&self, _model: &Verified<'_>, _options: &RunOptions) -> Result<Arc<dyn Executable>> {
        Err(refused())
    }
}

/// Refuses what an ExecuTorch program delegates.
pub(crate) fn delegates() -> Result<Arc<dyn coremill_runtime::Backend>> {
    Err(refused())
}

fn refused() -> Error {
    availability().expect_err("Core ML is unavailable").into()
}
