//! Parameters, buffers and constants with borrowed storages.

use std::collections::BTreeMap;
use std::sync::Arc;

use coremill_pt2::wire::{GraphSignature, InputSpec};
use coremill_pt2::{SampleInputs, SavedValue, ScalarType, StoredValue, UncheckedTensor};
use coremill_tensor::Buffer;
use foldhash::{HashMap, HashMapExt};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::torch::Torch;
use crate::error;

/// A tensor with borrowed memory, and its version at that time. Writing to the tensor changes the
/// version.
pub(crate) struct BorrowedTensor {
    name: String,
    tensor: Py<PyAny>,
    version: i64,
    storage: Py<PyAny>,
    address: usize,
    length: usize,
}

impl BorrowedTensor {
    /// Clones the handle for another reader.
    pub(crate) fn share(&self, py: Python<'_>) -> BorrowedTensor {
        BorrowedTensor {
            name: self.name.clone(),
            tensor: self.tensor.clone_ref(py),
            storage: self.storage.clone_ref(py),
            ..*self
        }
    }

    /// Fails if the tensor was modified since.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let version = self.tensor.bind(py).getattr("_version").and_then(|it| it.extract());
        let storage = self.storage.bind(py);
        let address =
            storage.call_method0(intern!(storage.py(), "data_ptr")).and_then(|it| it.extract());
        let length =
            storage.call_method0(intern!(storage.py(), "nbytes")).and_then(|it| it.extract());
        let is_same = version.map_or(true, |version: i64| version == self.version)
            && address.is_ok_and(|address: usize| address == self.address)
            && length.is_ok_and(|length: usize| length == self.length);
        if !is_same {
            let message = format!("`{}` was written to after the conversion", self.name);
            let hint = "save the model before training continues, or convert again; weights are read when the model is \
                        saved or run";
            return Err(error::new(py, message, Some(hint.to_owned())));
        }
        Ok(())
    }
}

/// The memory of a torch storage.
struct Storage {
    /// Keeps the memory alive.
    _object: Py<PyAny>,
    address: usize,
    length: usize,
}

impl AsRef<[u8]> for Storage {
    fn as_ref(&self) -> &[u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: torch reports `length` bytes at `address`, which stay allocated while `_object`
        // lives. Uninitialized bytes are harmless, since the memory comes from an allocator. Other
        // Python threads may write concurrently: each byte is then read as its old or its new
        // value.
        #[expect(unsafe_code, reason = "reads memory that torch owns")]
        unsafe {
            std::slice::from_raw_parts(self.address as *const u8, self.length)
        }
    }
}

/// Location of a tensor's storage.
struct Place<'py> {
    storage: Bound<'py, PyAny>,
    address: usize,
    length: usize,
}

impl<'py> Place<'py> {
    fn of(tensor: &Bound<'py, PyAny>) -> PyResult<Place<'py>> {
        let py = tensor.py();
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        let address = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let length = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
        Ok(Place { storage, address, length })
    }
}

/// Prefix of the buffers in which `coremltools.optimize.torch` notes the compression of parameters.
const COMPRESSION_NOTE: &str = "_COREML_/";

/// Collects tensors.
pub(super) struct Tensors<'t, 'py> {
    torch: &'t Torch<'py>,
    stored: BTreeMap<String, StoredValue>,
    /// Storages by address and element type, in the form of archives.
    storages: HashMap<(usize, ScalarType), (String, Buffer)>,
    lent: Vec<BorrowedTensor>,
}

impl<'t, 'py> Tensors<'t, 'py> {
    pub(super) fn new(torch: &'t Torch<'py>) -> Tensors<'t, 'py> {
        Tensors { torch, stored: BTreeMap::new(), storages: HashMap::new(), lent: Vec::new() }
    }

    pub(super) fn finish(self) -> (BTreeMap<String, StoredValue>, Vec<BorrowedTensor>) {
        (self.stored, self.lent)
    }

    /// The tensors in the signature.
    pub(super) fn of_program(
        &mut self,
        program: &Bound<'py, PyAny>,
        signature: &GraphSignature,
    ) -> PyResult<()> {
        let state = program.getattr(intern!(program.py(), "state_dict"))?;
        let constants = program.getattr(intern!(program.py(), "constants"))?;
        for spec in &signature.input_specs {
            let name = match spec {
                InputSpec::Parameter { parameter_name, .. } => parameter_name,
                InputSpec::Buffer { buffer_name, .. } => buffer_name,
                InputSpec::TensorConstant { tensor_constant_name, .. } => tensor_constant_name,
                InputSpec::CustomObj { custom_obj_name, .. } => custom_obj_name,
                InputSpec::UserInput(_)
                | InputSpec::ConstantInput { .. }
                | InputSpec::Token { .. } => continue,
            };
            if self.stored.contains_key(name) {
                continue;
            }
            let mut found = state.call_method1(intern!(state.py(), "get"), (name,))?;
            if found.is_none() {
                found = constants.call_method1(intern!(constants.py(), "get"), (name,))?;
            }
            if found.is_none() {
                continue;
            }
            if !self.torch.is_tensor(&found)? {
                self.stored.insert(name.clone(), StoredValue::Object(Buffer::from(Vec::new())));
                continue;
            }
            let is_parameter = matches!(spec, InputSpec::Parameter { .. });
            self.insert(name, &found, is_parameter, 0)
                .map_err(|failure| error::in_node(found.py(), failure, name))?;
        }
        self.notes(&state)
    }

    /// Adds buffers that note the compression of parameters. No call uses them, so that the signature of a
    /// converted TorchScript module lacks them.
    fn notes(&mut self, state: &Bound<'py, PyAny>) -> PyResult<()> {
        for item in state.call_method0(intern!(state.py(), "items"))?.try_iter()? {
            let (name, tensor): (String, Bound<'py, PyAny>) = item?.extract()?;
            if name.contains(COMPRESSION_NOTE) && !self.stored.contains_key(&name) {
                self.insert(&name, &tensor, false, 0)?;
            }
        }
        Ok(())
    }

    /// Adds a tensor. A tensor subclass is added as its parts.
    fn insert(
        &mut self,
        name: &str,
        tensor: &Bound<'py, PyAny>,
        is_parameter: bool,
        depth: usize,
    ) -> PyResult<()> {
        if !self.torch.is_plain_tensor(tensor)
            && let Some(flatten) = tensor.getattr_opt(intern!(tensor.py(), "__tensor_flatten__"))?
            && depth < 8
        {
            let (attributes, _): (Vec<String>, Bound<'_, PyAny>) = flatten.call0()?.extract()?;
            for attribute in attributes {
                let part = tensor.getattr(attribute.as_str())?;
                self.insert(&format!("{name}.{attribute}"), &part, is_parameter, depth + 1)?;
            }
            self.stored.insert(name.to_owned(), StoredValue::Object(Buffer::from(Vec::new())));
            return Ok(());
        }
        let (stored, place) = self.tensor(tensor, is_parameter)?;
        if matches!(stored, StoredValue::Tensor(_)) {
            self.lend(name, tensor, place)?;
        }
        self.stored.insert(name.to_owned(), stored);
        Ok(())
    }

    /// Records a tensor with borrowed memory, at `place` if known.
    fn lend(
        &mut self,
        name: &str,
        tensor: &Bound<'py, PyAny>,
        place: Option<Place<'py>>,
    ) -> PyResult<()> {
        // Inference tensors have no version.
        let version =
            tensor.getattr(intern!(tensor.py(), "_version")).and_then(|version| version.extract());
        let Place { storage, address, length } = match place {
            Some(place) => place,
            None => Place::of(tensor)?,
        };
        self.lent.push(BorrowedTensor {
            name: name.to_owned(),
            tensor: tensor.clone().unbind(),
            version: version.unwrap_or_default(),
            address,
            length,
            storage: storage.unbind(),
        });
        Ok(())
    }

    /// Converts a tensor. Also returns its location if the memory is borrowed.
    fn tensor(
        &mut self,
        tensor: &Bound<'py, PyAny>,
        is_parameter: bool,
    ) -> PyResult<(StoredValue, Option<Place<'py>>)> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(tensor.py(), "dtype"))?;
        let Some((dtype, _)) = self.torch.dtype(&dtype) else {
            return Err(error::unsupported(
                py,
                format!("the element type {dtype} is not supported"),
            ));
        };
        if self.torch.layout(&tensor.getattr(intern!(tensor.py(), "layout"))?) != Some(7) {
            return Err(error::new(
                py,
                "the tensor is sparse".to_owned(),
                Some("call `.to_dense()` before the export".to_owned()),
            ));
        }
        let mut tensor = tensor.clone();
        let is_fake = !self.torch.is_plain_tensor(&tensor)
            && tensor.getattr_opt(intern!(tensor.py(), "fake_mode"))?.is_some();
        let is = |name: &Bound<'py, PyString>| tensor.getattr(name)?.is_truthy();
        let mut lies_here = !is_fake && is(intern!(py, "is_cpu"))?;
        if is_fake || !lies_here && is(intern!(py, "is_meta"))? {
            let sizes = tensor.getattr(intern!(tensor.py(), "shape"))?.extract()?;
            return Ok((StoredValue::Missing { dtype, sizes }, None));
        }
        // Copy tensors of other devices to the CPU, and resolve conjugates.
        if !lies_here {
            tensor = tensor.call_method0(intern!(tensor.py(), "cpu"))?;
        }
        for (is, resolve) in [
            (intern!(py, "is_conj"), intern!(py, "resolve_conj")),
            (intern!(py, "is_neg"), intern!(py, "resolve_neg")),
        ] {
            if tensor.call_method0(is)?.is_truthy()? {
                tensor = tensor.call_method0(resolve)?;
                lies_here = false;
            }
        }
        let claim = UncheckedTensor {
            dtype,
            sizes: tensor.getattr(intern!(tensor.py(), "shape"))?.extract()?,
            strides: tensor.call_method0(intern!(tensor.py(), "stride"))?.extract()?,
            offset: tensor.call_method0(intern!(tensor.py(), "storage_offset"))?.extract()?,
        };
        let place = Place::of(&tensor)?;
        let Place { address, length, .. } = place;
        let key = (address, dtype);
        let (name, buffer) = match self.storages.get(&key).filter(|_| lies_here && length > 0) {
            Some(known) => known.clone(),
            None => {
                let name = format!("storage {}", self.storages.len());
                let lent = Storage { _object: place.storage.clone().unbind(), address, length };
                let buffer = Buffer::lent(Arc::new(lent));
                self.storages.insert(key, (name.clone(), buffer.clone()));
                (name, buffer)
            }
        };
        let stored = claim.check(buffer, &name, is_parameter);
        let stored = stored.map_err(|failure| error::of_archive(py, &failure))?;
        Ok((stored, lies_here.then_some(place)))
    }

    /// The sample inputs of a program, `None` if they contain unsupported values.
    pub(super) fn samples(&mut self, samples: &Bound<'py, PyAny>) -> Option<SampleInputs> {
        let pair = samples.cast::<PyTuple>().ok()?;
        let positional = pair.get_item(0).ok()?;
        let positional = super::items(&positional).ok()?;
        let positional =
            positional.iter().map(|item| self.saved(item, 0)).collect::<Option<_>>()?;
        let keywords = pair.get_item(1).ok()?;
        let keywords = match self.saved(&keywords, 0)? {
            SavedValue::Dict(pairs) => pairs,
            _ => Vec::new(),
        };
        Some(SampleInputs { positional, keywords })
    }

    fn saved(&mut self, value: &Bound<'py, PyAny>, depth: usize) -> Option<SavedValue> {
        let mut all = |items: Vec<Bound<'py, PyAny>>| -> Option<Vec<SavedValue>> {
            items.iter().map(|item| self.saved(item, depth + 1)).collect()
        };
        if depth > 32 {
            return None;
        }
        Some(if value.is_none() {
            SavedValue::None
        } else if let Ok(truth) = value.cast::<PyBool>() {
            SavedValue::Bool(truth.is_true())
        } else if let Ok(number) = value.cast::<PyInt>() {
            SavedValue::Int(number.extract().ok()?)
        } else if let Ok(number) = value.cast::<PyFloat>() {
            SavedValue::Float(number.value())
        } else if let Ok(text) = value.cast::<PyString>() {
            SavedValue::Text(text.to_cow().ok()?.into_owned())
        } else if let Ok(tuple) = value.cast::<PyTuple>() {
            SavedValue::Tuple(all(tuple.iter().collect())?)
        } else if let Ok(list) = value.cast::<PyList>() {
            SavedValue::List(all(list.iter().collect())?)
        } else if let Ok(dict) = value.cast::<PyDict>() {
            let mut pairs = Vec::with_capacity(dict.len());
            for (key, item) in dict.iter() {
                pairs.push((self.saved(&key, depth + 1)?, self.saved(&item, depth + 1)?));
            }
            SavedValue::Dict(pairs)
        } else if self.torch.is_tensor(value).ok()? {
            SavedValue::Tensor(self.tensor(value, false).ok()?.0)
        } else {
            return None;
        })
    }
}
