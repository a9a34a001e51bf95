//! Backend that runs Core ML delegates on the engine of this workspace.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use coremill_engine::{
    Array, Elements, ElementsView, Engine, FeatureSpec, Input, LoadOptions, Session, StateValue,
    Value,
};
use coremill_mil::ir::Dim;
use coremill_mil::model::{FeatureType, ShapeFlexibility};
use coremill_mlpackage::{compiled, package};
use coremill_pte::coreml::Payload;
use coremill_pte::program::ScalarType;
use coremill_tensor::{Buffer, DType};
use coremill_verify::{self as verify, verify};
use half::f16;

use crate::delegate::{Backend, Delegate, DelegatedPart, Feature, Interface};
use crate::error::{Error, ErrorKind, Result, ensure, fail};
use crate::hooks::{Hooks, INPUT};
use crate::number::{Compute, is_floating};
use crate::value::Tensor;
use crate::view::{OutTensor, View};

/// Runs models on the CPU. Methods that share a model share its weights.
#[derive(Default)]
pub(crate) struct HostBackend {
    engines: Mutex<HashMap<Source, Engine>>,
}

/// Location of a model in a program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Source {
    /// Index among the delegates' payloads.
    Data(u32),
    /// Name among the named data.
    Named(String),
}

/// One instance of a model, with its own states.
struct HostDelegate {
    session: Session,
    /// Indices of the function's inputs, in the order of the call.
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl Backend for HostBackend {
    fn id(&self) -> &str {
        "CoreMLBackend"
    }

    fn prepare(&self, part: &DelegatedPart<'_>) -> Result<Box<dyn Delegate>> {
        let payload = Payload::of(part.program, part.delegate);
        let payload = payload.map_err(of_model)?;
        let interface = payload.interface();
        let interface = interface.map_err(of_model)?;
        let engine = self.engine(part, &payload)?;
        let function = payload.function().unwrap_or(engine.default_function());
        let session = engine.session(function);
        let session = session.map_err(of_model)?;
        // As in ExecuTorch, a repeated name is a single input or output.
        let once = |names: &[String]| -> Vec<String> {
            let mut seen = Vec::new();
            for name in names {
                if !seen.contains(name) {
                    seen.push(name.clone());
                }
            }
            seen
        };
        let find = |names: &[String], ports: &[FeatureSpec]| -> Result<Vec<usize>> {
            let mut found = Vec::new();
            for name in once(names) {
                let Some(at) = ports.iter().position(|port| port.name == name) else {
                    let names: Vec<_> =
                        ports.iter().map(|port| format!("`{}`", port.name)).collect();
                    let names = names.join(", ");
                    fail!(
                        "the model's function `{function}` has no feature `{name}`; it has {names}"
                    )
                };
                if feature(&ports[at]).is_none() {
                    fail!("`{name}` of the model is a `{}`; expected a tensor", ports[at].ty)
                }
                found.push(at);
            }
            Ok(found)
        };
        let inputs = find(&interface.inputs, session.inputs())?;
        let outputs = find(&interface.outputs, session.outputs())?;
        Ok(Box::new(HostDelegate { session, inputs, outputs }))
    }
}

impl From<coremill_engine::Error> for Error {
    fn from(error: coremill_engine::Error) -> Error {
        let kind = match error.kind() {
            coremill_engine::ErrorKind::Load => ErrorKind::Load,
            coremill_engine::ErrorKind::Input => ErrorKind::Input,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error)
    }
}

impl From<package::Error> for Error {
    fn from(error: package::Error) -> Error {
        Error::from_source(ErrorKind::Load, error)
    }
}

impl From<verify::Report> for Error {
    fn from(report: verify::Report) -> Error {
        Error::from_source(ErrorKind::Load, report)
    }
}

/// Prefixes an error with "the model".
fn of_model(error: impl Into<Error>) -> Error {
    error.into().about("the model")
}

impl HostBackend {
    /// The model, loaded on first use by any delegate.
    fn engine(&self, part: &DelegatedPart<'_>, payload: &Payload) -> Result<Engine> {
        let source = match &payload.reference {
            Some(reference) => Source::Named(reference.key.clone()),
            None => Source::Data(part.delegate.data),
        };
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engines.get(&source) {
            return Ok(engine.clone());
        }
        let (is_compiled, files) = payload.model().map_err(of_model)?;
        let model = match is_compiled {
            true => compiled::from_tree(files),
            false => package::from_tree(files),
        };
        let model = model.map_err(of_model)?;
        let verified = verify(&model).map_err(of_model)?;
        let (threads, numerics) = (part.threads, part.numerics);
        let mut options = LoadOptions { threads, numerics, ..LoadOptions::default() };
        options.limits.operations = part.limits.instructions;
        let engine = Engine::load(&verified, &options).map_err(of_model)?;
        engines.insert(source, engine.clone());
        Ok(engine)
    }
}

impl Delegate for HostDelegate {
    fn inputs(&self) -> usize {
        self.inputs.len()
    }

    fn execute(&mut self, inputs: &[View<'_>], outputs: &mut [OutTensor<'_>]) -> Result<()> {
        self.execute_with(inputs, outputs, &mut Hooks::default())
    }

    fn execute_with(
        &mut self,
        inputs: &[View<'_>],
        outputs: &mut [OutTensor<'_>],
        hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        ensure!(
            inputs.len() == self.inputs.len() && outputs.len() == self.outputs.len(),
            "got {} inputs and {} outputs; the model has {} and {}",
            inputs.len(),
            outputs.len(),
            self.inputs.len(),
            self.outputs.len()
        );
        let convert = |port: &usize, view| {
            let port = &self.session.inputs()[*port];
            let input = to_input(view, port);
            input.map_err(|error| {
                error.about(format_args!("input `{}`", port.name)).with_kind(ErrorKind::Input)
            })
        };
        let given = self.inputs.iter().zip(inputs).map(|(port, view)| convert(port, view));
        let mut given = given.collect::<Result<Vec<_>>>()?;
        if let Some(observe) = &mut hooks.observe {
            for (port, input) in self.inputs.iter().zip(&given) {
                observe(INPUT, &self.session.inputs()[*port].name, &Value::Array(input.to_array()));
            }
        }
        // Reorders the inputs from the call to the function.
        let mut taken: Vec<Option<Input>> = self.session.inputs().iter().map(|_| None).collect();
        for (port, input) in self.inputs.iter().zip(given.drain(..)) {
            taken[*port] = Some(input);
        }
        let mut ordered = Vec::with_capacity(taken.len());
        for (port, input) in self.session.inputs().iter().zip(taken) {
            let Some(input) = input else { fail!("the model's input `{}` is missing", port.name) };
            ordered.push(input);
        }
        let mut targets = self.targets(&ordered, outputs, hooks.observe.is_some())?;
        let results = self.session.run_in_place(&mut ordered, &mut targets, hooks);
        let results = results.map_err(of_model)?;
        for (&port, out) in self.outputs.iter().zip(outputs) {
            let Some((_, value)) = results.iter().find(|(at, _)| *at == port) else { continue };
            let name = &self.session.outputs()[port].name;
            let Some(array) = value.as_array() else {
                fail!("the model's output `{name}` is not a tensor");
            };
            write(array, out).map_err(|error| error.about(format_args!("output `{name}`")))?;
        }
        Ok(())
    }

    fn interface(&self) -> Interface {
        let features = |ports: &[FeatureSpec], chosen: &[usize]| {
            chosen.iter().filter_map(|port| feature(&ports[*port])).collect()
        };
        let states = self.session.states();
        Interface {
            inputs: features(self.session.inputs(), &self.inputs),
            outputs: features(self.session.outputs(), &self.outputs),
            states: states.iter().filter_map(feature).collect(),
        }
    }

    fn reset(&mut self) -> Result<()> {
        Ok(self.session.reset()?)
    }

    fn states(&self) -> Result<Vec<(String, Tensor)>> {
        let mut states = Vec::new();
        for port in self.session.states() {
            let array = self.session.state(&port.name).map(StateValue::to_array);
            let tensor = array.and_then(|array| {
                let bytes = Buffer::from(array.to_bytes()?);
                Tensor::new(ScalarType::of(array.dtype())?, array.shape().to_vec(), bytes).ok()
            });
            let Some(tensor) = tensor else {
                fail!("the state `{}` is not a tensor of numbers", port.name)
            };
            states.push((port.name.clone(), tensor));
        }
        Ok(states)
    }

    fn set_state(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let dtype = value.scalar_type().dtype();
        let bytes = value.contiguous_bytes();
        let array = dtype.and_then(|dtype| Array::from_bytes(dtype, value.sizes(), &bytes));
        let Some(array) = array else {
            fail!("the state `{name}` cannot hold elements of `{:?}`", value.scalar_type())
        };
        Ok(self.session.set_state(name, array)?)
    }
}

impl HostDelegate {
    /// Resizes outputs to the sizes of the results if these are known, and returns the memory of the outputs that
    /// can be written directly, by output of the function.
    fn targets<'o>(
        &self,
        inputs: &[Input<'_>],
        outputs: &'o mut [OutTensor<'_>],
        observed: bool,
    ) -> Result<Vec<Option<&'o mut [f32]>>> {
        let ports = self.session.outputs();
        let mut targets: Vec<Option<&mut [f32]>> = ports.iter().map(|_| None).collect();
        // An observed run executes each operation separately, with its own memory.
        let fits = |(port, input): (&FeatureSpec, &Input)| port.accepts_shape(input.shape());
        if observed || !self.session.inputs().iter().zip(inputs).all(fits) {
            return Ok(targets);
        }
        let shapes: Vec<_> = inputs.iter().map(|input| input.shape().to_vec()).collect();
        let shapes = self.session.output_shapes(&shapes);
        let shapes = shapes.map_err(of_model)?;
        for (&port, out) in self.outputs.iter().zip(outputs) {
            let name = &ports[port].name;
            let Some(shape) = &shapes[port] else { continue };
            resize(out, shape).map_err(|error| error.about(format_args!("output `{name}`")))?;
            // Narrower results are rounded when they are converted to the output's type.
            let is_fp32 = ports[port].ty.as_tensor().is_some_and(|ty| ty.dtype == DType::Fp32);
            if is_fp32 && out.dtype == ScalarType::Float && out.is_contiguous() {
                targets[port] = bytemuck::try_cast_slice_mut(out.bytes()).ok();
            }
        }
        Ok(targets)
    }
}

/// Describes an input or output; `None` if it is not a tensor type of ExecuTorch.
fn feature(port: &FeatureSpec) -> Option<Feature> {
    let ty = port.ty.as_tensor()?;
    let flexibility = port.description.as_ref().and_then(|description| match &description.ty {
        FeatureType::MultiArray(array) => Some(array),
        _ => None,
    });
    let extent = |axis: usize, dim: &Dim| match (dim, flexibility.map(|array| &array.flexibility)) {
        (Dim::Known(extent), _) => (*extent as usize, Some(*extent as usize)),
        (_, Some(ShapeFlexibility::Ranged(ranges))) => {
            let range = ranges.get(axis);
            let upper = range.and_then(|range| range.upper_bound());
            (range.map_or(0, |range| range.lower as usize), upper.map(|upper| upper as usize))
        }
        (_, Some(ShapeFlexibility::Enumerated(shapes))) => {
            let own = flexibility.map(|array| &array.shape);
            let extents = shapes.iter().chain(own).filter_map(|shape| shape.get(axis));
            let extents = extents.filter_map(|extent| usize::try_from(*extent).ok());
            (extents.clone().min().unwrap_or(0), extents.max())
        }
        _ => (0, None),
    };
    Some(Feature {
        name: port.name.clone(),
        scalar_type: ScalarType::of(ty.dtype)?,
        extents: ty.shape.iter().enumerate().map(|(axis, dim)| extent(axis, dim)).collect(),
    })
}

/// Converts an input for the model. Elements of the model's type are used in place. Floats are rounded to fp16 if
/// the model requires it; an integer out of range is an error.
fn to_input<'v>(view: &View<'v>, port: &FeatureSpec) -> Result<Input<'v>> {
    let Some(ty) = port.ty.as_tensor() else {
        fail!("the model's input is a `{}`; expected a tensor", port.ty);
    };
    Compute::of(view.dtype)?;
    // Core ML's interface has no scalars.
    let shape = match view.sizes {
        [] if ty.rank() == 1 => &[1],
        sizes => sizes,
    };
    let dtype = ty.dtype;
    if view.is_contiguous() {
        let elements = match (view.dtype, dtype) {
            (ScalarType::Float, DType::Fp32) => {
                bytemuck::try_cast_slice(view.bytes).ok().map(ElementsView::Floats)
            }
            (ScalarType::Int, DType::Int32) => {
                bytemuck::try_cast_slice(view.bytes).ok().map(ElementsView::Ints)
            }
            _ => None,
        };
        if let Some(elements) = elements {
            return Ok(Input::View(coremill_engine::View { dtype, shape, elements }));
        }
    }
    if dtype.is_float() {
        let mut numbers = view.contiguous::<f32>();
        if !is_floating(view.dtype) {
            let whole = view.contiguous::<i64>();
            let lost = whole.iter().zip(&numbers).find(|(whole, float)| **float as i64 != **whole);
            if let Some((whole, _)) = lost {
                fail!("the model's `{dtype}` input cannot represent the element {whole} exactly");
            }
        }
        if dtype == DType::Fp16 {
            numbers.iter_mut().for_each(|number| *number = f16::from_f32(*number).to_f32());
        }
        return Ok(Input::Array(Array::floats(DType::Fp32, shape, numbers)));
    }
    let Some(range) = range_of(dtype) else {
        fail!("inputs of type `{}` are not supported", port.ty)
    };
    let numbers = whole_numbers(view)?;
    let fit = |number: i64| match dtype {
        DType::Bool => Ok(i32::from(number != 0)),
        _ if range.contains(&number) => Ok(number as i32),
        _ => {
            let (low, high) = (range.start(), range.end());
            Err(Error::new(format!(
                "elements of an `{dtype}` input must be from {low} to {high}, got {number}"
            )))
        }
    };
    let numbers = numbers.into_iter().map(fit).collect::<Result<_>>()?;
    Ok(Input::Array(Array::ints(dtype, shape, numbers)))
}

/// The elements as integers, in dimension order. Floats must be integers.
fn whole_numbers(view: &View) -> Result<Vec<i64>> {
    if !is_floating(view.dtype) {
        return Ok(view.contiguous::<i64>());
    }
    let floats = view.contiguous::<f64>();
    let whole = |float: f64| {
        // Up to 2⁵³ every integer is a 64-bit float.
        let is_whole = float.fract() == 0.0 && float.abs() <= (1u64 << 53) as f64;
        ensure!(is_whole, "the model requires integers, got the element {float}");
        Ok(float as i64)
    };
    floats.into_iter().map(whole).collect()
}

/// Range of an integer type; `None` for other types. Wider types are held in 32 bits.
fn range_of(dtype: DType) -> Option<std::ops::RangeInclusive<i64>> {
    Some(match dtype {
        DType::Bool => 0..=1,
        DType::Int8 => i64::from(i8::MIN)..=i64::from(i8::MAX),
        DType::UInt8 => 0..=i64::from(u8::MAX),
        DType::Int16 => i64::from(i16::MIN)..=i64::from(i16::MAX),
        DType::UInt16 => 0..=i64::from(u16::MAX),
        DType::UInt32 | DType::UInt64 => 0..=i64::from(i32::MAX),
        dtype if dtype.is_integer() => i64::from(i32::MIN)..=i64::from(i32::MAX),
        _ => return None,
    })
}

/// Resizes an output to the shape of a result.
fn resize(out: &mut OutTensor, shape: &[usize]) -> Result<()> {
    match (shape, out.sizes.is_empty()) {
        ([1], true) => out.resize(&[]),
        (shape, _) => out.resize(shape),
    }
}

/// Writes a result to an output of the program.
fn write(array: &Array, out: &mut OutTensor) -> Result<()> {
    Compute::of(out.dtype)?;
    resize(out, array.shape())?;
    let integers = out.dtype.dtype().and_then(|dtype| {
        let range = range_of(dtype)?;
        // Results computed in 32 bits may be written to 64 bits.
        Some(if dtype == DType::Int64 { i64::MIN..=i64::MAX } else { range })
    });
    let is_bool = out.dtype == ScalarType::Bool;
    let fits = |number: i64| {
        let range = integers.as_ref().filter(|_| !is_bool);
        let inside = range.is_none_or(|range| range.contains(&number));
        ensure!(inside, "the element {number} does not fit `{:?}`", out.dtype);
        Ok(number)
    };
    match array.elements() {
        Elements::Floats(floats) if integers.is_some() && !is_bool => {
            let whole = |float: &f32| {
                let dtype = out.dtype;
                ensure!(
                    float.fract() == 0.0,
                    "the element {float} is not an integer, as `{dtype:?}` requires"
                );
                ensure!(float.abs() < 9e18, "the element {float} does not fit `{dtype:?}`");
                fits(*float as i64)
            };
            let numbers = floats.iter().map(whole).collect::<Result<Vec<i64>>>()?;
            out.put_contiguous(&numbers);
        }
        Elements::Floats(floats) => out.put_contiguous(floats.as_slice()),
        Elements::Ints(ints) => {
            let numbers = ints.iter().map(|int| fits(i64::from(*int)));
            let numbers = numbers.collect::<Result<Vec<i64>>>()?;
            out.put_contiguous(&numbers);
        }
        Elements::Texts(_) => fail!("the model's output is text; expected numbers"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use coremill_mil::model::describe;
    use coremill_mil::text::{NoWeights, parse};

    use super::*;

    fn out<'m>(
        dtype: ScalarType,
        sizes: &[usize],
        order: &'m [u8],
        bytes: &'m mut [u8],
    ) -> OutTensor<'m> {
        OutTensor::new(dtype, sizes.to_vec(), order, bytes, true, None).expect("an output")
    }

    #[test]
    fn uses_caller_memory_for_inputs_and_float_outputs() {
        let program = "program(1.3) {
            func main<ios17>(tensor<fp32, [2, 3]> x, tensor<int32, [2]> i) {
                tensor<fp32, [2, 3]> y = exp(x = x);
                tensor<int32, [2]> j = add(x = i, y = i);
            } -> (y, j);
        }";
        let model = describe(parse(program, &NoWeights).expect("it is MIL")).expect("complete");
        let engine = Engine::load(&verify(&model).expect("sound"), &LoadOptions::default());
        let session = engine.and_then(|engine| engine.session("main")).expect("it loads");
        let delegate = HostDelegate { session, inputs: vec![0, 1], outputs: vec![0, 1] };

        let (x, i, mut y, mut j) = ([1.0f32; 6], [3i32, 4], [0.0f32; 6], [0i32; 2]);
        let (floats, ints) = (bytemuck::bytes_of(&x), bytemuck::bytes_of(&i));
        let views = [
            View::new(ScalarType::Float, &[2, 3], &[0, 1], floats).expect("a view"),
            View::new(ScalarType::Int, &[2], &[0], ints).expect("a view"),
        ];
        let ports = delegate.session.inputs().iter().zip(&views);
        let inputs: Vec<_> =
            ports.map(|(port, view)| to_input(view, port).expect("it fits")).collect();
        for (input, bytes) in inputs.iter().zip([floats, ints]) {
            let Input::View(view) = input else { panic!("an input is copied") };
            let at = match view.elements {
                ElementsView::Floats(floats) => floats.as_ptr().addr(),
                ElementsView::Ints(ints) => ints.as_ptr().addr(),
                ElementsView::Texts(_) => panic!("an input is text"),
            };
            assert_eq!(at, bytes.as_ptr().addr());
        }
        let address = y.as_ptr().addr();
        let (floats, ints) = (bytemuck::bytes_of_mut(&mut y), bytemuck::bytes_of_mut(&mut j));
        let mut outs = [
            out(ScalarType::Float, &[2, 3], &[0, 1], floats),
            out(ScalarType::Int, &[2], &[0], ints),
        ];
        let targets = delegate.targets(&inputs, &mut outs, false).expect("it fits");
        assert_eq!(targets[0].as_ref().map(|floats| floats.as_ptr().addr()), Some(address));
        assert!(targets[1].is_none(), "integer outputs are computed in a separate buffer");
    }
}
