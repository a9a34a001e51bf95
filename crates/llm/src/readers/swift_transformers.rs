use coremill_graph::{ArrayView, Executable, Input};
use coremill_mil::model::Model;

use super::{Reader, causal_mask, floats, shape_of};
use crate::decoder::{CAUSAL_MASK, INPUT_IDS, KEY_CACHE, LOGITS};
use crate::error::{Result, fail};
use crate::model::MAIN;

/// Most tokens of a call. Each number of tokens is planned for itself.
const BLOCK: usize = 64;

/// A model for swift-transformers' `LanguageModel`, with states.
pub(super) struct SwiftTransformers {
    executable: Executable,
    context: usize,
    vocabulary: usize,
    logits: Vec<f32>,
}

impl SwiftTransformers {
    pub(super) fn new(mut executable: Executable) -> Result<SwiftTransformers> {
        let keys = shape_of(&executable.states(MAIN)?, KEY_CACHE);
        let &[_, 1, _, context, _] = keys.as_slice() else {
            fail!(
                Unsupported,
                "the state `{KEY_CACHE}` must have the shape [layers, 1, heads, positions, head], got {keys:?}"
            );
        };
        // The description of an output has no shape if it depends on the input.
        let Some(vocabulary) = last_extent(executable.model()?, LOGITS) else {
            fail!(Unsupported, "the model has no output `{LOGITS}` with a fixed number of tokens");
        };
        Ok(SwiftTransformers { executable, context, vocabulary, logits: Vec::new() })
    }

    /// Whether a model has the states of swift-transformers.
    pub(super) fn is_one(executable: &mut Executable, functions: &[String]) -> Result<bool> {
        if !functions.iter().any(|name| name == MAIN) {
            return Ok(false);
        }
        Ok(executable.states(MAIN)?.iter().any(|state| state.name == KEY_CACHE))
    }
}

/// The last extent of an output of the only function.
fn last_extent(model: &Model, name: &str) -> Option<usize> {
    let function = model.program.function(MAIN)?;
    let mut outputs = function.outputs().iter().map(|&output| function.value(output));
    let output = outputs.find(|output| output.name == name)?;
    let extent = output.ty.as_tensor()?.shape.last()?.known()?;
    usize::try_from(extent).ok()
}

impl Reader for SwiftTransformers {
    fn context(&self) -> usize {
        self.context
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn accumulates(&self) -> bool {
        false
    }

    fn returns_all(&self) -> bool {
        true
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn count(&self, left: usize, _: usize) -> usize {
        left.min(BLOCK)
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let tokens = ArrayView { shape: &[1, tokens.len()], elements: &tokens };
        // The model takes the length of the mask. Models of other converters also take its elements.
        let length = position + ids.len();
        let mask = causal_mask(position, ids.len(), length);
        let mask = ArrayView { shape: &[1, 1, ids.len(), length], elements: &mask };
        let inputs: [(&str, &dyn Input); 2] = [(INPUT_IDS, &tokens), (CAUSAL_MASK, &mask)];
        let outputs = self.executable.run_function(MAIN, &inputs)?;
        self.logits.clear();
        self.logits.extend_from_slice(floats(&outputs, LOGITS)?);
        Ok(&self.logits)
    }
}
