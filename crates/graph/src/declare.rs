//! Declarations of inputs, parameters, states, outputs and constants.

use std::panic::Location;

use coremill_mil::ir::{Constant, ConstantData, Definition, Dim, Opset, TensorType, Type, Weight};
use coremill_mil::ops::OpKind;
use coremill_mil::text::{identifier, is_plain, is_reserved};
use coremill_tensor::DType;

use crate::arg::{ACCEPTED_EXTENTS, Arg, Ints, Operand, extents};
use crate::call::Call;
use crate::graph::{Graph, ParamSlot};
use crate::state::State;
use crate::tensor::Tensor;

impl Graph {
    /// Declares an input. Core ML supports `fp32`, `int32` and `fp16` inputs.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Ints>) -> Tensor<'_> {
        let shape = shape.into();
        let ranges: Vec<_> = shape.values.iter().map(|&extent| (extent, extent)).collect();
        self.add_input(name, dtype, &ranges, Location::caller())
    }

    /// Declares an input with dynamic dimensions. Each range is the minimum and the maximum size of a
    /// dimension. The default shape has the minimum sizes.
    #[track_caller]
    pub fn flexible_input(&self, name: &str, dtype: DType, ranges: &[(i64, i64)]) -> Tensor<'_> {
        self.add_input(name, dtype, ranges, Location::caller())
    }

    fn add_input(
        &self,
        name: &str,
        dtype: DType,
        ranges: &[(i64, i64)],
        location: &'static Location<'static>,
    ) -> Tensor<'_> {
        if !matches!(dtype, DType::Fp32 | DType::Fp16 | DType::Int32) {
            let message = format!(
                "input `{name}` has type `{dtype}`; Core ML accepts `fp32`, `fp16` and `int32`"
            );
            return self.mistake(
                message,
                Some("declare one of those, and cast it".into()),
                location,
            );
        }
        if ranges.is_empty() || ranges.len() > 5 {
            let rank = ranges.len();
            let message =
                format!("input `{name}` has rank {rank}; Core ML's inputs have rank 1 to 5");
            return self.mistake(message, None, location);
        }
        let extent = |extent: i64| i32::try_from(extent).ok().filter(|&extent| extent > 0);
        let bounds: Option<Vec<[i32; 2]>> = ranges
            .iter()
            .map(|&(low, high)| Some([extent(low)?, extent(high).filter(|_| low <= high)?]))
            .collect();
        let Some(bounds) = bounds else {
            let message = format!(
                "input `{name}` has sizes {}; expected 1 to 2^31 - 1{}",
                shown_ranges(ranges),
                if ranges.iter().any(|(low, high)| low > high) {
                    ", lower bound first"
                } else {
                    ""
                }
            );
            return self.mistake(message, None, location);
        };
        let largest: Vec<i64> = ranges.iter().map(|&(_, high)| high).collect();
        if extents(&largest).is_none() {
            let message = format!(
                "input `{name}` of sizes {} has too many elements to address",
                shown_ranges(ranges)
            );
            return self.mistake(message, None, location);
        }
        if !self.take(name, "input", location) {
            return self.nothing();
        }
        let mut inner = self.state.borrow_mut();
        let shape = bounds.iter().map(|&[low, high]| match low == high {
            true => Dim::Known(low as u64),
            false => Dim::Unknown,
        });
        let ty = Type::Tensor(TensorType { dtype, shape: shape.collect() });
        if bounds.iter().any(|[low, high]| low != high) {
            let default = bounds.iter().map(|&[low, _]| low).collect();
            inner.shapes.defaults.push((name.to_owned(), default));
            inner.shapes.ranges.push((name.to_owned(), bounds));
        }
        inner.builder.claim_name(name);
        Tensor::new(self, Some(inner.builder.input(name, ty)))
    }

    /// Declares a parameter: a float tensor that is set by name before the first run.
    #[track_caller]
    pub fn param(&self, name: &str, shape: impl Into<Ints>) -> Tensor<'_> {
        let location = Location::caller();
        let shape = shape.into().values;
        let Some(shape) = extents(&shape) else {
            let message = format!("parameter `{name}` has sizes {shape:?}; {ACCEPTED_EXTENTS}");
            return self.mistake(message, None, location);
        };
        let full = self.state.borrow().scoped(name);
        let known = self.state.borrow().params.iter().find(|param| param.name == full).cloned();
        if let Some(known) = known {
            if known.shape == shape {
                let value = self.state.borrow().builder.function.op(known.op).outputs[0];
                return Tensor::new(self, Some(value));
            }
            let before = &known.shape;
            let message = format!(
                "parameter `{full}` is declared with shape {before:?} and again with {shape:?}"
            );
            return self.mistake(message, Some("rename one of them".into()), location);
        }
        if !self.take(&full, "parameter", location) {
            return self.nothing();
        }
        let constant = Constant {
            ty: Type::tensor(DType::Fp32, &shape),
            data: ConstantData::Weight(Weight { data: None, place: None }),
        };
        let mut inner = self.state.borrow_mut();
        let value = inner.builder.constant(&full, constant);
        let Definition::Output(op, _) = inner.builder.function.value(value).definition else {
            unreachable!("a constant is the output of its operation")
        };
        inner.params.push(ParamSlot { name: full, shape, op });
        Tensor::new(self, Some(value))
    }

    /// Declares a state: floats that persist between runs and are initially zero. Core ML stores states in
    /// `fp16`.
    #[track_caller]
    pub fn state(&self, name: &str, shape: impl Into<Ints>) -> State<'_> {
        let location = Location::caller();
        let shape = shape.into().values;
        let target = self.target();
        let extents = extents(&shape);
        let refusal = if target < Opset::Ios18 {
            Some(format!("state `{name}` needs iOS18; this graph targets {target}"))
        } else if extents.is_none() || shape.is_empty() || shape.len() > 5 {
            Some(format!(
                "state `{name}` must have 1 to 5 dimensions with sizes from 1 to 2^31 - 1, got {shape:?}"
            ))
        } else {
            None
        };
        if let Some(message) = refusal {
            let hint = "use this target: `Graph::new`, or `Graph::for_target(Opset::Ios18)`";
            let hint = (target < Opset::Ios18).then(|| hint.to_owned());
            self.note(message, hint, location);
            return State::new(self, None);
        }
        let full = self.state.borrow().scoped(name);
        if !self.take(&full, "state", location) {
            return State::new(self, None);
        }
        let name = identifier(&full);
        let held = Type::tensor(DType::Fp16, &extents.unwrap_or_default());
        let builder = &mut self.state.borrow_mut().builder;
        builder.claim_name(&name);
        State::new(self, Some(builder.input(name, Type::State(Box::new(held)))))
    }

    /// Declares an output. A scalar becomes a vector with one element. Booleans and narrow integers become
    /// `int32`, because Core ML has no other integer outputs.
    #[track_caller]
    pub fn output<'g>(&'g self, name: &str, tensor: impl Into<Arg<'g>>) {
        let location = Location::caller();
        let Operand::Tensor(mut tensor) = tensor.into().0 else {
            return self.note(
                format!("output `{name}` is not a tensor of the graph"),
                None,
                location,
            );
        };
        if self.state.borrow().builder.is_nested() {
            let message = format!("output `{name}` is declared inside a branch or a loop");
            return self.note(message, Some("return the value from the block".into()), location);
        }
        if !self.owns(tensor, &format!("output `{name}`"), location)
            || !self.take(name, "output", location)
        {
            return;
        }
        match tensor.dtype() {
            DType::Fp16 | DType::Fp32 | DType::Int32 => {}
            DType::Bool | DType::Int8 | DType::UInt8 | DType::Int16 | DType::UInt16 => {
                tensor = tensor.cast(DType::Int32);
            }
            _ => {}
        }
        if tensor.rank() == 0 && tensor.dtype() != DType::String {
            tensor = tensor.expand_dims([0]);
        }
        let Some(value) = tensor.value else { return };
        let inner = self.state.borrow();
        let own = inner.builder.is_computed_here(value) && !inner.outputs.contains(&value);
        drop(inner);
        let mut call = Call::new(self, OpKind::Identity);
        call.arg("x", tensor);
        let value = if own { Some(value) } else { call.unfolded().value };
        let Some(value) = value else { return };
        let mut inner = self.state.borrow_mut();
        if inner.builder.function.value(value).name != name {
            inner.builder.claim_name(name);
            inner.builder.function.value_mut(value).name = name.to_owned();
        }
        inner.outputs.push(value);
    }

    /// Returns a float constant.
    #[track_caller]
    pub fn floats(&self, shape: impl Into<Ints>, elements: &[f32]) -> Tensor<'_> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.numbers(DType::Fp32, shape.into(), elements.len(), bytes, Location::caller())
    }

    /// Returns an integer constant.
    #[track_caller]
    pub fn ints(&self, shape: impl Into<Ints>, elements: &[i32]) -> Tensor<'_> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.numbers(DType::Int32, shape.into(), elements.len(), bytes, Location::caller())
    }

    fn numbers(
        &self,
        dtype: DType,
        shape: Ints,
        count: usize,
        bytes: Vec<u8>,
        location: &'static Location<'static>,
    ) -> Tensor<'_> {
        let sizes: Option<Vec<u64>> =
            shape.values.iter().map(|&extent| u64::try_from(extent).ok()).collect();
        let product = |sizes: &[u64]| sizes.iter().try_fold(1u64, |all, &one| all.checked_mul(one));
        let sizes = sizes.filter(|sizes| product(sizes) == Some(count as u64));
        let Some(sizes) = sizes else {
            let shape = &shape.values;
            let message = format!("{count} elements do not fill a constant of shape {shape:?}");
            return self.mistake(message, None, location);
        };
        self.constant(Constant::by_size(dtype, &sizes, bytes))
    }

    /// Returns an integer scalar.
    pub fn int(&self, value: i32) -> Tensor<'_> {
        self.constant(Constant::int32(value))
    }

    /// Returns a float scalar.
    pub fn float(&self, value: f32) -> Tensor<'_> {
        self.constant(Constant::fp32(value))
    }

    /// Returns a constant of any type.
    pub fn constant(&self, constant: Constant) -> Tensor<'_> {
        let value = self.state.borrow_mut().builder.constant("const", constant);
        Tensor::new(self, Some(value))
    }

    /// Reserves a name of the interface, if it is unused and Core ML accepts it.
    fn take(&self, name: &str, what: &str, location: &'static Location<'static>) -> bool {
        let accepted = match what {
            "input" | "output" => name.is_empty() || is_plain(name),
            "state" => !is_reserved(name),
            _ => true,
        };
        // Parameters are identified by their slots; other declarations by their names in the model.
        let key = if what == "parameter" { name.to_owned() } else { identifier(name) };
        let (message, hint) = if name.is_empty() {
            (format!("the {what} has no name"), "give it a name")
        } else if !accepted {
            let hint =
                "use letters, digits and `_`, start with a letter or `_`, and avoid type names";
            (format!("{what} `{name}`: Core ML does not accept this name"), hint)
        } else if !self.state.borrow_mut().taken.insert(key) {
            let hint = "use distinct names for inputs, parameters, states and outputs";
            (format!("{what} `{name}`: the name is already used"), hint)
        } else {
            return true;
        };
        self.note(message, Some(hint.into()), location);
        false
    }
}

/// Formats declared sizes, dynamic ones as ranges.
fn shown_ranges(ranges: &[(i64, i64)]) -> String {
    let shown = ranges.iter().map(|&(low, high)| match low == high {
        true => low.to_string(),
        false => format!("{low}..={high}"),
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(", "))
}
