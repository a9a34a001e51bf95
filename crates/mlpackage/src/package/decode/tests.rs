use coremill_tensor::DType;

use super::*;
use crate::package::encode;
use crate::package::schema::dtype_code;
use crate::package::wire::Writer;
use coremill_mil::ir::{
    Binding, Constant, ConstantData, Dim, Function, Name, Op, Operator, Opset, TensorType, Type,
    UnknownFields, Weight, WeightPlace,
};
use coremill_mil::model::{
    ArrayDataType, ArrayType, ColorSpace, DefaultElement, FeatureDescription, FeatureType,
    FunctionDescription, ImageSize, ImageSizes, ImageType, KeyType, Metadata, SequenceType,
    ShapeFlexibility, SizeRange,
};
use coremill_mil::ops::OpKind;

type Fill<'f> = &'f dyn Fn(&mut Writer);

fn encode(model: &Model) -> Vec<u8> {
    encode::model(model, &|weight| weight.place.clone()).expect("the model encodes")
}

/// A model file whose program message has these fields.
fn program_file(fill: Fill<'_>) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.int64(1, 9);
    writer.message(502, |writer| {
        writer.int64(1, 1);
        fill(writer);
    });
    writer.finish()
}

fn function_entry(writer: &mut Writer, name: &str, opset: &str, block: Fill<'_>) {
    writer.message(2, |writer| {
        writer.string(1, name);
        writer.message(2, |writer| {
            writer.string(2, opset);
            writer.message(3, |writer| {
                writer.string(1, opset);
                writer.message(2, block);
            });
        });
    });
}

/// A model file whose only function has one block with these fields.
fn block_file(block: Fill<'_>) -> Vec<u8> {
    program_file(&|writer| function_entry(writer, "main", "CoreML8", block))
}

/// A model file with a single `const` operation with this value.
fn value_file(value: Fill<'_>) -> Vec<u8> {
    block_file(&|writer| {
        writer.message(3, |writer| {
            writer.string(1, "const");
            writer.message(5, |writer| {
                writer.string(1, "val");
                writer.message(2, value);
            });
        });
    })
}

fn tensor_type(writer: &mut Writer, number: u32, dtype: DType, shape: &[u64]) {
    writer.message(number, |writer| {
        writer.message(1, |writer| {
            writer.int64(1, i64::from(dtype_code(dtype)));
            writer.uint64(2, shape.len() as u64);
            for &extent in shape {
                writer.message(3, |writer| writer.message(1, |writer| writer.uint64(1, extent)));
            }
        });
    });
}

/// The fields of a tensor value whose elements are stored in `field`.
fn tensor_value(writer: &mut Writer, dtype: DType, shape: &[u64], field: u32, elements: &[u8]) {
    tensor_type(writer, 2, dtype, shape);
    writer.message(3, |writer| {
        writer.message(1, |writer| {
            writer.message(field, |writer| writer.bytes_always(1, elements));
        });
    });
}

fn value(writer: &mut Writer, number: u32, name: &str) {
    writer.message(number, |writer| {
        writer.string(1, name);
        tensor_type(writer, 2, DType::Fp32, &[2]);
    });
}

fn operation(writer: &mut Writer, kind: &str, input: &str, output: &str) {
    writer.message(3, |writer| {
        writer.string(1, kind);
        writer.message(2, |writer| {
            writer.string(1, "x");
            writer.message(2, |writer| writer.message(1, |writer| writer.string(1, input)));
        });
        value(writer, 3, output);
    });
}

/// Checks that decoding fails with this kind and with a message that contains `shown`.
#[track_caller]
fn assert_rejected(name: &str, bytes: &[u8], kind: ErrorKind, shown: &str) {
    let error = model(bytes).expect_err(name);
    assert!(error.to_string().contains(shown), "{name}: {error}");
    assert_eq!(error.kind(), kind, "{name}: {error}");
}

fn unknown() -> UnknownFields {
    let mut writer = Writer::default();
    writer.uint64(9000, 7);
    writer.string(9001, "kept");
    UnknownFields(writer.finish())
}

/// A model with every feature of the format.
fn full_model() -> Model {
    let mut function = Function::new("main", Opset::Ios18);
    let body = function.body;
    function.unknown = unknown();
    function.attributes.insert("note", Constant::string("text"));
    let x = function.add_input(
        body,
        "x",
        Type::Tensor(TensorType { dtype: DType::Fp16, shape: vec![Dim::Unknown, Dim::Known(2)] }),
    );
    let state = Type::State(Box::new(Type::tensor(DType::Fp16, &[2])));
    function.add_input(body, "s", state);
    for dtype in DType::ALL {
        let constant = match dtype.storage_bytes(5) {
            Some(bytes) => {
                let byte = if dtype == DType::Bool { 1 } else { 0x3c };
                Constant::bytes(dtype, &[5], vec![byte; bytes as usize])
            }
            None => Constant {
                ty: Type::tensor(dtype, &[2]),
                data: ConstantData::Strings(vec!["a".into(), String::new()]),
            },
        };
        let ty = constant.ty.clone();
        function.add_op(body, Op::constant(constant), [(format!("c_{dtype}"), ty)]);
    }
    for constant in [
        Constant::bool(false),
        Constant::int32(-1),
        Constant::bytes(DType::UInt64, &[], u64::MAX.to_le_bytes().to_vec()),
        Constant::bytes(DType::UInt16, &[], u16::MAX.to_le_bytes().to_vec()),
        Constant::bytes(DType::Fp32, &[], f32::NAN.to_le_bytes().to_vec()),
        Constant::bytes(DType::Fp32, &[0], vec![]),
        Constant::bytes(DType::Fp16, &[0], vec![]),
        Constant { ty: Type::tensor(DType::String, &[0]), data: ConstantData::Strings(vec![]) },
        Constant {
            ty: Type::tensor(DType::Int8, &[20]),
            data: ConstantData::Weight(Weight {
                data: None,
                place: Some(WeightPlace {
                    file: "@model_path/weights/weight.bin".into(),
                    offset: 64,
                }),
            }),
        },
        Constant {
            ty: Type::List(Box::new(Type::scalar(DType::Int32)), Dim::Known(2)),
            data: ConstantData::Sequence(vec![Constant::int32(1), Constant::int32(2)]),
        },
        Constant {
            ty: Type::Tuple(vec![Type::scalar(DType::Bool), Type::scalar(DType::String)]),
            data: ConstantData::Sequence(vec![Constant::bool(true), Constant::string("t")]),
        },
        Constant {
            ty: Type::Dictionary(
                Box::new(Type::scalar(DType::String)),
                Box::new(Type::scalar(DType::Int32)),
            ),
            data: ConstantData::Entries(vec![(Constant::string("k"), Constant::int32(3))]),
        },
    ] {
        let ty = constant.ty.clone();
        let name = format!("d{}", function.op_count());
        function.add_op(body, Op::constant(constant), [(name, ty)]);
    }
    let inner = function.add_block();
    let y = function.add_input(inner, "y", Type::scalar(DType::Bool));
    function.block_mut(inner).outputs = vec![y, x];
    function.block_mut(inner).attributes.insert("a", Constant::bool(true));
    function.block_mut(inner).unknown = unknown();
    let mut op = Op::new(OpKind::WhileLoop)
        .with_list("loop_vars", vec![Binding::Value(x), Binding::Literal(Constant::fp32(-0.0))])
        .with(Name::Owned("of_the_future".into()), Binding::Value(x));
    op.blocks = vec![inner];
    op.unknown = unknown();
    let op = function.add_op(body, op, [("z".to_owned(), Type::scalar(DType::Bool))]);
    let mut future = Op::new(OpKind::Relu);
    future.operator = Operator::Unknown("op_of_the_future".into());
    function.add_op(body, future, []);
    function.block_mut(body).outputs = function.op(op).outputs.clone();

    let mut model = Model {
        specification_version: 9,
        is_updatable: true,
        unknown: unknown(),
        ..Model::default()
    };
    model.program.functions.push(function);
    model.program.attributes.insert("buildInfo", Constant::string("text"));
    model.program.documentation = "documentation".into();
    model.program.unknown = unknown();

    let description = &mut model.description;
    description.inputs = all_features();
    description.outputs = vec![FeatureDescription::new("o", FeatureType::Int64)];
    description.states = vec![FeatureDescription::new(
        "s",
        FeatureType::State(ArrayType::fixed(ArrayDataType::Float16, &[2])),
    )];
    description.predicted_feature_name = "label".into();
    description.predicted_probabilities_name = "probabilities".into();
    description.functions = vec![FunctionDescription {
        name: "main".into(),
        inputs: all_features(),
        outputs: description.outputs.clone(),
        states: description.states.clone(),
        predicted_feature_name: "label".into(),
        predicted_probabilities_name: "probabilities".into(),
        unknown: unknown(),
    }];
    description.default_function = "main".into();
    description.unknown = unknown();
    description.metadata = Some(Metadata {
        short_description: "what".into(),
        version: "1".into(),
        author: "who".into(),
        license: "terms".into(),
        user_defined: vec![("a".into(), "1".into()), ("b".into(), String::new())],
        unknown: unknown(),
    });
    model
}

fn all_features() -> Vec<FeatureDescription> {
    let image = |color_space, sizes| {
        FeatureType::Image(ImageType { width: 4, height: 8, color_space, sizes })
    };
    let array = |flexibility, default| {
        let fixed = ArrayType::fixed(ArrayDataType::Float32, &[1, 2]);
        FeatureType::MultiArray(ArrayType { flexibility, default, ..fixed })
    };
    let open = SizeRange { lower: 0, upper: -1 };
    let types = vec![
        FeatureType::Unspecified,
        FeatureType::Int64,
        FeatureType::Double,
        FeatureType::String,
        image(ColorSpace::Rgb, ImageSizes::Fixed),
        image(
            ColorSpace::Bgr,
            ImageSizes::Enumerated(vec![ImageSize { width: 1, height: 0 }, ImageSize::default()]),
        ),
        image(
            ColorSpace::Other(99),
            ImageSizes::Ranged { width: open, height: SizeRange { lower: 2, upper: 9 } },
        ),
        array(ShapeFlexibility::Fixed, None),
        array(
            ShapeFlexibility::Enumerated(vec![vec![1, 2], vec![], vec![-1]]),
            Some(DefaultElement::Int(-3)),
        ),
        array(ShapeFlexibility::Ranged(vec![open, SizeRange::exactly(2)]), None),
        array(ShapeFlexibility::Ranged(vec![]), Some(DefaultElement::Float(0.0))),
        array(ShapeFlexibility::Fixed, Some(DefaultElement::Double(-0.5))),
        FeatureType::MultiArray(ArrayType::fixed(ArrayDataType::Other(0), &[])),
        FeatureType::Dictionary(None),
        FeatureType::Dictionary(Some(KeyType::Int64)),
        FeatureType::Dictionary(Some(KeyType::String)),
        FeatureType::Sequence(SequenceType::default()),
        FeatureType::Sequence(SequenceType { element: Some(KeyType::Int64), length: Some(open) }),
        FeatureType::Sequence(SequenceType { element: Some(KeyType::String), length: None }),
        FeatureType::State(ArrayType::fixed(ArrayDataType::Float16, &[3])),
    ];
    let feature = |(index, ty): (usize, FeatureType)| FeatureDescription {
        name: format!("f{index}"),
        short_description: "what".into(),
        ty,
        is_optional: index % 2 == 0,
        unknown: unknown(),
    };
    types.into_iter().enumerate().map(feature).collect()
}

#[test]
fn round_trips_model_with_every_feature() {
    let full = full_model();
    let bytes = encode(&full);
    let read = model(&bytes).expect("sound");
    assert_eq!(read, full);
    assert_eq!(encode(&read), bytes);
    // Parameter names in the op table are borrowed from it; others are owned.
    let (_, op) =
        read.program.functions[0].all_ops().find(|(_, op)| !op.blocks.is_empty()).expect("one");
    assert!(matches!(op.inputs[0].name, Name::Borrowed("loop_vars")));
    assert!(matches!(op.inputs[1].name, Name::Owned(_)));
}

#[test]
fn rejects_every_truncation() {
    let bytes = encode(&Model { unknown: UnknownFields::default(), ..full_model() });
    for length in 0..bytes.len() {
        assert!(model(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
}

#[test]
fn single_byte_corruption_does_not_panic() {
    let bytes = encode(&full_model());
    for at in 0..bytes.len() {
        for value in [[0, 1, 0x7f, 0x80, 0xff][at % 5], bytes[at] ^ 1] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            if let Ok(read) = model(&damaged) {
                encode::model(&read, &|weight| weight.place.clone())
                    .expect("a decoded model must encode");
            }
        }
    }
}

#[test]
fn preserves_blocks_for_other_opsets() {
    let bytes = program_file(&|writer| {
        writer.message(2, |writer| {
            writer.string(1, "main");
            writer.message(2, |writer| {
                writer.string(2, "CoreML8");
                for opset in ["CoreML8", "CoreML7"] {
                    writer.message(3, |writer| {
                        writer.string(1, opset);
                        writer.message(2, |writer| operation_without_input(writer, opset));
                    });
                }
            });
        });
    });
    let mut read = model(&bytes).expect("sound");
    assert_eq!(read.program.functions[0].op_count(), 1);
    let again = encode(&read);
    assert!(String::from_utf8_lossy(&again).contains("op_CoreML7"));
    assert_eq!(model(&again).expect("sound"), read);
    // If the function changes to the opset of the preserved block, it has two blocks for that opset.
    read.program.functions[0].opset = Opset::Ios17;
    let error = encode::model(&read, &|_| None).expect_err("two blocks");
    assert!(error.message().contains("a second block for the opset `CoreML7`"), "{error}");
}

fn operation_without_input(writer: &mut Writer, name: &str) {
    writer.message(3, |writer| writer.string(1, &format!("op_{name}")));
}

#[test]
fn decodes_elements_from_any_lossless_field() {
    let int32s = |values: &[i32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let cases: Vec<(DType, u32, Vec<u8>, Vec<u8>)> = vec![
        (DType::Int8, 2, vec![1, 2], vec![1, 2]),
        (DType::UInt4, 2, vec![1, 15], vec![0xf1]),
        (DType::Int32, 7, int32s(&[1, -2]), int32s(&[1, -2])),
        (DType::Int32, 5, vec![1, 2], int32s(&[1, 2])),
        (DType::UInt32, 2, vec![1, 2], int32s(&[1, 2])),
        (DType::Bool, 2, vec![1, 0], vec![1, 0]),
        (DType::Bool, 7, vec![1, 0], vec![1, 0]),
        (DType::Fp16, 1, [0.5f32, 1.0].map(f32::to_le_bytes).concat(), vec![0, 0x38, 0, 0x3c]),
    ];
    for (dtype, field, elements, expected) in cases {
        let bytes = value_file(&|writer| tensor_value(writer, dtype, &[2], field, &elements));
        let read = model(&bytes).unwrap_or_else(|error| panic!("{dtype} in {field}: {error}"));
        let (_, op) = read.program.functions[0].all_ops().next().expect("one");
        let constant = op.attributes.get("val").expect("a value");
        assert_eq!(constant.elements().expect("bytes").as_bytes(), expected, "{dtype} in {field}");
    }
}

#[test]
fn rejects_values_that_contradict_their_type() {
    let tensor = |dtype, shape: &'static [u64], field, elements: &'static [u8]| {
        value_file(&|writer| tensor_value(writer, dtype, shape, field, elements))
    };
    use ErrorKind::{Limit, ModelFile, Unsupported};
    let cases: Vec<(&str, Vec<u8>, ErrorKind, &str)> = vec![
        ("few", tensor(DType::Int32, &[3], 2, &[1, 2]), ModelFile, "requires 12 bytes, found 8"),
        ("many", tensor(DType::Fp16, &[2], 7, &[1; 5]), ModelFile, "requires 4 bytes, found 5"),
        ("strings", tensor(DType::String, &[2], 4, b"a"), ModelFile, "requires 2 strings, found 1"),
        ("sub-byte", tensor(DType::UInt3, &[3], 7, &[1]), ModelFile, "requires 2 bytes, found 1"),
        (
            "overflow",
            tensor(DType::Int8, &[1 << 40, 1 << 40], 7, &[1]),
            ModelFile,
            "value cannot be determined",
        ),
        (
            "overflow in bytes",
            tensor(DType::Fp64, &[1 << 62], 6, &[]),
            ModelFile,
            "requires more than 2^64 bytes",
        ),
        ("range", tensor(DType::UInt2, &[1], 2, &[4]), ModelFile, "4 is out of range for `uint2`"),
        (
            "wide",
            tensor(DType::Int32, &[1], 2, &[255, 255, 255, 255, 127]),
            ModelFile,
            "out of range for `int32`",
        ),
        (
            "field",
            tensor(DType::Fp32, &[1], 2, &[4]),
            ModelFile,
            "are in the field `ints`; expected `floats`",
        ),
        (
            "inexact",
            tensor(DType::Fp16, &[1], 1, &[1, 0, 0, 0]),
            ModelFile,
            "is not exactly representable in `fp16`",
        ),
        ("bool", tensor(DType::Bool, &[1], 7, &[2]), ModelFile, "must be 0 or 1, got 2"),
        ("text", tensor(DType::String, &[1], 7, b"a"), ModelFile, "are in the field `bytes`"),
        ("unknown elements", tensor(DType::Fp32, &[1], 8, &[4]), Unsupported, "unknown field 8"),
        ("rank", tensor(DType::Fp32, &[1; 33], 1, &[0; 4]), Limit, "more than 32 dimensions"),
        (
            "no type",
            value_file(&|writer| writer.message(3, |_| {})),
            ModelFile,
            "the type of a value is missing",
        ),
        (
            "nothing",
            value_file(&|writer| tensor_type(writer, 2, DType::Fp32, &[1])),
            ModelFile,
            "the content of a value is missing",
        ),
        (
            "both",
            value_file(&|writer| {
                tensor_value(writer, DType::Int8, &[1], 7, &[1]);
                writer.message(5, |writer| writer.string(1, "@model_path/w"));
            }),
            ModelFile,
            "both an immediate value and a location in a weight file",
        ),
        (
            "weights of bool",
            value_file(&|writer| {
                tensor_type(writer, 2, DType::Bool, &[20]);
                writer.message(5, |writer| writer.string(1, "@model_path/w"));
            }),
            ModelFile,
            "do not support the element type",
        ),
        (
            "documentation",
            value_file(&|writer| writer.string(1, "text")),
            Unsupported,
            "`docString`",
        ),
        (
            "unknown field",
            value_file(&|writer| {
                tensor_value(writer, DType::Int8, &[1], 7, &[1]);
                writer.uint64(77, 1);
            }),
            Unsupported,
            "unknown field 77 in a value",
        ),
        (
            "list for a tensor",
            value_file(&|writer| {
                tensor_type(writer, 2, DType::Int8, &[1]);
                writer.message(3, |writer| writer.message(3, |_| {}));
            }),
            ModelFile,
            "the value is a list, but its type is",
        ),
        (
            "two",
            value_file(&|writer| {
                tensor_value(writer, DType::Int8, &[1], 7, &[1]);
                tensor_value(writer, DType::Int8, &[1], 7, &[1]);
            }),
            ModelFile,
            "found `type` twice",
        ),
    ];
    for (name, bytes, kind, shown) in cases {
        assert_rejected(name, &bytes, kind, shown);
    }
}

#[test]
fn rejects_malformed_and_unsupported_types() {
    let ty = |fill: Fill<'_>| {
        block_file(&|writer| {
            writer.message(3, |writer| {
                writer.string(1, "identity");
                writer.message(3, |writer| {
                    writer.string(1, "y");
                    writer.message(2, fill);
                });
            });
        })
    };
    let tensor = |fill: Fill<'_>| ty(&|writer| writer.message(1, fill));
    use ErrorKind::{Limit, ModelFile, Unsupported};
    let cases: Vec<(&str, Vec<u8>, ErrorKind, &str)> = vec![
        ("empty", ty(&|_| {}), ModelFile, "the kind of a type is missing"),
        (
            "unknown",
            ty(&|writer| writer.message(6, |_| {})),
            Unsupported,
            "unknown field 6 in a type",
        ),
        ("no data type", tensor(&|_| {}), ModelFile, "`dataType` is missing"),
        ("data type", tensor(&|writer| writer.int64(1, 99)), Unsupported, "data type 99"),
        (
            "rank",
            tensor(&|writer| {
                writer.int64(1, 11);
                writer.int64(2, 2);
            }),
            ModelFile,
            "rank 2 has 0 dimensions",
        ),
        (
            "variable rank",
            tensor(&|writer| {
                writer.int64(1, 11);
                writer.int64(2, -1);
            }),
            Unsupported,
            "a variable rank",
        ),
        (
            "variadic",
            tensor(&|writer| {
                writer.int64(1, 11);
                writer.int64(2, 1);
                writer.message(3, |writer| writer.message(2, |writer| writer.bool(1, true)));
            }),
            Unsupported,
            "a variable rank",
        ),
        (
            "attributes",
            tensor(&|writer| writer.message(4, |_| {})),
            Unsupported,
            "a tensor type has attributes",
        ),
        (
            "dimension",
            tensor(&|writer| writer.message(3, |_| {})),
            ModelFile,
            "the kind of a dimension is missing",
        ),
        ("deep", ty(&|writer| lists(writer, 20)), Limit, "types are nested deeper than 16"),
    ];
    for (name, bytes, kind, shown) in cases {
        assert_rejected(name, &bytes, kind, shown);
    }
}

fn lists(writer: &mut Writer, depth: u32) {
    writer.message(2, |writer| {
        writer.message(1, |writer| {
            if depth > 0 {
                lists(writer, depth - 1)
            }
        });
    });
}

#[test]
fn rejects_too_deeply_nested_values() {
    // Each list has the type of a list of booleans but contains a list. Only the verifier compares these types.
    fn nested(writer: &mut Writer, depth: u32) {
        writer.message(2, |writer| {
            writer.message(2, |writer| tensor_type(writer, 1, DType::Bool, &[]));
        });
        writer.message(3, |writer| {
            writer.message(3, |writer| {
                if depth > 0 {
                    writer.message(1, |writer| nested(writer, depth - 1));
                }
            });
        });
    }
    model(&value_file(&|writer| nested(writer, 16))).expect("deep, but not too deep");
    let bytes = value_file(&|writer| nested(writer, 17));
    assert_rejected("deep", &bytes, ErrorKind::Limit, "values are nested deeper than 16");
}

#[test]
fn rejects_malformed_and_unsupported_programs() {
    use ErrorKind::{ModelFile, Unsupported};
    let block = |fill: Fill<'_>| block_file(fill);
    let cases: Vec<(&str, Vec<u8>, ErrorKind, &str)> = vec![
        (
            "undefined",
            block(&|writer| operation(writer, "relu", "nothing", "y")),
            ModelFile,
            "functions[main].block_specializations[CoreML8].operations[0].inputs[x]: the value \
             `nothing` is not defined before its use",
        ),
        (
            "cycle",
            block(&|writer| {
                operation(writer, "relu", "b", "a");
                operation(writer, "relu", "a", "b");
            }),
            ModelFile,
            "the value `b` is not defined before its use",
        ),
        (
            "itself",
            block(&|writer| operation(writer, "relu", "y", "y")),
            ModelFile,
            "the value `y` is not defined before its use",
        ),
        (
            "undefined output",
            block(&|writer| writer.string(2, "y")),
            ModelFile,
            "the value `y` is not defined before its use",
        ),
        (
            "no operator",
            block(&|writer| writer.message(3, |writer| value(writer, 3, "y"))),
            ModelFile,
            "`type` is missing",
        ),
        (
            "bound to nothing",
            block(&|writer| {
                writer.message(3, |writer| {
                    writer.string(1, "relu");
                    writer.message(2, |writer| {
                        writer.string(1, "x");
                        writer.message(2, |writer| writer.message(1, |_| {}));
                    });
                });
            }),
            ModelFile,
            "the content of a binding is missing",
        ),
        (
            "inputs of a body",
            block(&|writer| value(writer, 1, "x")),
            Unsupported,
            "inputs of its own",
        ),
        (
            "version",
            program_file(&|writer| writer.int64(1, 2)),
            Unsupported,
            "the program must have version 1, got 2",
        ),
        (
            "opset",
            program_file(&|writer| function_entry(writer, "main", "CoreML99", &|_| {})),
            Unsupported,
            "unknown opset `CoreML99`; the known opsets are `CoreML5`",
        ),
        (
            "no block",
            program_file(&|writer| {
                writer.message(2, |writer| {
                    writer.string(1, "main");
                    writer.message(2, |writer| writer.string(2, "CoreML8"));
                });
            }),
            ModelFile,
            "no block for its opset `CoreML8`",
        ),
        (
            "functions",
            program_file(&|writer| {
                function_entry(writer, "main", "CoreML8", &|_| {});
                function_entry(writer, "main", "CoreML8", &|_| {});
            }),
            ModelFile,
            "two functions are named `main`",
        ),
        ("no model", vec![], ErrorKind::OtherModel, "no model of a known kind"),
        ("not a model", b"not a model at all".to_vec(), ModelFile, "byte"),
    ];
    for (name, bytes, kind, shown) in cases {
        let error = model(&bytes).map_err(|error| error.in_file("model.mlmodel")).expect_err(name);
        assert!(error.to_string().contains(shown), "{name}: {error}");
        assert_eq!(error.kind(), kind, "{name}: {error}");
    }
}

/// A million nested `cond`s. Encoding them from the inside out would take quadratic time.
#[test]
fn rejects_million_nested_blocks() {
    fn varint(mut value: usize, to: &mut Vec<u8>) {
        while value >= 0x80 {
            to.push(value as u8 | 0x80);
            value >>= 7;
        }
        to.push(value as u8);
    }
    fn framed(key: &[u8], length: usize, to: &mut Vec<u8>) -> usize {
        let before = to.len();
        to.extend_from_slice(key);
        varint(length, to);
        to.len() - before + length
    }
    // Compute sizes from the innermost block outwards, then write the frames from the outside in.
    let mut sizes = vec![(0, 0)];
    let mut scratch = Vec::new();
    for _ in 0..1_000_000 {
        scratch.clear();
        let inner = sizes[sizes.len() - 1].0;
        let operation = 6 + framed(&[0x22], inner, &mut scratch);
        let block = framed(&[0x1a], operation, &mut scratch);
        sizes.push((block, operation));
    }
    let mut nested = Vec::new();
    for window in sizes.windows(2).rev() {
        let [(inner, _), (_, operation)] = window else { continue };
        framed(&[0x1a], *operation, &mut nested);
        nested.extend_from_slice(b"\x0a\x04cond");
        framed(&[0x22], *inner, &mut nested);
    }
    let bytes = block_file(&|writer| writer.raw(&nested));
    assert_rejected("a million", &bytes, ErrorKind::Limit, "blocks are nested deeper than 40");
}

#[test]
fn rejects_memory_amplifying_files() {
    let cases: [(&str, Vec<u8>); 4] = [
        ("features", {
            let mut writer = Writer::default();
            writer.message(2, |writer| writer.raw(&[0x0a, 0].repeat(1 << 20)));
            writer.message(502, |_| {});
            writer.finish()
        }),
        (
            "blocks",
            block_file(&|writer| {
                writer.message(3, |writer| {
                    writer.string(1, "cond");
                    writer.raw(&[0x22, 0].repeat(1 << 20));
                });
            }),
        ),
        (
            "operations",
            block_file(&|writer| {
                writer.raw(&[0x1a, 3, 0x0a, 1, b'r'].repeat(1 << 21));
            }),
        ),
        (
            "attributes",
            block_file(&|writer| {
                let mut value = Writer::default();
                tensor_value(&mut value, DType::Int8, &[0], 7, &[]);
                let value = value.finish();
                for index in 0..1 << 17 {
                    writer.message(4, |writer| {
                        writer.string(1, &index.to_string());
                        writer.bytes_always(2, &value);
                    });
                }
            }),
        ),
    ];
    for (name, bytes) in cases {
        let error = model(&bytes).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Limit, "{name}: {error}");
    }
}

#[test]
fn describes_unsupported_model_kinds_in_errors() {
    let kind = |number: u32, fill: Fill<'_>| {
        let mut writer = Writer::default();
        writer.int64(1, 4);
        writer.message(number, fill);
        writer.finish()
    };
    let layers =
        |writer: &mut Writer, count: usize| (0..count).for_each(|_| writer.message(1, |_| {}));
    let stages = |writer: &mut Writer| {
        writer.message(1, |writer| writer.message(500, |writer| layers(writer, 12)));
        writer.message(1, |writer| writer.message(502, |_| {}));
        writer.message(1, |writer| writer.message(402, |_| {}));
        writer.string(2, "look");
        writer.string(2, "think");
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (kind(500, &|writer| layers(writer, 3)), "the model is a `neuralNetwork` of 3 layers"),
        (kind(403, &|writer| layers(writer, 1)), "a `neuralNetworkClassifier` of 1 layer,"),
        (
            kind(202, &|writer| stages(writer)),
            "a `pipeline` of 3 stages (`look`: `neuralNetwork` of 12 layers; `think`: `mlProgram`; \
             `treeEnsembleClassifier`)",
        ),
        (
            kind(200, &|writer| writer.message(1, |writer| stages(writer))),
            "a `pipelineClassifier` of 3 stages",
        ),
        (
            kind(302, &|writer| writer.message(1, |writer| layers(writer, 7))),
            "a `treeEnsembleRegressor` of 7 nodes",
        ),
        (kind(555, &|writer| writer.string(10, "Mine")), "a `customModel` of class `Mine`"),
        (kind(300, &|_| {}), "a `glmRegressor`, in version 4 of the format"),
        (kind(2005, &|_| {}), "a `wordEmbedding`"),
    ];
    for (bytes, shown) in cases {
        let error = model(&bytes).expect_err(shown);
        assert_eq!(error.kind(), ErrorKind::OtherModel);
        assert!(error.message().contains(shown), "{error}");
        assert!(error.hint().is_some());
    }
    // If the contents are damaged, the error still names the kind.
    let damaged = kind(202, &|writer| writer.raw(&[0x0a, 0x7f]));
    assert!(model(&damaged).expect_err("damaged").message().contains("a `pipeline` of 0 stages"));
}
