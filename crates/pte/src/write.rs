//! Writer of programs.

use std::path::Path;

use crate::ByteRope;
use crate::check::check;
use crate::error::{Error, ErrorKind, escape_truncated};
use crate::flatbuffer::{Builder, Fields, Offset};
use crate::program::{
    Chain, Delegate, ExecutionPlan, Frame, Instruction, Place, Placement, Program, Tensor, Value,
    ValueId,
};
use crate::read::{HEADER_BYTES, HEADER_MAGIC, IDENTIFIER};
use crate::schema;
use crate::segments::{self, SEGMENT_ALIGNMENT, Segments, WriteOptions};

type Result<T> = std::result::Result<T, Error>;

/// Alignment of constants, so that kernels can read them in place.
const CONSTANT_ALIGNMENT: u64 = 16;

/// Alignment of the end of the tables: the largest alignment in the schema.
const TABLE_ALIGNMENT: usize = 16;

/// Writes a program atomically, replacing an existing file. Output is deterministic.
pub fn write(path: &Path, program: &Program, options: &WriteOptions) -> Result<()> {
    segments::write(path, &to_data(program)?, options)
}

/// Serializes a program without copying its data.
pub fn to_data(program: &Program) -> Result<ByteRope> {
    check(program).map_err(|error| error.with_kind(ErrorKind::Unwritable))?;
    let mut segments = Segments::default();
    let mut builder = Builder::default();
    let root = self::program(program, &mut builder, &mut segments)?;
    let too_large = || Error::new(ErrorKind::Unwritable, "the tables exceed 2^31 bytes");
    if segments.len() == 0 {
        let bytes = builder.finish(root, IDENTIFIER, &[], TABLE_ALIGNMENT);
        return bytes.map(ByteRope::from).ok_or_else(too_large);
    }
    let mut header = [0; HEADER_BYTES as usize];
    let bytes = builder.finish(root, IDENTIFIER, &header, TABLE_ALIGNMENT);
    let mut bytes = bytes.ok_or_else(too_large)?;
    let size = bytes.len() as u64;
    header[..4].copy_from_slice(&HEADER_MAGIC);
    header[4..8].copy_from_slice(&HEADER_BYTES.to_le_bytes());
    header[8..16].copy_from_slice(&size.to_le_bytes());
    header[16..24].copy_from_slice(&size.next_multiple_of(SEGMENT_ALIGNMENT).to_le_bytes());
    header[24..].copy_from_slice(&segments.len().to_le_bytes());
    bytes[8..8 + header.len()].copy_from_slice(&header);
    Ok(segments.behind(bytes))
}

fn program(program: &Program, builder: &mut Builder, segments: &mut Segments) -> Result<Offset> {
    use schema::program as slot;
    program.unknown.check_writable("the program")?;
    // ExecuTorch's reader expects the constant segment even if it is empty.
    let constants = subsegments(&program.constants, CONSTANT_ALIGNMENT, builder, segments)?;
    let mutable = match program.mutable_data.as_slice() {
        [] => None,
        data => {
            let offsets = subsegments(data, 1, builder, segments)?;
            Some(builder.vector_of_tables(&[offsets]))
        }
    };
    let mut references = Vec::new();
    let mut inline = 0;
    for data in &program.delegate_data {
        references.push(if data.is_empty() {
            inline += 1;
            (schema::location::INLINE, inline - 1)
        } else {
            (schema::location::SEGMENT, segments.add(data, SEGMENT_ALIGNMENT)?)
        });
    }
    let empty: Vec<Offset> = (0..inline).map(|_| builder.table(&mut Fields::default())).collect();
    let mut named_data = Vec::new();
    for named in &program.named_data {
        let within =
            |error: Error| error.within(format!("named data `{}`", escape_truncated(&named.key)));
        named.unknown.check_writable("the entry").map_err(within)?;
        let alignment = segments::alignment(named.alignment).map_err(within)?;
        let segment = segments.add(&named.data, alignment)?;
        let key = builder.string(&named.key);
        let mut fields = Fields::default();
        fields.offset(schema::named_data::KEY, key);
        fields.scalar(schema::named_data::SEGMENT, segment).unknown(&named.unknown);
        named_data.push(builder.table(&mut fields));
    }
    for other in &program.other_segments {
        segments.add_new(other, SEGMENT_ALIGNMENT)?;
    }
    let mut plans = Vec::new();
    for plan in &program.plans {
        plans.push(
            self::plan(plan, &references, builder).map_err(|error| {
                error.within(format!("method `{}`", escape_truncated(&plan.name)))
            })?,
        );
    }

    // ExecuTorch's Python reader rejects absent lists; its runtime treats empty ones as absent.
    let mut fields = Fields::default();
    fields.scalar(slot::VERSION, program.version);
    fields.offset(slot::PLANS, builder.vector_of_tables(&plans));
    fields.offset(slot::CONSTANT_BUFFERS, builder.vector_of_tables(&[]));
    fields.offset(slot::DELEGATE_DATA, builder.vector_of_tables(&empty));
    fields.offset(slot::SEGMENTS, segments.tables(builder));
    fields.offset(slot::CONSTANT_SEGMENT, constants);
    fields.offset(slot::MUTABLE_SEGMENTS, mutable);
    if !named_data.is_empty() {
        fields.offset(slot::NAMED_DATA, builder.vector_of_tables(&named_data));
    }
    Ok(builder.table(fields.unknown(&program.unknown)))
}

/// Concatenates data to a segment. The first offset is reserved for "none".
fn subsegments(
    all: &[ByteRope],
    alignment: u64,
    builder: &mut Builder,
    segments: &mut Segments,
) -> Result<Offset> {
    let mut segment = ByteRope::new();
    let mut offsets = vec![0];
    for data in all {
        let start = (segment.len() as u64).next_multiple_of(alignment);
        segment.push(vec![0; start as usize - segment.len()]);
        segment.append(data);
        offsets.push(start);
    }
    let index = segments.add_new(&segment, SEGMENT_ALIGNMENT)?;
    let offsets = builder.vector(&offsets);
    let mut fields = Fields::default();
    fields.scalar(schema::subsegments::SEGMENT, index);
    Ok(builder.table(fields.offset(schema::subsegments::OFFSETS, offsets)))
}

/// Writes a method. `references` contains the location of each payload.
fn plan(plan: &ExecutionPlan, references: &[(i8, u32)], builder: &mut Builder) -> Result<Offset> {
    use schema::plan as slot;
    plan.unknown.check_writable("the method")?;
    let container = plan.container.as_ref().map(|container| {
        let inputs = builder.optional_string(container.inputs.as_deref());
        let outputs = builder.optional_string(container.outputs.as_deref());
        let mut fields = Fields::default();
        fields.offset(schema::container::INPUTS, inputs);
        builder.table(fields.offset(schema::container::OUTPUTS, outputs))
    });
    let mut values = Vec::new();
    for (index, value) in plan.values.iter().enumerate() {
        values.push(
            self::value(value, builder).map_err(|error| error.within(format!("value %{index}")))?,
        );
    }
    let mut chains = Vec::new();
    for chain in &plan.chains {
        chain.unknown.check_writable("the chain")?;
        chains.push(self::chain(chain, builder));
    }
    let operators: Vec<Offset> = plan
        .operators
        .iter()
        .map(|operator| {
            let name = builder.string(&operator.name);
            let overload = builder.string(&operator.overload);
            let mut fields = Fields::default();
            fields.offset(schema::operator::NAME, name);
            builder.table(fields.offset(schema::operator::OVERLOAD, overload))
        })
        .collect();
    let mut delegates = Vec::new();
    for delegate in &plan.delegates {
        delegate.unknown.check_writable("the delegate")?;
        delegates.push(self::delegate(delegate, references[delegate.data as usize], builder));
    }
    let devices: Vec<Offset> = plan
        .arena_devices
        .iter()
        .map(|arena| {
            use schema::buffer_device as slot;
            let mut fields = Fields::default();
            fields.scalar(slot::BUFFER, arena.buffer);
            fields.scalar(slot::DEVICE_KIND, arena.device.kind);
            builder.table(fields.scalar(slot::DEVICE_INDEX, arena.device.index))
        })
        .collect();
    let mut sizes = vec![0];
    for size in &plan.arenas {
        sizes.push(i64::try_from(*size).map_err(|_| {
            Error::new(ErrorKind::Unwritable, format!("an arena of {size} bytes is too large"))
        })?);
    }

    let mut fields = Fields::default();
    fields.offset(slot::NAME, builder.string(&plan.name));
    fields.offset(slot::CONTAINER, container);
    fields.offset(slot::VALUES, builder.vector_of_tables(&values));
    fields.offset(slot::INPUTS, ids(&plan.inputs, builder));
    fields.offset(slot::OUTPUTS, ids(&plan.outputs, builder));
    fields.offset(slot::CHAINS, builder.vector_of_tables(&chains));
    fields.offset(slot::OPERATORS, builder.vector_of_tables(&operators));
    fields.offset(slot::DELEGATES, builder.vector_of_tables(&delegates));
    fields.offset(slot::BUFFER_SIZES, builder.vector(&sizes));
    if !devices.is_empty() {
        fields.offset(slot::BUFFER_DEVICES, builder.vector_of_tables(&devices));
    }
    Ok(builder.table(fields.unknown(&plan.unknown)))
}

/// Ids are valid indices of a list, which has fewer than 2^31 values, as each takes 4 bytes of the tables.
fn number(id: ValueId) -> i32 {
    id.0 as i32
}

fn ids(ids: &[ValueId], builder: &mut Builder) -> Offset {
    let numbers: Vec<i32> = ids.iter().map(|id| number(*id)).collect();
    builder.vector(&numbers)
}

/// Writes a union: type and table.
fn member(kind: u8, fields: &mut Fields, builder: &mut Builder) -> Offset {
    let member = builder.table(fields);
    let mut fields = Fields::default();
    fields.scalar(schema::union::TYPE, kind);
    builder.table(fields.offset(schema::union::VALUE, member))
}

fn chain(chain: &Chain, builder: &mut Builder) -> Offset {
    use schema::chain as slot;
    let instructions: Vec<Offset> =
        chain.instructions.iter().map(|found| instruction(found, builder)).collect();
    let stack_traces = chain.stack_traces.as_ref().map(|traces| {
        let traces: Vec<Offset> =
            traces.iter().map(|frames| stack_trace(frames, builder)).collect();
        builder.vector_of_tables(&traces)
    });
    let mut fields = Fields::default();
    fields.offset(slot::INPUTS, ids(&chain.inputs, builder));
    fields.offset(slot::OUTPUTS, ids(&chain.outputs, builder));
    fields.offset(slot::INSTRUCTIONS, builder.vector_of_tables(&instructions));
    fields.offset(slot::STACK_TRACES, stack_traces);
    builder.table(fields.unknown(&chain.unknown))
}

fn stack_trace(frames: &[Frame], builder: &mut Builder) -> Offset {
    use schema::frame as slot;
    let frames: Vec<Offset> = frames
        .iter()
        .map(|frame| {
            let file = builder.string(&frame.file);
            let function = builder.string(&frame.function);
            let source = builder.string(&frame.source);
            let mut fields = Fields::default();
            fields.offset(slot::FILE, file).scalar(slot::LINE, frame.line);
            builder.table(fields.offset(slot::FUNCTION, function).offset(slot::SOURCE, source))
        })
        .collect();
    let frames = builder.vector_of_tables(&frames);
    builder.table(Fields::default().offset(schema::frame_list::ITEMS, frames))
}

fn instruction(instruction: &Instruction, builder: &mut Builder) -> Offset {
    use schema::{call, instruction as kind, pair, single};
    let mut fields = Fields::default();
    let kind = match instruction {
        Instruction::KernelCall { operator, arguments } => {
            fields.scalar(call::CALLEE, *operator as i32);
            fields.offset(call::ARGUMENTS, ids(arguments, builder));
            kind::KERNEL_CALL
        }
        Instruction::DelegateCall { delegate, arguments } => {
            fields.scalar(call::CALLEE, *delegate as i32);
            fields.offset(call::ARGUMENTS, ids(arguments, builder));
            kind::DELEGATE_CALL
        }
        Instruction::Move { from, to } => {
            fields.scalar(pair::FIRST, number(*from)).scalar(pair::SECOND, number(*to));
            kind::MOVE
        }
        Instruction::JumpFalse { condition, target } => {
            fields.scalar(pair::FIRST, number(*condition)).scalar(pair::SECOND, *target as i32);
            kind::JUMP_FALSE
        }
        Instruction::Free(value) => {
            fields.scalar(single::VALUE, number(*value));
            kind::FREE
        }
    };
    member(kind, &mut fields, builder)
}

fn delegate(delegate: &Delegate, reference: (i8, u32), builder: &mut Builder) -> Offset {
    use schema::delegate as slot;
    let id = builder.string(&delegate.id);
    let specs: Vec<Offset> = delegate
        .compile_specs
        .iter()
        .map(|spec| {
            let key = builder.string(&spec.key);
            let value = builder.vector(&spec.value);
            let mut fields = Fields::default();
            fields.offset(schema::compile_spec::KEY, key);
            builder.table(fields.offset(schema::compile_spec::VALUE, value))
        })
        .collect();
    let specs = builder.vector_of_tables(&specs);
    let mut fields = Fields::default();
    fields.scalar(schema::data_reference::LOCATION, reference.0);
    let processed = builder.table(fields.scalar(schema::data_reference::INDEX, reference.1));
    let mut fields = Fields::default();
    fields.offset(slot::ID, id).offset(slot::PROCESSED, processed);
    builder.table(fields.offset(slot::COMPILE_SPECS, specs).unknown(&delegate.unknown))
}

fn value(value: &Value, builder: &mut Builder) -> Result<Offset> {
    use schema::{single, value as kind};
    let slot = single::VALUE;
    let mut fields = Fields::default();
    let kind = match value {
        Value::Null => kind::NULL,
        Value::Int(number) => {
            fields.scalar(slot, *number);
            kind::INT
        }
        Value::Bool(truth) => {
            fields.scalar(slot, *truth);
            kind::BOOL
        }
        Value::Double(number) => {
            // Negative zero is not the default.
            if number.to_bits() != 0 {
                fields.scalar_even_if_default(slot, *number);
            }
            kind::DOUBLE
        }
        Value::String(text) => {
            fields.offset(slot, builder.string(text));
            kind::STRING
        }
        Value::IntList(items) => {
            let items: Vec<i64> = items.iter().map(|id| i64::from(id.0)).collect();
            fields.offset(slot, builder.vector(&items));
            kind::INT_LIST
        }
        Value::DoubleList(items) => {
            fields.offset(slot, builder.vector(items));
            kind::DOUBLE_LIST
        }
        Value::BoolList(items) => {
            fields.offset(slot, builder.vector(items));
            kind::BOOL_LIST
        }
        Value::TensorList(items) => {
            fields.offset(slot, ids(items, builder));
            kind::TENSOR_LIST
        }
        Value::OptionalTensorList(items) => {
            let items: Vec<i32> = items.iter().map(|item| item.map_or(-1, number)).collect();
            fields.offset(slot, builder.vector(&items));
            kind::OPTIONAL_TENSOR_LIST
        }
        Value::Tensor(tensor) => {
            tensor.unknown.check_writable("the tensor")?;
            fields = self::tensor(tensor, builder);
            kind::TENSOR
        }
    };
    Ok(member(kind, &mut fields, builder))
}

fn tensor(tensor: &Tensor, builder: &mut Builder) -> Fields {
    use schema::tensor as slot;
    let (buffer, place, external) = match tensor.placement {
        Placement::GivenAtRunTime => (0, None, false),
        Placement::Constant(index) => (index + 1, None, false),
        Placement::Planned(place) => (0, Some(place), false),
        Placement::Initialized { initial, place } => (initial + 1, Some(place), false),
        Placement::External(place) => (0, place, true),
    };
    let mut fields = Fields::default();
    fields.scalar(slot::SCALAR_TYPE, tensor.scalar_type as i8);
    fields.offset(slot::SIZES, builder.vector(&tensor.sizes));
    fields.offset(slot::DIM_ORDER, builder.vector(&tensor.dim_order));
    fields.scalar(slot::REQUIRES_GRAD, tensor.requires_grad);
    fields.scalar(slot::DATA_BUFFER, buffer);
    fields.offset(slot::ALLOCATION, place.map(|place| self::place(place, builder)));
    fields.scalar(slot::DYNAMISM, tensor.dynamism as i8);
    if external || tensor.name.is_some() || tensor.device != Default::default() {
        use schema::{tensor_extra as slot, tensor_location as location};
        let name = builder.optional_string(tensor.name.as_deref());
        let mut extra = Fields::default();
        extra.offset(slot::NAME, name);
        extra.scalar(slot::LOCATION, if external { location::EXTERNAL } else { location::PROGRAM });
        extra.scalar(slot::DEVICE_KIND, tensor.device.kind);
        extra.scalar(slot::DEVICE_INDEX, tensor.device.index);
        fields.offset(schema::tensor::EXTRA, builder.table(&mut extra));
    }
    fields.unknown(&tensor.unknown);
    fields
}

fn place(place: Place, builder: &mut Builder) -> Offset {
    use schema::allocation as slot;
    let mut fields = Fields::default();
    fields.scalar(slot::MEMORY, place.arena + 1);
    fields.scalar(slot::OFFSET_LOW, (place.offset & u64::from(u32::MAX)) as u32);
    builder.table(fields.scalar(slot::OFFSET_HIGH, (place.offset >> 32) as u32))
}
