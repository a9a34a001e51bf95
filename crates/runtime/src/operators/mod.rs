//! Kernels for calls that are not delegated.
//!
//! A kernel has the name of an operator and a signature that lists the kinds of its arguments. A test compares the
//! tables of all families with ExecuTorch's own list. Kernels access arguments by position in the operator's schema.
//! They resize outputs before writing them.
//!
//! | module | holds |
//! |---|---|
//! | `arguments` | arguments of kernels |
//! | `map` | elementwise loops with broadcasting, and copies of strided elements |
//! | `unary` `binary` `select` | elementwise functions |
//! | `create` | creation, copies, conversions |
//! | `shape` `index` `pad` | movement of elements |
//! | `reduce` `pool` `normalize` `distance` | reductions and normalization |
//! | `matmul` `convolution` `resample` | linear algebra |
//! | `complex` `fourier` | complex numbers |
//! | `prim` | numbers and sizes |
//! | `packed` | cached weights in the kernels' layout |

mod arguments;
mod binary;
mod complex;
mod convolution;
mod create;
mod distance;
mod fourier;
mod index;
mod map;
mod matmul;
mod normalize;
mod packed;
mod pad;
mod pool;
mod prim;
mod reduce;
mod resample;
mod select;
mod shape;
mod unary;

pub(crate) use arguments::{Argument, Arguments, Machine};
pub(crate) use map::copy_elements;
pub(crate) use packed::Cache;
pub(crate) use shape::inferred_sizes;

use crate::error::Result;
use crate::number::Scalar;
use crate::view::OutTensor;

const TABLES: [&[Kernel]; 17] = [
    binary::TABLE,
    complex::TABLE,
    convolution::TABLE,
    create::TABLE,
    distance::TABLE,
    fourier::TABLE,
    index::TABLE,
    matmul::TABLE,
    normalize::TABLE,
    pad::TABLE,
    pool::TABLE,
    prim::TABLE,
    reduce::TABLE,
    resample::TABLE,
    select::TABLE,
    shape::TABLE,
    unary::TABLE,
];

/// A kernel, as a row of a table.
pub(crate) struct Kernel {
    /// Operator with overload.
    pub(crate) name: &'static str,
    /// One letter per argument; see [`Kernel::inputs`].
    signature: &'static str,
    pub(crate) run: Run,
}

/// Function of a kernel.
pub(crate) enum Run {
    /// Writes tensors.
    Tensors(fn(&Arguments, &mut [OutTensor]) -> Result),
    /// Returns a number.
    Number(fn(&Arguments) -> Result<Scalar>),
}

const fn kernel(
    name: &'static str,
    signature: &'static str,
    run: fn(&Arguments, &mut [OutTensor]) -> Result,
) -> Kernel {
    Kernel { name, signature, run: Run::Tensors(run) }
}

const fn number_kernel(
    name: &'static str,
    signature: &'static str,
    run: fn(&Arguments) -> Result<Scalar>,
) -> Kernel {
    Kernel { name, signature, run: Run::Number(run) }
}

impl Kernel {
    /// One letter for each argument that is not an output.
    ///
    /// `T` is a tensor, `M` a tensor that is also written, `L` a list of tensors, `O` a list of optional tensors,
    /// `I` an integer or an enumeration, `B` a boolean, `D` a float, `S` a number, `C` a string, `N` integers, `A`
    /// booleans and `F` optional floats. A lowercase letter is an optional argument.
    pub(crate) fn inputs(&self) -> &'static str {
        self.signature.split('>').next().unwrap_or_default()
    }

    /// One letter per output: `T` for a tensor, `L` for a list of tensors, `V` for a tensor that becomes a view.
    pub(crate) fn outputs(&self) -> &'static str {
        self.signature.split('>').nth(1).unwrap_or_default()
    }

    /// Number of values in a call: all arguments, then the returned value.
    pub(crate) fn arity(&self) -> usize {
        let arguments = self.inputs().len() + self.outputs().len();
        // Kernels of the runtime itself return nothing.
        let returns = !self.name.starts_with("executorch_prim::et_");
        arguments + usize::from(returns)
    }

    /// The complete signature.
    pub(crate) fn signature(&self) -> &'static str {
        self.signature
    }
}

/// The kernel of an operator.
pub(crate) fn find(name: &str) -> Option<&'static Kernel> {
    TABLES.iter().find_map(|table| {
        let place = table.binary_search_by(|kernel| kernel.name.cmp(name)).ok()?;
        Some(&table[place])
    })
}

/// All kernels, by name and signature.
pub(crate) fn all() -> impl Iterator<Item = &'static Kernel> {
    TABLES.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_sorted_and_unique() {
        for table in TABLES {
            for pair in table.windows(2) {
                assert!(pair[0].name < pair[1].name, "{} and {}", pair[0].name, pair[1].name);
            }
        }
        let mut names: Vec<&str> = all().map(|kernel| kernel.name).collect();
        assert_eq!(names.len(), 240);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 240);
        assert!(names.into_iter().all(|name| find(name).is_some_and(|kernel| kernel.name == name)));
    }
}
