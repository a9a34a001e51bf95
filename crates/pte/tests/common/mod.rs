//! A program that contains every kind of item.

use coremill_pte::ByteRope;
use coremill_pte::program::{
    ArenaDevice, Chain, CompileSpec, ContainerMetadata, Delegate, Device, ExecutionPlan, Frame,
    Instruction, NamedData, Operator, Place, Placement, Program, ScalarType, ShapeDynamism, Tensor,
    Unknown, UnknownField, Value, ValueId,
};
use coremill_tensor::Buffer;

fn data(parts: &[&str]) -> ByteRope {
    parts.iter().map(|part| Buffer::from(part.as_bytes().to_vec())).collect()
}

fn ids(numbers: &[u32]) -> Vec<ValueId> {
    numbers.iter().copied().map(ValueId).collect()
}

/// The program: two methods that share constants and a delegate's data.
pub(crate) fn sample() -> Program {
    let place = |offset| Place { arena: 0, offset };
    let tensor = |placement| Tensor::new(ScalarType::Float, vec![2, 2], placement);
    let unknown = Unknown(vec![UnknownField { slot: 11, bytes: vec![1; 8], may_refer: false }]);
    let values = vec![
        Value::Tensor(tensor(Placement::Planned(place(0)))),
        Value::Tensor(tensor(Placement::Constant(1))),
        Value::Tensor(Tensor {
            dim_order: vec![1, 0],
            dynamism: ShapeDynamism::Bound,
            requires_grad: true,
            unknown: unknown.clone(),
            ..tensor(Placement::Planned(place(16)))
        }),
        Value::Int(-3),
        Value::Tensor(Tensor {
            name: Some("cache.key".to_owned()),
            ..tensor(Placement::Initialized { initial: 0, place: place(32) })
        }),
        Value::Null,
        Value::Bool(true),
        Value::Double(-0.0),
        Value::String("text".to_owned()),
        Value::IntList(ids(&[3, 3])),
        Value::DoubleList(vec![0.5, f64::INFINITY]),
        Value::BoolList(vec![false, true, true]),
        Value::TensorList(ids(&[0, 2])),
        Value::OptionalTensorList(vec![Some(ValueId(0)), None, Some(ValueId(5))]),
        Value::Tensor(Tensor {
            name: Some("layers.0.weight".to_owned()),
            ..tensor(Placement::External(None))
        }),
        Value::Tensor(Tensor {
            device: Device { kind: 1, index: 2 },
            ..Tensor::new(ScalarType::BFloat16, vec![], Placement::GivenAtRunTime)
        }),
        Value::Tensor(Tensor::new(ScalarType::Byte, vec![3, 0], Placement::Constant(0))),
        Value::Double(0.0),
        Value::IntList(vec![]),
    ];
    let frame = Frame {
        file: "model.py".to_owned(),
        line: 12,
        function: "forward".to_owned(),
        source: "return x + 1".to_owned(),
    };
    let chain = Chain {
        inputs: ids(&[0]),
        outputs: ids(&[2]),
        instructions: vec![
            Instruction::KernelCall { operator: 1, arguments: ids(&[0, 1, 3, 2, 2]) },
            Instruction::JumpFalse { condition: ValueId(6), target: 5 },
            Instruction::DelegateCall { delegate: 1, arguments: ids(&[0, 2]) },
            Instruction::Move { from: ValueId(0), to: ValueId(2) },
            Instruction::Free(ValueId(0)),
        ],
        stack_traces: Some(vec![vec![frame], vec![], vec![], vec![], vec![]]),
        unknown: Unknown::default(),
    };
    let spec = CompileSpec { key: "compute_units".to_owned(), value: b"all".to_vec() };
    let operator = |name: &str, overload: &str| Operator {
        name: name.to_owned(),
        overload: overload.to_owned(),
    };
    let forward = ExecutionPlan {
        name: "forward".to_owned(),
        container: Some(ContainerMetadata {
            inputs: Some("[1, {\"type\": \"builtins.tuple\"}]".to_owned()),
            outputs: None,
        }),
        values,
        inputs: ids(&[0]),
        outputs: ids(&[2, 3]),
        chains: vec![chain, Chain::default()],
        operators: vec![
            operator("executorch_prim::et_view", "default"),
            operator("aten::add", "out"),
        ],
        delegates: vec![
            Delegate { id: "CoreMLBackend".to_owned(), ..Delegate::default() },
            Delegate {
                id: "CoreMLBackend".to_owned(),
                data: 0,
                compile_specs: vec![spec],
                unknown: Unknown::default(),
            },
        ],
        arenas: vec![48, 1 << 40],
        arena_devices: vec![ArenaDevice { buffer: 2, device: Device { kind: 1, index: 0 } }],
        unknown: unknown.clone(),
    };
    let far = Place { arena: 0, offset: (1 << 33) + 16 };
    let prefill = ExecutionPlan {
        name: "prefill".to_owned(),
        values: vec![
            Value::Tensor(tensor(Placement::Constant(1))),
            Value::Tensor(tensor(Placement::Planned(far))),
        ],
        delegates: vec![Delegate { id: "Other".to_owned(), data: 1, ..Delegate::default() }],
        arenas: vec![1 << 34],
        ..ExecutionPlan::default()
    };
    let named = |key: &str, bytes: &[&str]| NamedData {
        key: key.to_owned(),
        data: data(bytes),
        alignment: 1,
        unknown: Unknown::default(),
    };
    Program {
        version: 0,
        plans: vec![forward, prefill],
        constants: vec![ByteRope::new(), data(&["second ", "constant!"])],
        mutable_data: vec![data(&["the first value."])],
        delegate_data: vec![data(&["what the delegate", " is given"]), data(&["other"])],
        named_data: vec![named("first", &["named bytes"]), named("second", &["more"])],
        other_segments: vec![data(&["nobody knows"])],
        unknown,
    }
}
