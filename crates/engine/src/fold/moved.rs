//! Folding of weights that are only moved: transposed, reshaped, sliced, concatenated, widened or
//! scaled.
//!
//! The results are lazy tensors, so that transposing all weights of a program takes no extra
//! memory.

use coremill_mil::infer::{InferredValue, KnownElements, normalize_axis};
use coremill_mil::ir::{Constant, Function, Op};
use coremill_mil::ops::OpKind;
use coremill_tensor::{DType, LazyTensor};

/// Minimum size of a lazy result. Smaller results are computed at once, so that passes can read
/// their elements.
const MIN_ELEMENTS: u64 = 4096;

/// Folds an operation on constants to lazy tensors. Returns `None` if the operation does more than
/// move elements, or if a result is small.
pub(super) fn moved(
    function: &Function,
    op: &Op,
    outcomes: &[InferredValue],
) -> Option<Vec<Constant>> {
    let shapes = outcomes.iter().map(|outcome| outcome.ty.as_tensor()?.known_shape());
    let shapes: Vec<Vec<u64>> = shapes.collect::<Option<_>>()?;
    if shapes.iter().any(|shape| shape.iter().product::<u64>() < MIN_ELEMENTS) {
        return None;
    }
    let operands = Operands { function, op };
    let one = |recipe: LazyTensor| recipe.reshape(shapes.first()?).ok().map(|recipe| vec![recipe]);
    let recipes = match op.kind()? {
        OpKind::Identity | OpKind::Reshape | OpKind::ExpandDims | OpKind::Squeeze => {
            one(operands.recipe("x")?)
        }
        OpKind::Transpose => {
            let x = operands.recipe("x")?;
            let order = operands.ints("perm")?;
            let order = order.into_iter().map(|axis| normalize_axis(axis, x.shape().len()).ok());
            let order: Vec<usize> = order.collect::<Option<_>>()?;
            one(x.permute(&order).ok()?)
        }
        OpKind::Cast => {
            let x = operands.recipe("x")?;
            let to = outcomes.first()?.ty.as_tensor()?.dtype;
            // Other casts round or wrap, which the engine's kernels define.
            let exact = matches!(
                (x.dtype(), to),
                (DType::Bool, DType::Int32 | DType::Fp32) | (DType::Int32, DType::Fp32)
            );
            if exact { one(x.cast(to).ok()?) } else { None }
        }
        OpKind::Concat => {
            let interleaved = operands.constant("interleave").map(Constant::as_bool);
            if interleaved.is_some_and(|interleaved| interleaved != Some(false)) {
                return None;
            }
            let axis = operands.axis(shapes.first()?.len())?;
            one(LazyTensor::concat(operands.recipes("values")?, axis).ok()?)
        }
        OpKind::Split => {
            let x = operands.recipe("x")?;
            let axis = operands.axis(x.shape().len())?;
            let mut start = 0;
            let parts = shapes.iter().map(|shape| {
                let part = x.clone().narrow(axis, start, shape[axis]).ok();
                start += shape[axis];
                part
            });
            parts.collect()
        }
        OpKind::SliceByIndex => one(operands.slice(shapes.first()?)?),
        OpKind::Mul => {
            let scaled = |all: &str, factor: &str| {
                let factor = operands.constant(factor)?;
                let all = operands.recipe(all)?;
                let fits = factor.tensor_type()?.dtype == DType::Fp32 && all.dtype() == DType::Fp32;
                let factor = KnownElements::from_constant(factor)?.only()?.float()?;
                let fits = fits && all.shape() == shapes.first()?.as_slice();
                if fits { all.scale(0, &[factor as f32]).ok() } else { None }
            };
            scaled("x", "y").or_else(|| scaled("y", "x")).map(|recipe| vec![recipe])
        }
        _ => None,
    };
    Some(recipes?.iter().map(Constant::of_recipe).collect())
}

/// The constant operands of an operation.
struct Operands<'f> {
    function: &'f Function,
    op: &'f Op,
}

impl<'f> Operands<'f> {
    fn constant(&self, name: &str) -> Option<&'f Constant> {
        self.function.bound_constant(self.op.binding(name)?)
    }

    fn ints(&self, name: &str) -> Option<Vec<i64>> {
        KnownElements::from_constant(self.constant(name)?)?.ints()
    }

    fn axis(&self, rank: usize) -> Option<usize> {
        normalize_axis(*self.ints("axis")?.first()?, rank).ok()
    }

    fn recipe(&self, name: &str) -> Option<LazyTensor> {
        self.constant(name)?.recipe()
    }

    fn recipes(&self, name: &str) -> Option<Vec<LazyTensor>> {
        let input = self.op.inputs.iter().find(|input| &*input.name == name)?;
        let constants = input.bindings.iter().map(|it| self.function.bound_constant(it));
        constants.map(|constant| constant?.recipe()).collect()
    }

    /// A slice with stride 1 whose result has the given shape.
    fn slice(&self, shape: &[u64]) -> Option<LazyTensor> {
        let mut x = self.recipe("x")?;
        let rank = x.shape().len();
        let mask = |name: &str| match self.op.binding(name) {
            None => Some(vec![false; rank]),
            Some(_) => {
                let mask = KnownElements::from_constant(self.constant(name)?)?;
                mask.elements.iter().map(|element| element.bool()).collect()
            }
        };
        if self.op.binding("stride").is_some() && self.ints("stride")?.iter().any(|&by| by != 1) {
            return None;
        }
        let (open, squeezed) = (mask("begin_mask")?, mask("squeeze_mask")?);
        let mut lengths = shape.iter();
        for (axis, begin) in self.ints("begin")?.into_iter().enumerate() {
            let size = *x.shape().get(axis)?;
            let begin = if begin < 0 { begin.checked_add_unsigned(size)?.max(0) } else { begin };
            let start = if *open.get(axis)? && !squeezed[axis] { 0 } else { begin.cast_unsigned() };
            let length = if *squeezed.get(axis)? { 1 } else { *lengths.next()? };
            x = x.narrow(axis, start, length).ok()?;
        }
        Some(x)
    }
}

#[cfg(test)]
mod tests {
    use coremill_mil::infer::Analysis;
    use coremill_mil::ir::{Binding, Opset};
    use coremill_tensor::Buffer;

    use super::*;
    use crate::{Array, evaluate};

    fn floats(shape: &[u64], first: f32) -> Constant {
        let count = shape.iter().product::<u64>();
        let bytes = (0..count).flat_map(|at| (first + at as f32).to_le_bytes());
        Constant::weight(DType::Fp32, shape, Buffer::from(bytes.collect::<Vec<u8>>()))
    }

    fn flags(flags: &[bool]) -> Constant {
        let bytes: Vec<u8> = flags.iter().map(|&flag| u8::from(flag)).collect();
        Constant::bytes(DType::Bool, &[flags.len() as u64], bytes)
    }

    /// Checks that the results are lazy, and equal to the engine's.
    fn check(kind: OpKind, operands: &[(&'static str, Vec<Constant>)]) {
        let function = Function::new("main", Opset::Ios18);
        let mut op = Op::new(kind);
        for (name, constants) in operands {
            let bindings = constants.iter().cloned().map(Binding::Literal).collect();
            op.set_input((*name).into(), bindings);
        }
        let mut analysis = Analysis::default();
        let outcomes = analysis.infer_op(&function, &op).expect("sound operands");
        let moved = moved(&function, &op, &outcomes)
            .unwrap_or_else(|| panic!("{kind:?} is not folded lazily"));
        let arrays: Vec<(&str, Vec<Array>)> = operands
            .iter()
            .map(|(name, all)| {
                (*name, all.iter().map(|it| Array::from_constant(it).expect("an array")).collect())
            })
            .collect();
        let arrays: Vec<_> = arrays.iter().map(|(name, all)| (*name, all.as_slice())).collect();
        let dtypes: Vec<_> =
            outcomes.iter().map(|it| it.ty.as_tensor().expect("a tensor").dtype).collect();
        let expected = evaluate(kind, Opset::Ios18, &arrays, &dtypes).expect("computed");
        assert_eq!(moved.len(), expected.len());
        for (moved, expected) in moved.iter().zip(&expected) {
            let shape: Vec<u64> = expected.shape().iter().map(|&extent| extent as u64).collect();
            let found = moved.tensor_type().and_then(|ty| ty.known_shape());
            assert_eq!(found.as_deref(), Some(&*shape), "{kind:?}");
            let bytes = expected.to_bytes().expect("numbers");
            assert!(moved.elements().expect("elements").as_bytes() == bytes, "{kind:?}");
        }
    }

    #[test]
    fn lazy_folds_match_engine_evaluation() {
        let x = || vec![floats(&[90, 2, 80], 0.5)];
        let ints = |ints: &[i32]| vec![Constant::int32s(ints)];
        let one = |int: i32| vec![Constant::int32(int)];
        check(OpKind::Transpose, &[("x", x()), ("perm", ints(&[2, 0, -2]))]);
        check(OpKind::Reshape, &[("x", x()), ("shape", ints(&[160, -1]))]);
        check(OpKind::ExpandDims, &[("x", x()), ("axes", ints(&[1]))]);
        check(OpKind::Squeeze, &[("x", vec![floats(&[1, 70, 70], 0.0)])]);
        check(
            OpKind::Cast,
            &[
                ("x", vec![Constant::bytes(DType::Bool, &[5000], vec![1; 5000])]),
                ("dtype", vec![Constant::string("fp32")]),
            ],
        );
        for (axis, other) in [(-1, [90, 2, 7]), (0, [5, 2, 80])] {
            check(
                OpKind::Concat,
                &[
                    ("values", vec![x().remove(0), floats(&other, -9.0)]),
                    ("axis", one(axis)),
                    ("interleave", vec![Constant::bool(false)]),
                ],
            );
        }
        check(OpKind::Split, &[("x", x()), ("num_splits", one(2)), ("axis", one(-2))]);
        check(
            OpKind::SliceByIndex,
            &[
                ("x", x()),
                ("begin", ints(&[-80, 1, 7])),
                ("end", ints(&[85, 0, 0])),
                ("begin_mask", vec![flags(&[false, false, true])]),
                ("end_mask", vec![flags(&[false, false, true])]),
                ("squeeze_mask", vec![flags(&[false, true, false])]),
            ],
        );
        check(OpKind::Mul, &[("x", vec![Constant::fp32(0.3)]), ("y", x())]);
    }

    #[test]
    fn declines_small_results_and_unsupported_ops() {
        let function = Function::new("main", Opset::Ios18);
        let declined = |kind: OpKind, operands: Vec<(&'static str, Constant)>| {
            let mut op = Op::new(kind);
            for (name, constant) in operands {
                op.set_input(name.into(), vec![Binding::Literal(constant)]);
            }
            let outcomes = Analysis::default().infer_op(&function, &op).expect("sound operands");
            moved(&function, &op, &outcomes).is_none()
        };
        assert!(declined(OpKind::Sqrt, vec![("x", floats(&[80, 80], 1.0))]));
        let perm = || ("perm", Constant::int32s(&[1, 0]));
        assert!(declined(OpKind::Transpose, vec![("x", floats(&[30, 30], 1.0)), perm()]));
        assert!(!declined(OpKind::Transpose, vec![("x", floats(&[80, 80], 1.0)), perm()]));
        let slice = vec![
            ("x", floats(&[20_000], 1.0)),
            ("begin", Constant::int32s(&[0])),
            ("end", Constant::int32s(&[20_000])),
            ("stride", Constant::int32s(&[2])),
        ];
        assert!(declined(OpKind::SliceByIndex, slice));
    }
}
