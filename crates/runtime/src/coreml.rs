//! Backend that runs Core ML delegates on Core ML itself.
//!
//! A model is written to disk once, compiled once per machine and set of compute units, and cached in a store.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use coremill_cache::{Key, Options, Store};
use coremill_coreml::{
    ArrayFeature, Cache, CompiledModel, ComputeUnits, LoadOptions, Model, Plan, PlannedOperation,
    Shapes, State, Tensor as Array, TensorMut,
};
use coremill_io::unknown_name;
use coremill_pte::coreml::{COMPILED, Directory, PACKAGE, Payload};
use coremill_pte::program::{CompileSpec, ScalarType};
use coremill_tensor::{Buffer, DType, FileSpan};

use crate::delegate::{Backend, Delegate, DelegatedPart, Feature, Interface};
use crate::error::{Error, ErrorKind, Result, ensure, fail};
use crate::hooks::{Hooks, Span};
use crate::value::Tensor;
use crate::view::{OutTensor, View};

/// Setting for the compute units.
const COMPUTE_UNITS: &str = "compute_units";

/// Setting for the directory of the store.
const CACHE_DIRECTORY: &str = "cache_dir";

/// Bytes read per step.
const WINDOW: usize = 1 << 20;

/// Runs models on Core ML.
#[derive(Default)]
pub(crate) struct CoreMlBackend {
    /// Stores by directory.
    stores: Mutex<HashMap<PathBuf, Arc<Store>>>,
}

/// One instance of a model, with its own states.
struct CoreMlDelegate {
    compiled: CompiledModel,
    options: LoadOptions,
    model: Model,
    state: Option<State>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// Compute plan, requested by the first profiled run; empty on systems without compute plans.
    plan: OnceLock<Plan>,
}

impl Backend for CoreMlBackend {
    fn id(&self) -> &str {
        coremill_pte::coreml::BACKEND
    }

    fn prepare(&self, part: &DelegatedPart<'_>) -> Result<Box<dyn Delegate>> {
        let payload = Payload::of(part.program, part.delegate);
        let payload = payload.map_err(of_model)?;
        let interface = payload.interface().map_err(of_model)?;
        let specs = &part.delegate.compile_specs;
        let mut options = LoadOptions::default();
        if let Some(units) = setting(specs, COMPUTE_UNITS)? {
            let units = units.to_ascii_lowercase().parse::<ComputeUnits>();
            options.compute_units = units.map_err(of_model)?;
        }
        let store = self.store(setting(specs, CACHE_DIRECTORY)?)?;
        let content = content_of(&store, &payload.directory)?;
        let compiled = Cache::new(&store)
            .compiled_as(&content, part.method, &options, |place| {
                write_model(&payload.directory, place)
            })
            .map_err(of_model)?;
        options.function = payload.function().map(str::to_owned);
        let model = compiled.load(&options).map_err(of_model)?;
        let has_states = !model.states().is_empty();
        let state = has_states.then(|| model.new_state()).transpose();
        let state = state.map_err(of_model)?;
        let (inputs, outputs) = (once(&interface.inputs), once(&interface.outputs));
        for (names, ports) in [(&inputs, model.inputs()), (&outputs, model.outputs())] {
            for name in names {
                ensure!(
                    ports.iter().any(|port| port.name == *name),
                    "the model has no array `{name}`; it has {}",
                    ports
                        .iter()
                        .map(|port| format!("`{}`", port.name))
                        .collect::<Vec<_>>()
                        .join(", ")
                );
            }
        }
        let plan = OnceLock::new();
        Ok(Box::new(CoreMlDelegate { compiled, options, model, state, inputs, outputs, plan }))
    }
}

impl CoreMlBackend {
    /// The store in a directory, or the user's default store.
    fn store(&self, directory: Option<&str>) -> Result<Arc<Store>> {
        let root = directory.map(PathBuf::from).or_else(Store::default_root);
        let Some(root) = root else {
            fail!("this system has no directory for compiled models; set `{CACHE_DIRECTORY}`")
        };
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&root) {
            return Ok(Arc::clone(store));
        }
        let store = Store::open(&root, &Options::default()).map(Arc::new);
        let store = store.map_err(|error| Error::from_source(ErrorKind::Run, error))?;
        stores.insert(root, Arc::clone(&store));
        Ok(store)
    }
}

/// A string setting of a delegate; the first occurrence takes precedence.
fn setting<'s>(specs: &'s [CompileSpec], key: &str) -> Result<Option<&'s str>> {
    let Some(spec) = specs.iter().find(|spec| spec.key == key) else { return Ok(None) };
    match std::str::from_utf8(&spec.value) {
        // Some writers append a NUL byte.
        Ok(text) => Ok(Some(text.trim_end_matches('\0'))),
        Err(_) => fail!("the setting `{key}` is not valid UTF-8"),
    }
}

/// Removes duplicates. As in ExecuTorch, a repeated name is a single input or output.
fn once(names: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        if !seen.contains(name) {
            seen.push(name.clone());
        }
    }
    seen
}

/// Hash of a model's content. Unchanged files are not read again.
fn content_of(store: &Store, directory: &Directory) -> Result<Vec<u8>> {
    let files = model_files(directory)?;
    let place = place_of(&files);
    if let Some(content) = place.as_ref().and_then(|place| store.value(place)) {
        return Ok(content);
    }
    let mut hashes = Vec::new();
    for (path, data) in files {
        let mut hasher = blake3::Hasher::new();
        let hashed = data.for_each_window(WINDOW, &mut |bytes| {
            hasher.update(bytes);
            Ok(())
        });
        hashed.map_err(|error| {
            let wrapped = Error::new(format!("`{path}` of the model: {error}"));
            wrapped.with_kind(ErrorKind::Load).with_source(error)
        })?;
        hashes.push((path, *hasher.finalize().as_bytes()));
    }
    let parts = hashes.iter().flat_map(|(path, hash)| [path.as_bytes(), &hash[..]]);
    let content = Key::new(parts).to_string().into_bytes();
    if let Some(place) = &place {
        // If this fails, the bytes are read again next time.
        let _ = store.set_value(place, &content);
    }
    Ok(content)
}

/// Cache key made of the location and times of the model's bytes, if they are in files.
fn place_of(files: &[(&str, &coremill_pte::ByteRope)]) -> Option<Key> {
    let mut spans = vec!["content".to_owned()];
    for &(path, data) in files {
        spans.push(path.to_owned());
        for part in data.parts() {
            let FileSpan { path, file, offset, length } = part.file_span()?;
            let metadata = file.metadata().ok()?;
            let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            let (size, time) = (metadata.len(), modified.as_nanos());
            let path = path.to_str()?;
            spans.push(format!("{path} {size} {time} {} {offset} {length}", changed(&metadata)));
        }
    }
    Some(Key::new(&spans))
}

/// Identity of a file and its change time, which user programs cannot set.
#[cfg(unix)]
fn changed(metadata: &fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    let (device, file) = (metadata.dev(), metadata.ino());
    format!("{device} {file} {}.{}", metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn changed(_: &fs::Metadata) -> String {
    String::new()
}

/// The model's files in a payload, by path.
fn model_files(directory: &Directory) -> Result<Vec<(&str, &coremill_pte::ByteRope)>> {
    let found = [COMPILED, PACKAGE].into_iter().map(|root| directory.below(root));
    match found.into_iter().find(|files| !files.is_empty()) {
        Some(files) => Ok(files),
        None => fail!("the model's directory contains neither `{PACKAGE}` nor `{COMPILED}`"),
    }
}

/// Writes the model of a payload to a directory and returns its path. Bytes are copied from file to file if the
/// system supports it, and are never collected in memory.
fn write_model(
    directory: &Directory,
    place: &Path,
) -> std::result::Result<PathBuf, coremill_coreml::Error> {
    let is_compiled = !directory.below(COMPILED).is_empty();
    let root = if is_compiled { COMPILED } else { PACKAGE };
    let model = place.join(root);
    let write = || -> io::Result<()> {
        fs::create_dir_all(&model)?;
        // Reading the directory has checked that no path leads outside.
        for empty in directory.empty_below(root) {
            fs::create_dir_all(model.join(empty))?;
        }
        for (path, data) in directory.below(root) {
            let path = model.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let mut file = File::create(&path)?;
            data.parts().iter().try_for_each(|part| copy(part, &mut file))?;
        }
        Ok(())
    };
    match write() {
        Ok(()) => Ok(model),
        Err(error) => Err(coremill_coreml::Error::of_files("write", &model, &error)),
    }
}

/// Appends bytes to a file.
fn copy(part: &Buffer, file: &mut File) -> io::Result<()> {
    // The mapping's file handle has a shared position, so the file is reopened if it still exists.
    let opened = part.file_span().and_then(|span| {
        let source = File::open(span.path).ok()?;
        same_file(&source, span.file).then_some((source, span))
    });
    let Some((mut source, span)) = opened else {
        return part.for_each_window(0..part.len(), WINDOW, &mut |bytes| file.write_all(bytes));
    };
    source.seek(SeekFrom::Start(span.offset))?;
    match io::copy(&mut source.take(span.length), file)? {
        copied if copied == span.length => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(unix)]
fn same_file(left: &File, right: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    identity(left).ok().is_some_and(|left| identity(right).ok() == Some(left))
}

#[cfg(not(unix))]
fn same_file(_: &File, _: &File) -> bool {
    false
}

impl Delegate for CoreMlDelegate {
    fn inputs(&self) -> usize {
        self.inputs.len()
    }

    fn execute(&mut self, inputs: &[View<'_>], outputs: &mut [OutTensor<'_>]) -> Result<()> {
        ensure!(
            inputs.len() == self.inputs.len() && outputs.len() == self.outputs.len(),
            "got {} inputs and {} outputs; the model has {} and {}",
            inputs.len(),
            outputs.len(),
            self.inputs.len(),
            self.outputs.len()
        );
        let strides: Vec<Vec<usize>> = inputs.iter().map(View::strides).collect();
        let mut arrays = Vec::with_capacity(inputs.len());
        for ((name, view), strides) in self.inputs.iter().zip(inputs).zip(&strides) {
            let array = dtype_of(view.dtype)
                .and_then(|dtype| {
                    let array = Array::strided(dtype, view.sizes, strides, view.bytes);
                    array.map_err(of_model)
                })
                .map_err(|error| error.about(format_args!("input `{name}`")))?;
            arrays.push((name.as_str(), array));
        }
        let mut places = Vec::with_capacity(outputs.len());
        for (name, out) in self.outputs.iter().zip(outputs) {
            let dtype = dtype_of(out.dtype)?;
            places.push(Place { name, dtype, out, sizes: Vec::new(), strides: Vec::new() });
        }
        let mut places: Vec<&mut dyn coremill_coreml::Output> =
            places.iter_mut().map(|place| place as _).collect();
        let run = self.model.predict(&arrays, &mut places, self.state.as_mut());
        run.map_err(of_model)
    }

    fn execute_with(
        &mut self,
        inputs: &[View<'_>],
        outputs: &mut [OutTensor<'_>],
        hooks: &mut Hooks<'_>,
    ) -> Result<()> {
        let start = Instant::now();
        self.execute(inputs, outputs)?;
        if let Some(profile) = &mut hooks.profile {
            profile.extend(self.spans(start, start.elapsed()));
        }
        Ok(())
    }

    fn interface(&self) -> Interface {
        let features = |names: &[String], ports: &[ArrayFeature]| {
            let find = |name: &String| ports.iter().find(|port| port.name == *name);
            names.iter().filter_map(find).filter_map(feature).collect()
        };
        Interface {
            inputs: features(&self.inputs, self.model.inputs()),
            outputs: features(&self.outputs, self.model.outputs()),
            states: self.model.states().iter().filter_map(feature).collect(),
        }
    }

    fn states(&self) -> Result<Vec<(String, Tensor)>> {
        let Some(state) = &self.state else { return Ok(Vec::new()) };
        let read = |port: &ArrayFeature| -> Result<(String, Tensor)> {
            let array = state.read(&port.name).map_err(of_model)?;
            let Some(scalar_type) = ScalarType::of(array.dtype) else {
                fail!("the state `{}` has the unsupported type `{}`", port.name, array.dtype)
            };
            let tensor = Tensor::new(scalar_type, array.shape, Buffer::from(array.bytes))?;
            Ok((port.name.clone(), tensor))
        };
        self.model.states().iter().map(read).collect()
    }

    fn set_state(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let Some(state) = &mut self.state else {
            return Err(
                Error::new(unknown_name("state", name, [""; 0])).with_kind(ErrorKind::Input)
            );
        };
        let bytes = value.contiguous_bytes();
        let array = Array::contiguous(dtype_of(value.scalar_type())?, value.sizes(), &bytes);
        let written = array.and_then(|array| state.write(name, array));
        written.map_err(of_model)
    }

    fn reset(&mut self) -> Result<()> {
        let reset = self.state.as_mut().map_or(Ok(()), State::reset);
        reset.map_err(of_model)
    }
}

impl CoreMlDelegate {
    /// Per-operation times of a run, in order. Core ML only measures the total, which is distributed by its cost
    /// estimates.
    fn spans(&self, start: Instant, elapsed: Duration) -> Vec<Span> {
        let planned = || coremill_coreml::plan(&self.compiled.path(), &self.options);
        let plan = self.plan.get_or_init(|| planned().unwrap_or_default());
        let function = self.options.function.as_deref();
        let costs = plan.operations.iter().filter_map(|operation| {
            let is_ours = function.is_none_or(|function| function == operation.function);
            Some((operation, operation.cost.filter(|cost| is_ours && *cost > 0.0)?))
        });
        let whole: f64 = costs.clone().map(|(_, cost)| cost).sum();
        let mut before = 0.0;
        let span = |(operation, cost): (&PlannedOperation, f64)| {
            let begin = start + elapsed.mul_f64(before / whole);
            before += cost;
            Span {
                label: operation.operator.clone(),
                value: operation.outputs.first().cloned().unwrap_or_default(),
                start: begin,
                elapsed: elapsed.mul_f64(cost / whole),
                operations: 0,
                bytes: 0,
                nested: false,
            }
        };
        costs.map(span).collect()
    }
}

/// An output in the method's memory.
struct Place<'o, 'm> {
    name: &'o str,
    dtype: DType,
    out: &'o mut OutTensor<'m>,
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl coremill_coreml::Output for Place<'_, '_> {
    fn name(&self) -> &str {
        self.name
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn memory(&mut self, shape: &[usize]) -> std::result::Result<TensorMut<'_>, String> {
        // Core ML's interface has no scalars.
        let is_scalar = self.out.sizes.is_empty() && shape == [1];
        let resized = self.out.resize(if is_scalar { &[] } else { shape });
        resized.map_err(|error| error.message().to_owned())?;
        self.strides = if is_scalar { vec![1] } else { self.out.strides() };
        self.sizes = shape.to_vec();
        TensorMut::strided(self.dtype, &self.sizes, &self.strides, self.out.bytes())
            .map_err(|error| error.to_string())
    }
}

fn dtype_of(scalar_type: ScalarType) -> Result<DType> {
    match scalar_type.dtype() {
        Some(dtype) => Ok(dtype),
        None => fail!("Core ML has no element type `{scalar_type:?}`"),
    }
}

fn feature(port: &ArrayFeature) -> Option<Feature> {
    let scalar_type = ScalarType::of(port.dtype)?;
    let extents = match &port.shapes {
        Shapes::Fixed => port.shape.iter().map(|size| (*size, Some(*size))).collect(),
        Shapes::Enumerated(shapes) => {
            let along = |axis: usize| shapes.iter().filter_map(move |shape| shape.get(axis));
            let least = |axis| along(axis).min().copied().unwrap_or(0);
            (0..port.shape.len()).map(|axis| (least(axis), along(axis).max().copied())).collect()
        }
        Shapes::Ranges(ranges) => {
            let end = |end: usize| (end < usize::MAX).then_some(end);
            ranges.iter().map(|range| (*range.start(), end(*range.end()))).collect()
        }
    };
    Some(Feature { name: port.name.clone(), scalar_type, extents })
}

impl From<coremill_coreml::Error> for Error {
    fn from(error: coremill_coreml::Error) -> Error {
        use coremill_coreml::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Unavailable => ErrorKind::Device,
            Kind::Input => ErrorKind::Input,
            Kind::Compile | Kind::Load => ErrorKind::Load,
            _ => ErrorKind::Run,
        };
        Error::from_source(kind, error)
    }
}

/// Prefixes an error with "the model".
fn of_model(error: impl Into<Error>) -> Error {
    error.into().about("the model")
}
