//! Models and programs that are loaded.
#![expect(unsafe_code, reason = "entries of a C interface")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use coremill_io::{quoted_list, unknown_name};
use coremill_pte::coreml::{BACKEND, DebugInfo, Methods, Payload, Reference};
use coremill_pte::program::{Delegate as Planned, NamedData};
use coremill_pte::{ByteRope, Program as Source};
use coremill_runtime::{Backend, Delegate, DelegatedPart, Limits, LoadOptions, Program, backends};
use coremill_tensor::Buffer;

use crate::error::{CoremillStatus, Failure, HasHint, Result, c_text, guard};
use crate::handle::Table;
use crate::hooks::Symbols;
use crate::options::{CoremillOption, Options, text};

/// A model that is loaded, or a program. Any number of threads may use it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillModel {
    /// A number that the library has given out.
    pub id: u64,
}

/// Bytes that the caller keeps until `release` is called.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillBytes {
    /// The bytes.
    pub data: *const c_void,
    /// How many.
    pub length: usize,
    /// Called once, from any thread, when the bytes are no longer needed, be it that loading fails; may be null for
    /// bytes that stay for as long as the process.
    pub release: Option<extern "C" fn(context: *mut c_void, data: *const c_void, length: usize)>,
    /// Passed to `release`.
    pub context: *mut c_void,
}

/// Finds what a program holds under a name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillLookup {
    /// Passed to `find`.
    pub context: *mut c_void,
    /// Sets `found` to the bytes under a key, and gives a `CoremillStatus`. Called while a model is loaded, from the same thread.
    pub find: Option<
        extern "C" fn(context: *mut c_void, key: *const c_char, found: *mut CoremillBytes) -> i32,
    >,
}

pub(crate) static MODELS: Table<Model> = Table::new("model");

/// What stands behind a handle.
pub(crate) struct Model {
    pub(crate) what: Artifact,
    options: Options,
    methods: Vec<(String, CString)>,
    /// The method that is meant where none is named.
    default: Option<String>,
    /// How operations are called: by all methods alike, or by the methods of a program.
    symbols: Vec<Arc<Symbols>>,
}

pub(crate) enum Artifact {
    /// A model of Core ML.
    Model(Arc<SharedModel>),
    /// A program of ExecuTorch.
    Program(Program),
}

/// A model that several handles may share, each for another of its methods.
pub(crate) struct SharedModel {
    directory: ByteRope,
    backend: Arc<dyn Backend>,
    /// Whether a method has to be named.
    several: bool,
}

/// Models that programs refer to by name, by the hash of their content and options: several methods have the weights
/// once.
static SHARED: Mutex<Option<HashMap<[u8; 32], Weak<SharedModel>>>> = Mutex::new(None);

/// What hashing looks at in a step.
const WINDOW: usize = 1 << 20;

/// Memory of the caller's, with whoever is told when it is no longer needed.
struct Foreign(CoremillBytes);

// SAFETY: the bytes do not change, and the header says that `release` may be called from any thread.
unsafe impl Send for Foreign {}
// SAFETY: the same.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        if self.0.length == 0 {
            return &[];
        }
        // SAFETY: `Foreign::new` has seen that the pointer is not null and the length possible; the caller keeps
        // the bytes until they are released, in `drop`.
        unsafe { std::slice::from_raw_parts(self.0.data.cast(), self.0.length) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            release(self.0.context, self.0.data, self.0.length);
        }
    }
}

impl Foreign {
    /// Takes the bytes over, or lets go of them at once.
    fn buffer(bytes: CoremillBytes) -> Result<Buffer> {
        let foreign = Foreign(bytes);
        let CoremillBytes { data, length, .. } = bytes;
        if data.is_null() && length > 0 || isize::try_from(length).is_err() {
            return Err(Failure::argument(format!("{length} bytes at {data:p} are not in memory")));
        }
        Ok(Buffer::lent(Arc::new(foreign)))
    }
}

impl Model {
    /// What was found to be a program, a reference or a directory in one piece, by its content.
    fn from_bytes(
        bytes: Buffer,
        find: impl FnOnce(&str) -> Result<Buffer>,
        options: Options,
    ) -> Result<Model> {
        if is_program(&bytes) {
            let program = coremill_pte::from_buffer(&bytes).map_err(Failure::model)?;
            return Model::from_program(program, options);
        }
        let Some(reference) = Reference::read(&bytes).map_err(Failure::model)? else {
            let directory = ByteRope::from(bytes);
            let shared = || SharedModel::new(directory.clone(), false);
            return Model::from_payload(&directory, shared, None, options);
        };
        let directory = find(&reference.key)?;
        let mut hasher = blake3::Hasher::new();
        let hashed = directory.for_each_window(0..directory.len(), WINDOW, &mut |window| {
            hasher.update(window);
            Ok(())
        });
        hashed.map_err(Failure::model)?;
        hasher.update(format!("{options:?}").as_bytes());
        let hash = *hasher.finalize().as_bytes();
        let directory = ByteRope::from(directory);
        let shared = || {
            let mut models = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            let models = models.get_or_insert_with(HashMap::new);
            models.retain(|_, shared| shared.strong_count() > 0);
            if let Some(shared) = models.get(&hash).and_then(Weak::upgrade) {
                return Ok(shared);
            }
            let made = SharedModel::new(directory.clone(), true)?;
            models.insert(hash, Arc::downgrade(&made));
            Ok(made)
        };
        Model::from_payload(&directory, shared, Some(reference.function), options)
    }

    fn from_payload(
        directory: &ByteRope,
        shared: impl FnOnce() -> Result<Arc<SharedModel>>,
        function: Option<String>,
        options: Options,
    ) -> Result<Model> {
        let payload = Payload::read(directory).map_err(Failure::model)?;
        let (methods, default) = match &payload.metadata.methods {
            Methods::One(_) => (vec!["forward".to_owned()], Some("forward".to_owned())),
            Methods::Several(methods) => {
                (methods.iter().map(|(name, _)| name.clone()).collect(), None)
            }
        };
        let symbols = payload.debug_info().map_err(Failure::model)?;
        let symbols = symbols.as_ref().map(Symbols::new).unwrap_or_default();
        let symbols = vec![Arc::new(symbols)];
        // A reference goes to a function, whatever methods the metadata tells apart.
        if let Some(function) = function {
            payload.metadata.interface(Some(&function)).map_err(Failure::model)?;
            let methods = vec![function.clone()];
            return Ok(Model::new(
                Artifact::Model(shared()?),
                options,
                methods,
                Some(function),
                symbols,
            ));
        }
        let mut shared = shared()?;
        if matches!(payload.metadata.methods, Methods::Several(_)) {
            shared = SharedModel::new(shared.directory.clone(), true)?;
        }
        Ok(Model::new(Artifact::Model(shared), options, methods, default, symbols))
    }

    fn from_program(mut program: Source, options: Options) -> Result<Model> {
        for plan in &mut program.plans {
            for delegate in plan.delegates.iter_mut().filter(|delegate| delegate.id == BACKEND) {
                delegate.compile_specs.splice(0..0, options.specs());
            }
        }
        // Methods are exported one by one: each counts nodes, and names values, anew.
        let mut symbols = Vec::with_capacity(program.plans.len());
        for plan in &program.plans {
            let mut of_plan = DebugInfo::default();
            for delegate in plan.delegates.iter().filter(|delegate| delegate.id == BACKEND) {
                let info = Payload::of(&program, delegate).and_then(|payload| payload.debug_info());
                if let Some(info) = info.map_err(Failure::model)? {
                    of_plan.debug_symbol_to_handles.extend(info.debug_symbol_to_handles);
                }
            }
            symbols.push(Arc::new(Symbols::new(&of_plan)));
        }
        let load = LoadOptions {
            threads: options.threads,
            rounded: options.rounded,
            ..LoadOptions::default()
        };
        let program = Program::new(program, load).map_err(Failure::model)?;
        let methods: Vec<String> = program.methods().map(str::to_owned).collect();
        let default = match &methods[..] {
            [only] => Some(only.clone()),
            several => several.iter().find(|name| *name == "forward").cloned(),
        };
        Ok(Model::new(Artifact::Program(program), options, methods, default, symbols))
    }

    fn from_file(path: &Path, options: Options) -> Result<Model> {
        let fault = |error: &dyn HasHint| Failure::file(path, error);
        let metadata = std::fs::metadata(path).map_err(|error| fault(&error))?;
        if metadata.is_dir() {
            let (directory, default) = directory::read(path)?;
            let directory = directory.to_data().map_err(|error| fault(&error))?;
            let shared = || SharedModel::new(directory.clone(), false);
            let mut model = Model::from_payload(&directory, shared, None, options)?;
            // Its only function has a name, unlike a delegate's.
            if let [only] = &mut model.methods[..] {
                *only = (default.clone(), c_text(&default));
            }
            model.default = Some(default);
            return Ok(model);
        }
        let bytes = Buffer::map(path).map_err(|error| fault(&error))?;
        Model::from_bytes(bytes, |_| Err(no_data()), options).map_err(|failure| {
            match failure.status {
                CoremillStatus::InvalidModel => fault(&failure),
                _ => failure,
            }
        })
    }

    fn new(
        what: Artifact,
        options: Options,
        methods: Vec<String>,
        default: Option<String>,
        symbols: Vec<Arc<Symbols>>,
    ) -> Model {
        let methods = methods.into_iter().map(|name| (name.clone(), c_text(&name))).collect();
        Model { what, options, methods, default, symbols }
    }

    /// The method of a name, or the one that is meant where there is none.
    pub(crate) fn method<'m>(&'m self, name: Option<&'m str>) -> Result<&'m str> {
        let names = || self.methods.iter().map(|(name, _)| name);
        match name.or(self.default.as_deref()) {
            Some(name) if self.methods.iter().any(|(known, _)| known == name) => Ok(name),
            Some(name) => Err(Failure::missing(unknown_name("method", name, names()))),
            None => {
                let names: Vec<_> = names().collect();
                let message = format!(
                    "the model has no default method; choose one of {}",
                    quoted_list(&names)
                );
                Err(Failure::missing(message))
            }
        }
    }

    /// How the operations of a method are called.
    pub(crate) fn symbols(&self, method: &str) -> Arc<Symbols> {
        let at = match self.symbols.len() {
            1 => Some(0),
            _ => self.methods.iter().position(|(known, _)| known == method),
        };
        at.and_then(|at| self.symbols.get(at)).cloned().unwrap_or_default()
    }

    /// An instance of a method of a model, with states of its own.
    pub(crate) fn prepare(&self, shared: &SharedModel, method: &str) -> Result<Box<dyn Delegate>> {
        const KEY: &str = "model";
        let mut program = Source::default();
        if shared.several {
            let reference = Reference { key: KEY.to_owned(), function: method.to_owned() };
            program.delegate_data.push(ByteRope::from(Buffer::from(reference.to_bytes())));
            let (key, data) = (KEY.to_owned(), shared.directory.clone());
            program.named_data.push(NamedData { key, data, ..NamedData::default() });
        } else {
            program.delegate_data.push(shared.directory.clone());
        }
        let compile_specs = self.options.specs();
        let delegate = Planned { id: BACKEND.to_owned(), compile_specs, ..Planned::default() };
        let part = DelegatedPart {
            program: &program,
            method,
            delegate: &delegate,
            threads: self.options.threads,
            rounded: self.options.rounded,
            limits: Limits::default(),
        };
        shared.backend.prepare(&part).map_err(Failure::model)
    }
}

impl SharedModel {
    fn new(directory: ByteRope, several: bool) -> Result<Arc<SharedModel>> {
        let backend = backends().into_iter().find(|backend| backend.id() == BACKEND);
        let backend = backend
            .ok_or_else(|| Failure::model(format!("this library was built without `{BACKEND}`")))?;
        Ok(Arc::new(SharedModel { directory, backend, several }))
    }
}

fn no_data() -> Failure {
    Failure {
        hint: Some("pass a lookup that finds it".to_owned()),
        ..Failure::missing("the model is not stored in these bytes, which only refer to it")
    }
}

/// Whether the bytes are a program: the format has a mark behind the first offset.
fn is_program(bytes: &Buffer) -> bool {
    let mut mark = [0; 2];
    bytes.read_at(4, &mut mark).is_ok() && mark == *b"ET"
}

/// Loads what a file holds: an ExecuTorch program (`.pte`), or a package or compiled model, which are directories.
///
/// The path is UTF-8. Files are mapped: they must not be shortened while the model is in use. Free the model with
/// `coremill_model_free`.
///
/// # Safety
/// The texts end in a zero; `options` leads to `option_count` options, or is null if there are none; `model` leads to
/// memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_model_load_file(
    path: *const c_char,
    options: *const CoremillOption,
    option_count: usize,
    model: *mut CoremillModel,
) -> CoremillStatus {
    guard(|| {
        // SAFETY: as the caller vouches.
        let (path, options) =
            unsafe { (text(path, "path")?, Options::read(options, option_count)?) };
        let loaded = Model::from_file(Path::new(path), options)?;
        // SAFETY: as the caller vouches.
        unsafe { put(model, || CoremillModel { id: MODELS.insert(loaded) }, "model") }
    })
}

/// Loads what bytes hold: an ExecuTorch program, what an ExecuTorch delegate is given, or a reference to that, which
/// `lookup` finds; it may be null where there is none.
///
/// The library takes the bytes over, whether it can load them or not, and calls their `release` when they are no
/// longer needed. Free the model with `coremill_model_free`.
///
/// # Safety
/// The bytes stay until they are released; `lookup` is null or leads to a lookup; for the rest see
/// `coremill_model_load_file`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_model_load_bytes(
    bytes: CoremillBytes,
    lookup: *const CoremillLookup,
    options: *const CoremillOption,
    option_count: usize,
    model: *mut CoremillModel,
) -> CoremillStatus {
    guard(|| {
        let bytes = Foreign::buffer(bytes)?;
        // SAFETY: as the caller vouches.
        let (lookup, options) = unsafe { (lookup.as_ref(), Options::read(options, option_count)?) };
        let find = |key: &str| {
            let Some((lookup, find)) = lookup.and_then(|lookup| Some((lookup, lookup.find?)))
            else {
                return Err(no_data());
            };
            let mut found = CoremillBytes {
                data: std::ptr::null(),
                length: 0,
                release: None,
                context: std::ptr::null_mut(),
            };
            if find(lookup.context, c_text(key).as_ptr(), &mut found) != CoremillStatus::Ok as i32 {
                let message =
                    format!("the caller's `find` has no data `{key}`, which the model refers to");
                return Err(Failure::missing(message));
            }
            Foreign::buffer(found)
        };
        let loaded = Model::from_bytes(bytes, find, options)?;
        // SAFETY: as the caller vouches.
        unsafe { put(model, || CoremillModel { id: MODELS.insert(loaded) }, "model") }
    })
}

/// Frees a model. Its methods that were loaded can still be used.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_model_free(model: CoremillModel) -> CoremillStatus {
    guard(|| MODELS.remove(model.id))
}

/// How many methods there are.
///
/// # Safety
/// `count` leads to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_model_method_count(
    model: CoremillModel,
    count: *mut usize,
) -> CoremillStatus {
    guard(|| {
        let model = MODELS.get(model.id)?;
        // SAFETY: as the caller vouches.
        unsafe { put(count, || model.methods.len(), "count") }
    })
}

/// The name of a method, which belongs to the library and stays until the model is freed.
///
/// # Safety
/// `name` leads to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_model_method_name(
    model: CoremillModel,
    index: usize,
    name: *mut *const c_char,
) -> CoremillStatus {
    guard(|| {
        let model = MODELS.get(model.id)?;
        let count = model.methods.len();
        let method = model.methods.get(index);
        let method = method.ok_or_else(|| {
            Failure::missing(format!("method {index} is out of range; the model has {count}"))
        })?;
        // SAFETY: as the caller vouches.
        unsafe { put(name, || method.1.as_ptr(), "name") }
    })
}

/// Writes what an entry gives.
///
/// # Safety
/// The pointer is null or leads to memory for a value.
pub(crate) unsafe fn put<T>(target: *mut T, value: impl FnOnce() -> T, what: &str) -> Result {
    if target.is_null() || !target.is_aligned() {
        return Err(Failure::argument(format!("`{what}` is null or misaligned")));
    }
    // SAFETY: not null and aligned; the caller vouches for the rest.
    unsafe { target.write(value()) };
    Ok(())
}

/// Packages and compiled models on disk, as what delegates are given.
mod directory {
    use std::path::Path;

    use coremill_pte::coreml::{COMPILED, Description, Directory, METADATA, Metadata, PACKAGE};
    use coremill_tensor::Buffer;

    use crate::error::{Failure, HasHint, Result};

    /// Deeper than any model.
    const MAX_DEPTH: usize = 16;

    /// The directory, and the function that is meant where none is named. The model's files are mapped, not read.
    pub(super) fn read(path: &Path) -> Result<(Directory, String)> {
        let fault = |error: &dyn HasHint| Failure::file(path, error);
        let has = |name: &str| path.join(name).exists();
        let root = match (has("Manifest.json"), has("coremldata.bin")) {
            (true, _) => PACKAGE,
            (false, true) => COMPILED,
            (false, false) => {
                return Err(fault(&"the directory is neither a package nor a compiled model"));
            }
        };
        let mut directory = Directory::new("lowered_module");
        add(&mut directory, path, root, 0)?;
        let Description { methods, default } =
            Description::of(&directory).map_err(|error| fault(&error))?;
        let identifier = path.display().to_string();
        let metadata = Metadata { identifier, methods, unknown: Default::default() };
        let metadata = Buffer::from(metadata.to_bytes());
        directory.insert(METADATA, metadata).map_err(|error| fault(&error))?;
        Ok((directory, default))
    }

    fn add(directory: &mut Directory, from: &Path, to: &str, depth: usize) -> Result {
        let fault = |error: &dyn HasHint| Failure::file(from, error);
        if depth > MAX_DEPTH {
            return Err(fault(&"directories are nested too deeply"));
        }
        for entry in std::fs::read_dir(from).map_err(|error| fault(&error))? {
            let entry = entry.map_err(|error| fault(&error))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { return Err(fault(&"a name is not UTF-8")) };
            let (path, to) = (entry.path(), format!("{to}/{name}"));
            if path.is_dir() {
                add(directory, &path, &to, depth + 1)?;
            } else {
                let file = Buffer::map(&path).map_err(|error| fault(&error))?;
                directory.insert(to, file).map_err(|error| fault(&error))?;
            }
        }
        Ok(())
    }
}
