//! A decoder as several models for the Neural Engine: embeddings, chunks of layers, and the output head.
//!
//! The Neural Engine computes in fp16 only and cannot look up rows at indices, so the embeddings are a model of their own, and
//! the caller computes masks and rotations. A chunk is small enough for the engine's limits of layers and weights, and has one state.

use std::ops::Range;
use std::path::Path;

use coremill_graph::{Device, Graph};
use serde_json::{Value, json};

use crate::config::Rotation;
use crate::decoder::{
    FunctionOptions, Interface, build_chunk, build_embeddings, build_head, local_inputs,
};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::files::{check_own, save_model, write_text};
use crate::model::{BuildOptions, DECODE, LanguageModel, Layout, PREFILL, SavedModel};
use crate::weights::{RuleUse, Weights};

/// Name of the file that lists the models.
pub(crate) const MANIFEST: &str = "coremill.json";

/// Most layers of a chunk: 31 are reported to fail, and 24 to work.
const MAX_LAYERS: usize = 24;

/// Most bytes of a chunk's weights: larger packages are reported to run on the GPU.
const MAX_BYTES: f64 = 1e9;

/// Positions of the cache are a multiple of this number.
const ALIGNMENT: usize = 32;

const EMBEDDINGS: &str = "embeddings.mlpackage";
const HEAD: &str = "head.mlpackage";

/// The file of a chunk.
fn chunk_name(index: usize) -> String {
    format!("chunk_{}.mlpackage", index + 1)
}

/// Contiguous ranges of layers, whose lengths differ by at most 1.
fn split(layers: usize, count: usize) -> Vec<Range<usize>> {
    let cut = |part: usize| layers * part / count;
    (0..count).map(|part| cut(part)..cut(part + 1)).collect()
}

/// Refuses weights that the Neural Engine cannot read.
pub(crate) fn refuse_block_scales(options: &BuildOptions) -> Result<()> {
    let rule = options.rules.iter().position(|rule| rule.form.has_block_scales());
    let what = match (options.weights, rule) {
        (Weights::Int4, _) => "`int4`".to_owned(),
        (_, Some(at)) => format!("rule {}", at + 1),
        _ => return Ok(()),
    };
    let message =
        format!("the Neural Engine does not support block-wise weight scales, which {what} uses");
    let error = Error::of_kind(ErrorKind::Argument, message);
    Err(error.with_hint("choose `int8`, `lut4` or `lut6`"))
}

impl LanguageModel {
    /// The layers of each chunk.
    pub(crate) fn chunk_layers(&self, options: &BuildOptions) -> Result<Vec<Range<usize>>> {
        let layers = self.config().layers;
        let count = match options.chunks {
            Some(count) if count == 0 || count > layers => {
                fail!(
                    Argument,
                    "`chunks` must be from 1 to {layers}, the number of layers, got {count}"
                )
            }
            Some(count) => count,
            None => {
                let bits = match options.weights {
                    Weights::Exact | Weights::Fp16 => 16.0,
                    Weights::Int8 => 8.0,
                    Weights::Lut6 => 6.0,
                    Weights::Int4 | Weights::Lut4 => 4.0,
                };
                let bytes = self.layer_weights() as f64 * bits / 8.0;
                layers.div_ceil(MAX_LAYERS).max((bytes / MAX_BYTES).ceil() as usize).min(layers)
            }
        };
        Ok(split(layers, count.max(1)))
    }

    /// Names of the models of [`Layout::Chunks`] or [`Layout::Anemll`], and the files that list them.
    pub fn chunk_files(&self, options: &BuildOptions) -> Result<Vec<String>> {
        if options.layout == Layout::Anemll {
            return self.anemll_files(options);
        }
        let chunks = self.chunk_layers(options)?;
        let names = (0..chunks.len()).map(chunk_name);
        let all = [EMBEDDINGS.to_owned()].into_iter().chain(names);
        Ok(all.chain([HEAD.to_owned(), MANIFEST.to_owned()]).collect())
    }

    /// The names and functions of the models.
    fn chunk_graphs(&self, options: &BuildOptions) -> Result<Vec<(String, Vec<Graph>)>> {
        let prefill = self.check_sizes(options)?;
        let context = options.context;
        if !context.is_multiple_of(ALIGNMENT) {
            let message = format!(
                "`context` must be a multiple of {ALIGNMENT} for the Neural Engine, got {context}"
            );
            return Err(Error::of_kind(ErrorKind::Argument, message));
        }
        refuse_block_scales(options)?;
        let config = self.config();
        if config.is_recurrent() || config.learned_positions.is_some() {
            let message = format!(
                "models with recurrent layers or learned position embeddings are not supported for the Neural Engine; this is a `{}`",
                config.family.name
            );
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("choose the layout `coremill`"));
        }
        let mut functions = vec![(DECODE, 1)];
        if prefill > 1 {
            functions.push((PREFILL, prefill));
        }
        let each = |build: &dyn Fn(&'static str, usize) -> Graph| -> Vec<Graph> {
            functions.iter().map(|&(name, tokens)| build(name, tokens)).collect()
        };
        let mut models = vec![(
            EMBEDDINGS.to_owned(),
            each(&|name, tokens| build_embeddings(config, name, tokens)),
        )];
        for (index, layers) in self.chunk_layers(options)?.into_iter().enumerate() {
            let build = |name, tokens| {
                let interface = Interface::Block;
                let function =
                    FunctionOptions { name, interface, tokens, context, all_logits: true };
                build_chunk(config, &function, layers.clone())
            };
            models.push((chunk_name(index), each(&build)));
        }
        models.push((HEAD.to_owned(), vec![build_head(config, DECODE)]));
        Ok(models)
    }

    /// Writes the models, and the file that lists them.
    pub(crate) fn save_chunks(
        &self,
        directory: &Path,
        options: &BuildOptions,
        durable: bool,
        stage: &mut dyn FnMut(&str),
    ) -> Result<SavedModel> {
        let manifest = format!("{:#}\n", self.chunk_manifest(options)?);
        let list = directory.join(MANIFEST);
        check_own(&list, &manifest)?;
        let (mut saved, mut rule_use) = (SavedModel::default(), RuleUse::default());
        for (name, graphs) in self.chunk_graphs(options)? {
            let path = directory.join(name);
            stage(&format!("writing {}", path.display()));
            let mut compiled = self.compile_graphs(&graphs, Device::Host, 0, options)?;
            save_model(&path, compiled.executable.model()?, durable)?;
            saved.files.push(path);
            saved.losses.append(&mut compiled.losses);
            rule_use.append(compiled.rule_use);
        }
        write_text(&list, &manifest)?;
        saved.files.push(list);
        saved.warnings = rule_use.warnings(&options.rules);
        Ok(saved)
    }

    /// The list of the models, with the numbers that a caller needs.
    fn chunk_manifest(&self, options: &BuildOptions) -> Result<Value> {
        let config = self.config();
        let context = options.context;
        let chunks = self.chunk_layers(options)?;
        let rotation = |rotation: &Rotation| {
            let (frequencies, amplitude) = rotation.frequencies(context);
            json!({ "frequencies": frequencies, "amplitude": amplitude })
        };
        let chunks: Vec<Value> = chunks
            .into_iter()
            .enumerate()
            .map(|(index, layers)| {
                let [masks, rotates] = local_inputs(config, context, layers.clone());
                json!({
                    "model": chunk_name(index),
                    "layers": [layers.start, layers.end],
                    "local_mask": masks,
                    "local_rotation": rotates,
                })
            })
            .collect();
        Ok(json!({
            "format_version": 1,
            "layout": "chunks",
            "family": config.family.name,
            "context": context,
            "prefill": options.block(),
            "width": config.width,
            "vocabulary": config.vocabulary,
            "embeddings": EMBEDDINGS,
            "chunks": chunks,
            "head": HEAD,
            "rotation": rotation(&config.rotation),
            "local_rotation": config.local_rotation.as_ref().map(rotation),
            "window": config.window,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_split_evenly() {
        assert_eq!(split(30, 2), [0..15, 15..30]);
        assert_eq!(split(7, 3), [0..2, 2..4, 4..7]);
        assert_eq!(split(1, 1), [0..1]);
    }
}
