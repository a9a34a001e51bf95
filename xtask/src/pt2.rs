//! `cargo xtask pt2-dump`: prints the contents of a `.pt2` archive, as read by coremill, as JSON for the
//! oracle tests.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use coremill_compiler as compiler;
use coremill_pt2::{
    Argument, Dialect, ExportedProgram, Graph, InputKind, Meta, Node, Output, OutputKind,
    SavedValue, Size, StoredValue, SymbolId, Symbolic, TensorMeta, TreeSpec,
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

/// The archives and options.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The archive
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print the program after the `prepare` stage
    #[arg(long)]
    prepared: bool,
    /// Print the program as calls of ExecuTorch's kernels
    #[arg(long, conflicts_with = "prepared")]
    portable: bool,
    /// Omit the weights, because reading all their bytes takes long
    #[arg(long)]
    no_weights: bool,
}

/// Prints one line for each file.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    for file in &arguments.files {
        let name = |error| format!("{}: {error}", file.display());
        let mut program = coremill_pt2::read(file).map_err(name)?;
        let mut archived = None;
        if arguments.prepared {
            program = coremill_prepare::prepare(program).map_err(name)?;
        }
        if arguments.portable {
            let prepared = coremill_prepare::prepare(program).map_err(name)?;
            archived = Some(prepared.tensors.keys().cloned().collect());
            match kernels_alone(prepared) {
                Ok(portable) => program = portable,
                Err(error) => {
                    // An error in one program does not prevent the output of others.
                    println!("{}", json!({ "refused": error.to_string() }));
                    continue;
                }
            }
        }
        let expressions = arguments.prepared || arguments.portable;
        let weights = !arguments.no_weights;
        let dump = Dump { program: &program, expressions, weights, archived };
        let dump = dump.program().map_err(name)?;
        serde_json::to_writer(io::stdout().lock(), &dump).map_err(|error| error.to_string())?;
        println!();
    }
    Ok(())
}

/// The program without any delegates.
fn kernels_alone(prepared: ExportedProgram) -> Result<ExportedProgram, compiler::Error> {
    let paired = compiler::pairs(&prepared).map_err(compiler::Error::Program)?;
    if let Some(refusal) = paired.iter().find_map(|paired| paired.refused.values().next()) {
        return Err(compiler::Error::Program(refusal.clone()));
    }
    let real = paired.map_or(prepared, |paired| paired.program);
    let outside = vec![true; real.graph.nodes.len()];
    Ok(compiler::out_variants::to_out_variants(real, &outside)?.program)
}

struct Dump<'a> {
    program: &'a ExportedProgram,
    /// Whether symbolic sizes are printed as expressions, in addition to their values.
    expressions: bool,
    /// Whether weights are printed.
    weights: bool,
    /// Names of weights in the archive; the bytes of other weights are printed. `None` if all are in the
    /// archive.
    archived: Option<HashSet<String>>,
}

/// Symbolic sizes are compared by value: each symbol gets two values, derived from the letters of its name.
const SCALES: [i64; 2] = [2, 4];

impl Dump<'_> {
    fn program(&self) -> Result<Value, coremill_pt2::Error> {
        let program = self.program;
        let mut tensors = Map::new();
        for (name, stored) in program.tensors.iter().filter(|_| self.weights) {
            let mut told = stored_tensor(stored)?;
            if let (Some(archived), StoredValue::Tensor(tensor)) = (&self.archived, stored)
                && !archived.contains(name)
            {
                told["bytes"] = json!(hexadecimal(&tensor.bytes()?));
            }
            tensors.insert(name.clone(), told);
        }
        let signature = program.modules.iter().find_map(|module| module.signature.as_ref());
        let samples = match program.sample_inputs()? {
            None => Value::Null,
            Some(samples) => {
                let positional: Result<Vec<_>, _> = samples.positional.iter().map(sample).collect();
                json!([positional?, sample(&SavedValue::Dict(samples.keywords))?])
            }
        };
        Ok(json!({
            "schema": program.schema_version,
            "dialect": match &program.dialect {
                Dialect::Training => "TRAINING",
                Dialect::Aten => "ATEN",
                Dialect::Edge => "EDGE",
                Dialect::Other(name) => name,
            },
            "symbols": program.symbols.iter().filter(|symbol| symbol.minimum.is_some() || symbol.maximum.is_some())
                .map(|symbol| (symbol.name.clone(), json!([symbol.minimum, symbol.maximum]))).collect::<Map<_, _>>(),
            "inputs": program.inputs.iter().zip(&program.graph.inputs).map(|(kind, argument)| {
                let (kind, name, persistent) = match kind {
                    InputKind::User => ("user", None, None),
                    InputKind::Constant(name) => ("constant", Some(name), None),
                    InputKind::Parameter(name) => ("parameter", Some(name), None),
                    InputKind::Buffer { name, persistent } => ("buffer", Some(name), Some(*persistent)),
                    InputKind::TensorConstant(name) => ("tensor_constant", Some(name), None),
                    InputKind::CustomObject(name) => ("custom_object", Some(name), None),
                    InputKind::Token => ("token", None, None),
                };
                json!([kind, name, persistent, self.argument(&program.graph, argument)])
            }).collect::<Vec<_>>(),
            "outputs": program.outputs.iter().zip(&program.graph.outputs).map(|(kind, argument)| {
                let (kind, name) = match kind {
                    OutputKind::User => ("user", None),
                    OutputKind::Loss => ("loss", None),
                    OutputKind::BufferMutation(name) => ("buffer_mutation", Some(name)),
                    OutputKind::ParameterMutation(name) => ("parameter_mutation", Some(name)),
                    OutputKind::UserInputMutation(name) => ("user_input_mutation", Some(name)),
                    OutputKind::GradientToParameter(name) => ("gradient_to_parameter", Some(name)),
                    OutputKind::GradientToUserInput(name) => ("gradient_to_user_input", Some(name)),
                    OutputKind::Token => ("token", None),
                };
                json!([kind, name, self.argument(&program.graph, argument)])
            }).collect::<Vec<_>>(),
            "graph": self.graph(&program.graph),
            "tensors": tensors,
            "in_spec": signature.map(|signature| tree(&signature.inputs)),
            "out_spec": signature.map(|signature| tree(&signature.outputs)),
            "modules": program.modules.iter().map(|module| &module.path).collect::<Vec<_>>(),
            "samples": samples,
        }))
    }

    fn graph(&self, graph: &Graph) -> Value {
        let values: Map<_, _> =
            graph.values.iter().map(|value| (value.name.clone(), self.meta(&value.meta))).collect();
        json!({
            "inputs": graph.inputs.iter().map(|input| self.argument(graph, input)).collect::<Vec<_>>(),
            "outputs": graph.outputs.iter().map(|output| self.argument(graph, output)).collect::<Vec<_>>(),
            "nodes": graph.nodes.iter().map(|node| self.node(graph, node)).collect::<Vec<_>>(),
            "values": values,
        })
    }

    fn node(&self, graph: &Graph, node: &Node) -> Value {
        let name = |id| json!(graph.value(id).name);
        let outputs = node.outputs.iter().map(|output| match output {
            Output::Value(id) => name(*id),
            Output::List(ids) => ids.iter().map(|id| name(*id)).collect(),
            Output::Unused | Output::None => Value::Null,
        });
        let keywords = node.keywords.iter();
        let source = node.origin.source();
        json!({
            "target": node.target.to_string(),
            "arguments": node.arguments.iter().map(|one| self.argument(graph, one)).collect::<Vec<_>>(),
            "keywords": keywords.map(|(key, one)| (key.clone(), self.argument(graph, one))).collect::<Map<_, _>>(),
            "outputs": outputs.collect::<Vec<_>>(),
            "module": node.origin.module_path(),
            "class": node.origin.module_class(),
            "source": source.map(|source| json!([source.file, source.line])),
        })
    }

    fn argument(&self, graph: &Graph, argument: &Argument) -> Value {
        match argument {
            Argument::None => Value::Null,
            Argument::Value(id) => json!({ "value": graph.value(*id).name }),
            Argument::Int(value) => json!({ "int": value }),
            Argument::Float(value) => json!({ "float": float(*value) }),
            Argument::Bool(value) => json!(value),
            Argument::Complex(real, imaginary) => {
                json!({ "complex": [float(*real), float(*imaginary)] })
            }
            Argument::Text(text) => json!({ "text": text }),
            Argument::ScalarType(dtype) => json!({ "dtype": dtype.name() }),
            Argument::MemoryFormat(format) => json!({ "memory_format": format.name() }),
            Argument::Layout(layout) => json!({ "layout": layout.name() }),
            Argument::Device(device) => json!({ "device": device.to_string() }),
            Argument::Graph(inner) => json!({ "graph": self.graph(&inner.graph) }),
            Argument::List(items) => items.iter().map(|item| self.argument(graph, item)).collect(),
            Argument::Map(items) => {
                let items =
                    items.iter().map(|(key, item)| (key.clone(), self.argument(graph, item)));
                json!({ "map": items.collect::<Map<_, _>>() })
            }
            Argument::Operator(name) => json!({ "operator": name }),
        }
    }

    fn meta(&self, meta: &Meta) -> Value {
        match meta {
            Meta::Tensor(meta) => self.tensor(meta),
            Meta::Int(size) => json!({ "int": self.size(size) }),
            Meta::Float(_) => json!("float"),
            Meta::Bool(_) => json!("bool"),
            Meta::CustomObject(class) => json!({ "object": class }),
            Meta::Token => json!("token"),
        }
    }

    fn tensor(&self, meta: &TensorMeta) -> Value {
        json!({
            "dtype": meta.dtype.name(),
            "sizes": meta.sizes.iter().map(|size| self.size(size)).collect::<Vec<_>>(),
            "strides": meta.strides.iter().map(|size| self.size(size)).collect::<Vec<_>>(),
            "layout": meta.layout.name(),
            "device": meta.device.to_string(),
        })
    }

    fn size(&self, size: &Size) -> Value {
        match size {
            Size::Fixed(value) => json!(value),
            Size::Symbolic(symbolic) => {
                let at = SCALES.map(|scale| self.evaluate(symbolic, scale));
                if !self.expressions {
                    return json!({ "at": at });
                }
                let text = symbolic.expression.display(&self.program.symbols).to_string();
                json!({ "at": at, "expression": text })
            }
        }
    }

    fn evaluate(&self, symbolic: &Symbolic, scale: i64) -> Option<i64> {
        let value = |id: SymbolId| {
            let letters = self.program.symbols.get(id).name.bytes();
            Some(scale * (letters.map(i64::from).sum::<i64>() % 50 + 3))
        };
        symbolic.expression.evaluate(&value)?.integer()
    }
}

fn float(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!(value.to_string().to_lowercase()) }
}

fn stored_tensor(stored: &StoredValue) -> Result<Value, coremill_pt2::Error> {
    Ok(match stored {
        StoredValue::Tensor(tensor) => {
            json!({
                "dtype": tensor.dtype.name(),
                "sizes": tensor.sizes,
                "strides": tensor.strides,
                "offset": tensor.offset,
                "sha256": hexadecimal(&Sha256::digest(tensor.bytes()?)),
            })
        }
        StoredValue::Missing { dtype, sizes } => json!({ "missing": dtype.name(), "sizes": sizes }),
        StoredValue::Object(bytes) => json!({ "object": bytes.len() }),
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tree(spec: &TreeSpec) -> Value {
    match spec {
        TreeSpec::Leaf => Value::Null,
        TreeSpec::Node { kind, context, children } => {
            json!([kind, context, children.iter().map(tree).collect::<Vec<_>>()])
        }
    }
}

fn sample(saved: &SavedValue) -> Result<Value, coremill_pt2::Error> {
    let all = |items: &[SavedValue]| items.iter().map(sample).collect::<Result<Vec<_>, _>>();
    Ok(match saved {
        SavedValue::None => Value::Null,
        SavedValue::Bool(value) => json!(value),
        SavedValue::Int(value) => json!({ "int": value }),
        SavedValue::Float(value) => json!({ "float": float(*value) }),
        SavedValue::Complex(real, imaginary) => {
            json!({ "complex": [float(*real), float(*imaginary)] })
        }
        SavedValue::Text(text) => json!({ "text": text }),
        SavedValue::Bytes(bytes) => json!({ "bytes": bytes }),
        SavedValue::Tensor(stored) => stored_tensor(stored)?,
        SavedValue::ScalarType(dtype) => json!({ "dtype": dtype.name() }),
        SavedValue::Device(device) => json!({ "device": device }),
        SavedValue::Tuple(items) => json!({ "tuple": all(items)? }),
        SavedValue::List(items) => json!(all(items)?),
        SavedValue::Dict(pairs) => {
            let pair =
                |(key, value): &(SavedValue, SavedValue)| Ok(json!([sample(key)?, sample(value)?]));
            json!({ "dict": pairs.iter().map(pair).collect::<Result<Vec<_>, _>>()? })
        }
    })
}
