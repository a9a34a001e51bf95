//! Data model of ExecuTorch programs.
//!
//! A [`Program`] has an [`ExecutionPlan`] per method. A plan contains a list of values, and chains of instructions
//! that call kernels and delegates. All references to values are [`ValueId`]s, indices into the plan's list.
//! Computed tensors are stored in arenas of planned size. Constants are stored in the program and shared by its
//! methods.
//!
//! Ids here start at 0, also where the file starts at 1 to use 0 for "none".

use std::fmt;

use coremill_tensor::DType;

use crate::ByteRope;

/// A program file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Schema version; always 0 so far.
    pub version: u32,
    /// The methods.
    pub plans: Vec<ExecutionPlan>,
    /// Data of constant tensors, in the tensor's dimension order.
    pub constants: Vec<ByteRope>,
    /// Initial data of mutable tensors, in the same format as [`Program::constants`].
    pub mutable_data: Vec<ByteRope>,
    /// Payloads of delegates. Several delegates may share one.
    pub delegate_data: Vec<ByteRope>,
    /// Data that delegates look up by name.
    pub named_data: Vec<NamedData>,
    /// Unreferenced segments of the file.
    pub other_segments: Vec<ByteRope>,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// Named data.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedData {
    /// Name. If several entries have the same name, the runtime uses the first.
    pub key: String,
    /// The bytes.
    pub data: ByteRope,
    /// Alignment in the file, a power of two. It is not stored in the file, so it is 1 after reading. Segments are
    /// aligned to at least 128 in any case.
    pub alignment: u32,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// A method: its values, and the instructions that compute them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecutionPlan {
    /// Name, mostly `forward`.
    pub name: String,
    /// Nesting of inputs and outputs in Python.
    pub container: Option<ContainerMetadata>,
    /// Values used by instructions.
    pub values: Vec<Value>,
    /// Input values, in order.
    pub inputs: Vec<ValueId>,
    /// Output values, in order.
    pub outputs: Vec<ValueId>,
    /// Instruction chains, executed in order.
    pub chains: Vec<Chain>,
    /// Kernels used.
    pub operators: Vec<Operator>,
    /// Delegates used.
    pub delegates: Vec<Delegate>,
    /// Size of each arena in bytes, indexed by [`Place::arena`].
    pub arenas: Vec<u64>,
    /// Arenas that are not in CPU memory.
    pub arena_devices: Vec<ArenaDevice>,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// Identifier of a value: an index of [`ExecutionPlan::values`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Index in the plan's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Nesting of inputs and outputs in Python, as JSON of PyTorch's tree specifications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMetadata {
    /// Inputs: a tuple of positional arguments and a dictionary of keyword arguments.
    pub inputs: Option<String>,
    /// Outputs.
    pub outputs: Option<String>,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value: an omitted optional argument.
    Null,
    /// An integer. It may be written at run time, for example a size.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A float.
    Double(f64),
    /// A string.
    String(String),
    /// A tensor.
    Tensor(Tensor),
    /// Integers, each of which is a [`Value::Int`].
    IntList(Vec<ValueId>),
    /// Floats.
    DoubleList(Vec<f64>),
    /// Booleans.
    BoolList(Vec<bool>),
    /// Tensors, which precede the list.
    TensorList(Vec<ValueId>),
    /// Optional tensors. An entry may also be [`Value::Null`].
    OptionalTensorList(Vec<Option<ValueId>>),
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub scalar_type: ScalarType,
    /// Sizes of the dimensions; for [`ShapeDynamism::Bound`] the maximum sizes.
    pub sizes: Vec<i32>,
    /// Dimensions in memory order, outermost first: 0, 1, 2, … for a contiguous tensor.
    pub dim_order: Vec<u8>,
    /// Whether sizes vary between runs.
    pub dynamism: ShapeDynamism,
    /// Location of the elements.
    pub placement: Placement,
    /// Name in the model, such as `layers.0.weight`; identifies external data.
    pub name: Option<String>,
    /// Device whose memory contains the tensor.
    pub device: Device,
    /// Whether training updates the tensor.
    pub requires_grad: bool,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

impl Tensor {
    /// A contiguous static tensor without a name.
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

    /// Size in bytes for the maximum shape; `None` on overflow.
    pub fn byte_length(&self) -> Option<u64> {
        byte_length(self.scalar_type, &self.sizes)
    }
}

/// Size of a tensor in bytes; `None` on overflow.
pub(crate) fn byte_length(scalar_type: ScalarType, sizes: &[i32]) -> Option<u64> {
    sizes.iter().try_fold(scalar_type.bytes(), |product, size| {
        product.checked_mul(u64::try_from(*size).ok()?)
    })
}

/// Variability of a tensor's sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShapeDynamism {
    /// Constant.
    #[default]
    Static,
    /// Variable, up to the stated sizes.
    Bound,
    /// Unbounded. ExecuTorch's runtime does not support such tensors.
    Unbound,
}

/// Location of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Unspecified: set at run time by the caller or a kernel.
    GivenAtRunTime,
    /// A constant of the program: an index of [`Program::constants`].
    Constant(u32),
    /// In an arena, with undefined initial contents.
    Planned(Place),
    /// In an arena, with initial contents.
    Initialized {
        /// Initial data: an index of [`Program::mutable_data`].
        initial: u32,
        /// Location in the arena.
        place: Place,
    },
    /// In an external file, identified by [`Tensor::name`]: used in place or copied to an arena.
    External(Option<Place>),
}

/// A location in an arena of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of [`ExecutionPlan::arenas`].
    pub arena: u32,
    /// Byte offset.
    pub offset: u64,
}

/// A device: kind and index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// 0 for CPU, 1 for CUDA.
    pub kind: i8,
    /// Index among the devices of this kind.
    pub index: i8,
}

/// An arena in device memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArenaDevice {
    /// Number of the arena in the file: its index in [`ExecutionPlan::arenas`] plus 1.
    pub buffer: i32,
    /// Device whose memory contains the arena.
    pub device: Device,
}

/// A sequence of instructions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// Input values. Writers leave this empty.
    pub inputs: Vec<ValueId>,
    /// Output values. Writers leave this empty.
    pub outputs: Vec<ValueId>,
    /// The instructions.
    pub instructions: Vec<Instruction>,
    /// For each instruction, the Python stack that it comes from; `None` if not recorded.
    pub stack_traces: Option<Vec<Vec<Frame>>>,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// A frame of a Python stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// File name.
    pub file: String,
    /// Line number.
    pub line: i32,
    /// Function name.
    pub function: String,
    /// Source text of the line.
    pub source: String,
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Calls a kernel.
    KernelCall {
        /// Index of [`ExecutionPlan::operators`].
        operator: u32,
        /// One value per argument of the operator's schema, then the returned value.
        arguments: Vec<ValueId>,
    },
    /// Calls a delegate.
    DelegateCall {
        /// Index of [`ExecutionPlan::delegates`].
        delegate: u32,
        /// Inputs, then outputs.
        arguments: Vec<ValueId>,
    },
    /// Copies a value.
    Move {
        /// Source value.
        from: ValueId,
        /// Destination value.
        to: ValueId,
    },
    /// Jumps if a condition is false.
    JumpFalse {
        /// The condition: a [`Value::Bool`], or a tensor of booleans.
        condition: ValueId,
        /// Target index in the same chain; the number of instructions ends the chain.
        target: u32,
    },
    /// Frees the memory of a tensor.
    Free(ValueId),
}

/// A kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operator {
    /// Name with namespace, such as `aten::add`.
    pub name: String,
    /// Overload, such as `out`; empty for none.
    pub overload: String,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operator { name, overload } = self;
        if overload.is_empty() { f.write_str(name) } else { write!(f, "{name}.{overload}") }
    }
}

/// A part of the method that is executed by a backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delegate {
    /// Backend id, such as `CoreMLBackend`.
    pub id: String,
    /// Payload: an index of [`Program::delegate_data`].
    pub data: u32,
    /// Settings for execution.
    pub compile_specs: Vec<CompileSpec>,
    /// Unknown fields of newer writers.
    pub unknown: Unknown,
}

/// A setting of a delegate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileSpec {
    /// Name of the setting.
    pub key: String,
    /// Value in a backend-specific format.
    pub value: Vec<u8>,
}

/// Unknown fields of a table, in slot order.
///
/// Fields of a newer schema are kept and written again if they are scalars. A file whose unknown fields may contain
/// offsets can be read, but not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown(pub Vec<UnknownField>);

/// An unknown field of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownField {
    /// Slot number.
    pub slot: u16,
    /// Bytes in the table.
    pub bytes: Vec<u8>,
    /// Whether the field may be an offset.
    pub may_refer: bool,
}

/// Declares the enum and the functions that list its variants.
macro_rules! scalar_types {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $bytes:literal, $dtype:expr;)*) => {
        /// Element type of a tensor, with its number in PyTorch and in the file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ScalarType {
            $($(#[$doc])* $variant = $number,)*
        }

        impl ScalarType {
            /// All types.
            pub const ALL: &[ScalarType] = &[$(ScalarType::$variant,)*];

            /// The type with a given number.
            pub fn from_number(number: i8) -> Option<ScalarType> {
                match number {
                    $($number => Some(ScalarType::$variant),)*
                    _ => None,
                }
            }

            /// The type equivalent to a Core ML type, if there is one.
            pub fn of(dtype: DType) -> Option<ScalarType> {
                ScalarType::ALL.iter().copied().find(|found| found.dtype() == Some(dtype))
            }

            /// Size of an element in bytes.
            pub fn bytes(self) -> u64 {
                match self {
                    $(ScalarType::$variant => $bytes,)*
                }
            }

            /// The equivalent Core ML type, if there is one.
            pub fn dtype(self) -> Option<DType> {
                match self {
                    $(ScalarType::$variant => $dtype,)*
                }
            }
        }
    };
}

scalar_types! {
    /// Unsigned 8-bit integer.
    Byte = 0, 1, Some(DType::UInt8);
    /// Signed 8-bit integer.
    Char = 1, 1, Some(DType::Int8);
    /// Signed 16-bit integer.
    Short = 2, 2, Some(DType::Int16);
    /// Signed 32-bit integer.
    Int = 3, 4, Some(DType::Int32);
    /// Signed 64-bit integer.
    Long = 4, 8, Some(DType::Int64);
    /// 16-bit float.
    Half = 5, 2, Some(DType::Fp16);
    /// 32-bit float.
    Float = 6, 4, Some(DType::Fp32);
    /// 64-bit float.
    Double = 7, 8, Some(DType::Fp64);
    /// Complex number of two 16-bit floats.
    ComplexHalf = 8, 4, None;
    /// Complex number of two 32-bit floats.
    ComplexFloat = 9, 8, None;
    /// Complex number of two 64-bit floats.
    ComplexDouble = 10, 16, None;
    /// Boolean, one byte.
    Bool = 11, 1, Some(DType::Bool);
    /// Quantized signed 8-bit integer.
    QInt8 = 12, 1, None;
    /// Quantized unsigned 8-bit integer.
    QUInt8 = 13, 1, None;
    /// Quantized signed 32-bit integer.
    QInt32 = 14, 4, None;
    /// The upper half of a 32-bit float.
    BFloat16 = 15, 2, Some(DType::Bf16);
    /// Quantized 4-bit integers, two per byte.
    QUInt4x2 = 16, 1, None;
    /// Quantized 2-bit integers, four per byte.
    QUInt2x4 = 17, 1, None;
    /// 16 bits without interpretation.
    Bits16 = 22, 2, None;
    /// 8-bit float with 5 exponent bits.
    Float8E5M2 = 23, 1, Some(DType::Fp8E5M2);
    /// 8-bit float with 4 exponent bits and without infinities.
    Float8E4M3Fn = 24, 1, Some(DType::Fp8E4M3Fn);
    /// 8-bit float with 5 exponent bits and without negative zero.
    Float8E5M2Fnuz = 25, 1, None;
    /// 8-bit float with 4 exponent bits and without negative zero.
    Float8E4M3Fnuz = 26, 1, None;
    /// Unsigned 16-bit integer.
    UInt16 = 27, 2, Some(DType::UInt16);
    /// Unsigned 32-bit integer.
    UInt32 = 28, 4, Some(DType::UInt32);
    /// Unsigned 64-bit integer.
    UInt64 = 29, 8, Some(DType::UInt64);
}
