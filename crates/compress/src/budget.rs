//! Choice of bits per weight for a given size or quality.

use super::error::Error;
use super::form::linear::{Config, Integer};
use super::form::{BITS, CompressionConfig, Palette, Values};

/// A limit on the size of all weights, or on the quality of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Maximum total size in bytes.
    Bytes(u64),
    /// Minimum SNR of each weight in decibels. The smallest sufficient form is chosen.
    Snr(f64),
}

/// Size and loss of a weight in one form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TradeoffPoint {
    pub(super) bytes: u64,
    /// Lost share of the weight's power, from 0 to 1.
    pub(super) loss: f64,
}

/// Options for a weight. It stays uncompressed if no form is better.
pub(super) struct TradeoffCurve {
    pub(super) plain: u64,
    /// Size and loss of each form, `None` if the weight does not support it.
    pub(super) rungs: Vec<Option<TradeoffPoint>>,
}

impl CompressionConfig {
    /// The same form with fewer and with more bits, as far as no newer release is needed.
    pub(super) fn ladder(&self) -> Vec<CompressionConfig> {
        let forms: Vec<Values> = match &self.values {
            Values::Floats => vec![Values::Floats],
            Values::Linear(config) => {
                let dtypes = match config.dtype {
                    Integer::Int8 | Integer::Int4 => [Integer::Int4, Integer::Int8],
                    Integer::UInt8 | Integer::UInt4 => [Integer::UInt4, Integer::UInt8],
                };
                let of = |dtype| Values::Linear(Config { dtype, ..config.clone() });
                dtypes.into_iter().map(of).collect()
            }
            Values::Palette(palette) => {
                let of = |bits| Values::Palette(Palette { bits: Some(bits), ..palette.clone() });
                BITS.into_iter().map(of).collect()
            }
        };
        let forms =
            forms.into_iter().map(|values| CompressionConfig { prune: self.prune.clone(), values });
        forms.filter(|form| form.needs() <= self.needs()).collect()
    }
}

/// Chooses the form of each weight, `None` for uncompressed. `others` is the size of the weights
/// that no rule selects.
pub(super) fn choose(
    ladders: &[TradeoffCurve],
    budget: Budget,
    others: u64,
) -> Result<Vec<Option<usize>>, Error> {
    match budget {
        Budget::Snr(least) => {
            let most = 10f64.powf(-least / 10.0);
            let pick = |ladder: &TradeoffCurve| {
                let good = |(_, rung): &(usize, &TradeoffPoint)| {
                    rung.loss <= most && rung.bytes < ladder.plain
                };
                let best = ladder.found().filter(good).min_by_key(|(_, rung)| rung.bytes);
                best.map(|(at, _)| at)
            };
            Ok(ladders.iter().map(pick).collect())
        }
        Budget::Bytes(most) => within(ladders, most, others),
    }
}

impl TradeoffCurve {
    fn found(&self) -> impl Iterator<Item = (usize, &TradeoffPoint)> {
        self.rungs.iter().enumerate().filter_map(|(at, rung)| Some((at, rung.as_ref()?)))
    }

    /// Size and loss with a form, or uncompressed.
    fn at(&self, rung: Option<usize>) -> TradeoffPoint {
        let found = rung.and_then(|at| self.rungs[at]);
        found.unwrap_or(TradeoffPoint { bytes: self.plain, loss: 0.0 })
    }
}

/// Starts with the smallest forms. Repeatedly upgrades the weight with the largest gain per byte
/// until the budget is used.
fn within(ladders: &[TradeoffCurve], most: u64, others: u64) -> Result<Vec<Option<usize>>, Error> {
    let smallest = |ladder: &TradeoffCurve| {
        let best = ladder.found().min_by_key(|(_, rung)| rung.bytes);
        best.filter(|(_, rung)| rung.bytes < ladder.plain).map(|(at, _)| at)
    };
    let mut chosen: Vec<Option<usize>> = ladders.iter().map(smallest).collect();
    let bytes = |(ladder, chosen): (&TradeoffCurve, &Option<usize>)| ladder.at(*chosen).bytes;
    let mut total: u64 = others + ladders.iter().zip(&chosen).map(bytes).sum::<u64>();
    if total > most {
        let message = format!("the weights take at least {total} bytes; the target is {most}");
        return Err(match others {
            0 => Error::option(message)
                .with_hint("raise the target, or name a form that can be smaller"),
            _ => {
                let message =
                    format!("{message}; weights that no rule selects take {others} of these bytes");
                Error::option(message).with_hint(
                    "raise the target, or select more weights; the option `min_elements=10` selects all",
                )
            }
        });
    }
    loop {
        let mut best: Option<(f64, usize, Option<usize>, u64)> = None;
        for (index, (ladder, &now)) in ladders.iter().zip(&chosen).enumerate() {
            let from = ladder.at(now);
            let steps = ladder.found().map(|(at, _)| Some(at)).chain([None]);
            for step in steps.filter(|step| *step != now) {
                let to = ladder.at(step);
                if to.bytes <= from.bytes || to.loss >= from.loss {
                    continue;
                }
                let more = to.bytes - from.bytes;
                let gain = (from.loss - to.loss) / more as f64;
                if total + more <= most && best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, index, step, more));
                }
            }
        }
        let Some((_, index, step, more)) = best else { return Ok(chosen) };
        chosen[index] = step;
        total += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(plain: u64, rungs: &[(u64, f64)]) -> TradeoffCurve {
        let rung = |&(bytes, loss)| Some(TradeoffPoint { bytes, loss });
        TradeoffCurve { plain, rungs: rungs.iter().map(rung).chain([None]).collect() }
    }

    #[test]
    fn spends_byte_budget_where_loss_drops_most() {
        let ladders = [
            ladder(160, &[(20, 0.1), (40, 0.01), (80, 0.0001)]),
            ladder(160, &[(20, 0.5), (40, 0.1), (80, 0.001)]),
        ];
        assert_eq!(choose(&ladders, Budget::Bytes(60), 0), Ok(vec![Some(0), Some(1)]));
        assert_eq!(choose(&ladders, Budget::Bytes(80), 0), Ok(vec![Some(1), Some(1)]));
        assert_eq!(choose(&ladders, Budget::Bytes(1000), 0), Ok(vec![None, None]));
        let error = choose(&ladders, Budget::Bytes(39), 0).expect_err("the budget is too small");
        assert_eq!(error.to_string(), "the weights take at least 40 bytes; the target is 39");
        assert_eq!(choose(&ladders, Budget::Bytes(67), 7), Ok(vec![Some(0), Some(1)]));
        let error = choose(&ladders, Budget::Bytes(46), 7).expect_err("the budget is too small");
        assert!(
            error.to_string().starts_with("the weights take at least 47 bytes; the target is 46")
        );
        assert!(error.to_string().contains("weights that no rule selects take 7 of these bytes"));
    }

    #[test]
    fn snr_budget_holds_for_every_weight() {
        let ladders = [
            ladder(160, &[(20, 0.1), (40, 0.01), (80, 0.0001)]),
            ladder(160, &[(20, 0.0005), (40, 0.0001), (80, 0.0)]),
            ladder(160, &[(20, 0.1), (40, 0.1), (80, 0.1)]),
        ];
        assert_eq!(choose(&ladders, Budget::Snr(30.0), 0), Ok(vec![Some(2), Some(0), None]));
    }
}
