//! Backend for Core ML, with a store of compiled models.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use coremill_cache::{Options, Store};
use coremill_coreml::{
    Cache, CompiledModel, LoadOptions, Model, Output, OwnedTensor, Plan, State, Tensor, TensorMut,
};
use coremill_engine::{Array, ElementsView, Outputs, Value};
use coremill_io::unknown_name;
use coremill_mlpackage::package::{self, WriteOptions};
use coremill_runtime::{Hooks, Span};
use coremill_tensor::DType;
use coremill_verify::Verified;

use crate::FeatureSpec;
use crate::backend::{
    Backend, Executable, Inputs, OutputSlices, Session, Signature, check_length, check_names,
    check_slices, checked, find,
};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::input::{Input, lying_shape};
use crate::options::RunOptions;

/// Directory name of a package that Core ML compiles.
const PACKAGE: &str = "model.mlpackage";

/// Runs models on Core ML's devices.
pub struct CoreMlBackend;

/// A model that Core ML has compiled.
struct CoreMlExecutable {
    compiled: CompiledModel,
    options: LoadOptions,
    functions: Vec<Function>,
    default: String,
}

struct Function {
    name: String,
    signature: Signature,
    /// Number of table rows for each integer input used as an index.
    vocabulary: Vec<(String, u64)>,
}

/// A function that Core ML has loaded.
struct CoreMlSession {
    function: String,
    signature: Signature,
    model: Model,
    state: Option<State>,
}

/// The store in a directory, or the user's default store.
fn store(directory: Option<&PathBuf>) -> Result<Store> {
    let Some(root) = directory.cloned().or_else(Store::default_root) else {
        let error = Error::new("the system has no default cache directory");
        return Err(error.with_kind(ErrorKind::File).with_hint("set one with `Session::cache`"));
    };
    Store::open(root, &Options::default()).map_err(|error| {
        let found = Error::new(error.to_string()).with_kind(ErrorKind::File);
        match error.hint() {
            Some(hint) => found.with_hint(hint),
            None => found,
        }
    })
}

/// Runs the delegates of ExecuTorch programs on Core ML.
pub(crate) fn delegates() -> Result<Arc<dyn coremill_runtime::Backend>> {
    Ok(coremill_runtime::core_ml())
}

impl Backend<&Verified<'_>> for CoreMlBackend {
    fn prepare(
        &self,
        verified: &Verified<'_>,
        options: &RunOptions,
    ) -> Result<Arc<dyn Executable>> {
        let model = verified.model();
        let default = model.default_function_name().to_owned();
        let tree = package::to_tree(verified)
            .map_err(|error| Error::new(error.to_string()).with_kind(ErrorKind::File))?;
        let compute_units = options.device.compute_units().unwrap_or_default();
        let store = store(options.cache.as_ref())?;
        let options = LoadOptions { compute_units, ..LoadOptions::default() };
        let compiled =
            Cache::new(&store).compiled_as(&tree.content, &default, &options, |place| {
                let path = place.join(PACKAGE);
                let written = tree.write(&path, &WriteOptions::default());
                let written = written.map_err(|error| std::io::Error::other(error.to_string()));
                written
                    .map_err(|error| coremill_coreml::Error::of_files("write", &path, &error))?;
                Ok(path)
            })?;
        let functions = model.program.functions.iter().map(|function| {
            let (inputs, outputs, states) = coremill_engine::ports(model, function);
            let rows = |spec: &FeatureSpec| {
                Some((spec.name.clone(), crate::vocabulary(function, &spec.name)?))
            };
            let vocabulary = inputs.iter().filter_map(rows).collect();
            let signature = Signature { inputs, outputs, states };
            Function { name: function.name.clone(), signature, vocabulary }
        });
        let functions = functions.collect();
        Ok(Arc::new(CoreMlExecutable { compiled, options, functions, default }))
    }
}

impl CoreMlExecutable {
    fn function(&self, name: &str) -> Result<&Function> {
        match self.functions.iter().find(|function| function.name == name) {
            Some(function) => Ok(function),
            None => {
                let names = self.functions.iter().map(|function| &function.name);
                fail!(Input, "{}", unknown_name("function", name, names))
            }
        }
    }
}

impl Executable for CoreMlExecutable {
    fn functions(&self) -> Vec<String> {
        self.functions.iter().map(|function| function.name.clone()).collect()
    }

    fn default_function(&self) -> Result<&str> {
        Ok(&self.default)
    }

    fn signature(&self, function: &str) -> Result<Signature> {
        Ok(self.function(function)?.signature.clone())
    }

    fn session(&self, function: &str) -> Result<Box<dyn Session>> {
        let signature = self.signature(function)?;
        let function = function.to_owned();
        let name = (self.functions.len() > 1).then(|| function.clone());
        let model = self.compiled.load(&LoadOptions { function: name, ..self.options.clone() })?;
        let state = (!model.states().is_empty()).then(|| model.new_state()).transpose()?;
        Ok(Box::new(CoreMlSession { function, signature, model, state }))
    }

    fn vocabulary(&self, function: &str, input: &str) -> Option<u64> {
        let vocabulary = &self.function(function).ok()?.vocabulary;
        vocabulary.iter().find(|(name, _)| name == input).map(|(_, rows)| *rows)
    }

    fn compute_plan(&self) -> Result<Plan> {
        Ok(coremill_coreml::plan(&self.compiled.path(), &self.options)?)
    }
}

impl CoreMlSession {
    fn predict(&mut self, inputs: &Inputs<'_>, outputs: &mut [&mut dyn Output]) -> Result {
        let specs = &self.signature.inputs;
        check_names(specs, inputs)?;
        let taken = inputs
            .iter()
            .map(|(name, input)| Ok((*name, Bytes::of(*input, find(specs, name, "input")?)?)));
        let taken = taken.collect::<Result<Vec<_>>>()?;
        let tensors = taken.iter().map(|(name, bytes)| Ok((*name, bytes.tensor()?)));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        Ok(self.model.predict(&tensors, outputs, self.state.as_mut())?)
    }
}

impl Session for CoreMlSession {
    fn function(&self) -> &str {
        &self.function
    }

    fn inputs(&self) -> &[FeatureSpec] {
        &self.signature.inputs
    }

    fn outputs(&self) -> &[FeatureSpec] {
        &self.signature.outputs
    }

    fn states(&self) -> &[FeatureSpec] {
        &self.signature.states
    }

    fn check(&self, inputs: &Inputs<'_>) -> Result<Vec<Array>> {
        checked(&self.signature.inputs, inputs)
    }

    fn run_with(&mut self, inputs: &Inputs<'_>, hooks: &mut Hooks<'_>) -> Result<Outputs> {
        if hooks.observe.is_some() {
            let error = Error::new("Core ML does not expose the intermediate values of a model");
            return Err(error.with_kind(ErrorKind::Device).with_hint("run on the device `host`"));
        }
        let mut owned = Vec::new();
        for spec in &self.signature.outputs {
            let Some(ty) = spec.ty.as_tensor() else {
                fail!(Run, "output `{}` is a `{}`; Core ML returns arrays", spec.name, spec.ty)
            };
            owned.push(OwnedTensor::new(&spec.name, ty.dtype));
        }
        let mut outputs: Vec<&mut dyn Output> = owned.iter_mut().map(|one| one as _).collect();
        let start = Instant::now();
        self.predict(inputs, &mut outputs)?;
        if let Some(profile) = &mut hooks.profile {
            profile.push(Span {
                label: "Core ML".to_owned(),
                value: owned.first().map_or_else(String::new, |output| output.name.clone()),
                start,
                elapsed: start.elapsed(),
                operations: 0,
                bytes: 0,
                nested: false,
            });
        }
        let value = |one: OwnedTensor| match Array::from_bytes(one.dtype, &one.shape, &one.bytes) {
            Some(array) => Ok((one.name, Value::Array(array))),
            None => fail!(
                Run,
                "output `{}` cannot be converted to an array of `{}`",
                one.name,
                one.dtype
            ),
        };
        Ok(Outputs(owned.into_iter().map(value).collect::<Result<_>>()?))
    }

    fn run_into(&mut self, inputs: &Inputs<'_>, outputs: &mut OutputSlices<'_, '_>) -> Result {
        check_slices(&self.signature.outputs, outputs)?;
        let mut slices: Vec<_> = outputs
            .iter_mut()
            .map(|(name, memory)| Slice { name, memory, shape: Vec::new() })
            .collect();
        let mut outputs: Vec<&mut dyn Output> = slices.iter_mut().map(|one| one as _).collect();
        self.predict(inputs, &mut outputs)
    }

    fn state(&self, name: &str) -> Result<Array> {
        find(&self.signature.states, name, "state")?;
        let held = self.state.as_ref().map(|state| state.read(name)).transpose()?;
        match held.and_then(|one| Array::from_bytes(one.dtype, &one.shape, &one.bytes)) {
            Some(array) => Ok(array),
            None => fail!(Run, "Core ML does not expose the state `{name}`"),
        }
    }

    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result {
        let bytes = Bytes::of(content, find(&self.signature.states, name, "state")?)?;
        match &mut self.state {
            Some(state) => Ok(state.write(name, bytes.tensor()?)?),
            None => fail!(Run, "Core ML does not expose the state `{name}`"),
        }
    }

    fn reset(&mut self) -> Result {
        Ok(self.state.as_mut().map_or(Ok(()), State::reset)?)
    }
}

/// An input for Core ML, in place or converted.
struct Bytes<'i> {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Cow<'i, [u8]>,
}

impl<'i> Bytes<'i> {
    fn of(input: &'i dyn Input, spec: &FeatureSpec) -> Result<Bytes<'i>> {
        if let Some(lying) = input.lying() {
            // Arrays of type fp16 store 32-bit floats.
            let bytes = match lying.elements {
                ElementsView::Floats(floats) => Some((DType::Fp32, bytemuck::cast_slice(floats))),
                ElementsView::Ints(ints) => Some((DType::Int32, bytemuck::cast_slice(ints))),
                ElementsView::Texts(_) => None,
            };
            if let Some((dtype, bytes)) = bytes {
                let mut shape = Vec::new();
                lying_shape(spec, &lying, &mut shape)?;
                return Ok(Bytes { dtype, shape, bytes: bytes.into() });
            }
        }
        let array = input.array(spec)?;
        let Some(bytes) = array.to_bytes() else {
            fail!(Input, "input `{}` cannot be an array of `{}`", spec.name, array.dtype())
        };
        let (dtype, shape) = (array.dtype(), array.shape().to_vec());
        Ok(Bytes { dtype, shape, bytes: bytes.into() })
    }

    fn tensor(&self) -> Result<Tensor<'_>> {
        Ok(Tensor::contiguous(self.dtype, &self.shape, &self.bytes)?)
    }
}

/// An output in the caller's memory.
struct Slice<'t> {
    name: &'t str,
    memory: &'t mut [f32],
    shape: Vec<usize>,
}

impl Output for Slice<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn dtype(&self) -> DType {
        DType::Fp32
    }

    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String> {
        let room = check_length(self.name, shape.iter().product(), self.memory.len());
        room.map_err(|error| error.to_string())?;
        self.shape = shape.to_vec();
        let bytes = bytemuck::cast_slice_mut(self.memory);
        TensorMut::contiguous(DType::Fp32, &self.shape, bytes).map_err(|error| error.to_string())
    }
}
