use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use super::constant::Constant;
use super::types::Type;
use crate::ops::OpKind;
use crate::ops::Opset;

/// An ML Program: functions and attributes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The functions, in the order in which they were read or added; names are distinct.
    pub functions: Vec<Function>,
    /// Attributes of the program, for instance `buildInfo`.
    pub attributes: Attributes,
    /// Documentation for users.
    pub documentation: String,
    /// Fields of the file that this crate does not know.
    pub unknown: UnknownFields,
}

/// A function: a graph of operations that callers can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The name.
    pub name: String,
    /// The opset, which defines the available operations and their versions.
    pub opset: Opset,
    /// Attributes of the function, for instance `FlexibleShapeInformation`.
    pub attributes: Attributes,
    /// The main block; its inputs are the function's inputs.
    pub body: BlockId,
    /// Fields of the file that this crate does not know.
    pub unknown: UnknownFields,
    values: Vec<Value>,
    ops: Vec<Op>,
    blocks: Vec<Block>,
}

/// A sequence of operations with inputs and outputs of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The inputs, whose values are passed when the block runs.
    pub inputs: Vec<ValueId>,
    /// The operations in the order of execution.
    pub ops: Vec<OpId>,
    /// The results of the block.
    pub outputs: Vec<ValueId>,
    /// Attributes of the block.
    pub attributes: Attributes,
    /// Fields of the file that this crate does not know.
    pub unknown: UnknownFields,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// The operator.
    pub operator: Operator,
    /// The arguments, sorted by name. Parameters with default values are absent.
    pub inputs: Vec<Input>,
    /// The results.
    pub outputs: Vec<ValueId>,
    /// The nested blocks, for instance the branches of a `cond`.
    pub blocks: Vec<BlockId>,
    /// Attributes: the `val` of a constant, `name`, and the operands of the older compressed constants.
    pub attributes: Attributes,
    /// Fields of the file that this crate does not know.
    pub unknown: UnknownFields,
}

/// The operation that an [`Op`] performs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// An operation in the op table.
    Known(OpKind),
    /// An unknown operation; it is preserved but never verified.
    Unknown(String),
}

/// The argument of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// The parameter.
    pub name: Name,
    /// The bindings: one, or several if the parameter takes a list.
    pub bindings: Vec<Binding>,
}

/// The binding of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// A value that was computed earlier.
    Value(ValueId),
    /// A literal.
    Literal(Constant),
}

/// A value: an input of a block or an output of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The name, unique in the function.
    pub name: String,
    /// The declared type.
    pub ty: Type,
    /// The definition.
    pub definition: Definition,
}

/// The definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// An input of a block, by index.
    Input(BlockId, u32),
    /// An output of an operation, by index.
    Output(OpId, u32),
}

/// Name of a parameter. Names in the op table are borrowed.
pub type Name = Cow<'static, str>;

/// Named constants, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Vec<(String, Constant)>);

/// Unknown fields of a message, in their original encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownFields(pub Vec<u8>);

macro_rules! id {
    ($name:ident, $prefix:literal, $what:literal) => {
        #[doc = concat!("Names ", $what, " of one function.")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Index in the table of its kind, for side tables.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// Returns the id with an index, to iterate over side tables.
            pub fn from_index(index: usize) -> $name {
                $name(u32::try_from(index).expect("the index of an id must be less than 2^32"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(ValueId, "%", "a value");
id!(OpId, "op", "an operation");
id!(BlockId, "block", "a block");

impl Program {
    /// Returns the function with this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

impl Function {
    /// Returns a function with an empty body.
    pub fn new(name: impl Into<String>, opset: Opset) -> Function {
        Function {
            name: name.into(),
            opset,
            attributes: Attributes::default(),
            body: BlockId(0),
            unknown: UnknownFields::default(),
            values: Vec::new(),
            ops: Vec::new(),
            blocks: vec![Block::default()],
        }
    }

    /// Returns a value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Returns a value mutably, to change its name or type.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.index()]
    }

    /// Returns an operation.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// Returns an operation mutably.
    pub fn op_mut(&mut self, id: OpId) -> &mut Op {
        &mut self.ops[id.index()]
    }

    /// Returns a block.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// Returns a block mutably.
    pub fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.index()]
    }

    /// Number of values, including unused ones.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Number of operations, including operations removed from their blocks.
    pub fn op_count(&self) -> usize {
        self.ops.len()
    }

    /// Number of blocks, including removed blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// The inputs of the function.
    pub fn inputs(&self) -> &[ValueId] {
        &self.block(self.body).inputs
    }

    /// The outputs of the function.
    pub fn outputs(&self) -> &[ValueId] {
        &self.block(self.body).outputs
    }

    /// Adds an empty block that no operation owns yet.
    pub fn add_block(&mut self) -> BlockId {
        self.blocks.push(Block::default());
        BlockId::from_index(self.blocks.len() - 1)
    }

    /// Appends an input to a block.
    pub fn add_input(&mut self, block: BlockId, name: impl Into<String>, ty: Type) -> ValueId {
        let position = self.block(block).inputs.len() as u32;
        let id = self.add_value(name.into(), ty, Definition::Input(block, position));
        self.block_mut(block).inputs.push(id);
        id
    }

    /// Appends an operation to a block, with outputs of the given names and types. The outputs replace
    /// `op.outputs`.
    pub fn add_op(
        &mut self,
        block: BlockId,
        op: Op,
        outputs: impl IntoIterator<Item = (String, Type)>,
    ) -> OpId {
        let id = OpId::from_index(self.ops.len());
        self.ops.push(Op { outputs: Vec::new(), ..op });
        for (index, (name, ty)) in outputs.into_iter().enumerate() {
            let value = self.add_value(name, ty, Definition::Output(id, index as u32));
            self.op_mut(id).outputs.push(value);
        }
        self.block_mut(block).ops.push(id);
        id
    }

    /// The constant that defines a value, if its operation is a `const`.
    pub fn constant(&self, id: ValueId) -> Option<&Constant> {
        match self.value(id).definition {
            Definition::Output(op, 0) => {
                let op = self.op(op);
                (op.operator == Operator::Known(OpKind::Const)).then(|| op.attributes.get("val"))?
            }
            _ => None,
        }
    }

    /// The constant of a binding, either a literal or the output of a `const`.
    pub fn bound_constant<'f>(&'f self, binding: &'f Binding) -> Option<&'f Constant> {
        match binding {
            Binding::Value(value) => self.constant(*value),
            Binding::Literal(constant) => Some(constant),
        }
    }

    /// All reachable blocks with their depth. The body comes first; the blocks of an operation precede the
    /// blocks of later operations.
    pub fn blocks_in_order(&self) -> Vec<(BlockId, usize)> {
        let mut found = Vec::new();
        let mut pending = vec![(self.body, 0)];
        while let Some((block, depth)) = pending.pop() {
            found.push((block, depth));
            let nested = self.block(block).ops.iter().flat_map(|&op| &self.op(op).blocks);
            let nested: Vec<_> = nested.map(|&inner| (inner, depth + 1)).collect();
            pending.extend(nested.into_iter().rev());
        }
        found
    }

    /// All operations of all reachable blocks, in the order of [`Function::blocks_in_order`].
    pub fn all_ops(&self) -> impl Iterator<Item = (OpId, &Op)> {
        let blocks = self.blocks_in_order().into_iter();
        blocks.flat_map(|(block, _)| self.block(block).ops.iter().map(|&op| (op, self.op(op))))
    }

    /// The values that operations or blocks use.
    pub fn used_values(&self) -> HashSet<ValueId> {
        let blocks = self.blocks_in_order().into_iter();
        let outputs = blocks.flat_map(|(block, _)| self.block(block).outputs.iter().copied());
        outputs.chain(self.all_ops().flat_map(|(_, op)| op.values())).collect()
    }

    fn add_value(&mut self, name: String, ty: Type, definition: Definition) -> ValueId {
        self.values.push(Value { name, ty, definition });
        ValueId::from_index(self.values.len() - 1)
    }
}

impl Op {
    /// Returns an operation without arguments.
    pub fn new(kind: OpKind) -> Op {
        Op {
            operator: Operator::Known(kind),
            inputs: Vec::new(),
            outputs: Vec::new(),
            blocks: Vec::new(),
            attributes: Attributes::default(),
            unknown: UnknownFields::default(),
        }
    }

    /// Returns a `const` operation.
    pub fn constant(value: Constant) -> Op {
        let mut op = Op::new(OpKind::Const);
        op.attributes.insert("val", value);
        op
    }

    /// Whether the operation is a constant, either plain or compressed.
    pub fn is_constant(&self) -> bool {
        self.kind().is_some_and(OpKind::is_constant)
    }

    /// Adds an argument and returns the operation.
    pub fn with(mut self, name: impl Into<Name>, binding: Binding) -> Op {
        self.set_input(name.into(), vec![binding]);
        self
    }

    /// Adds a list argument and returns the operation.
    pub fn with_list(mut self, name: impl Into<Name>, bindings: Vec<Binding>) -> Op {
        self.set_input(name.into(), bindings);
        self
    }

    /// Sets the bindings of a parameter, replacing previous ones.
    pub fn set_input(&mut self, name: Name, bindings: Vec<Binding>) {
        match self.inputs.binary_search_by(|input| input.name.cmp(&name)) {
            Ok(at) => self.inputs[at].bindings = bindings,
            Err(at) => self.inputs.insert(at, Input { name, bindings }),
        }
    }

    /// The kind, if the op table has the operation.
    pub fn kind(&self) -> Option<OpKind> {
        match self.operator {
            Operator::Known(kind) => Some(kind),
            Operator::Unknown(_) => None,
        }
    }

    /// Name of the operation.
    pub fn type_name(&self) -> &str {
        match &self.operator {
            Operator::Known(kind) => kind.name(),
            Operator::Unknown(name) => name,
        }
    }

    /// The bindings of a parameter; empty if it is unbound.
    pub fn bindings(&self, name: &str) -> &[Binding] {
        let found = self.inputs.iter().find(|input| input.name == name);
        found.map_or(&[], |input| &input.bindings)
    }

    /// The binding of a parameter with exactly one binding.
    pub fn binding(&self, name: &str) -> Option<&Binding> {
        match self.bindings(name) {
            [binding] => Some(binding),
            _ => None,
        }
    }

    /// All bindings with their parameter names.
    pub fn all_bindings(&self) -> impl Iterator<Item = (&str, &Binding)> {
        let inputs = self.inputs.iter();
        inputs.flat_map(|input| input.bindings.iter().map(move |b| (input.name.as_ref(), b)))
    }

    /// The values that are bound to parameters.
    pub fn values(&self) -> impl Iterator<Item = ValueId> {
        self.all_bindings().filter_map(|(_, binding)| match binding {
            Binding::Value(value) => Some(*value),
            Binding::Literal(_) => None,
        })
    }

    /// The constants that are bound to parameters directly.
    pub fn literals(&self) -> impl Iterator<Item = &Constant> {
        self.all_bindings().filter_map(|(_, binding)| match binding {
            Binding::Literal(constant) => Some(constant),
            Binding::Value(_) => None,
        })
    }

    /// The constants in attributes, followed by the constants that are bound to inputs.
    pub fn constants(&self) -> impl Iterator<Item = &Constant> {
        self.attributes.iter().map(|(_, constant)| constant).chain(self.literals())
    }
}

impl Operator {
    /// Returns the operator with this name in files.
    pub fn from_name(name: &str) -> Operator {
        OpKind::from_name(name).map_or_else(|| Operator::Unknown(name.to_owned()), Operator::Known)
    }
}

impl Attributes {
    /// Returns the constant with this name.
    pub fn get(&self, name: &str) -> Option<&Constant> {
        let at = self.0.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// Returns the constant with this name mutably.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Constant> {
        let at = self.0.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        Some(&mut self.0[at].1)
    }

    /// Sets a constant and returns the previous constant with the name.
    pub fn insert(&mut self, name: impl Into<String>, constant: Constant) -> Option<Constant> {
        let name = name.into();
        match self.0.binary_search_by(|(key, _)| key.cmp(&name)) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, constant)),
            Err(at) => {
                self.0.insert(at, (name, constant));
                None
            }
        }
    }

    /// Removes and returns a constant.
    pub fn remove(&mut self, name: &str) -> Option<Constant> {
        let at = self.0.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Iterates over names and constants, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Constant)> {
        self.0.iter().map(|(name, constant)| (name.as_str(), constant))
    }

    /// Iterates over the constants mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Constant> {
        self.0.iter_mut().map(|(_, constant)| constant)
    }

    /// Number of attributes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Operator::Known(kind) => kind.name(),
            Operator::Unknown(name) => name,
        })
    }
}
