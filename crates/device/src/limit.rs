use crate::chip::{Chip, Generation};
use crate::source::Source;

/// A size that the Neural Engine bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// The number of dimensions.
    Rank,
    /// Any dimension.
    Dimension,
    /// The last dimension and the one before it.
    Spatial,
    /// The dimension that a matrix product sums over.
    Contracted,
    /// The width of a convolution kernel that is wider than high.
    KernelWidth,
    /// The height of a convolution kernel.
    KernelHeight,
    /// The side of a square convolution kernel.
    KernelSquare,
    /// The width of a window of `max_pool`.
    MaxPoolWidth,
    /// The axis of `reduce_argmax` and `reduce_argmin`.
    ArgumentAxis,
}

/// The largest size on some chips.
#[derive(Debug)]
pub struct LimitRow {
    /// Bounded quantity.
    pub limit: Limit,
    /// Description for messages.
    pub what: &'static str,
    /// The first chips with this bound; later rows of the same limit replace earlier ones.
    pub since: Generation,
    /// The largest size.
    pub most: u64,
    /// Who found it.
    pub source: Source,
}

const fn row(
    limit: Limit,
    what: &'static str,
    since: Generation,
    most: u64,
    source: Source,
) -> LimitRow {
    LimitRow { limit, what, since, most, source }
}

const ALL: Generation = Generation::ALL;
const FROM_M2: Generation = Generation::from(14, 2);
const FROM_M4: Generation = Generation::from(16, 4);

/// All bounds, older chips first.
pub const LIMITS: &[LimitRow] = &[
    row(Limit::Rank, "number of dimensions", ALL, 4, Source::AneGuide),
    row(Limit::Rank, "number of dimensions", FROM_M4, 5, Source::MicroarchitectureStudy),
    row(Limit::Dimension, "any dimension", ALL, 65_536, Source::MicroarchitectureStudy),
    row(Limit::Spatial, "width and height", ALL, 16_384, Source::AneGuide),
    row(Limit::Spatial, "width and height", FROM_M4, 65_536, Source::AneGuide),
    row(
        Limit::Contracted,
        "contracted dimension of `matmul`",
        ALL,
        32_768,
        Source::MicroarchitectureStudy,
    ),
    row(Limit::KernelWidth, "width of a convolution kernel", ALL, 13, Source::AneGuide),
    row(
        Limit::KernelWidth,
        "width of a convolution kernel",
        FROM_M2,
        15,
        Source::MicroarchitectureStudy,
    ),
    row(Limit::KernelHeight, "height of a convolution kernel", ALL, 29, Source::AneGuide),
    row(
        Limit::KernelHeight,
        "height of a convolution kernel",
        FROM_M2,
        31,
        Source::MicroarchitectureStudy,
    ),
    row(Limit::KernelSquare, "side of a square convolution kernel", ALL, 13, Source::AneGuide),
    row(
        Limit::KernelSquare,
        "side of a square convolution kernel",
        FROM_M2,
        16,
        Source::MicroarchitectureStudy,
    ),
    row(
        Limit::MaxPoolWidth,
        "width of a window of `max_pool`",
        ALL,
        8,
        Source::MicroarchitectureStudy,
    ),
    row(
        Limit::ArgumentAxis,
        "axis of `reduce_argmax` and `reduce_argmin`",
        ALL,
        2_048,
        Source::AneGuide,
    ),
];

impl Limit {
    /// The bound on a chip.
    pub fn most(self, chip: &Chip) -> u64 {
        self.row(chip).map_or(u64::MAX, |row| row.most)
    }

    /// The row of a chip.
    pub fn row(self, chip: &Chip) -> Option<&'static LimitRow> {
        LIMITS.iter().rev().find(|row| row.limit == self && row.since.includes(chip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chip_limit_uses_latest_matching_row() {
        let of = |limit: Limit, chip: &str| Chip::parse(chip).map(|chip| limit.most(chip));
        assert_eq!(of(Limit::KernelWidth, "m1"), Ok(13));
        assert_eq!(of(Limit::KernelWidth, "m4"), Ok(15));
        assert_eq!(of(Limit::Spatial, "m3"), Ok(16_384));
        assert_eq!(of(Limit::Spatial, "a16"), Ok(65_536));
        assert_eq!(of(Limit::Contracted, "a12"), Ok(32_768));
    }
}
