//! Post-training quantization of PyTorch programs, without Python.
//!
//! ```no_run
//! use coremill::convert::LowerOptions;
//! use coremill::quantize::{Config, Artifact, Output, Quantizer, Recipe};
//!
//! let program = coremill::convert::read("model.pt2")?;
//! let config = Config { keep_worst: 1, ..Config::new(Recipe::Int8Static) };
//! let options = LowerOptions::default();
//! let quantizer = Quantizer::new(program, Output::Model, &options, &config)?;
//! let samples = quantizer.read_samples(&["calibration".into()])?;
//! let quantized = quantizer.run(&samples)?;
//! for layer in &quantized.layers {
//!     println!("{}: {:?} dB, the model {:?} dB", layer.name, layer.layer_db, layer.model_db);
//! }
//! if let Artifact::Model(model) = &quantized.made {
//!     let model = coremill::verify(model).expect("it is sound");
//!     coremill::save("Model.mlpackage", &model, &coremill::SaveOptions::default())?;
//! }
//! # Ok::<(), coremill::Error>(())
//! ```

pub use coremill_optimize::quantize::*;
