use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use coremill::edit::Steps;
use coremill::mil::pipeline::{Pipeline, Stage};
use coremill::session::{self, Hooks, RunOptions};
use coremill::{Model, OpenedModel, SaveOptions, Verified, quantity};
use coremill_engine::{Array, Numerics, Outputs, Value};
use coremill_mil::ir::ConstantData;
use coremill_tensor::Buffer;
use serde::Serialize;

use crate::inputs::{self, Arrays};
use crate::output::{self, Cell, FAINT, Failure, OutputPath, STRONG, Table};

/// Seed of the inputs on which the pieces are verified.
const SEED: u64 = 1;

/// Cut a model into pieces that run one after another
///
/// The inputs of a piece are inputs of the model and outputs of earlier pieces, by name. The pieces and the whole model run on random
/// inputs, and must compute the same bits with rounded numerics.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill split Model.mlpackage -o Pipeline.mlpackage --max-size 500MB\n  coremill split Model.mlpackage -o pieces --after layer_12_output",
    group = clap::ArgGroup::new("cut").required(true).args(["max_size", "after"])
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text; `-` is text on standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output: a `.mlpackage` or `.mlmodelc` for a pipeline, or a directory for one package per piece
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Maximum size of the weights of a piece
    #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
    max_size: Option<u64>,
    /// Value after whose operation to cut; repeatable. `coremill text` shows the names
    #[arg(long, value_name = "VALUE")]
    after: Vec<String>,
    /// Function to cut, if the model has several [default: the model's default function]
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Do not run the pieces
    #[arg(long)]
    no_verify: bool,
    /// Print the pieces as JSON
    #[arg(long)]
    json: bool,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
}

/// The pieces. The JSON form is stable: for the same `format_version`, fields are only added.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    verified: bool,
    pieces: Vec<Piece>,
}

#[derive(Serialize)]
struct Piece {
    name: String,
    operations: usize,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], [&args.output])?;
    let output = args.output.as_directory()?;
    let opened = super::open_with_source(&args.model)?;
    let steps = Steps::of(&opened.model, args.function.as_deref());
    let steps = steps.map_err(|error| super::failure(&error))?;
    let ranges = match args.max_size {
        Some(bytes) => steps.of_size(bytes),
        None => steps.after(&args.after),
    };
    let ranges = ranges.map_err(|error| super::failure(&error))?;
    let pieces = steps.pieces(&ranges).map_err(|error| super::failure(&error))?;
    let pieces: Vec<OpenedModel> =
        pieces.into_iter().map(|model| OpenedModel::made(model, output)).collect();
    let verified = pieces.iter().map(super::verify).collect::<Result<Vec<_>, _>>()?;
    if !args.no_verify {
        let whole = OpenedModel::made(steps.whole().clone(), output);
        compare(&super::verify(&whole)?, &verified)?;
    }
    let names = save(output, &steps, &verified, args.sync)?;
    let pieces: Vec<Piece> = names
        .into_iter()
        .zip(&ranges)
        .zip(&pieces)
        .map(|((name, range), piece)| described(name, range, &piece.model))
        .collect();
    if args.json {
        let report = Report { format_version: 1, verified: !args.no_verify, pieces };
        return output::print_json(&report);
    }
    let mut table = Table::new(0);
    for piece in &pieces {
        table.row([
            Cell::text(&piece.name).style(STRONG),
            Cell::number(match piece.operations {
                1 => "1 operation".to_owned(),
                count => format!("{count} operations"),
            }),
            Cell::text(format!("{} → {}", piece.inputs.join(", "), piece.outputs.join(", ")))
                .style(FAINT),
        ]);
    }
    output::say(&table.render())
}

fn described(name: String, range: &Range<usize>, model: &Model) -> Piece {
    let names = |features: &[coremill_mil::model::FeatureDescription]| {
        features.iter().map(|feature| feature.name.clone()).collect()
    };
    Piece {
        name,
        operations: range.len(),
        inputs: names(&model.description.inputs),
        outputs: names(&model.description.outputs),
    }
}

/// Writes a pipeline, or a package per piece; returns the names of the pieces.
fn save(
    output: &Path,
    steps: &Steps,
    pieces: &[Verified<'_>],
    durable: bool,
) -> Result<Vec<String>, Failure> {
    let options = SaveOptions { durable };
    let names: Vec<String> = (1..=pieces.len()).map(|number| format!("piece_{number}")).collect();
    let is_pipeline =
        output.extension().is_some_and(|found| found == "mlpackage" || found == "mlmodelc");
    if is_pipeline {
        let whole = &steps.whole().description;
        if let Some(state) = whole.states.first() {
            let message = format!("a pipeline cannot hold the state `{}`", state.name);
            return Err(Failure::user(message).hint(Some("write the pieces to a directory")));
        }
        let stages = names.iter().zip(pieces);
        let stages: Vec<Stage> = stages
            .map(|(name, piece)| Stage { name: name.clone(), model: piece.model().clone() })
            .collect();
        let version = stages.iter().map(|stage| stage.model.specification_version).max();
        let pipeline = Pipeline {
            specification_version: version.unwrap_or_default(),
            description: whole.clone(),
            stages,
            ..Pipeline::default()
        };
        let saved = coremill::save_pipeline(output, &pipeline, &options);
        saved.map_err(|error| super::failure(&error))?;
        return Ok(names);
    }
    std::fs::create_dir_all(output)
        .map_err(|error| Failure::user(format_args!("{}: {error}", output.display())))?;
    let mut paths = Vec::new();
    for (name, piece) in names.iter().zip(pieces) {
        let path = output.join(format!("{name}.mlpackage"));
        coremill::save(&path, piece, &options).map_err(|error| super::failure(&error))?;
        paths.push(path.display().to_string());
    }
    Ok(paths)
}

/// Runs the whole model and the pieces on the same inputs; fails unless they compute the same bits.
fn compare(whole: &Verified<'_>, pieces: &[Verified<'_>]) -> Result<(), Failure> {
    let options = RunOptions { numerics: Numerics::Rounded, ..RunOptions::default() };
    // Weights are used once, so that models larger than the memory can be compared.
    let files = weight_files(whole.model());
    let mut passed: HashMap<String, Array> = HashMap::new();
    let expected = outputs(whole, &options, &files, &mut passed)?;
    let mut computed = Outputs(Vec::new());
    for piece in pieces {
        let found = outputs(piece, &options, &files, &mut passed)?;
        for (name, value) in &found.0 {
            if let Value::Array(array) = value {
                passed.insert(name.clone(), array.clone());
            }
        }
        computed.0.extend(found.0);
    }
    for (name, expected) in &expected.0 {
        if computed.get(name).is_none_or(|found| !same_bits(found, expected)) {
            let message = format!("the pieces compute a different `{name}` than the whole model");
            return Err(Failure::internal(message));
        }
    }
    Ok(())
}

/// A weight of each mapped file.
fn weight_files(model: &Model) -> Vec<Buffer> {
    let mut files = BTreeMap::new();
    for function in &model.program.functions {
        for (_, op) in function.all_ops() {
            for constant in op.constants() {
                if let ConstantData::Weight(weight) = &constant.data
                    && let Some(data) = &weight.data
                    && let Some(span) = data.file_span()
                {
                    files.entry(span.path.to_owned()).or_insert_with(|| data.clone());
                }
            }
        }
    }
    files.into_values().collect()
}

/// Runs a model on inputs from `known`. Adds random elements for missing inputs.
fn outputs(
    model: &Verified<'_>,
    options: &RunOptions,
    files: &[Buffer],
    known: &mut HashMap<String, Array>,
) -> Result<Outputs, Failure> {
    let executable = session::load(model, options).map_err(|error| super::failure(&error))?;
    let mut session = executable.default_session().map_err(|error| super::failure(&error))?;
    let specs = session.inputs().to_vec();
    let given =
        specs.iter().filter_map(|spec| Some((spec.name.clone(), known.get(&spec.name)?.clone())));
    let mut given: Arrays = given.collect();
    let function = session.function().to_owned();
    let vocabulary = |name: &str| executable.vocabulary(&function, name);
    inputs::fill(&[], &specs, SEED, &mut given, &vocabulary)?;
    let mut release = || files.iter().for_each(Buffer::release_file);
    let mut hooks = Hooks { after_step: Some(&mut release), ..Hooks::default() };
    let outputs = session.run_with(&session::inputs(&given), &mut hooks);
    let outputs = outputs.map_err(|error| super::failure(&error))?;
    known.extend(given);
    Ok(outputs)
}

/// Whether values have the same elements, where NaN equals NaN.
fn same_bits(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Array(left), Value::Array(right)) => {
            left.shape() == right.shape() && left.to_bytes() == right.to_bytes()
        }
        _ => left == right,
    }
}
