//! Types of values, from `node.meta["val"]`.

use coremill_pt2::wire::{self, Device, Hint, SymBool, SymExpr, SymFloat, SymInt, TensorMeta};
use foldhash::{HashMap, HashMapExt};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use super::items;
use super::torch::Torch;
use crate::error;

/// Converts types, and caches symbolic expressions.
pub(super) struct Types<'t, 'py> {
    torch: &'t Torch<'py>,
    /// Cached expressions by the address of torch's node. The node is kept alive so that its
    /// address is not reused.
    expressions: HashMap<usize, (Bound<'py, PyAny>, Symbolic)>,
    to_text: Option<Bound<'py, PyAny>>,
    /// The last device. Nearly all tensors have the same.
    device: Option<(Bound<'py, PyAny>, Device)>,
}

#[derive(Clone)]
enum Symbolic {
    /// An expression with a constant value.
    Number(Number),
    Expression {
        text: String,
        hint: Option<Number>,
    },
}

#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl Number {
    fn hint(self) -> Hint {
        match self {
            Number::Int(value) => Hint::AsInt(value),
            Number::Float(value) => Hint::AsFloat(wire::Float(value)),
            Number::Bool(value) => Hint::AsBool(value),
        }
    }
}

impl<'t, 'py> Types<'t, 'py> {
    pub(super) fn new(torch: &'t Torch<'py>) -> Types<'t, 'py> {
        Types { torch, expressions: HashMap::new(), to_text: None, device: None }
    }

    pub(super) fn tensor(&mut self, value: &Bound<'py, PyAny>) -> PyResult<TensorMeta> {
        let dtype = value.getattr(intern!(value.py(), "dtype"))?;
        let Some((_, dtype)) = self.torch.dtype(&dtype) else {
            return Err(error::unsupported(
                value.py(),
                format!("the element type {dtype} is not supported"),
            ));
        };
        let layout = self.torch.layout_of(value)?;
        let Some(layout) = self.torch.layout(&layout) else {
            return Err(error::unsupported(
                value.py(),
                format!("the tensor layout {layout} is not supported"),
            ));
        };
        let sizes = self.sizes(&value.getattr(intern!(value.py(), "shape"))?)?;
        // Sparse tensors have no strides.
        let strides = match value.call_method0(intern!(value.py(), "stride")) {
            Ok(strides) => self.sizes(&strides)?,
            Err(_) => sizes.iter().map(|_| SymInt::AsInt(0)).collect(),
        };
        let storage_offset = match value.call_method0(intern!(value.py(), "storage_offset")) {
            Ok(offset) => self.int(&offset)?,
            Err(_) => SymInt::AsInt(0),
        };
        Ok(TensorMeta {
            dtype,
            sizes,
            device: self.device(value)?,
            strides,
            storage_offset,
            layout,
        })
    }

    fn device(&mut self, tensor: &Bound<'py, PyAny>) -> PyResult<Device> {
        // Equivalent to a fake tensor's `device`, without running Python code.
        let fake = match self.torch.is_fake(tensor) {
            true => tensor.getattr_opt(intern!(tensor.py(), "fake_device"))?,
            false => None,
        };
        let object = match fake {
            Some(device) => device,
            None => tensor.getattr(intern!(tensor.py(), "device"))?,
        };
        if let Some((known, device)) = &self.device
            && (known.is(&object) || known.eq(&object)?)
        {
            return Ok(Device { kind: device.kind.clone(), index: device.index });
        }
        let found = device(&object)?;
        let known = Device { kind: found.kind.clone(), index: found.index };
        self.device = Some((object, known));
        Ok(found)
    }

    fn sizes(&mut self, sizes: &Bound<'py, PyAny>) -> PyResult<Vec<SymInt>> {
        items(sizes)?.iter().map(|size| self.int(size)).collect()
    }

    pub(super) fn int(&mut self, value: &Bound<'py, PyAny>) -> PyResult<SymInt> {
        if let Ok(number) = value.cast_exact::<PyInt>() {
            return Ok(SymInt::AsInt(whole(number)?));
        }
        Ok(match self.symbolic(value)? {
            Symbolic::Number(Number::Int(number)) => SymInt::AsInt(number),
            Symbolic::Number(Number::Bool(truth)) => SymInt::AsInt(i64::from(truth)),
            Symbolic::Number(Number::Float(number)) => {
                return Err(error::unsupported(
                    value.py(),
                    format!("a size must be an integer, got {number}"),
                ));
            }
            Symbolic::Expression { text, hint } => {
                SymInt::AsExpr(SymExpr { expr_str: text, hint: hint.map(Number::hint) })
            }
        })
    }

    pub(super) fn float(&mut self, value: &Bound<'py, PyAny>) -> PyResult<SymFloat> {
        if let Ok(number) = value.cast::<PyFloat>() {
            return Ok(SymFloat::AsFloat(wire::Float(number.value())));
        }
        Ok(match self.symbolic(value)? {
            Symbolic::Number(Number::Float(number)) => SymFloat::AsFloat(wire::Float(number)),
            Symbolic::Number(Number::Int(number)) => SymFloat::AsFloat(wire::Float(number as f64)),
            Symbolic::Number(Number::Bool(truth)) => {
                SymFloat::AsFloat(wire::Float(f64::from(u8::from(truth))))
            }
            Symbolic::Expression { text, hint } => {
                SymFloat::AsExpr(SymExpr { expr_str: text, hint: hint.map(Number::hint) })
            }
        })
    }

    pub(super) fn bool(&mut self, value: &Bound<'py, PyAny>) -> PyResult<SymBool> {
        if let Ok(truth) = value.cast::<PyBool>() {
            return Ok(SymBool::AsBool(truth.is_true()));
        }
        Ok(match self.symbolic(value)? {
            Symbolic::Number(Number::Bool(truth)) => SymBool::AsBool(truth),
            Symbolic::Number(Number::Int(number)) => SymBool::AsBool(number != 0),
            Symbolic::Number(Number::Float(number)) => SymBool::AsBool(number != 0.0),
            // torch's serializer omits the hint.
            Symbolic::Expression { text, .. } => {
                SymBool::AsExpr(SymExpr { expr_str: text, hint: None })
            }
        })
    }

    fn symbolic(&mut self, value: &Bound<'py, PyAny>) -> PyResult<Symbolic> {
        let node = value.getattr(intern!(value.py(), "node"))?;
        let place = node.as_ptr().addr();
        if let Some((_, known)) = self.expressions.get(&place) {
            return Ok(known.clone());
        }
        let expression = node.getattr(intern!(node.py(), "expr"))?;
        let found = match number(&expression)? {
            Some(number) => Symbolic::Number(number),
            None => {
                let hint = node.getattr(intern!(node.py(), "hint"))?;
                let hint = if hint.is_none() { None } else { number(&hint)? };
                Symbolic::Expression { text: self.text(&expression)?, hint }
            }
        };
        self.expressions.insert(place, (node, found.clone()));
        Ok(found)
    }

    /// The expression in the form of sympy's `srepr`. For symbols, only the name.
    fn text(&mut self, expression: &Bound<'py, PyAny>) -> PyResult<String> {
        if expression.getattr(intern!(expression.py(), "is_Symbol"))?.is_truthy()? {
            let name: String = expression.getattr(intern!(expression.py(), "name"))?.extract()?;
            return Ok(format!("Symbol('{name}')"));
        }
        if self.to_text.is_none() {
            let module = expression.py().import("sympy.printing.repr")?;
            self.to_text = Some(module.getattr(intern!(module.py(), "srepr"))?);
        }
        let to_text = self.to_text.as_ref().expect("set above");
        to_text.call1((expression,))?.extract()
    }
}

/// A Python or sympy number, `None` for an expression.
fn number(value: &Bound<'_, PyAny>) -> PyResult<Option<Number>> {
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Some(Number::Bool(truth.is_true())));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        return Ok(Some(Number::Int(whole(number)?)));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Some(Number::Float(number.value())));
    }
    let is = |attribute: &str| -> PyResult<bool> {
        match value.getattr_opt(attribute)? {
            Some(is) => is.is_truthy(),
            None => Ok(false),
        }
    };
    if is("is_Integer")? {
        let number = value.call_method0(intern!(value.py(), "__int__"))?;
        return Ok(Some(Number::Int(whole(number.cast()?)?)));
    }
    if is("is_Float")? {
        return Ok(Some(Number::Float(
            value.call_method0(intern!(value.py(), "__float__"))?.extract()?,
        )));
    }
    if is("is_Boolean")? {
        // An expression, unless it is a constant.
        let name = value.get_type().name()?;
        if name == "BooleanTrue" || name == "BooleanFalse" {
            return Ok(Some(Number::Bool(name == "BooleanTrue")));
        }
    }
    Ok(None)
}

/// An integer that fits archives.
pub(super) fn whole(number: &Bound<'_, PyInt>) -> PyResult<i64> {
    number.extract::<i64>().map_err(|_| {
        let shown: String = number.str().map_or_else(
            |_| "an integer".to_owned(),
            |text| text.to_string().chars().take(40).collect(),
        );
        error::unsupported(number.py(), format!("{shown} does not fit into 64 bits"))
    })
}

pub(super) fn device(device: &Bound<'_, PyAny>) -> PyResult<Device> {
    Ok(Device {
        kind: device.getattr(intern!(device.py(), "type"))?.extract()?,
        index: device.getattr(intern!(device.py(), "index"))?.extract()?,
    })
}
