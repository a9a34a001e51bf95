//! `crates/graph/src/ops`: a typed method for every operation of the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use coremill_mil::ir::Opset;
use coremill_mil::ops::{Accepts, OpKind, OpRow, Parameter};
use coremill_tensor::DType;

/// Where the methods stand.
pub(super) const FOLDER: &str = "crates/graph/src/ops";

const HEAD: &str = "//! GeneratedFile by `cargo xtask ops --methods`; do not edit.\n\n";

/// Operations that the graph has words of its own for, or that no program can use.
const BY_HAND: [OpKind; 7] = [
    OpKind::Const,
    OpKind::ConstSymbolic,
    OpKind::Cond,
    OpKind::ConvQuantized,
    OpKind::ReadState,
    OpKind::WhileLoop,
    OpKind::WriteState,
];

/// The parameters that a method is called on, where they are no constants.
const RECEIVERS: [&str; 14] = [
    "x",
    "data",
    "input",
    "query",
    "ls",
    "boxes",
    "cond",
    "probabilities",
    "ref_tensor",
    "indices",
    "scores",
    "a",
    "quantized_data",
    "values",
];

/// What the module shows of itself.
const EXAMPLE: &str = "//! ```
//! use coremill_graph::ops::Conv;
//! use coremill_graph::{DType, Graph};
//!
//! let graph = Graph::new();
//! let image = graph.input(\"image\", DType::Fp32, [1, 3, 8, 8]);
//! let weight = graph.param(\"weight\", [4, 3, 3, 3]);
//! let x = image.conv(weight, Conv::new().pad_type(\"same\")).relu();
//! assert_eq!(x.shape(), [1, 4, 8, 8]);
//! ```
";

/// The files by their path below [`FOLDER`], not yet formatted.
pub(super) fn files() -> BTreeMap<String, String> {
    let mut families: BTreeMap<&str, Vec<OpKind>> = BTreeMap::new();
    for kind in OpKind::ALL.into_iter().filter(|kind| !BY_HAND.contains(kind)) {
        families.entry(kind.family()).or_default().push(kind);
    }
    let mut files = BTreeMap::new();
    let mut root = format!(
        "{HEAD}//! Every operation of MIL as a method, with a struct for what may be left out.\n//!\n\
         //! A method bears the operation's name and takes what the operation requires. What may be left out\n\
         //! stands in a struct of the operation's name.\n//!\n{EXAMPLE}\n"
    );
    for name in families.keys() {
        write(&mut root, format_args!("mod {name};\n"));
    }
    root.push('\n');
    for (name, kinds) in &families {
        let structs: Vec<_> = kinds.iter().map(|&kind| Method::new(kind)).collect();
        let structs: Vec<_> = structs.iter().filter(|method| !method.optional.is_empty()).collect();
        if !structs.is_empty() {
            let names: Vec<_> = structs.iter().map(|method| camel(method.kind.name())).collect();
            write(&mut root, format_args!("pub use {name}::{{{}}};\n", names.join(", ")));
        }
    }
    files.insert("mod.rs".to_owned(), root);
    for (name, kinds) in families {
        let mut body = String::new();
        for kind in kinds {
            body.push_str(&Method::new(kind).render());
        }
        let mut used = Vec::new();
        for (word, path) in [
            ("Arg<", "crate::arg::Arg"),
            ("Bools", "crate::arg::Bools"),
            ("Ints", "crate::arg::Ints"),
            ("Call::", "crate::call::Call"),
            ("impl Graph", "crate::graph::Graph"),
            ("Tensor<", "crate::tensor::Tensor"),
            ("DType", "coremill_tensor::DType"),
            ("OpKind", "coremill_mil::ops::OpKind"),
        ] {
            if body.contains(word) {
                used.push(format!("use {path};\n"));
            }
        }
        files.insert(format!("{name}.rs"), format!("{HEAD}{}\n{body}", used.concat()));
    }
    files
}

/// What a method takes of a parameter.
#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Arg,
    Ints(DType),
    Bools,
    Text,
    Type,
    Many,
}

struct Method {
    kind: OpKind,
    receiver: Option<&'static Parameter>,
    required: Vec<&'static Parameter>,
    optional: Vec<&'static Parameter>,
}

impl Method {
    fn new(kind: OpKind) -> Method {
        let newest: &'static OpRow = kind.rows().last().expect("every operation has a row");
        let receiver = newest.parameters.iter().find(|parameter| {
            parameter.required && !parameter.constant && parameter.accepts != Accepts::Values
        });
        let receiver = receiver.filter(|parameter| RECEIVERS.contains(&parameter.name));
        let others = newest
            .parameters
            .iter()
            .filter(|parameter| receiver.is_none_or(|receiver| receiver.name != parameter.name));
        let (required, mut optional): (Vec<_>, Vec<_>) =
            others.partition(|parameter| parameter.required);
        // What only older definitions have may be stated for older targets.
        for row in kind.rows() {
            for parameter in row.parameters {
                let known = newest.parameter(parameter.name).is_some()
                    || optional.iter().any(|other| other.name == parameter.name);
                if !known {
                    optional.push(parameter);
                }
            }
        }
        // The number of results is one of the method's promises.
        optional.retain(|parameter| parameter.name != "return_indices");
        Method { kind, receiver, required, optional }
    }

    fn is_borrowing(&self) -> bool {
        self.optional.iter().any(|parameter| takes(parameter) == Takes::Arg)
    }

    fn render(&self) -> String {
        let name = self.kind.name();
        let variant = camel(name);
        let rust = match name {
            "mod" => "modulo",
            "shape" => "shape_tensor",
            name => name,
        };
        let life = if self.is_borrowing() { "<'g>" } else { "" };
        let mut text = String::new();
        if !self.optional.is_empty() {
            write(
                &mut text,
                format_args!(
                    "/// What may be left out of `{name}`.\n#[derive(Clone, Debug, Default)]\npub struct {variant}{life} {{\n"
                ),
            );
            for parameter in &self.optional {
                write(
                    &mut text,
                    format_args!("{}: Option<{}>,\n", parameter.name, stored(takes(parameter))),
                );
            }
            write(
                &mut text,
                format_args!(
                    "}}\n\nimpl{life} {variant}{life} {{\n/// Everything is left out.\npub fn new() -> {variant}{life} {{\n\
                     {variant}::default()\n}}\n\n"
                ),
            );
            for parameter in &self.optional {
                let takes = takes(parameter);
                write(
                    &mut text,
                    format_args!(
                        "/// Sets `{0}`.\npub fn {0}(mut self, {0}: {1}) -> Self {{\nself.{0} = Some({2});\nself\n}}\n\n",
                        parameter.name,
                        taken(takes),
                        converted(parameter.name, takes)
                    ),
                );
            }
            text.push_str("}\n\n");
        }
        let target = if self.receiver.is_some() { "impl<'g> Tensor<'g>" } else { "impl Graph" };
        let (receiver, method_life) =
            if self.receiver.is_some() { ("self", "") } else { ("&'g self", "<'g>") };
        let since = self.kind.introduced();
        let mut arguments = vec![receiver.to_owned()];
        for parameter in &self.required {
            arguments.push(format!("{}: {}", parameter.name, taken(takes(parameter))));
        }
        if !self.optional.is_empty() {
            arguments.push(format!("options: {variant}{life}"));
        }
        let (result, finish) = results(self.kind);
        let needs = if since == Opset::Ios15 { String::new() } else { format!(", since {since}") };
        write(
            &mut text,
            format_args!(
                "{target} {{\n/// Appends `{name}`{needs}.\n#[track_caller]\n\
                 pub fn {rust}{method_life}({}) -> {result} {{\n",
                arguments.join(", ")
            ),
        );
        let graph = if self.receiver.is_some() { "self.graph()" } else { "self" };
        write(&mut text, format_args!("let mut call = Call::new({graph}, OpKind::{variant});\n"));
        if let Some(receiver) = self.receiver {
            write(&mut text, format_args!("call.arg(\"{}\", self);\n", receiver.name));
        }
        for parameter in &self.required {
            let name = parameter.name;
            write(&mut text, format_args!("{}\n", bind(parameter, name)));
        }
        for parameter in &self.optional {
            let name = parameter.name;
            write(
                &mut text,
                format_args!(
                    "if let Some({name}) = options.{name} {{\n{}\n}}\n",
                    bind(parameter, name)
                ),
            );
        }
        write(&mut text, format_args!("{finish}\n}}\n}}\n\n"));
        text
    }
}

fn takes(parameter: &Parameter) -> Takes {
    let dtypes = match parameter.accepts {
        Accepts::Values => return Takes::Many,
        Accepts::Tensor { dtypes, .. } => dtypes,
        Accepts::List | Accepts::State | Accepts::Any => return Takes::Arg,
    };
    if dtypes == [DType::String] {
        return if parameter.name.ends_with("dtype") { Takes::Type } else { Takes::Text };
    }
    if !parameter.constant {
        return Takes::Arg;
    }
    if dtypes == [DType::Bool] {
        return Takes::Bools;
    }
    let ints = [DType::Int32, DType::UInt32];
    match ints.into_iter().find(|int| dtypes.contains(int)) {
        Some(int) if dtypes.iter().all(|dtype| dtype.is_integer()) => Takes::Ints(int),
        _ => Takes::Arg,
    }
}

fn taken(takes: Takes) -> &'static str {
    match takes {
        Takes::Arg => "impl Into<Arg<'g>>",
        Takes::Ints(_) => "impl Into<Ints>",
        Takes::Bools => "impl Into<Bools>",
        Takes::Text => "&str",
        Takes::Type => "DType",
        Takes::Many => "impl IntoIterator<Item: Into<Arg<'g>>>",
    }
}

fn stored(takes: Takes) -> &'static str {
    match takes {
        Takes::Arg => "Arg<'g>",
        Takes::Ints(_) => "Ints",
        Takes::Bools => "Bools",
        Takes::Text => "String",
        Takes::Type => "DType",
        Takes::Many => unreachable!("what takes several values is required"),
    }
}

fn converted(name: &str, takes: Takes) -> String {
    match takes {
        Takes::Arg | Takes::Ints(_) | Takes::Bools => format!("{name}.into()"),
        Takes::Text => format!("{name}.to_owned()"),
        Takes::Type | Takes::Many => name.to_owned(),
    }
}

fn bind(parameter: &Parameter, name: &str) -> String {
    match takes(parameter) {
        Takes::Arg => format!("call.arg(\"{name}\", {name});"),
        Takes::Ints(DType::UInt32) => format!("call.unsigned(\"{name}\", {name}.into());"),
        Takes::Ints(_) => format!("call.ints(\"{name}\", {name}.into());"),
        Takes::Bools => format!("call.bools(\"{name}\", {name}.into());"),
        Takes::Text => format!("call.text(\"{name}\", {name}.as_ref());"),
        Takes::Type => format!("call.text(\"{name}\", {name}.name());"),
        Takes::Many => format!("call.many(\"{name}\", {name});"),
    }
}

/// What a method gives, and how it comes by that.
fn results(kind: OpKind) -> (&'static str, &'static str) {
    match kind {
        OpKind::Split => ("Vec<Tensor<'g>>", "call.all()"),
        OpKind::Classify | OpKind::Gru | OpKind::Rnn | OpKind::Topk => {
            ("(Tensor<'g>, Tensor<'g>)", "let [first, second] = call.several();\n(first, second)")
        }
        OpKind::Lstm => (
            "(Tensor<'g>, Tensor<'g>, Tensor<'g>)",
            "let [first, second, third] = call.several();\n(first, second, third)",
        ),
        OpKind::NonMaximumSuppression => ("[Tensor<'g>; 4]", "call.several()"),
        _ => ("Tensor<'g>", "call.one()"),
    }
}

fn camel(name: &str) -> String {
    let mut text = String::new();
    for part in name.split('_') {
        let mut chars = part.chars();
        text.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        text.extend(chars);
    }
    text
}

fn write(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_methods_are_those_of_the_table() {
        let root = crate::workspace::root();
        for (path, code) in files() {
            let code = crate::ops::format(&root, &code).expect("rustfmt runs");
            let committed = std::fs::read_to_string(root.join(FOLDER).join(&path));
            let committed = committed.unwrap_or_default();
            assert!(committed == code, "{path} is out of date; run `cargo xtask ops --methods`");
        }
    }
}
