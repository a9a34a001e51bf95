//! Converts the example program for iOS 17, and runs the result.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill::graph::{Device, Input, Session};
use coremill::{ConvertOptions, Opset};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
    let converted = coremill::convert(archive, &ConvertOptions::new().target(Opset::Ios17))?;
    let mut model = Session::new(Device::Host).load(converted.model)?;
    let function = model.default_function()?;
    let mut inputs = Vec::new();
    for port in model.inputs(&function)? {
        let count = port.default_shape().unwrap_or_default().iter().product();
        inputs.push((port.name.clone(), vec![0.5f32; count]));
    }
    let given: Vec<(&str, &dyn Input)> =
        inputs.iter().map(|(name, floats)| (name.as_str(), floats as &dyn Input)).collect();
    for (name, value) in &model.run(&given)?.0 {
        println!("{name}: {:?}", value.as_array().and_then(|array| array.as_floats()));
    }
    Ok(())
}
