//! Conversion of embedding models.

use std::path::Path;

use coremill::llm::{Destination, EmbeddingModel, EmbeddingOptions, Length};
use coremill::quantity;
use serde::Serialize;

use super::{
    Args, Loss, ProfileArg, Storage, loss_of, refuse_options, storage_of, told_files,
    without_unsupported,
};
use crate::commands::failure;
use crate::output::{self, Failure};
use crate::progress::Progress;

/// Planned files and sizes. Its JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Plan {
    format_version: u32,
    family: &'static str,
    parameters: u64,
    layers: usize,
    width: usize,
    vocabulary: usize,
    context: usize,
    pooling: &'static str,
    normalized: bool,
    storage: Vec<Storage>,
    losses: Vec<Loss>,
    files: Vec<String>,
    warnings: Vec<String>,
}

pub(super) fn run(args: &Args, output: &Path) -> Result<(), Failure> {
    let of_library = |error: coremill::llm::Error| failure(&error);
    refuse_options(args, "this is an embedding model")?;
    let destination = Destination::of(output, None).map_err(of_library)?;
    let progress = Progress::start(format!("reading {}", args.model.display()));
    let model = EmbeddingModel::open(&args.model).map_err(of_library)?;
    let config = model.config();
    let context = args.context.unwrap_or(config.max_context);
    let length = match args.profile {
        ProfileArg::Ane => Length::Fixed(context),
        _ => Length::UpTo(context),
    };
    let options = EmbeddingOptions::default().length(length).weights(args.weights.into());
    let mut warnings = Vec::new();
    let companions = without_unsupported(model.companions(&options), &mut warnings)?;
    let names = companions.iter().map(|(name, _)| destination.directory.join(name));
    let files = std::iter::once(destination.model.clone()).chain(names);
    let mut plan = Plan {
        format_version: 1,
        family: config.family.name,
        parameters: model.parameter_count(),
        layers: config.layers,
        width: config.width,
        vocabulary: config.vocabulary,
        context,
        pooling: config.pooling.name(),
        normalized: config.normalized,
        storage: model.storage().into_iter().map(storage_of).collect(),
        losses: Vec::new(),
        files: files.map(|path| path.display().to_string()).collect(),
        warnings,
    };
    if !args.dry_run {
        progress.stage(format!("writing {}", destination.model.display()));
        let saved = model.save(&destination, &companions, &options, args.sync);
        plan.losses = saved.map_err(of_library)?.losses.into_iter().map(loss_of).collect();
    }
    drop(progress);
    tell(&plan, args)
}

fn tell(plan: &Plan, args: &Args) -> Result<(), Failure> {
    if args.json {
        return output::print_json(plan);
    }
    let Plan { family, parameters, layers, width, vocabulary, context, pooling, .. } = plan;
    let millions = *parameters as f64 / 1e6;
    let mut text = format!(
        "{family}: {millions:.1} million parameters, {layers} layers of {width}, {vocabulary} tokens\n"
    );
    for Storage { scheme, tensors, bytes } in &plan.storage {
        text += &format!("  {scheme}: {} in {tensors} tensors\n", quantity::bytes(*bytes));
    }
    let tokens = match args.profile {
        ProfileArg::Ane => format!("{context} tokens with padding"),
        _ => format!("1 to {context} tokens"),
    };
    let normalized = if plan.normalized { ", of length 1" } else { "" };
    text += &format!("embeddings of {width} numbers from {tokens}: {pooling}{normalized}\n");
    if !plan.losses.is_empty() {
        text += &super::verify::worst(&plan.losses);
    }
    text += &told_files(&plan.warnings, &plan.files, args.dry_run);
    if args.dry_run { output::print(&text) } else { output::say(&text) }
}
