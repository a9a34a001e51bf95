//! The choice of the next token.

/// Options of choosing tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Sampling {
    /// Divisor of logits; 0 chooses the most likely token.
    pub temperature: f32,
    /// Number of the most likely tokens to choose from; 0 selects all.
    pub top_k: usize,
    /// Share of probability to choose from.
    pub top_p: f32,
    /// Least probability of a token, as a share of the most likely token's.
    pub min_p: f32,
    /// Divisor of positive logits, and factor of negative ones, of tokens in the text so far.
    pub repetition_penalty: f32,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// Chooses tokens by logits.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Sampling,
    state: u64,
}

impl Sampler {
    /// A sampler with options.
    pub fn new(options: Sampling) -> Sampler {
        Sampler { options, state: options.seed }
    }

    /// The next token after a text of tokens. `None` if no logit is a number.
    pub fn choose(&mut self, logits: &mut [f32], text: &[u32]) -> Option<u32> {
        let options = self.options;
        if options.repetition_penalty != 1.0 {
            let mut seen: Vec<u32> = text.to_vec();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(logit) = logits.get_mut(id as usize) {
                    let penalty = options.repetition_penalty;
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        let best = argmax(logits)?;
        if options.temperature <= 0.0 {
            return Some(best);
        }
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let logit = |id: &u32| logits[*id as usize];
        order.retain(|id| logit(id) > f32::NEG_INFINITY);
        // The sort is stable, so that equal logits are chosen by the order of their ids.
        order.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
        if options.top_k > 0 {
            order.truncate(options.top_k);
        }
        let most = logits[best as usize];
        let weights: Vec<f64> = order
            .iter()
            .map(|id| f64::from((logit(id) - most) / options.temperature).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        let (mut kept, mut share) = (0, 0.0);
        for weight in &weights {
            let is_enough = share >= f64::from(options.top_p) * total;
            if kept > 0 && (is_enough || *weight < f64::from(options.min_p)) {
                break;
            }
            (kept, share) = (kept + 1, share + weight);
        }
        let mut at = self.uniform() * share;
        for (id, weight) in order[..kept].iter().zip(&weights) {
            at -= weight;
            if at < 0.0 {
                return Some(*id);
            }
        }
        order.get(kept.saturating_sub(1)).copied()
    }

    /// A random number from 0 up to 1, by SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The index of the largest number, the first of equal ones.
pub(crate) fn argmax(numbers: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (index, &number) in numbers.iter().enumerate() {
        if !number.is_nan() && best.is_none_or(|(_, most)| number > most) {
            best = Some((index, number));
        }
    }
    best.map(|(index, _)| index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(options: Sampling) -> [usize; 4] {
        let mut sampler = Sampler::new(options);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            let mut logits = [0.0f32, 1.0, 2.0, 3.0].map(|x| x * std::f32::consts::LN_2);
            let id = sampler.choose(&mut logits, &[]).expect("numbers");
            counts[id as usize] += 1;
        }
        counts
    }

    #[test]
    fn samples_by_probability_within_top_k_top_p_min_p() {
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        // Probabilities are 1, 2, 4 and 8 of 15; the bounds are four standard deviations.
        for (count, share) in counts(base).into_iter().zip([1.0, 2.0, 4.0, 8.0]) {
            let p: f64 = share / 15.0;
            let deviation = (4000.0 * p * (1.0 - p)).sqrt();
            assert!((count as f64 - 4000.0 * p).abs() < 4.0 * deviation, "{count} of {share}/15");
        }
        assert_eq!(counts(Sampling { top_k: 1, ..base }), [0, 0, 0, 4000]);
        assert_eq!(counts(Sampling { top_p: 0.5, ..base })[..3], [0, 0, 0]);
        assert_eq!(counts(Sampling { min_p: 0.4, ..base })[..2], [0, 0]);
        assert_eq!(counts(base), counts(base));
        assert_ne!(counts(base), counts(Sampling { seed: 1, ..base }));
    }

    #[test]
    fn greedy_choice_takes_first_maximum_and_ignores_nan() {
        let mut sampler = Sampler::new(Sampling::default());
        assert_eq!(sampler.choose(&mut [1.0, 3.0, 3.0, f32::NAN], &[]), Some(1));
        assert_eq!(sampler.choose(&mut [f32::NAN], &[]), None);
        let penalty = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(Sampler::new(penalty).choose(&mut [2.5, 3.0], &[1, 1]), Some(0));
    }
}
