//! Products with weights in GGUF schemes, compared with products of the dequantized weights.

use coremill_graph::nn::{Embedding, Linear};
use coremill_graph::{CompileOptions, DType, Device, Graph, Param, Precision, Scheme, Session};
use half::f16;

const INPUTS: usize = 512;
const OUTPUTS: usize = 37;

struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn element(&mut self) -> f32 {
        self.next() as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Positions of half-precision scales in the blocks of a scheme.
fn scales(scheme: Scheme) -> &'static [usize] {
    match scheme {
        Scheme::Q4_1 | Scheme::Q5_1 | Scheme::Q4_K | Scheme::Q5_K => &[0, 2],
        Scheme::Q2_K => &[80, 82],
        Scheme::Q3_K => &[108],
        Scheme::Q6_K => &[208],
        Scheme::Tq1_0 => &[52],
        Scheme::Tq2_0 => &[64],
        Scheme::Mxfp4 | Scheme::Q8_K => &[],
        _ => &[0],
    }
}

fn weights(scheme: Scheme) -> Param {
    let mut random = Random(scheme.code() + 1);
    let (count, size) = scheme.block();
    let mut bytes: Vec<u8> =
        (0..OUTPUTS * INPUTS / count * size).map(|_| random.next() as u8).collect();
    for block in bytes.chunks_exact_mut(size) {
        for &at in scales(scheme) {
            let scale = f16::from_f32(random.element() * 0.01);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        match scheme {
            Scheme::Mxfp4 => block[0] = 118 + block[0] % 8,
            Scheme::Q8_K => block[..4].copy_from_slice(&0.01f32.to_le_bytes()),
            _ => {}
        }
    }
    Param::blocks(scheme, [OUTPUTS as u64, INPUTS as u64], bytes).expect("blocks")
}

/// The outputs of a linear layer and of an embedding with the same weights.
fn results(rows: usize, precision: Precision, param: Param) -> [Vec<f32>; 2] {
    let graph = Graph::new();
    let x = graph.input("x", DType::Fp32, [rows, INPUTS]);
    let ids = graph.input("ids", DType::Int32, [2]);
    graph.output("y", Linear::new(OUTPUTS).without_bias().apply("w", x));
    graph.output("rows", Embedding::new(OUTPUTS, INPUTS).apply("w", ids));
    let options = CompileOptions::new().precision(precision).requantize(true);
    let session = Session::new(Device::Host).options(options).threads(2);
    let mut model = session.compile(&graph).expect("compiles");
    model.set("w.weight", param).expect("the parameter exists");
    let mut random = Random(9);
    let x: Vec<f32> = (0..rows * INPUTS).map(|_| random.element()).collect();
    let outputs = model.run(&[("x", &x), ("ids", &[36, 5])]).expect("runs");
    ["y", "rows"].map(|name| outputs.floats(name).expect("floats").to_vec())
}

#[test]
fn gguf_layers_match_dequantized_weights() {
    for scheme in Scheme::ALL.into_iter().filter(|scheme| scheme.block().0 > 1) {
        let param = weights(scheme);
        let dense = param.to_dense().expect("floats");
        for (precision, tolerance) in [(Precision::Fp32, 3e-6), (Precision::Fp16, 2e-3)] {
            // Products of few rows read the codes directly; products of more rows decode panels of them first.
            for rows in [1, 5, 40] {
                let found = results(rows, precision, param.clone());
                let expected = results(rows, Precision::Fp32, dense.clone());
                for (found, expected) in found.iter().zip(&expected) {
                    let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    let error = found.iter().zip(expected).map(|(x, y)| (x - y).abs());
                    let error = error.fold(0.0, f32::max) / most;
                    // `f32::max` ignores NaN.
                    assert!(found.iter().all(|x| x.is_finite()), "{scheme} {precision:?}");
                    assert!(error < tolerance, "{scheme} {precision:?}, {rows} rows: {error}");
                }
            }
        }
    }
}
