//! Comparison of a written model with the weights that it was converted from.

use std::path::Path;

use coremill_graph::{Device, Numerics, Precision, Session};

use crate::bundle::Bundle;
use crate::error::{Result, fail};
use crate::generate::Generator;
use crate::model::{BuildOptions, LanguageModel};
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
    /// Scores a text with a model that was converted from this one, at the path of the model or of its directory. The reference is
    /// this model with its own weights and fp32 arithmetic. `watch` is called with the number of finished tokens.
    pub fn verify(
        &self,
        converted: &Path,
        ids: &[u32],
        options: VerifyOptions,
        watch: &mut dyn FnMut(usize),
    ) -> Result<Score> {
        let VerifyOptions { numerics, threads } = options;
        let session = Session::new(Device::Host).threads(threads).numerics(numerics);
        let Some(mut written) = Bundle::open(converted)?.converted_generator(&session)? else {
            fail!(Argument, "{} is not a converted model", converted.display());
        };
        let context = written.context().min(self.config().max_context);
        let mut exact = BuildOptions::default().context(context).all_logits();
        exact.precision = Precision::Fp32;
        let mut reference = Generator::new(self.compile(Device::Host, threads, &exact)?)?;
        score(&mut written, Some(&mut reference), ids, watch)
    }
}
