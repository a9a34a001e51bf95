//! A decoder as a bundle of ANEMLL: compiled models and `meta.yaml`, which ANEMLL's programs and apps load.

use std::ops::Range;
use std::path::Path;

use coremill_graph::{Device, Graph};
use coremill_mil::model::{FeatureType, Model, ShapeFlexibility};
use serde_json::json;

use crate::chunks::refuse_block_scales;
use crate::decoder::anemll::{build_chunk, build_embeddings, build_head, piece_count};
use crate::decoder::{FunctionOptions, Interface};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::files::{check_own, save_model, write_text};
use crate::model::{BuildOptions, LanguageModel, MAIN, PREFILL, SavedModel};
use crate::weights::Weights;

/// Name of the file that describes the bundle.
pub(crate) const META: &str = "meta.yaml";

/// Name of the file with the tokenizer's class, which ANEMLL's apps read.
const CONFIG: &str = "config.json";

/// Name of the function that reads one token.
pub(crate) const INFER: &str = "infer";

/// The version of ANEMLL whose bundles are written.
const VERSION: &str = "0.3.4";

/// Key of the metadata with the positions of the cache. Others begin in the same way.
const KEY: &str = "com.anemll.";

/// The name of a chunk's model, after the name of all.
fn chunk_name(all: &str, index: usize, count: usize) -> String {
    format!("{all}_chunk_{:02}of{count:02}.mlmodelc", index + 1)
}

/// The names of the embeddings, of all chunks, and of the head, without endings.
fn part_names(prefix: &str, weights: Weights) -> [String; 3] {
    let bits = weights.table_bits().map_or_else(String::new, |bits| format!("_lut{bits}"));
    ["embeddings", "FFN_PF", "lm_head"].map(|part| format!("{prefix}_{part}{bits}"))
}

/// A model of a bundle.
struct Part {
    name: String,
    graphs: Vec<Graph>,
    /// Number of the chunk, from 1.
    chunk: Option<usize>,
}

impl LanguageModel {
    /// Beginning of the names of models.
    fn anemll_prefix(&self) -> String {
        self.config().family.name.replace(|it: char| !it.is_ascii_alphanumeric(), "_")
    }

    /// Names of the models, and the files that describe them.
    pub(crate) fn anemll_files(&self, options: &BuildOptions) -> Result<Vec<String>> {
        let [embeddings, all, head] = part_names(&self.anemll_prefix(), options.weights);
        let count = self.chunk_layers(options)?.len();
        let mut names = vec![format!("{embeddings}.mlmodelc")];
        names.extend((0..count).map(|index| chunk_name(&all, index, count)));
        names.extend([format!("{head}.mlmodelc"), META.to_owned(), CONFIG.to_owned()]);
        Ok(names)
    }

    fn anemll_parts(&self, options: &BuildOptions) -> Result<Vec<Part>> {
        let prefill = self.check_sizes(options)?;
        self.check_anemll(options)?;
        let context = options.context;
        let config = self.config();
        let names = self.anemll_files(options)?;
        let chunks = self.chunk_layers(options)?;
        let (count, mut names) = (chunks.len(), names.into_iter());
        let mut next = || names.next().unwrap_or_default();
        let mut parts = vec![Part {
            name: next(),
            graphs: vec![build_embeddings(config, MAIN, prefill)],
            chunk: None,
        }];
        for (index, layers) in chunks.into_iter().enumerate() {
            let build = |name, tokens, layers: &Range<usize>| {
                let interface = Interface::Anemll;
                let function =
                    FunctionOptions { name, interface, tokens, context, all_logits: true };
                build_chunk(config, &function, layers.clone())
            };
            let graphs = vec![build(INFER, 1, &layers), build(PREFILL, prefill, &layers)];
            parts.push(Part { name: next(), graphs, chunk: Some(index + 1) });
        }
        debug_assert_eq!(parts.len(), count + 1);
        parts.push(Part { name: next(), graphs: vec![build_head(config, MAIN)], chunk: None });
        Ok(parts)
    }

    /// Refuses models and options that ANEMLL's programs do not support.
    fn check_anemll(&self, options: &BuildOptions) -> Result<()> {
        let (context, prefill) = (options.context, options.block());
        let config = self.config();
        refuse_block_scales(options)?;
        if !options.rules.is_empty() {
            let message = "ANEMLL bundles have one weight format, so rules are not supported";
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("choose `weights`, or the profile `ane` without a layout"));
        }
        if prefill < 2 {
            let message = format!("`prefill` must be at least 2 for ANEMLL, got {prefill}");
            return Err(Error::of_kind(ErrorKind::Argument, message));
        }
        if !context.is_multiple_of(prefill) {
            fail!(
                Argument,
                "`context` must be a multiple of the {prefill} tokens of `prefill` for ANEMLL, got {context}"
            );
        }
        let few = config.vocabulary < piece_count(config);
        let what = config
            .uneven_positions(context)
            .or(few.then_some("fewer tokens than output head pieces"));
        what.map_or(Ok(()), |what| Err(config.refusal(what, "ANEMLL", "another layout")))
    }

    /// Writes the bundle.
    pub(crate) fn save_anemll(
        &self,
        directory: &Path,
        options: &BuildOptions,
        durable: bool,
        stage: &mut dyn FnMut(&str),
    ) -> Result<SavedModel> {
        let parts = self.anemll_parts(options)?;
        let count = parts.iter().filter(|part| part.chunk.is_some()).count();
        let meta = self.anemll_meta(options, count);
        let config = json!({
            "model_type": self.config().family.name,
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        let texts = [(META, meta), (CONFIG, format!("{config:#}\n"))];
        for (name, text) in &texts {
            check_own(&directory.join(name), text)?;
        }
        let mut saved = SavedModel::default();
        for Part { name, graphs, chunk } in parts {
            let path = directory.join(name);
            stage(&format!("writing {}", path.display()));
            let mut compiled = self.compile_graphs(&graphs, Device::Host, 0, options)?;
            let mut model = compiled.executable.model()?.clone();
            describe(&mut model, options, chunk.map(|chunk| (chunk, count)));
            save_model(&path, &model, durable)?;
            saved.files.push(path);
            saved.losses.append(&mut compiled.losses);
        }
        for (name, text) in &texts {
            let path = directory.join(name);
            write_text(&path, text)?;
            saved.files.push(path);
        }
        Ok(saved)
    }

    /// The description of the bundle.
    fn anemll_meta(&self, options: &BuildOptions, chunks: usize) -> String {
        let BuildOptions { context, weights, .. } = *options;
        let prefill = options.block();
        let (name, prefix) = (self.config().family.name, self.anemll_prefix());
        let [embeddings, all, head] = part_names(&prefix, weights);
        let bits = weights.table_bits().map_or_else(|| "none".to_owned(), |bits| bits.to_string());
        let pieces = piece_count(self.config());
        // ANEMLL's programs add the number of the chunk to this name if there are several.
        let ffn = match chunks {
            1 => chunk_name(&all, 0, 1),
            _ => format!("{all}.mlmodelc"),
        };
        format!(
            "model_info:
  name: anemll-{name}-ctx{context}
  version: {VERSION}
  description: |
    A {name} model for the Neural Engine, converted by coremill
    Context length: {context}
    Batch size: {prefill}
    Chunks: {chunks}
  license: unknown
  author: coremill
  framework: Core ML
  language: Rust
  architecture: {name}
  parameters:
    context_length: {context}
    batch_size: {prefill}
    lut_embeddings: {bits}
    lut_ffn: {bits}
    lut_lmhead: {bits}
    num_chunks: {chunks}
    model_prefix: {prefix}
    embeddings: {embeddings}.mlmodelc
    lm_head: {head}.mlmodelc
    ffn: {ffn}
    split_lm_head: {pieces}
"
        )
    }
}

/// Adds the metadata, and the two lengths of the embeddings.
fn describe(model: &mut Model, options: &BuildOptions, chunk: Option<(usize, usize)>) {
    let BuildOptions { context, weights, .. } = *options;
    let prefill = options.block();
    let description = &mut model.description;
    let metadata = description.metadata.get_or_insert_default();
    let mut set =
        |key: &str, value: String| metadata.set_user_defined(format!("{KEY}{key}"), value);
    set("info", format!("converted by coremill for ANEMLL {VERSION}"));
    set("context_length", context.to_string());
    if let Some(bits) = weights.table_bits() {
        set("lut_bits", bits.to_string());
    }
    if let Some((chunk, count)) = chunk {
        set("num_chunks", count.to_string());
        set("chunk_no", chunk.to_string());
        set("batch_size", prefill.to_string());
    }
    for input in &mut description.inputs {
        if let FeatureType::MultiArray(array) = &mut input.ty
            && matches!(array.flexibility, ShapeFlexibility::Ranged(_))
        {
            let shapes = [1, prefill].map(|tokens| vec![1, tokens as i64]);
            array.flexibility = ShapeFlexibility::Enumerated(shapes.to_vec());
        }
    }
}
