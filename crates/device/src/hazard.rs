use std::fmt;

use crate::Engine;
use crate::chip::{Chip, Generation};
use crate::source::Source;

/// Evidence for one warning of the verifier.
#[derive(Debug)]
pub struct Hazard {
    /// Name of the verifier's rule.
    pub code: &'static str,
    /// Affected engines.
    pub engines: &'static [Engine],
    /// The first affected chips.
    pub since: Generation,
    /// The first chips that are not affected any more.
    pub until: Option<Generation>,
    /// Releases of the recorded cases; empty if the sources name none.
    pub releases: &'static str,
    /// Confidence in the hazard.
    pub confidence: Confidence,
    /// Sources of the evidence.
    pub sources: &'static [Source],
}

/// Confidence in a hazard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Measured in a study, or reported several times.
    Confirmed,
    /// Reported once.
    Reported,
    /// Reported and contradicted.
    Contested,
}

const NEURAL: &[Engine] = &[Engine::NeuralEngine];
const CPU: &[Engine] = &[Engine::Cpu];
const GPU: &[Engine] = &[Engine::Gpu];
const EVERY: &[Engine] = &Engine::ALL;

const fn row(
    code: &'static str,
    engines: &'static [Engine],
    releases: &'static str,
    confidence: Confidence,
    sources: &'static [Source],
) -> Hazard {
    Hazard { code, engines, since: Generation::ALL, until: None, releases, confidence, sources }
}

use Confidence::{Confirmed, Contested, Reported};
use Source::{
    AneGuide, Apple, CoreMlLlm, Coremltools, ExecuTorch, Ieee754, LanguageModelsOnAne,
    MicroarchitectureStudy, Products, Reports, RlxCoreml, RustNn,
};

/// Evidence for every warning of the verifier about devices.
pub const HAZARDS: &[Hazard] = &[
    row("ranged-dimension", NEURAL, "", Confirmed, &[Apple]),
    row("high-rank", NEURAL, "", Confirmed, &[AneGuide, MicroarchitectureStudy]).before(16, 4),
    row("single-precision", NEURAL, "", Confirmed, &[Apple, MicroarchitectureStudy]),
    row("integer-arithmetic", NEURAL, "macOS 27.0.1", Confirmed, &[MicroarchitectureStudy]),
    row("gather-for-slice", NEURAL, "", Reported, &[AneGuide]).before(16, 4),
    row("runtime-index", NEURAL, "macOS 27.0.1", Confirmed, &[MicroarchitectureStudy, CoreMlLlm]),
    row(
        "unsupported-on-ane",
        NEURAL,
        "macOS 27.0.1",
        Confirmed,
        &[MicroarchitectureStudy, AneGuide],
    ),
    row("large-dimension", NEURAL, "macOS 27.0.1", Confirmed, &[MicroarchitectureStudy, AneGuide]),
    row("large-weights", NEURAL, "iOS 26", Reported, &[CoreMlLlm, Products]),
    row("small-model", NEURAL, "macOS 27.0.1", Confirmed, &[MicroarchitectureStudy]),
    row("slice-to-end", NEURAL, "", Reported, &[Reports]),
    row("data-dependent-shape", EVERY, "", Confirmed, &[MicroarchitectureStudy, ExecuTorch]),
    row("loop", NEURAL, "", Confirmed, &[AneGuide]),
    row(
        "wide-kernel",
        NEURAL,
        "macOS 26.6.2, macOS 27.0.1",
        Confirmed,
        &[MicroarchitectureStudy, AneGuide, RlxCoreml],
    ),
    row("negative-indices", EVERY, "from iOS 17 on", Confirmed, &[Coremltools, RustNn]),
    row("half-attention", NEURAL, "iOS 26, macOS 26.1", Reported, &[ExecuTorch]),
    row("attention-batch", GPU, "macOS 26.2", Confirmed, &[Coremltools]),
    row("many-states", NEURAL, "iOS 26, macOS 26.0.1", Reported, &[CoreMlLlm]),
    row("state-alignment", NEURAL, "macOS 15.2", Contested, &[Coremltools, CoreMlLlm]),
    row("quantized-product", NEURAL, "macOS 27.0", Reported, &[LanguageModelsOnAne]),
    row("input-group-scale", NEURAL, "macOS 27.0", Reported, &[LanguageModelsOnAne]),
    row("late-slice", NEURAL, "", Reported, &[AneGuide]).before(15, 3),
    row("transposed-values", GPU, "macOS 26.6.1", Reported, &[Products]),
    row("slice-reshape", GPU, "macOS 26.6.2", Reported, &[RlxCoreml]),
    row("transposed-reduction", CPU, "macOS 26.6.2", Reported, &[RlxCoreml]),
    row("unfolded-batch-norm", CPU, "macOS 26.6.2", Reported, &[RlxCoreml]),
    row("sum-overflow", NEURAL, "macOS 27.0.1", Confirmed, &[MicroarchitectureStudy, AneGuide]),
    row("small-probabilities", NEURAL, "macOS 27.0", Reported, &[LanguageModelsOnAne]),
    row("non-finite", EVERY, "", Confirmed, &[Ieee754]),
    row("half-overflow", EVERY, "", Confirmed, &[Ieee754]),
    row("vanishing-epsilon", EVERY, "", Confirmed, &[Ieee754]),
    row("square-overflow", EVERY, "iOS 26", Confirmed, &[Ieee754, CoreMlLlm]),
    row("half-indices", EVERY, "", Confirmed, &[Ieee754]),
    row("large-integer", CPU, "macOS 26.6.2, macOS 27", Confirmed, &[RustNn]),
];

impl Hazard {
    const fn before(self, a: u32, m: u32) -> Hazard {
        Hazard { until: Some(Generation::from(a, m)), ..self }
    }

    /// Returns the evidence for a rule; `None` if the rule does not depend on devices.
    pub fn of(code: &str) -> Option<&'static Hazard> {
        HAZARDS.iter().find(|hazard| hazard.code == code)
    }

    /// Whether a chip is affected.
    pub fn affects(&self, chip: &Chip) -> bool {
        self.since.includes(chip) && !self.until.is_some_and(|until| until.includes(chip))
    }

    /// Affected chips: `chips before A16 and M4` for instance.
    pub fn chips(&self) -> String {
        match (self.since, self.until) {
            (Generation::ALL, Some(until)) => format!("chips before {until}"),
            (Generation::ALL, None) => Generation::ALL.to_string(),
            (since, None) => format!("chips from {since} on"),
            (since, Some(until)) => format!("chips from {since} on, before {until}"),
        }
    }

    /// Affected engines: `CPU, GPU` for instance; `every engine`.
    pub fn engine_names(&self) -> String {
        if self.engines.len() == Engine::ALL.len() {
            return "every engine".to_owned();
        }
        let names: Vec<_> = self.engines.iter().map(|engine| engine.name()).collect();
        names.join(", ")
    }
}

/// `confirmed` for instance.
impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Confidence::Confirmed => "confirmed",
            Confidence::Reported => "reported",
            Confidence::Contested => "contested",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::CHIPS;

    #[test]
    fn hazard_codes_are_unique_and_affect_some_chip() {
        let mut codes: Vec<_> = HAZARDS.iter().map(|hazard| hazard.code).collect();
        codes.sort();
        codes.dedup();
        assert_eq!(codes.len(), HAZARDS.len());
        for hazard in HAZARDS {
            assert!(CHIPS.iter().any(|chip| hazard.affects(chip)), "{}", hazard.code);
            assert!(!hazard.sources.is_empty() && !hazard.engines.is_empty(), "{}", hazard.code);
        }
    }

    #[test]
    fn later_chips_have_fewer_hazards() {
        let count = |chip: &str| {
            let chip = Chip::parse(chip).expect("a chip");
            HAZARDS.iter().filter(|hazard| hazard.affects(chip)).count()
        };
        assert_eq!(count("m1"), HAZARDS.len());
        assert_eq!(count("m3"), HAZARDS.len() - 1);
        assert_eq!(count("iphone17pro"), HAZARDS.len() - 3);
    }

    #[test]
    fn describes_affected_chips_and_engines() {
        let of = |code: &str| Hazard::of(code).expect("a hazard");
        assert_eq!(of("late-slice").chips(), "chips before A15 and M3");
        assert_eq!(of("large-integer").chips(), "every chip");
        assert_eq!(of("large-integer").engine_names(), "CPU");
        assert_eq!(of("half-overflow").engine_names(), "every engine");
        assert!(Hazard::of("undefined-value").is_none());
    }
}
