use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use coremill::edit::Steps;
use coremill::{OpenedModel, SaveOptions};
use serde::Serialize;

use crate::output::{self, Failure, OutputPath};

/// The place of the trial model in the command.
const PLACE: &str = "{}";

/// Find the first operation with which a command fails
///
/// A binary search: each trial model has the first operations of the model, and the command runs on it.
/// The outputs of such a model are the values that the rest of the model uses. A command fails if its exit code is not 0.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill bisect Model.mlpackage -- ./runs-on-device.sh\n  coremill bisect Model.mlpackage -o Smallest.mlpackage -- coremill compare {} --random 1 --fail-below 40"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text; `-` is text on standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output for the smallest model on which the command fails: a `.mlpackage`, a `.mlmodelc` or MIL text (`.mil`)
    #[arg(short, long, value_name = "PATH")]
    output: Option<OutputPath>,
    /// Function to bisect, if the model has several [default: the model's default function]
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The command; `{}` is replaced by the path of the trial model, which is the last argument by default
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

/// The result. The JSON form is stable: for the same `format_version`, fields are only added.
#[derive(Serialize)]
struct Report<'a> {
    format_version: u32,
    operator: &'a str,
    name: &'a str,
    operation: usize,
    operations: usize,
    /// Number of preceding operations that may also be at fault, because the model cannot be cut after any of them.
    also: usize,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], &args.output)?;
    let output = args.output.as_ref().map(OutputPath::as_directory).transpose()?;
    let opened = super::open_with_source(&args.model)?;
    let steps = Steps::of(&opened.model, args.function.as_deref());
    let steps = steps.map_err(|error| super::failure(&error))?;
    let directory = tempfile::tempdir().map_err(|error| {
        Failure::user(format_args!("cannot create a temporary directory: {error}"))
    })?;
    let trial = directory.path().join("Trial.mlpackage");
    let fails = |count: usize| -> Result<Option<bool>, Failure> {
        let Ok(model) = steps.piece(0..count) else { return Ok(None) };
        let piece = OpenedModel::made(model, &trial);
        let Ok(verified) = coremill::verify(&piece.model) else { return Ok(None) };
        coremill::save(&trial, &verified, &SaveOptions::default())
            .map_err(|error| super::failure(&error))?;
        let failed = !execute(&args.command, &trial)?;
        let outcome = if failed { "fails" } else { "succeeds" };
        output::tell(&format!("{outcome} with {count} of {} operations\n", steps.len()));
        Ok(Some(failed))
    };
    if fails(steps.len())? != Some(true) {
        return Err(Failure::user("the command succeeds on the whole model")
            .hint(Some("a command fails if its exit code is not 0")));
    }
    let Range { start: good, end: bad } = search(steps.len(), &fails)?;
    if let Some(output) = output {
        let model = steps.piece(0..bad).map_err(|error| super::failure(&error))?;
        let smallest = OpenedModel::made(model, output);
        super::save(output, &smallest, &super::verify(&smallest)?, false)?;
    }
    let (operator, name) = steps.name(bad - 1);
    if args.json {
        return output::print_json(&Report {
            format_version: 1,
            operator,
            name,
            operation: bad,
            operations: steps.len(),
            also: bad - good - 1,
        });
    }
    let also = match bad - good - 1 {
        0 => String::new(),
        count => format!(", or with one of the {count} operations before it"),
    };
    output::say(&format!(
        "the command fails starting at `{operator}` of `{name}`, operation {bad} of {}{also}\n",
        steps.len()
    ))
}

/// The last number of operations with which the command succeeds, and the first one with which it fails.
fn search(
    count: usize,
    fails: &dyn Fn(usize) -> Result<Option<bool>, Failure>,
) -> Result<Range<usize>, Failure> {
    let (mut good, mut bad) = (0, count);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        // Near the middle, the next place at which the model can be cut.
        let mut places: Vec<usize> = (good + 1..bad).collect();
        places.sort_by_key(|place| place.abs_diff(middle));
        let mut decided = false;
        for place in places {
            match fails(place)? {
                Some(true) => bad = place,
                Some(false) => good = place,
                None => continue,
            }
            decided = true;
            break;
        }
        if !decided {
            break;
        }
    }
    Ok(good..bad)
}

/// Runs the command on a model; whether it succeeded.
fn execute(command: &[String], trial: &Path) -> Result<bool, Failure> {
    let path = trial.display().to_string();
    let mut arguments: Vec<String> =
        command[1..].iter().map(|argument| argument.replace(PLACE, &path)).collect();
    if !command.iter().any(|argument| argument.contains(PLACE)) {
        arguments.push(path);
    }
    let status = Command::new(&command[0])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(Failure::user(format_args!("cannot run `{}`: {error}", command[0]))),
    }
}
