//! Checks that constants match their types, attributes are known, and weights have elements.

use std::collections::BTreeMap;

use coremill_mil::ir::{
    Attributes, Binding, Constant, ConstantData, Dim, Op, Program, Type, Weight,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::codes::Code;
use super::diagnostic::{Findings, FunctionContext, Location};
use super::structure::Layout;

/// Attributes that Core ML's own tools add to operations: the name, the intended engines, and the notes of
/// `analytics.mil` including the opset of an operation.
const KNOWN_ATTRIBUTES: [&str; 8] = [
    "name",
    "IntendedBackend",
    "BackendSupport",
    "EstimatedRuntime",
    "SelectedBackend",
    "ValidationMessage",
    "milId",
    "opset",
];

/// Checks the attributes of the program.
pub(super) fn check_program(program: &Program, findings: &mut Findings) {
    let mut missing = MissingWeights::default();
    for (name, constant) in program.attributes.iter() {
        let location = || Location::model().parameter(name);
        check_constant(&location, constant, &mut missing, findings);
    }
    missing.report(findings);
}

/// Checks every constant of a function.
pub(super) fn check(at: FunctionContext<'_>, layout: &mut Layout, findings: &mut Findings) {
    let function = at.function;
    let mut missing = MissingWeights::default();
    let blocks = layout.blocks.iter().map(|&block| &function.block(block).attributes);
    for (name, constant) in
        std::iter::once(&function.attributes).chain(blocks).flat_map(Attributes::iter)
    {
        check_constant(&|| at.place().parameter(name), constant, &mut missing, findings);
    }
    for &id in &layout.ops {
        let op = function.op(id);
        let before = findings.errors();
        for (name, constant) in op.attributes.iter() {
            check_constant(&|| at.op(id).parameter(name), constant, &mut missing, findings);
        }
        for (name, binding) in op.all_bindings() {
            if let Binding::Literal(constant) = binding {
                let location = || at.op(id).parameter(name);
                check_constant(&location, constant, &mut missing, findings);
            }
        }
        layout.refused[id.index()] |= findings.errors() > before;
        attributes_are_known(op, &|| at.op(id), findings);
    }
    missing.report(findings);
}

/// Weights without elements, by file: the location of the first reference, and the number of references.
#[derive(Default)]
struct MissingWeights(BTreeMap<String, (Location, usize)>);

impl MissingWeights {
    fn report(self, findings: &mut Findings) {
        for (file, (location, count)) in self.0 {
            let others = match count {
                1 => String::new(),
                2 => "; so does one more constant".to_owned(),
                count => format!("; so do {} more constants", count - 1),
            };
            let message =
                format!("refers to `{file}`, which was not found or has no such offset{others}");
            let location = Location { file: Some(file), ..location };
            findings.report(Code::WeightMissing, location, message);
        }
    }
}

/// Checks a constant and its parts, with an explicit stack because sequences nest.
fn check_constant(
    location: &dyn Fn() -> Location,
    constant: &Constant,
    missing: &mut MissingWeights,
    findings: &mut Findings,
) {
    let mut pending = vec![constant];
    while let Some(constant) = pending.pop() {
        if let Err((code, message)) = check_shallow(constant) {
            findings.report(code, location(), message);
        }
        match &constant.data {
            ConstantData::Weight(weight @ Weight { data: None, .. }) => {
                let file = weight.place.as_ref().map_or("a weight file", |place| &place.file);
                let entry = missing.0.entry(file.to_owned());
                entry.or_insert_with(|| (location(), 0)).1 += 1;
            }
            ConstantData::Bytes(_) | ConstantData::Strings(_) | ConstantData::Weight(_) => {}
            ConstantData::Sequence(parts) => pending.extend(parts.iter().rev()),
            ConstantData::Entries(entries) => {
                pending.extend(entries.iter().rev().flat_map(|(key, value)| [value, key]));
            }
        }
    }
}

fn check_shallow(constant: &Constant) -> Result<(), (Code, String)> {
    let mismatch = |found: &str| {
        Err((Code::ConstantType, format!("is declared as `{}`, but contains {found}", constant.ty)))
    };
    match (&constant.data, &constant.ty) {
        (ConstantData::Bytes(bytes), Type::Tensor(tensor)) => {
            if tensor.dtype == DType::String {
                return mismatch("bytes");
            }
            check_bytes(constant, bytes.len() as u64)
        }
        (ConstantData::Weight(weight), Type::Tensor(tensor)) => {
            use DType::{Bool, Fp64, Int64, String, UInt64};
            if matches!(tensor.dtype, Bool | String | Fp64 | Int64 | UInt64) {
                let message = format!("a weight file cannot hold `{}`", tensor.dtype);
                return Err((Code::WeightType, message));
            }
            match &weight.data {
                Some(data) => check_bytes(constant, data.len() as u64),
                None => Ok(()),
            }
        }
        (ConstantData::Strings(strings), Type::Tensor(tensor)) => {
            if tensor.dtype != DType::String {
                return mismatch("strings");
            }
            match tensor.element_count() {
                None => Err(unsized_type(constant)),
                Some(count) if count != strings.len() as u64 => Err((
                    Code::ConstantSize,
                    format!("`{}` has {count} elements, found {}", constant.ty, strings.len()),
                )),
                Some(_) => Ok(()),
            }
        }
        (ConstantData::Sequence(parts), Type::List(element, length)) => {
            if !length.may_equal(&Dim::Known(parts.len() as u64)) {
                let message =
                    format!("`{}` has {length} elements, found {}", constant.ty, parts.len());
                return Err((Code::ConstantSize, message));
            }
            match parts.iter().find(|part| !part.ty.is_compatible(element)) {
                Some(part) => mismatch(&format!("an element of `{}`", part.ty)),
                None => Ok(()),
            }
        }
        (ConstantData::Sequence(parts), Type::Tuple(types)) => {
            let fits = parts.len() == types.len()
                && parts.iter().zip(types).all(|(part, ty)| part.ty.is_compatible(ty));
            if fits { Ok(()) } else { mismatch("other elements") }
        }
        (ConstantData::Entries(entries), Type::Dictionary(key, value)) => {
            let fits =
                entries.iter().all(|(k, v)| k.ty.is_compatible(key) && v.ty.is_compatible(value));
            if fits { Ok(()) } else { mismatch("other entries") }
        }
        (ConstantData::Bytes(_), _) => mismatch("bytes"),
        (ConstantData::Weight(_), _) => mismatch("a reference to a weight file"),
        (ConstantData::Strings(_), _) => mismatch("strings"),
        (ConstantData::Sequence(_), _) => mismatch("a sequence"),
        (ConstantData::Entries(_), _) => mismatch("entries"),
    }
}

fn check_bytes(constant: &Constant, found: u64) -> Result<(), (Code, String)> {
    match constant.tensor_type().and_then(|tensor| tensor.storage_bytes()) {
        None => Err(unsized_type(constant)),
        Some(expected) if expected != found => Err((
            Code::ConstantSize,
            format!("`{}` requires {expected} bytes, found {found}", constant.ty),
        )),
        Some(_) => Ok(()),
    }
}

fn unsized_type(constant: &Constant) -> (Code, String) {
    let message = format!("`{}` has no fixed number of elements", constant.ty);
    (Code::ConstantType, message)
}

fn attributes_are_known(op: &Op, location: &dyn Fn() -> Location, findings: &mut Findings) {
    let Some(kind) = op.kind() else { return };
    for (name, _) in op.attributes.iter() {
        let known = KNOWN_ATTRIBUTES.contains(&name)
            || (kind == OpKind::Const && name == "val")
            // Type inference checks these as arguments.
            || (kind.is_constexpr() && kind.rows().iter().any(|row| row.parameter(name).is_some()));
        if !known {
            let message = format!("`{name}` is not an attribute of `{}`", kind.name());
            findings.report(Code::UnknownAttribute, location().parameter(name), message);
        }
    }
}
