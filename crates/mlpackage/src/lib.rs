//! Readers and writers of Core ML's files: `.mlpackage` directories and compiled `.mlmodelc` directories.
//!
//! Readers accept untrusted files. Writers require a verified model; the same model always results in the
//! same bytes.
//!
//! | module | contents |
//! |---|---|
//! | [`package`] | `.mlpackage` directories: manifest, model file, weight files |
//! | [`compiled`] | `.mlmodelc` directories, which Core ML loads without compiling them |
//! | [`pipeline`] | models that consist of several models, linked into one |

pub mod compiled;
pub mod package;
pub mod pipeline;
