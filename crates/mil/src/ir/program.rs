use std::borrow::Cow;
use std::fmt;

use super::constant::Constant;
use super::types::Type;
use crate::ops::OpKind;
use crate::ops::Opset;

/// An ML Program: functions, and what their writer noted about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The functions, in the order in which they were read or added; names are distinct.
    pub functions: Vec<Function>,
    /// Notes about the whole program, `buildInfo` for instance.
    pub attributes: Attributes,
    /// A text for people.
    pub documentation: String,
    /// What the file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// A function: one graph of operations that a caller can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The name.
    pub name: String,
    /// The operations that it may use, and their versions.
    pub opset: Opset,
    /// Notes about the function, `FlexibleShapeInformation` for instance.
    pub attributes: Attributes,
    /// The block that is run; its inputs are the function's.
    pub body: BlockId,
    /// What the file holds that this crate does not know.
    pub unknown: UnknownFields,
    values: Vec<Value>,
    ops: Vec<Op>,
    blocks: Vec<Block>,
}

/// A sequence of operations with inputs and outputs of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The values that whoever runs the block passes in.
    pub inputs: Vec<ValueId>,
    /// The operations, in the order in which they run.
    pub ops: Vec<OpId>,
    /// The values that running the block gives.
    pub outputs: Vec<ValueId>,
    /// Notes about the block.
    pub attributes: Attributes,
    /// What the file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What it does.
    pub operator: Operator,
    /// The arguments, sorted by name; a parameter that has its default is absent.
    pub inputs: Vec<Input>,
    /// What it gives.
    pub outputs: Vec<ValueId>,
    /// The blocks that it runs.
    pub blocks: Vec<BlockId>,
    /// What is stated rather than passed: `val` of a constant, `name`, and the operands of the older
    /// compressed constants.
    pub attributes: Attributes,
    /// What the file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// The operation that an [`Op`] performs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// One that the op table declares.
    Known(OpKind),
    /// One that it does not; kept, but never verified.
    Unknown(String),
}

/// The argument of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// The parameter.
    pub name: Name,
    /// What is bound to it: one binding, or several for a parameter that takes a list.
    pub bindings: Vec<Binding>,
}

/// Something bound to a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// A value that was computed before.
    Value(ValueId),
    /// A value stated on the spot.
    Literal(Constant),
}

/// A value: an input of a block or an output of an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The name, unique in the function.
    pub name: String,
    /// The declared type.
    pub ty: Type,
    /// Where it comes from.
    pub definition: Definition,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definition {
    /// The input of a block at an index.
    Input(BlockId, u32),
    /// The output of an operation at an index.
    Output(OpId, u32),
}

/// The name of a parameter; a static one wherever the op table knows it.
pub type Name = Cow<'static, str>;

/// Named constants, sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(Vec<(String, Constant)>);

/// Fields of a message that this crate does not know, encoded as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownFields(pub Vec<u8>);

macro_rules! id {
    ($name:ident, $prefix:literal, $what:literal) => {
        #[doc = concat!("Names ", $what, " of one function.")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// The position among its kind, for side tables.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The id at a position, for walking side tables.
            pub fn from_index(index: usize) -> $name {
                $name(u32::try_from(index).expect("a function holds fewer than 2^32 of a kind"))
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
    /// The function of that name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

impl Function {
    /// A function with an empty body.
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

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// A value, to change its name or type.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.index()]
    }

    /// An operation.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// An operation, to change it.
    pub fn op_mut(&mut self, id: OpId) -> &mut Op {
        &mut self.ops[id.index()]
    }

    /// A block.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// A block, to change it.
    pub fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.index()]
    }

    /// How many values there are, those that nothing refers to any more included.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// How many operations there are, those that no block holds any more included.
    pub fn op_count(&self) -> usize {
        self.ops.len()
    }

    /// How many blocks there are, those that nothing holds any more included.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// The values that callers pass in.
    pub fn inputs(&self) -> &[ValueId] {
        &self.block(self.body).inputs
    }

    /// The values that callers get.
    pub fn outputs(&self) -> &[ValueId] {
        &self.block(self.body).outputs
    }

    /// Adds an empty block that nothing runs yet.
    pub fn add_block(&mut self) -> BlockId {
        self.blocks.push(Block::default());
        BlockId::from_index(self.blocks.len() - 1)
    }

    /// Adds an input at the end of a block's inputs.
    pub fn add_input(&mut self, block: BlockId, name: impl Into<String>, ty: Type) -> ValueId {
        let position = self.block(block).inputs.len() as u32;
        let id = self.add_value(name.into(), ty, Definition::Input(block, position));
        self.block_mut(block).inputs.push(id);
        id
    }

    /// Appends an operation to a block; its outputs are given by name and type, and whatever stands
    /// in `op.outputs` is replaced by them.
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

    /// The constant behind a value: what its `const` operation states.
    pub fn constant(&self, id: ValueId) -> Option<&Constant> {
        match self.value(id).definition {
            Definition::Output(op, 0) => {
                let op = self.op(op);
                (op.operator == Operator::Known(OpKind::Const)).then(|| op.attributes.get("val"))?
            }
            _ => None,
        }
    }

    /// The constant that a binding states, on the spot or through a `const`.
    pub fn bound_constant<'f>(&'f self, binding: &'f Binding) -> Option<&'f Constant> {
        match binding {
            Binding::Value(value) => self.constant(*value),
            Binding::Literal(constant) => Some(constant),
        }
    }

    /// Every block that runs, with its depth: the body first, then each operation's blocks before
    /// those of the operations after it.
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

    /// Every operation of every block that runs, in the order of [`Function::blocks_in_order`].
    pub fn all_ops(&self) -> impl Iterator<Item = (OpId, &Op)> {
        let blocks = self.blocks_in_order().into_iter();
        blocks.flat_map(|(block, _)| self.block(block).ops.iter().map(|&op| (op, self.op(op))))
    }

    fn add_value(&mut self, name: String, ty: Type, definition: Definition) -> ValueId {
        self.values.push(Value { name, ty, definition });
        ValueId::from_index(self.values.len() - 1)
    }
}

impl Op {
    /// An operation without arguments.
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

    /// A `const` that states a value.
    pub fn constant(value: Constant) -> Op {
        let mut op = Op::new(OpKind::Const);
        op.attributes.insert("val", value);
        op
    }

    /// Whether it states a constant, as it is stored or expanded from a smaller form.
    pub fn is_constant(&self) -> bool {
        self.kind().is_some_and(OpKind::is_constant)
    }

    /// The same operation with an argument more.
    pub fn with(mut self, name: impl Into<Name>, binding: Binding) -> Op {
        self.set_input(name.into(), vec![binding]);
        self
    }

    /// The same operation with an argument more, a list of values.
    pub fn with_list(mut self, name: impl Into<Name>, bindings: Vec<Binding>) -> Op {
        self.set_input(name.into(), bindings);
        self
    }

    /// Binds a parameter, replacing what was bound to it.
    pub fn set_input(&mut self, name: Name, bindings: Vec<Binding>) {
        match self.inputs.binary_search_by(|input| input.name.cmp(&name)) {
            Ok(at) => self.inputs[at].bindings = bindings,
            Err(at) => self.inputs.insert(at, Input { name, bindings }),
        }
    }

    /// The operation, if the op table declares it.
    pub fn kind(&self) -> Option<OpKind> {
        match self.operator {
            Operator::Known(kind) => Some(kind),
            Operator::Unknown(_) => None,
        }
    }

    /// The operation's name.
    pub fn type_name(&self) -> &str {
        match &self.operator {
            Operator::Known(kind) => kind.name(),
            Operator::Unknown(name) => name,
        }
    }

    /// What is bound to a parameter; empty if nothing is.
    pub fn bindings(&self, name: &str) -> &[Binding] {
        let found = self.inputs.iter().find(|input| input.name == name);
        found.map_or(&[], |input| &input.bindings)
    }

    /// The one thing bound to a parameter.
    pub fn binding(&self, name: &str) -> Option<&Binding> {
        match self.bindings(name) {
            [binding] => Some(binding),
            _ => None,
        }
    }

    /// Everything bound, parameter by parameter.
    pub fn all_bindings(&self) -> impl Iterator<Item = (&str, &Binding)> {
        let inputs = self.inputs.iter();
        inputs.flat_map(|input| input.bindings.iter().map(move |b| (input.name.as_ref(), b)))
    }
}

impl Operator {
    /// The operator that files call `name`.
    pub fn from_name(name: &str) -> Operator {
        OpKind::from_name(name).map_or_else(|| Operator::Unknown(name.to_owned()), Operator::Known)
    }
}

impl Attributes {
    /// The constant of that name.
    pub fn get(&self, name: &str) -> Option<&Constant> {
        let at = self.0.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// The constant of that name, to change it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Constant> {
        let at = self.0.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        Some(&mut self.0[at].1)
    }

    /// Sets a constant and gives back the one that had the name.
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

    /// Takes a constant out.
    pub fn remove(&mut self, name: &str) -> Option<Constant> {
        let at = self.0.binary_search_by(|(key, _)| key.as_str().cmp(name)).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Name and constant of each, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Constant)> {
        self.0.iter().map(|(name, constant)| (name.as_str(), constant))
    }

    /// The constants, to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Constant> {
        self.0.iter_mut().map(|(_, constant)| constant)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
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
