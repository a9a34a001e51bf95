use coremill_graph::{Executable, Input};

use super::{Reader, floats, pays_off, shape_of};
use crate::decoder::{LAST, LOGITS, POSITION, TOKENS};
use crate::error::{Result, fail};
use crate::model::{DECODE, PREFILL};
use crate::states::CACHE;

/// The functions `decode` and `prefill` of a Core ML model.
pub(super) struct Functions {
    executable: Executable,
    context: usize,
    vocabulary: usize,
    /// Tokens that `prefill` reads in a call.
    block: Option<usize>,
    /// `prefill` takes the index of the last valid token.
    takes_last: bool,
    /// Functions return the logits of all tokens.
    returns_all: bool,
    /// There are states of recurrent layers.
    accumulates: bool,
    logits: Vec<f32>,
}

impl Functions {
    pub(super) fn new(mut executable: Executable) -> Result<Functions> {
        let functions = executable.functions()?;
        let block = match functions.iter().any(|name| name == PREFILL) {
            true => shape_of(&executable.inputs(PREFILL)?, TOKENS).get(1).copied(),
            false => None,
        };
        let logits = shape_of(&executable.outputs(DECODE)?, LOGITS);
        let states = executable.states(DECODE)?;
        let Some(&vocabulary) = logits.last().filter(|_| !states.is_empty()) else {
            fail!(Unsupported, "the model has no output `{LOGITS}`, or no cache");
        };
        // States of recurrent layers do not depend on the number of positions.
        // Earlier versions wrote two states for each layer.
        let is_cache =
            |name: &str| name == CACHE || name.ends_with("_keys") || name.ends_with("_values");
        let keys = states.iter().find(|state| is_cache(&state.name));
        let context = match keys.map(|keys| keys.default_shape().unwrap_or_default()) {
            None => i32::MAX as usize,
            Some(shape) => match shape.get(2) {
                Some(&context) => context,
                None => fail!(Unsupported, "the cache must have 4 axes, got shape {shape:?}"),
            },
        };
        let takes_last = match block {
            Some(_) => executable.inputs(PREFILL)?.iter().any(|input| input.name == LAST),
            None => false,
        };
        let accumulates = states.iter().any(|state| !is_cache(&state.name));
        let (returns_all, logits) = (logits.len() == 3, Vec::new());
        Ok(Functions {
            executable,
            context,
            vocabulary,
            block,
            takes_last,
            returns_all,
            accumulates,
            logits,
        })
    }
}

impl Reader for Functions {
    fn context(&self) -> usize {
        self.context
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn accumulates(&self) -> bool {
        self.accumulates
    }

    fn returns_all(&self) -> bool {
        self.returns_all
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(self.executable.prepare()?)
    }

    fn count(&self, left: usize, position: usize) -> usize {
        let fits = |&block: &usize| pays_off(block, left, position, self.context);
        self.block.filter(fits).map_or(1, |block| block.min(left))
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let fits = |&block: &usize| pays_off(block, ids.len(), position, self.context);
        let block = self.block.filter(fits).unwrap_or(1);
        let mut tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        tokens.resize(block, 0);
        let (position, last) = ([position as i32], [ids.len() as i32 - 1]);
        let mut inputs: Vec<(&str, &dyn Input)> = vec![(TOKENS, &tokens), (POSITION, &position)];
        if block > 1 && self.takes_last {
            inputs.push((LAST, &last));
        }
        let function = if block > 1 { PREFILL } else { DECODE };
        let outputs = self.executable.run_function(function, &inputs)?;
        self.logits.clear();
        self.logits.extend_from_slice(floats(&outputs, LOGITS)?);
        Ok(&self.logits)
    }
}
