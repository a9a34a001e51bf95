//! Execution of models on this machine's CPU.
//!
//! [`graph::Session`](crate::graph::Session) runs models, compiled models and programs on every
//! device. This module is the CPU implementation behind it, with limits, profiles and access to
//! intermediate values.
//!
//! ```
//! use coremill::DType;
//! use coremill::engine::{Array, Engine, Hooks, LoadOptions};
//! use coremill::mil::{model, text};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "program(1.3) {
//!     func main<ios17>(tensor<fp32, [2]> x) {
//!         tensor<fp32, [2]> twice = add(x = x, y = x);
//!         tensor<fp32, [2]> y = relu(x = twice);
//!     } -> (y);
//! }";
//! let model = model::describe(text::parse(text, &text::NoWeights)?)?;
//! let engine = Engine::load(&coremill::verify(&model)?, &LoadOptions::default())?;
//! let mut session = engine.session("main")?;
//! let mut seen = Vec::new();
//! let mut observe = |_: &str, name: &str, _: &_| seen.push(name.to_owned());
//! let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
//! let x = Array::floats(DType::Fp32, [2], vec![-1.0, 3.0]);
//! let outputs = session.run_with(&[("x", x)], &mut hooks)?;
//! assert_eq!(outputs.floats("y"), Some(&[0.0, 6.0][..]));
//! assert_eq!(seen, ["twice", "y"]);
//! # Ok(())
//! # }
//! ```

pub use coremill_engine::{
    Array, Elements, ElementsView, Engine, Error, FeatureSpec, Hooks, Input, Key, Limits,
    LoadOptions, Numerics, Observer, Outputs, Session, Span, Value, View,
};
