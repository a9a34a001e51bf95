//! Converts the program of torch that the repository holds, for iOS 17, and runs the result.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use coremill::compiler::Options;
use coremill::graph::{Device, Input, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
    let program = coremill::convert::read(archive)?;
    let options = Options { target: Some(coremill::graph::Opset::Ios17), ..Options::default() };
    let conversion = coremill::convert::convert(program, &options)?;
    let mut model = Session::new(Device::Host).load(conversion.model)?;
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
