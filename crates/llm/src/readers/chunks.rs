use std::path::Path;

use coremill_graph::{Executable, Input, Session};
use serde_json::Value;

use super::passed::PassedCaches;
use super::{Reader, floats, pays_off, shape_of};
use crate::chunks::MANIFEST;
use crate::decoder::{HIDDEN, LOCAL, LOGITS, MASK, ROTATIONS, TOKENS, UPDATE};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::model::{DECODE, PREFILL};
use crate::source::read_json;

/// Score of a masked key, which vanishes in the softmax and is within the range of fp16.
const MASKED: f32 = -3e4;

/// Most positions of a cache, tokens of a block, elements of a hidden state, and tokens.
const MAX_SIZE: usize = 1 << 24;

/// Models of some layers each. Their caller computes masks and rotations.
pub(super) struct Chunks {
    embeddings: Executable,
    chunks: Vec<Chunk>,
    head: Executable,
    context: usize,
    vocabulary: usize,
    width: usize,
    /// Tokens that `prefill` reads in a call; 1 if there is no such function.
    block: usize,
    rotation: Rotation,
    local_rotation: Option<Rotation>,
    window: Option<usize>,
    logits: Vec<f32>,
}

struct Chunk {
    model: Executable,
    has_local_mask: bool,
    has_local_rotation: bool,
    passed: PassedCaches,
}

/// Angles of a step of position, and the factor of cosines and sines.
struct Rotation {
    frequencies: Vec<f64>,
    amplitude: f64,
}

impl Rotation {
    fn of_json(json: &Value) -> Option<Rotation> {
        let frequencies = json["frequencies"].as_array()?.iter().map(Value::as_f64);
        Some(Rotation {
            frequencies: frequencies.collect::<Option<_>>()?,
            amplitude: json["amplitude"].as_f64()?,
        })
    }

    /// Cosines and sines of positions.
    fn rows(&self, position: usize, count: usize) -> [Vec<f32>; 2] {
        let table = |of: fn(f64) -> f64| {
            let positions = position..position + count;
            let angles = positions.flat_map(|position| {
                self.frequencies.iter().map(move |frequency| position as f64 * frequency)
            });
            angles.map(|angle| (of(angle) * self.amplitude) as f32).collect()
        };
        [table(f64::cos), table(f64::sin)]
    }
}

impl Chunks {
    pub(super) fn open(directory: &Path, session: &Session) -> Result<Chunks> {
        let path = directory.join(MANIFEST);
        let json = read_json(&path)?;
        let wrong = |key: &str| {
            let message = format!("{}: `{key}` is missing or not valid", path.display());
            Error::of_kind(ErrorKind::Format, message)
        };
        if json["format_version"] != 1 || json["layout"] != "chunks" {
            return Err(wrong("format_version"));
        }
        let size = |key: &str| {
            let number = json[key].as_u64().and_then(|number| usize::try_from(number).ok());
            let valid = number.filter(|number| (1..=MAX_SIZE).contains(number));
            valid.ok_or_else(|| wrong(key))
        };
        let open = |name: &Value| {
            let name = name
                .as_str()
                .filter(|name| Path::new(name).file_name().is_some_and(|plain| plain == *name));
            let name = name.ok_or_else(|| wrong("chunks"))?;
            Ok::<_, Error>(session.open(directory.join(name))?)
        };
        let chunk = |json: &Value| {
            let mut model = open(&json["model"])?;
            Ok(Chunk {
                passed: PassedCaches::of(&mut model, DECODE)?,
                model,
                has_local_mask: json["local_mask"] == true,
                has_local_rotation: json["local_rotation"] == true,
            })
        };
        let chunks = json["chunks"].as_array().ok_or_else(|| wrong("chunks"))?;
        let local = &json["local_rotation"];
        let mut reader = Chunks {
            embeddings: open(&json["embeddings"])?,
            chunks: chunks.iter().map(chunk).collect::<Result<_>>()?,
            head: open(&json["head"])?,
            context: size("context")?,
            vocabulary: size("vocabulary")?,
            width: size("width")?,
            block: size("prefill")?,
            rotation: Rotation::of_json(&json["rotation"]).ok_or_else(|| wrong("rotation"))?,
            local_rotation: match local {
                Value::Null => None,
                local => Some(Rotation::of_json(local).ok_or_else(|| wrong("local_rotation"))?),
            },
            window: json["window"].as_u64().and_then(|window| usize::try_from(window).ok()),
            logits: Vec::new(),
        };
        reader.check()?;
        Ok(reader)
    }

    /// Compares the sizes of the list with the models.
    fn check(&mut self) -> Result<()> {
        let (context, width) = (self.context, self.width);
        for chunk in &mut self.chunks {
            let inputs = chunk.model.inputs(DECODE)?;
            let fits = shape_of(&inputs, HIDDEN) == [1, 1, width]
                && shape_of(&inputs, MASK) == [1, 1, 1, context];
            if !fits || (chunk.has_local_rotation && self.local_rotation.is_none()) {
                fail!(Format, "`{MANIFEST}` does not describe the models next to it");
            }
        }
        if self.block > context {
            fail!(
                Format,
                "the block size in `{MANIFEST}` must be at most {context}, the context, got {}",
                self.block
            );
        }
        Ok(())
    }

    /// The mask of tokens at a position, whose rows after `count` repeat nothing: they see all keys.
    fn mask(&self, position: usize, count: usize, block: usize, window: Option<usize>) -> Vec<f32> {
        let mut mask = vec![0.0; block * self.context];
        for (row, scores) in mask.chunks_exact_mut(self.context).take(count).enumerate() {
            let own = position + row;
            scores[own + 1..].fill(MASKED);
            if let Some(first) = window.and_then(|window| (own + 1).checked_sub(window)) {
                scores[..first].fill(MASKED);
            }
        }
        mask
    }
}

impl Reader for Chunks {
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
        false
    }

    fn prepare(&mut self) -> Result<()> {
        self.embeddings.prepare()?;
        self.chunks.iter_mut().try_for_each(|chunk| chunk.model.prepare())?;
        Ok(self.head.prepare()?)
    }

    fn count(&self, left: usize, position: usize) -> usize {
        let fits = self.block > 1 && pays_off(self.block, left, position, self.context);
        if fits { self.block.min(left) } else { 1 }
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let is_block = self.block > 1 && pays_off(self.block, ids.len(), position, self.context);
        let (function, block) = if is_block { (PREFILL, self.block) } else { (DECODE, 1) };
        let mut tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        tokens.resize(block, 0);
        let outputs = self.embeddings.run_function(function, &[(TOKENS, &tokens)])?;
        let mut hidden = floats(&outputs, HIDDEN)?.to_vec();

        let count = ids.len();
        let mask = self.mask(position, count, block, None);
        let local_mask = self.mask(position, count, block, self.window);
        let [cos, sin] = self.rotation.rows(position, block);
        let local = self.local_rotation.as_ref().unwrap_or(&self.rotation).rows(position, block);
        // Only valid tokens are stored.
        let mut update = vec![0.0f32; self.context * block];
        (0..count).for_each(|row| update[(position + row) * block + row] = 1.0);
        let next = format!("next_{HIDDEN}");
        for chunk in &mut self.chunks {
            let mut inputs: Vec<(&str, &dyn Input)> = vec![
                (HIDDEN, &hidden),
                (MASK, &mask),
                (ROTATIONS[0], &cos),
                (ROTATIONS[1], &sin),
                (UPDATE, &update),
            ];
            if chunk.has_local_mask {
                inputs.push((LOCAL[0], &local_mask));
            }
            if chunk.has_local_rotation {
                inputs.push((LOCAL[1], &local[0]));
                inputs.push((LOCAL[2], &local[1]));
            }
            let caches = chunk.passed.arrays();
            inputs.extend(caches.iter().map(|(name, array)| (*name, array as &dyn Input)));
            let outputs = chunk.model.run_function(function, &inputs)?;
            chunk.passed.keep(&outputs)?;
            hidden = floats(&outputs, &next)?.to_vec();
        }
        let last = hidden.chunks_exact(self.width).nth(count.saturating_sub(1));
        let Some(last) = last.map(<[f32]>::to_vec) else {
            fail!(Run, "the models returned no hidden state for token {count}");
        };
        let outputs = self.head.run_function(DECODE, &[(HIDDEN, &last)])?;
        self.logits.clear();
        let mut piece = 0;
        while let Some(logits) = outputs.floats(&format!("{LOGITS}_{piece}")) {
            self.logits.extend_from_slice(logits);
            piece += 1;
        }
        if self.logits.len() != self.vocabulary {
            fail!(
                Run,
                "the head returned {} logits, expected {}",
                self.logits.len(),
                self.vocabulary
            );
        }
        Ok(&self.logits)
    }
}
