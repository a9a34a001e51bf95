//! Reads the three layouts of the zip archive and assembles a program from its entries.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use coremill_io::unknown_name;
use coremill_tensor::Buffer;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, escape_truncated};
use crate::graph::{self, Context};
use crate::program::{
    Argument, CallSignature, Constraint, Dialect, ExportedProgram, Graph, InputKind, Module,
    OutputKind, SampleInputs, Samples,
};
use crate::saved::{self, SavedValue};
use crate::symbol::Expression;
use crate::tensor::{StoredValue, UncheckedTensor};
use crate::tree::TreeSpec;
use crate::wire;
use crate::zip::Archive;

/// Entry that identifies the flat layout of torch 2.5 to 2.7 and ExecuTorch, with all entries at the root.
const FLAT_PROGRAM: &str = "serialized_exported_program.json";
const FLAT_SAMPLES: &str = "serialized_example_inputs.pt";
const FLAT_EXTRA: &str = "extra_files/";

/// Default name in `torch.export.save`.
const DEFAULT_NAME: &str = "model";

/// Stack size of a thread, equal to the usual size of the main thread.
const STACK_BYTES: usize = 8 << 20;

/// Major versions of the schema: of ExecuTorch, of torch 2.5, and of later versions of torch.
const MAJORS: [u64; 3] = [5, 7, 8];

/// An opened `.pt2` archive.
#[derive(Debug)]
pub struct Pt2 {
    archive: Archive,
    layout: Layout,
    bytes: Buffer,
}

/// Contents of an archive other than the JSON of the program.
struct ArchiveExtras {
    tensors: BTreeMap<String, StoredValue>,
    samples: Samples,
    extra_files: BTreeMap<String, Buffer>,
}

#[derive(Debug)]
enum Layout {
    Flat,
    /// All entries are below a folder with the original name of the file.
    Nested {
        root: String,
        programs: Vec<String>,
    },
}

impl Pt2 {
    /// Opens an archive file. It stays mapped as long as data read from it is in use.
    pub fn open(path: &Path) -> Result<Pt2, Error> {
        let bytes = Buffer::map(path).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot read `{}`: {error}", path.display()))
        })?;
        Pt2::from_bytes(bytes)
    }

    /// Opens an archive in memory.
    pub fn from_bytes(bytes: Buffer) -> Result<Pt2, Error> {
        let archive = Archive::open(bytes.clone())?;
        let layout = layout(&archive)?;
        Ok(Pt2 { archive, layout, bytes })
    }

    /// The names of the programs in the archive.
    pub fn programs(&self) -> Vec<&str> {
        match &self.layout {
            Layout::Flat => vec![DEFAULT_NAME],
            Layout::Nested { programs, .. } => programs.iter().map(String::as_str).collect(),
        }
    }

    /// Reads the only program, or the program with the default name of `torch.export.save`.
    pub fn read(&self) -> Result<ExportedProgram, Error> {
        match self.programs().as_slice() {
            [only] => self.read_program(only),
            several if several.contains(&DEFAULT_NAME) => self.read_program(DEFAULT_NAME),
            several => Err(Error::unsupported(format!(
                "the archive has the programs {}, but none is called `{DEFAULT_NAME}`",
                quoted(several)
            ))
            .with_hint("name the program to read")),
        }
    }

    /// Reads the program with this name.
    pub fn read_program(&self, name: &str) -> Result<ExportedProgram, Error> {
        if !self.programs().contains(&name) {
            return Err(Error::unsupported(unknown_name("program", name, self.programs())));
        }
        let program = match &self.layout {
            Layout::Flat => self.flat(),
            Layout::Nested { root, .. } => self.nested(root, name),
        };
        // If the file was truncated while it was parsed, report that rather than a fault of the archive.
        self.bytes.check().map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        program
    }

    fn flat(&self) -> Result<ExportedProgram, Error> {
        let json = self.archive.get(FLAT_PROGRAM)?;
        let beside = || {
            let mut tensors = BTreeMap::new();
            for entry in ["serialized_state_dict.pt", "serialized_constants.pt"] {
                self.saved_tensors(entry, &mut tensors)?;
            }
            let samples = self.samples(FLAT_SAMPLES)?;
            Ok(ArchiveExtras { tensors, samples, extra_files: self.extra(FLAT_EXTRA)? })
        };
        // Python's JSON contains unquoted words for non-finite numbers, which standard JSON does not allow.
        together(FLAT_PROGRAM, &beside, || program(&quote_words(json.as_bytes()), FLAT_PROGRAM))
    }

    fn nested(&self, root: &str, name: &str) -> Result<ExportedProgram, Error> {
        let order_entry = format!("{root}/byteorder");
        if let Some(order) = self.archive.find(&order_entry)?
            && order.as_bytes().trim_ascii() != b"little"
        {
            return Err(Error::unsupported(
                "the weights are big-endian; only little-endian weights are supported",
            )
            .in_entry(&order_entry));
        }
        let beside = || {
            let mut tensors = BTreeMap::new();
            for kind in ["weights", "constants"] {
                let folder = format!("{root}/data/{kind}");
                let config = format!("{folder}/{name}_{kind}_config.json");
                match self.archive.find(&config)? {
                    Some(json) => self.payloads(&folder, &config, &json, &mut tensors)?,
                    // torch 2.8 stores pickles instead.
                    None => self.saved_tensors(&format!("{folder}/{name}.pt"), &mut tensors)?,
                }
            }
            let samples = self.samples(&format!("{root}/data/sample_inputs/{name}.pt"))?;
            let extra_files = self.extra(&format!("{root}/extra/"))?;
            Ok(ArchiveExtras { tensors, samples, extra_files })
        };
        let entry = format!("{root}/models/{name}.json");
        together(&entry, &beside, || program(self.archive.get(&entry)?.as_bytes(), &entry))
    }

    fn payloads(
        &self,
        folder: &str,
        entry: &str,
        json: &Buffer,
        tensors: &mut BTreeMap<String, StoredValue>,
    ) -> Result<(), Error> {
        let config: wire::PayloadConfig = parse(json.as_bytes(), entry)?;
        let context = Context::new(8);
        for (name, payload) in config.config {
            let read = || -> Result<StoredValue, Error> {
                let path = format!("{folder}/{}", payload.path_name);
                let bytes = self.archive.get(&path)?;
                let meta = match payload.tensor_meta {
                    Some(meta) if !payload.use_pickle => meta,
                    _ => return Ok(StoredValue::Object(bytes)),
                };
                let claim = UncheckedTensor {
                    dtype: context.scalar_type(meta.dtype)?,
                    sizes: fixed(meta.sizes)?,
                    strides: fixed(meta.strides)?,
                    offset: fixed(vec![meta.storage_offset])?[0],
                };
                claim.check(bytes, &path, payload.is_param).map_err(|error| error.in_entry(&path))
            };
            let stored = read().map_err(|error| error.in_entry(entry).in_node(&name))?;
            insert(tensors, name, stored).map_err(|error| error.in_entry(entry))?;
        }
        Ok(())
    }

    /// The tensors of a pickled dictionary. An absent or empty entry contains none.
    fn saved_tensors(
        &self,
        entry: &str,
        tensors: &mut BTreeMap<String, StoredValue>,
    ) -> Result<(), Error> {
        let Some(bytes) = self.archive.find(entry)?.filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        let wrong =
            |what: &str| Error::malformed(format!("{what}; expected a dictionary of tensors"));
        let saved = saved::read(bytes, entry).map_err(|error| error.in_entry(entry))?;
        let SavedValue::Dict(pairs) = saved else {
            return Err(wrong("the pickle is not a dictionary").in_entry(entry));
        };
        for (key, value) in pairs {
            match (key, value) {
                (SavedValue::Text(name), SavedValue::Tensor(stored)) => {
                    insert(tensors, name, stored).map_err(|error| error.in_entry(entry))?;
                }
                (key, _) => {
                    let what = format!("the value of {key:?} in the pickle is not a tensor");
                    return Err(wrong(&what).in_entry(entry));
                }
            }
        }
        Ok(())
    }

    fn samples(&self, entry: &str) -> Result<Samples, Error> {
        let bytes = self.archive.find(entry)?.filter(|bytes| !bytes.is_empty());
        Ok(bytes.map_or(Samples::None, |bytes| Samples::Pickled(entry.to_owned(), bytes)))
    }

    fn extra(&self, prefix: &str) -> Result<BTreeMap<String, Buffer>, Error> {
        let mut files = BTreeMap::new();
        for name in self.archive.names() {
            if let Some(file) = name.strip_prefix(prefix).filter(|file| !file.is_empty()) {
                files.insert(file.to_owned(), self.archive.get(name)?);
            }
        }
        Ok(files)
    }
}

/// Reads the program of a `.pt2` file.
pub fn read(path: &Path) -> Result<ExportedProgram, Error> {
    Pt2::open(path)?.read()
}

impl ExportedProgram {
    /// Builds a program in memory from the output of torch's serializer and the other contents of an archive.
    ///
    /// A tensor of a Python class is a [`StoredValue::Object`] without bytes; its parts are separate entries
    /// such as `weight.qdata`.
    pub fn from_parts(
        program: wire::ExportedProgram,
        tensors: BTreeMap<String, StoredValue>,
        samples: Option<SampleInputs>,
    ) -> Result<ExportedProgram, Error> {
        let program = build(program)?;
        check_tensors(&program.inputs, &tensors)?;
        let samples = samples.map_or(Samples::None, Samples::Given);
        Ok(ExportedProgram { tensors, samples, ..program })
    }

    /// The sample inputs of the export. They are read on demand, because they may contain objects of Python
    /// classes. These are errors, which must not affect the program.
    pub fn sample_inputs(&self) -> Result<Option<SampleInputs>, Error> {
        let (entry, bytes) = match &self.samples {
            Samples::None => return Ok(None),
            Samples::Given(samples) => return Ok(Some(samples.clone())),
            Samples::Pickled(entry, bytes) => (entry, bytes),
        };
        let saved = saved::read(bytes.clone(), entry).map_err(|error| error.in_entry(entry))?;
        let wrong = || {
            Error::malformed("the sample inputs are not a pair of a tuple and a dictionary")
                .in_entry(entry)
        };
        match saved {
            SavedValue::None => Ok(None),
            SavedValue::Tuple(pair) => match <[SavedValue; 2]>::try_from(pair) {
                Ok(
                    [
                        SavedValue::Tuple(positional) | SavedValue::List(positional),
                        SavedValue::Dict(keywords),
                    ],
                ) => Ok(Some(SampleInputs { positional, keywords })),
                Ok([SavedValue::None, _]) => Ok(None),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{}`", escape_truncated(name))).collect::<Vec<_>>().join(", ")
}

fn layout(archive: &Archive) -> Result<Layout, Error> {
    if archive.contains(FLAT_PROGRAM) {
        return Ok(Layout::Flat);
    }
    // The root has the original name of the file, which may differ from its current name.
    let root = archive.names().find_map(|name| name.split_once("/models/")).map(|(root, _)| root);
    let Some(root) = root else {
        let found: Vec<_> = archive.names().take(3).collect();
        return Err(Error::unsupported(format!(
            "the archive has neither `{FLAT_PROGRAM}` nor a folder `models`; it begins with {}",
            if found.is_empty() { "nothing".to_owned() } else { quoted(&found) }
        ))
        .with_hint(
            "pass a file written by `torch.export.save` or `executorch.exir.save`; state dictionaries \
             and TorchScript are other formats",
        ));
    };
    let prefix = format!("{root}/models/");
    let programs = archive.names().filter_map(|name| {
        name.strip_prefix(&prefix)?.strip_suffix(".json").filter(|name| !name.contains('/'))
    });
    let programs: Vec<String> = programs.map(str::to_owned).collect();
    if programs.is_empty() {
        return Err(Error::unsupported("the archive has no program in its folder `models`"));
    }
    Ok(Layout::Nested { root: root.to_owned(), programs })
}

fn insert(
    tensors: &mut BTreeMap<String, StoredValue>,
    name: String,
    stored: StoredValue,
) -> Result<(), Error> {
    match tensors.entry(name) {
        Entry::Vacant(vacant) => {
            vacant.insert(stored);
            Ok(())
        }
        Entry::Occupied(known) => {
            let name = escape_truncated(known.key());
            Err(Error::malformed(format!("tensor `{name}` is stored twice")))
        }
    }
}

fn fixed(sizes: Vec<wire::SymInt>) -> Result<Vec<i64>, Error> {
    let fixed = sizes.into_iter().map(|size| match size {
        wire::SymInt::AsInt(value) => Ok(value),
        wire::SymInt::AsExpr(expression) => Err(Error::malformed(format!(
            "a stored tensor has the size `{}`; stored sizes must be integers",
            escape_truncated(&expression.expr_str)
        ))),
    });
    fixed.collect()
}

fn parse<T: DeserializeOwned>(json: &[u8], entry: &str) -> Result<T, Error> {
    // The encoding was checked for the whole text, so it is not checked again for each string.
    let parsed = match std::str::from_utf8(json) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(json),
    };
    parsed.map_err(|error| {
        Error::malformed(format!("cannot parse the JSON: {error}")).in_entry(entry)
    })
}

/// Converts to standard JSON: quotes `Infinity`, `-Infinity` and `NaN` outside strings.
fn quote_words(json: &[u8]) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut quoted = Vec::with_capacity(json.len());
    let (mut at, mut in_text) = (0, false);
    while at < json.len() {
        let word = WORDS.iter().find(|word| !in_text && json[at..].starts_with(word));
        if let Some(word) = word {
            quoted.push(b'"');
            quoted.extend_from_slice(word);
            quoted.push(b'"');
            at += word.len();
            continue;
        }
        let byte = json[at];
        quoted.push(byte);
        at += 1;
        if in_text && byte == b'\\' && at < json.len() {
            quoted.push(json[at]);
            at += 1;
        } else if byte == b'"' {
            in_text = !in_text;
        }
    }
    quoted
}

/// Reads a program while another thread reads the other entries. Errors in the other entries are reported
/// first.
fn together(
    entry: &str,
    beside: &(dyn Fn() -> Result<ArchiveExtras, Error> + Sync),
    program: impl FnOnce() -> Result<ExportedProgram, Error>,
) -> Result<ExportedProgram, Error> {
    let (beside, program) = thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(STACK_BYTES);
        let other = builder.spawn_scoped(scope, beside);
        let program = program();
        let beside = match other {
            Ok(other) => other.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // No thread is available.
            Err(_) => beside(),
        };
        (beside, program)
    });
    let ArchiveExtras { tensors, samples, extra_files } = beside?;
    let program = program?;
    check_tensors(&program.inputs, &tensors).map_err(|error| error.in_entry(entry))?;
    Ok(ExportedProgram { tensors, samples, extra_files, ..program })
}

/// Reads the program from its JSON, without the other entries.
fn program(json: &[u8], entry: &str) -> Result<ExportedProgram, Error> {
    let wire: wire::ExportedProgram = match parse(json, entry) {
        Ok(wire) => wire,
        Err(error) => {
            check_version(json, entry)?;
            return Err(locate_node(json, error));
        }
    };
    known(wire.schema_version, entry)?;
    build(wire).map_err(|error| error.in_entry(entry))
}

/// Reads only the version, so that an unknown schema is reported as such and not by its first difference.
fn check_version(json: &[u8], entry: &str) -> Result<(), Error> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema_version: wire::SchemaVersion,
    }
    let Version { schema_version } = parse(json, entry)?;
    known(schema_version, entry)
}

fn known(schema_version: wire::SchemaVersion, entry: &str) -> Result<(), Error> {
    if MAJORS.contains(&schema_version.major) {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "the schema has version {}.{}; expected 5, 7 or 8, written by torch 2.5 to 2.15 and ExecuTorch",
        schema_version.major, schema_version.minor
    ))
    .in_entry(entry)
    .with_hint("export with one of these versions"))
}

/// Finds the node that caused an error: the first node that cannot be parsed on its own.
fn locate_node(json: &[u8], error: Error) -> Error {
    let Ok(whole) = serde_json::from_slice::<serde_json::Value>(json) else { return error };
    let Some(nodes) = whole.pointer("/graph_module/graph/nodes").and_then(|nodes| nodes.as_array())
    else {
        return error;
    };
    for (index, node) in nodes.iter().enumerate() {
        if <wire::Node as serde::Deserialize>::deserialize(node).is_err() {
            let name = node.get("name").or_else(|| node.get("target"));
            let name = name.and_then(|name| name.as_str()).map(str::to_owned);
            return error.in_node(&name.unwrap_or_else(|| format!("#{index}")));
        }
    }
    error
}

fn build(wire: wire::ExportedProgram) -> Result<ExportedProgram, Error> {
    let version = wire.schema_version;
    let mut context = Context::new(version.major);
    let wire::GraphModule {
        graph,
        signature,
        module_call_graph,
        metadata,
        treespec_namedtuple_fields,
    } = wire.graph_module;
    let graph = graph::read(graph, &mut context)?;
    let inputs = input_kinds(&graph, signature.input_specs)?;
    let outputs = output_kinds(&graph, signature.output_specs)?;

    let mut constraints = Vec::new();
    for (text, range) in wire.range_constraints {
        let expression = Expression::parse(&text, &mut context.symbols)?;
        if let Expression::Symbol(id) = expression {
            let symbol = context.symbols.get_mut(id);
            symbol.minimum = range.min_val;
            symbol.maximum = range.max_val;
        }
        constraints.push(Constraint { expression, minimum: range.min_val, maximum: range.max_val });
    }

    let mut modules = Vec::new();
    for entry in module_call_graph {
        let signature = match entry.signature {
            None => None,
            Some(signature) => Some(CallSignature {
                inputs: TreeSpec::parse(&signature.in_spec)?,
                outputs: TreeSpec::parse(&signature.out_spec)?,
                parameter_names: signature.forward_arg_names,
            }),
        };
        modules.push(Module { path: entry.fqn, signature });
    }
    let fields = treespec_namedtuple_fields.into_iter();
    let dialect = match wire.verifiers.first().or(wire.dialect.as_ref()).map(String::as_str) {
        Some("TRAINING") => Dialect::Training,
        Some("ATEN") => Dialect::Aten,
        Some("EDGE") => Dialect::Edge,
        Some(other) => Dialect::Other(other.to_owned()),
        // Without a verifier in the archive, the graph may contain any operator.
        None => Dialect::Training,
    };
    Ok(ExportedProgram {
        graph,
        inputs,
        outputs,
        symbols: context.symbols,
        constraints,
        tensors: BTreeMap::new(),
        modules,
        named_tuples: fields.map(|(name, fields)| (name, fields.field_names)).collect(),
        dialect,
        opsets: wire.opset_version,
        schema_version: (version.major, version.minor),
        torch_version: wire.torch_version,
        guards: wire.guards_code,
        metadata,
        extra_files: BTreeMap::new(),
        samples: Samples::None,
    })
}

/// Checks that the signature refers to the input at the same position.
fn paired(graph: &Graph, argument: &Argument, name: &str) -> Result<(), Error> {
    match argument {
        Argument::Value(id) if graph.value(*id).name == name => Ok(()),
        other => Err(Error::malformed(format!(
            "the signature has `{}` where the graph has {}",
            escape_truncated(name),
            match other {
                Argument::Value(id) => format!("`{}`", escape_truncated(&graph.value(*id).name)),
                constant => format!("{constant:?}"),
            }
        ))),
    }
}

fn as_many(what: &str, specs: usize, arguments: usize) -> Result<(), Error> {
    if specs == arguments {
        return Ok(());
    }
    Err(Error::malformed(format!(
        "the signature has {specs} {what}, but the graph has {arguments}; the numbers must be equal"
    )))
}

fn input_kinds(graph: &Graph, specs: Vec<wire::InputSpec>) -> Result<Vec<InputKind>, Error> {
    use wire::InputSpec as W;
    as_many("inputs", specs.len(), graph.inputs.len())?;
    let mut kinds = Vec::with_capacity(specs.len());
    for (spec, input) in specs.into_iter().zip(&graph.inputs) {
        let (name, kind) = match spec {
            W::UserInput(_) => (None, InputKind::User),
            W::ConstantInput { name } => (None, InputKind::Constant(name)),
            W::Parameter { arg, parameter_name } => {
                (Some(arg.name), InputKind::Parameter(parameter_name))
            }
            W::Buffer { arg, buffer_name, persistent } => {
                let persistent = persistent.unwrap_or(true);
                (Some(arg.name), InputKind::Buffer { name: buffer_name, persistent })
            }
            W::TensorConstant { arg, tensor_constant_name } => {
                (Some(arg.name), InputKind::TensorConstant(tensor_constant_name))
            }
            W::CustomObj { arg, custom_obj_name } => {
                (Some(arg.name), InputKind::CustomObject(custom_obj_name))
            }
            W::Token { arg } => (Some(arg.name), InputKind::Token),
        };
        if let Some(name) = name {
            paired(graph, input, &name)?;
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

fn output_kinds(graph: &Graph, specs: Vec<wire::OutputSpec>) -> Result<Vec<OutputKind>, Error> {
    use wire::OutputSpec as W;
    as_many("outputs", specs.len(), graph.outputs.len())?;
    let mut kinds = Vec::with_capacity(specs.len());
    for (spec, output) in specs.into_iter().zip(&graph.outputs) {
        let (name, kind) = match spec {
            W::UserOutput(_) => (None, OutputKind::User),
            W::LossOutput { arg } => (Some(arg.name), OutputKind::Loss),
            W::BufferMutation { arg, buffer_name } => {
                (Some(arg.name), OutputKind::BufferMutation(buffer_name))
            }
            W::ParameterMutation { arg, parameter_name } => {
                (Some(arg.name), OutputKind::ParameterMutation(parameter_name))
            }
            W::GradientToParameter { arg, parameter_name } => {
                (Some(arg.name), OutputKind::GradientToParameter(parameter_name))
            }
            W::GradientToUserInput { arg, user_input_name } => {
                (Some(arg.name), OutputKind::GradientToUserInput(user_input_name))
            }
            W::UserInputMutation { arg, user_input_name } => {
                (Some(arg.name), OutputKind::UserInputMutation(user_input_name))
            }
            W::Token { arg } => (Some(arg.name), OutputKind::Token),
        };
        if let Some(name) = name {
            paired(graph, output, &name)?;
        }
        kinds.push(kind);
    }
    Ok(kinds)
}

/// Checks that the archive has all tensors of the signature, which are needed to run the program.
fn check_tensors(
    inputs: &[InputKind],
    tensors: &BTreeMap<String, StoredValue>,
) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for kind in inputs {
        let name = match kind {
            InputKind::Parameter(name)
            | InputKind::Buffer { name, .. }
            | InputKind::TensorConstant(name)
            | InputKind::CustomObject(name) => name,
            InputKind::User | InputKind::Constant(_) | InputKind::Token => continue,
        };
        if seen.insert(name) && !tensors.contains_key(name) {
            return Err(Error::malformed(format!(
                "the signature names `{}`, but the archive has no weights or constant for it",
                escape_truncated(name)
            ))
            .with_hint("export the program again; the file may be incomplete"));
        }
    }
    Ok(())
}
