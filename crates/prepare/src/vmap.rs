//! Turns batch dimensions hidden by `vmap` into regular dimensions.
//!
//! An exported `vmap` contains its function's calls on a single batch element between markers: `_add_batch_dim(x, 0,
//! 1)` hides dimension 0 of `x` as level 1, and `_remove_batch_dim(y, 1, n, 0)` restores it. Here a value with
//! hidden levels is a tensor that has them as leading dimensions, in order, and each call is rewritten for such
//! tensors:
//!
//! ```text
//! a = _add_batch_dim(i, 0, 1)            a: i        [n]
//! b = _add_batch_dim(j, 0, 2)            b: j        [m]
//! c = ge(a, b)                           c = ge(view(i, [n, 1]), j)
//! d = _remove_batch_dim(c, 2, m, 0)
//! e = _remove_batch_dim(d, 1, n, 0)      e: c        [n, m]
//! ```

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, Meta, Node, Origin, Output, ScalarType, Schemas, Size,
    Target, TensorMeta, ValueId, operators,
};

use crate::edit::Editor;
use crate::error::Error;
use crate::meta::contiguous;
use crate::view::{size_arguments, wrap};

/// Module of the markers.
const MARKERS: &str = "torch._functorch.predispatch.";

/// Parameters that contain dimensions.
const DIMENSIONS: [&str; 7] = ["dim", "dims", "dim0", "dim1", "dim2", "start_dim", "end_dim"];

pub(crate) fn unhide(program: &mut ExportedProgram, schemas: &mut Schemas) -> Result<(), Error> {
    let graph = std::mem::take(&mut program.graph);
    program.graph = self::graph(graph, schemas)?;
    Ok(())
}

fn graph(graph: Graph, schemas: &mut Schemas) -> Result<Graph, Error> {
    let Graph { values, inputs, mut outputs, mut nodes, single_return } = graph;
    for node in &mut nodes {
        let name = node.name.clone();
        for argument in &mut node.arguments {
            if let Argument::Graph(inner) = argument {
                let taken = std::mem::take(&mut inner.graph);
                inner.graph = self::graph(taken, schemas).map_err(|error| error.in_node(&name))?;
            }
        }
    }
    if !nodes.iter().any(|node| marker(node).is_some()) {
        return Ok(Graph { values, inputs, outputs, nodes, single_return });
    }
    let mut state = State { editor: Editor::new(schemas, values), hidden: HashMap::new() };
    for node in nodes {
        let name = node.name.clone();
        state.node(node).map_err(|error| error.in_node(&name))?;
    }
    for output in &mut outputs {
        state.show_in(output)?;
    }
    let Editor { values, nodes, .. } = state.editor;
    Ok(Graph { values, inputs, outputs, nodes, single_return })
}

fn marker(node: &Node) -> Option<&str> {
    match &node.target {
        Target::Function(name) => name.strip_prefix(MARKERS),
        _ => None,
    }
}

/// A hidden dimension: its level and size.
#[derive(Clone, Debug, PartialEq)]
struct Level {
    number: i64,
    size: Size,
}

/// A value with hidden dimensions, which are leading dimensions in the new graph.
#[derive(Clone)]
struct BatchedValue {
    value: ValueId,
    levels: Vec<Level>,
    /// The type without hidden dimensions.
    meta: TensorMeta,
}

struct State<'a> {
    editor: Editor<'a>,
    hidden: HashMap<ValueId, BatchedValue>,
}

impl State<'_> {
    fn node(&mut self, mut node: Node) -> Result<(), Error> {
        match marker(&node) {
            Some("_add_batch_dim") => return self.hide(&node),
            Some("_remove_batch_dim") => return self.show(&node),
            Some(
                name @ ("_vmap_increment_nesting"
                | "_vmap_decrement_nesting"
                | "lazy_load_decompositions"),
            ) => {
                let gives = |output: &Output| !matches!(output, Output::Unused | Output::None);
                if node.outputs.iter().any(gives) {
                    return Err(Error::malformed(format!("`{name}` must not return a value")));
                }
                return Ok(());
            }
            Some(other) => {
                return Err(Error::unsupported(format!(
                    "the program contains `{other}` of torch's function transforms; only `vmap` is supported"
                )));
            }
            None => {}
        }
        let mut any = false;
        node.for_each_use(&mut |id| {
            any |= self.hidden.get(&id).is_some_and(|hidden| !hidden.levels.is_empty());
        });
        if any {
            return self.call(node);
        }
        for argument in &mut node.arguments {
            self.show_in(argument)?;
        }
        for (_, argument) in &mut node.keywords {
            self.show_in(argument)?;
        }
        self.editor.nodes.push(node);
        Ok(())
    }

    /// Replaces values in an argument of a call without hidden dimensions.
    fn show_in(&self, argument: &mut Argument) -> Result<(), Error> {
        argument.try_map_values(&mut |id| {
            Ok(Argument::Value(match self.hidden.get(&id) {
                Some(hidden) if hidden.levels.is_empty() => hidden.value,
                Some(_) => {
                    return Err(Error::malformed(format!(
                        "{id} leaves `vmap` with a hidden batch dimension"
                    )));
                }
                None => id,
            }))
        })
    }

    /// A value of the old graph with its hidden dimensions, if any.
    fn look(&self, argument: &Argument) -> Option<BatchedValue> {
        let Argument::Value(id) = argument else { return None };
        if let Some(hidden) = self.hidden.get(id) {
            return Some(hidden.clone());
        }
        match &self.editor.value(*id).meta {
            Meta::Tensor(meta) => {
                Some(BatchedValue { value: *id, levels: Vec::new(), meta: meta.clone() })
            }
            _ => None,
        }
    }

    fn hide(&mut self, node: &Node) -> Result<(), Error> {
        let (
            Some(tensor),
            Some(Argument::Int(dim)),
            Some(Argument::Int(number)),
            [Output::Value(result)],
        ) = (
            node.arguments.first().and_then(|argument| self.look(argument)),
            node.arguments.get(1),
            node.arguments.get(2),
            node.outputs.as_slice(),
        )
        else {
            return Err(Error::malformed(
                "`_add_batch_dim` must have a tensor, a dimension and a level",
            ));
        };
        let dim = wrap(*dim, tensor.meta.sizes.len())?;
        let size =
            tensor.meta.sizes.get(dim).cloned().ok_or_else(|| {
                Error::malformed("`_add_batch_dim` hides a dimension of a scalar")
            })?;
        let place = tensor.levels.iter().filter(|level| level.number < *number).count();
        let from = tensor.levels.len() + dim;
        let rank = tensor.levels.len() + tensor.meta.sizes.len();
        let mut order: Vec<usize> = (0..rank).filter(|at| *at != from).collect();
        order.insert(place, from);
        let mut levels = tensor.levels.clone();
        levels.insert(place, Level { number: *number, size });
        let mut meta = tensor.meta.clone();
        meta.sizes.remove(dim);
        let value = self.permuted(tensor.value, &order, &node.origin)?;
        self.hidden.insert(*result, BatchedValue { value, levels, meta });
        Ok(())
    }

    fn show(&mut self, node: &Node) -> Result<(), Error> {
        let (
            Some(tensor),
            Some(Argument::Int(number)),
            Some(size),
            Some(Argument::Int(dim)),
            [Output::Value(result)],
        ) = (
            node.arguments.first().and_then(|argument| self.look(argument)),
            node.arguments.get(1),
            node.arguments.get(2),
            node.arguments.get(3),
            node.outputs.as_slice(),
        )
        else {
            return Err(Error::malformed(
                "`_remove_batch_dim` must have a tensor, a level, a size and a dimension",
            ));
        };
        let Meta::Tensor(meta) = self.editor.value(*result).meta.clone() else {
            return Err(Error::malformed("`_remove_batch_dim` does not return a tensor"));
        };
        let dim = wrap(*dim, tensor.meta.sizes.len() + 1)?;
        let count = tensor.levels.len();
        let Some(place) = tensor.levels.iter().position(|level| level.number == *number) else {
            // No value depends on the level, so all batch elements are equal.
            let at = count + dim;
            let mut sizes = physical(&tensor);
            sizes.insert(at, Size::Fixed(1));
            let narrow = self.typed(&tensor.meta, sizes.clone());
            let given = vec![Argument::Value(tensor.value), Argument::Int(at as i64)];
            let value =
                self.editor.call(("unsqueeze", "default"), given, "batch", narrow, &node.origin)?;
            let mut wanted = vec![Argument::Int(-1); sizes.len()];
            wanted[at] = size.clone();
            sizes[at] = meta.sizes[dim].clone();
            let wide = self.typed(&tensor.meta, sizes);
            let given = vec![Argument::Value(value), Argument::List(wanted)];
            let value =
                self.editor.call(("expand", "default"), given, "batch", wide, &node.origin)?;
            self.hidden.insert(*result, BatchedValue { value, levels: tensor.levels, meta });
            return Ok(());
        };
        let rank = count + tensor.meta.sizes.len();
        let mut order: Vec<usize> = (0..rank).filter(|at| *at != place).collect();
        order.insert(count - 1 + dim, place);
        let value = self.permuted(tensor.value, &order, &node.origin)?;
        let mut levels = tensor.levels;
        levels.remove(place);
        self.hidden.insert(*result, BatchedValue { value, levels, meta });
        Ok(())
    }

    fn typed(&self, like: &TensorMeta, sizes: Vec<Size>) -> Meta {
        Meta::Tensor(contiguous(like, like.dtype, sizes))
    }

    fn permuted(
        &mut self,
        value: ValueId,
        order: &[usize],
        origin: &Origin,
    ) -> Result<ValueId, Error> {
        if order.iter().copied().eq(0..order.len()) {
            return Ok(value);
        }
        let Meta::Tensor(meta) = self.editor.value(value).meta.clone() else { return Ok(value) };
        let sizes = order.iter().map(|at| meta.sizes[*at].clone()).collect();
        let meta = self.typed(&meta, sizes);
        let order = order.iter().map(|at| Argument::Int(*at as i64)).collect();
        let given = vec![Argument::Value(value), Argument::List(order)];
        self.editor.call(("permute", "default"), given, "batch", meta, origin)
    }

    /// Reshapes a value to have all these levels, with size 1 for missing ones, followed by `rank` dimensions.
    fn aligned(
        &mut self,
        tensor: &BatchedValue,
        levels: &[Level],
        rank: usize,
        origin: &Origin,
    ) -> Result<ValueId, Error> {
        let own = tensor.meta.sizes.len();
        if tensor.levels.is_empty() || tensor.levels == levels && own >= rank {
            // Missing leading dimensions are broadcast.
            return Ok(tensor.value);
        }
        let mut sizes = Vec::new();
        for level in levels {
            let has = tensor.levels.iter().any(|one| one.number == level.number);
            if has || !sizes.is_empty() {
                sizes.push(if has { level.size.clone() } else { Size::Fixed(1) });
            }
        }
        sizes.extend(std::iter::repeat_n(Size::Fixed(1), rank.saturating_sub(own)));
        sizes.extend(tensor.meta.sizes.iter().cloned());
        let unknown = sizes.iter().filter(|size| size.fixed().is_none()).count();
        if unknown <= 1 && !sizes.contains(&Size::Fixed(0)) {
            let wanted = sizes.iter().map(|size| Argument::Int(size.fixed().unwrap_or(-1)));
            let given = vec![Argument::Value(tensor.value), Argument::List(wanted.collect())];
            let meta = self.typed(&tensor.meta, sizes);
            return self.editor.call(("view", "default"), given, "batch", meta, origin);
        }
        // Inserts unit dimensions one by one where the existing dimensions do not match.
        let mut value = tensor.value;
        let mut have = physical(tensor);
        for at in 0..sizes.len() {
            if sizes[at] == Size::Fixed(1)
                && have.len() < sizes.len()
                && have.get(at) != Some(&sizes[at])
            {
                have.insert(at, Size::Fixed(1));
                let meta = self.typed(&tensor.meta, have.clone());
                let given = vec![Argument::Value(value), Argument::Int(at as i64)];
                value = self.editor.call(("unsqueeze", "default"), given, "batch", meta, origin)?;
            }
        }
        Ok(value)
    }

    fn call(&mut self, mut node: Node) -> Result<(), Error> {
        let Target::Operator { namespace, name, overload } = node.target.clone() else {
            return Err(refused(&node));
        };
        if namespace != "aten" {
            return Err(refused(&node));
        }
        let mut tensors = Vec::new();
        for argument in &node.arguments {
            argument.for_each_value(&mut |id| tensors.extend(self.look(&Argument::Value(id))));
        }
        let levels = union(&tensors);
        let plain = name.strip_suffix('_').filter(|_| !name.starts_with('_')).unwrap_or(&name);
        let first = tensors.first().cloned().ok_or_else(|| refused(&node))?;
        if plain.len() < name.len() && first.levels != levels {
            return Err(Error::unsupported(format!(
                "`{}` writes a batched value of `vmap` to an unbatched tensor",
                node.target
            )));
        }
        match plain {
            "index" => return self.index(node, &levels),
            "new_ones" | "new_zeros" | "new_full" | "new_empty" => {
                node.arguments[0] = Argument::Value(first.value);
                self.editor.nodes.push(node);
                return Ok(());
            }
            "sum" | "mean" | "any" | "all" | "max" | "min" | "amax" | "amin"
                if node.argument("dim").is_none_or(|dim| {
                    *dim == Argument::None || *dim == Argument::List(Vec::new())
                }) =>
            {
                self.whole(&mut node, &first, plain)?;
            }
            "view" if overload == "dtype" => node.arguments[0] = Argument::Value(first.value),
            "view" | "reshape" | "_unsafe_view" | "expand" => {
                self.sized(&mut node, &first, plain)?
            }
            "cat" | "stack" => self.joined(&mut node, &tensors, &levels, plain)?,
            "matmul" if tensors.iter().all(|tensor| tensor.meta.sizes.len() >= 2) => {
                self.broadcast(&mut node, &levels)?;
            }
            "linear" if tensors[1..].iter().all(|tensor| tensor.levels.is_empty()) => {
                for (argument, tensor) in node.arguments.iter_mut().zip(&tensors) {
                    *argument = Argument::Value(tensor.value);
                }
            }
            "t" | "mT" if first.meta.sizes.len() >= 2 => {
                let last = (first.levels.len() + first.meta.sizes.len()) as i64 - 1;
                node.schema = self.editor.schemas.find("aten", "transpose", "int")?;
                node.target = Target::Operator {
                    namespace,
                    name: "transpose".to_owned(),
                    overload: "int".to_owned(),
                };
                node.arguments = vec![
                    Argument::Value(first.value),
                    Argument::Int(last - 1),
                    Argument::Int(last),
                ];
            }
            _ if operators::named(plain).elementwise => self.broadcast(&mut node, &levels)?,
            _ if operators::named(plain).along && tensors.len() == 1 => {
                let rank = first.meta.sizes.len() + usize::from(plain == "unsqueeze");
                shift(&mut node, rank, levels.len())?;
                node.arguments[0] = Argument::Value(first.value);
            }
            _ if operators::named(plain).random => return Err(draws(&node)),
            _ => return Err(refused(&node)),
        }
        self.results(node, &levels)
    }

    /// Emits a node whose results have these levels.
    fn results(&mut self, node: Node, levels: &[Level]) -> Result<(), Error> {
        let results: Vec<ValueId> = node.defined().collect();
        for result in results {
            let Meta::Tensor(meta) = self.editor.value(result).meta.clone() else { continue };
            let mut sizes: Vec<Size> = levels.iter().map(|level| level.size.clone()).collect();
            sizes.extend(meta.sizes.iter().cloned());
            self.editor.values[result.index()].meta = self.typed(&meta, sizes);
            self.hidden
                .insert(result, BatchedValue { value: result, levels: levels.to_vec(), meta });
        }
        self.editor.nodes.push(node);
        Ok(())
    }

    /// Rewrites tensor arguments that broadcast against each other.
    fn broadcast(&mut self, node: &mut Node, levels: &[Level]) -> Result<(), Error> {
        let result = node.defined().next().map(|id| self.editor.value(id).meta.clone());
        let Some(Meta::Tensor(result)) = result else { return Ok(()) };
        let rank = result.sizes.len();
        for index in 0..node.arguments.len() {
            let Some(tensor) = self.look(&node.arguments[index]) else { continue };
            let mut value = self.aligned(&tensor, levels, rank, &node.origin)?;
            // A scalar tensor has lower priority in type promotion. With hidden dimensions it would not, so it is
            // cast first.
            let bare = tensor.meta.sizes.is_empty() && !tensor.levels.is_empty() && rank > 0;
            let float = |dtype| coremill_pt2::promotion::is_float(dtype);
            if bare
                && tensor.meta.dtype != result.dtype
                && float(tensor.meta.dtype)
                && float(result.dtype)
            {
                value = self.cast(value, result.dtype, &node.origin)?;
            }
            node.arguments[index] = Argument::Value(value);
        }
        Ok(())
    }

    fn cast(
        &mut self,
        value: ValueId,
        dtype: ScalarType,
        origin: &Origin,
    ) -> Result<ValueId, Error> {
        let Meta::Tensor(meta) = &self.editor.value(value).meta else { return Ok(value) };
        let meta = Meta::Tensor(contiguous(meta, dtype, meta.sizes.clone()));
        let given = vec![Argument::Value(value), Argument::ScalarType(dtype)];
        self.editor.call(("to", "dtype"), given, "batch", meta, origin)
    }

    /// Turns a full reduction into a reduction of all dimensions that are not hidden.
    fn whole(&mut self, node: &mut Node, first: &BatchedValue, name: &str) -> Result<(), Error> {
        let (name, overload) = match name {
            "sum" => ("sum", "dim_IntList"),
            "mean" => ("mean", "dim"),
            "any" => ("any", "dims"),
            "all" => ("all", "dims"),
            "max" | "amax" => ("amax", "default"),
            _ => ("amin", "default"),
        };
        if node.argument("other").is_some() {
            return Err(refused(node));
        }
        let schema = self.editor.schemas.find("aten", name, overload)?;
        let schema = schema.ok_or_else(|| refused(node))?;
        let count = first.levels.len();
        let dims = (count..count + first.meta.sizes.len()).map(|dim| Argument::Int(dim as i64));
        let dims = Argument::List(dims.collect());
        let mut arguments = Vec::new();
        for parameter in &schema.arguments {
            arguments.push(match parameter.name.as_str() {
                "self" => Argument::Value(first.value),
                "dim" => dims.clone(),
                other => node
                    .argument(other)
                    .cloned()
                    .or_else(|| parameter.default_argument())
                    .unwrap_or(Argument::None),
            });
        }
        if first.meta.sizes.is_empty() {
            // These operators take an empty list as all dimensions, so a scalar cannot be reduced this way.
            return Err(refused(node));
        }
        node.arguments = arguments;
        node.schema = Some(schema);
        node.target = Target::Operator {
            namespace: "aten".to_owned(),
            name: name.to_owned(),
            overload: overload.to_owned(),
        };
        Ok(())
    }

    /// Rewrites calls with an argument for the sizes of their result.
    fn sized(&mut self, node: &mut Node, first: &BatchedValue, name: &str) -> Result<(), Error> {
        let Some(Argument::List(sizes)) = node.arguments.get(1).cloned() else {
            return Err(refused(node));
        };
        let origin = node.origin.clone();
        let front = if name == "expand" {
            vec![Argument::Int(-1); first.levels.len()]
        } else {
            let sizes: Vec<Size> = first.levels.iter().map(|level| level.size.clone()).collect();
            match size_arguments(&sizes, first.value, &mut self.editor, &origin)? {
                Argument::List(sizes) => sizes,
                _ => Vec::new(),
            }
        };
        let value = match name {
            "expand" => self.aligned(first, &first.levels.clone(), sizes.len(), &origin)?,
            _ => first.value,
        };
        node.arguments[0] = Argument::Value(value);
        node.arguments[1] = Argument::List(front.into_iter().chain(sizes).collect());
        Ok(())
    }

    /// Expands tensors to be joined to the same hidden dimensions.
    fn joined(
        &mut self,
        node: &mut Node,
        tensors: &[BatchedValue],
        levels: &[Level],
        name: &str,
    ) -> Result<(), Error> {
        let origin = node.origin.clone();
        let rank = tensors[0].meta.sizes.len();
        let mut items = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            let mut value = self.aligned(tensor, levels, rank, &origin)?;
            if tensor.levels != levels {
                let like = tensors.iter().find(|tensor| tensor.levels == levels);
                let Some(like) = like else { return Err(refused(node)) };
                let wanted: Vec<Size> = levels.iter().map(|level| level.size.clone()).collect();
                let wanted_arguments =
                    size_arguments(&wanted, like.value, &mut self.editor, &origin)?;
                let Argument::List(mut arguments) = wanted_arguments else { return Ok(()) };
                // Prepends the hidden dimensions to a tensor without any.
                arguments.extend(std::iter::repeat_n(Argument::Int(-1), rank));
                let mut sizes = wanted;
                sizes.extend(tensor.meta.sizes.iter().cloned());
                let meta = self.typed(&tensor.meta, sizes);
                let given = vec![Argument::Value(value), Argument::List(arguments)];
                value = self.editor.call(("expand", "default"), given, "batch", meta, &origin)?;
            }
            items.push(Argument::Value(value));
        }
        shift(node, rank + usize::from(name == "stack"), levels.len())?;
        node.arguments[0] = Argument::List(items);
        Ok(())
    }

    /// Indexing by tensors. Hidden dimensions of the indices become index dimensions. Hidden dimensions of the
    /// indexed tensor are indexed by counters.
    fn index(&mut self, mut node: Node, levels: &[Level]) -> Result<(), Error> {
        let origin = node.origin.clone();
        let (Some(source), Some(Argument::List(indices))) =
            (self.look(&node.arguments[0]), node.arguments.get(1).cloned())
        else {
            return Err(refused(&node));
        };
        let tensors: Vec<Option<BatchedValue>> =
            indices.iter().map(|index| self.look(index)).collect();
        if tensors.iter().flatten().any(|index| index.meta.dtype == ScalarType::Bool) {
            return Err(refused(&node));
        }
        let rank = tensors.iter().flatten().map(|index| index.meta.sizes.len()).max().unwrap_or(0);
        let mut placed = Vec::new();
        for (at, level) in source.levels.iter().enumerate() {
            let size = std::slice::from_ref(&level.size);
            let count = match level.size {
                Size::Fixed(size) => Argument::Int(size),
                Size::Symbolic(_) => {
                    let given = vec![Argument::Value(source.value), Argument::Int(at as i64)];
                    let meta = Meta::Int(level.size.clone());
                    let call = ("sym_size", "int");
                    Argument::Value(self.editor.call(call, given, "batch", meta, &origin)?)
                }
            };
            let mut meta = contiguous(&source.meta, ScalarType::Int64, size.to_vec());
            let value = self.editor.call(
                ("arange", "default"),
                vec![count],
                "batch",
                Meta::Tensor(meta.clone()),
                &origin,
            )?;
            meta.sizes.clear();
            let numbers = BatchedValue { value, levels: vec![level.clone()], meta };
            placed.push(Argument::Value(self.aligned(&numbers, levels, rank, &origin)?));
        }
        for (index, tensor) in indices.iter().zip(&tensors) {
            placed.push(match tensor {
                Some(tensor) => Argument::Value(self.aligned(tensor, levels, rank, &origin)?),
                None => index.clone(),
            });
        }
        // Labels of the dimensions: first the index dimensions, then those of the indexed tensor.
        let dimensions = |used: &[bool], from: usize, total: usize| -> Vec<usize> {
            let front: Vec<usize> = (0..levels.len() + rank).collect();
            let own = |at: usize| 1000 + at;
            let free: Vec<usize> =
                (0..total).filter(|at| !used.get(*at).copied().unwrap_or(false)).collect();
            let first = used.iter().position(|used| *used).unwrap_or(0);
            let last = used.iter().rposition(|used| *used).unwrap_or(0);
            let together = used[first..=last].iter().all(|used| *used);
            let split = if together { free.iter().filter(|at| **at < first).count() } else { 0 };
            let mut order: Vec<usize> = free[..split].iter().map(|at| own(from + at)).collect();
            order.extend(front);
            order.extend(free[split..].iter().map(|at| own(from + at)));
            order
        };
        let count = source.levels.len();
        let used: Vec<bool> = tensors.iter().map(Option::is_some).collect();
        let mut all_used = vec![true; count];
        all_used.extend(&used);
        let own_rank = source.meta.sizes.len();
        let found: Vec<usize> = dimensions(&all_used, 0, count + own_rank);
        let mut wanted = dimensions(&used, count, own_rank);
        // Hidden dimensions come first, independent of the index.
        wanted.retain(|label| *label >= levels.len());
        wanted.splice(0..0, 0..levels.len());
        let order: Option<Vec<usize>> =
            wanted.iter().map(|label| found.iter().position(|other| other == label)).collect();
        let order = order.ok_or_else(|| refused(&node))?;
        let [Output::Value(result)] = node.outputs.as_slice() else { return Err(refused(&node)) };
        let result = *result;
        let Meta::Tensor(meta) = self.editor.value(result).meta.clone() else { return Ok(()) };
        let mut sizes: Vec<Size> = levels.iter().map(|level| level.size.clone()).collect();
        sizes.extend(meta.sizes.iter().cloned());
        let mut before = sizes.clone();
        for (to, from) in order.iter().enumerate() {
            before[*from] = sizes[to].clone();
        }
        node.arguments[0] = Argument::Value(source.value);
        node.arguments[1] = Argument::List(placed);
        self.editor.values[result.index()].meta = self.typed(&meta, before);
        self.editor.nodes.push(node);
        let value = self.permuted(result, &order, &origin)?;
        self.hidden.insert(result, BatchedValue { value, levels: levels.to_vec(), meta });
        Ok(())
    }
}

fn refused(node: &Node) -> Error {
    Error::unsupported(format!(
        "`{}` is called within `vmap`, but it has no known batching rule",
        node.target
    ))
    .with_hint("write the batch dimension out in the model")
}

fn draws(node: &Node) -> Error {
    Error::unsupported(format!("`{}` draws random numbers within `vmap`", node.target))
        .with_hint("draw them before `vmap`, and pass them to the function as an argument")
}

fn physical(tensor: &BatchedValue) -> Vec<Size> {
    let levels = tensor.levels.iter().map(|level| level.size.clone());
    levels.chain(tensor.meta.sizes.iter().cloned()).collect()
}

/// The levels of all tensors, sorted.
fn union(tensors: &[BatchedValue]) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for level in tensors.iter().flat_map(|tensor| &tensor.levels) {
        if !levels.iter().any(|known| known.number == level.number) {
            levels.push(level.clone());
        }
    }
    levels.sort_by_key(|level| level.number);
    levels
}

/// Shifts dimension arguments by the number of hidden dimensions.
fn shift(node: &mut Node, rank: usize, hidden: usize) -> Result<(), Error> {
    let Some(schema) = node.schema.clone() else { return Ok(()) };
    for (parameter, argument) in schema.arguments.iter().zip(&mut node.arguments) {
        if !DIMENSIONS.contains(&parameter.name.as_str()) {
            continue;
        }
        let items = match argument {
            Argument::List(items) => items.as_mut_slice(),
            one => std::slice::from_mut(one),
        };
        for item in items {
            if let Argument::Int(dim) = item {
                *item = Argument::Int((wrap(*dim, rank)? + hidden) as i64);
            }
        }
    }
    Ok(())
}
