//! Compression of the weights of finished models: integers, palettes, pruning and combinations, and
//! decompression.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let package = directory.path().join("small.mlpackage");
//! # let row = |row: usize| format!("{:?}", [0; 64].map(|_: i32| (row % 61) as f32 / 64.0));
//! # let weights: Vec<String> = (0..64).map(row).collect();
//! # let source = format!(
//! #     "program(1.3) {{
//! #         func main<ios16>(tensor<fp32, [1, 64]> x) {{
//! #             tensor<fp32, [64, 64]> w = const()[val = tensor<fp32, [64, 64]>([{}])];
//! #             tensor<fp32, [1, 64]> y = linear(x = x, weight = w);
//! #         }} -> (y);
//! #     }}",
//! #     weights.join(", ")
//! # );
//! # let path = directory.path().join("small.mil");
//! # std::fs::write(&path, source)?;
//! # let mut model = coremill::open(&path)?;
//! use coremill::compress::{Options, RuleText};
//!
//! let palette = RuleText { palettize: Some(4.into()), ..RuleText::default() };
//! let options = Options { rules: vec![palette.to_rule()?], ..Options::default() };
//! let report = coremill::compress::compress(&mut model, &options, &|_, _| {})?;
//! assert_eq!(report.len(), 1);
//!
//! let verified = coremill::verify(&model)?;
//! coremill::save(&package, &verified, &coremill::SaveOptions::default())?;
//! # Ok(())
//! # }
//! ```

pub use coremill_optimize::compress::*;
