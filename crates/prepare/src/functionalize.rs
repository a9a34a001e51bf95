//! Functionalization: replaces writes by new values.
//!
//! Every tensor is an alias of a storage: the root, or a view of another alias. A write to an alias defines a new
//! value for it, which is propagated through the views to the root, and increments the version of the storage. When
//! an alias with an older version is read, it is recomputed from the alias it is a view of.
//!
//! ```text
//! before                             after
//! v = slice(x, 0, 1, 3)              v = slice(x, 0, 1, 3)
//! add_(v, 1)                         a = add(v, 1)
//! return x, v                        w = slice_scatter(x, a, 0, 1, 3)
//!                                    return w, a
//! ```

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, InputKind, Meta, Node, Origin, Output, OutputKind, Schemas,
    StoredValue, Target, TensorMeta, ValueId,
};

use crate::edit::{Editor, named, positional};
use crate::error::{Error, escape_truncated};
use crate::functional::{self, Functional};
use crate::meta::{contiguous, is_contiguous, same_sizes};
use crate::view::{self, MappedValue, View, ViewResult, size_arguments};

pub(crate) fn functionalize(
    program: &mut ExportedProgram,
    schemas: &mut Schemas,
) -> Result<(), Error> {
    let graph = std::mem::take(&mut program.graph);
    let (graph, written) = self::graph(graph, schemas)?;
    program.graph = graph;
    let mut first = 0;
    for (index, value) in written {
        let kind = match &program.inputs[index] {
            InputKind::Buffer { name, .. } => OutputKind::BufferMutation(name.clone()),
            InputKind::Parameter(name) => OutputKind::ParameterMutation(name.clone()),
            InputKind::TensorConstant(name) => {
                // A mutated constant changes between calls, like a buffer.
                let name = name.clone();
                program.inputs[index] = InputKind::Buffer { name: name.clone(), persistent: false };
                OutputKind::BufferMutation(name)
            }
            InputKind::User
            | InputKind::Constant(_)
            | InputKind::CustomObject(_)
            | InputKind::Token => {
                let name = match &program.graph.inputs[index] {
                    Argument::Value(id) => program.graph.value(*id).name.clone(),
                    _ => continue,
                };
                OutputKind::UserInputMutation(name)
            }
        };
        check_sharing(program, index)?;
        // The program may already declare the mutation.
        if let Some(known) = program.outputs.iter().position(|known| *known == kind) {
            program.graph.outputs[known] = Argument::Value(value);
            continue;
        }
        program.outputs.insert(first, kind);
        program.graph.outputs.insert(first, Argument::Value(value));
        first += 1;
    }
    Ok(())
}

/// Rejects a write to a tensor whose storage is shared with others, which it would have to reach.
fn check_sharing(program: &ExportedProgram, index: usize) -> Result<(), Error> {
    let storage = |kind: &InputKind| match kind {
        InputKind::Buffer { name, .. }
        | InputKind::Parameter(name)
        | InputKind::TensorConstant(name) => match program.tensors.get(name) {
            Some(StoredValue::Tensor(tensor)) if tensor.elements() > 0 => {
                Some((name.clone(), tensor.storage_name.clone()))
            }
            _ => None,
        },
        _ => None,
    };
    let Some((name, own)) = storage(&program.inputs[index]) else { return Ok(()) };
    let others = program.inputs.iter().enumerate().filter(|(other, _)| *other != index);
    match others.filter_map(|(_, kind)| storage(kind)).find(|(_, storage)| *storage == own) {
        None => Ok(()),
        Some((other, _)) => Err(Error::unsupported(format!(
            "the program writes to `{}`, which shares its storage with `{}`",
            escape_truncated(&name),
            escape_truncated(&other)
        ))
        .with_hint("clone one of them before the export: `tensor.clone()`")),
    }
}

/// The functional graph, and the new values of mutated inputs by index.
fn graph(graph: Graph, schemas: &mut Schemas) -> Result<(Graph, Vec<(usize, ValueId)>), Error> {
    let Graph { values, inputs, mut outputs, mut nodes, single_return } = graph;
    for node in &mut nodes {
        let name = node.name.clone();
        let keywords = node.keywords.iter_mut().map(|(_, argument)| argument);
        for argument in node.arguments.iter_mut().chain(keywords) {
            if let Argument::Graph(inner) = argument {
                let taken = std::mem::take(&mut inner.graph);
                let (made, written) =
                    self::graph(taken, schemas).map_err(|error| error.in_node(&name))?;
                if let Some((input, _)) = written.first() {
                    return Err(inner_write(&made, *input).in_node(&name));
                }
                inner.graph = made;
            }
        }
    }
    if !nodes.iter().any(|node| writes(node) || goes_by_strides(node)) {
        return Ok((Graph { values, inputs, outputs, nodes, single_return }, Vec::new()));
    }
    let mut state = State {
        editor: Editor::new(schemas, values),
        aliases: Vec::new(),
        versions: Vec::new(),
        by_value: HashMap::new(),
    };
    let mut roots = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        if let Argument::Value(id) = input
            && let Some(alias) = state.root(*id)
        {
            roots.push((index, alias));
        }
    }
    for node in nodes {
        let name = node.name.clone();
        state.node(node).map_err(|error| error.in_node(&name))?;
    }
    let end = Origin::default();
    for output in &mut outputs {
        state.read(output, &end).map_err(|error| error.in_node("outputs"))?;
    }
    let mut written = Vec::new();
    for (index, alias) in roots {
        if state.versions[state.aliases[alias].storage] > 0 {
            written.push((index, state.fresh(alias, &end)?));
        }
    }
    let Editor { values, nodes, .. } = state.editor;
    Ok((Graph { values, inputs, outputs, nodes, single_return }, written))
}

fn inner_write(graph: &Graph, input: usize) -> Error {
    let name = match &graph.inputs[input] {
        Argument::Value(id) => graph.value(*id).name.as_str(),
        _ => "a constant",
    };
    Error::unsupported(format!(
        "a nested graph writes to its input `{}`; branches and bodies may write only to their own values",
        escape_truncated(name)
    ))
    .with_hint("return the new value from the branch or body instead")
}

/// Whether a call mutates an argument.
fn writes(node: &Node) -> bool {
    node.schema.as_ref().is_some_and(|schema| schema.mutates()) || writes_statistics(node)
}

/// Whether a call depends on the memory layout of its argument.
fn goes_by_strides(node: &Node) -> bool {
    node.target.is("aten", "as_strided", "default")
}

/// Normalization in training mode updates running statistics, which its schema does not declare.
fn writes_statistics(node: &Node) -> bool {
    let flag = match &node.target {
        Target::Operator { namespace, name, .. } if namespace == "aten" => match name.as_str() {
            "batch_norm" | "native_batch_norm" | "cudnn_batch_norm" => "training",
            "instance_norm" => "use_input_stats",
            _ => return false,
        },
        _ => return false,
    };
    node.argument(flag) == Some(&Argument::Bool(true))
        && matches!(node.argument("running_mean"), Some(Argument::Value(_)))
}

struct Alias {
    storage: usize,
    /// Source of a view, and the kind of view; `None` for a root.
    source: Option<(usize, View)>,
    value: ValueId,
    version: u32,
    /// Type at tracing time. Its strides determine shared storage.
    meta: TensorMeta,
}

struct State<'a> {
    editor: Editor<'a>,
    aliases: Vec<Alias>,
    /// Number of writes to each storage.
    versions: Vec<u32>,
    by_value: HashMap<ValueId, usize>,
}

impl State<'_> {
    /// Adds a tensor with a storage of its own.
    fn root(&mut self, value: ValueId) -> Option<usize> {
        let Meta::Tensor(meta) = &self.editor.value(value).meta else { return None };
        let meta = meta.clone();
        let storage = self.versions.len();
        self.versions.push(0);
        Some(self.add(Alias { storage, source: None, value, version: 0, meta }))
    }

    fn add(&mut self, alias: Alias) -> usize {
        let index = self.aliases.len();
        self.by_value.insert(alias.value, index);
        self.aliases.push(alias);
        index
    }

    fn view(&mut self, value: ValueId, source: usize, view: View) -> Result<(), Error> {
        let Meta::Tensor(meta) = &self.editor.value(value).meta else { return Ok(()) };
        let meta = meta.clone();
        let storage = self.aliases[source].storage;
        let version = self.versions[storage];
        self.add(Alias { storage, source: Some((source, view)), value, version, meta });
        Ok(())
    }

    /// The root of an alias.
    fn root_of(&self, mut alias: usize) -> usize {
        while let Some((source, _)) = &self.aliases[alias].source {
            alias = *source;
        }
        alias
    }

    /// The current value of an alias.
    fn fresh(&mut self, alias: usize, origin: &Origin) -> Result<ValueId, Error> {
        let version = self.versions[self.aliases[alias].storage];
        let mut stale = Vec::new();
        let mut at = alias;
        while self.aliases[at].version != version {
            stale.push(at);
            match &self.aliases[at].source {
                Some((source, _)) => at = *source,
                // A root is always current.
                None => break,
            }
        }
        for index in stale.into_iter().rev() {
            let Some((source, view)) = self.aliases[index].source.clone() else { continue };
            let source = self.aliases[source].value;
            let old =
                MappedValue { value: self.aliases[index].value, meta: &self.aliases[index].meta };
            let value = view::replay(&view, source, &old, &mut self.editor, origin)?;
            self.aliases[index].value = value;
            self.aliases[index].version = version;
        }
        Ok(self.aliases[alias].value)
    }

    /// Replaces the values in an argument by their current values.
    fn read(&mut self, argument: &mut Argument, origin: &Origin) -> Result<(), Error> {
        argument.try_map_values(&mut |id| {
            Ok(Argument::Value(match self.by_value.get(&id) {
                Some(alias) => self.fresh(*alias, origin)?,
                None => id,
            }))
        })
    }

    /// Sets the value of an alias, and updates its root and the aliases in between.
    fn write(&mut self, alias: usize, value: ValueId, origin: &Origin) -> Result<(), Error> {
        let mut new = vec![(alias, value)];
        let mut at = (alias, value);
        while let Some((source, view)) = self.aliases[at.0].source.clone() {
            let before = if view.covers() {
                self.aliases[source].value
            } else {
                self.fresh(source, origin)?
            };
            let place = MappedValue { value: before, meta: &self.aliases[source].meta };
            let value = view::write(&view, &place, at.1, &mut self.editor, origin)?;
            at = (source, value);
            new.push(at);
        }
        let storage = self.aliases[alias].storage;
        self.versions[storage] += 1;
        for (alias, value) in new {
            self.aliases[alias].value = value;
            self.aliases[alias].version = self.versions[storage];
        }
        Ok(())
    }

    fn node(&mut self, mut node: Node) -> Result<(), Error> {
        let mut sources = Vec::new();
        node.for_each_use(&mut |id| sources.extend(self.by_value.get(&id)));
        if node.schema.as_ref().is_some_and(|schema| schema.mutates()) {
            return self.mutation(node);
        }
        if writes_statistics(&node) {
            let mut targets = Vec::new();
            for statistic in ["running_mean", "running_var"] {
                targets.push(self.target(node.argument(statistic).unwrap_or(&Argument::None))?);
            }
            self.read_all(&mut node)?;
            return self.statistics(&node, targets);
        }
        self.read_all(&mut node)?;
        self.plain(node, &sources)
    }

    fn read_all(&mut self, node: &mut Node) -> Result<(), Error> {
        let Node { arguments, keywords, origin, .. } = node;
        for argument in arguments.iter_mut().chain(keywords.iter_mut().map(|(_, value)| value)) {
            self.read(argument, origin)?;
        }
        Ok(())
    }

    /// Emits a call without writes. `sources` are the aliases among its arguments.
    fn plain(&mut self, mut node: Node, sources: &[usize]) -> Result<(), Error> {
        let metas: Vec<&TensorMeta> =
            sources.iter().map(|alias| &self.aliases[*alias].meta).collect();
        let found = view::views(&node, &metas, &mut self.editor)?;
        if found.iter().any(|found| found.of_storage) {
            let root = self.root_of(sources[0]);
            self.check_strided(root)?;
            let value = self.fresh(root, &node.origin)?;
            node.arguments[0] = Argument::Value(value);
            if let [ViewResult { view: View::Strided([_, _, offset]), .. }] = found.as_slice()
                && let Some(argument) = node.arguments.get_mut(3)
            {
                *argument = offset.clone();
            }
        }
        let results: Vec<ValueId> = node.defined().collect();
        self.editor.nodes.push(node);
        let mut views: HashMap<ValueId, ViewResult> =
            found.into_iter().map(|found| (found.result, found)).collect();
        for result in results {
            match views.remove(&result) {
                Some(ViewResult { source, view, of_storage, .. }) if source < sources.len() => {
                    let source =
                        if of_storage { self.root_of(sources[0]) } else { sources[source] };
                    self.view(result, source, view)?;
                }
                _ => drop(self.root(result)),
            }
        }
        Ok(())
    }

    /// Checks that a storage is contiguous at its root, as strides refer to the storage.
    fn check_strided(&self, root: usize) -> Result<(), Error> {
        if is_contiguous(&self.aliases[root].meta) {
            return Ok(());
        }
        Err(Error::unsupported("`as_strided` uses the storage of a tensor that is not contiguous")
            .with_hint("call `contiguous()` before it, or index instead"))
    }

    /// The alias of a call's argument.
    fn target(&self, argument: &Argument) -> Result<usize, Error> {
        match argument {
            Argument::Value(id) => self.by_value.get(id).copied(),
            _ => None,
        }
        .ok_or_else(|| {
            Error::malformed("the written tensor is not an input or the result of an earlier node")
        })
    }

    fn mutation(&mut self, mut node: Node) -> Result<(), Error> {
        let Some(schema) = node.schema.clone() else { return Ok(()) };
        let mut targets = Vec::new();
        for (parameter, argument) in schema.arguments.iter().zip(&node.arguments) {
            match argument {
                Argument::None => {}
                Argument::List(_) if parameter.mutated => {
                    return Err(Error::unsupported(format!(
                        "`{}` writes to a list of tensors; only writes to single tensors are supported",
                        node.target
                    )));
                }
                argument if parameter.mutated => targets.push(self.target(argument)?),
                _ => {}
            }
        }
        // The call returns the tensors that it mutates.
        let mut returned = Vec::new();
        for (index, _) in schema.returns.iter().enumerate().filter(|(_, result)| result.mutated) {
            returned.push(match node.outputs.get(index) {
                Some(Output::Value(id)) => Some(*id),
                _ => None,
            });
        }
        returned.resize(targets.len(), None);
        let Target::Operator { namespace, name, .. } = &node.target else { return Ok(()) };
        if namespace == "aten"
            && let Some(plain) = view_in_place(name)
        {
            let target = targets.first().copied().ok_or_else(|| {
                Error::malformed(format!("`{}` has no tensor to write to", node.target))
            })?;
            return self.view_in_place(node, plain, target);
        }
        let name = name.clone();
        let origin = node.origin.clone();
        self.read_all(&mut node)?;
        let first = targets.first().copied();
        match (name.as_str(), first) {
            ("copy_", Some(target)) => {
                let source = node.arguments.get(1).cloned().unwrap_or(Argument::None);
                let value = match source {
                    Argument::Value(id) if self.is_tensor(id) => {
                        self.converted(id, target, &origin)?
                    }
                    number => self.filled(number, target, &origin)?,
                };
                self.write(target, value, &origin)?;
            }
            ("fill_" | "zero_" | "_no_grad_fill_" | "_no_grad_zero_", Some(target)) => {
                let number = node.arguments.get(1).cloned().unwrap_or(Argument::Int(0));
                let value = match number {
                    Argument::Value(id) if self.is_tensor(id) => {
                        self.converted(id, target, &origin)?
                    }
                    number => self.filled(number, target, &origin)?,
                };
                self.write(target, value, &origin)?;
            }
            ("fill_diagonal_", Some(target)) => self.fill_diagonal(&node, target)?,
            ("_native_batch_norm_legit" | "_batch_norm_with_update", _) => {
                return self.statistics(&node, targets);
            }
            ("set_" | "set_data" | "resize_as_" | "shallow_copy_data_", _) => {
                return Err(Error::unsupported(format!(
                    "`{}` replaces the storage of a tensor, which is not supported",
                    node.target
                ))
                .with_hint("use the new tensor instead of the old one"));
            }
            _ => self.functional(&node, &targets, &returned)?,
        }
        for (target, result) in targets.into_iter().zip(returned) {
            if let Some(id) = result {
                self.by_value.insert(id, target);
            }
        }
        Ok(())
    }

    /// `squeeze_` and similar operators change the tensor, not its storage.
    fn view_in_place(&mut self, mut node: Node, name: &str, target: usize) -> Result<(), Error> {
        if name == "detach" || name == "requires_grad" {
            if let Some(Output::Value(id)) = node.outputs.first() {
                self.by_value.insert(*id, target);
            }
            return Ok(());
        }
        let Target::Operator { overload, .. } = &node.target else { return Ok(()) };
        let overload = if name == "transpose" { "int".to_owned() } else { overload.clone() };
        let name = if name == "resize" { "view" } else { name };
        let Some(Output::Value(result)) = node.outputs.first().cloned() else {
            // The tensor changes in Python, but it has no later reads.
            return Ok(());
        };
        if name == "view" {
            let elements = |meta: &Meta| match meta {
                Meta::Tensor(meta) => meta
                    .sizes
                    .iter()
                    .try_fold(1i64, |product, size| product.checked_mul(size.fixed()?)),
                _ => None,
            };
            let before = elements(&Meta::Tensor(self.aliases[target].meta.clone()));
            if before.is_none() || before != elements(&self.editor.value(result).meta) {
                return Err(Error::unsupported(
                    "`resize_` changes the number of elements of the tensor, which is not supported",
                ));
            }
            node.arguments.truncate(2);
        }
        let schema = self.editor.schemas.find("aten", name, &overload)?.ok_or_else(|| {
            Error::unsupported(format!("`aten.{name}.{overload}` is not a known operator"))
        })?;
        node.schema = Some(schema);
        node.target =
            Target::Operator { namespace: "aten".to_owned(), name: name.to_owned(), overload };
        self.node(node)
    }

    fn is_tensor(&self, id: ValueId) -> bool {
        matches!(self.editor.value(id).meta, Meta::Tensor(_))
    }

    fn name_of(&self, alias: usize) -> String {
        self.editor.value(self.aliases[alias].value).name.clone()
    }

    /// Converts a tensor to the type and shape of the write's target.
    fn converted(
        &mut self,
        value: ValueId,
        target: usize,
        origin: &Origin,
    ) -> Result<ValueId, Error> {
        let wanted = self.aliases[target].meta.clone();
        let name = self.name_of(target);
        let Meta::Tensor(found) = self.editor.value(value).meta.clone() else { return Ok(value) };
        let mut value = value;
        if found.dtype != wanted.dtype {
            let meta = Meta::Tensor(contiguous(&wanted, wanted.dtype, found.sizes.clone()));
            let given = vec![Argument::Value(value), Argument::ScalarType(wanted.dtype)];
            value = self.editor.call(("to", "dtype"), given, &name, meta, origin)?;
        }
        if !same_sizes(&found.sizes, &wanted.sizes) {
            let like = self.aliases[target].value;
            let sizes = size_arguments(&wanted.sizes, like, &mut self.editor, origin)?;
            let meta = Meta::Tensor(contiguous(&wanted, wanted.dtype, wanted.sizes.clone()));
            let given = vec![Argument::Value(value), sizes];
            value = self.editor.call(("expand", "default"), given, &name, meta, origin)?;
        }
        Ok(value)
    }

    /// Converts a number to the type and shape of the write's target.
    fn filled(
        &mut self,
        number: Argument,
        target: usize,
        origin: &Origin,
    ) -> Result<ValueId, Error> {
        let wanted = self.aliases[target].meta.clone();
        let name = self.name_of(target);
        let like = self.aliases[target].value;
        let meta = Meta::Tensor(contiguous(&wanted, wanted.dtype, wanted.sizes.clone()));
        let result = self.editor.define(&name, meta)?;
        let outputs = vec![Output::Value(result)];
        let dtype = named("dtype", Argument::ScalarType(wanted.dtype));
        let number = positional(number);
        if wanted.sizes.iter().all(|size| size.fixed().is_some()) {
            // The overwritten tensor need not be computed.
            let sizes = size_arguments(&wanted.sizes, like, &mut self.editor, origin)?;
            let device = named("device", Argument::Device(wanted.device));
            let given = vec![positional(sizes), number, dtype, device];
            self.editor.call_into(("full", "default"), given, outputs, origin)?;
        } else {
            let given = vec![positional(Argument::Value(like)), number, dtype];
            self.editor.call_into(("full_like", "default"), given, outputs, origin)?;
        }
        Ok(result)
    }

    /// `fill_diagonal_` of a matrix. Higher ranks and wrapping are not supported.
    fn fill_diagonal(&mut self, node: &Node, target: usize) -> Result<(), Error> {
        let meta = self.aliases[target].meta.clone();
        let wrapped = node.argument("wrap") == Some(&Argument::Bool(true));
        if meta.sizes.len() != 2 || wrapped {
            return Err(Error::unsupported(
                "`fill_diagonal_` is supported only for matrices and without `wrap`",
            ));
        }
        let (Some(rows), Some(columns)) = (meta.sizes[0].fixed(), meta.sizes[1].fixed()) else {
            return Err(Error::unsupported("`fill_diagonal_` writes to a matrix of unknown size"));
        };
        let length = coremill_pt2::Size::Fixed(rows.min(columns));
        let number = node.arguments.get(1).cloned().unwrap_or(Argument::None);
        let diagonal = Meta::Tensor(contiguous(&meta, meta.dtype, vec![length]));
        let sizes = Argument::List(vec![Argument::Int(rows.min(columns))]);
        let filled = self.editor.define("diagonal", diagonal)?;
        let given = vec![
            positional(sizes),
            positional(number),
            named("dtype", Argument::ScalarType(meta.dtype)),
            named("device", Argument::Device(meta.device.clone())),
        ];
        let outputs = vec![Output::Value(filled)];
        self.editor.call_into(("full", "default"), given, outputs, &node.origin)?;
        let before = self.fresh(target, &node.origin)?;
        let place = MappedValue { value: before, meta: &meta };
        let view = View::Diagonal([Argument::Int(0), Argument::Int(0), Argument::Int(1)]);
        let value = view::write(&view, &place, filled, &mut self.editor, &node.origin)?;
        self.write(target, value, &node.origin)
    }

    /// Rewrites any other mutating operator to its functional form.
    fn functional(
        &mut self,
        node: &Node,
        targets: &[usize],
        returned: &[Option<ValueId>],
    ) -> Result<(), Error> {
        let form = functional::functional(node, self.editor.schemas)?;
        let mut outputs = Vec::with_capacity(targets.len());
        let mut written = Vec::with_capacity(targets.len());
        for (target, result) in targets.iter().zip(returned) {
            let mut wanted = self.aliases[*target].meta.clone();
            // An `out` tensor of another shape takes the shape of the result.
            if let Some(result) = result
                && let Meta::Tensor(meta) = &self.editor.value(*result).meta
                && !same_sizes(&meta.sizes, &wanted.sizes)
            {
                if self.aliases[*target].source.is_some() {
                    return Err(Error::unsupported(
                        "`out` is a view and must have the sizes of the result",
                    ));
                }
                wanted = meta.clone();
                self.aliases[*target].meta = wanted.clone();
            }
            let dtype = functional::result_type(&form, wanted.dtype, &self.editor);
            let meta = Meta::Tensor(contiguous(&wanted, dtype, wanted.sizes.clone()));
            let stored = Meta::Tensor(contiguous(&wanted, wanted.dtype, wanted.sizes.clone()));
            let id = match result {
                Some(id) if dtype == wanted.dtype => {
                    self.editor.values[id.index()].meta = stored;
                    *id
                }
                _ => self.editor.define(&node.name, meta)?,
            };
            outputs.push(Output::Value(id));
            written.push((id, dtype, wanted));
        }
        let Functional { name, overload, mut given } = form;
        let takes_type = self.editor.schemas.find("aten", &name, overload)?.is_some_and(|schema| {
            schema.arguments.iter().any(|parameter| parameter.name == "dtype")
        });
        if takes_type
            && !given.iter().any(|given| given.name == "dtype")
            && let Some((_, dtype, _)) = written.first()
        {
            // The result type of a factory does not depend on `out`.
            given.push(named("dtype", Argument::ScalarType(*dtype)));
        }
        self.editor.call_into((&name, overload), given, outputs, &node.origin)?;
        for (target, (id, dtype, wanted)) in targets.iter().zip(written) {
            let value =
                if dtype == wanted.dtype { id } else { self.converted(id, *target, &node.origin)? };
            self.write(*target, value, &node.origin)?;
        }
        Ok(())
    }

    /// Normalization that updates running statistics.
    fn statistics(&mut self, node: &Node, targets: Vec<usize>) -> Result<(), Error> {
        let Target::Operator { name, .. } = &node.target else { return Ok(()) };
        if name == "instance_norm" || name == "cudnn_batch_norm" {
            return Err(Error::unsupported(format!(
                "`{}` updates its running statistics, which is supported only for `batch_norm`",
                node.target
            ))
            .with_hint("export the model after `model.eval()`"));
        }
        let several = name != "batch_norm";
        let origin = node.origin.clone();
        let mut given = Vec::new();
        for parameter in [
            "input",
            "weight",
            "bias",
            "running_mean",
            "running_var",
            "training",
            "momentum",
            "eps",
        ] {
            let value = node.argument(parameter).cloned().unwrap_or(Argument::Bool(true));
            given.push(named(parameter, value));
        }
        let mut outputs: Vec<Output> =
            node.outputs.iter().take(if several { 3 } else { 1 }).cloned().collect();
        outputs.resize(3, Output::Unused);
        let mut written = Vec::new();
        for target in &targets {
            let meta = self.aliases[*target].meta.clone();
            let meta = Meta::Tensor(contiguous(&meta, meta.dtype, meta.sizes.clone()));
            let name = self.name_of(*target);
            let id = self.editor.define(&name, meta)?;
            outputs.push(Output::Value(id));
            written.push(id);
        }
        let operator = ("_native_batch_norm_legit_functional", "default");
        let results: Vec<ValueId> =
            outputs.iter().take(3).flat_map(Output::results).flatten().collect();
        self.editor.call_into(operator, given, outputs, &origin)?;
        for result in results {
            self.root(result);
        }
        for (target, value) in targets.into_iter().zip(written) {
            self.write(target, value, &origin)?;
        }
        Ok(())
    }
}

/// The view of an operator that changes a tensor's shape in place.
fn view_in_place(name: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 11] = [
        ("as_strided_", "as_strided"),
        ("detach_", "detach"),
        ("requires_grad_", "requires_grad"),
        ("resize_", "resize"),
        ("squeeze_", "squeeze"),
        ("swapaxes_", "swapaxes"),
        ("swapdims_", "swapdims"),
        ("t_", "t"),
        ("transpose_", "transpose"),
        ("unsqueeze_", "unsqueeze"),
        ("retain_grad", "detach"),
    ];
    NAMES.iter().find(|(in_place, _)| *in_place == name).map(|(_, plain)| *plain)
}
