use coremill_delegate::FORWARD;
use coremill_graph::{ArrayView, Executable, Input};

use super::{Constants, Reader};
use crate::error::{Error, ErrorKind, Result, fail};

/// A program for ExecuTorch's `TextLLMRunner`: `forward` takes tokens and their position.
pub(super) struct TextRunner {
    executable: Executable,
    context: usize,
    vocabulary: usize,
    /// Most tokens of a call.
    block: usize,
    /// Names of the inputs.
    inputs: [String; 2],
    output: String,
    /// `forward` takes the positions of all tokens rather than of the first one.
    takes_positions: bool,
    logits: Vec<f32>,
}

impl TextRunner {
    pub(super) fn new(mut executable: Executable, constants: &Constants) -> Result<TextRunner> {
        let inputs = executable.inputs(FORWARD)?;
        let outputs = executable.outputs(FORWARD)?;
        let ([tokens, position], [logits]) = (&inputs[..], &outputs[..]) else {
            let (inputs, outputs) = (inputs.len(), outputs.len());
            let message = format!(
                "`forward` must have 2 inputs, tokens and their position, and 1 output, got {inputs} and {outputs}"
            );
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(
                error.with_hint("convert the model with a cache, for ExecuTorch's `TextLLMRunner`")
            );
        };
        let shape = |spec: &coremill_graph::FeatureSpec| spec.default_shape().unwrap_or_default();
        let &[1, room] = &shape(tokens)[..] else {
            fail!(Unsupported, "the tokens of `forward` must have the shape [1, n]");
        };
        let takes_positions = shape(position).first().is_some_and(|&count| count > 1);
        let Some(&vocabulary) = shape(logits).last() else {
            fail!(Unsupported, "the output of `forward` has no logits");
        };
        let (inputs, output) = ([tokens.name.clone(), position.name.clone()], logits.name.clone());
        let longest = constants.required(&mut executable, "get_max_seq_len")?;
        let is_dynamic = constants.size(&mut executable, "enable_dynamic_shape")? == Some(1);
        let context = constants.size(&mut executable, "get_max_context_len")?.unwrap_or(longest);
        let block = if is_dynamic { room.min(longest).max(1) } else { 1 };
        let logits = Vec::new();
        Ok(TextRunner {
            executable,
            context,
            vocabulary,
            block,
            inputs,
            output,
            takes_positions,
            logits,
        })
    }
}

impl Reader for TextRunner {
    fn context(&self) -> usize {
        self.context
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn accumulates(&self) -> bool {
        true
    }

    fn returns_all(&self) -> bool {
        false
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn count(&self, left: usize, _: usize) -> usize {
        left.min(self.block)
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let tokens = ArrayView { shape: &[1, tokens.len()], elements: &tokens };
        let count = if self.takes_positions { ids.len() } else { 1 };
        let positions: Vec<i32> = (position..position + count).map(|at| at as i32).collect();
        let [first, second] = &self.inputs;
        let inputs: [(&str, &dyn Input); 2] = [(first, &tokens), (second, &positions)];
        let outputs = self.executable.run_function(FORWARD, &inputs)?;
        let Some(logits) = outputs.floats(&self.output) else {
            fail!(Run, "`forward` returned no floats");
        };
        // Some programs return the logits of all tokens.
        let Some(start) = logits.len().checked_sub(self.vocabulary) else {
            fail!(
                Run,
                "`forward` returned {} logits, expected at least {}",
                logits.len(),
                self.vocabulary
            );
        };
        self.logits.clear();
        self.logits.extend_from_slice(&logits[start..]);
        Ok(&self.logits)
    }
}
