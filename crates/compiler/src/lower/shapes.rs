//! Allowed shapes of inputs.
//!
//! By default torch's ranges of dynamic dimensions apply. The caller can request a list of shapes instead, which the
//! Neural Engine supports while it does not support ranges. The n-th shapes of all inputs then belong together.

use std::collections::HashMap;

use coremill_mil::ir::{Dim, Opset, ValueId};
use coremill_mil::model::shapes::{self, FlexibleShapes};
use coremill_mil::text::identifier;
use coremill_pt2::{Argument, Hint, InputKind, Meta, Number, Size, Symbol, SymbolId, TensorMeta};

use super::Lowering;
use crate::error::{LoweringError, Result, refuse};

/// Core ML's marker for a dimension without upper bound.
const UNBOUNDED: i32 = -1;

/// A tensor input, under its public name.
struct Input<'p> {
    name: String,
    meta: &'p TensorMeta,
}

impl Lowering<'_> {
    /// The tensors among the user's inputs.
    fn tensor_inputs(&self) -> Vec<Input<'_>> {
        let graph = &self.program.graph;
        let mut inputs = Vec::new();
        let mut users = 0;
        for (argument, kind) in graph.inputs.iter().zip(&self.program.inputs) {
            let (Argument::Value(id), InputKind::User) = (argument, kind) else { continue };
            let value = graph.value(*id);
            let name = self.options.input_names.get(users).unwrap_or(&value.name);
            users += 1;
            if let Meta::Tensor(meta) = &value.meta {
                inputs.push(Input { name: identifier(name), meta });
            }
        }
        inputs
    }

    /// Checks that the program supports the requested shapes.
    pub(super) fn check_shapes(&self) -> Result<()> {
        let asked = &self.options.shapes;
        if asked.is_empty() {
            return Ok(());
        }
        let inputs = self.tensor_inputs();
        for name in asked.keys() {
            if !inputs.iter().any(|input| input.name == *name) {
                let known: Vec<_> =
                    inputs.iter().map(|input| format!("`{}`", input.name)).collect();
                let refusal = LoweringError::new(format!(
                    "shapes are given for `{name}`, which is not an input"
                ));
                return Err(refusal.hint(format!("the inputs are {}", known.join(", "))));
            }
        }
        let mut count = None;
        let mut of_symbols: HashMap<SymbolId, (String, Vec<u64>)> = HashMap::new();
        let mut several = Vec::new();
        for input in &inputs {
            let is_open = input.meta.sizes.iter().any(|size| size.fixed().is_none());
            let Some(shapes) = asked.get(&input.name) else {
                if is_open {
                    return Err(LoweringError::new(format!(
                        "input `{}` has dynamic dimensions, but shapes are given for other inputs only",
                        input.name
                    ))
                    .hint("pass shapes for every input with dynamic dimensions"));
                }
                continue;
            };
            self.check_input(input, shapes)?;
            if shapes.len() > 1 {
                several.push(input.name.as_str());
            }
            match count {
                None => count = Some((input.name.as_str(), shapes.len())),
                Some((_, found)) if found == shapes.len() => {}
                Some((other, found)) => refuse!(
                    "`{other}` has {found} shapes, but `{}` has {}; shapes are matched by position, so \
                     the numbers must be equal",
                    input.name,
                    shapes.len()
                ),
            }
            for (axis, size) in input.meta.sizes.iter().enumerate() {
                let Some(symbol) = size.symbol() else { continue };
                let extents: Vec<_> = shapes.iter().map(|shape| shape[axis]).collect();
                let (first, known) = of_symbols
                    .entry(symbol)
                    .or_insert_with(|| (input.name.clone(), extents.clone()));
                if *known != extents {
                    refuse!(
                        "dimension {axis} of `{}` has the sizes {extents:?}, but it must equal a dimension of \
                         `{first}` with the sizes {known:?}",
                        input.name
                    );
                }
            }
        }
        if let [first, second, ..] = several[..]
            && self.builder.opset() < Opset::Ios18
        {
            let what = format!("a choice of shapes for several inputs, `{first}` and `{second}`,");
            return Err(LoweringError::needs(&what, Opset::Ios18, self.builder.opset()));
        }
        Ok(())
    }

    fn check_input(&self, input: &Input<'_>, shapes: &[Vec<u64>]) -> Result<()> {
        let Input { name, meta } = input;
        if shapes.is_empty() {
            refuse!("`{name}` must have at least one shape");
        }
        for (at, shape) in shapes.iter().enumerate() {
            if shape.len() != meta.sizes.len() {
                refuse!(
                    "`{name}` has {} dimensions, but shape {shape:?} has {}",
                    meta.sizes.len(),
                    shape.len()
                );
            }
            if shapes[..at].contains(shape) && self.options.shapes.len() == 1 {
                refuse!("shape {shape:?} of `{name}` is listed twice");
            }
            for (axis, (&extent, size)) in shape.iter().zip(&meta.sizes).enumerate() {
                let Ok(found) = i32::try_from(extent) else {
                    refuse!(
                        "dimension {axis} of `{name}` has size {extent}, which does not fit in 32 bits"
                    );
                };
                if found < 1 {
                    refuse!(
                        "the size of dimension {axis} of `{name}` must be at least 1, got {found}"
                    );
                }
                let (_, [lowest, highest]) = self.range(size);
                // torch specializes size 1 and declares ranges from 2. In practice such programs also work with size
                // 1.
                let lowest = if lowest == 2 && size.fixed().is_none() { 1 } else { lowest };
                if found < lowest || highest != UNBOUNDED && found > highest {
                    let of = match highest {
                        UNBOUNDED => format!("sizes from {lowest}"),
                        highest if size.fixed().is_some() => format!("size {highest} only"),
                        highest => format!("sizes {lowest} to {highest}"),
                    };
                    return Err(LoweringError::new(format!(
                        "dimension {axis} of `{name}` has size {found}; the program was exported for {of}"
                    ))
                    .hint(format!(
                        "export it with `dynamic_shapes={{\"{name}\": {{{axis}: torch.export.Dim.AUTO}}}}`, \
                         so that the dimension also accepts {found}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Dimensions of an input; also records its allowed shapes.
    pub(super) fn input_shape(&mut self, name: &str, meta: &TensorMeta) -> Vec<Dim> {
        let narrow = |extent: &u64| i32::try_from(*extent).unwrap_or(i32::MAX);
        if let Some(asked) = self.options.shapes.get(name) {
            let of_axis = |axis: usize| asked.iter().map(move |shape| shape[axis]);
            let dim = |axis: usize| {
                let first = asked[0][axis];
                let same = of_axis(axis).all(|extent| extent == first);
                if same { Dim::Known(first) } else { Dim::Unknown }
            };
            if asked.len() > 1 {
                let hint: Vec<_> = meta.sizes.iter().map(|size| self.range(size).0).collect();
                let sets: Vec<Vec<i32>> =
                    asked.iter().map(|shape| shape.iter().map(narrow).collect()).collect();
                let default = if sets.contains(&hint) { hint } else { sets[0].clone() };
                self.shapes.defaults.push((name.to_owned(), default));
                self.shapes.enumerated.resize_with(sets.len(), Vec::new);
                for (all, set) in self.shapes.enumerated.iter_mut().zip(sets) {
                    all.push((name.to_owned(), set));
                }
            }
            return (0..meta.sizes.len()).map(dim).collect();
        }
        let dim = |size: &Size| size.extent().map_or(Dim::Unknown, Dim::Known);
        let shape: Vec<_> = meta.sizes.iter().map(dim).collect();
        if shape.contains(&Dim::Unknown) {
            let (default, ranges): (Vec<_>, Vec<_>) =
                meta.sizes.iter().map(|size| self.range(size)).unzip();
            self.shapes.defaults.push((name.to_owned(), default));
            self.shapes.ranges.push((name.to_owned(), ranges));
        }
        shape
    }

    /// Renames the recorded shapes of the last input to its final name.
    pub(super) fn name_shapes(&mut self, name: &str, input: ValueId) {
        let found = &self.builder.function.value(input).name;
        if found == name {
            return;
        }
        let FlexibleShapes { defaults, ranges, enumerated } = &mut self.shapes;
        let sets = enumerated.iter_mut().filter_map(|set| set.last_mut());
        let shapes = defaults.last_mut().into_iter().chain(sets).map(|(own, _)| own);
        let names = shapes.chain(ranges.last_mut().map(|(own, _)| own));
        names.filter(|own| *own == name).for_each(|own| own.clone_from(found));
    }

    /// Adds the allowed shapes to the function if an input has several.
    pub(super) fn state_shapes(&mut self) {
        let shapes = &mut self.shapes;
        if shapes.defaults.is_empty() {
            return;
        }
        shapes.defaults.sort();
        shapes.ranges.sort();
        shapes.enumerated.iter_mut().for_each(|set| set.sort());
        let stated = shapes.to_constant();
        self.builder.function.attributes.insert(shapes::ATTRIBUTE, stated);
    }

    /// The size at export, and the smallest and largest size declared by the program.
    fn range(&self, size: &Size) -> (i32, [i32; 2]) {
        let narrow = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
        let symbolic = match size {
            Size::Fixed(extent) => return (narrow(*extent), [narrow(*extent); 2]),
            Size::Symbolic(symbolic) => symbolic,
        };
        let symbols = &self.program.symbols;
        let at = |pick: &dyn Fn(&Symbol) -> Option<i64>| {
            let value = symbolic.expression.evaluate(&|id| pick(symbols.get(id)));
            value.and_then(Number::integer)
        };
        // Assumes that sizes increase with their symbols.
        let lowest = at(&|symbol| symbol.minimum).map_or(1, narrow).max(1);
        let highest = at(&|symbol| symbol.maximum).map_or(UNBOUNDED, narrow);
        let default = match symbolic.hint {
            Some(Hint::Int(value)) => narrow(value),
            _ => at(&|symbol| symbol.hint).map_or(lowest, narrow),
        };
        if highest == UNBOUNDED {
            return (default.max(lowest), [lowest, highest]);
        }
        let highest = highest.max(lowest);
        (default.clamp(lowest, highest), [lowest, highest])
    }
}
