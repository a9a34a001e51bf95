//! coremill.
