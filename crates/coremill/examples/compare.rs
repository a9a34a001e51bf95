//! Converts the example program in fp16 and in fp32, and prints the error between the two.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill::compare::figures;
use coremill::graph::{Device, Input, Session};
use coremill::{ConvertOptions, Precision};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
    let mut results = Vec::new();
    for precision in [Precision::Fp32, Precision::Fp16] {
        let options = ConvertOptions::new().precision(precision);
        let converted = coremill::convert(archive, &options)?;
        let mut model = Session::new(Device::Host).load(converted.model)?;
        let function = model.default_function()?;
        let mut inputs = Vec::new();
        for port in model.inputs(&function)? {
            let count: usize = port.default_shape().unwrap_or_default().iter().product();
            let ramp: Vec<f32> = (0..count).map(|at| (at % 17) as f32 / 16.0).collect();
            inputs.push((port.name.clone(), ramp));
        }
        let given: Vec<(&str, &dyn Input)> =
            inputs.iter().map(|(name, floats)| (name.as_str(), floats as &dyn Input)).collect();
        results.push(model.run(&given)?);
    }
    for (name, value) in &results[0].0 {
        let (Some(reference), Some(other)) = (value.as_array(), results[1].array(name)) else {
            continue;
        };
        let figures = figures(reference, other)?;
        println!(
            "{name}: {:.1} dB, maximum difference {:.1e}",
            figures.snr(),
            figures.max_absolute
        );
    }
    Ok(())
}
