//! Locations of parameters in a compiled model, so that their values can be changed without compiling again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use coremill_mil::ir::{Binding, Constant, ConstantData, Program, ValueId, Weight};
use coremill_mil::ops::OpKind;
use coremill_passes::is_zero_one_or_out_of_range;
use coremill_tensor::{Buffer, ByteSource, DType, ReadTracker, Replace, with_source};

use crate::error::Result;
use crate::params::Param;

/// Parameters that are tracked through the compiler. If the compiler does not read the elements of a
/// parameter, its value can be changed later.
#[derive(Default)]
pub(crate) struct TrackedParams {
    all: BTreeMap<String, ParamWatcher>,
    looked: BTreeSet<String>,
}

struct ParamWatcher {
    watch: ReadTracker,
    bytes: Buffer,
    dtype: DType,
}

/// Locations of parameters in a model.
#[derive(Default)]
pub(crate) struct ParamBindings {
    params: BTreeMap<String, MutableParam>,
    spots: Vec<DependentConstant>,
}

/// A parameter that can be changed.
struct MutableParam {
    /// Placeholder for its bytes in constants, and the type of the elements there.
    stub: ReadTracker,
    stands_for: DType,
    bytes: Buffer,
    dtype: DType,
    /// Indices of the constants that depend on it.
    spots: Vec<usize>,
}

/// A constant computed from parameters.
struct DependentConstant {
    function: usize,
    value: ValueId,
    /// The constant, with placeholders for the parameters.
    constant: Constant,
}

/// A constant of a function: the function's index, the constant's value id, and the new constant.
pub(crate) type Change = (usize, ValueId, Constant);

impl TrackedParams {
    /// The tracked elements of a parameter.
    pub(crate) fn floats(&mut self, name: &str, param: &Param) -> Result<Buffer> {
        let (bytes, dtype) = param.stored_floats()?;
        let (watched, watch) = ReadTracker::new(bytes.clone());
        let watched = match self.all.get(name) {
            // Several functions have this parameter.
            Some(known) => known.watch.buffer(),
            None => {
                self.all.insert(name.to_owned(), ParamWatcher { watch, bytes, dtype });
                watched
            }
        };
        Param::elements(dtype, param.shape(), watched)?.to_fp32()
    }

    /// Marks a parameter that cannot be changed without compiling again.
    pub(crate) fn invalidate(&mut self, name: &str) {
        self.looked.insert(name.to_owned());
    }

    /// Replaces tracked elements by the parameters themselves, and returns their locations.
    pub(crate) fn release(mut self, program: &mut Program) -> ParamBindings {
        let mut places = ParamBindings::default();
        for (name, watching) in &self.all {
            let absent = Buffer::deferred(Arc::new(PlaceholderBytes(watching.bytes.len())));
            let (_, stub) = ReadTracker::new(absent);
            let (bytes, dtype) = (watching.bytes.clone(), watching.dtype);
            let placed = MutableParam { stub, stands_for: dtype, bytes, dtype, spots: Vec::new() };
            places.params.insert(name.clone(), placed);
        }
        for (index, function) in program.functions.iter_mut().enumerate() {
            let ids: Vec<_> = function.all_ops().map(|(id, _)| id).collect();
            for id in ids {
                let op = function.op_mut(id);
                let is_const = op.kind() == Some(OpKind::Const);
                let value = op.outputs.first().copied();
                let bound = op.inputs.iter_mut().flat_map(|input| &mut input.bindings);
                let bound = bound.filter_map(|binding| match binding {
                    Binding::Literal(constant) => Some(constant),
                    Binding::Value(_) => None,
                });
                for constant in bound.chain(op.attributes.values_mut()) {
                    self.release_from(constant, &mut places, (index, value.filter(|_| is_const)));
                }
            }
        }
        for (name, watching) in &self.all {
            // If a tracked buffer remains, one of its uses was not found.
            if watching.watch.was_read() || watching.watch.holders(1) > 0 {
                self.looked.insert(name.clone());
            }
        }
        for name in &self.looked {
            places.params.remove(name);
        }
        places
    }

    /// Replaces tracked elements in a constant, either of a `const` or elsewhere.
    fn release_from(
        &mut self,
        constant: &mut Constant,
        places: &mut ParamBindings,
        (function, value): (usize, Option<ValueId>),
    ) {
        if !constant.elements().is_some_and(Buffer::is_deferred) {
            return;
        }
        let found = RefCell::new(BTreeSet::new());
        let find = |source: &Buffer| {
            self.all.iter().find_map(|(name, it)| Some((name, it, it.watch.part(source)?)))
        };
        let inner = |source: &Buffer, dtype: DType| {
            let (name, watching, part) = find(source)?;
            found.borrow_mut().insert(name.clone());
            Some((watching.bytes.slice(part)?, dtype))
        };
        let Some(released) = with_sources(constant, &inner) else { return };
        let stub = |source: &Buffer, dtype: DType| {
            let (name, _, part) = find(source)?;
            Some((places.params.get(name)?.stub.buffer().slice(part)?, dtype))
        };
        let template = value.and_then(|value| Some((value, with_sources(constant, &stub)?)));
        let found = found.into_inner();
        match template {
            Some((value, constant)) => {
                for name in &found {
                    if let Some(placed) = places.params.get_mut(name) {
                        placed.spots.push(places.spots.len());
                    }
                }
                places.spots.push(DependentConstant { function, value, constant });
            }
            None => self.looked.extend(found),
        }
        *constant = released;
    }
}

impl ParamBindings {
    /// Returns the changed constants for a new value of a parameter. Returns `None` if the compiler might
    /// generate another model.
    pub(crate) fn change(
        &mut self,
        name: &str,
        before: &Param,
        now: &Param,
    ) -> Option<Vec<Change>> {
        let special = |param: &Param| -> Option<bool> {
            let floats = param.to_fp32().ok()?;
            io::Result::ok(is_zero_one_or_out_of_range(&floats))
        };
        if special(before)? || special(now)? {
            return None;
        }
        let placed = self.params.get_mut(name)?;
        (placed.bytes, placed.dtype) = now.stored_floats().ok()?;
        let placed = &self.params[name];
        let source = |source: &Buffer, _: DType| {
            let placed = self.params.values().find(|placed| placed.stub.part(source).is_some())?;
            let part = placed.stub.part(source)?;
            let (from, to) = (width(placed.stands_for), width(placed.dtype));
            let bytes = placed.bytes.slice(part.start / from * to..part.end / from * to)?;
            Some((bytes, placed.dtype))
        };
        let change = |&at: &usize| {
            let spot = &self.spots[at];
            Some((spot.function, spot.value, with_sources(&spot.constant, &source)?))
        };
        placed.spots.iter().map(change).collect()
    }
}

/// Returns a constant with replaced sources; `None` if it does not depend on any of them.
fn with_sources(constant: &Constant, replace: &Replace<'_>) -> Option<Constant> {
    let ty = constant.tensor_type()?;
    let elements = with_source(constant.elements()?, ty.dtype, &ty.known_shape()?, replace)?;
    let data = match &constant.data {
        ConstantData::Weight(_) => {
            ConstantData::Weight(Weight { data: Some(elements), place: None })
        }
        _ => ConstantData::Bytes(elements),
    };
    Some(Constant { ty: constant.ty.clone(), data })
}

/// Size of a float in bytes.
fn width(dtype: DType) -> usize {
    dtype.bits().map_or(1, |bits| bits as usize / 8)
}

/// Placeholder bytes that must not be read.
struct PlaceholderBytes(usize);

impl ByteSource for PlaceholderBytes {
    fn length(&self) -> usize {
        self.0
    }

    fn produce(&self, _: usize, _: &mut [u8]) -> io::Result<()> {
        Err(io::Error::other("a parameter is missing"))
    }
}
