//! MIL text, the form that Apple's compiler writes to `model.mil`: print and parse.
//!
//! ```text
//! program(1.3)
//! [buildInfo = dict<string, string>({{"coremlc-version", "3520.5.1"}})]
//! {
//!     func main<ios17>(tensor<fp32, [1, 4]> x) {
//!             tensor<fp32, [4]> w = const()[name = string("w"), val = tensor<fp32, [4]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];
//!             tensor<fp32, [1, 4]> y = add(x = x, y = w)[name = string("y")];
//!         } -> (y);
//! }
//! ```
//!
//! The grammar; `x*` is any number of x with `,` between them, `x?` is x or nothing:
//!
//! ```text
//! program   = "program" "(" version ")" attributes? "{" function… "}"
//! function  = "func" name "<" opset ">" "(" (type name)* ")" attributes? body ";"
//! body      = "{" operation… "}" "->" "(" name* ")"
//! operation = ((type name)* "=")? name "(" (key "=" argument)* ")" attributes? block… ";"
//! block     = "(" (type name)* ")" attributes? body
//! argument  = binding | "(" binding* ")"
//! binding   = name | literal
//! attributes = "[" (key "=" literal)* "]"
//! literal   = type "(" value ")"
//! value     = number | string | "true" | "false" | "[" value* "]" | "(" value* ")" | "{" entry* "}"
//!           | "BLOBFILE" "(" "path" "=" literal "," "offset" "=" literal ")" | literal
//! entry     = "{" value "," value "}"
//! type      = dtype | "tensor" "<" dtype "," "[" dim* "]" ">" | "list" "<" type "," dim ">"
//!           | "tuple" "<" type* ">" | "dict" "<" type "," type ">" | "state" "<" type ">"
//! dim       = integer | "?"
//! ```
//!
//! There are two dialects, and both are read, mixed too. `program(1.3)` writes a scalar's type as
//! `int32`; `program(1.0)` as `tensor<int32, []>`. Floats are hexadecimal and lose nothing, decimal ones
//! are read as well. A tensor's brackets hold exactly the elements that its type declares; without any
//! it may be `[]`. `//` begins a comment. Names that are no identifiers, or reserved words, stand
//! between backticks, which Apple's parser does not know: see [`is_plain`].
//!
//! The `analytics.mil` of Core ML's cache is read as well: its buffers (`tensor_buffer<...>`) as tensors, and operations with
//! an opset of their own (`op<ios17>(...)`).
//!
//! ```
//! use coremill_mil::text::{self, NoWeights, PrintOptions};
//!
//! let program = text::parse(
//!     "program(1.3) { func main<ios17>(tensor<fp16, [4]> x) { tensor<fp16, [4]> y = mul(x = x, y = \
//!      fp16(0.5)); } -> (y); }",
//!     &NoWeights,
//! )?;
//! let printed = text::print(&program, &PrintOptions::default());
//! assert_eq!(&printed.text[printed.spans.ops[0].range.clone()], "tensor<fp16, [4]> y = mul(x = x, y = fp16(0x1p-1))");
//! let error = text::parse("program(1.3) { }\n}", &NoWeights).unwrap_err();
//! assert_eq!(error.to_string(), "line 2, column 1: expected the end of the text, found `}`");
//! # Ok::<(), text::Error>(())
//! ```
//!
//! Text has no place for [`Program::documentation`](crate::ir::Program::documentation) and for unknown
//! fields; a program without these is the same after it is printed and parsed.

mod analytics;
mod cursor;
mod error;
mod floats;
mod lex;
mod listing;
mod names;
mod parse;
pub(crate) mod pieces;
mod print;
mod types;
mod values;

use std::collections::BTreeMap;

use coremill_tensor::Buffer;

pub use error::{Error, ErrorKind};
pub use listing::{Listing, OpSpan, Spans};
pub use names::{identifier, is_identifier, is_plain, is_reserved};
pub use parse::{InputOrder, parse, parse_ordered, parse_with_spans};
pub use print::{print, write};

use crate::ir::{Attributes, TensorType, Weight, WeightPlace};

/// A version of the text's form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// What compilers before 3520 write: every type is spelled as a tensor's.
    V1_0,
    /// What they write now.
    #[default]
    V1_3,
}

/// Says where a weight lies.
pub type Places<'p> = &'p dyn Fn(&Weight) -> Option<WeightPlace>;

/// How to print.
#[derive(Clone, Copy, Default)]
pub struct PrintOptions<'o> {
    /// The form.
    pub dialect: Dialect,
    /// Says where weights lie; one that it has no place for is printed where it was read from, and
    /// one that was not read from anywhere at `@unplaced`.
    pub places: Option<Places<'o>>,
    /// Attributes that the program does not have, or has otherwise.
    pub added: Option<&'o AddedAttributes>,
    /// Whether the inputs of functions are sorted by name, as Apple's compiler does.
    pub sorted_inputs: bool,
}

/// Attributes that are printed without being in the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddedAttributes {
    /// Those of the program.
    pub program: Attributes,
    /// Those of functions, by the functions' names.
    pub functions: BTreeMap<String, Attributes>,
}

/// Gives the elements of weights that text refers to.
pub trait Weights {
    /// The packed elements of a tensor of this type at a place; none to leave the weight where it is.
    /// The error is a message for people.
    fn elements(&self, place: &WeightPlace, ty: &TensorType) -> Result<Option<Buffer>, String>;
}

/// Leaves every weight where it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWeights;

impl Weights for NoWeights {
    fn elements(&self, _: &WeightPlace, _: &TensorType) -> Result<Option<Buffer>, String> {
        Ok(None)
    }
}
