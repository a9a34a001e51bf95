//! Rules about programs.

use coremill_mil::ir::{
    Binding, BlockId, Constant, ConstantData, Definition, Function, Op, Operator, Type, ValueId,
    Weight, WeightPlace,
};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use coremill_verify::Code;

use crate::cases::{Case, main, model, relu, undescribed};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = structure();
    cases.extend(types_and_constants());
    cases.extend(interface());
    cases
}

fn changed(mut model: Model, change: impl FnOnce(&mut Function)) -> Model {
    change(&mut model.program.functions[0]);
    model
}

/// A program with a `cond` whose blocks contain one operation each.
fn branches(inner: &str, after: &str) -> String {
    let body = format!(
        r#"fp16 zero = const()[val = fp16(0x0p+0)];
        tensor<fp16, [4]> r = relu(x = x);
        tensor<bool, [4]> g = greater(x = x, y = zero);
        tensor<int32, [1]> axes = const()[val = tensor<int32, [1]>([0])];
        bool no = const()[val = bool(false)];
        tensor<fp16, [4]> unused = relu(x = r);
        tensor<fp16, []> total = reduce_sum(x = x, axes = axes, keep_dims = no);
        bool p = greater(x = total, y = zero);
        tensor<fp16, [4]> y = cond(pred = p)
            () {{
                tensor<fp16, [4]> inside = relu(x = x);
            }} -> (inside)
            () {{
                tensor<fp16, [4]> other = relu(x = {inner});
            }} -> (other);
        tensor<fp16, [4]> z = relu(x = {after});"#
    );
    main("ios17", "tensor<fp16, [4]> x", &body, "z")
}

/// The same program with a value renamed.
fn renamed(value: &str, name: &str) -> Model {
    changed(model(&branches("x", "y")), |function| {
        let id = named(function, value);
        function.value_mut(id).name = name.to_owned();
    })
}

fn named(function: &Function, name: &str) -> ValueId {
    let mut ids = (0..function.value_count()).map(ValueId::from_index);
    ids.find(|&id| function.value(id).name == name).expect("named")
}

fn structure() -> Vec<Case> {
    let mut no_function = relu();
    no_function.program.functions.clear();

    let mut twice = relu();
    let copy = twice.program.functions[0].clone();
    twice.program.functions.push(copy);
    twice.specification_version = 9;

    let state_named = {
        let mut model = relu();
        let output = model.program.functions[0].outputs()[0];
        model.program.functions[0].value_mut(output).name = "state".to_owned();
        model.description.outputs[0].name = "state".to_owned();
        model
    };
    let chain = || {
        model(&main(
            "ios17",
            "tensor<fp16, [4]> x",
            "tensor<fp16, [4]> a = relu(x = x)[name = string(\"a\")];\ntensor<fp16, [4]> y = relu(x = a)[name = string(\"y\")];",
            "y",
        ))
    };
    let same_name = changed(chain(), |function| {
        function.value_mut(ValueId::from_index(1)).name = "x".to_owned();
    });
    let dangling = changed(relu(), |function| {
        let op = function.block(function.body).ops[0];
        function.op_mut(op).set_input("x".into(), vec![Binding::Value(ValueId::from_index(99))]);
    });
    let cyclic = changed(relu(), |function| {
        let body = function.body;
        let op = function.block(body).ops[0];
        function.op_mut(op).blocks.push(body);
    });
    let op_twice = changed(relu(), |function| {
        let body = function.body;
        let op = function.block(body).ops[0];
        function.block_mut(body).ops.push(op);
    });
    let misplaced = changed(chain(), |function| {
        let body = function.body;
        let first = function.block(body).ops[0];
        let moved = Definition::Output(first, 7);
        let value = function.op(first).outputs[0];
        function.value_mut(value).definition = moved;
    });
    let undefined = changed(chain(), |function| {
        let body = function.body;
        function.block_mut(body).ops.reverse();
    });
    let sibling = {
        let mut broken = model(&branches("x", "y"));
        let function = &mut broken.program.functions[0];
        let (inside, other) = (named(function, "inside"), named(function, "other"));
        let Definition::Output(op, _) = function.value(other).definition else { panic!() };
        function.op_mut(op).set_input("x".into(), vec![Binding::Value(inside)]);
        broken
    };
    let no_outputs = {
        let mut model = relu();
        let body = model.program.functions[0].body;
        model.program.functions[0].block_mut(body).outputs.clear();
        model.description.outputs.clear();
        model
    };
    let unknown = changed(relu(), |function| {
        let op = function.block(function.body).ops[0];
        function.op_mut(op).operator = Operator::Unknown("custom_layer".to_owned());
    });
    let too_new = |opset: &str| {
        main(
            opset,
            "tensor<fp32, [4]> x",
            r#"fp32 v = const()[val = fp32(0x1p+0)];
            tensor<fp32, [4]> y = fill_like(ref_tensor = x, value = v);"#,
            "y",
        )
    };
    vec![
        Case::new(Code::NoFunction, no_function, relu()),
        Case::new(Code::DuplicateFunction, twice, relu()),
        Case::new(Code::InvalidName, state_named, relu()),
        Case::new(Code::DuplicateName, same_name, chain()),
        // Sibling blocks may use the same names; nested blocks may not.
        Case::new(Code::DuplicateName, renamed("inside", "r"), renamed("inside", "other")),
        Case::new(Code::DanglingId, dangling, relu()),
        Case::new(Code::SharedBlock, cyclic, model(&branches("x", "y"))),
        Case::new(Code::SharedOp, op_twice, relu()).with(&[Code::MisplacedValue]),
        Case::new(Code::MisplacedValue, misplaced, chain()),
        Case::new(Code::DeepNesting, nested(41), nested(40)),
        Case::new(Code::UndefinedValue, undefined, chain()),
        Case::new(Code::UndefinedValue, sibling, model(&branches("x", "y"))),
        Case::new(Code::NoOutputs, no_outputs, relu()),
        Case::new(Code::UnknownOperator, unknown, relu()),
        Case::new(Code::OperatorTooNew, model(&too_new("ios15")), model(&too_new("ios16"))),
        Case::new(
            Code::DuplicateOpName,
            changed(chain(), |function| {
                let op = function.block(function.body).ops[0];
                function.op_mut(op).attributes.insert("name", Constant::string("y"));
            }),
            chain(),
        ),
    ]
}

/// Nested loops around one `add`.
fn nested(depth: usize) -> Model {
    let ty = Type::tensor(DType::Fp16, &[4]);
    let mut function = Function::new("main", coremill_mil::ir::Opset::Ios17);
    let body = function.body;
    let x = function.add_input(body, "x", ty.clone());
    let never = function.add_op(
        body,
        Op::constant(Constant::bool(false)),
        [("never".to_owned(), Type::scalar(DType::Bool))],
    );
    let never = function.op(never).outputs[0];
    // Branches have no inputs, so build the tree from the outside in, and set the outputs on the way out.
    let mut around: Vec<(BlockId, BlockId)> = Vec::new();
    let mut outer = body;
    for _ in 0..depth {
        let (yes, no) = (function.add_block(), function.add_block());
        around.push((outer, yes));
        let level = around.len();
        let other = function.add_op(
            no,
            Op::new(OpKind::Relu).with("x", Binding::Value(x)),
            [(format!("other_{level}"), ty.clone())],
        );
        let other = function.op(other).outputs[0];
        function.block_mut(no).outputs.push(other);
        let mut op = Op::new(OpKind::Cond).with("pred", Binding::Value(never));
        op.blocks = vec![yes, no];
        let id = function.add_op(outer, op, [(format!("y_{level}"), ty.clone())]);
        let output = function.op(id).outputs[0];
        function.block_mut(outer).outputs.push(output);
        outer = yes;
    }
    let innermost = function.add_op(
        outer,
        Op::new(OpKind::Relu).with("x", Binding::Value(x)),
        [("innermost".to_owned(), ty)],
    );
    let innermost = function.op(innermost).outputs[0];
    function.block_mut(outer).outputs.push(innermost);
    let program = coremill_mil::ir::Program { functions: vec![function], ..Default::default() };
    crate::cases::described(program)
}

fn types_and_constants() -> Vec<Case> {
    let transposed = |perm: &str| {
        model(&main(
            "ios15",
            "tensor<fp32, [2, 3]> x",
            &format!(
                "tensor<int32, [2]> p = const()[val = tensor<int32, [2]>({perm})];\n\
                 tensor<fp32, [3, 2]> y = transpose(perm = p, x = x);"
            ),
            "y",
        ))
    };
    let declared = |ty: &str| {
        model(&main("ios17", "tensor<fp16, [4]> x", &format!("{ty} y = relu(x = x);"), "y"))
    };
    let rank = |shape: &str, dims: usize| {
        model(&main(
            "ios17",
            "tensor<fp32, [2, 4]> x",
            &format!(
                "tensor<int32, [{dims}]> s = const()[val = tensor<int32, [{dims}]>({shape})];\n\
                 tensor<fp32, {shape}> r = reshape(shape = s, x = x);\n\
                 tensor<int32, [2]> t = const()[val = tensor<int32, [2]>([2, 4])];\n\
                 tensor<fp32, [2, 4]> y = reshape(shape = t, x = r);"
            ),
            "y",
        ))
    };
    let with_weight = |dtype: &str| {
        model(&main(
            "ios17",
            "tensor<fp16, [4]> x",
            &format!(
                r#"tensor<{dtype}, [4]> w = const()[val = tensor<{dtype}, [4]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];
                tensor<fp16, [4]> y = add(x = x, y = w);"#
            ),
            "y",
        ))
    };
    let constant = |change: fn(&mut Constant)| {
        changed(with_weight("fp16"), |function| {
            let op = function.block(function.body).ops[0];
            change(function.op_mut(op).attributes.get_mut("val").expect("stated"));
        })
    };
    let short = constant(|value| {
        value.data = ConstantData::Bytes(vec![0; 6].into());
    });
    let open = constant(|value| {
        value.data = ConstantData::Strings(vec!["1".to_owned(); 4]);
    });
    let missing = constant(|value| {
        let place = WeightPlace { file: "@model_path/weights/weight.bin".into(), offset: 64 };
        value.data = ConstantData::Weight(Weight { data: None, place: Some(place) });
    });
    let bool_weight = |val: &str| {
        model(&main(
            "ios17",
            "tensor<fp16, [4]> x",
            &format!(
                "tensor<bool, [4]> m = const()[val = {val}];\n\
                 tensor<fp16, [4]> z = relu(x = x);\n\
                 tensor<fp16, [4]> y = select(a = x, b = z, cond = m);"
            ),
            "y",
        ))
    };
    let attribute = changed(relu(), |function| {
        let op = function.block(function.body).ops[0];
        function.op_mut(op).attributes.insert("colour", Constant::string("blue"));
    });
    let mut bool_broken = bool_weight("tensor<bool, [4]>([true, false, true, false])");
    {
        let function = &mut bool_broken.program.functions[0];
        let op = function.block(function.body).ops[0];
        let value = function.op_mut(op).attributes.get_mut("val").expect("stated");
        value.data =
            ConstantData::Weight(Weight { data: Some(vec![1, 0, 1, 0].into()), place: None });
    }
    vec![
        Case::new(Code::InvalidOperation, transposed("[0, 0]"), transposed("[1, 0]")),
        Case::new(Code::TypeMismatch, declared("tensor<fp16, [5]>"), declared("tensor<fp16, [4]>")),
        Case::new(Code::RankLimit, rank("[1, 1, 1, 1, 2, 4]", 6), rank("[1, 1, 1, 2, 4]", 5)),
        Case::new(Code::ConstantSize, short, with_weight("fp16")),
        Case::new(Code::ConstantType, open, with_weight("fp16")),
        Case::new(Code::WeightMissing, missing, with_weight("fp16")),
        Case::new(
            Code::WeightType,
            bool_broken,
            bool_weight("tensor<bool, [4]>([true, false, true, false])"),
        ),
        Case::new(Code::UnknownAttribute, attribute, relu()),
    ]
}

fn interface() -> Vec<Case> {
    let vector = "tensor<fp32, [4]> x";
    let one = |opset: &str, inputs: &str, body: &str, outputs: &str| {
        model(&main(opset, inputs, body, outputs))
    };
    let relu32 = "tensor<fp32, [4]> y = relu(x = x);";
    let scalar =
        |ty: &str| one("ios17", &format!("{ty} x"), &format!("{ty} y = relu(x = x);"), "y");
    let constant_only = |opset: &str| {
        one(
            opset,
            "",
            "tensor<fp32, [1]> c = const()[val = tensor<fp32, [1]>([0x1p+0])];\n\
             tensor<fp32, [1]> y = identity(x = c);",
            "y",
        )
    };
    let half =
        |opset: &str| one(opset, "tensor<fp16, [4]> x", "tensor<fp16, [4]> y = relu(x = x);", "y");
    let booleans = main(
        "ios17",
        "tensor<fp32, [4]> x",
        "fp32 z = const()[val = fp32(0x0p+0)];\ntensor<bool, [4]> y = greater(x = x, y = z);",
        "y",
    );
    let state = |ty: &str, opset: &str| {
        main(
            opset,
            &format!("state<{ty}> s, {ty} x"),
            &format!(
                "{ty} old = read_state(input = s);\n{ty} new = add(x = old, y = x);\n\
                 write_state(data = new, input = s);\n{ty} y = relu(x = new);"
            ),
            "y",
        )
    };
    vec![
        Case::new(Code::ScalarInput, scalar("fp32"), scalar("tensor<fp32, [1]>")),
        Case::new(Code::ScalarOutput, scalar("fp32"), scalar("tensor<fp32, [1]>"))
            .with(&[Code::ScalarInput]),
        Case::new(
            Code::PassedThrough,
            one("ios17", vector, relu32, "y, x"),
            one(
                "ios17",
                vector,
                &format!("{relu32}\ntensor<fp32, [4]> z = identity(x = x);"),
                "y, z",
            ),
        ),
        Case::new(
            Code::DuplicateOutput,
            one("ios17", vector, relu32, "y, y"),
            one("ios17", vector, relu32, "y"),
        )
        .with(&[Code::FeatureDuplicate]),
        Case::new(
            Code::UnusedInput,
            one("ios17", "tensor<fp32, [4]> x, tensor<fp32, [4]> z", relu32, "y"),
            one("ios17", vector, relu32, "y"),
        ),
        Case::new(Code::NoInputs, constant_only("ios17"), constant_only("ios18")),
        Case::new(
            Code::InterfaceType,
            {
                let mut model = half("ios15");
                model.specification_version = 6;
                model
            },
            half("ios16"),
        ),
        Case::new(Code::InterfaceType, undescribed(&booleans), half("ios17"))
            .with(&[Code::FeatureMissing]),
        Case::new(
            Code::StateType,
            model(&state("tensor<fp32, [32]>", "ios18")),
            model(&state("tensor<fp16, [32]>", "ios18")),
        ),
        Case::new(
            Code::StateTooNew,
            {
                let mut model = model(&state("tensor<fp16, [32]>", "ios17"));
                model.specification_version = 8;
                model
            },
            model(&state("tensor<fp16, [32]>", "ios18")),
        )
        .with(&[Code::OperatorTooNew]),
    ]
}
