//! The kernels of ExecuTorch's runtime: what is not delegated is computed by them.
//!
//! A kernel has the name of an operator and a signature, which says what the operator's arguments are; the
//! tables of all families are checked against ExecuTorch's own list by a test. Kernels get their arguments
//! by their places in the operator's schema, and write outputs, whose sizes they set first.
//!
//! | module | holds |
//! |---|---|
//! | `arguments` | what kernels are given |
//! | `map` | loops over elements that are broadcast, and copies of strided elements |
//! | `unary` `binary` `select` | functions of single elements |
//! | `create` | tensors made of numbers, copies, conversions |
//! | `shape` `index` `pad` | elements that change their places |
//! | `reduce` `pool` `normalize` `distance` | many elements that become one |
//! | `matmul` `convolution` `resample` | linear algebra |
//! | `complex` `fourier` | complex numbers |
//! | `prim` | numbers and sizes |
//! | `packed` | weights that are rearranged once |

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
    /// The operator, with its overload.
    pub(crate) name: &'static str,
    /// A letter for each argument: see [`Kernel::inputs`].
    signature: &'static str,
    pub(crate) run: Run,
}

/// What a kernel does.
pub(crate) enum Run {
    /// It writes tensors.
    Tensors(fn(&Arguments, &mut [OutTensor]) -> Result),
    /// It gives a number.
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
    /// A letter for each argument that is not an output of its own.
    ///
    /// `T` is a tensor, `M` one that is also written; `L` tensors, `O` tensors of which some are missing; `I`
    /// an integer or an enumeration, `B` a truth value, `D` a float, `S` a number, `C` text; `N` integers,
    /// `A` truth values. Lower case: or nothing; `F`: floats or nothing.
    pub(crate) fn inputs(&self) -> &'static str {
        self.signature.split('>').next().unwrap_or_default()
    }

    /// `T` for each tensor that is an output of its own, `L` for a list of them, `V` for one that becomes a view.
    pub(crate) fn outputs(&self) -> &'static str {
        self.signature.split('>').nth(1).unwrap_or_default()
    }

    /// How many values a call names: every argument, then what is returned.
    pub(crate) fn arity(&self) -> usize {
        let arguments = self.inputs().len() + self.outputs().len();
        // Two kernels of the runtime itself return nothing.
        let returns = !self.name.starts_with("executorch_prim::et_");
        arguments + usize::from(returns)
    }

    /// The whole signature.
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
    fn tables_are_in_order_and_name_each_kernel_once() {
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
