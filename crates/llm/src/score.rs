//! Perplexity of a text, and divergence from another model.

use crate::error::{Result, fail};
use crate::generate::Generator;
use crate::sample::argmax;

/// Tokens that are read at a time.
const BLOCK: usize = 64;

/// Quality of a model's predictions of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// Number of tokens that were predicted.
    pub tokens: usize,
    /// Mean negative logarithm of the probability of a token.
    pub loss: f64,
    /// `exp(loss)`.
    pub perplexity: f64,
    /// Share of tokens that were the most likely.
    pub accuracy: f64,
    /// Comparison with a reference, if there is one.
    pub comparison: Option<Comparison>,
}

/// Distance of a model's predictions from a reference's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// Perplexity of the reference.
    pub perplexity: f64,
    /// Mean Kullback-Leibler divergence from the reference, in nats.
    pub divergence: f64,
    /// Largest divergence of a token.
    pub max_divergence: f64,
    /// Share of tokens whose most likely successor is the same.
    pub agreement: f64,
}

/// Scores a text, in parts as long as the contexts.
pub fn score(
    model: &mut Generator,
    mut reference: Option<&mut Generator>,
    ids: &[u32],
    watch: &mut dyn FnMut(usize),
) -> Result<Score> {
    if ids.len() < 2 {
        fail!(Argument, "a text must have at least 2 tokens, got {}", ids.len());
    }
    let contexts = [Some(model.context()), reference.as_ref().map(|it| it.context())];
    let context = contexts.into_iter().flatten().min().unwrap_or(BLOCK);
    let (mut loss, mut hits, mut count) = (0.0, 0usize, 0usize);
    let mut sums = Sums::default();
    for part in ids.chunks(context) {
        model.reset();
        if let Some(reference) = &mut reference {
            reference.reset();
        }
        for (index, block) in part.chunks(BLOCK).enumerate() {
            let own = predictions(model, block)?;
            let other = reference.as_mut().map(|it| predictions(it, block)).transpose()?;
            for (row, logits) in own.iter().enumerate() {
                let Some(&next) = part.get(index * BLOCK + row + 1) else { continue };
                let own = log_probabilities(logits);
                loss -= probability(&own, next)?;
                hits += usize::from(argmax(logits) == Some(next));
                count += 1;
                if let Some(other) = &other {
                    sums.add(&own, &log_probabilities(&other[row]), next)?;
                }
            }
            watch(count);
        }
    }
    let mean = |sum: f64| sum / count.max(1) as f64;
    let comparison = reference.map(|_| Comparison {
        perplexity: mean(sums.loss).exp(),
        divergence: mean(sums.divergence),
        max_divergence: sums.max_divergence,
        agreement: mean(sums.agreed as f64),
    });
    let loss = mean(loss);
    let accuracy = mean(hits as f64);
    Ok(Score { tokens: count, loss, perplexity: loss.exp(), accuracy, comparison })
}

#[derive(Default)]
struct Sums {
    loss: f64,
    divergence: f64,
    max_divergence: f64,
    agreed: usize,
}

impl Sums {
    fn add(&mut self, own: &[f64], reference: &[f64], next: u32) -> Result<()> {
        if own.len() != reference.len() {
            let (own, reference) = (own.len(), reference.len());
            fail!(
                Argument,
                "models with vocabularies of {own} and {reference} tokens cannot be compared"
            );
        }
        self.loss -= probability(reference, next)?;
        let divergence: f64 =
            own.iter().zip(reference).map(|(own, other)| other.exp() * (other - own)).sum();
        self.divergence += divergence;
        self.max_divergence = self.max_divergence.max(divergence);
        let best = |all: &[f64]| {
            all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
        };
        self.agreed += usize::from(best(own) == best(reference));
        Ok(())
    }
}

/// The logits after each token of a block.
fn predictions(model: &mut Generator, block: &[u32]) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::with_capacity(block.len());
    if model.returns_all() {
        model.read_all(block, &mut |_, logits| rows.push(logits.to_vec()))?;
    } else {
        for id in block {
            rows.push(model.read(&[*id])?);
        }
    }
    Ok(rows)
}

fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    let normal = f64::from(most) + total.ln();
    logits.iter().map(|&logit| f64::from(logit) - normal).collect()
}

fn probability(all: &[f64], id: u32) -> Result<f64> {
    match all.get(id as usize) {
        Some(probability) => Ok(*probability),
        None => {
            fail!(Argument, "token {id} is not below {}, the size of the vocabulary", all.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_divergence_matches_definition() {
        let even = log_probabilities(&[1.0, 1.0]);
        let skewed = log_probabilities(&[0.0, 3.0f32.ln()]);
        let mut sums = Sums::default();
        sums.add(&skewed, &even, 0).expect("equal lengths");
        // 1/2 ln((1/2) / (1/4)) + 1/2 ln((1/2) / (3/4))
        let expected = 0.5 * 2.0f64.ln() + 0.5 * (2.0f64 / 3.0).ln();
        assert!((sums.divergence - expected).abs() < 1e-7, "{}", sums.divergence);
        assert!((sums.loss - 2.0f64.ln()).abs() < 1e-7);
        assert!(sums.add(&skewed, &[0.0], 0).is_err());
    }
}
