//! MIL text, the format of `model.mil` in Apple's compiled models: printer and parser.
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
//! The grammar; `x*` is a comma-separated list of x, and `x?` is an optional x:
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
//! There are two dialects; the parser accepts both, even mixed. `program(1.3)` writes the type of a scalar as
//! `int32`, `program(1.0)` as `tensor<int32, []>`. Floats are written in hexadecimal, which is exact; decimal
//! floats can be read as well. The brackets of a tensor contain exactly the elements that its type declares; a
//! tensor without elements may be `[]`. `//` starts a comment. Names that are not identifiers or are reserved
//! words are quoted with backticks, which Apple's parser does not support: see [`is_plain`].
//!
//! The parser also reads the `analytics.mil` of Core ML's cache: buffers (`tensor_buffer<...>`) are read as
//! tensors, and operations may have their own opset (`op<ios17>(...)`).
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
//! MIL text cannot represent [`Program::documentation`](crate::ir::Program::documentation) and unknown
//! fields. A program without these is unchanged after it is printed and parsed.

mod analytics;
mod cursor;
mod error;
mod floats;
mod lex;
mod listing;
mod names;
mod parse;
pub mod pieces;
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

/// Version of the MIL text format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The dialect of compilers before 3520, which writes every type as a tensor type.
    V1_0,
    /// The current dialect.
    #[default]
    V1_3,
}

/// Returns the location of a weight.
pub type Places<'p> = &'p dyn Fn(&Weight) -> Option<WeightPlace>;

/// Options of the printer.
#[derive(Clone, Copy, Default)]
pub struct PrintOptions<'o> {
    /// The dialect.
    pub dialect: Dialect,
    /// Returns the locations of weights. A weight for which it returns `None` is printed with the location
    /// from which it was read, or with `@unplaced` if it was not read from a file.
    pub places: Option<Places<'o>>,
    /// Attributes to print in addition to those in the program, or instead of them.
    pub added: Option<&'o AddedAttributes>,
    /// Whether to sort the inputs of functions by name, as Apple's compiler does.
    pub sorted_inputs: bool,
}

/// Attributes that are printed but not part of the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AddedAttributes {
    /// Attributes of the program.
    pub program: Attributes,
    /// Attributes of the functions, by function name.
    pub functions: BTreeMap<String, Attributes>,
}

/// Reads the elements of weights that a text refers to.
pub trait Weights {
    /// Returns the packed elements of a tensor of type `ty` at a location, or `None` to keep only the
    /// location. The error is a message for users.
    fn elements(&self, place: &WeightPlace, ty: &TensorType) -> Result<Option<Buffer>, String>;
}

/// Keeps only the locations of weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoWeights;

impl Weights for NoWeights {
    fn elements(&self, _: &WeightPlace, _: &TensorType) -> Result<Option<Buffer>, String> {
        Ok(None)
    }
}
