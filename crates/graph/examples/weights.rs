//! `weights FILE DIRECTORY`: writes the tensors of a file of weights as `fp32` (`NAME.f32`), and models with
//! them as `NAME.fp32.mlpackage`, `NAME.fp16.mlpackage` and, requantized, `NAME.rounded.mlpackage`. The
//! output of the first model, after it is read again, is written to `NAME.run.f32`.

use std::path::Path;

use coremill_graph::{CompileOptions, DType, Device, Error, Graph, Params, Precision, Session};
use coremill_mlpackage::package;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let (file, directory) =
        (arguments.next().expect("a file"), arguments.next().expect("a directory"));
    let directory = Path::new(&directory);
    let mut params = Params::new();
    params.load(file)?;
    let write = |name: String, floats: &[f32]| {
        let bytes: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        std::fs::write(directory.join(name), bytes).expect("the floats are written");
    };
    for (name, param) in params.iter() {
        write(format!("{name}.f32"), &param.to_floats()?);
        let graph = Graph::new();
        let one = graph.input("one", DType::Fp32, [1]);
        graph.output("y", graph.param(name, param.shape().to_vec()) * one);
        let forms = [("fp32", Precision::Fp32, false), ("fp16", Precision::Fp16, false)];
        for (form, precision, requantize) in
            forms.into_iter().chain([("rounded", Precision::Fp16, true)])
        {
            let options = CompileOptions::new().requantize(requantize);
            let session = Session::new(Device::Host).options(options).precision(precision);
            let mut model = session.compile(&graph)?;
            model.set(name, param.clone())?;
            let path = directory.join(format!("{name}.{form}.mlpackage"));
            model.save(&path)?;
            if form == "fp32" {
                let read = package::read(&path).expect("the package is read");
                let outputs = session.load(read)?.run(&[("one", &[1.0f32])])?;
                write(format!("{name}.run.f32"), outputs.floats("y").expect("floats"));
            }
        }
    }
    Ok(())
}
