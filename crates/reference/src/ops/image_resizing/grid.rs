//! Sampling positions of resized tensors along an axis.

use crate::error::{Result, fail};

/// Distribution of sampling points along an axis: MIL's sampling mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Grid {
    /// The first and last point coincide with the first and last element. A single point is on the
    /// first element.
    StrictAligned,
    /// Like [`Grid::StrictAligned`], but a single point is in the middle.
    Aligned,
    /// The axis is divided into equal parts, with a point at the center of each.
    Unaligned,
    /// The axis is divided into equal parts, with a point at the start of each.
    Default,
    /// The range between the first and the last element is divided into equal parts, with a point
    /// at the center of each.
    Offset,
}

/// A linear interpolation between two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tap {
    /// Index of the lower element.
    pub low: usize,
    /// Index of the upper element.
    pub high: usize,
    /// Weight of the upper element.
    pub share: f64,
}

impl Grid {
    pub(super) fn of_mode(mode: &str) -> Result<Grid> {
        Ok(match mode {
            "STRICT_ALIGN_CORNERS" => Grid::StrictAligned,
            "ALIGN_CORNERS" => Grid::Aligned,
            "UNALIGN_CORNERS" => Grid::Unaligned,
            "DEFAULT" => Grid::Default,
            "OFFSET_CORNERS" => Grid::Offset,
            other => fail!(
                "`sampling_mode` must be `STRICT_ALIGN_CORNERS`, `ALIGN_CORNERS`, `UNALIGN_CORNERS`, `DEFAULT` or \
                 `OFFSET_CORNERS`, got `{other}`"
            ),
        })
    }

    /// Position of point `at` of `count`, from the first element at 0 to the last at `length`.
    pub(super) fn point(self, at: usize, length: f64, count: usize) -> f64 {
        let (at, parts) = (at as f64, count as f64);
        let spread = length + 1.0;
        let point = match self {
            Grid::Aligned if count == 1 => length / 2.0,
            Grid::StrictAligned | Grid::Aligned => match count {
                1 => 0.0,
                _ => at * length / (parts - 1.0),
            },
            Grid::Unaligned => (at + 0.5) * spread / parts - 0.5,
            Grid::Default => at * spread / parts,
            Grid::Offset => (at + 0.5) * length.max(1.0) / parts,
        };
        point.max(0.0).min(length)
    }

    /// The interpolation at each of `to` points over `from` elements.
    pub(super) fn taps(self, from: usize, to: usize) -> Vec<Tap> {
        let length = from as f64 - 1.0;
        (0..to).map(|at| Tap::at(self.point(at, length, to), from)).collect()
    }

    /// The element nearest to each of `to` points over `from` elements.
    pub(super) fn nearest(self, from: usize, to: usize) -> Vec<usize> {
        let place = |at: usize| match self {
            Grid::Unaligned | Grid::Default => {
                let middle = (2 * at as u128 + 1) * from as u128 / (2 * to as u128);
                middle as usize
            }
            Grid::StrictAligned | Grid::Aligned | Grid::Offset => {
                let point = self.point(at, from as f64 - 1.0, to);
                ((point + 0.5).floor() as usize).min(from - 1)
            }
        };
        (0..to).map(place).collect()
    }
}

impl Tap {
    /// The interpolation at a point, which must be within the axis.
    pub(super) fn at(point: f64, extent: usize) -> Tap {
        let low = (point.floor() as usize).min(extent.saturating_sub(1));
        let high = (low + 1).min(extent.saturating_sub(1));
        let share = if high == low { 0.0 } else { point - low as f64 };
        Tap { low, high, share }
    }

    /// The interpolated value.
    pub(super) fn blend(&self, low: f32, high: f32) -> f32 {
        let share = self.share as f32;
        if share == 0.0 { low } else { low * (1.0 - share) + high * share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples from the documentation of `resize_bilinear`.
    #[test]
    fn grid_points_match_documentation() {
        let cases: [(Grid, &[f64]); 8] = [
            (Grid::Unaligned, &[0.0, 0.1, 0.5, 0.9, 1.0]),
            (Grid::StrictAligned, &[0.0, 0.25, 0.5, 0.75, 1.0]),
            (Grid::Default, &[0.0, 0.4, 0.8, 1.0, 1.0]),
            (Grid::Offset, &[0.1, 0.3, 0.5, 0.7, 0.9]),
            (Grid::Unaligned, &[0.0, 0.0, 0.33, 0.67, 1.0, 1.0]),
            (Grid::Aligned, &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (Grid::Default, &[0.0, 0.33, 0.67, 1.0, 1.0, 1.0]),
            (Grid::Offset, &[0.08, 0.25, 0.42, 0.58, 0.75, 0.92]),
        ];
        for (grid, points) in cases {
            for (at, expected) in points.iter().enumerate() {
                let point = grid.point(at, 1.0, points.len());
                assert!((point - expected).abs() < 0.005, "{grid:?} {at}: {point}");
            }
        }
    }
}
