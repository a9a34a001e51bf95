//! Core ML, whose compiled models a store keeps.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use coremill_coreml::{
    Cache, Compiled, ComputeUnits, LoadOptions, Model, Output, Owned, Plan, State, Tensor,
    TensorMut,
};
use coremill_engine::{Array, ElementsView, Outputs, Port, Value};
use coremill_mil::verify::Verified;
use coremill_mlpackage::package::{self, WriteOptions};
use coremill_runtime::Backend;
use coremill_store::{Options, Store};
use coremill_tensor::DType;

use super::{Given, Machine, Targets, check_room, check_targets, find};
use crate::array::{Input, lying_shape};
use crate::error::{Error, ErrorKind, Result, fail};

/// The name of a package that Core ML compiles.
const PACKAGE: &str = "model.mlpackage";

/// A model on Core ML.
struct CoreMl {
    compiled: Compiled,
    options: LoadOptions,
    /// By function: inputs, outputs, states.
    ports: Vec<(String, [Vec<Port>; 3])>,
    default: String,
    loaded: HashMap<String, Loaded>,
    /// The function that ran last, which holds the latest states.
    latest: Option<String>,
}

struct Loaded {
    model: Model,
    state: Option<State>,
}

/// The store in a directory, or that of the user.
fn store(directory: Option<&PathBuf>) -> Result<Store> {
    let Some(root) = directory.cloned().or_else(Store::default_root) else {
        let error = Error::new(ErrorKind::File, "the system names no directory for caches");
        return Err(error.hint("name one with `Session::cache`"));
    };
    Store::open(root, &Options::default()).map_err(|error| {
        let hint = error.remedy().map(str::to_owned);
        let found = Error::new(ErrorKind::File, error.to_string()).caused_by(error);
        hint.into_iter().fold(found, Error::hint)
    })
}

/// Has Core ML compile a model, unless the store has what came of the same model.
pub(crate) fn load(
    verified: &Verified<'_>,
    compute_units: ComputeUnits,
    cache: Option<&PathBuf>,
) -> Result<Box<dyn Machine>> {
    Ok(Box::new(CoreMl::load(verified, compute_units, cache)?))
}

/// Runs on Core ML what a program delegates to it.
pub(super) fn backend() -> Result<Arc<dyn Backend>> {
    Ok(coremill_runtime::core_ml())
}

impl CoreMl {
    fn load(
        verified: &Verified<'_>,
        compute_units: ComputeUnits,
        cache: Option<&PathBuf>,
    ) -> Result<CoreMl> {
        let model = verified.model();
        let default = model.default_function_name().to_owned();
        let tree = package::to_tree(verified)
            .map_err(|error| Error::new(ErrorKind::File, error.to_string()).caused_by(error))?;
        let options = LoadOptions { compute_units, ..LoadOptions::default() };
        let store = store(cache)?;
        let compiled =
            Cache::new(&store).compiled_as(&tree.content, &default, &options, |place| {
                let path = place.join(PACKAGE);
                let written = tree.write(&path, &WriteOptions::default());
                let written = written.map_err(|error| std::io::Error::other(error.to_string()));
                written
                    .map_err(|error| coremill_coreml::Error::of_files("write", &path, &error))?;
                Ok(path)
            })?;
        let functions = model.program.functions.iter();
        let ports = functions.map(|function| {
            let (inputs, outputs, states) = coremill_engine::ports(model, function);
            (function.name.clone(), [inputs, outputs, states])
        });
        let (ports, loaded) = (ports.collect(), HashMap::new());
        Ok(CoreMl { compiled, options, ports, default, loaded, latest: None })
    }

    fn ports_of(&self, function: &str) -> Result<&[Vec<Port>; 3]> {
        match self.ports.iter().find(|(name, _)| name == function) {
            Some((_, ports)) => Ok(ports),
            None => {
                let names: Vec<_> =
                    self.ports.iter().map(|(name, _)| format!("`{name}`")).collect();
                fail!(Input, "there is no function `{function}`; there are {}", names.join(", "))
            }
        }
    }

    /// A function, with the states that ran last.
    fn function(&mut self, function: &str) -> Result<&mut Loaded> {
        self.ports_of(function)?;
        if !self.loaded.contains_key(function) {
            let several = self.ports.len() > 1;
            let name = several.then(|| function.to_owned());
            let options = LoadOptions { function: name, ..self.options.clone() };
            let model = self.compiled.load(&options)?;
            let state = (!model.states().is_empty()).then(|| model.new_state()).transpose()?;
            self.loaded.insert(function.to_owned(), Loaded { model, state });
        }
        if let Some(latest) = self.latest.take_if(|latest| latest != function) {
            let held = self.loaded[&latest].held()?;
            let next = self.loaded.get_mut(function).expect("it was made above");
            for array in held {
                next.set(&array.name, array.tensor()?)?;
            }
        }
        if self.latest.as_deref() != Some(function) {
            self.latest = Some(function.to_owned());
        }
        Ok(self.loaded.get_mut(function).expect("it was made above"))
    }

    fn latest(&mut self) -> Result<&mut Loaded> {
        let function = self.latest.clone().unwrap_or_else(|| self.default.clone());
        self.function(&function)
    }

    /// The state's port in the function that ran last.
    fn state_port(&self, name: &str) -> Result<Port> {
        let function = self.latest.as_deref().unwrap_or(&self.default);
        find(&self.ports_of(function)?[2], name, "state").cloned()
    }

    fn predict(
        &mut self,
        function: &str,
        inputs: &Given<'_>,
        outputs: &mut [&mut dyn Output],
    ) -> Result<()> {
        let ports = &self.ports_of(function)?[0];
        let taken = inputs.iter().map(|(name, input)| {
            let port = find(ports, name, "input")?;
            Ok((*name, Bytes::of(*input, port)?))
        });
        let taken = taken.collect::<Result<Vec<_>>>()?;
        let tensors = taken.iter().map(|(name, bytes)| Ok((*name, bytes.tensor()?)));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let Loaded { model, state } = self.function(function)?;
        Ok(model.predict(&tensors, outputs, state.as_mut())?)
    }
}

impl Loaded {
    /// What all states hold.
    fn held(&self) -> Result<Vec<Owned>> {
        let Some(state) = &self.state else { return Ok(Vec::new()) };
        self.model.states().iter().map(|port| Ok(state.read(&port.name)?)).collect()
    }

    /// Sets a state, if there is one of the name.
    fn set(&mut self, name: &str, value: Tensor<'_>) -> Result<()> {
        let is_there = self.model.states().iter().any(|port| port.name == name);
        match &mut self.state {
            Some(state) if is_there => Ok(state.write(name, value)?),
            _ => Ok(()),
        }
    }
}

/// An input as Core ML takes it: where it lies, or converted.
struct Bytes<'i> {
    dtype: DType,
    shape: Vec<usize>,
    bytes: std::borrow::Cow<'i, [u8]>,
}

impl<'i> Bytes<'i> {
    fn of(input: &'i dyn Input, port: &Port) -> Result<Bytes<'i>> {
        if let Some(lying) = input.lying() {
            // Halves lie in 32 bits there.
            let bytes = match lying.elements {
                ElementsView::Floats(floats) => Some((DType::Fp32, bytemuck::cast_slice(floats))),
                ElementsView::Ints(ints) => Some((DType::Int32, bytemuck::cast_slice(ints))),
                ElementsView::Texts(_) => None,
            };
            if let Some((dtype, bytes)) = bytes {
                let mut shape = Vec::new();
                lying_shape(port, &lying, &mut shape)?;
                return Ok(Bytes { dtype, shape, bytes: bytes.into() });
            }
        }
        let array = input.array(port)?;
        let Some(bytes) = array.to_bytes() else {
            fail!(Input, "`{}`: an array of `{}` is not an input", port.name, array.dtype())
        };
        let (dtype, shape) = (array.dtype(), array.shape().to_vec());
        Ok(Bytes { dtype, shape, bytes: bytes.into() })
    }

    fn tensor(&self) -> Result<Tensor<'_>> {
        Ok(Tensor::contiguous(self.dtype, &self.shape, &self.bytes)?)
    }
}

/// An output in the caller's memory.
struct Target<'t> {
    name: &'t str,
    memory: &'t mut [f32],
    shape: Vec<usize>,
}

impl Output for Target<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn dtype(&self) -> DType {
        DType::Fp32
    }

    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String> {
        let room = check_room(self.name, shape.iter().product(), self.memory.len());
        room.map_err(|error| error.to_string())?;
        self.shape = shape.to_vec();
        let bytes = bytemuck::cast_slice_mut(self.memory);
        TensorMut::contiguous(DType::Fp32, &self.shape, bytes).map_err(|error| error.to_string())
    }
}

impl Machine for CoreMl {
    fn functions(&self) -> Vec<String> {
        self.ports.iter().map(|(name, _)| name.clone()).collect()
    }

    fn default_function(&self) -> &str {
        &self.default
    }

    fn ports(&mut self, function: &str) -> Result<[&[Port]; 3]> {
        let [inputs, outputs, states] = self.ports_of(function)?;
        Ok([inputs, outputs, states])
    }

    fn run(&mut self, function: Option<&str>, inputs: &Given<'_>) -> Result<Outputs> {
        let function = &*function.unwrap_or(&self.default).to_owned();
        let mut owned = Vec::new();
        for port in &self.ports_of(function)?[1] {
            let Some(ty) = port.ty.as_tensor() else {
                fail!(Run, "output `{}` is a `{}`; Core ML gives arrays", port.name, port.ty)
            };
            owned.push(Owned::new(&port.name, ty.dtype));
        }
        let mut outputs: Vec<&mut dyn Output> = owned.iter_mut().map(|one| one as _).collect();
        self.predict(function, inputs, &mut outputs)?;
        let value = |one: Owned| match Array::from_bytes(one.dtype, &one.shape, &one.bytes) {
            Some(array) => Ok((one.name, Value::Array(array))),
            None => fail!(Run, "output `{}` does not fit `{}`", one.name, one.dtype),
        };
        Ok(Outputs(owned.into_iter().map(value).collect::<Result<_>>()?))
    }

    fn run_into(
        &mut self,
        function: Option<&str>,
        inputs: &Given<'_>,
        targets: &mut Targets<'_, '_>,
    ) -> Result<()> {
        let function = &*function.unwrap_or(&self.default).to_owned();
        check_targets(&self.ports_of(function)?[1], targets)?;
        let mut places: Vec<_> = targets
            .iter_mut()
            .map(|(name, memory)| Target { name, memory, shape: Vec::new() })
            .collect();
        let mut outputs: Vec<&mut dyn Output> = places.iter_mut().map(|one| one as _).collect();
        self.predict(function, inputs, &mut outputs)
    }

    fn state(&mut self, name: &str) -> Result<Array> {
        self.state_port(name)?;
        let held = self.latest()?.held()?;
        let found = held.iter().find(|state| state.name == name);
        match found.and_then(|one| Array::from_bytes(one.dtype, &one.shape, &one.bytes)) {
            Some(array) => Ok(array),
            None => fail!(Run, "Core ML does not show the state `{name}`"),
        }
    }

    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        let bytes = Bytes::of(content, &self.state_port(name)?)?;
        self.latest()?.set(name, bytes.tensor()?)
    }

    fn reset(&mut self) -> Result<()> {
        for loaded in self.loaded.values_mut() {
            loaded.state.as_mut().map_or(Ok(()), State::reset)?;
        }
        Ok(())
    }

    fn compute_plan(&self) -> Result<Plan> {
        Ok(coremill_coreml::plan(&self.compiled.path(), &self.options)?)
    }
}
