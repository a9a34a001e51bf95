//! Tests of the names that users of `rlx-coreml` import, and of the packages that they write.

use coremill_graph::{DType as MilType, Device, Session};
use coremill_rlx::{ComputeUnits, CoremlExecutable, Precision, check_model_size};
use rlx_ir::op::BinaryOp;
use rlx_ir::quant::QuantScheme;
use rlx_ir::{DType, Graph, Op, Shape};

/// The graph `x + y` in one data type.
fn sum(dtype: DType) -> Graph {
    let shape = || Shape::new(&[3], dtype);
    let mut graph = Graph::new("sum");
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], shape());
    let y = graph.add_node(Op::Input { name: "y".into() }, vec![], shape());
    let sum = graph.add_node(Op::Binary(BinaryOp::Add), vec![x, y], shape());
    graph.set_outputs(vec![sum]);
    graph
}

#[test]
fn compute_units_map_to_core_ml_devices() {
    let units = [
        (ComputeUnits::All, Device::All),
        (ComputeUnits::CpuOnly, Device::Cpu),
        (ComputeUnits::CpuAndGpu, Device::Gpu),
        (ComputeUnits::CpuAndNeuralEngine, Device::NeuralEngine),
    ];
    for (units, device) in units {
        assert_eq!(Device::from(units), device);
        let compiled = CoremlExecutable::compile_with_units(sum(DType::F32), units);
        match device.check() {
            Ok(()) => assert!(compiled.is_ok()),
            Err(missing) => {
                let refused = compiled.expect_err("Core ML is not available").to_string();
                assert_eq!(refused, missing.to_string());
            }
        }
    }
}

#[test]
fn rejects_oversized_model_files() {
    assert!(check_model_size(8, 8).is_ok());
    let refused = check_model_size(9, 8).expect_err("one byte too many").to_string();
    assert!(refused.contains("at most 8 bytes, got 9"), "{refused}");
}

#[test]
fn package_ports_keep_graph_dtype() {
    let directory = tempfile::tempdir().expect("a directory");
    for (dtype, stored) in [(DType::F16, MilType::Fp16), (DType::F32, MilType::Fp32)] {
        for precision in [Precision::Fp32, Precision::Fp16] {
            let mut executable = CoremlExecutable::compile_for(sum(dtype), Device::Host, precision)
                .expect("it compiles");
            let found = executable.run(&[("x", &[1.0, 2.0, 3.0]), ("y", &[0.5, 0.5, 0.5])]);
            assert_eq!(found.expect("it runs"), [[1.5, 2.5, 3.5]]);
            let path = directory.path().join("sum.mlpackage");
            executable.save(&path).expect("it is written");
            let mut read = Session::new(Device::Host).open(&path).expect("it is read");
            let inputs = read.inputs("main").expect("it has a function");
            let outputs = read.outputs("main").expect("it has a function");
            for port in inputs.iter().chain(&outputs) {
                let found = port.ty.as_tensor().map(|ty| ty.dtype);
                assert_eq!(found, Some(stored), "`{}` in {precision:?}", port.name);
            }
            std::fs::remove_dir_all(&path).expect("it is removed");
        }
    }
}

#[test]
fn one_bit_gguf_weights_stay_compressed() {
    let (inputs, outputs) = (1024, 256);
    let mut graph = Graph::new("bits");
    let f32s = |dims: &[usize]| Shape::new(dims, DType::F32);
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], f32s(&[1, inputs]));
    let w = Op::Param { name: "w".into() };
    let w = graph.add_node(w, vec![], f32s(&[outputs, inputs]));
    let op = Op::DequantMatMul { scheme: QuantScheme::GgufQ1_0 };
    let y = graph.add_node(op, vec![x, w], f32s(&[1, outputs]));
    graph.set_outputs(vec![y]);
    // A scale of 0.5 and 128 bits, of which every other one is set.
    let block = [&[0x00, 0x38][..], &[0x55; 16]].concat();
    let bytes = block.repeat(inputs * outputs / 128);
    let mut executable = CoremlExecutable::compile(graph).expect("it compiles");
    executable.set_param_typed("w", &bytes, DType::U8).expect("it is set");
    let x: Vec<f32> = (0..inputs).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let found = executable.run(&[("x", &x)]).expect("it runs").remove(0);
    assert_eq!(found, vec![512.0; outputs]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("bits.mlpackage");
    executable.save(&path).expect("it is written");
    let weights = path.join("Data/com.apple.CoreML/weights/weight.bin");
    let size = std::fs::metadata(weights).expect("it has weights").len() as usize;
    assert!(size < bytes.len() * 11 / 10, "{size} bytes for {}", bytes.len());
}

#[test]
fn quantized_weights_accept_unpacked_shapes() {
    let scheme = QuantScheme::GgufQ8_0;
    let f32s = |dims: &[usize]| Shape::new(dims, DType::F32);
    // A scale of 0.5 and 32 codes for each block. There are two experts with 64 inputs and two outputs each.
    let block = |at: u8| [&[0x00, 0x38, at][..], &[1; 31]].concat();
    let bytes: Vec<u8> = (0..8).flat_map(block).collect();
    let x: Vec<f32> = (0..3 * 64).map(|at| (at % 64) as f32).collect();
    let grouped = |declared: Shape| {
        let mut graph = Graph::new("experts");
        let input = graph.add_node(Op::Input { name: "x".into() }, vec![], f32s(&[3, 64]));
        let w = graph.add_node(Op::Param { name: "w".into() }, vec![], declared);
        let expert = graph.add_node(Op::Input { name: "expert".into() }, vec![], f32s(&[3]));
        let op = Op::DequantGroupedMatMul { scheme };
        let y = graph.add_node(op, vec![input, w, expert], f32s(&[3, 2]));
        graph.set_outputs(vec![y]);
        let mut executable = CoremlExecutable::compile(graph).expect("it compiles");
        executable.set_param_typed("w", &bytes, DType::U8).expect("it is set");
        let found = executable.run(&[("x", &x), ("expert", &[0.0, 1.0, 0.0])]);
        found.expect("it runs").remove(0)
    };
    let packed = grouped(Shape::new(&[8 * 34], DType::U8));
    assert_eq!(grouped(f32s(&[2, 2, 64])), packed);
    // All codes are 1 except the first of each block, at the inputs 0 and 32. Those codes are 0 and 1 or 2
    // and 3 for expert 0, and 4 and 5 or 6 and 7 for expert 1.
    let sum = (0..64).sum::<i32>() as f32 - 32.0;
    let expected: Vec<f32> = [1.0, 3.0, 5.0, 7.0].map(|code| (sum + 32.0 * code) / 2.0).to_vec();
    assert_eq!(packed, [&expected[..2], &expected[2..], &expected[..2]].concat());

    let mut graph = Graph::new("flat");
    let w = graph.add_node(Op::Param { name: "w".into() }, vec![], f32s(&[64]));
    let weights = graph.add_node(Op::DequantMoEWeights { scheme }, vec![w], f32s(&[64]));
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], f32s(&[64]));
    let y = graph.add_node(Op::Binary(BinaryOp::Add), vec![weights, x], f32s(&[64]));
    graph.set_outputs(vec![y]);
    let mut executable = CoremlExecutable::compile(graph).expect("it compiles");
    executable.set_param_typed("w", &bytes[..68], DType::U8).expect("it is set");
    let found = executable.run(&[("x", &[0.0; 64])]).expect("it runs").remove(0);
    let mut expected = vec![0.5; 64];
    expected[0] = 0.0;
    assert_eq!(found, expected);
}
