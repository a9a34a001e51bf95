//! Conversion between numpy arrays, torch tensors and the engine's arrays.

use std::io::Cursor;
use std::sync::Arc;

use coremill::images;
use coremill_engine::{Array, Elements, FeatureSpec, Outputs, Value};
use coremill_io::unknown_name;
use coremill_tensor::DType;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::error::{self, Failure};

/// A value passed for an input.
pub(crate) enum Item {
    Array(Array),
    /// An image, encoded as PNG.
    Picture(Vec<u8>),
}

impl Item {
    pub(crate) fn of(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Item> {
        Ok(match is_picture(value)? {
            true => Item::Picture(png(value)?),
            false => Item::Array(array(value, name)?),
        })
    }
}

/// Inputs by name. If any is a torch tensor, results are torch tensors, too.
pub(crate) struct SuppliedArrays {
    pub(crate) items: Vec<(String, Item)>,
    pub(crate) torch: bool,
}

impl SuppliedArrays {
    /// Converts the inputs to arrays. Images are converted as the model's inputs require.
    pub(crate) fn arrays(self, ports: &[FeatureSpec]) -> Result<Vec<(String, Array)>, Failure> {
        let items = self.items.into_iter().map(|(name, item)| {
            let array = match item {
                Item::Array(array) => array,
                Item::Picture(bytes) => {
                    let port = ports.iter().find(|port| port.name == name);
                    let Some(port) = port else {
                        let names = ports.iter().map(|port| &port.name);
                        let message = unknown_name("input", &name, names);
                        return Err(Failure::Run { message, hint: None });
                    };
                    images::from_reader(Cursor::new(bytes), port, None)?
                }
            };
            Ok((name, array))
        });
        items.collect()
    }
}

/// Inputs from a dictionary.
pub(crate) fn by_name(dict: &Bound<'_, PyDict>) -> PyResult<SuppliedArrays> {
    let mut given = SuppliedArrays { items: Vec::with_capacity(dict.len()), torch: false };
    for (key, value) in dict.iter() {
        let name: String = key
            .extract()
            .map_err(|_| error::option(dict.py(), "inputs must be keyed by name", None))?;
        given.torch |= is_torch(&value)?;
        given.items.push((name.clone(), Item::of(&value, &name)?));
    }
    Ok(given)
}

/// The value of the only input.
pub(crate) fn only(value: &Bound<'_, PyAny>, ports: &[FeatureSpec]) -> PyResult<SuppliedArrays> {
    let [port] = ports else {
        let names: Vec<_> = ports.iter().map(|port| format!("`{}`", port.name)).collect();
        let class = value.get_type().name()?;
        let message = match names.len() {
            0 => format!("predict() got a {class}, but the model has no inputs"),
            _ => format!("predict() got a {class}, but the inputs are {}", names.join(", ")),
        };
        let hint = "pass a dictionary of arrays by name, or keyword arguments".to_owned();
        return Err(error::option(value.py(), message, Some(hint)));
    };
    let item = Item::of(value, &port.name)?;
    Ok(SuppliedArrays { torch: is_torch(value)?, items: vec![(port.name.clone(), item)] })
}

/// A list of names. A single string is a list with one name.
pub(crate) fn names(value: &Bound<'_, PyAny>, option: &str) -> PyResult<Vec<String>> {
    if let Ok(name) = value.extract::<String>() {
        return Ok(vec![name]);
    }
    let wrong = |_| crate::options::wrong(value, option, "a list of names");
    value.try_iter().map_err(wrong)?.map(|item| item?.extract().map_err(wrong)).collect()
}

/// A mapping of states whose items can be assigned. `owner` must have the method `set_state`.
pub(crate) fn states<'py>(
    owner: &Bound<'py, PyAny>,
    content: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    owner.py().import("coremill._mappings")?.call_method1("States", (owner, content))
}

/// Returns true for Pillow images, without importing Pillow.
fn is_picture(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = value.py().import("sys")?.getattr("modules")?;
    let pillow = modules.call_method1("get", ("PIL.Image",))?;
    Ok(!pillow.is_none() && value.is_instance(&pillow.getattr("Image")?)?)
}

/// Encodes a Pillow image as PNG, which is lossless.
fn png(picture: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let py = picture.py();
    let mode: String = picture.getattr("mode")?.extract()?;
    let held = match mode.as_str() {
        "1" | "L" | "LA" | "P" | "RGB" | "RGBA" | "I;16" => picture.clone(),
        "I" => picture.call_method1("convert", ("I;16",))?,
        "F" => picture.call_method1("convert", ("L",))?,
        _ => picture.call_method1("convert", ("RGB",))?,
    };
    let file = py.import("io")?.call_method0("BytesIO")?;
    let keywords = PyDict::new(py);
    keywords.set_item("format", "PNG")?;
    keywords.set_item("compress_level", 0)?;
    // Orientation is up to the user, so drop the EXIF tag.
    keywords.set_item("exif", PyBytes::new(py, b""))?;
    held.call_method("save", (&file,), Some(&keywords))?;
    file.call_method0("getvalue")?.extract()
}

/// Returns true for torch tensors, without importing torch.
pub(crate) fn is_torch(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = value.py().import("sys")?.getattr("modules")?;
    let torch = modules.call_method1("get", ("torch",))?;
    Ok(!torch.is_none() && value.is_instance(&torch.getattr("Tensor")?)?)
}

/// Converts a numpy array, a torch tensor, or any object that numpy converts to an array.
pub(crate) fn array(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Array> {
    let py = value.py();
    if is_torch(value)? {
        return of_torch(value, name);
    }
    let numpy = numpy(py)?;
    let is_array = value.is_instance(&numpy.getattr("ndarray")?)?;
    let array = match is_array {
        true => value.clone(),
        false => plain(&numpy, value, name)?,
    };
    let dtype = array.getattr("dtype")?;
    let kind: String = dtype.getattr("name")?.extract()?;
    if dtype.getattr("kind")?.extract::<String>()? == "U" {
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let texts: Vec<String> = array.call_method0("ravel")?.call_method0("tolist")?.extract()?;
        return Ok(Array::texts(shape, texts));
    }
    let Some(found) = dtype_of(&kind) else {
        let message =
            format!("input `{name}` has element type `{kind}`, which Core ML does not support");
        return Err(error::option(py, message, None));
    };
    // Row-major and little-endian.
    let wanted = dtype.call_method1("newbyteorder", ("<",))?;
    let packed = numpy.call_method1("ascontiguousarray", (&array, wanted))?;
    // `ascontiguousarray` converts scalars to rank 1, so use the original shape.
    let shape: Vec<usize> = array.getattr("shape")?.extract()?;
    let address: usize =
        packed.getattr("__array_interface__")?.get_item("data")?.get_item(0)?.extract()?;
    let length: usize = packed.getattr("nbytes")?.extract()?;
    bytes_at(py, name, found, &shape, address, length)
}

/// Converts numbers and lists with numpy.
fn plain<'py>(
    numpy: &Bound<'py, PyModule>,
    value: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let made = numpy.call_method1("asarray", (value,));
    let made = made.map_err(|cause| {
        let message = format!("input `{name}` is not an array: {cause}");
        error::option(numpy.py(), message, None)
    })?;
    let kind: String = made.getattr("dtype")?.getattr("kind")?.extract()?;
    if kind == "O" {
        let class = value.get_type().name()?;
        let message = format!("input `{name}` is a {class}; expected an array");
        let hint = "pass a numpy array or a torch tensor".to_owned();
        return Err(error::option(numpy.py(), message, Some(hint)));
    }
    Ok(made)
}

fn of_torch(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<Array> {
    let py = tensor.py();
    let mut tensor = tensor.call_method0("detach")?;
    for step in ["cpu", "contiguous", "resolve_conj", "resolve_neg"] {
        tensor = tensor.call_method0(step)?;
    }
    let kind = tensor.getattr("dtype")?.str()?.to_string();
    let kind = kind.strip_prefix("torch.").unwrap_or(&kind);
    let Some(dtype) = dtype_of(kind) else {
        let message =
            format!("input `{name}` has element type `{kind}`, which Core ML does not support");
        return Err(error::option(py, message, None));
    };
    let shape: Vec<usize> = tensor.getattr("shape")?.extract()?;
    let address: usize = tensor.call_method0("data_ptr")?.extract()?;
    let length: usize = tensor.getattr("nbytes")?.extract()?;
    bytes_at(py, name, dtype, &shape, address, length)
}

fn bytes_at(
    py: Python<'_>,
    name: &str,
    dtype: DType,
    shape: &[usize],
    address: usize,
    length: usize,
) -> PyResult<Array> {
    let bytes: &[u8] = if length == 0 || address == 0 {
        &[]
    } else {
        // SAFETY: numpy or torch reports `length` bytes of a contiguous array at `address`, and the
        // caller keeps the array alive. Python's lock is held, so that the array is not resized
        // meanwhile. An element that is written concurrently is read as one of its values.
        #[expect(unsafe_code, reason = "reads an array of another library without a copy")]
        unsafe {
            std::slice::from_raw_parts(address as *const u8, length)
        }
    };
    Array::from_bytes(dtype, shape, bytes).ok_or_else(|| {
        let message =
            format!("input `{name}` has {} elements that do not fit into 32 bits", dtype.name());
        error::option(py, message, None)
    })
}

/// The element type with this name in numpy or torch.
fn dtype_of(name: &str) -> Option<DType> {
    Some(match name {
        "float16" => DType::Fp16,
        "float32" => DType::Fp32,
        "float64" => DType::Fp64,
        "bfloat16" => DType::Bf16,
        "bool" => DType::Bool,
        "int8" => DType::Int8,
        "uint8" => DType::UInt8,
        "int16" => DType::Int16,
        "uint16" => DType::UInt16,
        "int32" => DType::Int32,
        "uint32" => DType::UInt32,
        "int64" => DType::Int64,
        "uint64" => DType::UInt64,
        _ => return None,
    })
}

fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("numpy").map_err(|_| {
        let hint = "pip install numpy".to_owned();
        error::new(py, "arrays require numpy, which is not installed".to_owned(), Some(hint))
    })
}

/// Owns the elements of a result, for the numpy array that shares them.
#[pyclass(frozen, module = "coremill._native")]
struct KeptElements {
    bytes: HeldBytes,
    shape: Vec<usize>,
    kind: &'static str,
}

enum HeldBytes {
    Floats(Vec<f32>),
    Ints(Vec<i32>),
    Bytes(Vec<u8>),
}

#[pymethods]
impl KeptElements {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let address = match &self.bytes {
            HeldBytes::Floats(floats) => floats.as_ptr().addr(),
            HeldBytes::Ints(ints) => ints.as_ptr().addr(),
            HeldBytes::Bytes(bytes) => bytes.as_ptr().addr(),
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", self.kind)?;
        // The array is the only user of the elements, so it may write to them.
        interface.set_item("data", (address, false))?;
        Ok(interface)
    }
}

/// Converts to a numpy array or a torch tensor that shares the elements.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    array: Array,
    torch: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let shape = array.shape().to_vec();
    if let Elements::Texts(texts) = array.elements() {
        let list = PyList::new(py, texts.iter())?;
        return numpy(py)?.call_method1("array", (list,))?.call_method1("reshape", (shape,));
    }
    let kind = match array.dtype() {
        DType::Bool => "|b1",
        DType::Int8 => "|i1",
        DType::UInt8 => "|u1",
        DType::Int16 => "<i2",
        DType::UInt16 => "<u2",
        DType::Int32 => "<i4",
        DType::UInt32 => "<u4",
        DType::Int64 => "<i8",
        DType::UInt64 => "<u8",
        DType::Fp16 => "<f2",
        DType::Fp64 => "<f8",
        // numpy has no narrower float types.
        other if other.is_float() => "<f4",
        _ => "<i4",
    };
    let in_place = matches!(kind, "<f4" | "<i4");
    let bytes = match in_place {
        true => match array.into_elements() {
            Elements::Floats(floats) => HeldBytes::Floats(Arc::unwrap_or_clone(floats)),
            Elements::Ints(ints) => HeldBytes::Ints(Arc::unwrap_or_clone(ints)),
            Elements::Texts(_) => HeldBytes::Bytes(Vec::new()),
        },
        false => HeldBytes::Bytes(array.to_bytes().unwrap_or_default()),
    };
    let held = Bound::new(py, KeptElements { bytes, shape, kind })?;
    let made = numpy(py)?.call_method1("asarray", (held,))?;
    match torch {
        true => py.import("torch")?.call_method1("from_numpy", (made,)),
        false => Ok(made),
    }
}

/// The outputs of a model, by name.
pub(crate) fn results<'py>(
    py: Python<'py>,
    outputs: Outputs,
    torch: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in outputs.0 {
        match value {
            Value::Array(array) => dict.set_item(name, to_python(py, array, torch)?)?,
            Value::List(arrays) => {
                let list = PyList::empty(py);
                for array in arrays {
                    list.append(to_python(py, array, torch)?)?;
                }
                dict.set_item(name, list)?;
            }
            Value::Dictionary(entries) => {
                let classes = PyDict::new(py);
                for (key, score) in entries {
                    match key {
                        coremill_engine::Key::Text(text) => classes.set_item(text, score)?,
                        coremill_engine::Key::Int(number) => classes.set_item(number, score)?,
                    }
                }
                dict.set_item(name, classes)?;
            }
        }
    }
    Ok(dict)
}
