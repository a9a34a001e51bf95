//! The program in an archive: a graph of ATen calls on values, with its metadata.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use coremill_tensor::{Buffer, Files};

use crate::saved::SavedValue;
use crate::scalar::{Layout, MemoryFormat, ScalarType};
use crate::schema::{Literal, Parameter, Schema};
use crate::symbol::{Expression, SymbolId, Symbols};
use crate::tensor::StoredValue;
use crate::tree::TreeSpec;

/// A program exported by `torch.export`.
#[derive(Clone, Debug)]
pub struct ExportedProgram {
    /// The outermost graph.
    pub graph: Graph,
    /// Kind of each input of the graph, parallel to [`Graph::inputs`].
    pub inputs: Vec<InputKind>,
    /// Kind of each output of the graph, parallel to [`Graph::outputs`].
    pub outputs: Vec<OutputKind>,
    /// The symbols of symbolic sizes, with their ranges.
    pub symbols: Symbols,
    /// All ranges that the program guarantees, including those of symbols.
    pub constraints: Vec<Constraint>,
    /// Parameters, buffers and constants by the names in [`InputKind`].
    pub tensors: BTreeMap<String, StoredValue>,
    /// The modules of the model, the outermost first, and the signatures of preserved modules.
    pub modules: Vec<Module>,
    /// Field names of the named tuples in tree specifications, by type.
    pub named_tuples: BTreeMap<String, Vec<String>>,
    /// The dialect of the graph.
    pub dialect: Dialect,
    /// Versions of operator sets.
    pub opsets: BTreeMap<String, i64>,
    /// Major and minor version of the archive's schema.
    pub schema_version: (u64, u64),
    /// The torch version that wrote the archive, if it is recorded.
    pub torch_version: Option<String>,
    /// Python code that checks the program's assumptions about its inputs.
    pub guards: Vec<String>,
    /// The exporter's notes about the program.
    pub metadata: BTreeMap<String, String>,
    /// Additional files in the archive, by name.
    pub extra_files: BTreeMap<String, Buffer>,
    pub(crate) samples: Samples,
}

impl ExportedProgram {
    /// The files that contain its tensors.
    pub fn files(&self) -> Files {
        Files::of(self.tensors.values().filter_map(|stored| match stored {
            StoredValue::Tensor(tensor) => Some(&tensor.storage),
            StoredValue::Object(bytes) => Some(bytes),
            StoredValue::Missing { .. } => None,
        }))
    }

    /// The key of each user output if `forward` returns dictionaries: `past_0` for `{"past": [x, y]}`.
    pub fn output_keys(&self) -> Vec<Option<String>> {
        let is_users = |kind: &&OutputKind| matches!(kind, OutputKind::User | OutputKind::Loss);
        let count = self.outputs.iter().filter(is_users).count();
        let outermost = self.modules.iter().find(|module| module.path.is_empty());
        let signature = outermost.and_then(|module| module.signature.as_ref());
        let keys = signature.map(|signature| signature.outputs.keys(&self.named_tuples));
        keys.filter(|keys| keys.len() == count).unwrap_or_else(|| vec![None; count])
    }

    /// The final value that the program writes to a buffer or a parameter.
    pub fn written(&self, name: &str) -> Option<ValueId> {
        let mut outputs = self.graph.outputs.iter().zip(&self.outputs);
        outputs.find_map(|(argument, kind)| match (argument, kind) {
            (
                Argument::Value(id),
                OutputKind::BufferMutation(target) | OutputKind::ParameterMutation(target),
            ) if target == name => Some(*id),
            _ => None,
        })
    }

    /// Sets the maximum of all unbounded symbols, and returns their names.
    pub fn bound_symbols(&mut self, most: i64) -> Vec<String> {
        self.symbols.bound(most)
    }
}

/// The sample inputs of the export.
#[derive(Clone, Debug)]
pub struct SampleInputs {
    /// By position.
    pub positional: Vec<SavedValue>,
    /// By keyword: names and values.
    pub keywords: Vec<(SavedValue, SavedValue)>,
}

/// Source of a program's sample inputs.
#[derive(Clone, Debug, Default)]
pub(crate) enum Samples {
    #[default]
    None,
    /// An entry of the archive: its name and its contents.
    Pickled(String, Buffer),
    /// Passed in memory.
    Given(SampleInputs),
}

/// The dialect of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// As traced: operators may mutate their inputs and views of them.
    Training,
    /// Functional.
    Aten,
    /// Functional, with ExecuTorch's operators.
    Edge,
    /// Another dialect, by name.
    Other(String),
}

/// A range of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Constraint {
    /// A symbol, or an expression such as `2*s0`.
    pub expression: Expression,
    /// The smallest value.
    pub minimum: Option<i64>,
    /// The largest value; `None` if unbounded.
    pub maximum: Option<i64>,
}

/// A module of the traced model.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Path of the module, empty for the outermost module.
    pub path: String,
    /// Signature of the outermost module and of modules whose signature was preserved.
    pub signature: Option<CallSignature>,
}

/// Mapping between Python values and graph inputs and outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct CallSignature {
    /// A pair of positional and keyword arguments, whose leaves are the user inputs.
    pub inputs: TreeSpec,
    /// The result, whose leaves are the user outputs.
    pub outputs: TreeSpec,
    /// Names of the parameters of `forward`.
    pub parameter_names: Option<Vec<String>>,
}

/// Kind of a graph input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Passed by the caller. Constant arguments are in [`Graph::inputs`] as constants.
    User,
    /// An argument that was fixed by the export, with its name.
    Constant(String),
    /// A parameter.
    Parameter(String),
    /// A buffer.
    Buffer {
        /// Its name.
        name: String,
        /// Whether it is part of the model's state dictionary.
        persistent: bool,
    },
    /// A tensor literal in the model's code.
    TensorConstant(String),
    /// An object of a registered class.
    CustomObject(String),
    /// A token that orders operators with effects.
    Token,
}

/// Kind of a graph output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputKind {
    /// Returned to the caller.
    User,
    /// The loss of a training program.
    Loss,
    /// The new value of a buffer.
    BufferMutation(String),
    /// The new value of a parameter.
    ParameterMutation(String),
    /// The new value of the user input with this name.
    UserInputMutation(String),
    /// The gradient of a parameter.
    GradientToParameter(String),
    /// The gradient of the user input with this name.
    GradientToUserInput(String),
    /// A token that orders operators with effects.
    Token,
}

/// A value of one graph: an index into [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) u32);

impl ValueId {
    /// Returns the value with an index in [`Graph::values`].
    pub const fn from_index(index: u32) -> ValueId {
        ValueId(index)
    }

    /// Index in [`Graph::values`], for side tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Nodes in the order of execution. Values belong to one graph; a nested graph receives the values it uses as
/// inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// All values that inputs or nodes define.
    pub values: Vec<Value>,
    /// The inputs: values, or constants passed instead of values.
    pub inputs: Vec<Argument>,
    /// The outputs.
    pub outputs: Vec<Argument>,
    /// The calls.
    pub nodes: Vec<Node>,
    /// Whether the result is a single value rather than a tuple with one value.
    pub single_return: bool,
}

impl Graph {
    /// Returns a value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// Adds a value, which a node or an input must define. Returns `None` if there are too many values.
    pub fn define(&mut self, name: String, meta: Meta) -> Option<ValueId> {
        let id = u32::try_from(self.values.len()).ok()?;
        self.values.push(Value { name, meta });
        Some(ValueId(id))
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// torch's name, unique in the graph.
    pub name: String,
    /// Its type.
    pub meta: Meta,
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    /// A tensor.
    Tensor(TensorMeta),
    /// An integer, with its value or expression.
    Int(Size),
    /// A float.
    Float(Option<Arc<Symbolic>>),
    /// A boolean.
    Bool(Option<Arc<Symbolic>>),
    /// An object of this class.
    CustomObject(String),
    /// A token that orders operators with effects.
    Token,
}

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMeta {
    /// The element type.
    pub dtype: ScalarType,
    /// The size of each dimension.
    pub sizes: Vec<Size>,
    /// Stride of each dimension, in elements.
    pub strides: Vec<Size>,
    /// Offset of the first element in the storage, in elements.
    pub storage_offset: Size,
    /// The storage layout.
    pub layout: Layout,
    /// The device at export.
    pub device: Device,
}

/// A size, a stride or another integer.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// A fixed value.
    Fixed(i64),
    /// An expression over symbols.
    Symbolic(Arc<Symbolic>),
}

impl Size {
    /// The value if it is fixed.
    pub fn fixed(&self) -> Option<i64> {
        match self {
            Size::Fixed(value) => Some(*value),
            Size::Symbolic(_) => None,
        }
    }

    /// The value if it is fixed and not negative.
    pub fn extent(&self) -> Option<u64> {
        u64::try_from(self.fixed()?).ok()
    }

    /// The symbol, if the size is a single symbol.
    pub fn symbol(&self) -> Option<SymbolId> {
        match self {
            Size::Symbolic(symbolic) => match symbolic.expression {
                Expression::Symbol(id) => Some(id),
                _ => None,
            },
            Size::Fixed(_) => None,
        }
    }
}

/// An expression, and its value at export.
#[derive(Clone, Debug, PartialEq)]
pub struct Symbolic {
    /// The expression.
    pub expression: Expression,
    /// The value at export; `None` if it was unknown.
    pub hint: Option<Hint>,
}

/// The value of an expression at export.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hint {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
}

/// A device of torch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `cpu`, `cuda`, `meta` and so on.
    pub kind: String,
    /// Index of the device.
    pub index: Option<i64>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}:{index}", self.kind),
            None => f.write_str(&self.kind),
        }
    }
}

/// A call.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// torch's name. Results have their own names; a single result has the same name.
    pub name: String,
    /// The called operator or function.
    pub target: Target,
    /// The operator's schema, if it is known. `arguments` then has an argument for each parameter of the
    /// schema.
    pub schema: Option<Arc<Schema>>,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// Keyword arguments. Empty if the schema is known, because `arguments` then contains all arguments.
    pub keywords: Vec<(String, Argument)>,
    /// The results.
    pub outputs: Vec<Output>,
    /// For a higher-order operator: whether the result is a single tensor rather than a tuple with one
    /// tensor.
    pub single_return: Option<bool>,
    /// Origin of the call in the model.
    pub origin: Origin,
}

impl Node {
    /// Returns the argument of a parameter, by its name in the schema or by keyword.
    pub fn argument(&self, name: &str) -> Option<&Argument> {
        if let Some(schema) = &self.schema {
            let index = schema.arguments.iter().position(|argument| argument.name == name)?;
            return self.arguments.get(index);
        }
        self.keywords.iter().find(|(keyword, _)| keyword == name).map(|(_, argument)| argument)
    }

    /// The positional arguments followed by the keyword arguments.
    pub fn all_arguments(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().chain(self.keywords.iter().map(|(_, argument)| argument))
    }

    /// Calls `visit` for each value that the call uses, excluding uses inside nested graphs.
    pub fn for_each_use(&self, visit: &mut dyn FnMut(ValueId)) {
        self.all_arguments().for_each(|argument| argument.for_each_value(visit));
    }

    /// The results, with lists flattened; `None` for a result without a value.
    pub fn results(&self) -> impl Iterator<Item = Option<ValueId>> {
        self.outputs.iter().flat_map(Output::results)
    }

    /// The values that the call defines.
    pub fn defined(&self) -> impl Iterator<Item = ValueId> {
        self.results().flatten()
    }
}

/// The target of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An operator.
    Operator {
        /// The namespace, for instance `aten`; the same for operators of the edge dialect.
        namespace: String,
        /// The name without the overload.
        name: String,
        /// The overload; `default` for an overload without a name.
        overload: String,
    },
    /// An operator on graphs: `cond`, `while_loop`, `scan`.
    HigherOrder(String),
    /// A function of Python or torch with its full name: `_operator.mul`, `torch.sym_max`, `math.trunc`.
    Function(String),
}

impl Target {
    /// Name of an operator without namespace and overload, or the full name of a function.
    pub fn name(&self) -> &str {
        match self {
            Target::Operator { name, .. } | Target::HigherOrder(name) | Target::Function(name) => {
                name
            }
        }
    }

    /// Whether this is the operator `namespace::name.overload`.
    pub fn is(&self, namespace: &str, name: &str, overload: &str) -> bool {
        matches!(self, Target::Operator { namespace: a, name: b, overload: c }
            if a == namespace && b == name && c == overload)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Operator { namespace, name, overload } => {
                write!(f, "{namespace}.{name}.{overload}")
            }
            Target::HigherOrder(name) => write!(f, "higher_order.{name}"),
            Target::Function(name) => f.write_str(name),
        }
    }
}

/// A result of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// A value.
    Value(ValueId),
    /// A list of values.
    List(Vec<ValueId>),
    /// An unused result without a value.
    Unused,
    /// An undefined tensor.
    None,
}

impl Output {
    /// Replaces its values.
    pub fn map(&mut self, change: impl Fn(ValueId) -> ValueId) {
        match self {
            Output::Value(id) => *id = change(*id),
            Output::List(ids) => ids.iter_mut().for_each(|id| *id = change(*id)),
            Output::Unused | Output::None => {}
        }
    }

    /// The values of a list, or a single value; `None` for a result without a value.
    pub fn results(&self) -> impl Iterator<Item = Option<ValueId>> {
        let ids = match self {
            Output::Value(id) => std::slice::from_ref(id),
            Output::List(ids) => ids.as_slice(),
            Output::Unused | Output::None => &[],
        };
        let missing = matches!(self, Output::Unused | Output::None).then_some(None);
        ids.iter().copied().map(Some).chain(missing)
    }
}

/// An argument of a call, or an input or output of a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// No value (`None` in Python).
    None,
    /// A value: a tensor, or a computed integer, float or boolean.
    Value(ValueId),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Real and imaginary part.
    Complex(f64, f64),
    /// A string.
    Text(String),
    /// An element type.
    ScalarType(ScalarType),
    /// A memory format.
    MemoryFormat(MemoryFormat),
    /// A storage layout.
    Layout(Layout),
    /// A device.
    Device(Device),
    /// A nested graph.
    Graph(Box<Subgraph>),
    /// A list of arguments.
    List(Vec<Argument>),
    /// Arguments by name.
    Map(Vec<(String, Argument)>),
    /// An operator as a value.
    Operator(String),
}

impl Argument {
    /// Calls `visit` for each value in it, excluding values inside nested graphs.
    pub fn for_each_value(&self, visit: &mut dyn FnMut(ValueId)) {
        match self {
            Argument::Value(id) => visit(*id),
            Argument::List(items) => items.iter().for_each(|item| item.for_each_value(visit)),
            Argument::Map(items) => items.iter().for_each(|(_, item)| item.for_each_value(visit)),
            Argument::None
            | Argument::Int(_)
            | Argument::Float(_)
            | Argument::Bool(_)
            | Argument::Complex(..)
            | Argument::Text(_)
            | Argument::ScalarType(_)
            | Argument::MemoryFormat(_)
            | Argument::Layout(_)
            | Argument::Device(_)
            | Argument::Graph(_)
            | Argument::Operator(_) => {}
        }
    }

    /// Replaces each value by the result of `change`; stops at the first error.
    pub fn try_map_values<E>(
        &mut self,
        change: &mut dyn FnMut(ValueId) -> Result<Argument, E>,
    ) -> Result<(), E> {
        match self {
            Argument::Value(id) => *self = change(*id)?,
            Argument::List(items) => {
                for item in items {
                    item.try_map_values(change)?;
                }
            }
            Argument::Map(items) => {
                for (_, item) in items {
                    item.try_map_values(change)?;
                }
            }
            Argument::None
            | Argument::Int(_)
            | Argument::Float(_)
            | Argument::Bool(_)
            | Argument::Complex(..)
            | Argument::Text(_)
            | Argument::ScalarType(_)
            | Argument::MemoryFormat(_)
            | Argument::Layout(_)
            | Argument::Device(_)
            | Argument::Graph(_)
            | Argument::Operator(_) => {}
        }
        Ok(())
    }

    /// Replaces each value by the result of `change`.
    pub fn map_values(&mut self, change: &mut dyn FnMut(ValueId) -> Argument) {
        let Ok(()) = self.try_map_values(&mut |id| Ok::<_, Infallible>(change(id)));
    }
}

impl From<&Literal> for Argument {
    fn from(literal: &Literal) -> Argument {
        match literal {
            Literal::None => Argument::None,
            Literal::Int(value) => Argument::Int(*value),
            Literal::Float(value) => Argument::Float(*value),
            Literal::Bool(value) => Argument::Bool(*value),
            Literal::Text(text) => Argument::Text(text.clone()),
            Literal::ScalarType(dtype) => Argument::ScalarType(*dtype),
            Literal::MemoryFormat(format) => Argument::MemoryFormat(*format),
            Literal::List(items) => Argument::List(items.iter().map(Argument::from).collect()),
        }
    }
}

impl Parameter {
    /// The default value of the parameter.
    pub fn default_argument(&self) -> Option<Argument> {
        self.default.as_ref().map(Argument::from)
    }
}

/// A nested graph that is an argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Subgraph {
    /// Name of the graph in the outer graph.
    pub name: String,
    /// The graph.
    pub graph: Graph,
}

/// Origin of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Python's stack trace, in Python's format.
    pub stack_trace: Option<Arc<str>>,
    /// The modules around the call: `key,path,type` for each, separated by `;`, the outermost first.
    pub module_stack: Option<Arc<str>>,
    /// Other notes of torch, by key.
    pub notes: BTreeMap<String, Arc<str>>,
}

impl Origin {
    /// Path of the innermost module, for instance `layers.0.norm`; empty for the outermost module.
    pub fn module_path(&self) -> Option<&str> {
        split_outside(self.innermost_module()?, b',').nth(1)
    }

    /// The Python class of the innermost module.
    pub fn module_class(&self) -> Option<&str> {
        split_outside(self.innermost_module()?, b',').nth(2)
    }

    /// Key, path and type of the innermost module.
    fn innermost_module(&self) -> Option<&str> {
        let stack = self.module_stack.as_deref()?;
        // Few paths contain calls, and stacks are long, so avoid the full parser.
        if stack.contains('(') || stack.contains(')') {
            return split_outside(stack, b';').last();
        }
        stack.rsplit(';').next()
    }

    /// The innermost line of Python code: file, line, and the source text if available.
    pub fn source(&self) -> Option<SourceLine<'_>> {
        self.sources().last()
    }

    /// The innermost line of Python code that is not in torch, which is the model's own code.
    pub fn model_source(&self) -> Option<SourceLine<'_>> {
        let is_torch = |file: &str| file.starts_with("torch/") || file.contains("/torch/");
        self.sources().filter(|line| !is_torch(line.file)).last()
    }

    /// The lines of the stack trace, the outermost first.
    pub fn sources(&self) -> impl Iterator<Item = SourceLine<'_>> {
        let mut lines = self.stack_trace.as_deref().unwrap_or_default().lines();
        std::iter::from_fn(move || {
            loop {
                let line = lines.next()?;
                let place = line.trim_start().strip_prefix("File \"").and_then(|rest| {
                    let (file, rest) = rest.split_once("\", line ")?;
                    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
                    Some((file, digits.parse().ok()?))
                });
                if let Some((file, line)) = place {
                    let code = lines.clone().next().map(str::trim);
                    let code = code.filter(|code| !code.is_empty() && !code.starts_with("File \""));
                    return Some(SourceLine { file, line, code });
                }
            }
        })
    }
}

/// Splits at ASCII separators that are not inside parentheses, since paths can contain calls.
fn split_outside(text: &str, separator: u8) -> impl Iterator<Item = &str> {
    let (mut rest, mut depth) = (Some(text), 0i64);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = text.bytes().position(|byte| {
            depth += i64::from(byte == b'(') - i64::from(byte == b')');
            depth <= 0 && byte == separator
        });
        let (part, after) = match end {
            Some(end) => (&text[..end], Some(&text[end + 1..])),
            None => (text, None),
        };
        rest = after;
        Some(part)
    })
}

/// A line of Python code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// The file.
    pub file: &'a str,
    /// The line number, starting at 1.
    pub line: u32,
    /// The source text.
    pub code: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_source_skips_torch_stack_frames() {
        let trace = "  File \"/app/model.py\", line 7, in forward\n    x = self.embed(x)\n  \
                     File \"/lib/torch/nn/modules/sparse.py\", line 189, in forward\n    return F.embedding(\n";
        let origin = Origin { stack_trace: Some(trace.into()), ..Origin::default() };
        let line = |line, file, code| SourceLine { file, line, code: Some(code) };
        let of_torch = line(189, "/lib/torch/nn/modules/sparse.py", "return F.embedding(");
        let of_model = line(7, "/app/model.py", "x = self.embed(x)");
        assert_eq!(origin.source(), Some(of_torch));
        assert_eq!(origin.model_source(), Some(of_model));
        assert_eq!(origin.sources().collect::<Vec<_>>(), [of_model, of_torch]);
        assert_eq!(Origin::default().source(), None);
    }
}
