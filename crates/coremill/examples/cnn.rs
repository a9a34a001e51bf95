//! A small convolutional network described in Rust, run on the host and saved for Core ML.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill::graph::nn::{Activation, BatchNorm, Conv, Linear, adaptive_avg_pool, max_pool};
use coremill::graph::{DType, Device, Graph, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let graph = Graph::new();
    let image = graph.input("image", DType::Fp32, [1, 3, 32, 32]);
    let mut x = image;
    for (stage, channels) in [8, 16].into_iter().enumerate() {
        let conv = Conv::new(channels, [3, 3]).padding([1, 1]).without_bias();
        x = conv.apply(&format!("conv{stage}"), x);
        x = Activation::Relu.apply(BatchNorm::new(1e-5).apply(&format!("norm{stage}"), x));
        x = max_pool(x, &[2, 2], &[2, 2], &[0, 0]);
    }
    let pooled = adaptive_avg_pool(x, &[1, 1]).view([1, 16]);
    graph.output("probabilities", Linear::new(10).apply("head", pooled).softmax_on(-1));

    let mut model = Session::new(Device::Host).compile(&graph)?;
    for (name, shape) in graph.params() {
        let count = shape.iter().product::<u64>() as usize;
        let weights: Vec<f32> = if name.ends_with("running_var") {
            vec![1.0; count]
        } else {
            (0..count).map(|at| (at as f32 * 0.7).sin() * 0.3).collect()
        };
        model.set_param(&name, &weights)?;
    }
    let pixels: Vec<f32> = (0..3 * 32 * 32).map(|at| (at % 255) as f32 / 255.0).collect();
    let outputs = model.run(&[("image", &pixels)])?;
    println!("{:?}", outputs.floats("probabilities").unwrap_or_default());

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("Cnn.mlpackage");
    model.save(&path)?;
    let summary = coremill::summary::summarize(&coremill::open(&path)?);
    println!("{} operations", summary.functions[0].operations);
    Ok(())
}
