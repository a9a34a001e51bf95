//! Edits of models: program and description change together.
//!
//! An [`Edit`] names an input or an output and its change; [`apply`] applies a list of edits in order. The
//! converter applies the same edits to new models, so that converted and edited models are equal.
//!
//! ```
//! use coremill_edit::{Edit, apply};
//! use coremill_mil::model::describe;
//! use coremill_mil::text::{NoWeights, parse};
//!
//! let text = "program(1.3) {
//!     func main<ios17>(tensor<fp32, [1, 3, 4, 4]> x) { tensor<fp32, [1, 3, 4, 4]> y = relu(x = x); } -> (y);
//! }";
//! let mut model = describe(parse(text, &NoWeights).expect("valid text")).expect("arrays");
//! let edits = [
//!     "x=rgb,scale=1/255,bias=-0.5".parse().map(Edit::Image)?,
//!     Edit::Rename { from: "y".to_owned(), to: "features".to_owned() },
//! ];
//! apply(&mut model, &edits, None)?;
//! assert_eq!(model.description.outputs[0].name, "features");
//! # Ok::<(), coremill_edit::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `interface` | the function and the description that edits change |
//! | `images` | arrays as images, and back |
//! | `classes` | class labels |
//! | `functions` | several models as one, and back |
//! | `split` | one model as several pieces |
//! | `types`, `names`, `outputs`, `states`, `shapes` | the other edits |

mod classes;
mod error;
mod functions;
mod images;
mod interface;
mod names;
mod outputs;
mod shapes;
mod split;
mod states;
mod types;

pub use classes::{Classifier, Labels};
pub use error::{Error, ErrorKind};
pub use functions::{function, merge};
pub use images::{ImageEdit, Layout};
pub use shapes::{RangeEdit, ShapeEdit};
pub use split::Steps;
pub use states::{expose_states, state_output_name};
pub use types::ElementType;

use coremill_mil::ir::Opset;
use coremill_mil::model::Model;
use serde::Deserialize;

use interface::Interface;

/// A change to a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "edit", rename_all = "snake_case")]
pub enum Edit {
    /// Renames an input, an output or a state.
    Rename {
        /// Its present name.
        from: String,
        /// Its new name.
        to: String,
    },
    /// Sets the element type of an input or an output; the program casts.
    Retype {
        /// The input or output.
        name: String,
        /// Its new element type.
        dtype: ElementType,
    },
    /// Describes an input, an output or a state.
    Describe {
        /// The input, output or state.
        name: String,
        /// A text for people.
        text: String,
    },
    /// Makes an array an image.
    Image(ImageEdit),
    /// Makes an image an array.
    Array {
        /// The input or output.
        name: String,
    },
    /// Makes a model a classifier.
    Classify(Classifier),
    /// Removes an output, and what only it needs. Without its label, a classifier returns the scores as an array.
    DropOutput {
        /// The output.
        name: String,
    },
    /// Makes a value of the program an output.
    ExposeOutput {
        /// The value.
        name: String,
    },
    /// Makes a state an input, and its value after the program the output `new_NAME`, so that callers keep it.
    ExposeState {
        /// The state.
        name: String,
    },
    /// Lets callers leave an input out.
    Optional {
        /// The input.
        name: String,
        /// The element that fills it then.
        default: f64,
    },
    /// Sets the shapes that an input accepts.
    Shapes(ShapeEdit),
    /// Sets the sizes that an input accepts in each dimension.
    Ranges(RangeEdit),
}

impl Edit {
    /// The oldest release that supports the result of the edit.
    pub fn needs(&self) -> Opset {
        match self {
            Edit::Retype { dtype, .. } => dtype.needs(),
            Edit::Image(ImageEdit { layout: Layout::GrayscaleFp16, .. }) => Opset::Ios16,
            Edit::Rename { .. }
            | Edit::Describe { .. }
            | Edit::Image(_)
            | Edit::Array { .. }
            | Edit::Classify(_)
            | Edit::DropOutput { .. }
            | Edit::ExposeOutput { .. }
            | Edit::ExposeState { .. }
            | Edit::Optional { .. }
            | Edit::Shapes(_)
            | Edit::Ranges(_) => Opset::Ios15,
        }
    }
}

/// The oldest release that has what edits write.
pub fn needs(edits: &[Edit]) -> Opset {
    edits.iter().map(Edit::needs).max().unwrap_or(Opset::Ios15)
}

/// Reads edits from JSON: a list of objects, each with the kind of edit as `edit`.
pub fn from_json(text: &str) -> Result<Vec<Edit>, Error> {
    serde_json::from_str(text).map_err(|error| Error::new(format!("invalid edits: {error}")))
}

/// Applies edits in order to a function; to the only one, or the default one, if no name is given. If one fails, the
/// model is unchanged.
pub fn apply(model: &mut Model, edits: &[Edit], function: Option<&str>) -> Result<(), Error> {
    let mut edited = model.clone();
    for edit in edits {
        let mut interface = Interface::of(&mut edited, function)?;
        interface.require(edit.needs())?;
        match edit {
            Edit::Rename { from, to } => names::rename(&mut interface, from, to)?,
            Edit::Retype { name, dtype } => types::retype(&mut interface, name, *dtype)?,
            Edit::Describe { name, text } => {
                interface.feature_mut(name)?.short_description.clone_from(text);
            }
            Edit::Image(image) => images::to_image(&mut interface, image)?,
            Edit::Array { name } => images::to_array(&mut interface, name)?,
            Edit::Classify(classifier) => classes::classify(&mut interface, classifier)?,
            Edit::DropOutput { name } if name == interface.predicted_feature => {
                classes::declassify(&mut interface)?;
            }
            Edit::DropOutput { name } => outputs::drop(&mut interface, name)?,
            Edit::ExposeOutput { name } => outputs::expose(&mut interface, name)?,
            Edit::ExposeState { name } => states::expose(&mut interface, name)?,
            Edit::Optional { name, default } => types::optional(&mut interface, name, *default)?,
            Edit::Shapes(shapes) => shapes::set(&mut interface, shapes)?,
            Edit::Ranges(ranges) => shapes::set_ranges(&mut interface, ranges)?,
        }
    }
    *model = edited;
    Ok(())
}
