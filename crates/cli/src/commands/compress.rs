use std::path::PathBuf;
use std::str::FromStr;

use coremill::compress::{
    self, Artifact, Bits, BlockSize, Budget, CompressedWeight, CompressionOutcome, Options, Pixels,
    Pruning, Rule, RuleText,
};
use coremill::quantity;
use coremill::{Model, OpenedModel, SaveOptions, executorch};
use coremill_mil::ir::Opset;
use coremill_mil::text::Dialect;
use coremill_pte as pte;
use serde::Serialize;

use super::quantize::parse_channels;
use crate::output::{self, Cell, ERROR, FAINT, Failure, OutputPath, STRONG, Table};
use crate::progress::Progress;

/// Compress the weights of a model
///
/// Weights can be quantized to integers (`--linear`), palettized (`--palettize`), pruned
/// (`--prune`), or a combination. The result targets the oldest release that supports it. A table
/// lists the result for each weight.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill compress Model.mlpackage -o Small.mlpackage --linear int4 --block 32\n  coremill compress Model.mlpackage -o Small.mlpackage --palettize 4 --group 16\n  coremill compress model.pte -o small.pte --prune 2:4 --linear int8\n  coremill compress Model.mlpackage -o Small.mlpackage --rules rules.toml --palettize 6\n  coremill compress Small.mlpackage -o Plain.mlpackage --decompress"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc`, `.pte` or MIL text
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output path: a `.mlpackage`, a `.mlmodelc` or MIL text (`.mil`); for a `.pte`, another
    /// `.pte`
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Rules that select weights by name, operation, type and size; the first matching rule
    /// applies, and the other options apply to the remaining weights
    #[arg(long, value_name = "FILE.toml")]
    rules: Option<PathBuf>,
    /// Decompress compressed weights first
    #[arg(long)]
    decompress: bool,
    /// Compress weights further that are compressed already: quantize or palettize the remaining
    /// elements of pruned weights, quantize tables, prune quantized or palettized weights
    #[arg(long, conflicts_with_all = ["decompress", "target_size", "target_snr"])]
    joint: bool,
    /// Release to support [default: the oldest that supports all forms]
    #[arg(long, value_name = "RELEASE")]
    target: Option<Target>,

    /// Quantize to integers: int8, uint8, int4 or uint4
    #[arg(long, value_name = "TYPE", help_heading = "Integers", conflicts_with = "palettize")]
    linear: Option<String>,
    /// Granularity of scales: tensor or channel [default: channel]
    #[arg(long, value_name = "WHAT", help_heading = "Integers", requires = "linear")]
    per: Option<String>,
    /// Number of input channels per scale, or the block size along each axis (1,32,0,0; 0 is the
    /// whole axis)
    #[arg(
        long,
        value_name = "N",
        help_heading = "Integers",
        requires = "linear",
        conflicts_with = "per"
    )]
    block: Option<BlockSize>,
    /// Position of the zero point: symmetric or linear (from minimum to maximum) [default:
    /// symmetric]
    #[arg(long, value_name = "MODE", help_heading = "Integers", requires = "linear")]
    mode: Option<String>,

    /// Palettize with 1, 2, 3, 4, 6 or 8 bits per index, or `unique` for as many as the distinct
    /// values need
    #[arg(long, value_name = "BITS", help_heading = "Palettes")]
    palettize: Option<Bits>,
    /// Number of output channels per lookup table [default: all]
    #[arg(long, value_name = "N", help_heading = "Palettes", requires = "palettize")]
    group: Option<usize>,
    /// Axis of groups and vectors, instead of the output channels
    #[arg(long, value_name = "AXIS", help_heading = "Palettes", requires = "palettize")]
    group_axis: Option<usize>,
    /// Algorithm for lookup tables: kmeans, uniform or unique [default: kmeans]
    #[arg(long, value_name = "HOW", help_heading = "Palettes", requires = "palettize")]
    algorithm: Option<String>,
    /// Number of output channels per index
    #[arg(long, value_name = "N", help_heading = "Palettes", requires = "palettize")]
    vector: Option<usize>,
    /// Divide each output channel by its largest magnitude first
    #[arg(long, help_heading = "Palettes", requires = "palettize")]
    channel_scale: bool,
    /// Store lookup tables as integers: int8 or uint8
    #[arg(long, value_name = "TYPE", help_heading = "Palettes", requires = "palettize")]
    lut: Option<String>,

    /// Prune a share of the elements (0.5), some of each group of channels (2:4), or elements up to
    /// a threshold ('>0.01')
    #[arg(long, value_name = "WHAT", help_heading = "Pruning")]
    prune: Option<Pruning>,
    /// Number of consecutive channels to prune together, for a share
    #[arg(long, value_name = "N", help_heading = "Pruning", requires = "prune")]
    prune_block: Option<usize>,
    /// Axis of the channels to prune together: 0 for output channels, 1 for input channels
    /// [default: 0 for blocks, 1 for ratios]
    #[arg(long, value_name = "0|1", help_heading = "Pruning", requires = "prune")]
    prune_dim: Option<u8>,
    /// Minimum share of elements to prune by a threshold; a weight with fewer is not pruned [default: 0.5]
    #[arg(long, value_name = "SHARE", help_heading = "Pruning", requires = "prune")]
    prune_least: Option<f64>,

    /// Choose the bits of each weight for a maximum total size, such as 12MB or 800KB
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes, help_heading = "Targets", conflicts_with = "target_snr")]
    target_size: Option<u64>,
    /// Choose the bits of each weight for a minimum SNR in decibels
    #[arg(long, value_name = "DB", help_heading = "Targets")]
    target_snr: Option<f64>,

    /// A `.npz` file of inputs by name, or a folder of `.npz` files or images; repeatable. Samples
    /// measure the importance of weights for k-means tables and for targets
    #[arg(long, value_name = "PATH", help_heading = "Samples")]
    samples: Vec<PathBuf>,
    /// Mean to subtract from image pixels (0 to 1): one number, or one per channel
    #[arg(long, value_name = "R,G,B", default_value = "0", value_parser = parse_channels, help_heading = "Samples", requires = "samples")]
    mean: [f32; 3],
    /// Standard deviation to divide image pixels by: one number, or one per channel
    #[arg(long, value_name = "R,G,B", default_value = "1", value_parser = parse_channels, help_heading = "Samples", requires = "samples")]
    std: [f32; 3],

    /// Minimum number of elements of a weight; smaller weights stay uncompressed [default: 2049]
    #[arg(long, value_name = "N")]
    min_elements: Option<u64>,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
    /// Print the result for each weight as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy)]
struct Target(Opset);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let tags = || Opset::ALL.map(Opset::tag).join(", ");
        Opset::from_tag(text)
            .map(Target)
            .ok_or_else(|| format!("no such release; expected {}", tags()))
    }
}

/// Result of compression. The JSON form is stable: for the same `format_version`, fields are only
/// added.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    models: Vec<OfModel>,
}

#[derive(Default, Serialize)]
struct OfModel {
    /// Name of a model in a program.
    name: Option<String>,
    target: String,
    decompressed: usize,
    bytes_before: u64,
    bytes_after: u64,
    weights: Vec<OfWeight>,
}

#[derive(Serialize)]
struct OfWeight {
    function: String,
    name: String,
    shape: Vec<usize>,
    bytes_before: u64,
    bytes_after: u64,
    form: Option<String>,
    /// `None` if lossless.
    snr: Option<f64>,
    kept: Option<&'static str>,
    #[serde(skip)]
    rule: Option<usize>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model].into_iter().chain(&args.rules), [&args.output])?;
    let budget = args.target_size.map(Budget::Bytes);
    let options = Options {
        rules: rules(args)?,
        target: args.target.map(|target| target.0),
        budget: budget.or(args.target_snr.map(Budget::Snr)),
        ..Options::default()
    };
    let is_text = args.output.extension().is_some_and(|extension| extension == "mil");
    let progress = Progress::start(format!("reading {}", args.model.display()));
    let mut models = Vec::new();
    let idle;
    if executorch::is_program(&args.model) {
        let is_program = args.output.extension().is_some_and(|extension| extension == "pte");
        if !is_program && !args.output.is_stdout() {
            let name = args.output.display();
            return Err(Failure::user(format_args!("{name} is not a `.pte` file")).hint(Some(
                "name a `.pte` file, or extract the models first with `coremill extract`",
            )));
        }
        let mut program = executorch::open(&args.model).map_err(|error| super::failure(&error))?;
        let options = observed(args, options, &progress, || Artifact::Program(program.clone()))?;
        let count = compress::for_each_model(&mut program, &mut |name, model| {
            let report = apply(model, args, &options, &progress)?;
            models.push(OfModel { name: Some(name.to_owned()), ..report });
            Ok(())
        });
        if count.map_err(|error| super::failure(&error))? == 0 {
            let name = args.model.display();
            return Err(Failure::user(format_args!("{name} delegates nothing to Core ML")));
        }
        idle = check_compressed(&models, &options)?;
        progress.stage(format!("writing {}", args.output));
        let options = pte::WriteOptions { durable: args.sync };
        pte::write(args.output.as_file(), &program, &options)
            .map_err(|error| Failure::user(error.to_string()))?;
    } else {
        args.output.as_directory()?;
        let mut opened = super::open_with_source(&args.model)?;
        let options = observed(args, options, &progress, || Artifact::Model(opened.model.clone()))?;
        let report = apply(&mut opened.model, args, &options, &progress);
        models.push(report.map_err(|error| super::failure(&error))?);
        idle = check_compressed(&models, &options)?;
        progress.stage(format!("writing {}", args.output.display()));
        // Diagnostics about the new model do not refer to the source text.
        let made = OpenedModel::made(opened.model, &args.output);
        let verified = super::verify(&made)?;
        let saved = if is_text {
            let program = super::with_shapes(&made.model)?;
            super::warn_of_text(&made.model, &program);
            coremill::save_text(&args.output, &program, Dialect::default())
        } else {
            coremill::save(&args.output, &verified, &SaveOptions { durable: args.sync })
        };
        saved.map_err(|error| super::failure(&error))?;
    }
    drop(progress);
    if args.json {
        return output::print_json(&Report { format_version: 1, models });
    }
    models.iter().try_for_each(|model| output::say(&render(model)))?;
    let label = output::paint(ERROR, "warning");
    idle.into_iter().try_for_each(|at| {
        let rule = at + 1;
        output::say(&format!(
            "  {label}: rule {rule} selects no weights in addition to earlier rules\n"
        ))
    })
}

/// The indices of rules that applied to no weight. Fails if no weight was compressed, unless there
/// is a budget, which uncompressed weights may meet.
fn check_compressed(models: &[OfModel], options: &Options) -> Result<Vec<usize>, Failure> {
    let weights = || models.iter().flat_map(|model| &model.weights);
    let is_changed = weights().any(|weight| weight.form.is_some());
    let idle = compress::unused_rules(options, weights().map(|weight| weight.rule));
    if is_changed || options.budget.is_some() || models.iter().any(|model| model.decompressed > 0) {
        return Ok(idle);
    }
    let largest =
        weights().filter(|weight| weight.kept.is_some()).max_by_key(|weight| weight.bytes_before);
    let Some(OfWeight { name, kept: Some(reason), .. }) = largest else { return Ok(idle) };
    let hint = match *reason {
        compress::SMALL => {
            "pass `--min-elements 1`, or another minimum, to include smaller weights"
        }
        _ => "`coremill inspect --top 0` lists the weights with their shapes",
    };
    Err(Failure::user(format_args!(
        "no weight can be compressed; the largest, `{name}`, stays unchanged because {reason}"
    ))
    .hint(Some(hint)))
}

/// Adds the importance of weights from samples, if there are any.
fn observed(
    args: &Args,
    options: Options,
    progress: &Progress,
    made: impl FnOnce() -> Artifact,
) -> Result<Options, Failure> {
    if args.samples.is_empty() {
        return Ok(options);
    }
    progress.stage("running samples");
    let pixels = Pixels { mean: args.mean, std: args.std };
    let importance = compress::importance(made(), &args.samples, &pixels);
    let importance = importance.map_err(|error| super::failure(&error))?;
    Ok(Options { importance, ..options })
}

fn rules(args: &Args) -> Result<Vec<Rule>, Failure> {
    let mut rules = match &args.rules {
        Some(path) => compress::read_rules(path).map_err(|error| super::failure(&error))?,
        None => Vec::new(),
    };
    let has_target = args.target_size.is_some() || args.target_snr.is_some();
    let has_form = args.linear.is_some() || args.palettize.is_some() || args.prune.is_some();
    if has_form || has_target && rules.is_empty() {
        let default = (!has_form).then_some(Bits::Some(4));
        let text = RuleText {
            min_elements: args.min_elements,
            linear: args.linear.clone(),
            per: args.per.clone(),
            block: args.block.clone(),
            mode: args.mode.clone(),
            palettize: args.palettize.or(default),
            group: args.group,
            group_axis: args.group_axis,
            algorithm: args.algorithm.clone(),
            vector: args.vector,
            channel_scale: args.channel_scale,
            lut: args.lut.clone(),
            prune: args.prune.clone(),
            prune_block: args.prune_block,
            prune_dim: args.prune_dim,
            prune_least: args.prune_least,
            ..RuleText::default()
        };
        rules.push(text.to_rule().map_err(|error| super::failure(&error))?);
    } else if args.min_elements.is_some() {
        return Err(Failure::user(
            "`--min-elements` requires `--linear`, `--palettize` or `--prune`",
        ));
    }
    if rules.is_empty() && !args.decompress {
        return Err(Failure::user("no compression is selected")
            .hint(Some("pass `--linear`, `--palettize`, `--prune`, `--target-size`, `--rules` or `--decompress`")));
    }
    Ok(rules)
}

fn apply(
    model: &mut Model,
    args: &Args,
    options: &Options,
    progress: &Progress,
) -> Result<OfModel, coremill::optimize::Error> {
    let decompressed = if args.decompress { compress::decompress(model)? } else { 0 };
    let watch = |done: usize, all: usize| {
        progress.stage(format!("compressing weights: {done} of {all}"));
    };
    let compressed = match (options.rules.is_empty(), args.joint) {
        (true, _) => Vec::new(),
        (false, false) => compress::compress(model, options, &watch)?,
        (false, true) => {
            let earlier = compress::decompress_further(model)?;
            compress::compress(model, &Options { earlier, ..options.clone() }, &watch)?
        }
    };
    let target = model.program.functions.iter().map(|function| function.opset).max();
    let weights: Vec<OfWeight> = compressed.into_iter().map(of_weight).collect();
    Ok(OfModel {
        name: None,
        target: target.map_or("", Opset::tag).to_owned(),
        decompressed,
        bytes_before: weights.iter().map(|weight| weight.bytes_before).sum(),
        bytes_after: weights.iter().map(|weight| weight.bytes_after).sum(),
        weights,
    })
}

fn of_weight(weight: CompressedWeight) -> OfWeight {
    let CompressedWeight { function, name, shape, before, rule, fate } = weight;
    let (form, bytes_after, snr, kept) = match fate {
        CompressionOutcome::Compressed { form, after, snr } => {
            (Some(form.to_string()), after, Some(snr).filter(|snr| snr.is_finite()), None)
        }
        CompressionOutcome::Kept(reason) => (None, before, None, Some(reason)),
    };
    OfWeight { function, name, shape, bytes_before: before, bytes_after, form, snr, kept, rule }
}

fn render(model: &OfModel) -> String {
    let mut text = String::new();
    if let Some(name) = &model.name {
        text += &format!("{}\n", output::paint(STRONG, name));
    }
    if model.decompressed > 0 {
        text += &format!("{} weights decompressed\n", model.decompressed);
    }
    if model.weights.is_empty() {
        return text;
    }
    let several = model.weights.iter().any(|weight| weight.function != model.weights[0].function);
    let mut table = Table::new(0);
    let heads = ["weight", "shape", "before", "after", "SNR", "form"];
    table.row(heads.map(|head| Cell::text(head).style(FAINT)));
    let (done, kept): (Vec<_>, Vec<_>) =
        model.weights.iter().partition(|weight| weight.form.is_some());
    for weight in done.iter().chain(&kept).filter(|weight| !weight.shape.is_empty()) {
        let name = match several {
            true => format!("{}: {}", weight.function, weight.name),
            false => weight.name.clone(),
        };
        let shape: Vec<String> = weight.shape.iter().map(ToString::to_string).collect();
        let snr = match (&weight.form, weight.snr) {
            (None, _) => String::new(),
            (Some(_), Some(snr)) => format!("{snr:.1} dB"),
            (Some(_), None) => "exact".to_owned(),
        };
        let form = match (&weight.form, weight.kept) {
            (Some(form), _) => Cell::words(form),
            (None, reason) => {
                Cell::words(format_args!("unchanged: {}", reason.unwrap_or_default())).style(FAINT)
            }
        };
        table.row([
            Cell::name(name).style(STRONG),
            Cell::text(shape.join("×")).secondary(),
            Cell::number(quantity::bytes(weight.bytes_before)).minor(),
            Cell::number(quantity::bytes(weight.bytes_after)),
            Cell::number(snr),
            form,
        ]);
    }
    text += &table.render();
    text += &format!(
        "{} of {} weights compressed: {} became {}, for {}\n",
        done.len(),
        model.weights.len(),
        quantity::bytes(model.bytes_before),
        quantity::bytes(model.bytes_after),
        model.target
    );
    text
}
