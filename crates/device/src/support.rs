use crate::Engine;
use crate::chip::{Chip, Generation};
use crate::source::Source;

/// Operations that some engine does not run.
#[derive(Debug)]
pub struct SupportRow {
    /// Their names in MIL.
    pub operations: &'static [&'static str],
    /// Engines other than the CPU, which runs every operation.
    pub support: Support,
    /// Suggested change.
    pub advice: &'static str,
    /// Who found it.
    pub source: Source,
    /// Disagreement of another study, or further notes.
    pub note: &'static str,
}

/// Engines of an operation other than the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Whether the GPU runs it.
    pub gpu: bool,
    /// The first chips whose Neural Engine runs it; `None` if none does.
    pub neural_engine: Option<Generation>,
}

const ALL: Generation = Generation::ALL;
const EVERYWHERE: Support = Support { gpu: true, neural_engine: Some(ALL) };
const CPU: Support = Support { gpu: false, neural_engine: None };
const NO_NEURAL_ENGINE: Support = Support { gpu: true, neural_engine: None };

const fn from(gpu: bool, a: u32, m: u32) -> Support {
    Support { gpu, neural_engine: Some(Generation::from(a, m)) }
}

const fn row(
    operations: &'static [&'static str],
    support: Support,
    source: Source,
    advice: &'static str,
    note: &'static str,
) -> SupportRow {
    SupportRow { operations, support, advice, source, note }
}

/// Every operation that some engine does not run, or older chips do not. All others run on every engine.
pub const OPERATIONS: &[SupportRow] = &[
    row(
        &["crop_resize", "non_zero", "range_1d", "sliding_windows"],
        CPU,
        Source::MicroarchitectureStudy,
        "compute it outside the model, or use operations of fixed shape",
        "the GPU does not run them either",
    ),
    row(
        &["affine"],
        from(false, 14, 2),
        Source::AneGuide,
        "compute the sample positions once and use `resample`",
        "only on the CPU and the Neural Engine (M4)",
    ),
    row(
        &["resize"],
        from(true, 14, 2),
        Source::AneGuide,
        "use `upsample_bilinear` or `upsample_nearest_neighbor`",
        "the GPU does not run it for downsampling (M4)",
    ),
    row(
        &["resample", "resize_bilinear", "resize_nearest_neighbor"],
        from(true, 14, 2),
        Source::AneGuide,
        "use `upsample_bilinear` or `upsample_nearest_neighbor`",
        "",
    ),
    row(
        &["topk"],
        from(true, 14, 2),
        Source::AneGuide,
        "select the largest elements outside the model",
        "40 of 32000 elements work on M4 through Core ML; the private compiler rejects one on the width axis there",
    ),
    row(
        &["sin", "cos"],
        from(true, 15, 3),
        Source::AneGuide,
        "compute the table of sines outside the model, or store it as a constant",
        "",
    ),
    row(
        &["acos", "asin", "atanh", "tan", "sinh", "cosh"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "compute it outside the model, or write it with `exp`, `log`, `sin`, `cos` and `atan`",
        "",
    ),
    row(
        &["mod"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "write it as `x - floor(x / y) * y`",
        "",
    ),
    row(
        &["reduce_prod"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "multiply slices, or sum logarithms of positive elements",
        "",
    ),
    row(
        &["cumsum"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "multiply by a constant triangular matrix",
        "",
    ),
    row(
        &["argsort"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "sort outside the model, or use `topk`",
        "compiler tables list a sort from A14 and M2 on; Core ML does not choose it on M4",
    ),
    row(
        &["reduce_argmax", "reduce_argmin"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "return the scores and take the index outside the model",
        "the result is `int32`; compiler tables list `reduce_argmin` from M3 on",
    ),
    row(
        &["band_part"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "multiply by a constant mask",
        "",
    ),
    row(
        &["one_hot"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "pass the one-hot vectors in, or compare with a constant range in `fp16`",
        "",
    ),
    row(
        &["random_bernoulli", "random_categorical", "random_normal", "random_uniform"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "pass the random numbers in",
        "compiler tables list uniform numbers from M3 on; only `random_normal` was tried through Core ML",
    ),
    row(
        &["lstm", "gru", "rnn"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "unroll the steps into `linear`, `sigmoid` and `tanh`",
        "",
    ),
    row(
        &["scatter", "scatter_along_axis", "scatter_nd"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "select with a mask, or use `slice_update` at a fixed offset",
        "`scatter_nd` by compiler tables",
    ),
    row(
        &["reverse_sequence", "shape"],
        NO_NEURAL_ENGINE,
        Source::AneGuide,
        "compute it outside the model",
        "by compiler tables; not tried through Core ML",
    ),
    row(
        &[
            "cond",
            "while_loop",
            "list_gather",
            "list_length",
            "list_read",
            "list_scatter",
            "list_write",
            "make_list",
        ],
        NO_NEURAL_ENGINE,
        Source::AneGuide,
        "let the caller branch or loop, with states between the calls",
        "by compiler tables",
    ),
    row(
        &["classify"],
        CPU,
        Source::Apple,
        "return the scores and look the label up outside the model",
        "only the CPU supports strings",
    ),
    row(
        &["non_maximum_suppression"],
        NO_NEURAL_ENGINE,
        Source::MicroarchitectureStudy,
        "suppress boxes outside the model",
        "Core ML 27.0.1 refuses the operation as coremltools 9 writes it",
    ),
];

impl Support {
    /// Whether the Neural Engine of a chip runs the operation.
    pub fn on_neural_engine(self, chip: &Chip) -> bool {
        self.neural_engine.is_some_and(|since| since.includes(chip))
    }

    /// The engines on a chip.
    pub fn engines(self, chip: &Chip) -> Vec<Engine> {
        let runs = |engine: &Engine| match engine {
            Engine::Cpu => true,
            Engine::Gpu => self.gpu,
            Engine::NeuralEngine => self.on_neural_engine(chip),
        };
        Engine::ALL.into_iter().filter(runs).collect()
    }
}

impl SupportRow {
    /// The row of an operation; `None` if every engine runs it.
    pub fn of(operation: &str) -> Option<&'static SupportRow> {
        OPERATIONS.iter().find(|row| row.operations.contains(&operation))
    }
}

/// Engines of an operation, independent of its arguments.
pub fn support(operation: &str) -> Support {
    SupportRow::of(operation).map_or(EVERYWHERE, |row| row.support)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn support_table_lists_each_operation_once() {
        let mut all: Vec<_> = OPERATIONS.iter().flat_map(|row| row.operations).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(OPERATIONS.iter().all(|row| row.support != EVERYWHERE && !row.advice.is_empty()));
    }
}
