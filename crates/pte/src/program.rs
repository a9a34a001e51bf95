//! What an ExecuTorch program says.
//!
//! A [`Program`] has a [`ExecutionPlan`] for each method. A plan is a list of values and chains of instructions
//! that call kernels and delegates on them; everything refers to values by [`ValueId`], the place in the
//! plan's list. Tensors that the plan computes lie in arenas whose sizes are known beforehand; constants lie
//! in the program and are shared by its methods.
//!
//! Where the file counts from 1, because 0 stands for "none", the ids here count from 0.

use std::fmt;

use coremill_tensor::DType;

use crate::ByteRope;

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The version of the schema; every file so far says 0.
    pub version: u32,
    /// The methods.
    pub plans: Vec<ExecutionPlan>,
    /// The bytes of constant tensors, elements one after the other in the tensor's dimension order.
    pub constants: Vec<ByteRope>,
    /// The bytes that tensors have before the first run, as [`Program::constants`].
    pub mutable_data: Vec<ByteRope>,
    /// What delegates are given. Several delegates may be given the same.
    pub delegate_data: Vec<ByteRope>,
    /// What delegates look up by name.
    pub named_data: Vec<NamedData>,
    /// Segments of the file that nothing known refers to.
    pub other_segments: Vec<ByteRope>,
    /// What newer writers may have said.
    pub unknown: Unknown,
}

/// Bytes with a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedData {
    /// The name. Of two of the same name, the runtime finds the first.
    pub key: String,
    /// The bytes.
    pub data: ByteRope,
    /// Bytes to whose multiple the data is aligned in the file, a power of two. The file does not say so; what
    /// was read has 1. The least is that of segments, 128, in any case.
    pub alignment: u32,
    /// What newer writers may have said.
    pub unknown: Unknown,
}

/// A method.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionPlan {
    /// The name, `forward` for most.
    pub name: String,
    /// How inputs and outputs are nested in Python.
    pub container: Option<ContainerMetadata>,
    /// Everything that instructions speak of.
    pub values: Vec<Value>,
    /// The values that callers give, in order.
    pub inputs: Vec<ValueId>,
    /// The values that callers get, in order.
    pub outputs: Vec<ValueId>,
    /// What to do. The runtime performs one chain after the other.
    pub chains: Vec<Chain>,
    /// The kernels that are called.
    pub operators: Vec<Operator>,
    /// The delegates that are called.
    pub delegates: Vec<Delegate>,
    /// The bytes of each arena; [`Place::arena`] is an index here.
    pub arenas: Vec<u64>,
    /// Arenas that do not lie in the processor's memory.
    pub arena_devices: Vec<ArenaDevice>,
    /// What newer writers may have said.
    pub unknown: Unknown,
}

/// Which value of a plan: an index of [`ExecutionPlan::values`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The place in the plan's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// How inputs and outputs are nested in Python: the JSON of PyTorch's tree specifications, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMetadata {
    /// Of the inputs: a tuple of positional arguments and a dictionary of others.
    pub inputs: Option<String>,
    /// Of the outputs.
    pub outputs: Option<String>,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: an optional argument that is left out.
    Null,
    /// An integer. It can be written at run time, as sizes of tensors are.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A float.
    Double(f64),
    /// Text.
    String(String),
    /// A tensor.
    Tensor(Tensor),
    /// Integers, each a value of its own, [`Value::Int`].
    IntList(Vec<ValueId>),
    /// Floats.
    DoubleList(Vec<f64>),
    /// Truth values.
    BoolList(Vec<bool>),
    /// Tensors, which stand before the list.
    TensorList(Vec<ValueId>),
    /// Tensors or nothing. A value may be [`Value::Null`], too.
    OptionalTensorList(Vec<Option<ValueId>>),
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The type of the elements.
    pub scalar_type: ScalarType,
    /// The dimensions; for [`ShapeDynamism::Bound`] the largest that they become.
    pub sizes: Vec<i32>,
    /// The dimensions in the order in which they lie in memory, the outermost first: 0, 1, 2, … when contiguous.
    pub dim_order: Vec<u8>,
    /// Whether the sizes change from run to run.
    pub dynamism: ShapeDynamism,
    /// Where the elements lie.
    pub placement: Placement,
    /// What the tensor is called in the model, `layers.0.weight` for instance; external data goes by it.
    pub name: Option<String>,
    /// The device in whose memory it lies.
    pub device: Device,
    /// Whether training changes it.
    pub requires_grad: bool,
    /// What newer writers may have said.
    pub unknown: Unknown,
}

impl Tensor {
    /// A contiguous tensor of fixed shape, without a name.
    pub fn new(scalar_type: ScalarType, sizes: Vec<i32>, placement: Placement) -> Tensor {
        Tensor {
            scalar_type,
            dim_order: (0..sizes.len()).map(|axis| axis as u8).collect(),
            sizes,
            dynamism: ShapeDynamism::Static,
            placement,
            name: None,
            device: Device::default(),
            requires_grad: false,
            unknown: Unknown::default(),
        }
    }

    /// The bytes of all elements, for the largest sizes; none where that is not a number of bytes.
    pub fn byte_length(&self) -> Option<u64> {
        byte_length(self.scalar_type, &self.sizes)
    }
}

/// The bytes of the elements of a tensor; none where that is not a number of bytes.
pub(crate) fn byte_length(scalar_type: ScalarType, sizes: &[i32]) -> Option<u64> {
    sizes.iter().try_fold(scalar_type.bytes(), |product, size| {
        product.checked_mul(u64::try_from(*size).ok()?)
    })
}

/// Whether the sizes of a tensor change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShapeDynamism {
    /// They do not.
    #[default]
    Static,
    /// They do, up to the sizes that are stated.
    Bound,
    /// They do, without a bound. ExecuTorch's runtime does not take such tensors.
    Unbound,
}

/// Where the elements of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Nowhere before the run: the caller or a kernel says where.
    GivenAtRunTime,
    /// In the program: an index of [`Program::constants`].
    Constant(u32),
    /// In an arena; what lies there at first is not defined.
    Planned(Place),
    /// In an arena, where some bytes are put when the method is loaded: an index of [`Program::mutable_data`].
    Initialized {
        /// The bytes.
        initial: u32,
        /// Where they are put.
        place: Place,
    },
    /// In a file of its own, by [`Tensor::name`]: where it was loaded to, or copied into an arena.
    External(Option<Place>),
}

/// A place in an arena of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which arena: an index of [`ExecutionPlan::arenas`].
    pub arena: u32,
    /// The first byte.
    pub offset: u64,
}

/// A device: the kind, and which one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// The processor is 0, CUDA is 1.
    pub kind: i8,
    /// Which one of them.
    pub index: i8,
}

/// An arena that lies in the memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArenaDevice {
    /// The number by which the file knows the arena, which is that of [`ExecutionPlan::arenas`] plus 1.
    pub buffer: i32,
    /// Where it lies.
    pub device: Device,
}

/// Instructions, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// The values that come from outside. Writers leave them out.
    pub inputs: Vec<ValueId>,
    /// The values that go outside. Writers leave them out.
    pub outputs: Vec<ValueId>,
    /// The instructions.
    pub instructions: Vec<Instruction>,
    /// For each instruction the lines of Python that it comes from; none if the writer did not keep them.
    pub stack_traces: Option<Vec<Vec<Frame>>>,
    /// What newer writers may have said.
    pub unknown: Unknown,
}

/// A line of Python.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The file.
    pub file: String,
    /// The number of the line.
    pub line: i32,
    /// The function.
    pub function: String,
    /// What stands there.
    pub source: String,
}

/// What a chain does in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Calls a kernel.
    KernelCall {
        /// Which: an index of [`ExecutionPlan::operators`].
        operator: u32,
        /// One value for every argument of the operator's schema, and one for what it returns.
        arguments: Vec<ValueId>,
    },
    /// Calls a delegate.
    DelegateCall {
        /// Which: an index of [`ExecutionPlan::delegates`].
        delegate: u32,
        /// Its inputs, then its outputs.
        arguments: Vec<ValueId>,
    },
    /// Makes a value the same as another.
    Move {
        /// The value that is taken.
        from: ValueId,
        /// The value that becomes the same.
        to: ValueId,
    },
    /// Goes on elsewhere if a truth value is false.
    JumpFalse {
        /// The value: a [`Value::Bool`], or a tensor of truth values.
        condition: ValueId,
        /// The instruction to go on with, in the same chain; the number of instructions ends the chain.
        target: u32,
    },
    /// Gives back the memory of a tensor.
    Free(ValueId),
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operator {
    /// The name with its namespace, `aten::add` for instance.
    pub name: String,
    /// The overload, `out` for instance; empty for none.
    pub overload: String,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operator { name, overload } = self;
        if overload.is_empty() { f.write_str(name) } else { write!(f, "{name}.{overload}") }
    }
}

/// A part of the method that a backend runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delegate {
    /// The backend, `CoreMLBackend` for instance.
    pub id: String,
    /// What it is given: an index of [`Program::delegate_data`].
    pub data: u32,
    /// How it is to be run.
    pub compile_specs: Vec<CompileSpec>,
    /// What newer writers may have said.
    pub unknown: Unknown,
}

/// A setting of a delegate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileSpec {
    /// The name.
    pub key: String,
    /// The value, whose form the backend knows.
    pub value: Vec<u8>,
}

/// Fields of a table that are newer than this crate, in the order of their slots.
///
/// What a writer that we do not know added to the schema is kept and written again if it is a scalar; a file
/// whose unknown fields may refer to other parts of it can be read, but is not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown(pub Vec<UnknownField>);

/// A field of a table that is newer than this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownField {
    /// The number of the field.
    pub slot: u16,
    /// What stands in the table itself.
    pub bytes: Vec<u8>,
    /// Whether this may be the offset of something elsewhere in the file.
    pub may_refer: bool,
}

/// Declares the enum and the functions that list its variants.
macro_rules! scalar_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $bytes:literal, $dtype:expr;)*) => {
        /// The element types of tensors, with the numbers that PyTorch and the file have for them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ScalarType {
            $($(#[$doc])* $variant = $number,)*
        }

        impl ScalarType {
            /// Every type.
            pub const ALL: &[ScalarType] = &[$(ScalarType::$variant,)*];

            /// The type with a number.
            pub fn from_number(number: i8) -> Option<ScalarType> {
                match number {
                    $($number => Some(ScalarType::$variant),)*
                    _ => None,
                }
            }

            /// The type that Core ML has a name for, if there is one.
            pub fn of(dtype: DType) -> Option<ScalarType> {
                ScalarType::ALL.iter().copied().find(|found| found.dtype() == Some(dtype))
            }

            /// The bytes of an element.
            pub fn bytes(self) -> u64 {
                match self {
                    $(ScalarType::$variant => $bytes,)*
                }
            }

            /// Core ML's name for the same type, if there is one.
            pub fn dtype(self) -> Option<DType> {
                match self {
                    $(ScalarType::$variant => $dtype,)*
                }
            }
        }
    };
}

scalar_types! {
    /// Unsigned, 8 bits.
    Byte = 0, 1, Some(DType::UInt8);
    /// Signed, 8 bits.
    Char = 1, 1, Some(DType::Int8);
    /// Signed, 16 bits.
    Short = 2, 2, Some(DType::Int16);
    /// Signed, 32 bits.
    Int = 3, 4, Some(DType::Int32);
    /// Signed, 64 bits.
    Long = 4, 8, Some(DType::Int64);
    /// Float, 16 bits.
    Half = 5, 2, Some(DType::Fp16);
    /// Float, 32 bits.
    Float = 6, 4, Some(DType::Fp32);
    /// Float, 64 bits.
    Double = 7, 8, Some(DType::Fp64);
    /// Complex, two floats of 16 bits.
    ComplexHalf = 8, 4, None;
    /// Complex, two floats of 32 bits.
    ComplexFloat = 9, 8, None;
    /// Complex, two floats of 64 bits.
    ComplexDouble = 10, 16, None;
    /// Truth values, a byte each.
    Bool = 11, 1, Some(DType::Bool);
    /// Quantized, signed, 8 bits.
    QInt8 = 12, 1, None;
    /// Quantized, unsigned, 8 bits.
    QUInt8 = 13, 1, None;
    /// Quantized, signed, 32 bits.
    QInt32 = 14, 4, None;
    /// The upper half of a 32-bit float.
    BFloat16 = 15, 2, Some(DType::Bf16);
    /// Quantized, two in a byte.
    QUInt4x2 = 16, 1, None;
    /// Quantized, four in a byte.
    QUInt2x4 = 17, 1, None;
    /// 16 bits of any meaning.
    Bits16 = 22, 2, None;
    /// Float, 8 bits, 5 of them exponent.
    Float8E5M2 = 23, 1, Some(DType::Fp8E5M2);
    /// Float, 8 bits, 4 of them exponent, no infinities.
    Float8E4M3Fn = 24, 1, Some(DType::Fp8E4M3Fn);
    /// Float, 8 bits, 5 of them exponent, no negative zero.
    Float8E5M2Fnuz = 25, 1, None;
    /// Float, 8 bits, 4 of them exponent, no negative zero.
    Float8E4M3Fnuz = 26, 1, None;
    /// Unsigned, 16 bits.
    UInt16 = 27, 2, Some(DType::UInt16);
    /// Unsigned, 32 bits.
    UInt32 = 28, 4, Some(DType::UInt32);
    /// Unsigned, 64 bits.
    UInt64 = 29, 8, Some(DType::UInt64);
}
