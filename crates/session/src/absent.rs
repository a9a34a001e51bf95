//! Substitute for Core ML on other systems: every model is refused.

use std::sync::Arc;

use coremill_coreml::availability;
use coremill_verify::Verified;

use crate::backend::{Backend, Executable};
use crate::error::{Error, Result};
use crate::options::RunOptions;

/// Backend for Core ML devices; refuses every model.
pub struct CoreMlBackend;

impl Backend<&Verified<'_>> for CoreMlBackend {
    fn prepare(&self, _model: &Verified<'_>, _options: &RunOptions) -> Result<Arc<dyn Executable>> {
        Err(refused())
    }
}

/// Refuses delegates of ExecuTorch programs.
pub(crate) fn delegates() -> Result<Arc<dyn coremill_runtime::Backend>> {
    Err(refused())
}

fn refused() -> Error {
    availability().expect_err("Core ML is unavailable").into()
}
