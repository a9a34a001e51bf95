//! Backends for delegates, included in this build.

use std::sync::Arc;

use crate::delegate::Backend;

/// The available backends, in the order in which they are tried.
pub fn backends() -> Vec<Arc<dyn Backend>> {
    let mut backends: Vec<Arc<dyn Backend>> = Vec::with_capacity(2);
    #[cfg(feature = "coreml")]
    if coremill_coreml::availability().is_ok() {
        backends.push(core_ml());
    }
    #[cfg(feature = "host")]
    backends.push(host());
    backends
}

/// Core ML. On systems without it, preparing a delegate fails.
#[cfg(feature = "coreml")]
pub fn core_ml() -> Arc<dyn Backend> {
    Arc::new(crate::coreml::CoreMlBackend::default())
}

/// The engine of this workspace, on the CPU.
#[cfg(feature = "host")]
pub fn host() -> Arc<dyn Backend> {
    Arc::new(crate::host::HostBackend::default())
}
