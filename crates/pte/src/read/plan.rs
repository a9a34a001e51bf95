use crate::error::Error;
use crate::flatbuffer::Table;
use crate::limits;
use crate::program::{
    ArenaDevice, Chain, CompileSpec, ContainerMetadata, Delegate, Device, ExecutionPlan, Frame,
    Instruction, Operator, Place, Placement, ScalarType, ShapeDynamism, Tensor, Value, ValueId,
};
use crate::schema;

type Result<T> = std::result::Result<T, Error>;

/// Reads a method. `data` resolves a reference to the index of a payload.
pub(super) fn plan(
    table: &Table<'_>,
    data: &mut dyn FnMut(&Table<'_>) -> Result<u32>,
) -> Result<ExecutionPlan> {
    use schema::plan as slot;
    let container = match table.table(slot::CONTAINER)? {
        Some(container) => {
            container.expect_known(schema::container::COUNT, "the container metadata")?;
            Some(ContainerMetadata {
                inputs: container.string(schema::container::INPUTS)?,
                outputs: container.string(schema::container::OUTPUTS)?,
            })
        }
        None => None,
    };
    Ok(ExecutionPlan {
        name: table.string(slot::NAME)?.unwrap_or_default(),
        container,
        values: table.tables(slot::VALUES, |index, value| {
            self::value(&value).map_err(|error| error.within(format!("value %{index}")))
        })?,
        inputs: ids(table, slot::INPUTS)?,
        outputs: ids(table, slot::OUTPUTS)?,
        chains: table.tables(slot::CHAINS, |index, chain| {
            self::chain(&chain).map_err(|error| error.within(format!("chain {index}")))
        })?,
        operators: table.tables(slot::OPERATORS, |_, operator| {
            operator.expect_known(schema::operator::COUNT, "an operator")?;
            Ok(Operator {
                name: operator.string(schema::operator::NAME)?.unwrap_or_default(),
                overload: operator.string(schema::operator::OVERLOAD)?.unwrap_or_default(),
            })
        })?,
        delegates: table.tables(slot::DELEGATES, |index, delegate| {
            self::delegate(&delegate, data)
                .map_err(|error| error.within(format!("delegate {index}")))
        })?,
        arenas: arenas(table)?,
        arena_devices: table.tables(slot::BUFFER_DEVICES, |_, device| {
            use schema::buffer_device as slot;
            device.expect_known(slot::COUNT, "the device of an arena")?;
            Ok(ArenaDevice {
                buffer: device.i32(slot::BUFFER, 0)?,
                device: Device {
                    kind: device.i8(slot::DEVICE_KIND, 0)?,
                    index: device.i8(slot::DEVICE_INDEX, 0)?,
                },
            })
        })?,
        unknown: table.unknown(slot::COUNT)?,
    })
}

/// Sizes of arenas; the first entry in the file is reserved for "none".
fn arenas(table: &Table<'_>) -> Result<Vec<u64>> {
    let sizes = table.i64s(schema::plan::BUFFER_SIZES)?.unwrap_or_default();
    let size = |size: &i64| {
        u64::try_from(*size).map_err(|_| {
            Error::malformed(format!("an arena has invalid size {size}")).at(table.offset())
        })
    };
    sizes.iter().skip(1).map(size).collect()
}

fn id(number: i32, table: &Table<'_>) -> Result<ValueId> {
    let id = u32::try_from(number).map(ValueId);
    id.map_err(|_| Error::malformed(format!("invalid value index {number}")).at(table.offset()))
}

fn ids(table: &Table<'_>, slot: u16) -> Result<Vec<ValueId>> {
    let numbers = table.i32s(slot)?.unwrap_or_default();
    numbers.into_iter().map(|number| id(number, table)).collect()
}

/// An index into a list other than values.
fn index(table: &Table<'_>, slot: u16, what: &str) -> Result<u32> {
    let number = table.i32(slot, 0)?;
    let index = u32::try_from(number);
    index.map_err(|_| Error::malformed(format!("invalid {what} index {number}")).at(table.offset()))
}

/// Type and table of a union.
fn member<'b>(table: &Table<'b>, what: &str) -> Result<(u8, Table<'b>)> {
    table.expect_known(schema::union::COUNT, what)?;
    let kind = table.u8(schema::union::TYPE, 0)?;
    match table.table(schema::union::VALUE)? {
        Some(member) if kind != 0 => Ok((kind, member)),
        _ => Err(Error::malformed(format!("{what} is empty")).at(table.offset())),
    }
}

fn chain(table: &Table<'_>) -> Result<Chain> {
    use schema::chain as slot;
    let frames = |list: Table<'_>| {
        list.expect_known(schema::frame_list::COUNT, "a stack trace")?;
        list.tables(schema::frame_list::ITEMS, |_, frame| {
            use schema::frame as slot;
            frame.expect_known(slot::COUNT, "a frame of a stack trace")?;
            Ok(Frame {
                file: frame.string(slot::FILE)?.unwrap_or_default(),
                line: frame.i32(slot::LINE, 0)?,
                function: frame.string(slot::FUNCTION)?.unwrap_or_default(),
                source: frame.string(slot::SOURCE)?.unwrap_or_default(),
            })
        })
    };
    let stack_traces = table.tables(slot::STACK_TRACES, |_, list| frames(list))?;
    Ok(Chain {
        inputs: ids(table, slot::INPUTS)?,
        outputs: ids(table, slot::OUTPUTS)?,
        instructions: table.tables(slot::INSTRUCTIONS, |index, instruction| {
            self::instruction(&instruction)
                .map_err(|error| error.within(format!("instruction {index}")))
        })?,
        stack_traces: (!stack_traces.is_empty()).then_some(stack_traces),
        unknown: table.unknown(slot::COUNT)?,
    })
}

fn instruction(table: &Table<'_>) -> Result<Instruction> {
    use schema::{call, instruction as kind, pair, single};
    let (found, member) = member(table, "an instruction")?;
    let known = match found {
        kind::FREE => single::COUNT,
        kind::MOVE | kind::JUMP_FALSE => pair::COUNT,
        _ => call::COUNT,
    };
    member.expect_known(known, "an instruction")?;
    Ok(match found {
        kind::KERNEL_CALL => Instruction::KernelCall {
            operator: index(&member, call::CALLEE, "operator")?,
            arguments: ids(&member, call::ARGUMENTS)?,
        },
        kind::DELEGATE_CALL => Instruction::DelegateCall {
            delegate: index(&member, call::CALLEE, "delegate")?,
            arguments: ids(&member, call::ARGUMENTS)?,
        },
        kind::MOVE => Instruction::Move {
            from: id(member.i32(pair::FIRST, 0)?, &member)?,
            to: id(member.i32(pair::SECOND, 0)?, &member)?,
        },
        kind::JUMP_FALSE => Instruction::JumpFalse {
            condition: id(member.i32(pair::FIRST, 0)?, &member)?,
            target: index(&member, pair::SECOND, "instruction")?,
        },
        kind::FREE => Instruction::Free(id(member.i32(single::VALUE, 0)?, &member)?),
        other => {
            let message = format!("unknown instruction kind {other}");
            return Err(Error::unsupported(message).at(table.offset()));
        }
    })
}

fn delegate(
    table: &Table<'_>,
    data: &mut dyn FnMut(&Table<'_>) -> Result<u32>,
) -> Result<Delegate> {
    use schema::delegate as slot;
    let Some(reference) = table.table(slot::PROCESSED)? else {
        return Err(Error::malformed("the delegate has no data").at(table.offset()));
    };
    Ok(Delegate {
        id: table.string(slot::ID)?.unwrap_or_default(),
        data: data(&reference)?,
        compile_specs: table.tables(slot::COMPILE_SPECS, |_, spec| {
            spec.expect_known(schema::compile_spec::COUNT, "a compile spec")?;
            Ok(CompileSpec {
                key: spec.string(schema::compile_spec::KEY)?.unwrap_or_default(),
                value: spec.u8s(schema::compile_spec::VALUE)?.unwrap_or_default().to_vec(),
            })
        })?,
        unknown: table.unknown(slot::COUNT)?,
    })
}

fn value(table: &Table<'_>) -> Result<Value> {
    use schema::{single, value as kind};
    let (found, member) = member(table, "a value")?;
    let known = match found {
        kind::NULL => 0,
        kind::TENSOR => return tensor(&member).map(Value::Tensor),
        _ => single::COUNT,
    };
    member.expect_known(known, "a value")?;
    let slot = single::VALUE;
    Ok(match found {
        kind::NULL => Value::Null,
        kind::INT => Value::Int(member.i64(slot, 0)?),
        kind::BOOL => Value::Bool(member.bool(slot)?),
        kind::DOUBLE => Value::Double(member.f64(slot, 0.0)?),
        kind::STRING => Value::String(member.string(slot)?.unwrap_or_default()),
        kind::INT_LIST => {
            let items = member.i64s(slot)?.unwrap_or_default();
            let item = |item: i64| {
                let id = u32::try_from(item).map(ValueId);
                id.map_err(|_| {
                    let message = format!("invalid value index {item}");
                    Error::malformed(message).at(member.offset())
                })
            };
            Value::IntList(items.into_iter().map(item).collect::<Result<_>>()?)
        }
        kind::DOUBLE_LIST => Value::DoubleList(member.f64s(slot)?.unwrap_or_default()),
        kind::BOOL_LIST => Value::BoolList(member.bools(slot)?.unwrap_or_default()),
        kind::TENSOR_LIST => Value::TensorList(ids(&member, slot)?),
        kind::OPTIONAL_TENSOR_LIST => {
            let items = member.i32s(slot)?.unwrap_or_default();
            let item = |item: i32| match item {
                -1 => Ok(None),
                _ => id(item, &member).map(Some),
            };
            Value::OptionalTensorList(items.into_iter().map(item).collect::<Result<_>>()?)
        }
        other => {
            let message = format!("unknown value kind {other}");
            return Err(Error::unsupported(message).at(table.offset()));
        }
    })
}

fn tensor(table: &Table<'_>) -> Result<Tensor> {
    use schema::tensor as slot;
    let fail = |message: String| Error::unsupported(message).at(table.offset());
    let number = table.i8(slot::SCALAR_TYPE, 0)?;
    let scalar_type = ScalarType::from_number(number)
        .ok_or_else(|| fail(format!("unknown element type {number}")))?;
    let storage_offset = table.i32(slot::STORAGE_OFFSET, 0)?;
    if storage_offset != 0 {
        let message = format!("the storage offset must be 0, got {storage_offset}");
        return Err(fail(message));
    }
    let layout = table.i8(slot::LAYOUT, 0)?;
    if layout != 0 {
        return Err(fail(format!("the layout must be strided (0), got {layout}")));
    }
    let dynamism = match table.i8(slot::DYNAMISM, 0)? {
        0 => ShapeDynamism::Static,
        1 => ShapeDynamism::Bound,
        2 => ShapeDynamism::Unbound,
        other => {
            return Err(fail(format!("unknown shape dynamism {other}")));
        }
    };
    let sizes = table.i32s(slot::SIZES)?.unwrap_or_default();
    if sizes.len() > limits::RANK {
        let message = format!("the rank must be at most {}, got {}", limits::RANK, sizes.len());
        return Err(Error::limit(message).at(table.offset()));
    }
    let extra = match table.table(slot::EXTRA)? {
        Some(extra) => Extra::read(&extra)?,
        None => Extra::default(),
    };
    let place = match table.table(slot::ALLOCATION)? {
        Some(allocation) => Some(place(&allocation)?),
        None => None,
    };
    let buffer = table.u32(slot::DATA_BUFFER, 0)?;
    let placement = match (extra.external, buffer.checked_sub(1), place) {
        (true, _, place) => Placement::External(place),
        (false, None, None) => Placement::GivenAtRunTime,
        (false, None, Some(place)) => Placement::Planned(place),
        (false, Some(index), None) => Placement::Constant(index),
        (false, Some(initial), Some(place)) => Placement::Initialized { initial, place },
    };
    Ok(Tensor {
        scalar_type,
        sizes,
        dim_order: table.u8s(slot::DIM_ORDER)?.unwrap_or_default().to_vec(),
        dynamism,
        placement,
        name: extra.name,
        device: extra.device,
        requires_grad: table.bool(slot::REQUIRES_GRAD)?,
        unknown: table.unknown(slot::COUNT)?,
    })
}

fn place(table: &Table<'_>) -> Result<Place> {
    use schema::allocation as slot;
    table.expect_known(slot::COUNT, "a memory allocation")?;
    let memory = table.u32(slot::MEMORY, 0)?;
    let arena = memory.checked_sub(1).ok_or_else(|| {
        Error::malformed("memory 0 is reserved; arenas start at 1").at(table.offset())
    })?;
    let low = u64::from(table.u32(slot::OFFSET_LOW, 0)?);
    let high = u64::from(table.u32(slot::OFFSET_HIGH, 0)?);
    Ok(Place { arena, offset: high << 32 | low })
}

/// Optional tensor fields that are rarely set.
#[derive(Default)]
struct Extra {
    name: Option<String>,
    external: bool,
    device: Device,
}

impl Extra {
    fn read(table: &Table<'_>) -> Result<Extra> {
        use schema::{tensor_extra as slot, tensor_location as location};
        table.expect_known(slot::COUNT, "the extra information of a tensor")?;
        let segment = table.u64(slot::MUTABLE_SEGMENT, 0)?;
        if segment != 0 {
            let message =
                format!("the initial value is in segment list {segment}; only list 0 is supported");
            return Err(Error::unsupported(message).at(table.offset()));
        }
        let external = match table.i8(slot::LOCATION, 0)? {
            location::PROGRAM => false,
            location::EXTERNAL => true,
            other => {
                let message = format!("the elements have unknown location {other}");
                return Err(Error::unsupported(message).at(table.offset()));
            }
        };
        Ok(Extra {
            name: table.string(slot::NAME)?,
            external,
            device: Device {
                kind: table.i8(slot::DEVICE_KIND, 0)?,
                index: table.i8(slot::DEVICE_INDEX, 0)?,
            },
        })
    }
}
