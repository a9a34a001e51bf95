use std::path::PathBuf;

use coremill::convert;
use coremill::quantize::{
    self as library, Artifact, Config, Loss, Observer, Output, Pixels, QuantizedProgram, Quantizer,
    Recipe, Scheme,
};
use coremill_compiler::{LowerOptions, Options};
use coremill_mil::ir::Opset;
use coremill_pte as pte;
use serde::Serialize;

use super::convert::options::parse_target;
use super::loaded::NumericsArg;
use crate::output::{self, Cell, FAINT, Failure, OutputPath, STRONG, Table};
use crate::progress::Progress;

/// Quantize a PyTorch program after training, and write a package or an ExecuTorch program
///
/// The recipes match ExecuTorch's Core ML backend. Samples determine the ranges of activations.
/// With samples, the report shows the loss of each layer, at its own output and at the model's.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill quantize model.pt2 -o Model.mlpackage --recipe int8-static --samples calibration/\n  coremill quantize model.pt2 -o model.pte --recipe int4-per-group --group-size 32\n  coremill quantize model.pt2 -o Model.mlpackage --recipe int8-static --samples a.npz --keep-worst 2 --effort 1"
)]
pub(crate) struct Args {
    /// An archive written by `torch.export.save`
    #[arg(value_name = "MODEL.pt2")]
    model: PathBuf,
    /// Output path: a `.mlpackage`, a `.mlmodelc`, or an ExecuTorch program (`.pte`)
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Quantization recipe: fp32, fp16, int8-static, int8-weight-only, int4-per-group,
    /// int4-per-channel, int8-per-channel, int8-per-group, or codebook
    #[arg(long)]
    recipe: Recipe,
    /// A `.npz` file of inputs by name, or a folder of `.npz` files or images; repeatable
    #[arg(long, value_name = "PATH", help_heading = "Calibration")]
    samples: Vec<PathBuf>,
    /// Algorithm for the ranges of activations: min-max, moving-average, percentile, entropy, or
    /// mse
    #[arg(long, default_value = "min-max", help_heading = "Calibration")]
    observer: Observer,
    /// Mean to subtract from image pixels (0 to 1): one number, or one per channel
    #[arg(long, value_name = "R,G,B", default_value = "0", value_parser = parse_channels, help_heading = "Calibration")]
    mean: [f32; 3],
    /// Standard deviation to divide image pixels by: one number, or one per channel
    #[arg(long, value_name = "R,G,B", default_value = "1", value_parser = parse_channels, help_heading = "Calibration")]
    std: [f32; 3],
    /// Modules to leave unquantized, by path, such as `encoder.layers.0`
    #[arg(long, value_name = "PATH", value_delimiter = ',', help_heading = "Rules")]
    keep: Vec<String>,
    /// MIL operations to leave unquantized, such as `add,mul`
    #[arg(long, value_name = "OP", value_delimiter = ',', help_heading = "Rules")]
    keep_ops: Vec<String>,
    /// Minimum number of elements of a weight; smaller weights stay unquantized
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Rules")]
    min_elements: u64,
    /// A TOML file with rules that select layers by module, operation and size
    #[arg(long, value_name = "FILE.toml", help_heading = "Rules")]
    rules: Option<PathBuf>,
    /// Number of layers to leave unquantized, chosen by their effect on the outputs
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Rules")]
    keep_worst: usize,
    /// Number of input channels per scale, for recipes with groups
    #[arg(long, value_name = "COUNT", default_value_t = 32, help_heading = "Form")]
    group_size: usize,
    /// Bits per table index, for the recipe `codebook`
    #[arg(long, value_name = "1..8", default_value_t = 4, help_heading = "Form")]
    bits: u32,
    /// Number of rows and columns per table, for the recipe `codebook`; -1 for all
    #[arg(long, value_name = "ROWS,COLUMNS", default_value = "16,-1", allow_hyphen_values = true,
        value_parser = parse_block, help_heading = "Form")]
    block: (usize, usize),
    /// Effort of rounding: 0 rounds to nearest, 1 searches better ranges and corrects biases, 2
    /// minimizes the error of the outputs; higher values take longer
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    effort: u8,
    /// The arithmetic in which losses are measured; other than `fast` it includes what fp16 loses
    #[arg(long, value_enum, value_name = "NUMERICS", default_value_t = NumericsArg::Fast)]
    numerics: NumericsArg,
    /// The oldest release that must run the result [default: the oldest that supports the recipe]
    #[arg(long, value_name = "RELEASE", value_parser = parse_target)]
    target: Option<Opset>,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
    /// Print the result and the loss of each layer as JSON
    #[arg(long)]
    json: bool,
}

/// Result of quantization. The JSON form is stable: for the same `format_version`, fields are only
/// added.
#[derive(Serialize)]
struct Report<'q> {
    format_version: u32,
    path: String,
    target: String,
    samples: usize,
    /// SNR of the worst output with all layers quantized.
    model_db: Option<f64>,
    /// The effort of the result.
    effort: u8,
    layers: &'q [Loss],
}

/// Parses `16,-1` to two counts, with 0 for all.
fn parse_block(text: &str) -> Result<(usize, usize), String> {
    let size = |text: &str| match text.trim() {
        "-1" => Some(0),
        text => text.parse::<usize>().ok().filter(|&size| size > 0),
    };
    let sizes = text.split_once(',').and_then(|(rows, columns)| size(rows).zip(size(columns)));
    sizes.ok_or_else(|| "expects two sizes, -1 for all: `16,-1`".to_owned())
}

/// Parses `0.485,0.456,0.406`, or one number for all channels.
pub(crate) fn parse_channels(text: &str) -> Result<[f32; 3], String> {
    let numbers: Result<Vec<f32>, _> =
        text.split(',').map(|number| number.trim().parse()).collect();
    match numbers.as_deref() {
        Ok(&[all]) => Ok([all; 3]),
        Ok(&[red, green, blue]) => Ok([red, green, blue]),
        _ => Err("expects one number, or three: `0.485,0.456,0.406`".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.output.is_stdout() {
        let message = "`-` is standard output, which has no extension that determines the format";
        return Err(Failure::user(message)
            .hint(Some("pass a name that ends in `.mlpackage`, `.mlmodelc` or `.pte`")));
    }
    let extension = args.output.extension().and_then(|extension| extension.to_str());
    let output = match extension {
        Some("mlpackage" | "mlmodelc") => Output::Model,
        Some("pte") => Output::Program,
        _ => {
            let name = args.output.display();
            let message = "is neither a package, a compiled model nor an ExecuTorch program";
            return Err(Failure::user(format_args!("{name} {message}"))
                .hint(Some("pass a name that ends in `.mlpackage`, `.mlmodelc` or `.pte`")));
        }
    };
    super::check_output_paths(
        [&args.model].into_iter().chain(&args.samples).chain(&args.rules),
        [&args.output],
    )?;
    let scheme = Scheme {
        recipe: args.recipe,
        group_size: args.group_size,
        bits: args.bits,
        block: args.block,
    };
    let rules = args.rules.as_deref().map(|path| library::read_rules(path, scheme));
    let config = Config {
        scheme,
        observer: args.observer,
        pixels: Pixels { mean: args.mean, std: args.std },
        keep: args.keep.clone(),
        keep_ops: args.keep_ops.clone(),
        min_elements: args.min_elements,
        rules: rules.transpose().map_err(|error| super::failure(&error))?.unwrap_or_default(),
        keep_worst: args.keep_worst,
        effort: args.effort,
        numerics: args.numerics.into(),
    };
    let options = Options { target: args.target, ..Options::default() };
    let options = LowerOptions { options, ..LowerOptions::default() };
    let progress = Progress::start("reading");
    let program = convert::read(&args.model).map_err(|error| super::failure(&error))?;
    progress.stage("lowering");
    let quantizer = Quantizer::new(program, output, &options, &config);
    let quantizer = quantizer.map_err(|error| super::failure(&error))?;
    let samples = quantizer.read_samples(&args.samples);
    let samples = samples.map_err(|error| super::failure(&error))?;
    progress.stage("quantizing");
    let quantized = quantizer.run(&samples).map_err(|error| super::failure(&error))?;
    progress.stage("writing");
    match &quantized.made {
        Artifact::Model(model) => {
            let verified = coremill::verify(model)
                .map_err(|_| Failure::internal("the quantized program is invalid"))?;
            let save = coremill::SaveOptions { durable: args.sync };
            coremill::save(&args.output, &verified, &save)
                .map_err(|error| super::failure(&error))?;
        }
        Artifact::Program(program) => {
            let options = pte::WriteOptions { durable: args.sync };
            pte::write(&args.output, program, &options).map_err(|error| {
                let hint = error.hint().map(str::to_owned);
                Failure::user(&error).hint(hint)
            })?;
        }
    }
    drop(progress);
    let path = args.output.display().to_string();
    if args.json {
        let target = quantized.target.tag().to_owned();
        let QuantizedProgram { samples, model_db, effort, ref layers, .. } = quantized;
        return output::print_json(&Report {
            format_version: 1,
            path,
            target,
            samples,
            model_db,
            effort,
            layers,
        });
    }
    output::say(&rendered(&path, &quantized, args.effort))
}

fn rendered(path: &str, quantized: &QuantizedProgram, effort: u8) -> String {
    let decibels = |db: Option<f64>| match db {
        Some(db) if db.is_finite() => format!("{db:.1} dB"),
        Some(_) => "exact".to_owned(),
        None => String::new(),
    };
    let done = quantized.layers.iter().filter(|layer| layer.kept.is_none()).count();
    let mut text = format!(
        "{path}  {done} of {} layers quantized, for {}, {} samples\n",
        quantized.layers.len(),
        quantized.target,
        quantized.samples
    );
    if quantized.model_db.is_some() {
        text +=
            &format!("  all layers quantized: {} at the outputs\n", decibels(quantized.model_db));
    }
    if quantized.effort < effort {
        text += &format!(
            "  rounded with effort {}, since more effort makes the outputs worse\n",
            quantized.effort
        );
    }
    if let Some(worst) = quantized.layers.iter().find(|layer| layer.model_db.is_some()) {
        let name = worst.module.as_deref().filter(|module| !module.is_empty());
        text += &format!("  worst: {}\n", name.unwrap_or(&worst.name));
    }
    let mut table = Table::new(2);
    table.row(
        ["layer", "operation", "its output", "the model's", ""]
            .map(|title| Cell::text(title).style(FAINT)),
    );
    for layer in &quantized.layers {
        table.row([
            Cell::name(&layer.name).style(STRONG),
            Cell::text(layer.op).secondary(),
            Cell::number(decibels(layer.layer_db)),
            Cell::number(decibels(layer.model_db)),
            Cell::text(layer.kept.as_deref().map_or(String::new(), |why| format!("kept: {why}")))
                .style(FAINT),
        ]);
    }
    text + &table.render()
}
