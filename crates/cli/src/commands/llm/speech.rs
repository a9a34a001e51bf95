//! Conversion of speech models.

use std::path::Path;

use coremill::llm::{SpeechModel, SpeechOptions};
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
    encoder_layers: usize,
    decoder_layers: usize,
    width: usize,
    vocabulary: usize,
    context: usize,
    bands: usize,
    seconds: usize,
    storage: Vec<Storage>,
    losses: Vec<Loss>,
    files: Vec<String>,
    warnings: Vec<String>,
}

pub(super) fn run(args: &Args, output: &Path) -> Result<(), Failure> {
    let of_library = |error: coremill::llm::Error| failure(&error);
    refuse_options(args, "this is a speech model")?;
    let packages = SpeechModel::package_paths(output).map_err(of_library)?;
    let progress = Progress::start(format!("reading {}", args.model.display()));
    let model = SpeechModel::open(&args.model).map_err(of_library)?;
    let mut options = SpeechOptions::default().weights(args.weights.into());
    options.context = args.context;
    if args.profile == ProfileArg::Ane {
        options = options.plain_attention();
    }
    let mut warnings = Vec::new();
    let companions = without_unsupported(model.companions(), &mut warnings)?;
    let files = companions.iter().map(|(name, _)| output.join(name));
    let config = model.config();
    let [encoder_layers, decoder_layers] = config.layers;
    let mut plan = Plan {
        format_version: 1,
        family: "whisper",
        parameters: model.parameter_count(),
        encoder_layers,
        decoder_layers,
        width: config.width,
        vocabulary: config.vocabulary,
        context: model.context(&options).map_err(of_library)?,
        bands: config.bands,
        seconds: model.features().seconds(),
        storage: model.storage().into_iter().map(storage_of).collect(),
        losses: Vec::new(),
        files: packages.into_iter().chain(files).map(|path| path.display().to_string()).collect(),
        warnings,
    };
    if !args.dry_run {
        let mut stage = |text: &str| progress.stage(text.to_owned());
        let saved = model.save(output, &companions, &options, args.sync, &mut stage);
        plan.losses = saved.map_err(of_library)?.losses.into_iter().map(loss_of).collect();
    }
    drop(progress);
    tell(&plan, args)
}

fn tell(plan: &Plan, args: &Args) -> Result<(), Failure> {
    if args.json {
        return output::print_json(plan);
    }
    let Plan { family, parameters, encoder_layers, decoder_layers, width, vocabulary, .. } = plan;
    let millions = *parameters as f64 / 1e6;
    let mut text = format!(
        "{family}: {millions:.1} million parameters, encoder of {encoder_layers} and decoder of {decoder_layers} layers of {width}, {vocabulary} tokens\n"
    );
    for Storage { scheme, tensors, bytes } in &plan.storage {
        text += &format!("  {scheme}: {} in {tensors} tensors\n", quantity::bytes(*bytes));
    }
    let Plan { seconds, bands, context, .. } = plan;
    text += &format!("windows of {seconds} s with {bands} mel bands; at most {context} tokens\n");
    if !plan.losses.is_empty() {
        text += &super::verify::worst(&plan.losses);
    }
    text += &told_files(&plan.warnings, &plan.files, args.dry_run);
    if args.dry_run { output::print(&text) } else { output::say(&text) }
}
