//! Models that read blocks of tokens, in each layout.
//!
//! | module | holds |
//! |---|---|
//! | `anemll` | bundles of ANEMLL |
//! | `chunks` | models of some layers each, for the Neural Engine |
//! | `passed` | caches that models take and return, instead of states |
//! | `functions` | the functions `decode`, `prefill` and `long_prefill` of Core ML models |
//! | `text_runner` | programs for ExecuTorch's `TextLLMRunner` |
//! | `swift_transformers` | models for swift-transformers, which take their position from the length of a mask |
//! | `static_runner` | programs for ExecuTorch's static runners, whose caller keeps the cache |

use std::path::Path;

use coremill_graph::{Executable, FeatureSpec, Outputs, Session};

use crate::chunks::MANIFEST;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::model::DECODE;

mod anemll;
mod chunks;
mod functions;
mod passed;
mod static_runner;
mod swift_transformers;
mod text_runner;

use self::anemll::Anemll;
use self::chunks::Chunks;
use self::functions::Functions;
use self::static_runner::StaticRunner;
use self::swift_transformers::SwiftTransformers;
use self::text_runner::TextRunner;

/// A model that reads blocks of tokens, with its cache.
pub(crate) trait Reader: Send {
    /// Positions of the cache.
    fn context(&self) -> usize;

    /// Number of logits of a token.
    fn vocabulary(&self) -> usize;

    /// Whether [`Reader::read`] returns the logits of all tokens rather than of the last one.
    fn returns_all(&self) -> bool;

    /// Whether states accumulate all tokens, or are unknown, so that the last tokens cannot be taken back.
    fn accumulates(&self) -> bool;

    /// Compiles and plans the functions before the first tokens.
    fn prepare(&mut self) -> Result<()>;

    /// The number of tokens that the next call should read, of the tokens that are left. It is at least 1.
    fn count(&self, left: usize, position: usize) -> usize;

    /// Reads tokens at a position. Their number is at most [`Reader::count`].
    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]>;
}

/// The reader for the functions or methods of a model.
pub(crate) fn open(mut executable: Executable) -> Result<Box<dyn Reader>> {
    let names = executable.functions()?;
    let has = |name: &str| names.iter().any(|known| known == name);
    if has(DECODE) {
        return Ok(Box::new(Functions::new(executable)?));
    }
    if has(coremill_delegate::FORWARD) {
        let constants = Constants { names };
        return Ok(match constants.has("freqs_cos") {
            true => Box::new(StaticRunner::new(executable, &constants)?),
            false => Box::new(TextRunner::new(executable, &constants)?),
        });
    }
    if SwiftTransformers::is_one(&mut executable, &names)? {
        return Ok(Box::new(SwiftTransformers::new(executable)?));
    }
    let message = format!("the model has neither the function `{DECODE}` nor the method `forward`");
    let error = Error::of_kind(ErrorKind::Unsupported, message);
    Err(error.with_hint(
        "language models must be converted by coremill, or be models for ExecuTorch's runners or swift-transformers",
    ))
}

/// The reader for the models of some layers each in a directory, or for a bundle of ANEMLL.
pub(crate) fn open_chunks(directory: &Path, session: &Session) -> Result<Box<dyn Reader>> {
    Ok(match directory.join(MANIFEST).is_file() {
        true => Box::new(Chunks::open(directory, session)?),
        false => Box::new(Anemll::open(directory, session)?),
    })
}

/// Whether a block of a fixed number of tokens pays off. A block of few tokens costs more than reading them one by one.
fn pays_off(block: usize, left: usize, position: usize, context: usize) -> bool {
    left * 4 >= block && position + block <= context
}

/// The shape of a feature by name.
pub(crate) fn shape_of(specs: &[FeatureSpec], name: &str) -> Vec<usize> {
    let found = specs.iter().find(|spec| spec.name == name);
    found.and_then(FeatureSpec::default_shape).unwrap_or_default()
}

/// The mask of tokens at a position, which hides later keys: a row for each token, a column for each key.
fn causal_mask(position: usize, tokens: usize, keys: usize) -> Vec<f32> {
    let mut mask = vec![0.0; tokens * keys];
    for (row, scores) in mask.chunks_exact_mut(keys).enumerate() {
        scores[position + row + 1..].fill(f32::NEG_INFINITY);
    }
    mask
}

/// The floats of an output.
fn floats<'o>(outputs: &'o Outputs, name: &str) -> Result<&'o [f32]> {
    match outputs.floats(name) {
        Some(floats) => Ok(floats),
        None => fail!(Run, "the model returned no `{name}`"),
    }
}

/// Constant methods of a program.
struct Constants {
    names: Vec<String>,
}

impl Constants {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    /// The elements of a method's result, of any type, and its shape; `None` without such a method.
    fn numbers(
        &self,
        executable: &mut Executable,
        name: &str,
    ) -> Result<Option<(Vec<f64>, Vec<usize>)>> {
        if !self.has(name) {
            return Ok(None);
        }
        let outputs = executable.run_function(name, &[])?;
        let first = outputs.0.first().map(|(name, _)| name.clone()).unwrap_or_default();
        let Some(array) = outputs.array(&first) else {
            fail!(Format, "the method `{name}` does not return numbers");
        };
        let numbers = match (array.as_ints(), array.as_floats()) {
            (Some(ints), _) => ints.iter().map(|&number| number.into()).collect(),
            (_, Some(floats)) => floats.iter().map(|&number| number.into()).collect(),
            _ => fail!(Format, "the method `{name}` does not return numbers"),
        };
        Ok(Some((numbers, array.shape().to_vec())))
    }

    /// A method's result as a size.
    fn size(&self, executable: &mut Executable, name: &str) -> Result<Option<usize>> {
        let Some((numbers, _)) = self.numbers(executable, name)? else { return Ok(None) };
        match numbers[..] {
            [number] if number >= 0.0 && number.fract() == 0.0 => Ok(Some(number as usize)),
            _ => fail!(
                Format,
                "the method `{name}` must return a non-negative integer, got {numbers:?}"
            ),
        }
    }

    /// The result of a required method as a size.
    fn required(&self, executable: &mut Executable, name: &str) -> Result<usize> {
        match self.size(executable, name)? {
            Some(size) => Ok(size),
            None => fail!(Unsupported, "the program has no method `{name}`"),
        }
    }
}
