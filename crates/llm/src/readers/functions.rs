use coremill_graph::{Executable, FeatureSpec, Input};

use super::passed::PassedCaches;
use super::{Reader, floats, pays_off, shape_of};
use crate::decoder::{LAST, LOGITS, POSITION, TOKENS};
use crate::error::{Result, fail};
use crate::model::{DECODE, LONG_PREFILL, PREFILL};
use crate::states::CACHE;

/// A function that reads a fixed number of tokens.
struct Block {
    function: &'static str,
    tokens: usize,
    /// It takes the index of the last valid token.
    takes_last: bool,
}

/// The functions `decode`, `prefill` and `long_prefill` of a Core ML model.
pub(super) struct Functions {
    executable: Executable,
    context: usize,
    vocabulary: usize,
    /// Functions that read more than one token, the one with most tokens first.
    blocks: Vec<Block>,
    /// Functions return the logits of all tokens.
    returns_all: bool,
    /// There are states of recurrent layers.
    accumulates: bool,
    passed: PassedCaches,
    logits: Vec<f32>,
}

impl Functions {
    pub(super) fn new(mut executable: Executable) -> Result<Functions> {
        let functions = executable.functions()?;
        let mut blocks = Vec::new();
        for function in [PREFILL, LONG_PREFILL] {
            if !functions.iter().any(|name| name == function) {
                continue;
            }
            let inputs = executable.inputs(function)?;
            if let Some(&tokens) = shape_of(&inputs, TOKENS).get(1) {
                let takes_last = inputs.iter().any(|input| input.name == LAST);
                blocks.push(Block { function, tokens, takes_last });
            }
        }
        blocks.sort_by_key(|block| std::cmp::Reverse(block.tokens));
        let logits = shape_of(&executable.outputs(DECODE)?, LOGITS);
        let passed = PassedCaches::of(&mut executable, DECODE)?;
        let states = executable.states(DECODE)?;
        let of_state =
            |state: &FeatureSpec| (state.name.clone(), state.default_shape().unwrap_or_default());
        let of_input = |(name, shape): (&str, &[usize])| (name.to_owned(), shape.to_vec());
        let caches: Vec<(String, Vec<usize>)> =
            states.iter().map(of_state).chain(passed.shapes().map(of_input)).collect();
        let Some(&vocabulary) = logits.last().filter(|_| !caches.is_empty()) else {
            fail!(Unsupported, "the model has no output `{LOGITS}`, or no cache");
        };
        // States of recurrent layers do not depend on the number of positions.
        // Earlier versions wrote two states for each layer.
        let is_cache =
            |name: &str| name == CACHE || name.ends_with("_keys") || name.ends_with("_values");
        let context = match caches.iter().find(|(name, _)| is_cache(name)) {
            None => i32::MAX as usize,
            Some((_, shape)) => match shape.get(2) {
                Some(&context) => context,
                None => fail!(Unsupported, "the cache must have 4 axes, got shape {shape:?}"),
            },
        };
        let accumulates = caches.iter().any(|(name, _)| !is_cache(name));
        let (returns_all, logits) = (logits.len() == 3, Vec::new());
        Ok(Functions {
            executable,
            context,
            vocabulary,
            blocks,
            returns_all,
            accumulates,
            passed,
            logits,
        })
    }

    /// The function for the next call, unless tokens are read one by one: the largest block that the tokens fill to three
    /// quarters, or else the smallest one.
    fn block(&self, left: usize, position: usize) -> Option<&Block> {
        let fills = |block: &&Block| {
            left * 4 >= block.tokens * 3 && position + block.tokens <= self.context
        };
        let smallest = self.blocks.last();
        let smallest = smallest.filter(|it| pays_off(it.tokens, left, position, self.context));
        self.blocks.iter().find(fills).or(smallest)
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
        self.block(left, position).map_or(1, |block| block.tokens.min(left))
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let (function, count, takes_last) = match self.block(ids.len(), position) {
            Some(block) => (block.function, block.tokens, block.takes_last),
            None => (DECODE, 1, false),
        };
        let mut tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        tokens.resize(count, 0);
        let (position, last) = ([position as i32], [ids.len() as i32 - 1]);
        let mut inputs: Vec<(&str, &dyn Input)> = vec![(TOKENS, &tokens), (POSITION, &position)];
        if takes_last {
            inputs.push((LAST, &last));
        }
        let caches = self.passed.arrays();
        inputs.extend(caches.iter().map(|(name, array)| (*name, array as &dyn Input)));
        let outputs = self.executable.run_function(function, &inputs)?;
        self.passed.keep(&outputs)?;
        self.logits.clear();
        self.logits.extend_from_slice(floats(&outputs, LOGITS)?);
        Ok(&self.logits)
    }
}
