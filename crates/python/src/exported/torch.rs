//! Classes and constants of torch.

use coremill_pt2::ScalarType;
use foldhash::{HashMap, HashMapExt};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Numbers of torch's element types in the archive schema.
const DTYPES: [(ScalarType, i64); 21] = [
    (ScalarType::UInt8, 1),
    (ScalarType::Int8, 2),
    (ScalarType::Int16, 3),
    (ScalarType::Int32, 4),
    (ScalarType::Int64, 5),
    (ScalarType::Float16, 6),
    (ScalarType::Float32, 7),
    (ScalarType::Float64, 8),
    (ScalarType::Complex32, 9),
    (ScalarType::Complex64, 10),
    (ScalarType::Complex128, 11),
    (ScalarType::Bool, 12),
    (ScalarType::BFloat16, 13),
    (ScalarType::UInt16, 28),
    (ScalarType::Float8E4M3Fn, 29),
    (ScalarType::Float8E5M2, 30),
    (ScalarType::Float8E4M3FnUz, 31),
    (ScalarType::Float8E5M2FnUz, 32),
    (ScalarType::UInt32, 33),
    (ScalarType::Float8E8M0Fnu, 34),
    (ScalarType::UInt64, 35),
];

/// Numbers of torch's layouts in the archive schema.
const LAYOUTS: [(&str, i64); 7] = [
    ("sparse_coo", 1),
    ("sparse_csr", 2),
    ("sparse_csc", 3),
    ("sparse_bsr", 4),
    ("sparse_bsc", 5),
    ("_mkldnn", 6),
    ("strided", 7),
];

/// Numbers of torch's memory formats in the archive schema.
const FORMATS: [(&str, i64); 4] = [
    ("contiguous_format", 1),
    ("channels_last", 2),
    ("channels_last_3d", 3),
    ("preserve_format", 4),
];

/// Classes and functions of torch.
pub(super) struct Torch<'py> {
    pub(super) module: Bound<'py, PyModule>,
    pub(super) tensor: Bound<'py, PyType>,
    parameter: Bound<'py, PyType>,
    fake: Bound<'py, PyType>,
    /// The `layout` getter of torch's base class. Fake tensors override it in Python.
    base_layout: Bound<'py, PyAny>,
    pub(super) node: Bound<'py, PyType>,
    pub(super) graph_module: Bound<'py, PyType>,
    pub(super) operator: Bound<'py, PyType>,
    pub(super) higher_order: Bound<'py, PyType>,
    pub(super) symbolic: [Bound<'py, PyType>; 3],
    pub(super) custom_object: Bound<'py, PyType>,
    pub(super) getitem: Bound<'py, PyAny>,
    pub(super) device: Bound<'py, PyAny>,
    dtypes: HashMap<usize, (ScalarType, i64)>,
    layouts: HashMap<usize, i64>,
    formats: HashMap<usize, i64>,
}

impl<'py> Torch<'py> {
    /// Imports torch, which any exported program has already imported.
    pub(super) fn of(py: Python<'py>) -> PyResult<Torch<'py>> {
        let module = py.import("torch")?;
        let class = |module: &Bound<'py, PyModule>, name: &str| -> PyResult<Bound<'py, PyType>> {
            Ok(module.getattr(name)?.cast_into()?)
        };
        let fx = py.import("torch.fx")?;
        let ops = py.import("torch._ops")?;
        let mut dtypes = HashMap::new();
        for (dtype, number) in DTYPES {
            // Types that do not exist in every version.
            if let Some(object) = module.getattr_opt(dtype.name())? {
                dtypes.insert(object.as_ptr().addr(), (dtype, number));
            }
        }
        let named = |names: &[(&str, i64)]| -> PyResult<HashMap<usize, i64>> {
            let mut found = HashMap::new();
            for (name, number) in names {
                if let Some(object) = module.getattr_opt(*name)? {
                    found.insert(object.as_ptr().addr(), *number);
                }
            }
            Ok(found)
        };
        Ok(Torch {
            tensor: class(&module, "Tensor")?,
            parameter: class(&py.import("torch.nn")?, "Parameter")?,
            fake: class(&py.import("torch._subclasses.fake_tensor")?, "FakeTensor")?,
            base_layout: module
                .getattr("_C")?
                .getattr("TensorBase")?
                .getattr("layout")?
                .getattr("__get__")?,
            node: class(&fx, "Node")?,
            graph_module: class(&fx, "GraphModule")?,
            operator: class(&ops, "OpOverload")?,
            higher_order: class(&ops, "HigherOrderOperator")?,
            symbolic: [
                class(&module, "SymInt")?,
                class(&module, "SymFloat")?,
                class(&module, "SymBool")?,
            ],
            custom_object: class(&py.import("torch.export.graph_signature")?, "CustomObjArgument")?,
            getitem: py.import("operator")?.getattr("getitem")?,
            device: module.getattr(intern!(module.py(), "device"))?,
            dtypes,
            layouts: named(&LAYOUTS)?,
            formats: named(&FORMATS)?,
            module,
        })
    }

    pub(super) fn version(&self) -> PyResult<String> {
        Ok(self.module.getattr(intern!(self.module.py(), "__version__"))?.str()?.to_string())
    }

    /// An element type and its number in archives. torch's types are singletons.
    pub(super) fn dtype(&self, object: &Bound<'py, PyAny>) -> Option<(ScalarType, i64)> {
        self.dtypes.get(&object.as_ptr().addr()).copied()
    }

    pub(super) fn layout(&self, object: &Bound<'py, PyAny>) -> Option<i64> {
        self.layouts.get(&object.as_ptr().addr()).copied()
    }

    pub(super) fn format(&self, object: &Bound<'py, PyAny>) -> Option<i64> {
        self.formats.get(&object.as_ptr().addr()).copied()
    }

    pub(super) fn is_tensor(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        Ok(self.is_fake(object) || object.is_instance(&self.tensor)?)
    }

    /// Returns true for fake tensors, which have a type but no data.
    pub(super) fn is_fake(&self, object: &Bound<'py, PyAny>) -> bool {
        object.get_type().is(&self.fake)
    }

    /// The layout of a tensor.
    pub(super) fn layout_of(&self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.is_fake(tensor) {
            true => self.base_layout.call1((tensor,)),
            false => tensor.getattr(intern!(tensor.py(), "layout")),
        }
    }

    /// Returns true for tensors of torch's own classes, without fake tensors and subclasses.
    pub(super) fn is_plain_tensor(&self, object: &Bound<'py, PyAny>) -> bool {
        object.get_type().is(&self.tensor) || object.get_type().is(&self.parameter)
    }

    pub(super) fn is_node(&self, object: &Bound<'py, PyAny>) -> PyResult<bool> {
        object.is_instance(&self.node)
    }
}
