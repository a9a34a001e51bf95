//! Loaded models and programs.
#![expect(unsafe_code, reason = "functions with a C interface")]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use coremill_io::{HasHint, quoted_list, unknown_name};
use coremill_pte::coreml::{BACKEND, DebugInfo, Methods, Payload, Reference};
use coremill_pte::program::{Delegate as Planned, NamedData};
use coremill_pte::{ByteRope, Program as Source};
use coremill_runtime::{Backend, Delegate, DelegatedPart, Limits, LoadOptions, Program, backends};
use coremill_tensor::Buffer;

use crate::error::{CoremillStatus, Failure, Result, c_text, guard};
use crate::handle::Table;
use crate::hooks::Symbols;
use crate::options::{CoremillOption, Options, text};

/// A loaded model or program. Threads may use it concurrently.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillModel {
    /// A number assigned by the library.
    pub id: u64,
}

/// Bytes that the caller keeps valid until `release` is called.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillBytes {
    /// The bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub length: usize,
    /// Called exactly once, from any thread, when the bytes are no longer needed, also if loading fails. May be null
    /// for bytes that are valid until the process ends.
    pub release: Option<extern "C" fn(context: *mut c_void, data: *const c_void, length: usize)>,
    /// Passed to `release`.
    pub context: *mut c_void,
}

/// Lookup of a program's named data.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillLookup {
    /// Passed to `find`.
    pub context: *mut c_void,
    /// Sets `found` to the bytes with a key, and returns a `CoremillStatus`. Called while a model is loaded, by the
    /// same thread.
    pub find: Option<
        extern "C" fn(context: *mut c_void, key: *const c_char, found: *mut CoremillBytes) -> i32,
    >,
}

pub(crate) static MODELS: Table<Model> = Table::new("model");

/// The object of a model handle.
pub(crate) struct Model {
    pub(crate) what: Artifact,
    options: Options,
    methods: Vec<(String, CString)>,
    /// The default method, if there is one.
    default: Option<String>,
    /// Symbols of operations: one entry for all methods, or one per method of a program.
    symbols: Vec<Arc<Symbols>>,
}

pub(crate) enum Artifact {
    /// A Core ML model.
    Model(Arc<SharedModel>),
    /// An ExecuTorch program.
    Program(Program),
}

/// A model shared by several handles, for different methods.
pub(crate) struct SharedModel {
    directory: ByteRope,
    backend: Arc<dyn Backend>,
    /// Whether the model has several methods, so that a name is required.
    several: bool,
}

/// Models that programs refer to by name, by hash of content and options. Methods that share a model share its
/// weights.
static SHARED: Mutex<Option<HashMap<[u8; 32], Weak<SharedModel>>>> = Mutex::new(None);

/// Bytes hashed per step.
const WINDOW: usize = 1 << 20;

/// The caller's memory, with the callback that releases it.
struct Foreign(CoremillBytes);

// SAFETY: the bytes are not modified, and the header states that `release` may be called from any thread.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl AsRef<[u8]> for Foreign {
    fn as_ref(&self) -> &[u8] {
        if self.0.length == 0 {
            return &[];
        }
        // SAFETY: `Foreign::new` has checked that the pointer is not null and the length valid. The caller keeps the
        // bytes valid until `drop` releases them.
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
    /// Takes ownership of the bytes, or releases them on error.
    fn buffer(bytes: CoremillBytes) -> Result<Buffer> {
        let foreign = Foreign(bytes);
        let CoremillBytes { data, length, .. } = bytes;
        if data.is_null() && length > 0 || isize::try_from(length).is_err() {
            return Err(Failure::argument(format!(
                "{length} bytes at {data:p} are not a valid memory range"
            )));
        }
        Ok(Buffer::lent(Arc::new(foreign)))
    }
}

impl Model {
    /// Loads a program, a reference or a serialized directory, detected by content.
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
        // A reference selects a single function, independent of the methods in the metadata.
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
        // Methods are exported separately, each with its own node numbers and value names.
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
            numerics: options.numerics,
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
            // Unlike the only function of a delegate, the only function of a package has a name.
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

    /// The method with a name, or the default method.
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

    /// Symbols of a method's operations.
    pub(crate) fn symbols(&self, method: &str) -> Arc<Symbols> {
        let at = match self.symbols.len() {
            1 => Some(0),
            _ => self.methods.iter().position(|(known, _)| known == method),
        };
        at.and_then(|at| self.symbols.get(at)).cloned().unwrap_or_default()
    }

    /// An instance of a method, with its own states.
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
            numerics: self.options.numerics,
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
        hint: Some("pass a lookup callback that finds the model".to_owned()),
        ..Failure::missing("these bytes only refer to the model, which is stored elsewhere")
    }
}

/// Whether the bytes are a program, which has a signature after the first offset.
fn is_program(bytes: &Buffer) -> bool {
    let mut mark = [0; 2];
    bytes.read_at(4, &mut mark).is_ok() && mark == *b"ET"
}

/// Loads an ExecuTorch program (`.pte`), or a package or compiled model, which are directories.
///
/// The path is UTF-8. Files are mapped and must not be truncated while the model is in use. Free the model with
/// `coremill_model_free`.
///
/// # Safety
/// Strings are NUL-terminated; `options` points to `option_count` options, or is null if there are none; `model`
/// points to memory for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_model_load_file(
    path: *const c_char,
    options: *const CoremillOption,
    option_count: usize,
    model: *mut CoremillModel,
) -> CoremillStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (path, options) =
            unsafe { (text(path, "path")?, Options::read(options, option_count)?) };
        let loaded = Model::from_file(Path::new(path), options)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(model, || CoremillModel { id: MODELS.insert(loaded) }, "model") }
    })
}

/// Loads an ExecuTorch program, the payload of an ExecuTorch delegate, or a reference to a payload, which `lookup`
/// resolves. `lookup` may be null if no references occur.
///
/// The library takes ownership of the bytes, also on errors, and calls `release` when they are no longer needed.
/// Free the model with `coremill_model_free`.
///
/// # Safety
/// The bytes are valid until they are released; `lookup` is null or points to a lookup; other requirements as for
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
        // SAFETY: guaranteed by the caller.
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
                let message = format!(
                    "the caller's `find` returns no data for `{key}`, which the model refers to"
                );
                return Err(Failure::missing(message));
            }
            Foreign::buffer(found)
        };
        let loaded = Model::from_bytes(bytes, find, options)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(model, || CoremillModel { id: MODELS.insert(loaded) }, "model") }
    })
}

/// Frees a model. Methods that were loaded from it stay valid.
#[unsafe(no_mangle)]
pub extern "C" fn coremill_model_free(model: CoremillModel) -> CoremillStatus {
    guard(|| MODELS.remove(model.id))
}

/// Number of methods.
///
/// # Safety
/// `count` points to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coremill_model_method_count(
    model: CoremillModel,
    count: *mut usize,
) -> CoremillStatus {
    guard(|| {
        let model = MODELS.get(model.id)?;
        // SAFETY: guaranteed by the caller.
        unsafe { put(count, || model.methods.len(), "count") }
    })
}

/// Name of a method. It belongs to the library and is valid until the model is freed.
///
/// # Safety
/// `name` points to memory for a pointer.
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
        // SAFETY: guaranteed by the caller.
        unsafe { put(name, || method.1.as_ptr(), "name") }
    })
}

/// Writes the result of an entry point.
///
/// # Safety
/// The pointer is null or points to memory for a value.
pub(crate) unsafe fn put<T>(target: *mut T, value: impl FnOnce() -> T, what: &str) -> Result {
    if target.is_null() || !target.is_aligned() {
        return Err(Failure::argument(format!("`{what}` is null or misaligned")));
    }
    // SAFETY: not null and aligned; the rest is guaranteed by the caller.
    unsafe { target.write(value()) };
    Ok(())
}

/// Packages and compiled models on disk, converted to payloads.
pub(crate) mod directory {
    use std::path::Path;

    use coremill_io::HasHint;
    use coremill_pte::coreml::{COMPILED, Description, Directory, METADATA, Metadata, PACKAGE};
    use coremill_tensor::Buffer;

    use crate::error::{Failure, Result};

    /// Maximum directory depth, above any model's.
    const MAX_DEPTH: usize = 16;

    /// The directory, and the name of the default function. The model's files are mapped, not read.
    pub(super) fn read(path: &Path) -> Result<(Directory, String)> {
        let fault = |error: &dyn HasHint| Failure::file(path, error);
        let (mut directory, Description { methods, default }) = describe(path)?;
        let identifier = path.display().to_string();
        let metadata = Metadata { identifier, methods, unknown: Default::default() };
        let metadata = Buffer::from(metadata.to_bytes());
        directory.insert(METADATA, metadata).map_err(|error| fault(&error))?;
        Ok((directory, default))
    }

    /// The directory, and the functions of the model.
    pub(crate) fn describe(path: &Path) -> Result<(Directory, Description)> {
        let fault = |error: &dyn HasHint| Failure::file(path, error);
        std::fs::metadata(path).map_err(|error| fault(&error))?;
        let has = |name: &str| path.join(name).exists();
        let root = match (has("Manifest.json"), has("coremldata.bin")) {
            (true, _) => PACKAGE,
            (false, true) => COMPILED,
            (false, false) => {
                return Err(fault(&"this is neither a package nor a compiled model"));
            }
        };
        let mut directory = Directory::new("lowered_module");
        add(&mut directory, path, root, 0)?;
        let description = Description::of(&directory).map_err(|error| fault(&error))?;
        Ok((directory, description))
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
