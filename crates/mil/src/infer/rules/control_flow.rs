//! Constants, branches, loops, lists, states, and `classify`.

use coremill_tensor::DType;

use super::expect;
use crate::infer::fold;
use crate::infer::shape::{broadcast, fixed};
use crate::infer::{InferContext, InferError, InferredValue, KnownElements, Rule, Scalar, refuse};
use crate::ir::{Constant, ConstantData, Dim, TensorType, Type};

/// Maximum rank of the elements of a list in Core ML.
const MAX_ELEMENT_RANK: usize = 4;

pub(super) fn constant_symbolic(site: &InferContext) -> Rule {
    constant(site)
}

pub(super) fn constant(site: &InferContext) -> Rule {
    let Some(value) = site.op().attributes.get("val") else {
        refuse!("has no value; the attribute `val` is required");
    };
    check_constant(value)?;
    Ok(vec![InferredValue::of_constant(value)])
}

/// Checks that the data of a constant matches its type.
fn check_constant(constant: &Constant) -> Result<(), InferError> {
    let ty = &constant.ty;
    match (&constant.data, ty) {
        (ConstantData::Bytes(_) | ConstantData::Weight(_), Type::Tensor(tensor)) => {
            let Some(elements) = constant.elements() else { return Ok(()) };
            let found = elements.len() as u64;
            match tensor.storage_bytes() {
                Some(expected) if expected == found => Ok(()),
                Some(expected) => {
                    refuse!("has {found} bytes of elements, but `{tensor}` requires {expected}")
                }
                None => refuse!("must have a type of fixed size in bytes, got `{tensor}`"),
            }
        }
        (ConstantData::Strings(strings), Type::Tensor(tensor)) => {
            let fits = tensor.dtype == DType::String
                && tensor.element_count() == Some(strings.len() as u64);
            if fits {
                return Ok(());
            }
            refuse!("has {} strings, but its type is `{tensor}`", strings.len())
        }
        (ConstantData::Sequence(parts), Type::List(element, length)) => {
            let fits = length.may_equal(&Dim::Known(parts.len() as u64))
                && parts.iter().all(|part| part.ty.is_compatible(element));
            if fits {
                return Ok(());
            }
            refuse!("has {} values that do not match its type, `{ty}`", parts.len())
        }
        (ConstantData::Sequence(parts), Type::Tuple(types)) => {
            let fits = parts.len() == types.len()
                && parts.iter().zip(types).all(|(part, ty)| part.ty.is_compatible(ty));
            if fits {
                return Ok(());
            }
            refuse!("has {} values that do not match its type, `{ty}`", parts.len())
        }
        (ConstantData::Entries(entries), Type::Dictionary(key, value)) => {
            let fits = entries
                .iter()
                .all(|(left, right)| left.ty.is_compatible(key) && right.ty.is_compatible(value));
            if fits {
                return Ok(());
            }
            refuse!("has entries that do not match its type, `{ty}`")
        }
        _ => refuse!("has a value that does not match its type, `{ty}`"),
    }
}

pub(super) fn classify(site: &InferContext) -> Rule {
    let probabilities = site.tensor("probabilities")?;
    let refusal = |message: String| InferError::new(message).of("classes");
    let Some(classes) = site.operand("classes") else {
        return Err(site.expected("classes", "a list of `string` or `int64`"));
    };
    let Type::List(class, length) = &classes.ty else {
        return Err(site.expected("classes", "a list of `string` or `int64`"));
    };
    let class = match class.as_tensor() {
        Some(class) if class.rank() == 0 && matches!(class.dtype, DType::String | DType::Int64) => {
            class.clone()
        }
        _ => return Err(site.expected("classes", "a list of `string` or `int64`")),
    };
    if let Some(count) = probabilities.element_count()
        && !length.may_equal(&Dim::Known(count))
    {
        let message = format!("has {length} classes; `probabilities` has {count} elements");
        return Err(refusal(message));
    }
    let class = Type::Tensor(class);
    let scores = Type::Dictionary(Box::new(class.clone()), Box::new(Type::scalar(DType::Fp64)));
    Ok(vec![InferredValue::of(class), InferredValue::of(scores)])
}

pub(super) fn cond(site: &InferContext) -> Rule {
    let predicate = site.tensor("pred")?;
    if predicate.element_count().is_some_and(|count| count != 1) {
        let message = format!("must be one `bool`, got `{predicate}`");
        return Err(InferError::new(message)
            .of("pred")
            .hint("reduce it, for instance with `reduce_max`"));
    }
    let [taken, otherwise] = site.block_outputs() else {
        refuse!("requires 2 blocks, found {}", site.block_outputs().len());
    };
    if let Some(inputs) = site.block_inputs().iter().find(|inputs| !inputs.is_empty()) {
        refuse!(
            "has a block with {} inputs; expected none, as blocks can use values of enclosing blocks",
            inputs.len()
        );
    }
    if taken.len() != otherwise.len() {
        refuse!(
            "returns {} values if true, {} if false; the numbers must be equal",
            taken.len(),
            otherwise.len()
        );
    }
    let known = site.value("pred").and_then(KnownElements::only).and_then(Scalar::bool);
    let both = taken.iter().zip(otherwise).enumerate();
    both.map(|(index, (taken, otherwise))| {
        if !taken.ty.is_compatible(&otherwise.ty) {
            refuse!(
                "returns `{}` as value {index} if true, `{}` if false; expected the same type",
                taken.ty,
                otherwise.ty
            );
        }
        let mut outcome = InferredValue::of(common(site, &taken.ty, &otherwise.ty));
        if let Some(branch) = known.map(|known| if known { taken } else { otherwise })
            && outcome.ty.is_compatible(&branch.ty)
        {
            outcome.value.clone_from(&branch.value);
        }
        Ok(outcome)
    })
    .collect()
}

pub(super) fn while_loop(site: &InferContext) -> Rule {
    let variables = site.all("loop_vars");
    let ([taken_by_condition, taken], [condition, given]) =
        (site.block_inputs(), site.block_outputs())
    else {
        refuse!("requires 2 blocks, found {}", site.block_inputs().len());
    };
    for (what, found) in [
        ("condition accepts", taken_by_condition.len()),
        ("body accepts", taken.len()),
        ("body returns", given.len()),
    ] {
        if found != variables.len() {
            refuse!("has {} `loop_vars`, but its {what} {found} values", variables.len());
        }
    }
    // Converters also write conditions that are tensors with one element.
    let is_bool = |ty: &Type| {
        ty.as_tensor().is_some_and(|tensor| {
            tensor.dtype == DType::Bool && tensor.element_count().is_none_or(|count| count == 1)
        })
    };
    match condition.as_slice() {
        [condition] if is_bool(&condition.ty) => {}
        found => {
            let found: Vec<_> = found.iter().map(|outcome| format!("`{}`", outcome.ty)).collect();
            refuse!("has a condition of type {}; expected one `bool`", found.join(", "));
        }
    }
    let mut outcomes = Vec::with_capacity(variables.len());
    for (index, variable) in variables.iter().enumerate() {
        let found = &variable.ty;
        for (block, inputs) in [("condition", taken_by_condition), ("body", taken)] {
            let declared = &inputs[index].ty;
            if !is_carried(found, declared) {
                refuse!(
                    "has a `{found}` as variable {index}, but its {block} accepts a `{declared}`"
                );
            }
        }
        let (before, after) = (&taken[index], &given[index]);
        if !is_carried(&after.ty, &before.ty) {
            refuse!(
                "passes a `{}` as variable {index} to its body, which returns a `{}`",
                before.ty,
                after.ty
            );
        }
        // The result is the initial value after zero iterations, else the body's output.
        let outcome = InferredValue::of(common(site, found, &common(site, &before.ty, &after.ty)));
        let value = before
            .value
            .clone()
            .filter(|value| Type::tensor(value.dtype, &value.shape).is_compatible(&outcome.ty));
        outcomes.push(InferredValue { value, ..outcome });
    }
    Ok(outcomes)
}

/// Whether a loop variable of type `slot` can hold a value of type `value`. List lengths are ignored, since
/// lists may grow.
fn is_carried(value: &Type, slot: &Type) -> bool {
    match (value, slot) {
        (Type::List(value, _), Type::List(slot, _)) => value.is_compatible(slot),
        _ => value.is_compatible(slot),
    }
}

/// The common type of two compatible types; dimensions that differ become unknown.
fn common(site: &InferContext, left: &Type, right: &Type) -> Type {
    match (left, right) {
        (Type::Tensor(left), Type::Tensor(right)) => {
            let dims = left.shape.iter().zip(&right.shape);
            let shape = dims.map(|(l, r)| if l == r { l.clone() } else { site.fresh() });
            Type::Tensor(TensorType { dtype: left.dtype, shape: shape.collect() })
        }
        (Type::List(element, length), Type::List(other, other_length)) => {
            let length = if length == other_length { length.clone() } else { site.fresh() };
            let element = common(site, element, other).erased();
            Type::List(Box::new(element), length)
        }
        _ => left.clone(),
    }
}

pub(super) fn list_gather(site: &InferContext) -> Rule {
    let (element, _) = list(site)?;
    let indices = expect::ranked(site, "indices", 1, 1)?;
    let element = element_tensor(element)?;
    let mut shape = vec![indices.shape[0].clone()];
    shape.extend(opened(site, &element.shape));
    Ok(vec![InferredValue::tensor(element.dtype, shape)])
}

pub(super) fn list_length(site: &InferContext) -> Rule {
    let (_, length) = list(site)?;
    Ok(vec![InferredValue::folded(KnownElements::scalar(DType::Int32, Scalar::from_dim(length)))])
}

pub(super) fn list_read(site: &InferContext) -> Rule {
    let (element, _) = list(site)?;
    let element = element_tensor(element)?;
    Ok(vec![InferredValue::tensor(element.dtype, opened(site, &element.shape))])
}

pub(super) fn list_scatter(site: &InferContext) -> Rule {
    let value = expect::ranked(site, "value", 1, usize::MAX)?;
    let indices = expect::ranked(site, "indices", 1, 1)?;
    expect::dimension(site, "value", 0, &indices.shape[0], "one for each of `indices`")?;
    check_fits(site, &value.shape[1..])?;
    Ok(vec![InferredValue::of(written(site)?)])
}

pub(super) fn list_write(site: &InferContext) -> Rule {
    check_fits(site, &site.tensor("value")?.shape)?;
    Ok(vec![InferredValue::of(written(site)?)])
}

/// Element type and length of the list bound to `ls`.
fn list<'s>(site: &'s InferContext) -> Result<(&'s Type, &'s Dim), InferError> {
    match site.operand("ls").map(|operand| &operand.ty) {
        Some(Type::List(element, length)) => Ok((element, length)),
        _ => Err(site.expected("ls", "a list")),
    }
}

fn element_tensor(element: &Type) -> Result<&TensorType, InferError> {
    element.as_tensor().ok_or_else(|| {
        InferError::new(format!("has elements of type `{element}`; expected tensors")).of("ls")
    })
}

/// Replaces every unknown dimension by a new one, since the elements of a list may differ in their unknown
/// dimensions.
fn opened(site: &InferContext, shape: &[Dim]) -> Vec<Dim> {
    let open = |dim: &Dim| match dim {
        Dim::Unknown => site.fresh(),
        Dim::Known(_) | Dim::Symbolic(_) => dim.clone(),
    };
    shape.iter().map(open).collect()
}

/// Checks that the list can store elements with this shape and the element type of `value`.
fn check_fits(site: &InferContext, shape: &[Dim]) -> Result<(), InferError> {
    let (element, _) = list(site)?;
    let element = element_tensor(element)?;
    expect::check_rank(element, 0, MAX_ELEMENT_RANK).map_err(|refusal| refusal.of("ls"))?;
    let dtype = site.tensor("value")?.dtype;
    // A list with elements of a fixed shape cannot store elements of an unknown shape.
    let holds = |(found, held): (&Dim, &Dim)| found == held || held.known().is_none();
    let fits = dtype == element.dtype
        && shape.len() == element.rank()
        && shape.iter().zip(&element.shape).all(holds);
    if fits {
        return Ok(());
    }
    let found = TensorType { dtype, shape: shape.to_vec() };
    let message = format!("writes `{found}` to a list of `{element}`");
    Err(InferError::new(message).of("value").hint("reshape or cast it to the element type"))
}

/// The type of a list after a write; a dynamic list may have grown.
fn written(site: &InferContext) -> Result<Type, InferError> {
    let (element, length) = list(site)?;
    let length = if length.known().is_some() { length.clone() } else { site.fresh() };
    Ok(Type::List(Box::new(element.clone()), length))
}

pub(super) fn make_list(site: &InferContext) -> Rule {
    site.choice("dtype", &["bool", "fp16", "fp32", "int32"])?;
    let dtype = site.dtype("dtype")?;
    let extents = site.all("elem_shape");
    if extents.len() > MAX_ELEMENT_RANK {
        let message = format!(
            "has {} dimensions; the maximum for list elements is {MAX_ELEMENT_RANK}",
            extents.len()
        );
        return Err(InferError::new(message).of("elem_shape"));
    }
    let shape: Result<Vec<_>, _> = extents.iter().map(element_extent).collect();
    let element = Type::Tensor(TensorType { dtype, shape: shape? });
    let length = match site.bool("dynamic_length")? {
        true => None,
        false => initial_length(site)?,
    };
    let length = length.unwrap_or_else(|| site.fresh());
    Ok(vec![InferredValue::of(Type::List(Box::new(element), length))])
}

/// A dimension of `elem_shape`: a size, or the name of a size that is known only at run time.
fn element_extent(extent: &InferredValue) -> Result<Dim, InferError> {
    let refusal = |message: String| InferError::new(message).of("elem_shape");
    match extent.value.as_deref().and_then(KnownElements::only) {
        Some(Scalar::Text(_)) => Ok(Dim::Unknown),
        Some(Scalar::Int(extent)) => u64::try_from(*extent)
            .map(Dim::Known)
            .map_err(|_| refusal(format!("must contain sizes of at least 0, got {extent}"))),
        _ => Err(refusal(format!(
            "has an element of type `{}` that is not constant; expected constant integers, or strings \
             for dimensions of any size",
            extent.ty
        ))),
    }
}

/// The initial length of a list; it is also the final length unless the list is dynamic.
fn initial_length(site: &InferContext) -> Result<Option<Dim>, InferError> {
    if site.has("init_length") && site.value("init_length").is_none() {
        return Ok(None);
    }
    let length = site.int("init_length")?;
    match u64::try_from(length) {
        Ok(length) => Ok(Some(Dim::Known(length))),
        Err(_) => {
            let message = format!("must be at least 0, got {length}");
            Err(InferError::new(message).of("init_length"))
        }
    }
}

pub(super) fn read_state(site: &InferContext) -> Rule {
    let held = held(site)?;
    Ok(vec![InferredValue::tensor(held.dtype, opened(site, &held.shape))])
}

pub(super) fn write_state(site: &InferContext) -> Rule {
    let held = held(site)?;
    let data = site.tensor("data")?;
    if data != held {
        let message = format!("must be `{held}`, the type of the state, got `{data}`");
        return Err(InferError::new(message).of("data"));
    }
    Ok(Vec::new())
}

/// The type of the tensor in the state bound to `input`.
fn held<'s>(site: &'s InferContext) -> Result<&'s TensorType, InferError> {
    let Some(Type::State(held)) = site.operand("input").map(|operand| &operand.ty) else {
        return Err(site.expected("input", "a state"));
    };
    held.as_tensor().ok_or_else(|| site.expected("input", "a state that holds a tensor"))
}

pub(super) fn select(site: &InferContext) -> Rule {
    let (condition, a, b) = (site.tensor("cond")?, site.tensor("a")?, site.tensor("b")?);
    let either = broadcast(site, &a.shape, &b.shape)?;
    let shape = broadcast(site, &condition.shape, &either)?;
    let value = fixed(&shape).and_then(|shape| {
        let [condition, a, b] =
            ["cond", "a", "b"].map(|name| fold::expand(site.value(name)?, &shape));
        let pairs = a.as_ref()?.elements.iter().zip(&b.as_ref()?.elements);
        let elements = condition.as_ref()?.elements.iter().zip(pairs);
        let elements = elements.map(|(condition, (a, b))| match condition.bool() {
            Some(true) => a.clone(),
            Some(false) => b.clone(),
            None if a == b => a.clone(),
            None => Scalar::Unknown,
        });
        let elements = elements.collect();
        KnownElements::new(a.as_ref()?.dtype, shape, elements)
    });
    Ok(vec![InferredValue::tensor(a.dtype, shape).with(value)])
}
