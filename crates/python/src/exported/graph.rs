//! Conversion of fx nodes to the form of torch's serializer.

use std::collections::BTreeMap;

use coremill_pt2::wire::{
    Argument, Complex, CustomObject, Float, Graph, GraphArgument, KEYWORD, NamedArgument,
    NamedTarget, Node, OptionalTensorArgument, SymBoolArgument, SymFloatArgument, SymIntArgument,
};
use foldhash::{HashMap, HashMapExt};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::items;
use super::meta::{Types, device, whole};
use super::places::SourceLocations;
use super::torch::Torch;
use crate::error;

/// Maximum nesting of graphs, the same as for archives.
const MAX_DEPTH: usize = 64;

/// Serializes the graphs of one program.
pub(super) struct Serializer<'t, 'py> {
    torch: &'t Torch<'py>,
    types: Types<'t, 'py>,
    places: SourceLocations<'py>,
    /// Properties of call targets by address. Targets stay alive: torch owns the operators, and the
    /// graph owns the others.
    targets: HashMap<usize, Target>,
    depth: usize,
    /// Whether the program may contain delegate calls, which are kept.
    has_delegates: bool,
}

#[derive(Clone)]
struct Target {
    name: String,
    kind: TargetKind,
}

#[derive(Clone, Copy, PartialEq)]
enum TargetKind {
    /// An operator with this number of results.
    Operator(usize),
    HigherOrder,
    Function,
    GetItem,
}

/// A graph under construction.
struct State {
    graph: Graph,
    /// Maps repeated `getitem` nodes to the first one, by name.
    duplicates: HashMap<String, String>,
}

impl<'t, 'py> Serializer<'t, 'py> {
    pub(super) fn new(torch: &'t Torch<'py>, has_delegates: bool) -> Serializer<'t, 'py> {
        let (types, targets) = (Types::new(torch), HashMap::new());
        Serializer {
            torch,
            types,
            places: SourceLocations::default(),
            targets,
            depth: 0,
            has_delegates,
        }
    }

    /// Serializes the graph of a graph module.
    pub(super) fn graph(&mut self, module: &Bound<'py, PyAny>) -> PyResult<Graph> {
        if self.depth >= MAX_DEPTH {
            let message =
                format!("graphs are nested too deeply; the maximum is {MAX_DEPTH} levels");
            return Err(error::unsupported(module.py(), message));
        }
        self.depth += 1;
        let graph = Graph {
            inputs: Vec::new(),
            outputs: Vec::new(),
            nodes: Vec::new(),
            tensor_values: HashMap::new(),
            sym_int_values: HashMap::new(),
            sym_float_values: HashMap::new(),
            sym_bool_values: HashMap::new(),
            custom_obj_values: HashMap::new(),
            is_single_tensor_return: false,
        };
        let mut state = State { graph, duplicates: HashMap::new() };
        for node in module.getattr(intern!(module.py(), "graph"))?.getattr("nodes")?.try_iter()? {
            let node = node?;
            self.node(&node, module, &mut state).map_err(|failure| {
                let name = node
                    .getattr(intern!(node.py(), "name"))
                    .and_then(|name| name.extract::<String>());
                error::in_node(node.py(), failure, &name.unwrap_or_default())
            })?;
        }
        self.depth -= 1;
        Ok(state.graph)
    }

    fn node(
        &mut self,
        node: &Bound<'py, PyAny>,
        module: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<()> {
        let op = node.getattr(intern!(node.py(), "op"))?;
        match op.cast::<PyString>()?.to_cow()?.as_ref() {
            "placeholder" => self.placeholder(node, state),
            "call_function" => self.call(node, module, state),
            "output" => self.output(node, module, state),
            "get_attr" => self.constant(node, module, state),
            other => Err(error::unsupported(
                node.py(),
                format!("nodes of kind `{other}` are not supported; exported programs have none"),
            )),
        }
    }

    /// A tensor attribute of a subgraph, in which ExecuTorch stores constants of branches and
    /// loops. Archives do not support these, so it becomes a call that creates the tensor.
    fn constant(
        &mut self,
        node: &Bound<'py, PyAny>,
        module: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<()> {
        let tensor = attribute_of(node, Some(module))?;
        if !self.torch.is_tensor(&tensor)? {
            return Ok(());
        }
        let name: String = node.getattr(intern!(node.py(), "name"))?.extract()?;
        let refuse = |what: &str| {
            let message = format!("the constant `{name}` of a nested graph {what}");
            error::unsupported(node.py(), message)
        };
        if tensor.getattr_opt(intern!(tensor.py(), "fake_mode"))?.is_some() {
            return Err(refuse("has no value"));
        }
        let values =
            tensor.call_method0(intern!(tensor.py(), "detach"))?.call_method0("flatten")?;
        let count: usize = values.call_method0(intern!(values.py(), "numel"))?.extract()?;
        if count == 0 {
            return Err(refuse("is empty"));
        }
        let value = values.get_item(0)?;
        if !values
            .call_method1(intern!(values.py(), "eq"), (&value,))?
            .call_method0("all")?
            .is_truthy()?
        {
            return Err(refuse("has elements that differ; make it a buffer of the module"));
        }
        let size: Vec<i64> = tensor.getattr(intern!(tensor.py(), "shape"))?.extract()?;
        let dtype = self.argument(&tensor.getattr(intern!(tensor.py(), "dtype"))?, None, state)?;
        let fill = self.argument(&value.call_method0(intern!(value.py(), "item"))?, None, state)?;
        let given = |name: &str, arg: Argument, kind: i64| NamedArgument {
            name: name.to_owned(),
            arg,
            kind: Some(kind),
        };
        let inputs = vec![
            given("", Argument::AsInts(size), KEYWORD - 1),
            given("", fill, KEYWORD - 1),
            given("dtype", dtype, KEYWORD),
        ];
        let output = Argument::AsTensor(self.define_tensor(name.clone(), &tensor, state)?);
        state.graph.nodes.push(Node {
            target: "torch.ops.aten.full.default".to_owned(),
            inputs,
            outputs: vec![output],
            metadata: self.places.metadata(&meta_of(node)?)?,
            is_hop_single_tensor_return: None,
            name: Some(name),
        });
        Ok(())
    }

    fn placeholder(&mut self, node: &Bound<'py, PyAny>, state: &mut State) -> PyResult<()> {
        let name: String = node.getattr(intern!(node.py(), "name"))?.extract()?;
        let value = value_of(&meta_of(node)?)?.ok_or_else(|| {
            error::unsupported(node.py(), "the input has no type (`meta[\"val\"]`)".to_owned())
        })?;
        let is_constant = value.is_none()
            || value.is_exact_instance_of::<PyInt>()
            || value.is_exact_instance_of::<PyBool>()
            || value.is_exact_instance_of::<PyFloat>()
            || value.is_exact_instance_of::<PyString>();
        let input = match is_constant {
            true => self.argument(&value, None, state)?,
            false => self.define(name, &value, state)?,
        };
        state.graph.inputs.push(input);
        Ok(())
    }

    fn output(
        &mut self,
        node: &Bound<'py, PyAny>,
        module: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<()> {
        let given = node.getattr(intern!(node.py(), "args"))?.get_item(0)?;
        if self.torch.is_node(&given)? {
            state.graph.is_single_tensor_return = true;
            let output = self.argument(&given, Some(module), state)?;
            state.graph.outputs.push(output);
            return Ok(());
        }
        for item in items(&given)? {
            let output = self.argument(&item, Some(module), state)?;
            state.graph.outputs.push(output);
        }
        Ok(())
    }

    fn call(
        &mut self,
        node: &Bound<'py, PyAny>,
        module: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<()> {
        let object = node.getattr(intern!(node.py(), "target"))?;
        let target = self.target(&object)?;
        if target.kind == TargetKind::GetItem {
            return Ok(());
        }
        let name: String = node.getattr(intern!(node.py(), "name"))?.extract()?;
        let meta = meta_of(node)?;
        let value = value_of(&meta)?;
        let mut inputs = Vec::new();
        for argument in items(&node.getattr(intern!(node.py(), "args"))?)? {
            let arg = self.argument(&argument, Some(module), state)?;
            inputs.push(NamedArgument { name: String::new(), arg, kind: Some(KEYWORD - 1) });
        }
        for (key, argument) in node.getattr(intern!(node.py(), "kwargs"))?.cast::<PyDict>()?.iter()
        {
            let arg = self.argument(&argument, Some(module), state)?;
            inputs.push(NamedArgument { name: key.extract()?, arg, kind: Some(KEYWORD) });
        }
        let outputs = self.results(node, &name, target.kind, value.as_ref(), state)?;
        let single = match (&target.kind, &value) {
            (TargetKind::HigherOrder, Some(value)) => Some(self.torch.is_tensor(value)?),
            (TargetKind::HigherOrder, None) => Some(false),
            _ => None,
        };
        state.graph.nodes.push(Node {
            target: target.name,
            inputs,
            outputs,
            metadata: self.places.metadata(&meta)?,
            is_hop_single_tensor_return: single,
            name: Some(name),
        });
        Ok(())
    }

    fn target(&mut self, object: &Bound<'py, PyAny>) -> PyResult<Target> {
        if let Some(known) = self.targets.get(&object.as_ptr().addr()) {
            return Ok(known.clone());
        }
        let target = if object.is(&self.torch.getitem) {
            Target { name: String::new(), kind: TargetKind::GetItem }
        } else if let Some(schema) = object.getattr_opt(intern!(object.py(), "_schema"))?
            && !object.is_instance(&self.torch.higher_order)?
        {
            // Operators of torch, and of ExecuTorch's edge dialect.
            let name: String = schema.getattr(intern!(schema.py(), "name"))?.extract()?;
            let overload: String =
                schema.getattr(intern!(schema.py(), "overload_name"))?.extract()?;
            let overload = if overload.is_empty() { "default" } else { &overload };
            let results = schema.getattr(intern!(schema.py(), "returns"))?.len()?;
            Target {
                name: format!("torch.ops.{}.{overload}", name.replace("::", ".")),
                kind: TargetKind::Operator(results),
            }
        } else if object.is_instance(&self.torch.higher_order)? {
            let name: String = object.getattr(intern!(object.py(), "__name__"))?.extract()?;
            Target { name: format!("torch.ops.higher_order.{name}"), kind: TargetKind::HigherOrder }
        } else {
            let module: String = object.getattr(intern!(object.py(), "__module__"))?.extract()?;
            let name: String = object.getattr(intern!(object.py(), "__name__"))?.extract()?;
            let name = match module.strip_prefix("torch._ops") {
                Some(rest) => format!("torch.ops{rest}.{name}"),
                None => format!("{module}.{name}"),
            };
            Target { name, kind: TargetKind::Function }
        };
        self.targets.insert(object.as_ptr().addr(), target.clone());
        Ok(target)
    }

    fn results(
        &mut self,
        node: &Bound<'py, PyAny>,
        name: &str,
        kind: TargetKind,
        value: Option<&Bound<'py, PyAny>>,
        state: &mut State,
    ) -> PyResult<Vec<Argument>> {
        if kind == TargetKind::Operator(0) {
            return Ok(Vec::new());
        }
        let Some(value) = value else { return Ok(vec![Argument::NONE]) };
        let is_list = value.is_instance_of::<PyList>();
        let is_several = value.is_instance_of::<PyTuple>() || is_list;
        if !is_several {
            return Ok(vec![self.define(name.to_owned(), value, state)?]);
        }
        let users = self.taken(node, state)?;
        // An operator with one list result, or a higher-order operator with a tuple of results.
        if kind == TargetKind::Operator(1) || is_list {
            let mut tensors = Vec::new();
            for (index, item) in items(value)?.iter().enumerate() {
                let taken = users.get(&index).map(|(_, name)| name.clone());
                let named = taken.unwrap_or_else(|| format!("{name}_unused_{index}"));
                tensors.push(self.define_tensor(named, item, state)?);
            }
            return Ok(vec![Argument::AsTensors(tensors)]);
        }
        let mut results = Vec::new();
        for (index, item) in items(value)?.iter().enumerate() {
            let user = users.get(&index);
            if item.is_instance_of::<PyList>() {
                let inner = match user {
                    Some((user, _)) => self.taken(user, state)?,
                    None => HashMap::new(),
                };
                let mut tensors = Vec::new();
                for (at, item) in items(item)?.iter().enumerate() {
                    if item.is_none() {
                        continue;
                    }
                    let named = match (inner.get(&at), user) {
                        (Some((_, named)), _) => named.clone(),
                        (None, Some((_, user))) => format!("{user}_unused_{at}"),
                        (None, None) => format!("{name}_unused_{index}_{at}"),
                    };
                    tensors.push(self.define_tensor(named, item, state)?);
                }
                results.push(Argument::AsTensors(tensors));
                continue;
            }
            let named = match user {
                Some((_, named)) => named.clone(),
                None => format!("{name}_unused_{index}"),
            };
            results.push(match item.is_none() {
                true => Argument::NONE,
                false => self.define(named, item, state)?,
            });
        }
        Ok(results)
    }

    /// The first user of each item of a result. The item gets its name.
    fn taken(
        &mut self,
        node: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<HashMap<usize, (Bound<'py, PyAny>, String)>> {
        let mut taken: HashMap<usize, (Bound<'py, PyAny>, String)> = HashMap::new();
        for user in node.getattr(intern!(node.py(), "users"))?.try_iter()? {
            let user = user?;
            let name: String = user.getattr(intern!(user.py(), "name"))?.extract()?;
            if !user.getattr(intern!(user.py(), "target"))?.is(&self.torch.getitem) {
                let message = format!("`{name}` uses a tuple of results, which is not supported");
                return Err(error::unsupported(node.py(), message));
            }
            let index: usize = user.getattr(intern!(user.py(), "args"))?.get_item(1)?.extract()?;
            match taken.get(&index) {
                Some((_, first)) => drop(state.duplicates.insert(name, first.clone())),
                None => drop(taken.insert(index, (user, name))),
            }
        }
        Ok(taken)
    }

    fn define_tensor(
        &mut self,
        name: String,
        value: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<NamedTarget> {
        if !self.torch.is_tensor(value)? {
            let message =
                format!("expected a list of tensors, found an item of type `{}`", class_of(value));
            return Err(error::unsupported(value.py(), message));
        }
        let meta = self.types.tensor(value)?;
        state.graph.tensor_values.insert(name.clone(), meta);
        Ok(NamedTarget { name })
    }

    /// A value that an input or a call defines.
    fn define(
        &mut self,
        name: String,
        value: &Bound<'py, PyAny>,
        state: &mut State,
    ) -> PyResult<Argument> {
        let [int, float, bool] = &self.torch.symbolic;
        if value.is_none() {
            return Ok(Argument::NONE);
        }
        if self.torch.is_tensor(value)? {
            return Ok(Argument::AsTensor(self.define_tensor(name, value, state)?));
        }
        if value.is_instance(bool)? || value.is_exact_instance_of::<PyBool>() {
            let value = self.types.bool(value)?;
            state.graph.sym_bool_values.insert(name.clone(), value);
            return Ok(Argument::AsSymBool(SymBoolArgument::AsName(name)));
        }
        if value.is_instance(int)? || value.is_instance_of::<PyInt>() {
            let value = self.types.int(value)?;
            state.graph.sym_int_values.insert(name.clone(), value);
            return Ok(Argument::AsSymInt(SymIntArgument::AsName(name)));
        }
        if value.is_instance(float)? || value.is_instance_of::<PyFloat>() {
            let value = self.types.float(value)?;
            state.graph.sym_float_values.insert(name.clone(), value);
            return Ok(Argument::AsSymFloat(SymFloatArgument::AsName(name)));
        }
        if value.is_instance(&self.torch.custom_object)? {
            let class_fqn: String = value.getattr(intern!(value.py(), "class_fqn"))?.extract()?;
            let object = CustomObject { name: name.clone(), class_fqn: class_fqn.clone() };
            state.graph.custom_obj_values.insert(name.clone(), object);
            return Ok(Argument::AsCustomObj(CustomObject { name, class_fqn }));
        }
        let message = format!("a value of type `{}` is not supported", class_of(value));
        Err(error::unsupported(value.py(), message))
    }

    /// The name of a node's value.
    fn name(&self, node: &Bound<'py, PyAny>, state: &State) -> PyResult<NamedTarget> {
        let name: String = node.getattr(intern!(node.py(), "name"))?.extract()?;
        Ok(NamedTarget { name: state.duplicates.get(&name).cloned().unwrap_or(name) })
    }

    /// A value or a constant as an argument. The name does not determine the kind of value.
    fn argument(
        &mut self,
        value: &Bound<'py, PyAny>,
        module: Option<&Bound<'py, PyAny>>,
        state: &State,
    ) -> PyResult<Argument> {
        if self.torch.is_node(value)? {
            if value.getattr(intern!(value.py(), "op"))?.cast::<PyString>()?.to_cow()? == "get_attr"
            {
                return self.attribute(value, module, state);
            }
            return Ok(Argument::AsTensor(self.name(value, state)?));
        }
        if value.is_none() {
            return Ok(Argument::NONE);
        }
        if let Ok(truth) = value.cast_exact::<PyBool>() {
            return Ok(Argument::AsBool(truth.is_true()));
        }
        if let Ok(number) = value.cast::<PyInt>() {
            return Ok(Argument::AsInt(whole(number)?));
        }
        if let Ok(number) = value.cast::<PyFloat>() {
            return Ok(Argument::AsFloat(Float(number.value())));
        }
        if let Ok(text) = value.cast::<PyString>() {
            return Ok(Argument::AsString(text.to_cow()?.into_owned()));
        }
        if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            return self.list(&items(value)?, module, state);
        }
        if let Some((_, number)) = self.torch.dtype(value) {
            return Ok(Argument::AsScalarType(number));
        }
        if let Some(number) = self.torch.format(value) {
            return Ok(Argument::AsMemoryFormat(number));
        }
        if let Some(number) = self.torch.layout(value) {
            return Ok(Argument::AsLayout(number));
        }
        if value.is_instance(&self.torch.device)? {
            return Ok(Argument::AsDevice(device(value)?));
        }
        if let Ok(number) = value.cast::<PyComplex>() {
            let (real, imag) = (
                value.getattr(intern!(value.py(), "real"))?.extract()?,
                value.getattr(intern!(value.py(), "imag"))?.extract()?,
            );
            let _ = number;
            return Ok(Argument::AsComplex(Complex { real: Float(real), imag: Float(imag) }));
        }
        if let Ok(dict) = value.cast::<PyDict>() {
            let mut arguments = BTreeMap::new();
            for (key, item) in dict.iter() {
                arguments.insert(key.extract()?, self.argument(&item, module, state)?);
            }
            return Ok(Argument::AsStringToArgument(arguments));
        }
        if value.is_instance(&self.torch.operator)?
            || value.is_instance(&self.torch.higher_order)?
        {
            return Ok(Argument::AsOperator(self.target(value)?.name));
        }
        let message = format!("an argument of type `{}` is not supported", class_of(value));
        Err(error::unsupported(value.py(), message))
    }

    fn attribute(
        &mut self,
        node: &Bound<'py, PyAny>,
        module: Option<&Bound<'py, PyAny>>,
        state: &State,
    ) -> PyResult<Argument> {
        let name: String = node.getattr(intern!(node.py(), "target"))?.extract()?;
        let attribute = attribute_of(node, module)?;
        if self.torch.is_tensor(&attribute)? {
            return Ok(Argument::AsTensor(self.name(node, state)?));
        }
        if attribute.is_instance(&self.torch.graph_module)? {
            let graph = self.graph(&attribute)?;
            return Ok(Argument::AsGraph(Box::new(GraphArgument { name, graph })));
        }
        let class = class_of(&attribute);
        if class == "LoweredBackendModule" {
            if self.has_delegates {
                return Ok(Argument::AsString(name));
            }
            return Err(error::new(
                node.py(),
                "the program already calls a delegate".to_owned(),
                Some("pass the program that `to_backend` received".to_owned()),
            ));
        }
        let message =
            format!("the attribute `{name}` has type `{class}`; expected a tensor or a graph");
        Err(error::unsupported(node.py(), message))
    }

    fn list(
        &mut self,
        list: &[Bound<'py, PyAny>],
        module: Option<&Bound<'py, PyAny>>,
        state: &State,
    ) -> PyResult<Argument> {
        let Some(first) = list.first() else { return Ok(Argument::AsTensors(Vec::new())) };
        let mut all = Vec::with_capacity(list.len());
        for item in list {
            all.push(self.argument(item, module, state)?);
        }
        let mixed = || {
            let message = format!(
                "a list with items of type `{}` and of other types is not supported",
                class_of(first)
            );
            error::unsupported(first.py(), message)
        };
        let is = |test: &dyn Fn(&Argument) -> bool| all.iter().all(test);
        use Argument as A;
        Ok(if is(&|one| matches!(one, A::AsInt(_))) {
            A::AsInts(each(all, |one| if let A::AsInt(value) = one { Some(value) } else { None }))
        } else if is(&|one| matches!(one, A::AsTensor(_))) {
            A::AsTensors(each(
                all,
                |one| if let A::AsTensor(name) = one { Some(name) } else { None },
            ))
        } else if is(&|one| matches!(one, A::AsInt(_) | A::AsTensor(_))) {
            A::AsSymInts(each(all, |one| match one {
                A::AsInt(value) => Some(SymIntArgument::AsInt(value)),
                A::AsTensor(NamedTarget { name }) => Some(SymIntArgument::AsName(name)),
                _ => None,
            }))
        } else if is(&|one| matches!(one, A::AsNone(_) | A::AsTensor(_))) {
            A::AsOptionalTensors(each(all, |one| match one {
                A::AsNone(_) => Some(OptionalTensorArgument::NONE),
                A::AsTensor(name) => Some(OptionalTensorArgument::AsTensor(name)),
                _ => None,
            }))
        } else if is(&|one| matches!(one, A::AsBool(_))) {
            A::AsBools(each(all, |one| if let A::AsBool(value) = one { Some(value) } else { None }))
        } else if is(&|one| matches!(one, A::AsBool(_) | A::AsTensor(_))) {
            A::AsSymBools(each(all, |one| match one {
                A::AsBool(value) => Some(SymBoolArgument::AsBool(value)),
                A::AsTensor(NamedTarget { name }) => Some(SymBoolArgument::AsName(name)),
                _ => None,
            }))
        } else if is(&|one| matches!(one, A::AsFloat(_) | A::AsInt(_))) {
            A::AsFloats(each(all, |one| match one {
                A::AsFloat(value) => Some(value),
                A::AsInt(value) => Some(Float(value as f64)),
                _ => None,
            }))
        } else if is(&|one| matches!(one, A::AsFloat(_) | A::AsTensor(_))) {
            A::AsSymFloats(each(all, |one| match one {
                A::AsFloat(value) => Some(SymFloatArgument::AsFloat(value)),
                A::AsTensor(NamedTarget { name }) => Some(SymFloatArgument::AsName(name)),
                _ => None,
            }))
        } else if is(&|one| matches!(one, A::AsString(_))) {
            A::AsStrings(each(
                all,
                |one| if let A::AsString(text) = one { Some(text) } else { None },
            ))
        } else if is(&|one| matches!(one, A::AsInts(_))) {
            A::AsIntLists(each(
                all,
                |one| if let A::AsInts(list) = one { Some(list) } else { None },
            ))
        } else if is(&|one| matches!(one, A::AsFloats(_))) {
            A::AsFloatLists(each(
                all,
                |one| if let A::AsFloats(list) = one { Some(list) } else { None },
            ))
        } else if is(&|one| matches!(one, A::AsTensors(_))) {
            A::AsNestedTensors(each(all, |one| {
                if let A::AsTensors(list) = one { Some(list) } else { None }
            }))
        } else {
            return Err(mixed());
        })
    }
}

/// Converts all arguments. `take` must succeed, as checked before.
fn each<T>(all: Vec<Argument>, take: impl Fn(Argument) -> Option<T>) -> Vec<T> {
    all.into_iter().filter_map(take).collect()
}

/// The attribute of the module that a node refers to.
fn attribute_of<'py>(
    node: &Bound<'py, PyAny>,
    module: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let name: String = node.getattr(intern!(node.py(), "target"))?.extract()?;
    let mut attribute = match module {
        Some(module) => module.clone(),
        None => node.getattr(intern!(node.py(), "graph"))?.getattr("owning_module")?,
    };
    for part in name.split('.') {
        attribute = attribute.getattr(part)?;
    }
    Ok(attribute)
}

/// The metadata of a node.
fn meta_of<'py>(node: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    Ok(node.getattr(intern!(node.py(), "meta"))?.cast_into()?)
}

/// The example value of a node.
fn value_of<'py>(meta: &Bound<'py, PyDict>) -> PyResult<Option<Bound<'py, PyAny>>> {
    meta.get_item(intern!(meta.py(), "val"))
}

fn class_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}
