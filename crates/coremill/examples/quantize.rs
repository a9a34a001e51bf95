//! Quantizes the example program to 8 bits with random samples, and prints the loss.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill::convert::LowerOptions;
use coremill::engine::Array;
use coremill::graph::DType;
use coremill::quantize::{Artifact, Config, Output, Quantizer, Recipe};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
    let program = coremill::convert::read(archive)?;
    let config = Config::new(Recipe::Int8Static);
    let quantizer = Quantizer::new(program, Output::Model, &LowerOptions::default(), &config)?;
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    let mut samples = Vec::new();
    for _ in 0..4 {
        let mut sample = Vec::new();
        for port in quantizer.inputs() {
            let shape = port.default_shape().unwrap_or_default();
            let elements = (0..shape.iter().product()).map(|_| noise()).collect();
            sample.push((port.name.clone(), Array::floats(DType::Fp32, shape, elements)));
        }
        samples.push(sample);
    }
    let quantized = quantizer.run(&samples)?;
    for layer in &quantized.layers {
        println!("{}: {:?} dB at the layer", layer.name, layer.layer_db);
    }
    println!("{:?} dB at the outputs", quantized.model_db);
    if let Artifact::Model(model) = &quantized.made {
        let verified = coremill::verify(model).map_err(|report| report.summary())?;
        let directory = tempfile::tempdir()?;
        let package = directory.path().join("Digits.mlpackage");
        coremill::save(&package, &verified, &coremill::SaveOptions::default())?;
    }
    Ok(())
}
