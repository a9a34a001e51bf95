//! Core ML's files: `.mlpackage` directories and compiled `.mlmodelc` directories, read and written.
//!
//! Readers take what an attacker may have written; writers take a verified model, and the same model gives the same bytes.
//!
//! | module | holds |
//! |---|---|
//! | [`package`] | `.mlpackage` directories: manifest, model file, weight files |
//! | [`compiled`] | `.mlmodelc` directories, which Core ML loads without compiling them first |
//! | [`pipeline`] | models made of several, linked into one |

pub mod compiled;
pub mod package;
pub mod pipeline;
