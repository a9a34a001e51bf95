//! Parameters of weights that training or a caller found.

use std::hash::{DefaultHasher, Hash, Hasher};

use coremill_mil::ir::Opset;

use crate::error::{Error, Refusal};

/// Compression of a weight with known parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainedCompression {
    /// Whether zeros are stored as a bit mask.
    pub is_sparse: bool,
    /// Lookup tables, `None` for a weight that is not palettized.
    pub table: Option<TrainedTable>,
    /// Integers with a scale, `None` for floats. With a table, its entries are the integers.
    pub integers: Option<TrainedIntegers>,
}

/// Lookup tables of a weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainedTable {
    /// Entries with two axes more than the weight: the numbers of blocks, the entries of a table, and the
    /// elements of an entry. The last axis may be missing.
    pub entries: TrainedParameter,
    /// Divisor of the weight before the look-up, with an axis for each axis of the weight.
    pub scale: Option<TrainedParameter>,
    /// Axis of the elements of an entry; the first if `None`.
    pub vector_axis: Option<i64>,
}

/// Scale and zero point of integers. The sizes are the numbers of blocks along each axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainedIntegers {
    /// Number of bits: 4 or 8.
    pub bits: u32,
    /// Scale of each block.
    pub scale: TrainedParameter,
    /// Zero point of each block, `None` for zeros.
    pub zero_point: Option<TrainedParameter>,
}

/// A tensor of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainedParameter {
    /// The sizes.
    pub shape: Vec<usize>,
    /// The elements in row-major order.
    pub elements: Vec<f32>,
}

/// A weight as indices of lookup tables that a caller computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexedWeight {
    /// Name of the function.
    pub function: String,
    /// Name of the weight.
    pub name: String,
    /// Number of bits of an index.
    pub bits: u32,
    /// Tables: the numbers of blocks, the entries of a table, and the elements of an entry.
    pub entries: TrainedParameter,
    /// An index for each element or vector.
    pub indices: Vec<u8>,
    /// Axis of vectors, `None` for single elements.
    pub vector_axis: Option<usize>,
}

impl TrainedParameter {
    /// The parameter with as many axes as a weight: unit axes are appended, or removed from the end.
    pub(crate) fn of_rank(&self, rank: usize) -> Option<TrainedParameter> {
        let mut shape = self.shape.clone();
        while shape.len() > rank && shape.last() == Some(&1) {
            shape.pop();
        }
        if shape.len() > rank {
            return None;
        }
        shape.resize(rank, 1);
        Some(TrainedParameter { shape, elements: self.elements.clone() })
    }

    fn bits(&self) -> (&[usize], Vec<u32>) {
        (&self.shape, self.elements.iter().map(|element| element.to_bits()).collect())
    }

    /// Whether there is a single element.
    pub(crate) fn is_for_all(&self) -> bool {
        self.elements.len() == 1
    }
}

impl TrainedCompression {
    /// The oldest release that supports the result.
    pub fn needs(&self) -> Opset {
        let methods = [self.is_sparse, self.table.is_some(), self.integers.is_some()];
        if methods.into_iter().filter(|method| *method).count() > 1 {
            return Opset::Ios18;
        }
        let of_table = self.table.as_ref().map(|table| {
            // Older releases have one table of single elements.
            let is_single = table.entries.shape.iter().filter(|&&size| size > 1).count() <= 1;
            if is_single && table.scale.is_none() { Opset::Ios16 } else { Opset::Ios18 }
        });
        let of_integers = self.integers.as_ref().map(|integers| {
            let divided = integers.scale.shape.iter().filter(|&&count| count > 1).count();
            if integers.bits == 8 && divided <= 1 { Opset::Ios16 } else { Opset::Ios18 }
        });
        of_table.or(of_integers).unwrap_or(Opset::Ios16)
    }

    /// Identifies the parameters within a process.
    pub(crate) fn digest(&self) -> [u64; 2] {
        [0, 1].map(|seed: u64| {
            let mut hasher = DefaultHasher::new();
            (seed, self.is_sparse).hash(&mut hasher);
            if let Some(TrainedTable { entries, scale, vector_axis }) = &self.table {
                vector_axis.hash(&mut hasher);
                [Some(entries), scale.as_ref()]
                    .map(|part| part.map(|part| part.bits()))
                    .hash(&mut hasher);
            }
            if let Some(TrainedIntegers { bits, scale, zero_point }) = &self.integers {
                bits.hash(&mut hasher);
                [Some(scale), zero_point.as_ref()]
                    .map(|part| part.map(|part| part.bits()))
                    .hash(&mut hasher);
            }
            hasher.finish()
        })
    }

    /// Checks the parameters independently of a weight.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(integers) = &self.integers
            && !matches!(integers.bits, 4 | 8)
        {
            let message = format!("quantized weights must have 4 or 8 bits, got {}", integers.bits);
            return Err(Error::option(message));
        }
        let parts = [
            self.table.as_ref().map(|table| &table.entries),
            self.table.as_ref().and_then(|table| table.scale.as_ref()),
            self.integers.as_ref().map(|integers| &integers.scale),
            self.integers.as_ref().and_then(|integers| integers.zero_point.as_ref()),
        ];
        for part in parts.into_iter().flatten() {
            let count = part.shape.iter().product::<usize>();
            if count != part.elements.len() {
                return Err(Error::option(format!(
                    "a parameter of shape {:?} must have {count} elements, got {}",
                    part.shape,
                    part.elements.len()
                )));
            }
            if !part.elements.iter().all(|element| element.is_finite()) {
                return Err(Error::option("some elements of a parameter are NaN or infinite"));
            }
        }
        let scales = [
            self.integers.as_ref().map(|integers| &integers.scale),
            self.table.as_ref().and_then(|table| table.scale.as_ref()),
        ];
        if scales.into_iter().flatten().any(|scale| scale.elements.contains(&0.0)) {
            return Err(Error::option("scales must not be 0"));
        }
        Ok(())
    }
}

impl TrainedTable {
    /// Number of blocks along each axis, entries per table, and elements per entry.
    pub(crate) fn sizes(&self, rank: usize) -> Result<(Vec<usize>, usize, usize), Refusal> {
        let shape = &self.entries.shape;
        match (shape.get(..rank), shape.get(rank), shape.get(rank + 1), shape.len()) {
            (Some(counts), Some(&length), vector, found) if found <= rank + 2 => {
                Ok((counts.to_vec(), length, vector.copied().unwrap_or(1)))
            }
            _ => Err(Refusal::Kept("its lookup table has the wrong number of axes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(shape: &[usize]) -> TrainedParameter {
        let count = shape.iter().product();
        TrainedParameter { shape: shape.to_vec(), elements: vec![1.0; count] }
    }

    #[test]
    fn of_rank_adds_and_removes_unit_axes() {
        assert_eq!(parameter(&[8, 1]).of_rank(4).expect("axes are appended").shape, [8, 1, 1, 1]);
        assert_eq!(parameter(&[8, 1, 1, 1]).of_rank(2).expect("axes are removed").shape, [8, 1]);
        assert_eq!(
            parameter(&[]).of_rank(2).expect("a scalar applies to all elements").shape,
            [1, 1]
        );
        assert!(parameter(&[8, 2, 1]).of_rank(1).is_none());
    }

    #[test]
    fn joint_or_fine_grained_compression_needs_ios_18() {
        let integers = |bits, shape: &[usize]| TrainedCompression {
            integers: Some(TrainedIntegers { bits, scale: parameter(shape), zero_point: None }),
            ..TrainedCompression::default()
        };
        assert_eq!(integers(8, &[8, 1]).needs(), Opset::Ios16);
        assert_eq!(integers(8, &[8, 2]).needs(), Opset::Ios18);
        assert_eq!(integers(4, &[8, 1]).needs(), Opset::Ios18);
        let sparse = TrainedCompression { is_sparse: true, ..integers(8, &[8, 1]) };
        assert_eq!(sparse.needs(), Opset::Ios18);
        let table = |shape: &[usize]| TrainedCompression {
            table: Some(TrainedTable { entries: parameter(shape), ..TrainedTable::default() }),
            ..TrainedCompression::default()
        };
        assert_eq!(table(&[1, 1, 16, 1]).needs(), Opset::Ios16);
        assert_eq!(table(&[4, 1, 16, 1]).needs(), Opset::Ios18);
        assert_eq!(table(&[1, 1, 16, 2]).needs(), Opset::Ios18);
    }
}
