//! Converts the graph of the JSON to [`Graph`]: names become ids, calls are normalized, and unused calls are
//! removed.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};

use crate::error::{Error, escape_truncated};
use crate::limits::MAX_RANK;
use crate::normalize;
use crate::program::{
    Argument, Device, Graph, Hint, Meta, Node, Origin, Output, Size, Subgraph, Symbolic, Target,
    TensorMeta, Value, ValueId,
};
use crate::scalar::{Layout, MemoryFormat, ScalarType};
use crate::schema::Schemas;
use crate::symbol::{Expression, Symbols};
use crate::wire;

/// Data shared by all graphs of a program while they are read.
pub(crate) struct Context {
    pub(crate) symbols: Symbols,
    pub(crate) schemas: Schemas,
    /// Major version of the archive's schema; it determines the codes of element types.
    pub(crate) major: u64,
    /// Expressions by their text. A program has few different expressions but uses them often.
    expressions: HashMap<String, Arc<Symbolic>>,
    /// Stack traces and module stacks, which most nodes share with others.
    texts: HashSet<Arc<str>>,
    /// Stack trace and module stack of the last node; the next node usually has the same.
    latest: [Option<Arc<str>>; 2],
}

impl Context {
    pub(crate) fn new(major: u64) -> Context {
        Context {
            symbols: Symbols::default(),
            schemas: Schemas::default(),
            major,
            expressions: HashMap::new(),
            texts: HashSet::new(),
            latest: [None, None],
        }
    }

    fn symbolic(&mut self, wire: wire::SymExpr) -> Result<Arc<Symbolic>, Error> {
        let hint = wire.hint.map(|hint| match hint {
            wire::Hint::AsInt(value) => Hint::Int(value),
            wire::Hint::AsFloat(value) => Hint::Float(value.0),
            wire::Hint::AsBool(value) => Hint::Bool(value),
        });
        if let Some(known) = self.expressions.get(&wire.expr_str)
            && known.hint == hint
        {
            return Ok(known.clone());
        }
        let expression = Expression::parse(&wire.expr_str, &mut self.symbols)?;
        if let (Expression::Symbol(id), Some(Hint::Int(value))) = (&expression, hint) {
            self.symbols.get_mut(*id).hint = Some(value);
        }
        let symbolic = Arc::new(Symbolic { expression, hint });
        self.expressions.insert(wire.expr_str, symbolic.clone());
        Ok(symbolic)
    }

    fn size(&mut self, wire: wire::SymInt) -> Result<Size, Error> {
        Ok(match wire {
            wire::SymInt::AsInt(value) => Size::Fixed(value),
            wire::SymInt::AsExpr(expression) => Size::Symbolic(self.symbolic(expression)?),
        })
    }

    pub(crate) fn scalar_type(&self, number: i64) -> Result<ScalarType, Error> {
        ScalarType::from_archive(number, self.major).ok_or_else(|| {
            Error::unsupported(format!(
                "{number} is not a supported element type of schema {}; expected 1 to 13 or 28 to 35, in schema 5 1 to 16",
                self.major
            ))
        })
    }

    pub(crate) fn tensor_meta(&mut self, wire: wire::TensorMeta) -> Result<TensorMeta, Error> {
        if wire.sizes.len() > MAX_RANK || wire.strides.len() > MAX_RANK {
            return Err(Error::limit(format!("a tensor has more than {MAX_RANK} dimensions")));
        }
        let layout = layout(wire.layout)?;
        let sizes = wire.sizes.into_iter().map(|size| self.size(size));
        let sizes: Vec<Size> = sizes.collect::<Result<_, _>>()?;
        if let Some(size) = sizes.iter().filter_map(Size::fixed).find(|&size| size < 0) {
            return Err(Error::malformed(format!("a tensor has the invalid size {size}")));
        }
        let strides: Result<_, _> = wire.strides.into_iter().map(|size| self.size(size)).collect();
        Ok(TensorMeta {
            dtype: self.scalar_type(wire.dtype)?,
            sizes,
            strides: strides?,
            storage_offset: self.size(wire.storage_offset)?,
            layout,
            device: device(wire.device),
        })
    }

    fn shared(&mut self, text: Arc<str>, kind: usize) -> Arc<str> {
        let is_latest = |latest: &&Arc<str>| Arc::ptr_eq(latest, &text) || ***latest == *text;
        if let Some(latest) = self.latest[kind].as_ref().filter(is_latest) {
            return latest.clone();
        }
        let shared = self.known(text);
        self.latest[kind] = Some(shared.clone());
        shared
    }

    fn known(&mut self, text: Arc<str>) -> Arc<str> {
        if let Some(known) = self.texts.get(&text) {
            return known.clone();
        }
        self.texts.insert(text.clone());
        text
    }

    fn origin(&mut self, metadata: wire::Metadata) -> Origin {
        let notes = metadata.others.into_iter();
        Origin {
            stack_trace: metadata.stack_trace.map(|text| self.shared(text, 0)),
            module_stack: metadata.nn_module_stack.map(|text| self.shared(text, 1)),
            notes: notes.map(|(key, text)| (key, self.known(text))).collect(),
        }
    }
}

/// Reads a graph and its nested graphs.
pub(crate) fn read(wire: wire::Graph, context: &mut Context) -> Result<Graph, Error> {
    let wire::Graph { inputs, outputs, nodes, is_single_tensor_return, .. } = wire;
    let mut reader = Reader {
        context,
        graph: Graph { single_return: is_single_tensor_return, ..Graph::default() },
        names: HashMap::with_capacity(wire.tensor_values.len()),
        tensors: wire.tensor_values,
        ints: wire.sym_int_values,
        floats: wire.sym_float_values,
        bools: wire.sym_bool_values,
        objects: wire.custom_obj_values,
    };
    for input in inputs {
        let input = reader.input(input).map_err(|error| error.in_node("inputs"))?;
        reader.graph.inputs.push(input);
    }
    for (index, node) in nodes.into_iter().enumerate() {
        let name = node_name(&node, index);
        let node = reader.node(node, name.clone()).map_err(|error| error.in_node(&name))?;
        reader.graph.nodes.push(node);
    }
    for output in outputs {
        let output = reader.argument(output).map_err(|error| error.in_node("outputs"))?;
        reader.graph.outputs.push(output);
    }
    let mut graph = reader.graph;
    graph.remove_dead_code();
    Ok(graph)
}

/// The name of a node. Before schema 8.15 nodes had no names; the name is then derived from the first result.
fn node_name(node: &wire::Node, index: usize) -> String {
    if let Some(name) = &node.name {
        return name.clone();
    }
    match node.outputs.as_slice() {
        [wire::Argument::AsTensor(named)] => named.name.clone(),
        [wire::Argument::AsSymInt(wire::SymIntArgument::AsName(name))]
        | [wire::Argument::AsSymFloat(wire::SymFloatArgument::AsName(name))]
        | [wire::Argument::AsSymBool(wire::SymBoolArgument::AsName(name))] => name.clone(),
        _ => format!("{}_{index}", node.target.split('.').rev().nth(1).unwrap_or(&node.target)),
    }
}

struct Reader<'a> {
    context: &'a mut Context,
    graph: Graph,
    names: HashMap<String, ValueId>,
    tensors: HashMap<String, wire::TensorMeta>,
    ints: HashMap<String, wire::SymInt>,
    floats: HashMap<String, wire::SymFloat>,
    bools: HashMap<String, wire::SymBool>,
    objects: HashMap<String, wire::CustomObject>,
}

impl Reader<'_> {
    fn define(&mut self, name: String, meta: Meta) -> Result<ValueId, Error> {
        let id = ValueId(
            u32::try_from(self.graph.values.len())
                .map_err(|_| Error::limit("the graph has more than 2^32 values"))?,
        );
        if self.names.insert(name.clone(), id).is_some() {
            return Err(Error::malformed(format!(
                "`{}` is defined twice",
                escape_truncated(&name)
            )));
        }
        self.graph.values.push(Value { name, meta });
        Ok(id)
    }

    fn lookup(&self, name: &str) -> Result<ValueId, Error> {
        self.names.get(name).copied().ok_or_else(|| {
            Error::malformed(format!(
                "`{}` is used, but no input or earlier node defines it",
                escape_truncated(name)
            ))
            .with_hint(
                "call `run_decompositions()` before saving, or export with the current torch",
            )
        })
    }

    fn untyped(name: &str, table: &str) -> Error {
        Error::malformed(format!("`{}` has no entry in `{table}`", escape_truncated(name)))
    }

    fn define_tensor(&mut self, name: String) -> Result<ValueId, Error> {
        let wire =
            self.tensors.remove(&name).ok_or_else(|| Self::untyped(&name, "tensor_values"))?;
        let meta = Meta::Tensor(self.context.tensor_meta(wire)?);
        self.define(name, meta)
    }

    fn define_int(&mut self, name: String) -> Result<ValueId, Error> {
        let wire = self.ints.remove(&name).ok_or_else(|| Self::untyped(&name, "sym_int_values"))?;
        let meta = Meta::Int(self.context.size(wire)?);
        self.define(name, meta)
    }

    fn define_float(&mut self, name: String) -> Result<ValueId, Error> {
        // The first schemas with such values had no table for them.
        let meta = Meta::Float(match self.floats.remove(&name) {
            Some(wire::SymFloat::AsExpr(expression)) => Some(self.context.symbolic(expression)?),
            Some(wire::SymFloat::AsFloat(value)) => Some(Arc::new(Symbolic {
                expression: Expression::Float(value.0),
                hint: Some(Hint::Float(value.0)),
            })),
            None => None,
        });
        self.define(name, meta)
    }

    fn define_bool(&mut self, name: String) -> Result<ValueId, Error> {
        let meta = Meta::Bool(match self.bools.remove(&name) {
            Some(wire::SymBool::AsExpr(expression)) => Some(self.context.symbolic(expression)?),
            Some(wire::SymBool::AsBool(value)) => Some(Arc::new(Symbolic {
                expression: Expression::Bool(value),
                hint: Some(Hint::Bool(value)),
            })),
            None => None,
        });
        self.define(name, meta)
    }

    fn define_object(&mut self, object: wire::CustomObject) -> Result<ValueId, Error> {
        self.objects.remove(&object.name);
        self.define(object.name, Meta::CustomObject(object.class_fqn))
    }

    /// An input defines a value; a constant represents itself.
    fn input(&mut self, wire: wire::Argument) -> Result<Argument, Error> {
        use wire::Argument as W;
        let id = match wire {
            // A token has a name but no type.
            W::AsTensor(named) if !self.tensors.contains_key(&named.name) => {
                self.define(named.name, Meta::Token)?
            }
            W::AsTensor(named) => self.define_tensor(named.name)?,
            W::AsSymInt(wire::SymIntArgument::AsName(name)) => self.define_int(name)?,
            W::AsSymFloat(wire::SymFloatArgument::AsName(name)) => self.define_float(name)?,
            W::AsSymBool(wire::SymBoolArgument::AsName(name)) => self.define_bool(name)?,
            W::AsCustomObj(object) => self.define_object(object)?,
            other => return self.argument(other),
        };
        Ok(Argument::Value(id))
    }

    fn node(&mut self, wire: wire::Node, name: String) -> Result<Node, Error> {
        let origin = self.context.origin(wire.metadata);
        let target = target(&wire.target);
        let schema = match &target {
            Target::Operator { namespace, name, overload } => {
                self.context.schemas.find(namespace, name, overload)?
            }
            Target::HigherOrder(_) | Target::Function(_) => None,
        };
        let mut given = Vec::with_capacity(wire.inputs.len());
        for input in wire.inputs {
            let value = self.argument(input.arg)?;
            // Archives before schema 8.7 do not specify this. Python functions take all arguments by
            // position, and their arguments have names there.
            let by_keyword = match input.kind {
                Some(kind) => kind == wire::KEYWORD,
                None => !input.name.is_empty() && !matches!(target, Target::Function(_)),
            };
            given.push(normalize::SuppliedArgument { name: input.name, by_keyword, value });
        }
        let (arguments, keywords) = normalize::arguments(schema.as_deref(), given)?;
        let mut outputs = Vec::with_capacity(wire.outputs.len());
        for output in wire.outputs {
            outputs.push(self.output(output)?);
        }
        let single_return = wire.is_hop_single_tensor_return;
        // Before schema 8.7, the results of a higher-order operator were a single list.
        if let (Target::HigherOrder(_), None, [Output::List(ids)]) =
            (&target, single_return, outputs.as_slice())
        {
            outputs = ids.iter().copied().map(Output::Value).collect();
        }
        Ok(Node { name, target, schema, arguments, keywords, outputs, single_return, origin })
    }

    fn output(&mut self, wire: wire::Argument) -> Result<Output, Error> {
        use wire::Argument as W;
        Ok(match wire {
            W::AsNone(_) => Output::None,
            W::AsTensor(named) if !self.tensors.contains_key(&named.name) => {
                return Err(Self::untyped(&named.name, "tensor_values"));
            }
            W::AsTensor(named) => Output::Value(self.define_tensor(named.name)?),
            W::AsTensors(all) => {
                let ids: Result<_, _> =
                    all.into_iter().map(|named| self.define_tensor(named.name)).collect();
                Output::List(ids?)
            }
            W::AsOptionalTensor(wire::OptionalTensorArgument::AsTensor(named)) => {
                Output::Value(self.define_tensor(named.name)?)
            }
            W::AsOptionalTensor(wire::OptionalTensorArgument::AsNone(_)) => Output::None,
            W::AsSymInt(wire::SymIntArgument::AsName(name)) => {
                Output::Value(self.define_int(name)?)
            }
            W::AsSymFloat(wire::SymFloatArgument::AsName(name)) => {
                Output::Value(self.define_float(name)?)
            }
            W::AsSymBool(wire::SymBoolArgument::AsName(name)) => {
                Output::Value(self.define_bool(name)?)
            }
            W::AsSymInts(all) => {
                let mut ids = Vec::with_capacity(all.len());
                for one in all {
                    match one {
                        wire::SymIntArgument::AsName(name) => ids.push(self.define_int(name)?),
                        wire::SymIntArgument::AsInt(value) => {
                            return Err(Error::malformed(format!(
                                "a result must be symbolic, got the constant {value}"
                            )));
                        }
                    }
                }
                Output::List(ids)
            }
            W::AsCustomObj(object) => Output::Value(self.define_object(object)?),
            other => {
                return Err(Error::unsupported(format!(
                    "a result is {other:?}; expected a tensor, a list of tensors, a symbolic number, an object or nothing"
                )));
            }
        })
    }

    pub(crate) fn argument(&mut self, wire: wire::Argument) -> Result<Argument, Error> {
        use wire::Argument as W;
        let list = |items: Vec<Argument>| Argument::List(items);
        Ok(match wire {
            W::AsNone(_) => Argument::None,
            W::AsTensor(named) => Argument::Value(self.lookup(&named.name)?),
            W::AsTensors(all) => list(self.tensors(&all)?),
            W::AsInt(value) => Argument::Int(value),
            W::AsInts(all) => list(all.into_iter().map(Argument::Int).collect()),
            W::AsFloat(value) => Argument::Float(value.0),
            W::AsFloats(all) => list(all.into_iter().map(|one| Argument::Float(one.0)).collect()),
            W::AsString(text) => Argument::Text(text),
            W::AsStrings(all) => list(all.into_iter().map(Argument::Text).collect()),
            W::AsBool(value) => Argument::Bool(value),
            W::AsBools(all) => list(all.into_iter().map(Argument::Bool).collect()),
            W::AsScalarType(number) => Argument::ScalarType(self.context.scalar_type(number)?),
            W::AsMemoryFormat(number) => {
                Argument::MemoryFormat(MemoryFormat::from_archive(number).ok_or_else(|| {
                    Error::unsupported(format!("memory format must be from 1 to 4, got {number}"))
                })?)
            }
            W::AsLayout(number) => Argument::Layout(layout(number)?),
            W::AsDevice(wire) => Argument::Device(device(wire)),
            W::AsSymInt(one) => self.sym_int(one)?,
            W::AsSymInts(all) => {
                let items: Result<_, _> = all.into_iter().map(|one| self.sym_int(one)).collect();
                list(items?)
            }
            W::AsSymBool(one) => self.sym_bool(one)?,
            W::AsSymBools(all) => {
                let items: Result<_, _> = all.into_iter().map(|one| self.sym_bool(one)).collect();
                list(items?)
            }
            W::AsSymFloat(one) => self.sym_float(one)?,
            W::AsSymFloats(all) => {
                let items: Result<_, _> = all.into_iter().map(|one| self.sym_float(one)).collect();
                list(items?)
            }
            W::AsOptionalTensor(one) => self.optional(one)?,
            W::AsOptionalTensors(all) => {
                let items: Result<_, _> = all.into_iter().map(|one| self.optional(one)).collect();
                list(items?)
            }
            W::AsGraph(wire) => {
                let graph = read(wire.graph, self.context)?;
                Argument::Graph(Box::new(Subgraph { name: wire.name, graph }))
            }
            W::AsCustomObj(object) => Argument::Value(self.lookup(&object.name)?),
            W::AsOperator(name) => Argument::Operator(name),
            W::AsComplex(value) => Argument::Complex(value.real.0, value.imag.0),
            W::AsNestedTensors(all) => {
                let lists: Result<_, _> =
                    all.iter().map(|all| self.tensors(all).map(Argument::List)).collect();
                list(lists?)
            }
            W::AsIntLists(all) => {
                let ints = |all: Vec<i64>| list(all.into_iter().map(Argument::Int).collect());
                list(all.into_iter().map(ints).collect())
            }
            W::AsFloatLists(all) => {
                let floats = |all: Vec<wire::Float>| {
                    list(all.into_iter().map(|one| Argument::Float(one.0)).collect())
                };
                list(all.into_iter().map(floats).collect())
            }
            W::AsStringToArgument(all) => {
                let mut items = Vec::with_capacity(all.len());
                for (key, value) in all {
                    items.push((key, self.argument(value)?));
                }
                Argument::Map(items)
            }
        })
    }

    fn tensors(&self, all: &[wire::NamedTarget]) -> Result<Vec<Argument>, Error> {
        all.iter().map(|named| self.lookup(&named.name).map(Argument::Value)).collect()
    }

    fn sym_int(&self, wire: wire::SymIntArgument) -> Result<Argument, Error> {
        Ok(match wire {
            wire::SymIntArgument::AsName(name) => Argument::Value(self.lookup(&name)?),
            wire::SymIntArgument::AsInt(value) => Argument::Int(value),
        })
    }

    fn sym_float(&self, wire: wire::SymFloatArgument) -> Result<Argument, Error> {
        Ok(match wire {
            wire::SymFloatArgument::AsName(name) => Argument::Value(self.lookup(&name)?),
            wire::SymFloatArgument::AsFloat(value) => Argument::Float(value.0),
        })
    }

    fn sym_bool(&self, wire: wire::SymBoolArgument) -> Result<Argument, Error> {
        Ok(match wire {
            wire::SymBoolArgument::AsName(name) => Argument::Value(self.lookup(&name)?),
            wire::SymBoolArgument::AsBool(value) => Argument::Bool(value),
        })
    }

    fn optional(&self, wire: wire::OptionalTensorArgument) -> Result<Argument, Error> {
        Ok(match wire {
            wire::OptionalTensorArgument::AsTensor(named) => {
                Argument::Value(self.lookup(&named.name)?)
            }
            wire::OptionalTensorArgument::AsNone(_) => Argument::None,
        })
    }
}

fn layout(number: i64) -> Result<Layout, Error> {
    Layout::from_archive(number)
        .ok_or_else(|| Error::unsupported(format!("layout must be from 1 to 7, got {number}")))
}

fn device(wire: wire::Device) -> Device {
    Device { kind: wire.kind, index: wire.index }
}

/// Operators of the edge dialect are ATen operators with another prefix; torch's serializer writes the prefix
/// with `_ops`.
const OPERATOR_PREFIXES: [&str; 3] =
    ["torch.ops.", "executorch.exir.dialects.edge.ops.", "executorch.exir.dialects.edge._ops."];

impl Target {
    /// Parses the target of a call as written in archives: `torch.ops.aten.add.Tensor`.
    pub fn parse(text: &str) -> Target {
        target(text)
    }
}

fn target(text: &str) -> Target {
    for prefix in OPERATOR_PREFIXES {
        let Some(rest) = text.strip_prefix(prefix) else { continue };
        if let Some(name) = rest.strip_prefix("higher_order.") {
            return Target::HigherOrder(name.to_owned());
        }
        let parts: Vec<_> = rest.split('.').collect();
        if let [namespace, name, overload] = parts.as_slice() {
            return Target::Operator {
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                overload: (*overload).to_owned(),
            };
        }
    }
    Target::Function(text.to_owned())
}
