//! Native module of the Python package `coremill`, whose sources are in `python/`.
//!
//! | module | contents |
//! |---|---|
//! | `exported` | import of a `torch.export.ExportedProgram` from memory |
//! | `options` | keyword arguments as options |
//! | `model`, `program` | the classes `Model` and `Program`, and their sessions |
//! | `arguments`, `arrays`, `path` | arguments: strings, numbers, arrays, images, paths |
//! | `compress`, `quantize` | compression and quantization |
//! | `llm` | language models |
//! | `compare` | comparison of models and arrays |
//! | `edge` | functions for ExecuTorch's partitioner and backend |
//! | `bytes` | Python `bytes` objects under construction |
//! | `work` | work without Python's lock, Ctrl-C, progress |
//! | `error` | exceptions |

mod arguments;
mod arrays;
mod bytes;
mod compare;
mod compress;
mod edge;
mod error;
mod exported;
mod llm;
mod model;
mod options;
mod path;
mod program;
mod quantize;
mod speech;
mod weights;
mod work;

use std::path::{Path, PathBuf};

use coremill::convert::NumericsReport;
use coremill::precision::{MixedPrecisionPlan, Output, choose};
use coremill::{OpenedModel, convert as conversion, executorch};
use coremill_compiler::{self as compiler, Conversion, LowerOptions, Options};
use coremill_engine::Numerics;
use coremill_mil::ir::Opset;
use coremill_pt2::ExportedProgram;
// Link the C interface, which `coremill.executorch.register_runtime` loads from this module.
use coremill_capi as _;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Failure;
use crate::exported::BorrowedTensor;
use crate::model::{Model, Session};
use crate::options::Keywords;
use crate::path::{PathArgument, path_of};
use crate::program::{Method, Program};

/// Suggested fixes for numbers that differ from the reference.
const NUMBERS_HINT: &str = "pass `precision=\"auto\"` or `precision=\"fp32\"`, or find the operations that \
     differ with `compare(..., per_op=True)`, and keep them in fp32 with `fp32_values`, `fp32_modules` or `fp32_ops`";

/// Source of a program.
enum Source {
    Memory(Box<ExportedProgram>),
    File(PathBuf),
}

impl Source {
    fn of(
        object: &Bound<'_, PyAny>,
        function: &str,
        lent: &mut Vec<BorrowedTensor>,
    ) -> PyResult<Source> {
        let py = object.py();
        if exported::is_program(object)? {
            let taken = work::held(py, || exported::take(object, exported::Extent::Whole))?;
            lent.extend(taken.lent);
            return Ok(Source::Memory(Box::new(taken.program)));
        }
        if let Some(path) = path_of(object)? {
            return Ok(Source::File(path));
        }
        let class = object.get_type().name()?;
        let message = format!(
            "{function}() expects a `torch.export.ExportedProgram` or its path, got a {class}"
        );
        let hint = if object.hasattr("forward")? {
            Some("export the module first: `torch.export.export(module, example_inputs)`")
        } else {
            None
        };
        let hint = hint.map(str::to_owned);
        Err(error::option(py, message, hint))
    }

    fn read(self) -> Result<ExportedProgram, Failure> {
        Ok(match self {
            Source::Memory(program) => *program,
            Source::File(path) => conversion::read(path)?,
        })
    }
}

/// Converts a program to a Core ML model, or several to the functions of one model.
#[pyfunction]
#[pyo3(signature = (program, **options))]
fn convert(
    py: Python<'_>,
    program: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Model> {
    let mut keywords = Keywords::new(py, options)?;
    let mut options = options::convert(&mut keywords)?;
    let bound = options::bound(&mut keywords, options.precision)?;
    let numerics = options::numerics(&mut keywords)?;
    let samples = keywords.take_samples();
    let edits = keywords.take_edits();
    keywords.finish("convert")?;
    let mut lent = Vec::new();
    if let Ok(functions) = program.cast::<PyDict>() {
        refuse_auto(py, samples.as_ref())?;
        if !edits.is_empty() {
            let message = "images, labels and types apply only to a single program";
            let hint = "edit the functions of the model afterwards".to_owned();
            return Err(error::option(py, message, Some(hint)));
        }
        let functions = functions.iter().map(|(name, program)| {
            let name = function_name(&name)?;
            Ok((name, Source::of(&program, "convert", &mut lent)?))
        });
        let functions: Vec<_> = functions.collect::<PyResult<_>>()?;
        if functions.is_empty() {
            let message = "expected at least one program to convert";
            return Err(error::option(py, message, None));
        }
        let (opened, target) = work::run(py, move |stage| {
            convert_functions(functions, &options, bound, numerics, stage)
        })?;
        return Ok(Model::new(opened, lent, Some(target)));
    }
    let source = Source::of(program, "convert", &mut lent)?;
    let (opened, target, plan) = work::run(py, move |stage| {
        stage.set("reading the program");
        let program = source.read()?;
        conversion::check_options(&program, &options)?;
        let mut plan = None;
        if let Some(samples) = samples {
            stage.set("choosing the precision");
            let lower = LowerOptions { options: options.clone(), ..LowerOptions::default() };
            let judged = (&samples[..], numerics);
            plan = Some(chosen(&program, Output::Model, &lower, judged, &mut options)?);
        }
        stage.set("converting the program");
        let again = bound.map(|_| program.clone());
        let Conversion { model, target, .. } = conversion::convert(program, &options)?;
        let mut opened = OpenedModel::made(model, Path::new("model"));
        if let (Some(bound), Some(program)) = (bound, again) {
            stage.set("verifying the numbers");
            let verified = model::proof(&opened)?;
            agree(conversion::check_numbers(program, &options, &verified, bound, numerics)?)?;
        }
        coremill::edit::apply(&mut opened.model, &edits, None)?;
        Ok((opened, target, plan))
    })?;
    Model::new(opened, lent, Some(target)).with_plan(py, plan.as_ref())
}

/// Converts programs to the functions of one model.
fn convert_functions(
    functions: Vec<(String, Source)>,
    options: &Options,
    bound: Option<f64>,
    numerics: Numerics,
    stage: &work::Stage,
) -> Result<(OpenedModel, Opset), Failure> {
    stage.set("reading the programs");
    let mut programs = Vec::with_capacity(functions.len());
    for (name, source) in functions {
        let program = source.read()?;
        conversion::check_options(&program, options)?;
        programs.push((name, program));
    }
    stage.set("converting the programs");
    let again = bound.map(|_| programs.clone());
    let converted = conversion::convert_functions(programs, options)?;
    let mut target = None;
    let mut models = Vec::with_capacity(converted.len());
    for (name, conversion) in converted {
        target = target.max(Some(conversion.target));
        models.push((name, conversion.model));
    }
    for ((name, program), (_, model)) in again.into_iter().flatten().zip(&models) {
        stage.set(format!("verifying the numbers of `{name}`"));
        let opened = OpenedModel::made(model.clone(), Path::new("model"));
        let verified = model::proof(&opened)?;
        let bound = bound.unwrap_or_default();
        let found = conversion::check_numbers(program, options, &verified, bound, numerics)?;
        agree(found)?;
    }
    let opened = OpenedModel::made(coremill::edit::merge(models)?, Path::new("model"));
    Ok((opened, target.unwrap_or(Opset::Ios18)))
}

/// Validates the name of a function.
fn function_name(name: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = name.py();
    let Ok(name) = name.extract::<String>() else {
        return Err(options::wrong(name, "program", "a dict of programs by name"));
    };
    let identifier = compiler::identifier(&name);
    if identifier != name {
        let hint = format!("a valid name is `{}`", identifier);
        let message = format!("`{name}` is not a valid function name");
        return Err(error::option(py, message, Some(hint)));
    }
    Ok(name)
}

/// Chooses the precision of operations, and sets the options accordingly.
fn chosen(
    program: &ExportedProgram,
    output: Output,
    lower: &LowerOptions,
    (samples, numerics): (&[PathBuf], Numerics),
    options: &mut Options,
) -> Result<MixedPrecisionPlan, Failure> {
    let plan = choose(program, output, lower, samples, numerics)?;
    if !plan.holds() {
        let off: Vec<_> = plan.outputs.iter().map(|output| format!("`{}`", output.name)).collect();
        let message = format!("only fp32 is accurate enough for {}", off.join(", "));
        let hint = "pass `precision=\"fp32\"`, or `samples` like those that the model will see";
        return Err(Failure::Numbers { message, hint });
    }
    plan.apply(options);
    Ok(plan)
}

/// Rejects automatic precision for several programs.
fn refuse_auto(py: Python<'_>, samples: Option<&Vec<PathBuf>>) -> PyResult<()> {
    if samples.is_none() {
        return Ok(());
    }
    let message = "the precision of several programs cannot be chosen at once";
    let hint = "convert each separately with `precision=\"auto\"`, and pass the result as `fp32_modules` or `fp32_values`";
    Err(error::option(py, message, Some(hint.to_owned())))
}

/// Fails if an output exceeds the error bound.
fn agree(agreement: Option<NumericsReport>) -> Result<(), Failure> {
    let Some(agreement) = agreement else {
        let message = "the program has no sample inputs to verify it on".to_owned();
        return Err(Failure::Numbers { message, hint: "keep the example inputs at export" });
    };
    let Some(off) = agreement.outputs.iter().find(|output| !agreement.accepts(output)) else {
        return Ok(());
    };
    let how = match &off.figures {
        Ok(figures) if figures.unlike > 0 => {
            format!("{} elements are finite in only one result", figures.unlike)
        }
        Ok(figures) => format!("the relative error is {:.2e}", figures.max_relative),
        Err(message) => message.clone(),
    };
    let message =
        format!("output `{}` differs from fp32: {how}; the bound is {}", off.name, agreement.bound);
    Err(Failure::Numbers { message, hint: NUMBERS_HINT })
}

/// Lowers a program, or one for each method, to an ExecuTorch program.
#[pyfunction]
#[pyo3(signature = (programs, **options))]
fn lower(
    py: Python<'_>,
    programs: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Program> {
    let mut keywords = Keywords::new(py, options)?;
    let mut options = options::lower(&mut keywords)?;
    let samples = keywords.take_samples();
    keywords.finish("lower")?;
    let mut lent = Vec::new();
    let mut sources = Vec::new();
    match programs.cast::<PyDict>() {
        Ok(methods) => {
            for (name, program) in methods.iter() {
                sources.push((name.extract()?, Source::of(&program, "lower", &mut lent)?));
            }
        }
        Err(_) => sources.push(("forward".to_owned(), Source::of(programs, "lower", &mut lent)?)),
    }
    if sources.len() > 1 {
        refuse_auto(py, samples.as_ref())?;
    }
    let lowered = work::run(py, move |stage| {
        stage.set("reading the programs");
        let mut programs = Vec::with_capacity(sources.len());
        for (name, source) in sources {
            programs.push((name, source.read()?));
        }
        let read = programs.iter().map(|(_, program)| program);
        conversion::check_fp32(read, &options.options)?;
        if let (Some(samples), Some((_, program))) = (&samples, programs.first()) {
            stage.set("choosing the precision");
            let given = options.clone();
            let judged = (&samples[..], Numerics::Rounded);
            chosen(program, Output::Program, &given, judged, &mut options.options)?;
        }
        stage.set("lowering");
        Ok(compiler::lower(programs, &options)?)
    })?;
    Ok(Program::new(lowered.program, lent, lowered.reports))
}

/// Opens a package, a compiled model, MIL text or an ExecuTorch program.
#[pyfunction]
fn load<'py>(py: Python<'py>, path: PathArgument) -> PyResult<Bound<'py, PyAny>> {
    let PathArgument(path) = path;
    enum LoadedFile {
        Model(OpenedModel),
        Program(Box<coremill_pte::Program>),
    }
    let loaded = work::run(py, move |stage| {
        stage.set(format!("reading {}", path.display()));
        Ok(match executorch::is_program(&path) {
            true => LoadedFile::Program(Box::new(executorch::open(&path)?)),
            false => LoadedFile::Model(coremill::open_with_source(&path)?),
        })
    })?;
    Ok(match loaded {
        LoadedFile::Model(opened) => {
            Bound::new(py, Model::new(opened, Vec::new(), None))?.into_any()
        }
        LoadedFile::Program(program) => {
            Bound::new(py, Program::new(*program, Vec::new(), Vec::new()))?.into_any()
        }
    })
}

/// Native module of `coremill`.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Model>()?;
    module.add_class::<Session>()?;
    module.add_class::<Program>()?;
    module.add_class::<Method>()?;
    module.add_function(wrap_pyfunction!(convert, module)?)?;
    module.add_function(wrap_pyfunction!(lower, module)?)?;
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(model::merge, module)?)?;
    module.add_function(wrap_pyfunction!(model::randomize_weights, module)?)?;
    module.add_function(wrap_pyfunction!(model::split, module)?)?;
    module.add_function(wrap_pyfunction!(model::save_pipeline, module)?)?;
    module.add_function(wrap_pyfunction!(compare::figures, module)?)?;
    module.add_function(wrap_pyfunction!(compare::per_op, module)?)?;
    module.add_function(wrap_pyfunction!(compress::compress, module)?)?;
    module.add_function(wrap_pyfunction!(weights::kmeans, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weights, module)?)?;
    module.add_function(wrap_pyfunction!(weights::weight, module)?)?;
    module.add_function(wrap_pyfunction!(weights::with_indices, module)?)?;
    module.add_function(wrap_pyfunction!(weights::quantize_activations, module)?)?;
    module.add_function(wrap_pyfunction!(quantize::quantize, module)?)?;
    module.add_class::<llm::LanguageModel>()?;
    module.add_function(wrap_pyfunction!(llm::llm_convert, module)?)?;
    module.add_function(wrap_pyfunction!(llm::llm_tokenizer, module)?)?;
    module.add_function(wrap_pyfunction!(llm::llm_verify, module)?)?;
    module.add_class::<llm::Embedder>()?;
    module.add_class::<speech::SpeechModel>()?;
    module.add_class::<llm::Tokenizer>()?;
    module.add_class::<edge::PreprocessResult>()?;
    module.add_function(wrap_pyfunction!(edge::edge_partition, module)?)?;
    module.add_function(wrap_pyfunction!(edge::edge_refused, module)?)?;
    module.add_function(wrap_pyfunction!(edge::edge_lower, module)?)?;
    module.add_function(wrap_pyfunction!(edge::edge_preprocess, module)?)?;
    module.add_function(wrap_pyfunction!(edge::edge_preprocess_multimethod, module)?)?;
    Ok(())
}
