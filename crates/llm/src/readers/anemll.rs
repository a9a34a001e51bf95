use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coremill_graph::{ArrayView, Executable, Input, Session};

use super::{Reader, causal_mask, floats, pays_off, shape_of};
use crate::anemll::{INFER, META};
use crate::decoder::anemll::{
    CAUSAL_MASK, CURRENT_POS, HIDDEN_STATES, INPUT_IDS, OUTPUT_HIDDEN_STATES, POSITION_IDS,
    logits_name,
};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::model::PREFILL;
use crate::source::read_text;

/// Most models of a bundle.
const MAX_CHUNKS: usize = 1024;

/// Endings of models, in the order in which they are looked for.
const ENDINGS: [&str; 2] = ["mlmodelc", "mlpackage"];

/// A bundle of ANEMLL. Its caller computes masks and positions.
pub(super) struct Anemll {
    embeddings: Executable,
    chunks: Vec<Executable>,
    head: Executable,
    /// Names of the head's outputs, in the order of tokens.
    pieces: Vec<String>,
    context: usize,
    vocabulary: usize,
    /// Tokens of a call of `prefill`.
    block: usize,
    width: usize,
    logits: Vec<f32>,
}

/// The parameters of `meta.yaml`.
struct Meta<'p> {
    path: &'p Path,
    values: BTreeMap<String, String>,
}

impl Meta<'_> {
    fn open(path: &Path) -> Result<Meta<'_>> {
        let text = read_text(path)?;
        Ok(Meta { path, values: parameters(&text) })
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    fn size(&self, key: &str) -> Result<usize> {
        let number = self.text(key).and_then(|value| value.parse().ok());
        number.filter(|&number| number > 0).ok_or_else(|| {
            let path = self.path.display();
            let message = format!("{path}: `{key}` is missing or is not a positive number");
            Error::of_kind(ErrorKind::Format, message)
        })
    }

    /// The name of a model, without its ending. Older bundles do not list it, and name the model after its part.
    fn model(&self, key: &str, part: &str, lut: &str) -> String {
        if let Some(listed) = self.text(key) {
            let stem = ENDINGS.iter().find_map(|ending| listed.strip_suffix(&format!(".{ending}")));
            return stem.unwrap_or(listed).to_owned();
        }
        let prefix = self.text("model_prefix").unwrap_or("llama");
        match self.text(lut) {
            None | Some("none") => format!("{prefix}_{part}"),
            Some(bits) => format!("{prefix}_{part}_lut{bits}"),
        }
    }

    /// The path of a model in the bundle's directory.
    fn find(&self, stem: &str) -> Result<PathBuf> {
        let is_plain = Path::new(stem).file_name().is_some_and(|plain| plain == stem);
        let directory = self.path.parent().filter(|_| is_plain).unwrap_or(Path::new("."));
        let mut paths = ENDINGS.iter().map(|ending| directory.join(format!("{stem}.{ending}")));
        match paths.find(|path| is_plain && path.exists()) {
            Some(path) => Ok(path),
            None => {
                let path = self.path.display();
                let message = format!("{path}: the directory has no model `{stem}`");
                Err(Error::of_kind(ErrorKind::Format, message))
            }
        }
    }

    /// The paths of the chunks, in order.
    fn chunks(&self) -> Result<Vec<PathBuf>> {
        let count = self.size("num_chunks")?;
        if count > MAX_CHUNKS {
            fail!(
                Format,
                "{}: `num_chunks` must be at most {MAX_CHUNKS}, got {count}",
                self.path.display()
            );
        }
        let stem = self.model("ffn", "FFN_PF", "lut_ffn");
        let base = stem.find("_chunk_").map_or(&*stem, |end| &stem[..end]);
        let chunk = |index: usize| self.find(&format!("{base}_chunk_{index:02}of{count:02}"));
        match count {
            // A bundle of one chunk may have it under either name.
            1 => Ok(vec![chunk(1).or_else(|_| self.find(&stem))?]),
            _ => (1..=count).map(chunk).collect(),
        }
    }
}

/// The scalars below `parameters:` in a description, which is YAML with two levels.
fn parameters(text: &str) -> BTreeMap<String, String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip_while(|line| line.trim_end().trim_start() != "parameters:");
    let outer = lines.next().map_or(0, indent);
    let inner =
        lines.filter(|line| !line.trim().is_empty()).take_while(|line| indent(line) > outer);
    let pairs = inner.filter_map(|line| line.trim().split_once(':'));
    pairs
        .map(|(key, value)| {
            let value = value.split(" #").next().unwrap_or_default().trim();
            (key.trim().to_owned(), value.trim_matches(['"', '\'']).to_owned())
        })
        .collect()
}

impl Anemll {
    pub(super) fn open(directory: &Path, session: &Session) -> Result<Anemll> {
        let path = directory.join(META);
        let meta = Meta::open(&path)?;
        let open = |path: PathBuf| Ok::<_, Error>(session.open(path)?);
        let embeddings =
            open(meta.find(&meta.model("embeddings", "embeddings", "lut_embeddings"))?)?;
        let chunks: Vec<Executable> =
            meta.chunks()?.into_iter().map(open).collect::<Result<_>>()?;
        let mut head = open(meta.find(&meta.model("lm_head", "lm_head", "lut_lmhead"))?)?;
        let function = head.default_function()?;
        let outputs = head.outputs(&function)?;
        let mut pieces: Vec<String> = (0..outputs.len()).map(logits_name).collect();
        pieces.retain(|name| outputs.iter().any(|output| output.name == *name));
        let rows = |name: &String| shape_of(&outputs, name).last().copied().unwrap_or_default();
        let vocabulary: usize = pieces.iter().map(rows).sum();
        if vocabulary == 0 || pieces.len() != outputs.len() {
            fail!(Unsupported, "the head must have the outputs `logits1`, `logits2` and so on");
        }
        let (context, block) = (meta.size("context_length")?, meta.size("batch_size")?);
        let mut reader = Anemll {
            embeddings,
            chunks,
            head,
            pieces,
            context,
            vocabulary,
            block,
            width: 0,
            logits: Vec::new(),
        };
        reader.width = reader.check()?;
        Ok(reader)
    }

    /// Compares the sizes of the description with the models. Returns the elements of a hidden state.
    fn check(&mut self) -> Result<usize> {
        let (context, block) = (self.context, self.block);
        let mut width = None;
        for chunk in &mut self.chunks {
            for (function, tokens) in [(INFER, 1), (PREFILL, block)] {
                let inputs = chunk.inputs(function)?;
                let hidden = shape_of(&inputs, HIDDEN_STATES);
                let found = hidden.get(2).copied();
                let fits = hidden.get(..2) == Some(&[1, tokens])
                    && shape_of(&inputs, CAUSAL_MASK) == [1, 1, tokens, context]
                    && *width.get_or_insert(found) == found;
                if !fits {
                    fail!(Format, "`{META}` does not describe the models next to it");
                }
            }
        }
        match width.flatten() {
            Some(width) if block <= context => Ok(width),
            _ => fail!(Format, "`{META}` does not describe the models next to it"),
        }
    }

    /// Whether the tokens before the last one are read as a block.
    fn reads_block(&self, left: usize, position: usize) -> bool {
        left > 1 && pays_off(self.block, left - 1, position, self.context)
    }

    /// Runs the chunks on tokens at a position. Returns the hidden states of the last chunk.
    fn run(&mut self, ids: &[u32], position: usize, function: &str) -> Result<Vec<f32>> {
        let count = if function == INFER { 1 } else { self.block };
        let mut tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        tokens.resize(count, 0);
        let tokens = ArrayView { shape: &[1, count], elements: &tokens };
        let outputs = self.embeddings.run(&[(INPUT_IDS, &tokens)])?;
        let mut hidden = floats(&outputs, HIDDEN_STATES)?.to_vec();
        let positions: Vec<i32> = (position..position + count).map(|at| at as i32).collect();
        let current = [position as i32];
        let mask = causal_mask(position, count, self.context);
        for chunk in &mut self.chunks {
            let inputs: [(&str, &dyn Input); 4] = [
                (HIDDEN_STATES, &hidden),
                (POSITION_IDS, &positions),
                (CAUSAL_MASK, &mask),
                (CURRENT_POS, &current),
            ];
            let outputs = chunk.run_function(function, &inputs)?;
            hidden = floats(&outputs, OUTPUT_HIDDEN_STATES)?.to_vec();
        }
        Ok(hidden)
    }
}

impl Reader for Anemll {
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
        self.chunks.iter_mut().try_for_each(Executable::prepare)?;
        Ok(self.head.prepare()?)
    }

    fn count(&self, left: usize, position: usize) -> usize {
        if self.reads_block(left, position) { left.min(self.block + 1) } else { 1 }
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let Some((&last, before)) = ids.split_last() else { return Ok(&[]) };
        // A block only fills the cache.
        if !before.is_empty() {
            self.run(before, position, PREFILL)?;
        }
        let hidden = self.run(&[last], position + before.len(), INFER)?;
        if hidden.len() != self.width {
            fail!(
                Run,
                "the last model returned {} elements, expected {}",
                hidden.len(),
                self.width
            );
        }
        let outputs = self.head.run(&[(HIDDEN_STATES, &hidden)])?;
        self.logits.clear();
        for piece in &self.pieces {
            self.logits.extend_from_slice(floats(&outputs, piece)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_parameters_of_meta_yaml() {
        let text = "model_info:\n  name: x\n  description: |\n    parameters: none\n  parameters:\n    context_length: 512\n    \
                    lut_ffn: 6 # bits\n\n    model_prefix: \"qwen\"\nother:\n  batch_size: 3\n";
        let found = parameters(text);
        let expected = [("context_length", "512"), ("lut_ffn", "6"), ("model_prefix", "qwen")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(found, BTreeMap::from(expected));
        assert!(parameters("model_info: 1").is_empty());
    }

    #[test]
    fn derives_model_names_absent_from_meta_yaml() {
        let values = parameters(
            "parameters:\n  model_prefix: q\n  lut_ffn: 6\n  lut_lmhead: none\n  lm_head: ../x.mlmodelc\n",
        );
        let meta = Meta { path: Path::new("absent/meta.yaml"), values };
        assert_eq!(meta.model("ffn", "FFN_PF", "lut_ffn"), "q_FFN_PF_lut6");
        assert_eq!(meta.model("other", "lm_head", "lut_lmhead"), "q_lm_head");
        let outside = meta.model("lm_head", "lm_head", "lut_lmhead");
        let error = meta.find(&outside).expect_err("outside the directory").to_string();
        assert!(error.ends_with("has no model `../x`"), "{error}");
    }
}
