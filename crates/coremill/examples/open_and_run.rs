//! Writes MIL text, opens it as a model, saves it as a package, and runs the package.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill::graph::{Device, Session};

const TEXT: &str = "
program(1.3) {
    func main<ios17>(tensor<fp32, [2, 3]> x) {
        tensor<fp32, [2, 3]> y = exp(x = x);
    } -> (y);
}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let (text, package) = (directory.path().join("m.mil"), directory.path().join("M.mlpackage"));
    std::fs::write(&text, TEXT)?;
    let model = coremill::open(&text)?;
    let verified = coremill::verify(&model).map_err(|report| report.summary())?;
    coremill::save(&package, &verified, &coremill::SaveOptions::default())?;

    let mut session = Session::new(Device::Host).load(coremill::open(&package)?)?;
    let outputs = session.run(&[("x", &[1.0f32, 2.0, 3.0, 0.0, 0.0, 0.0])])?;
    println!("{:?}", outputs.floats("y").unwrap_or_default());
    Ok(())
}
