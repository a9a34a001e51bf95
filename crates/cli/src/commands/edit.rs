use std::path::PathBuf;
use std::str::FromStr;

use coremill::edit::{self, Edit, ShapeEdit};

use super::convert::shapes::InputShapes;
use super::edits::{Assignment, InterfaceArgs, MetadataArgs};
use crate::output::{Failure, OutputPath};

/// Change the inputs, outputs and metadata of a model
///
/// Outputs are exposed first; shapes, images, types, labels and descriptions follow, then outputs are dropped, and names
/// change last. Weights are not copied in memory.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill edit Model.mlpackage -o New.mlpackage --rename x=image --describe 'scores=One score per class'\n  coremill edit Model.mlpackage -o Photo.mlpackage --image x=rgb,scale=1/255 --labels labels.txt\n  coremill edit Model.mlpackage -o Fixed.mlpackage --shapes x=1,3,224,224\n  coremill edit Model.mlpackage -o Features.mlpackage --expose pool_1 --drop scores"
)]
pub(crate) struct Args {
    /// A `.mlpackage`, `.mlmodel`, `.mlmodelc` or MIL text; `-` is text on standard input
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Output: a `.mlpackage`, a `.mlmodelc`, or MIL text (`.mil`)
    #[arg(short, long, value_name = "PATH")]
    output: OutputPath,
    /// Function to change, if the model has several [default: the model's default function]
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    #[command(flatten)]
    interface: InterfaceArgs,
    /// New name of an input, an output or a state
    #[arg(long = "rename", value_name = "FROM=TO", help_heading = "Interface")]
    renames: Vec<Assignment>,
    /// Image to turn into an array of its pixels
    #[arg(long = "array", value_name = "NAME", help_heading = "Interface")]
    arrays: Vec<String>,
    /// Value to make an output; `coremill text` shows the names
    #[arg(long = "expose", value_name = "NAME", help_heading = "Interface")]
    exposed: Vec<String>,
    /// State to turn into an input; its new value becomes the output `new_NAME`
    #[arg(long = "expose-state", value_name = "NAME", help_heading = "Interface")]
    exposed_states: Vec<String>,
    /// Name of the output to remove, with the operations that only it needs
    #[arg(long = "drop", value_name = "NAME", help_heading = "Interface")]
    dropped: Vec<String>,
    /// Shapes that an input accepts; a single shape fixes it
    #[arg(long, value_name = "NAME=1,3,224,224;1,3,448,448", help_heading = "Interface")]
    shapes: Vec<InputShapes>,
    /// Input to make optional, and the element that fills it if callers leave it out
    #[arg(long = "optional", value_name = "NAME=NUMBER", help_heading = "Interface")]
    optional: Vec<Default>,
    #[command(flatten)]
    metadata: MetadataArgs,
    /// Wait until all data is on disk
    #[arg(long)]
    sync: bool,
}

/// `NAME=NUMBER`.
#[derive(Clone, Debug)]
struct Default {
    name: String,
    number: f64,
}

impl FromStr for Default {
    type Err = String;

    fn from_str(text: &str) -> Result<Default, String> {
        let Assignment { name, text } = text.parse()?;
        match text.trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Default { name, number }),
            _ => Err(format!("`{text}` is not a number")),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    super::check_output_paths([&args.model], [&args.output])?;
    let output = args.output.as_directory()?;
    let mut opened = super::open_with_source(&args.model)?;
    let edits = edits(args)?;
    edit::apply(&mut opened.model, &edits, args.function.as_deref())
        .map_err(|error| super::failure(&error))?;
    args.metadata.apply(opened.model.description.metadata.get_or_insert_default())?;
    // What the text says is no longer what the model is.
    opened.source = None;
    let verified = super::verify(&opened)?;
    super::save(output, &opened, &verified, args.sync)
}

fn edits(args: &Args) -> Result<Vec<Edit>, Failure> {
    let names = |names: &[String], edit: fn(String) -> Edit| -> Vec<Edit> {
        names.iter().cloned().map(edit).collect()
    };
    let mut edits = names(&args.exposed, |name| Edit::ExposeOutput { name });
    edits.extend(names(&args.exposed_states, |name| Edit::ExposeState { name }));
    edits.extend(args.shapes.iter().map(|given| {
        let (name, shapes) = (given.name.clone(), given.shapes.clone());
        Edit::Shapes(ShapeEdit { name, shapes, default: Vec::new() })
    }));
    edits.extend(names(&args.arrays, |name| Edit::Array { name }));
    edits.extend(args.interface.edits()?);
    let optional = args.optional.iter().cloned();
    edits.extend(optional.map(|Default { name, number }| Edit::Optional { name, default: number }));
    edits.extend(names(&args.dropped, |name| Edit::DropOutput { name }));
    let renames = args.renames.iter().cloned();
    edits.extend(renames.map(|Assignment { name, text }| Edit::Rename { from: name, to: text }));
    Ok(edits)
}
