//! `coremill lower`: conversion of `torch.export` archives to an ExecuTorch program.

mod report;

use std::path::{Path, PathBuf};

use coremill::convert::{self, NumericsReport};
use coremill::executorch;
use coremill::precision::Output;
use coremill_compiler::{
    self as compiler, CompileSpec, Constant, LowerOptions, Options, WeightSharing,
};
use coremill_pt2::ExportedProgram;
use coremill_pte as pte;

use super::convert::options::ProgramArgs;
use super::convert::{Stop, precision, stop as convert_stop};
use crate::output::{self, Failure, OutputPath};
use crate::progress::Progress;
use report::ConvertedModel;

/// Lower PyTorch programs to an ExecuTorch program
///
/// Calls that Core ML supports are delegated. The others become calls of ExecuTorch's kernels.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill lower model.pt2 -o model.pte\n  coremill lower forward=decode.pt2 prefill=prefill.pt2 -o llm.pte"
)]
pub(crate) struct Args {
    /// One or more archives, each with the name of its method [default: `forward`]
    #[arg(value_name = "[METHOD=]MODEL.pt2", required = true)]
    models: Vec<String>,
    /// Output path of the program
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    #[command(flatten)]
    program: ProgramArgs,
    /// Operators to leave outside delegates, by ExecuTorch's names, such as `aten.mm.default`
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    skip_ops: Vec<String>,
    /// Delegate the whole program, or fail
    #[arg(long)]
    full_graph: bool,
    /// Delegate nothing, so that the program runs on ExecuTorch's portable kernels
    #[arg(long, conflicts_with_all = ["full_graph", "skip_ops"])]
    portable: bool,
    /// Pass weights to delegates as inputs instead of storing them there
    #[arg(long)]
    keep_constant_data: bool,
    /// Keep buffers that the program writes to outside delegates
    #[arg(long)]
    keep_mutable_buffers: bool,
    /// Weight sharing between methods: `positional` or `disabled`
    #[arg(long, value_name = "STRATEGY", value_parser = parse_sharing)]
    weight_sharing: Option<WeightSharing>,
    /// Maximum size of dimensions for which the program specifies none; memory is planned for it
    #[arg(long, value_name = "N", default_value_t = compiler::DEFAULT_MAX_SIZE, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    max_size: u32,
    /// A method that returns a constant number or string; repeatable
    #[arg(long = "constant", value_name = "METHOD=VALUE", value_parser = parse_constant)]
    constants: Vec<(String, Constant)>,
    /// Omit the debug information that maps operations to calls
    #[arg(long)]
    no_debug_info: bool,
    /// A compile spec of ExecuTorch's Core ML backend; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_spec)]
    compile_spec: Vec<CompileSpec>,
    /// Report calls outside delegates, with reasons and costs
    #[arg(long)]
    partition_report: bool,
    /// Write an HTML report with the delegates and the calls outside them
    #[arg(long, value_name = "FILE.html")]
    html: Option<OutputPath>,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
    /// Print the partitioning of each method as JSON
    #[arg(long)]
    json: bool,
}

fn parse_sharing(text: &str) -> Result<WeightSharing, String> {
    match text {
        "positional" => Ok(WeightSharing::Positional),
        "disabled" => Ok(WeightSharing::Disabled),
        _ => Err("expected `positional` or `disabled`".to_owned()),
    }
}

fn parse_constant(text: &str) -> Result<(String, Constant), String> {
    let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err("expects `METHOD=VALUE`".to_owned());
    };
    let constant = match value {
        "true" => Constant::Bool(true),
        "false" => Constant::Bool(false),
        value => match (value.parse(), value.parse()) {
            (Ok(number), _) => Constant::Int(number),
            (_, Ok(number)) => Constant::Double(number),
            _ => Constant::Text(value.to_owned()),
        },
    };
    Ok((name.to_owned(), constant))
}

fn parse_spec(text: &str) -> Result<CompileSpec, String> {
    match text.split_once('=') {
        Some((key, value)) => {
            Ok(CompileSpec { key: key.to_owned(), value: value.as_bytes().to_vec() })
        }
        None => Err("expected `KEY=VALUE`".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match lower(args) {
        Ok(None) => Ok(()),
        Ok(Some(off)) => Err(off),
        Err(stop) => {
            if args.json {
                let names = args.models.join(", ");
                output::print_json(&report::stopped(Path::new(&names), &stop))?;
            }
            Err(stop.failure)
        }
    }
}

/// The method name and path of an archive argument.
fn method_and_path(model: &str) -> Result<(&str, &str), Failure> {
    match model.split_once('=') {
        Some(("", path)) => {
            let message = format!("`={path}` has no method name");
            Err(Failure::user(message).hint(Some("pass `METHOD=MODEL.pt2`, or the archive alone")))
        }
        Some((method, path)) if !method.contains('/') => Ok((method, path)),
        _ => Ok(("forward", model)),
    }
}

/// Writes the program. Returns a failure if verification fails.
fn lower(args: &Args) -> Result<Option<Failure>, Stop> {
    let parent = args.output.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        let message = format!("{}: no such directory", parent.display());
        return Err(Failure::user(message).into());
    }
    let extension = args.output.extension().and_then(|extension| extension.to_str());
    if let Some(extension @ ("mlpackage" | "mlmodelc" | "mlmodel" | "mil")) = extension {
        let output = args.output.display();
        return Err(Failure::user(format_args!(
            "{output}: `lower` writes ExecuTorch programs, not `.{extension}`"
        ))
        .hint(Some(format_args!("`coremill convert {} -o {output}` writes that", args.models[0])))
        .into());
    }
    let inputs: Result<Vec<_>, _> =
        args.models.iter().map(|model| method_and_path(model)).collect();
    let inputs: Vec<_> = inputs?.iter().map(|(_, path)| PathBuf::from(path)).collect();
    super::check_output_paths(&inputs, [&args.output].into_iter().chain(&args.html))?;
    let output = args.output.as_file();
    let is_stream = coremill_io::is_stream(output);
    if is_stream && (args.program.asks_to_verify() || args.html.is_some()) {
        let message = format!("{} cannot be read back", args.output);
        let hint = "`--verify` and `--html` require an output file";
        return Err(Failure::user(message).hint(Some(hint)).into());
    }
    if args.program.auto()?.is_some() && args.models.len() > 1 {
        return Err(precision::of_several().into());
    }
    let progress = Progress::start("reading the archives");
    let mut programs = Vec::new();
    let mut sources = Vec::new();
    for model in &args.models {
        let (method, path) = method_and_path(model)?;
        let program = convert::read(path).map_err(|error| super::failure(&error))?;
        sources.push((method, path));
        programs.push((method.to_owned(), program));
    }
    let program_options = args.program.options()?;
    let read = programs.iter().map(|(_, program)| program);
    convert::check_fp32(read, &program_options).map_err(|error| super::failure(&error))?;
    let mut options = LowerOptions {
        options: program_options,
        skip_ops: args.skip_ops.clone(),
        full_graph: args.full_graph,
        portable: args.portable,
        take_over_constant_data: !args.keep_constant_data,
        take_over_mutable_buffer: !args.keep_mutable_buffers,
        weight_sharing: args.weight_sharing,
        max_size: args.max_size,
        constant_methods: args.constants.clone(),
        debug_info: !args.no_debug_info,
        ..LowerOptions::default()
    };
    let refusal = |refusal: compiler::LoweringError| {
        let hint = refusal.hint.clone();
        Failure::user(&refusal).hint(hint.as_deref())
    };
    options.apply_specs(&args.compile_spec).map_err(refusal)?;
    let bound = args.program.bound(options.options.precision);
    let is_again = bound.is_some() || args.program.auto()?.is_some();
    let again = is_again.then(|| programs.clone());
    progress.stage("lowering");
    let failed = |error: compiler::Error| -> Stop {
        if let compiler::Error::Refused(_) = &error {
            return convert_stop(Path::new(&args.models.join(", ")), error);
        }
        let hint = error.hint().map(str::to_owned);
        Failure::user(&error).hint(hint.as_deref()).into()
    };
    let mut lowered = compiler::lower(programs, &options).map_err(failed)?;
    let mut chosen = None;
    if let Some([(_, program)]) = again.as_deref() {
        progress.stage("choosing the precision");
        chosen = precision::chosen(&args.program, program, Output::Program, &mut options)?;
        if options.options.rewrite.is_some() {
            let programs = again.clone().unwrap_or_default();
            lowered = compiler::lower(programs, &options).map_err(failed)?;
        }
    }
    progress.stage(format!("writing {}", args.output));
    pte::write(output, &lowered.program, &pte::WriteOptions { durable: args.sync }).map_err(
        |error| {
            let hint = error.hint().map(str::to_owned);
            Failure::user(&error).hint(hint)
        },
    )?;
    let mut numbers = Vec::new();
    if let (Some(bound), Some(programs)) = (bound, again) {
        progress.stage("verifying the numbers");
        numbers = verified(args, programs, &options.options, bound)?;
    }
    if let Some(path) = &args.html {
        progress.stage(format!("writing {path}"));
        super::page::write(path, &super::page::of_lowered(&args.output, &lowered.reports)?)?;
    }
    drop(progress);
    let bytes = match is_stream {
        true => pte::to_data(&lowered.program).map_or(0, |data| data.len() as u64),
        false => std::fs::metadata(output).map_or(0, |written| written.len()),
    };
    let made = ConvertedModel {
        path: &args.output,
        bytes,
        sources: &sources,
        reports: &lowered.reports,
        chosen: chosen.as_ref(),
        numbers: &numbers,
        bounded: (&lowered.bounded, args.max_size),
    };
    output::tell(&report::render(&made, args.partition_report));
    if args.json {
        output::print_json(&report::to_json(&made))?;
    }
    if chosen.as_ref().is_some_and(|chosen| !chosen.holds()) {
        return Ok(Some(
            Failure::user(format_args!(
                "{}: only fp32 is accurate enough; the program was written",
                args.output.display()
            ))
            .hint(Some(precision::REMEDY)),
        ));
    }
    match made.is_off() {
        true => Ok(Some(
            Failure::user(format_args!(
                "{}: verification failed; the program was written",
                args.output.display()
            ))
            .hint(Some(super::convert::numbers::REMEDY)),
        )),
        false => Ok(None),
    }
}

/// Verifies each method on the archives' sample inputs.
fn verified(
    args: &Args,
    programs: Vec<(String, ExportedProgram)>,
    options: &Options,
    bound: f64,
) -> Result<Vec<Option<NumericsReport>>, Failure> {
    let written = executorch::open(&args.output).map_err(|error| super::failure(&error))?;
    let check = |(method, program): (String, ExportedProgram)| {
        let numbers = convert::check_method(
            written.clone(),
            &method,
            program,
            options,
            bound,
            args.program.numerics(),
        );
        numbers.map_err(|error| {
            Failure::user(format_args!(
                "{}: the numbers of `{method}` cannot be verified: {error}; the program was written",
                args.output.display()
            ))
            .hint(error.hint())
        })
    };
    programs.into_iter().map(check).collect()
}
