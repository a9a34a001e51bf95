//! Comparison of a written model with the weights that it was converted from.

use coremill_graph::{Device, Numerics, Precision, Session};

use crate::error::Result;
use crate::generate::Generator;
use crate::model::{BuildOptions, LanguageModel, Layout, Weights};
use crate::save::Destination;
use crate::score::{Score, score};

/// Options of [`LanguageModel::verify`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Arithmetic of the written model's operations.
    pub numerics: Numerics,
    /// Threads; 0 is one for each processor.
    pub threads: usize,
}

impl LanguageModel {
    /// Scores a text with the model that was written with `build`. The reference is this model with its own weights and fp32
    /// arithmetic. `watch` is called with the number of finished tokens.
    pub fn verify(
        &self,
        destination: &Destination,
        build: &BuildOptions,
        ids: &[u32],
        options: VerifyOptions,
        watch: &mut dyn FnMut(usize),
    ) -> Result<Score> {
        let VerifyOptions { numerics, threads } = options;
        let session = Session::new(Device::Host).threads(threads).numerics(numerics);
        let mut written = match destination.layout {
            Layout::Chunks => Generator::of_chunks(&destination.directory, &session)?,
            _ => Generator::new(session.open(&destination.model)?)?,
        };
        let mut exact = build.clone().weights(Weights::Exact).layout(Layout::Coremill).all_logits();
        exact.precision = Precision::Fp32;
        exact.prefill = BuildOptions::default().prefill.min(build.context);
        let mut reference = Generator::new(self.compile(Device::Host, threads, &exact)?)?;
        score(&mut written, Some(&mut reference), ids, watch)
    }
}
