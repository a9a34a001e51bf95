//! What this build can run delegated parts with.

use std::sync::Arc;

use crate::delegate::Backend;

/// What this build runs delegated parts with, in the order in which it is tried.
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

/// Core ML; where it is not, no part can be prepared on it.
#[cfg(feature = "coreml")]
pub fn core_ml() -> Arc<dyn Backend> {
    Arc::new(crate::coreml::CoreMlBackend::default())
}

/// The engine, on this machine's processor.
#[cfg(feature = "host")]
pub fn host() -> Arc<dyn Backend> {
    Arc::new(crate::host::HostBackend::default())
}
