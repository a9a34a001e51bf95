//! Makes dimensions of generated programs dynamic: some dimensions of the inputs become unknown, and the program runs
//! with other shapes.

use coremill_mil::infer::analyze;
use coremill_mil::ir::{Dim, Function, Type};
use coremill_mil::model::shapes::{ATTRIBUTE, FlexibleShapes};

use crate::draw::Draw;

/// Maximum size of a dynamic dimension.
const MOST: i32 = 64;
const EXTENTS: [usize; 8] = [1, 2, 3, 4, 6, 8, 9, 16];

/// The function with some dynamic input dimensions; `None` if inference requires them to be known.
///
/// Constant arguments do not change: for instance, a `reshape` to fixed sizes is valid for one shape and not for
/// others.
pub(crate) fn open(function: &Function, draw: &mut Draw<'_>) -> Option<Function> {
    let mut function = function.clone();
    let mut shapes = FlexibleShapes::default();
    for input in function.inputs().to_vec() {
        let value = function.value_mut(input);
        let Type::Tensor(ty) = &mut value.ty else { return None };
        let (mut default, mut ranges) = (Vec::new(), Vec::new());
        for dim in &mut ty.shape {
            let Dim::Known(extent) = *dim else { return None };
            let extent = i32::try_from(extent).ok().filter(|extent| *extent > 0)?;
            default.push(extent);
            ranges.push([extent; 2]);
            if extent <= MOST && !draw.one_in(3) {
                *dim = Dim::Unknown;
                ranges.pop();
                ranges.push([1, MOST]);
            }
        }
        if ty.known_shape().is_none() {
            shapes.defaults.push((value.name.clone(), default));
            shapes.ranges.push((value.name.clone(), ranges));
        }
    }
    if shapes.ranges.is_empty() {
        return None;
    }
    let (analysis, problems) = analyze(&function);
    if !problems.is_empty() {
        return None;
    }
    let outputs: Vec<_> = function.all_ops().flat_map(|(_, op)| op.outputs.clone()).collect();
    for value in outputs {
        if let Some(Type::Tensor(mut ty)) = analysis.ty(value).cloned() {
            for dim in ty.shape.iter_mut().filter(|dim| matches!(dim, Dim::Symbolic(_))) {
                *dim = Dim::Unknown;
            }
            function.value_mut(value).ty = Type::Tensor(ty);
        }
    }
    function.attributes.insert(ATTRIBUTE, shapes.to_constant());
    Some(function)
}

/// Other shapes for inputs with dynamic dimensions: dimensions of equal size mostly stay equal.
pub(crate) fn reshape(
    shapes: &[Vec<usize>],
    fits: &dyn Fn(usize, &[usize]) -> bool,
    draw: &mut Draw<'_>,
) -> Vec<Vec<usize>> {
    let renamed: Vec<usize> = (0..=MOST as usize).map(|_| draw.of(&EXTENTS)).collect();
    let mut changed = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        let mut shape = shape.clone();
        for axis in 0..shape.len() {
            let before = shape[axis];
            let shared = renamed.get(before).copied().unwrap_or(before);
            shape[axis] = if draw.one_in(5) { draw.of(&EXTENTS) } else { shared };
            if !fits(index, &shape) {
                shape[axis] = before;
            }
        }
        changed.push(shape);
    }
    changed
}
