//! Views: their analysis, their recomputation from a changed source, and writes through them.

use coremill_pt2::{
    Argument, Expression, Function, MemoryFormat, Meta, Node, Origin, Output, Size, Symbolic,
    Target, TensorMeta, ValueId, promotion::is_complex,
};

use crate::edit::{Editor, positional};
use crate::error::Error;
use crate::meta::{contiguous, expression, is_contiguous, is_view, same_order, same_sizes};

/// Kind of a view.
#[derive(Clone, Debug)]
pub(crate) enum View {
    /// The identity.
    Same,
    /// The same elements in order, with other dimensions.
    Reshape,
    /// A permutation; dimension `i` is dimension `order[i]` of the source.
    Permute(Vec<usize>),
    /// An index of a dimension, which is removed.
    Select(i64, Argument),
    /// A range of a dimension: start, end, step.
    Slice(i64, [Argument; 3]),
    /// A diagonal: offset and the two dimensions.
    Diagonal([Argument; 3]),
    /// Sizes, strides and offset in a contiguous tensor.
    Strided([Argument; 3]),
    /// A bit cast.
    Bits,
    /// Complex conjugation.
    Conjugate,
    /// The real parts (0) or imaginary parts (1).
    Part(i64),
    /// Complex numbers as pairs of reals.
    AsReal,
    /// Pairs of reals as complex numbers.
    AsComplex,
    /// One result of a split: the call, the index of the result, the number of results, and the dimension.
    Piece(Box<Node>, usize, usize, i64),
    /// A broadcast, with repeated elements.
    Expand,
    /// A read-only view: the call, and the reason why writes are not supported.
    ReadOnly(Box<Node>, &'static str),
}

/// A result that is a view of a tensor argument.
pub(crate) struct ViewResult {
    pub(crate) result: ValueId,
    /// Index among the tensor arguments.
    pub(crate) source: usize,
    pub(crate) view: View,
    /// Whether the view refers to the whole storage of the source.
    pub(crate) of_storage: bool,
}

const ELEMENTS_SHARED: &str = "whose elements share memory";

/// The views among the results of a call with current arguments. `sources` are the tracing-time types of its tensor
/// arguments.
pub(crate) fn views(
    node: &Node,
    sources: &[&TensorMeta],
    editor: &mut Editor<'_>,
) -> Result<Vec<ViewResult>, Error> {
    let Target::Operator { namespace, name, .. } = &node.target else { return Ok(Vec::new()) };
    let Some(source) = sources.first() else { return Ok(Vec::new()) };
    if namespace != "aten" {
        return Ok(Vec::new());
    }
    let results: Vec<ValueId> = node.defined().collect();
    const APART: [&str; 8] = [
        "chunk",
        "dsplit",
        "hsplit",
        "split",
        "split_with_sizes",
        "tensor_split",
        "unbind",
        "vsplit",
    ];
    if APART.contains(&name.as_str()) {
        return pieces(node, source, &results, editor);
    }
    let is_each = match &node.target {
        Target::Operator { overload, .. } => name.starts_with("atleast_") && overload == "Sequence",
        _ => false,
    };
    if is_each || matches!(name.as_str(), "broadcast_tensors" | "meshgrid") {
        let found = results.into_iter().enumerate().map(|(index, result)| {
            let view = match name.as_str() {
                "meshgrid" => View::ReadOnly(Box::new(node.clone()), ELEMENTS_SHARED),
                _ if is_each => View::Reshape,
                _ => View::Expand,
            };
            ViewResult { result, source: index, view, of_storage: false }
        });
        return Ok(found.collect());
    }
    let [result] = results.as_slice() else { return Ok(Vec::new()) };
    let Meta::Tensor(meta) = &editor.value(*result).meta else { return Ok(Vec::new()) };
    let meta = meta.clone();
    let Some(view) = single(node, name, source, &meta, editor)? else {
        return Ok(Vec::new());
    };
    let of_storage = matches!(view, View::Strided(_));
    Ok(vec![ViewResult { result: *result, source: 0, view, of_storage }])
}

/// Kind of view of a call with a single result.
fn single(
    node: &Node,
    name: &str,
    source: &TensorMeta,
    result: &TensorMeta,
    editor: &mut Editor<'_>,
) -> Result<Option<View>, Error> {
    let rank = source.sizes.len();
    let read_only = |why| Some(View::ReadOnly(Box::new(node.clone()), why));
    let get = |name: &str| node.argument(name).cloned().unwrap_or(Argument::None);
    let dimension = |name: &str| match node.argument(name) {
        Some(Argument::Int(value)) => wrap(*value, rank),
        other => Err(Error::malformed(format!("`{name}` must be a dimension, got {other:?}"))),
    };
    let same_if = |same: bool| same.then_some(View::Same);
    let overload = match &node.target {
        Target::Operator { overload, .. } => overload.as_str(),
        _ => "",
    };
    Ok(match name {
        "alias" | "detach" | "lift" | "lift_fresh" | "positive" | "pin_memory"
        | "requires_grad" | "resolve_conj" | "resolve_neg" => Some(View::Same),
        "view" if overload == "dtype" => {
            if source.dtype == result.dtype {
                Some(View::Same)
            } else {
                Some(View::Bits)
            }
        }
        "view" | "_reshape_alias" | "_unsafe_view" | "unflatten" | "squeeze" | "unsqueeze"
        | "view_as" | "atleast_1d" | "atleast_2d" | "atleast_3d" | "resize" => {
            if same_sizes(&source.sizes, &result.sizes) {
                Some(View::Same)
            } else {
                Some(View::Reshape)
            }
        }
        "reshape" | "reshape_as" | "flatten" | "ravel" => {
            if same_sizes(&source.sizes, &result.sizes)
                && (name != "ravel" || is_contiguous(source))
            {
                Some(View::Same)
            } else {
                is_view(source, &result.sizes).then_some(View::Reshape)
            }
        }
        "contiguous" => same_if(same_order(source, result)),
        "to" | "_to_copy" | "type_as" => {
            let copies = name == "_to_copy" || get("copy") == Argument::Bool(true);
            let ordered = match get("memory_format") {
                Argument::None | Argument::MemoryFormat(MemoryFormat::Preserve) => true,
                _ => same_order(source, result),
            };
            same_if(
                !copies
                    && ordered
                    && source.dtype == result.dtype
                    && source.device == result.device
                    && source.layout == result.layout,
            )
        }
        "select" => match get("dim") {
            Argument::Int(dim) => Some(View::Select(wrap(dim, rank)? as i64, get("index"))),
            _ => None,
        },
        "slice" => {
            let dim = dimension("dim")? as i64;
            Some(View::Slice(dim, [get("start"), get("end"), get("step")]))
        }
        "narrow" => {
            let start = get("start");
            if let Argument::Value(id) = start
                && !matches!(editor.value(id).meta, Meta::Int(_))
            {
                return Ok(read_only("which starts at an index from a tensor"));
            }
            let end = match (sum(&start, &get("length"), editor, &node.origin)?, &start) {
                // Counted from the end, up to the end.
                (Argument::Int(0), Argument::Int(start)) if *start < 0 => Argument::None,
                (end, _) => end,
            };
            Some(View::Slice(dimension("dim")? as i64, [start, end, Argument::Int(1)]))
        }
        "diagonal" => Some(View::Diagonal([get("offset"), get("dim1"), get("dim2")])),
        "linalg_diagonal" => Some(View::Diagonal([get("offset"), get("dim1"), get("dim2")])),
        "as_strided" => {
            let offset = match get("storage_offset") {
                Argument::None => size_argument(&source.storage_offset),
                given => Some(given),
            };
            offset
                .map(|offset| View::Strided([get("size"), get("stride"), offset]))
                .or_else(|| read_only("which starts at an unknown offset"))
        }
        "permute" | "transpose" | "swapaxes" | "swapdims" | "t" | "numpy_T" | "mT" | "movedim"
        | "moveaxis" => permutation(node, name, rank)?.map(View::Permute),
        "adjoint" | "mH" | "matrix_H" => {
            if is_complex(source.dtype) {
                read_only("which is both conjugated and transposed")
            } else {
                permutation(node, "mT", rank)?.map(View::Permute)
            }
        }
        "expand" | "expand_as" | "broadcast_to" => {
            let added = result.sizes.len().saturating_sub(rank);
            let ones = result.sizes[..added].iter().all(|size| *size == Size::Fixed(1));
            if ones && same_sizes(&source.sizes, &result.sizes[added..]) {
                if added == 0 { Some(View::Same) } else { Some(View::Reshape) }
            } else {
                Some(View::Expand)
            }
        }
        "unfold" => read_only("whose windows can overlap"),
        "conj" | "_conj" => {
            if is_complex(source.dtype) {
                Some(View::Conjugate)
            } else {
                Some(View::Same)
            }
        }
        "real" if !is_complex(source.dtype) => Some(View::Same),
        "real" => Some(View::Part(0)),
        "imag" => Some(View::Part(1)),
        "view_as_real" => Some(View::AsReal),
        "view_as_complex" => Some(View::AsComplex),
        _ => {
            let aliases = node.schema.as_ref().is_some_and(|schema| {
                schema.returns.iter().any(|result| result.aliased && !result.mutated)
            });
            if aliases { read_only("whose inverse is unknown") } else { None }
        }
    })
}

/// Index of a dimension that may count from the end.
pub(crate) fn wrap(dimension: i64, rank: usize) -> Result<usize, Error> {
    let most = rank.max(1) as i64;
    let counted = if dimension < 0 { dimension + most } else { dimension };
    if (0..most).contains(&counted) {
        Ok(counted as usize)
    } else {
        Err(Error::malformed(format!("dimension {dimension} is out of range for rank {rank}")))
    }
}

/// The source dimension of each result dimension.
fn permutation(node: &Node, name: &str, rank: usize) -> Result<Option<Vec<usize>>, Error> {
    let list = |argument: Option<&Argument>| -> Result<Option<Vec<usize>>, Error> {
        let items = match argument {
            Some(Argument::List(items)) => items.as_slice(),
            Some(one @ Argument::Int(_)) => std::slice::from_ref(one),
            _ => return Ok(None),
        };
        let mut dimensions = Vec::with_capacity(items.len());
        for item in items {
            let Argument::Int(value) = item else { return Ok(None) };
            dimensions.push(wrap(*value, rank)?);
        }
        Ok(Some(dimensions))
    };
    let mut order: Vec<usize> = (0..rank).collect();
    match name {
        "permute" => {
            let Some(given) = list(node.argument("dims"))? else { return Ok(None) };
            order = given;
        }
        "numpy_T" => order.reverse(),
        "t" if rank < 2 => {}
        "t" => order.swap(0, 1),
        "mT" if rank >= 2 => order.swap(rank - 1, rank - 2),
        "mT" => return Ok(None),
        "movedim" | "moveaxis" => {
            let ends = (list(node.argument("source"))?, list(node.argument("destination"))?);
            let (Some(from), Some(to)) = ends else { return Ok(None) };
            if from.len() != to.len() {
                return Ok(None);
            }
            let mut placed = vec![None; rank];
            for (from, to) in from.iter().zip(&to) {
                placed[*to] = Some(*from);
            }
            let mut others = (0..rank).filter(|dimension| !from.contains(dimension));
            order = Vec::with_capacity(rank);
            for slot in placed {
                let Some(dimension) = slot.or_else(|| others.next()) else { return Ok(None) };
                order.push(dimension);
            }
        }
        _ => {
            // `transpose`, `swapaxes`, `swapdims`: the two arguments after `self`.
            let (first, second) = (list(node.arguments.get(1))?, list(node.arguments.get(2))?);
            let (Some(first), Some(second)) = (first, second) else { return Ok(None) };
            if rank > 0 {
                order.swap(first[0], second[0]);
            }
        }
    }
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().ne(0..rank) {
        return Err(Error::malformed(format!(
            "{order:?} is not a permutation of the {rank} dimensions"
        )));
    }
    Ok(Some(order))
}

/// The results of a split as views.
fn pieces(
    node: &Node,
    source: &TensorMeta,
    results: &[ValueId],
    editor: &Editor<'_>,
) -> Result<Vec<ViewResult>, Error> {
    let Target::Operator { name, .. } = &node.target else { return Ok(Vec::new()) };
    let rank = source.sizes.len();
    let dim = match (name.as_str(), node.argument("dim")) {
        (_, Some(Argument::Int(dim))) => wrap(*dim, rank)?,
        ("hsplit", _) if rank == 1 => 0,
        ("hsplit", _) => 1,
        ("dsplit", _) => 2,
        _ => 0,
    };
    let count = results.len();
    let mut found = Vec::with_capacity(count);
    let mut start = Some(0i64);
    for (index, result) in results.iter().enumerate() {
        let view = if name == "unbind" {
            View::Select(dim as i64, Argument::Int(index as i64))
        } else {
            let size = match &editor.value(*result).meta {
                Meta::Tensor(meta) => meta.sizes.get(dim).and_then(Size::fixed),
                _ => None,
            };
            let end = start.zip(size).and_then(|(start, size)| start.checked_add(size));
            let view = match (start, end) {
                (Some(start), Some(end)) => {
                    let range = [Argument::Int(start), Argument::Int(end), Argument::Int(1)];
                    View::Slice(dim as i64, range)
                }
                _ => View::Piece(Box::new(node.clone()), index, count, dim as i64),
            };
            start = end;
            view
        };
        found.push(ViewResult { result: *result, source: 0, view, of_storage: false });
    }
    Ok(found)
}

/// A static size as an argument.
fn size_argument(size: &Size) -> Option<Argument> {
    size.fixed().map(Argument::Int)
}

/// Sum of two integers.
fn sum(
    left: &Argument,
    right: &Argument,
    editor: &mut Editor<'_>,
    origin: &Origin,
) -> Result<Argument, Error> {
    if let (Argument::Int(left), Argument::Int(right)) = (left, right) {
        return left.checked_add(*right).map(Argument::Int).ok_or_else(|| {
            Error::malformed(format!("the sum of {left} and {right} does not fit in 64 bits"))
        });
    }
    let term = |argument: &Argument| match argument {
        Argument::Int(value) => Some(Expression::Integer(*value)),
        Argument::Value(id) => match &editor.value(*id).meta {
            Meta::Int(size) => Some(expression(size)),
            _ => None,
        },
        _ => None,
    };
    let (Some(first), Some(second)) = (term(left), term(right)) else {
        return Err(Error::malformed(format!("{left:?} and {right:?} must be integers")));
    };
    let expression = Expression::Call(Function::Add, vec![first, second]);
    let size = Size::Symbolic(std::sync::Arc::new(Symbolic { expression, hint: None }));
    let result = editor.define("add", Meta::Int(size))?;
    editor.nodes.push(Node {
        name: editor.value(result).name.clone(),
        target: Target::Function("_operator.add".to_owned()),
        schema: None,
        arguments: vec![left.clone(), right.clone()],
        keywords: Vec::new(),
        outputs: vec![Output::Value(result)],
        single_return: None,
        origin: origin.clone(),
    });
    Ok(Argument::Value(result))
}

/// Sizes as arguments; dynamic ones are read from `like`, which has the same sizes.
pub(crate) fn size_arguments(
    sizes: &[Size],
    like: ValueId,
    editor: &mut Editor<'_>,
    origin: &Origin,
) -> Result<Argument, Error> {
    let mut arguments = Vec::with_capacity(sizes.len());
    for (dimension, size) in sizes.iter().enumerate() {
        arguments.push(match size_argument(size) {
            Some(argument) => argument,
            None => {
                let given = vec![Argument::Value(like), Argument::Int(dimension as i64)];
                let meta = Meta::Int(size.clone());
                Argument::Value(editor.call(
                    ("sym_size", "int"),
                    given,
                    "sym_size",
                    meta,
                    origin,
                )?)
            }
        });
    }
    Ok(Argument::List(arguments))
}

/// Sizes for a reshape, which can infer one of them.
fn reshape_sizes(
    sizes: &[Size],
    like: ValueId,
    editor: &mut Editor<'_>,
    origin: &Origin,
) -> Result<Argument, Error> {
    let unknown = sizes.iter().filter(|size| size.fixed().is_none()).count();
    if unknown == 1 && !sizes.contains(&Size::Fixed(0)) {
        let sizes = sizes.iter().map(|size| Argument::Int(size.fixed().unwrap_or(-1)));
        return Ok(Argument::List(sizes.collect()));
    }
    size_arguments(sizes, like, editor, origin)
}

fn ints(values: impl IntoIterator<Item = usize>) -> Argument {
    Argument::List(values.into_iter().map(|value| Argument::Int(value as i64)).collect())
}

/// A value of the new graph with its type in the old one.
pub(crate) struct MappedValue<'a> {
    pub(crate) value: ValueId,
    pub(crate) meta: &'a TensorMeta,
}

/// Recomputes a view of `source`. `old` is the previous value of the view, of the same type.
pub(crate) fn replay(
    view: &View,
    source: ValueId,
    old: &MappedValue<'_>,
    editor: &mut Editor<'_>,
    origin: &Origin,
) -> Result<ValueId, Error> {
    let name = editor.value(old.value).name.clone();
    let plain = contiguous(old.meta, old.meta.dtype, old.meta.sizes.clone());
    let meta = Meta::Tensor(plain.clone());
    let this = Argument::Value(source);
    let (operator, arguments) = match view {
        View::Same => return Ok(source),
        View::Reshape => {
            let sizes = reshape_sizes(&plain.sizes, old.value, editor, origin)?;
            (("reshape", "default"), vec![this, sizes])
        }
        View::Permute(order) => (("permute", "default"), vec![this, ints(order.iter().copied())]),
        View::Select(dim, index) => {
            (("select", "int"), vec![this, Argument::Int(*dim), index.clone()])
        }
        View::Slice(dim, range) => {
            let mut arguments = vec![this, Argument::Int(*dim)];
            arguments.extend(range.iter().cloned());
            (("slice", "Tensor"), arguments)
        }
        View::Diagonal(places) => {
            let mut arguments = vec![this];
            arguments.extend(places.iter().cloned());
            (("diagonal", "default"), arguments)
        }
        View::Strided(places) => {
            let mut arguments = vec![this];
            arguments.extend(places.iter().cloned());
            (("as_strided", "default"), arguments)
        }
        View::Bits => (("view", "dtype"), vec![this, Argument::ScalarType(old.meta.dtype)]),
        View::Conjugate => (("conj_physical", "default"), vec![this]),
        View::Part(0) => (("real", "default"), vec![this]),
        View::Part(_) => (("imag", "default"), vec![this]),
        View::AsReal => (("view_as_real", "default"), vec![this]),
        View::AsComplex => (("view_as_complex", "default"), vec![this]),
        View::Piece(node, index, count, _) => {
            let pieces = replay_pieces(node, source, *count, editor)?;
            return Ok(pieces[*index]);
        }
        View::Expand => {
            let sizes = size_arguments(&plain.sizes, old.value, editor, origin)?;
            (("expand", "default"), vec![this, sizes])
        }
        View::ReadOnly(node, _) if !matches!(node.arguments.first(), Some(Argument::Value(_))) => {
            return Err(Error::unsupported(format!(
                "the result of `{}` is read after one of its arguments has been written to",
                node.target
            ))
            .with_hint("clone the tensor before it is written to"));
        }
        View::ReadOnly(node, _) => {
            let mut node = node.as_ref().clone();
            let result = editor.define(&name, meta)?;
            set_source(&mut node, source);
            node.outputs = vec![Output::Value(result)];
            editor.nodes.push(node);
            return Ok(result);
        }
    };
    editor.call(operator, arguments, &name, meta, origin)
}

fn set_source(node: &mut Node, source: ValueId) {
    if let Some(first) = node.arguments.first_mut() {
        *first = Argument::Value(source);
    }
}

/// Re-emits a split.
fn replay_pieces(
    node: &Node,
    source: ValueId,
    count: usize,
    editor: &mut Editor<'_>,
) -> Result<Vec<ValueId>, Error> {
    let mut node = node.clone();
    let results: Vec<ValueId> = node.defined().collect();
    let mut pieces = Vec::with_capacity(count);
    for result in results {
        let old = editor.value(result).clone();
        pieces.push(editor.define(&old.name, old.meta)?);
    }
    set_source(&mut node, source);
    node.outputs = vec![Output::List(pieces.clone())];
    editor.nodes.push(node);
    Ok(pieces)
}

impl View {
    /// Error for a write through the view, if writes are not supported.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let (what, why) = match self {
            View::ReadOnly(node, why) => (node.target.to_string(), *why),
            View::Expand => ("expand".to_owned(), ELEMENTS_SHARED),
            _ => return None,
        };
        Some(
            Error::unsupported(format!(
                "an in-place operation writes through `{what}`, {why}; this is not supported"
            ))
            .with_hint("clone the tensor before it is written to"),
        )
    }

    /// Whether a view contains all elements of its source.
    pub(crate) fn covers(&self) -> bool {
        use View::*;
        matches!(self, Same | Reshape | Permute(_) | Bits | Conjugate | AsReal | AsComplex)
    }
}

/// The new source after writing `value` to a view of it. `source` is the previous one; if the view covers it, only
/// its shape is used.
pub(crate) fn write(
    view: &View,
    source: &MappedValue<'_>,
    value: ValueId,
    editor: &mut Editor<'_>,
    origin: &Origin,
) -> Result<ValueId, Error> {
    if let Some(refusal) = view.refusal() {
        return Err(refusal);
    }
    let base = &editor.value(source.value).name;
    let name = format!("{}_written", base.split("_written").next().unwrap_or(base));
    let plain = contiguous(source.meta, source.meta.dtype, source.meta.sizes.clone());
    let meta = Meta::Tensor(plain.clone());
    let (before, after) = (Argument::Value(source.value), Argument::Value(value));
    let (operator, arguments) = match view {
        View::Same | View::Expand | View::ReadOnly(..) => return Ok(value),
        View::Reshape => {
            let sizes = reshape_sizes(&plain.sizes, source.value, editor, origin)?;
            (("reshape", "default"), vec![after, sizes])
        }
        View::Permute(order) => {
            let inverse = (0..order.len()).map(|dimension| {
                order.iter().position(|source| *source == dimension).unwrap_or(dimension)
            });
            (("permute", "default"), vec![after, ints(inverse)])
        }
        View::Select(dim, index) => {
            (("select_scatter", "default"), vec![before, after, Argument::Int(*dim), index.clone()])
        }
        View::Slice(dim, range) => {
            let mut arguments = vec![before, after, Argument::Int(*dim)];
            arguments.extend(range.iter().cloned());
            (("slice_scatter", "default"), arguments)
        }
        View::Diagonal(places) => {
            let mut arguments = vec![before, after];
            arguments.extend(places.iter().cloned());
            (("diagonal_scatter", "default"), arguments)
        }
        View::Strided(places) => {
            let mut arguments = vec![before, after];
            arguments.extend(places.iter().cloned());
            (("as_strided_scatter", "default"), arguments)
        }
        View::Bits => (("view", "dtype"), vec![after, Argument::ScalarType(plain.dtype)]),
        View::Conjugate => (("conj_physical", "default"), vec![after]),
        View::AsReal => (("view_as_complex", "default"), vec![after]),
        View::AsComplex => (("view_as_real", "default"), vec![after]),
        View::Part(part) => {
            let Meta::Tensor(part_meta) = editor.value(value).meta.clone() else {
                return Ok(value);
            };
            // The other part is kept, and both are joined.
            let (own, other) = if *part == 0 { ("real", "imag") } else { ("imag", "real") };
            let kept = contiguous(&part_meta, part_meta.dtype, plain.sizes.clone());
            let kept = Meta::Tensor(kept);
            let kept = editor.call((other, "default"), vec![before], other, kept, origin)?;
            let pair = if own == "real" { [value, kept] } else { [kept, value] };
            let arguments = pair.into_iter().map(Argument::Value).collect();
            (("complex", "default"), arguments)
        }
        View::Piece(node, index, count, dim) => {
            let mut pieces = replay_pieces(node, source.value, *count, editor)?;
            pieces[*index] = value;
            let pieces = Argument::List(pieces.into_iter().map(Argument::Value).collect());
            let result = editor.define(&name, meta)?;
            let given = vec![positional(pieces), positional(Argument::Int(*dim))];
            editor.call_into(("cat", "default"), given, vec![Output::Value(result)], origin)?;
            return Ok(result);
        }
    };
    editor.call(operator, arguments, &name, meta, origin)
}
