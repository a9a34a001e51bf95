//! Calls any operator of torch, with arguments of valid and invalid kinds, on tensors of any sizes: the call is
//! lowered or refused. The fuzz target and a test share this.

use std::io::Cursor;

use coremill_compiler::{LowerOptions, Options, convert, lower};
use coremill_prepare::prepare;
use coremill_pt2::{Error, ErrorKind, ExportedProgram, Kind, Pt2, Schema};
use coremill_tensor::Buffer;
use coremill_zip::Writer;

use crate::draw::Draw;

const SCHEMAS: &str = include_str!("../../crates/pt2/src/schemas.txt");

const EXTENTS: [i64; 12] = [1, 1, 2, 2, 3, 4, 4, 5, 7, 8, 16, 33];
const HOSTILE_EXTENTS: [i64; 8] = [0, 1, 64, 4097, 60_000, 1 << 20, 1 << 31, i64::MAX];
const INTEGERS: [i64; 12] = [0, 0, 1, 1, 1, 2, 2, 3, 4, -1, -1, -2];
const HOSTILE_INTEGERS: [i64; 12] = [
    5,
    -7,
    31,
    100,
    4096,
    59_999,
    1 << 20,
    1 << 29,
    i32::MAX as i64,
    i32::MIN as i64,
    i64::MAX,
    i64::MIN,
];
const FLOATS: [&str; 8] = ["0.0", "1.0", "-0.5", "2.0", "1e-5", "1e300", "3.5", "-1e30"];
/// The result of `as_scalar_type` for the usual types, and for all others.
const TYPES: [i64; 6] = [7, 7, 7, 5, 12, 6];

/// All operators with a schema.
pub(crate) fn operators() -> Vec<Schema> {
    let schemas = SCHEMAS.lines().filter(|line| line.contains("::"));
    schemas.map(|line| Schema::parse(line).expect("the list is valid")).collect()
}

/// Chooses one of `count` operators from an input; the rest of the input is for the arguments.
pub(crate) fn chosen(draw: &mut Draw<'_>, count: usize) -> usize {
    (draw.below(256) << 8 | draw.below(256)) % count
}

/// Lowers a call in three ways. Returns how many succeeded; `None` if lowering did not reach the operator.
pub(crate) fn call(schema: &Schema, draw: &mut Draw<'_>) -> Option<usize> {
    let Some(program) = reach(schema, draw).ok()? else { return Some(0) };
    let mut accepted = 0;
    accepted += usize::from(convert(program.clone(), &Options::default()).is_ok());
    for portable in [false, true] {
        let options = LowerOptions { portable, ..LowerOptions::default() };
        let programs = vec![("forward".to_owned(), program.clone())];
        accepted += usize::from(lower(programs, &options).is_ok());
    }
    Some(accepted)
}

/// Prepares a program with one call. Returns `None` if the operator itself is refused, because it writes to its arguments
/// and has no functional form. An error is the reason why the call does not reach the lowering.
pub(crate) fn reach(
    schema: &Schema,
    draw: &mut Draw<'_>,
) -> Result<Option<ExportedProgram>, Error> {
    let archive = Pt2::from_bytes(Buffer::from(archive(schema, draw)))?;
    prepare(archive.read()?).map(Some).or_else(|error| {
        let written = error.kind() == ErrorKind::Unsupported
            && error.message().starts_with(&format!("`{}`", dotted(schema)));
        if written { Ok(None) } else { Err(error) }
    })
}

/// The operator as archives and errors call it: `aten.add.Tensor`.
fn dotted(schema: &Schema) -> String {
    let (name, overload) = schema.name.split_once('.').unwrap_or((&schema.name, "default"));
    format!("{}.{overload}", name.replace("::", "."))
}

struct Writing<'w, 'd> {
    draw: &'w mut Draw<'d>,
    hostile: bool,
    symbolic: bool,
    /// The rank and the sizes of the first tensor, which others have, too.
    sizes: Vec<String>,
    inputs: Vec<String>,
    values: Vec<String>,
    ints: Vec<String>,
    bools: Vec<String>,
}

fn tensor_argument(name: &str) -> String {
    format!(r#"{{"as_tensor":{{"name":"{name}"}}}}"#)
}

fn archive(schema: &Schema, draw: &mut Draw<'_>) -> Vec<u8> {
    let (hostile, symbolic) = (draw.one_in(3), draw.one_in(4));
    let (sizes, inputs, values, ints, bools) = Default::default();
    let mut writing = Writing { draw, hostile, symbolic, sizes, inputs, values, ints, bools };
    let rank = writing.draw.below(6);
    writing.sizes = (0..rank).map(|_| writing.extent()).collect();
    let mut arguments = Vec::new();
    for argument in &schema.arguments {
        let left_out = argument.default.is_some() && writing.draw.one_in(2);
        if !left_out {
            let value = writing.argument(&argument.kind);
            let name = &argument.name;
            arguments.push(format!(r#"{{"name":"{name}","arg":{value},"kind":1}}"#));
        }
    }
    let results: Vec<(String, String)> = (schema.returns.iter().enumerate())
        .map(|(index, result)| writing.result(index, &result.kind))
        .collect();
    // An operator without results may change its arguments, and tokens of assertions are not outputs.
    let given = writing.inputs.first().map(|name| tensor_argument(name));
    let is_given = writing.draw.one_in(8);
    let output = results.first().filter(|_| !is_given).map(|(_, first)| first.clone()).or(given);
    let output = output.unwrap_or_else(|| r#"{"as_none":[]}"#.to_owned());
    let results: Vec<String> = results.into_iter().map(|(result, _)| result).collect();
    let target = format!("torch.ops.{}", dotted(schema));
    let inputs: Vec<String> = writing.inputs.iter().map(|name| tensor_argument(name)).collect();
    let specs: Vec<String> =
        inputs.iter().map(|input| format!(r#"{{"user_input":{{"arg":{input}}}}}"#)).collect();
    let constraints = if symbolic { r#""s0":{"min_val":2,"max_val":64}"# } else { "" };
    let json = format!(
        r#"{{"graph_module":{{"graph":{{"inputs":[{}],"outputs":[{output}],"nodes":[{{"target":"{target}",
        "inputs":[{}],"outputs":[{}],"metadata":{{}},"name":"y0"}}],"tensor_values":{{{}}},"sym_int_values":{{{}}},
        "sym_bool_values":{{{}}},"sym_float_values":{{}},"custom_obj_values":{{}},"is_single_tensor_return":false}},
        "signature":{{"input_specs":[{}],"output_specs":[{{"user_output":{{"arg":{output}}}}}]}},
        "module_call_graph":[],"metadata":{{}},"treespec_namedtuple_fields":{{}}}},"opset_version":{{"aten":10}},
        "range_constraints":{{{constraints}}},"schema_version":{{"major":8,"minor":20}},"verifiers":["TRAINING"],
        "torch_version":"2.15.0","guards_code":[]}}"#,
        inputs.join(","),
        arguments.join(","),
        results.join(","),
        writing.values.join(","),
        writing.ints.join(","),
        writing.bools.join(","),
        specs.join(","),
    );
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for (name, part) in [
        ("a/models/model.json", json.as_str()),
        ("a/data/weights/model_weights_config.json", r#"{"config":{}}"#),
        ("a/data/constants/model_constants_config.json", r#"{"config":{}}"#),
        ("a/archive_format", "pt2"),
        ("a/archive_version", "0"),
    ] {
        writer.add(name, &[part.as_bytes()]).expect("writing to memory succeeds");
    }
    writer.finish().expect("writing to memory succeeds").into_inner()
}

impl Writing<'_, '_> {
    fn is_odd(&mut self) -> bool {
        self.hostile && self.draw.one_in(6)
    }

    fn extent(&mut self) -> String {
        if self.symbolic && self.draw.one_in(3) {
            return r#"{"as_expr":{"expr_str":"s0","hint":{"as_int":4}}}"#.to_owned();
        }
        let odd = self.is_odd();
        let extent = if odd { self.draw.of(&HOSTILE_EXTENTS) } else { self.draw.of(&EXTENTS) };
        format!(r#"{{"as_int":{extent}}}"#)
    }

    /// The type of a tensor: with the sizes of the first one, or with random changes of them.
    fn tensor(&mut self, name: &str) {
        let mut sizes = self.sizes.clone();
        match self.draw.below(6) {
            0 => sizes = (0..self.draw.below(6)).map(|_| self.extent()).collect(),
            1 if !sizes.is_empty() => {
                let at = self.draw.below(sizes.len());
                sizes[at] = self.extent();
            }
            2 => drop(sizes.pop()),
            _ => {}
        }
        let dtype =
            if self.is_odd() { 1 + self.draw.below(13) as i64 } else { self.draw.of(&TYPES) };
        let strides = vec![r#"{"as_int":1}"#; sizes.len()].join(",");
        self.values.push(format!(
            r#""{name}":{{"dtype":{dtype},"sizes":[{}],"requires_grad":false,"device":{{"type":"cpu","index":null}},
            "strides":[{strides}],"storage_offset":{{"as_int":0}},"layout":7}}"#,
            sizes.join(",")
        ));
    }

    /// A tensor argument: a new input, or an earlier tensor.
    fn input(&mut self) -> String {
        if !self.inputs.is_empty() && self.draw.one_in(4) {
            return self.draw.of(&self.inputs);
        }
        let name = format!("x{}", self.inputs.len());
        self.tensor(&name);
        self.inputs.push(name.clone());
        name
    }

    /// The results of a node, and the name of the first one in the graph's outputs.
    fn result(&mut self, index: usize, kind: &Kind) -> (String, String) {
        let name = format!("y{index}");
        let single = |argument: String| (argument.clone(), argument);
        match kind {
            Kind::Int => {
                let value = self.integer();
                let expression = r#"{"as_expr":{"expr_str":"u0","hint":null}}"#.to_owned();
                let known = format!(r#"{{"as_int":{value}}}"#);
                let value = if self.draw.one_in(2) { expression } else { known };
                self.ints.push(format!(r#""{name}":{value}"#));
                single(format!(r#"{{"as_sym_int":{{"as_name":"{name}"}}}}"#))
            }
            Kind::Bool => {
                let value = self.draw.one_in(2);
                self.bools.push(format!(r#""{name}":{{"as_bool":{value}}}"#));
                single(format!(r#"{{"as_sym_bool":{{"as_name":"{name}"}}}}"#))
            }
            Kind::Float | Kind::Scalar | Kind::Complex => {
                single(format!(r#"{{"as_sym_float":{{"as_name":"{name}"}}}}"#))
            }
            Kind::List(..) => {
                let names: Vec<String> =
                    (0..1 + self.draw.below(3)).map(|at| format!("{name}_{at}")).collect();
                names.iter().for_each(|name| self.tensor(name));
                let named: Vec<_> =
                    names.iter().map(|name| format!(r#"{{"name":"{name}"}}"#)).collect();
                let list = format!(r#"{{"as_tensors":[{}]}}"#, named.join(","));
                (list, tensor_argument(&names[0]))
            }
            _ => {
                self.tensor(&name);
                single(tensor_argument(&name))
            }
        }
    }

    fn integer(&mut self) -> i64 {
        if self.is_odd() { self.draw.of(&HOSTILE_INTEGERS) } else { self.draw.of(&INTEGERS) }
    }

    fn argument(&mut self, kind: &Kind) -> String {
        const WRONG: [Kind; 5] = [Kind::Int, Kind::Float, Kind::Bool, Kind::Text, Kind::Tensor];
        if self.is_odd() && self.draw.one_in(3) {
            let wrong = self.draw.of(&WRONG);
            return self.argument(&wrong);
        }
        match kind {
            Kind::Tensor => tensor_argument(&self.input()),
            Kind::Int => format!(r#"{{"as_int":{}}}"#, self.integer()),
            Kind::Float | Kind::Complex => format!(r#"{{"as_float":{}}}"#, self.draw.of(&FLOATS)),
            Kind::Bool => format!(r#"{{"as_bool":{}}}"#, self.draw.one_in(2)),
            Kind::Scalar => {
                let kind = self.draw.of(&[Kind::Int, Kind::Float, Kind::Bool]);
                self.argument(&kind)
            }
            Kind::Text => {
                let texts =
                    ["none", "mean", "sum", "floor", "trunc", "reflect", "tanh", "same", "ij"];
                format!(r#"{{"as_string":"{}"}}"#, self.draw.of(&texts))
            }
            Kind::ScalarType => format!(r#"{{"as_scalar_type":{}}}"#, self.draw.of(&TYPES)),
            Kind::MemoryFormat => r#"{"as_memory_format":1}"#.to_owned(),
            Kind::Layout => r#"{"as_layout":7}"#.to_owned(),
            Kind::Device => r#"{"as_device":{"type":"cpu","index":null}}"#.to_owned(),
            Kind::Optional(_) if self.draw.one_in(2) => r#"{"as_none":[]}"#.to_owned(),
            Kind::Optional(kind) => self.argument(kind),
            Kind::List(kind, length) => {
                let length = length.filter(|_| !self.draw.one_in(4)).map(|length| length as usize);
                let count = length.unwrap_or_else(|| self.draw.below(5)).min(8);
                self.list(kind, count)
            }
            Kind::Other(_) => r#"{"as_none":[]}"#.to_owned(),
        }
    }

    fn list(&mut self, kind: &Kind, count: usize) -> String {
        let (field, items): (_, Vec<String>) = match kind {
            Kind::Tensor => {
                let name = |_| format!(r#"{{"name":"{}"}}"#, self.input());
                ("as_tensors", (0..count).map(name).collect())
            }
            Kind::Optional(inner) if **inner == Kind::Tensor => {
                let item = |_| match self.draw.one_in(3) {
                    true => r#"{"as_none":[]}"#.to_owned(),
                    false => tensor_argument(&self.input()),
                };
                ("as_optional_tensors", (0..count).map(item).collect())
            }
            Kind::Float => {
                ("as_floats", (0..count).map(|_| self.draw.of(&FLOATS).to_owned()).collect())
            }
            Kind::Bool => {
                ("as_bools", (0..count).map(|_| self.draw.one_in(2).to_string()).collect())
            }
            _ => ("as_ints", (0..count).map(|_| self.integer().to_string()).collect()),
        };
        format!(r#"{{"{field}":[{}]}}"#, items.join(","))
    }
}
