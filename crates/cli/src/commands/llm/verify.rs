//! Verification of a written language model on a text.

use std::path::{Path, PathBuf};

use coremill::llm::{BuildOptions, Destination, LanguageModel, VerifyOptions, Weights};
use serde::Serialize;

use super::Loss;
use crate::commands::failure;
use crate::commands::figures::{decibels, scientific};
use crate::commands::loaded::NumericsArg;
use crate::output::{ERROR, FAINT, Failure, GOOD, paint};
use crate::progress::Progress;

/// Hint for divergences that exceed the limit.
pub(super) const REMEDY: &str = "keep more of the weights with `--weights`, or accept more with `--max-divergence`; `coremill score --against` compares other models";

/// Number of tensors that are listed.
const LISTED: usize = 5;

#[derive(clap::Args)]
pub(super) struct VerifyArgs {
    /// Run the written model on a text, or on the text in a file, and compare its predictions with the source
    /// weights' predictions in fp32
    #[arg(long, value_name = "TEXT", conflicts_with = "dry_run")]
    verify: Option<String>,
    /// Maximum mean divergence from the source in nats [default: 0.001, 0.05 for `int8` and `lut6`, 0.5 for `int4` and `lut4`]
    #[arg(long, value_name = "NATS", requires = "verify")]
    max_divergence: Option<f64>,
    /// Maximum number of tokens of the text
    #[arg(long, value_name = "N", default_value_t = 512)]
    verify_tokens: usize,
    /// The arithmetic in which `--verify` runs the written model; all but `fast` are slow
    #[arg(long, value_enum, value_name = "NUMERICS", default_value_t = NumericsArg::Fast)]
    numerics: NumericsArg,
}

/// Comparison with the source weights in fp32.
#[derive(Serialize)]
pub(super) struct Verified {
    pub(super) holds: bool,
    limit: f64,
    tokens: usize,
    divergence: f64,
    max_divergence: f64,
    agreement: f64,
    perplexity: f64,
    reference_perplexity: f64,
}

impl VerifyArgs {
    pub(super) fn is_asked(&self) -> bool {
        self.verify.is_some()
    }

    /// Token ids of the text.
    pub(super) fn tokens(&self, model: &LanguageModel) -> Result<Option<Vec<u32>>, Failure> {
        let Some(text) = &self.verify else { return Ok(None) };
        let path = PathBuf::from(text);
        let text = if path.is_file() { read(&path)? } else { text.clone() };
        let tokenizer = model.tokenizer().map_err(|error| failure(&error))?;
        let mut ids = tokenizer.encode(&text, true).map_err(|error| failure(&error))?;
        ids.truncate(self.verify_tokens);
        if ids.len() < 2 {
            let count = ids.len();
            let failure = Failure::user(format_args!(
                "`--verify` needs a text of at least 2 tokens, got {count}"
            ));
            return Err(failure.hint(Some("pass a paragraph, or the path of a text file")));
        }
        Ok(Some(ids))
    }

    pub(super) fn run(
        &self,
        model: &LanguageModel,
        destination: &Destination,
        build: &BuildOptions,
        ids: &[u32],
        progress: &Progress,
    ) -> Result<Verified, Failure> {
        progress.stage("verifying the model");
        let total = ids.len();
        let mut watch =
            |count: usize| progress.stage(format!("verified {count} of {total} tokens"));
        let mut options = VerifyOptions::default();
        options.numerics = self.numerics.into();
        let score =
            model.verify(destination.path(), ids, options, &mut watch).map_err(|error| {
                let path = destination.model.display();
                let failure = Failure::user(format_args!(
                    "{path}: the model cannot be verified: {error}; it was written"
                ));
                failure.hint(error.hint())
            })?;
        let compared = score.comparison.unwrap_or_default();
        let limit = self.max_divergence.unwrap_or(match build.weights {
            Weights::Int8 | Weights::Lut6 => 0.05,
            Weights::Int4 | Weights::Lut4 => 0.5,
            _ => 0.001,
        });
        Ok(Verified {
            // NaN does not hold.
            holds: compared.divergence <= limit,
            limit,
            tokens: score.tokens,
            divergence: compared.divergence,
            max_divergence: compared.max_divergence,
            agreement: compared.agreement,
            perplexity: score.perplexity,
            reference_perplexity: compared.perplexity,
        })
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::user(format_args!("cannot read {}: {error}", path.display())))
}

impl Verified {
    pub(super) fn render(&self) -> String {
        let Verified { limit, tokens, agreement, perplexity, .. } = self;
        let limit = scientific(*limit);
        let verdict = match self.holds {
            true => paint(GOOD, format!("agrees (limit {limit})")),
            false => paint(ERROR, format!("exceeds {limit}")),
        };
        let [mean, most] = [self.divergence, self.max_divergence].map(scientific);
        let mut text = format!(
            "verified on {tokens} tokens against the source in fp32: divergence {mean}, {verdict}, largest {most}\n"
        );
        text += &format!("  same most likely token: {:.2} %\n", agreement * 100.0);
        let reference = self.reference_perplexity;
        text += &format!("  perplexity {perplexity:.4}, of the source {reference:.4}\n");
        text
    }
}

/// The tensors with the largest losses.
pub(super) fn worst(losses: &[Loss]) -> String {
    let mut all: Vec<&Loss> = losses.iter().collect();
    all.sort_by(|a, b| a.decibels.total_cmp(&b.decibels));
    let mut text = format!("  signal-to-noise ratio of {} tensors, the lowest:\n", all.len());
    for Loss { tensor, scheme, decibels: ratio } in all.into_iter().take(LISTED) {
        let scheme = paint(FAINT, scheme);
        text += &format!("    {:>8}  {tensor}  {scheme}\n", decibels(*ratio));
    }
    text
}
