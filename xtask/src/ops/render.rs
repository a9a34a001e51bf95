//! The Rust code of the op table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::str::FromStr as _;

use coremill_mil::ir::Opset;
use coremill_tensor::DType;

use super::registry::{Input, Kind, Operation, Row, Rule};

const HEAD: &str = "//! GeneratedFile by `cargo xtask ops`; do not edit.\n\n";

/// Sets of element types that have a name in the table. Others are spelled out.
const SETS: [(&str, &[DType]); 20] = [
    ("BOOL", &[DType::Bool]),
    ("BYTE", &[DType::Int8, DType::UInt8]),
    ("FLOAT", &[DType::Fp16, DType::Fp32]),
    ("FLOAT_BYTE", &[DType::Fp16, DType::Fp32, DType::Int8, DType::UInt8]),
    ("FLOAT_INT32", &[DType::Fp16, DType::Fp32, DType::Int32]),
    ("FLOAT_INT32_BOOL", &[DType::Bool, DType::Fp16, DType::Fp32, DType::Int32]),
    (
        "FLOAT_BYTE_NIBBLE",
        &[DType::Fp16, DType::Fp32, DType::Int4, DType::Int8, DType::UInt4, DType::UInt8],
    ),
    ("FP16", &[DType::Fp16]),
    ("FP32", &[DType::Fp32]),
    ("FP32_INT32", &[DType::Fp32, DType::Int32]),
    ("INT32", &[DType::Int32]),
    ("INTEGER", &[DType::Int8, DType::Int16, DType::Int32, DType::UInt8, DType::UInt16]),
    (
        "LUT_INDEX",
        &[DType::UInt1, DType::UInt2, DType::UInt3, DType::UInt4, DType::UInt6, DType::UInt8],
    ),
    (
        "NUMBER",
        &[
            DType::Fp16,
            DType::Fp32,
            DType::Int8,
            DType::Int16,
            DType::Int32,
            DType::UInt8,
            DType::UInt16,
        ],
    ),
    (
        "NUMBER_BOOL",
        &[
            DType::Bool,
            DType::Fp16,
            DType::Fp32,
            DType::Int8,
            DType::Int16,
            DType::Int32,
            DType::UInt8,
            DType::UInt16,
        ],
    ),
    ("SIGNED", &[DType::Int8, DType::Int16, DType::Int32]),
    ("STRING", &[DType::String]),
    ("UINT1", &[DType::UInt1]),
    ("UINT32", &[DType::UInt32]),
    ("UINT8", &[DType::UInt8]),
];

/// The files of the table by their path below `crates/mil/src/ops`, not yet formatted.
pub(super) fn files(operations: &[Operation]) -> Result<BTreeMap<String, String>, String> {
    let mut operations: Vec<&Operation> = operations.iter().collect();
    operations.sort_by(|left, right| left.name.cmp(&right.name));
    let mut families: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for &operation in &operations {
        families.entry(family(operation)).or_default().push(operation);
    }
    let mut files = BTreeMap::new();
    files.insert("kind.rs".to_owned(), kinds(&operations));
    files.insert("entries.rs".to_owned(), entries(&operations));
    files.insert("table/mod.rs".to_owned(), modules(families.keys().copied()));
    files.insert("table/dtypes.rs".to_owned(), sets());
    for (name, members) in families {
        let path = format!("table/{name}.rs");
        if files.insert(path.clone(), table(&members)?).is_some() {
            return Err(format!("a family is called `{name}`, and so is another file"));
        }
    }
    Ok(files)
}

fn family(operation: &Operation) -> &str {
    match operation.family.as_str() {
        // coremltools moved the compressed constants to `compression` when iOS18 revised them; the one that was not
        // revised stayed behind.
        "constexpr_ops" => "compression",
        family => family,
    }
}

fn kinds(operations: &[&Operation]) -> String {
    let mut code = format!(
        "{HEAD}/// The operations of MIL.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]\npub enum OpKind {{\n"
    );
    for operation in operations {
        write(&mut code, format_args!("/// `{}`\n{},\n", operation.name, variant(operation)));
    }
    code.push_str("}\n");
    code
}

fn entries(operations: &[&Operation]) -> String {
    let families: BTreeSet<&str> = operations.iter().map(|operation| family(operation)).collect();
    let mut code = format!(
        "{HEAD}use super::OpKind;\nuse super::declare::{{Entry, entry}};\nuse super::table::{{{}}};\n\n\
         /// The operations in the order of [`OpKind`], which is that of their names.\n\
         pub(super) static ENTRIES: [Entry; {}] = [\n",
        families.into_iter().collect::<Vec<_>>().join(", "),
        operations.len()
    );
    for operation in operations {
        let family = family(operation);
        write(
            &mut code,
            format_args!(
                "entry(OpKind::{}, \"{}\", \"{family}\", {family}::{}),\n",
                variant(operation),
                operation.name,
                constant(operation)
            ),
        );
    }
    code.push_str("];\n");
    code
}

fn modules<'a>(families: impl Iterator<Item = &'a str>) -> String {
    let mut code = format!("{HEAD}mod dtypes;\n\n");
    for family in families {
        write(&mut code, format_args!("pub(super) mod {family};\n"));
    }
    code
}

fn sets() -> String {
    let mut code = format!("{HEAD}use coremill_tensor::DType;\n\n");
    for (name, dtypes) in SETS {
        write(
            &mut code,
            format_args!("pub(super) const {name}: &[DType] = {};\n", spelled(dtypes)),
        );
    }
    code
}

/// The code of a family, and what of it has to be imported.
#[derive(Default)]
struct Family {
    code: String,
    words: BTreeSet<&'static str>,
    sets: BTreeSet<&'static str>,
    defaults: BTreeSet<&'static str>,
    spells_dtypes: bool,
}

fn table(operations: &[&Operation]) -> Result<String, String> {
    let mut family = Family::default();
    for operation in operations {
        let describe =
            |error: String| format!("`{}` in coremltools' registry: {error}", operation.name);
        let name = constant(operation);
        write(&mut family.code, format_args!("\npub(in crate::ops) const {name}: &[OpRow] = &[\n"));
        for (opset, row) in newest_by_opset(operation).map_err(describe)? {
            family.row(operation, opset, row).map_err(describe)?;
        }
        family.code.push_str("];\n");
    }
    let list = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(", ");
    let mut head = HEAD.to_owned();
    if family.spells_dtypes {
        head.push_str("use coremill_tensor::DType;\n\n");
    }
    if !family.sets.is_empty() {
        write(&mut head, format_args!("use super::dtypes::{{{}}};\n", list(&family.sets)));
    }
    if !family.defaults.is_empty() {
        write(
            &mut head,
            format_args!("use crate::ops::DefaultValue::{{{}}};\n", list(&family.defaults)),
        );
    }
    write(&mut head, format_args!("use crate::ops::declare::{{{}}};\n", list(&family.words)));
    head.push_str("use crate::ops::{OpKind, OpRow, Opset");
    if family.code.contains("Accepts::") {
        head.push_str(", Accepts");
    }
    head.push_str("};\n");
    Ok(head + &family.code)
}

/// The rows of an operation, oldest first. ML Programs start with iOS15: of what was before, the newest counts.
fn newest_by_opset(operation: &Operation) -> Result<BTreeMap<Opset, &Row>, String> {
    let mut rows = BTreeMap::new();
    for row in &operation.rows {
        let opset = match row.opset.as_str() {
            "iOS13" | "iOS14" | "iOS15" => Opset::Ios15,
            "iOS16" => Opset::Ios16,
            "iOS17" => Opset::Ios17,
            "iOS18" => Opset::Ios18,
            other => return Err(format!("the opset `{other}` is not known to this command")),
        };
        rows.insert(opset, row);
    }
    Ok(rows)
}

impl Family {
    fn row(&mut self, operation: &Operation, opset: Opset, row: &Row) -> Result<(), String> {
        let kind = variant(operation);
        let blocks: Vec<String> = (row.inputs.iter())
            .filter(|input| input.kind == Kind::Block)
            .map(|input| format!("\"{}\"", role(&input.name)))
            .collect();
        let word = if blocks.is_empty() { "row" } else { "row_with_blocks" };
        self.words.insert(word);
        write(&mut self.code, format_args!("{word}(OpKind::{kind}, Opset::{opset:?}, "));
        if !blocks.is_empty() {
            write(&mut self.code, format_args!("&[{}], ", blocks.join(", ")));
        }
        self.code.push_str("&[\n");
        for input in &row.inputs {
            self.parameter(input).map_err(|error| format!("`{}`: {error}", input.name))?;
        }
        self.code.push_str("]),\n");
        Ok(())
    }

    fn parameter(&mut self, input: &Input) -> Result<(), String> {
        let Some(accepts) = self.accepts(input)? else { return Ok(()) };
        let name = &input.name;
        if input.required {
            if input.default.is_some() {
                return Err("it is required and has a default".to_owned());
            }
            self.words.insert("required");
            write(&mut self.code, format_args!("required(\"{name}\", {accepts})"));
        } else {
            let default = self.default_value(input.default.as_ref())?;
            self.words.insert("optional");
            write(&mut self.code, format_args!("optional(\"{name}\", {accepts}, {default})"));
        }
        self.code.push_str(if input.constant { ".constant(),\n" } else { ",\n" });
        Ok(())
    }

    /// What the parameter accepts; none if it is not a parameter in files: blocks have a place of their own, and inputs
    /// that coremltools calls internal are Python objects, or the value of a constant, which is an attribute.
    fn accepts(&mut self, input: &Input) -> Result<Option<String>, String> {
        Ok(Some(match input.kind {
            Kind::Tensor => {
                let mut dtypes = (input.dtypes.iter())
                    .map(|name| DType::from_str(name).map_err(|error| error.to_string()))
                    .collect::<Result<Vec<_>, _>>()?;
                dtypes.sort();
                let dtypes = self.dtypes(&dtypes);
                match &input.variable {
                    None => {
                        self.words.insert("tensor");
                        format!("tensor({dtypes})")
                    }
                    Some(variable) => {
                        self.words.insert("typed");
                        format!("typed(\"{variable}\", {dtypes})")
                    }
                }
            }
            Kind::List => "Accepts::List".to_owned(),
            Kind::Values => "Accepts::Values".to_owned(),
            Kind::State => "Accepts::State".to_owned(),
            Kind::Any => "Accepts::Any".to_owned(),
            Kind::Block | Kind::Internal => return Ok(None),
        }))
    }

    fn dtypes(&mut self, dtypes: &[DType]) -> String {
        match SETS.iter().find(|(_, set)| *set == dtypes) {
            Some((name, _)) => {
                self.sets.insert(name);
                (*name).to_owned()
            }
            None => {
                self.spells_dtypes = true;
                spelled(dtypes)
            }
        }
    }

    fn default_value(&mut self, default: Option<&Rule>) -> Result<String, String> {
        let (word, code) = match default {
            None => ("Absent", "Absent".to_owned()),
            Some(Rule::Bool(value)) => ("Bool", format!("Bool({value})")),
            Some(Rule::Int(value)) => ("Int", format!("Int({value})")),
            Some(Rule::Float(value)) => ("Float", format!("Float({value:?})")),
            Some(Rule::Text(text)) => ("Text", format!("Text({text:?})")),
            Some(Rule::Ints(values)) => ("Ints", format!("Ints(&{values:?})")),
            Some(Rule::FloatByDtype { of, fp16, fp32 }) if of == "x" => {
                ("FloatByType", format!("FloatByType {{ fp16: {fp16:?}, fp32: {fp32:?} }}"))
            }
            Some(Rule::PerSpatialDim { value, times }) => {
                ("PerSpatialDim", format!("PerSpatialDim {{ value: {value}, times: {times} }}"))
            }
            Some(Rule::AxesOf(of)) if of == "x" => ("AllAxes", "AllAxes".to_owned()),
            Some(Rule::IndicesOf(of)) if of == "boxes" => ("IndexPerBox", "IndexPerBox".to_owned()),
            Some(Rule::ZerosOf(of)) if of == "weight" => {
                ("ZeroPerOutput", "ZeroPerOutput".to_owned())
            }
            Some(
                Rule::FloatByDtype { of, .. }
                | Rule::AxesOf(of)
                | Rule::IndicesOf(of)
                | Rule::ZerosOf(of),
            ) => {
                return Err(format!(
                    "its default depends on `{of}` in a way that `DefaultValue` cannot say; add a variant"
                ));
            }
        };
        self.defaults.insert(word);
        Ok(code)
    }
}

fn spelled(dtypes: &[DType]) -> String {
    let names: Vec<String> = dtypes.iter().map(|dtype| format!("DType::{dtype:?}")).collect();
    format!("&[{}]", names.join(", "))
}

/// The role of the block that a function of coremltools' builder makes: `true` for `_true_fn`.
fn role(name: &str) -> &str {
    name.trim_start_matches('_').trim_end_matches("_fn")
}

fn variant(operation: &Operation) -> String {
    let capitalized = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + rest
    };
    operation.name.split('_').map(capitalized).collect()
}

fn constant(operation: &Operation) -> String {
    operation.name.trim_matches('_').to_uppercase()
}

fn write(code: &mut String, text: std::fmt::Arguments) {
    // Writing to a string does not fail.
    let _ = code.write_fmt(text);
}
