//! Quantizes PyTorch programs after training, without Python.
//!
//! ```no_run
//! use coremill::compiler::Options;
//! use coremill::quantize::{Config, Quantizer, Recipe};
//!
//! let program = coremill::convert::read("model.pt2")?;
//! let config = Config { keep_worst: 1, ..Config::new(Recipe::Int8Static) };
//! let quantizer = Quantizer::new(program, &Options::default(), &config)?;
//! let samples = quantizer.read_samples(&["calibration".into()])?;
//! let quantized = quantizer.run(&samples)?;
//! for layer in &quantized.layers {
//!     println!("{}: {:?} dB, the model {:?} dB", layer.name, layer.layer_db, layer.model_db);
//! }
//! let model = coremill::verify(&quantized.model).expect("it is sound");
//! coremill::save("Model.mlpackage", &model, &coremill::SaveOptions::default())?;
//! # Ok::<(), coremill::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `observe` | the ranges of activations, from what samples make of them |
//! | `weights` | weights as integers or tables |
//! | `edit` | which operations are quantized, and how the program changes |

mod edit;
mod observe;
mod weights;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use coremill_compiler::{self as compiler, Options, Precision, Prepared, identifier};
use coremill_engine::{Array, Engine, Hooks, LoadOptions, Outputs, Port, Value};
use coremill_mil::ir::Opset;
use coremill_mil::model::{
    ColorSpace, FeatureDescription, FeatureType, ImageSizes, ImageType, Model,
};
use coremill_mil::ops::OpKind;
use coremill_mil::pass::Draft;
use coremill_mil::verify::verify;
use coremill_pt2::ExportedProgram;
use serde::Serialize;

use self::edit::Layer;
pub use self::observe::Observer;
use self::observe::{Range, Seen};
use self::weights::Storage;
use crate::compare::figures;
use crate::convert;
use crate::error::Error;
use crate::{arrays, images};

/// What becomes of a program; names and meaning are those of ExecuTorch's Core ML backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// Nothing is quantized, and floats have 32 bits.
    Fp32,
    /// Nothing is quantized, and floats have 16 bits.
    Fp16,
    /// Weights of convolutions and linear layers, and activations around them, have 8 bits.
    Int8Static,
    /// Weights of convolutions and linear layers have 8 bits.
    Int8WeightOnly,
    /// Weights of linear layers have 4 bits, and a scale for each group.
    Int4PerGroup,
    /// Weights of linear layers have 4 bits, and a scale for each output channel.
    Int4PerChannel,
    /// Weights of linear layers have 8 bits, and a scale for each output channel.
    Int8PerChannel,
    /// Weights of linear layers have 8 bits, and a scale for each group.
    Int8PerGroup,
    /// Weights of linear layers and embeddings are indices into tables.
    Codebook,
}

impl Recipe {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Recipe); 9] = [
        ("fp32", Recipe::Fp32),
        ("fp16", Recipe::Fp16),
        ("int8-static", Recipe::Int8Static),
        ("int8-weight-only", Recipe::Int8WeightOnly),
        ("int4-per-group", Recipe::Int4PerGroup),
        ("int4-per-channel", Recipe::Int4PerChannel),
        ("int8-per-channel", Recipe::Int8PerChannel),
        ("int8-per-group", Recipe::Int8PerGroup),
        ("codebook", Recipe::Codebook),
    ];

    /// Whether activations are quantized, which takes samples.
    pub fn is_static(self) -> bool {
        self == Recipe::Int8Static
    }

    fn takes(self, kind: OpKind) -> bool {
        let convolves = matches!(kind, OpKind::Conv | OpKind::ConvTranspose);
        match self {
            Recipe::Fp32 | Recipe::Fp16 => false,
            Recipe::Int8Static => {
                convolves
                    || matches!(kind, OpKind::Linear | OpKind::Matmul | OpKind::Add | OpKind::Mul)
            }
            Recipe::Int8WeightOnly => convolves || kind == OpKind::Linear,
            Recipe::Codebook => matches!(kind, OpKind::Linear | OpKind::Gather),
            _ => kind == OpKind::Linear,
        }
    }
}

impl FromStr for Recipe {
    type Err = String;

    fn from_str(text: &str) -> Result<Recipe, String> {
        let found = Recipe::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, recipe)| *recipe).ok_or_else(|| {
            let names: Vec<_> = Recipe::NAMES.iter().map(|(name, _)| *name).collect();
            format!("recipes are {}", names.join(", "))
        })
    }
}

/// How pixels of pictures, brought to 0 to 1, become what the network was trained on: `(pixel − mean) / std`, by channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pixels {
    /// What is subtracted.
    pub mean: [f32; 3],
    /// What is divided by.
    pub std: [f32; 3],
}

impl Default for Pixels {
    fn default() -> Pixels {
        Pixels { mean: [0.0; 3], std: [1.0; 3] }
    }
}

/// How to quantize.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is quantized, and to what.
    pub recipe: Recipe,
    /// What decides on the ranges of activations.
    pub observer: Observer,
    /// What is done to pixels of samples that are pictures.
    pub pixels: Pixels,
    /// How many input channels share a scale, where groups do.
    pub group_size: usize,
    /// The bits of the indices into tables.
    pub bits: u32,
    /// How many rows and columns share a table; 0 for all of them.
    pub block: (usize, usize),
    /// Modules, by path, that stay as they are.
    pub keep: Vec<String>,
    /// Operations, by MIL's names, that stay as they are.
    pub keep_ops: Vec<String>,
    /// Weights of fewer elements stay as they are.
    pub min_elements: u64,
    /// So many of the layers that cost the outputs most stay as they are. Takes samples.
    pub keep_worst: usize,
    /// 0 rounds to the nearest; 1 looks for better ranges of weights, and corrects biases by what outputs are off on
    /// average, if there are samples.
    pub effort: u8,
}

impl Config {
    /// The usual for a recipe.
    pub fn new(recipe: Recipe) -> Config {
        Config {
            recipe,
            observer: Observer::default(),
            pixels: Pixels::default(),
            group_size: 32,
            bits: 4,
            block: (16, 0),
            keep: Vec::new(),
            keep_ops: Vec::new(),
            min_elements: 0,
            keep_worst: 0,
            effort: 0,
        }
    }

    fn storage(&self) -> Option<Storage> {
        let size = self.group_size;
        Some(match self.recipe {
            Recipe::Fp32 | Recipe::Fp16 => return None,
            Recipe::Int8Static | Recipe::Int8WeightOnly | Recipe::Int8PerChannel => {
                Storage::Channels { bits: 8 }
            }
            Recipe::Int4PerChannel => Storage::Channels { bits: 4 },
            Recipe::Int4PerGroup => Storage::Groups { bits: 4, size },
            Recipe::Int8PerGroup => Storage::Groups { bits: 8, size },
            Recipe::Codebook => {
                let (rows, columns) = self.block;
                Storage::Tables { bits: self.bits, rows, columns }
            }
        })
    }

    /// The oldest release that has what the recipe writes.
    pub fn needs(&self) -> Opset {
        let weights = self.storage().map_or(Opset::Ios15, Storage::needs);
        if self.recipe.is_static() { weights.max(Opset::Ios17) } else { weights }
    }

    fn check(&self, options: &Options) -> Result<(), Error> {
        if self.group_size == 0 {
            return Err(
                Error::new("groups have 0 elements").hint("give at least 1, or 32 as usual")
            );
        }
        if !(1..=8).contains(&self.bits) {
            let message = format!("tables of {} bits are not looked up", self.bits);
            return Err(Error::new(message).hint("give 1 to 8 bits"));
        }
        let sound = |all: [f32; 3]| all.iter().all(|number| number.is_finite());
        if !sound(self.pixels.mean) || !sound(self.pixels.std) || self.pixels.std.contains(&0.0) {
            return Err(Error::new("pixels cannot be scaled by means and deviations like these")
                .hint("give finite numbers, and no deviation of 0"));
        }
        if let Some(name) = self.keep_ops.iter().find(|name| OpKind::from_name(name).is_none()) {
            return Err(Error::new(format!("Core ML has no operation `{name}`"))
                .hint("`coremill ops` lists them; the names are MIL's, `linear` for instance"));
        }
        match options.target {
            Some(target) if target < self.needs() => {
                let needed = self.needs();
                Err(Error::new(format!("the recipe needs {needed}; the target is {target}"))
                    .hint(format!("pass `--target {}`, or leave the target out", needed.tag())))
            }
            _ => Ok(()),
        }
    }
}

/// What quantization costs at one layer.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// The name of what the layer gives.
    pub name: String,
    /// The operation, by MIL's name.
    pub op: &'static str,
    /// The path of its module.
    pub module: Option<String>,
    /// Why it stays as it is, if it does.
    pub kept: Option<String>,
    /// Signal to noise at its own output when it alone is quantized; none without samples.
    pub layer_db: Option<f64>,
    /// The same at the worst of the model's outputs.
    pub model_db: Option<f64>,
}

/// A quantized program.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The model, to be verified and written.
    pub model: Model,
    /// The release that it was written for.
    pub target: Opset,
    /// Each layer that the recipe is for, the one that costs the outputs most first.
    pub layers: Vec<Loss>,
    /// Signal to noise at the worst of the model's outputs, all of it quantized; none without samples.
    pub model_db: Option<f64>,
    /// How many samples there were.
    pub samples: usize,
}

/// The inputs of one call, by name.
pub type Sample = Vec<(String, Array)>;

/// The most samples that losses are measured with; ranges are observed with all.
const MEASURED: usize = 8;

/// A program that is ready to be quantized.
pub struct Quantizer {
    prepared: Prepared,
    options: Options,
    config: Config,
    engine: Engine,
    inputs: Vec<Port>,
    layers: Vec<Layer>,
    kept: Vec<(Layer, String)>,
    own: Option<Sample>,
}

impl Quantizer {
    /// Lowers a program, and finds what the recipe is for. What does not fit the program or the target is refused here,
    /// before there are samples.
    pub fn new(
        program: ExportedProgram,
        options: &Options,
        config: &Config,
    ) -> Result<Quantizer, Error> {
        config.check(options)?;
        let mut options = options.clone();
        if config.recipe == Recipe::Fp32 {
            options.precision = Precision::Fp32;
        }
        let prepared = compiler::prepare(program.clone(), &options, config.needs());
        let prepared = prepared.map_err(|error| Error::new(error.to_string()))?;
        let engine = load(&prepared, prepared.draft.clone(), &options)?;
        let session = engine.session(engine.default_function());
        let inputs = session.map_err(|error| Error::of_engine(&error))?.inputs().to_vec();
        let own = convert::sample_inputs(&program, &inputs)?;
        let all = edit::layers(&prepared, config);
        for path in &config.keep {
            let path = path.as_str();
            let found = all.iter().any(|layer| is_within(layer, path));
            if !found {
                let known: Vec<_> =
                    all.iter().take(5).map(|layer| format!("`{}`", shown(layer))).collect();
                return Err(Error::new(format!("the recipe quantizes nothing in `{path}`"))
                    .hint(format!("it quantizes {}, for instance", known.join(", "))));
            }
        }
        let (mut layers, mut kept) = (Vec::new(), Vec::new());
        for layer in all {
            match reason(&prepared.draft, &layer, config)? {
                Some(reason) => kept.push((layer, reason)),
                None => layers.push(layer),
            }
        }
        Ok(Quantizer {
            prepared,
            options,
            config: config.clone(),
            engine,
            inputs,
            layers,
            kept,
            own,
        })
    }

    /// What the model takes.
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// The inputs that the archive was exported with, if it holds them.
    pub fn own_sample(&self) -> Option<&Sample> {
        self.own.as_ref()
    }

    /// Samples from `.npz` files and from folders of them or of pictures.
    pub fn read_samples(&self, paths: &[PathBuf]) -> Result<Vec<Sample>, Error> {
        let mut samples = Vec::new();
        for path in paths {
            if !path.is_dir() {
                samples.push(self.read_sample(path)?);
                continue;
            }
            let entries =
                std::fs::read_dir(path).map_err(|error| Error::io("read", path, &error))?;
            let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            files.retain(|file| is_picture(file) || has_extension(file, &["npz"]));
            files.sort();
            if files.is_empty() {
                let message = format!("{} holds neither pictures nor `.npz` files", path.display());
                return Err(
                    Error::new(message).hint("pass PNG or JPEG files, or what `numpy.savez` wrote")
                );
            }
            for file in files {
                samples.push(self.read_sample(&file)?);
            }
        }
        Ok(samples)
    }

    fn read_sample(&self, path: &Path) -> Result<Sample, Error> {
        if is_picture(path) {
            let [port] = self.inputs.as_slice() else {
                let count = self.inputs.len();
                return Err(Error::new(format!("a picture is one input; the model takes {count}"))
                    .hint("pass `.npz` files that hold all inputs by name"));
            };
            return Ok(vec![(port.name.clone(), self.picture(path, port)?)]);
        }
        let sample = arrays::read_npz(path)?;
        self.check(&sample).map_err(|error| error.within(path))?;
        Ok(sample)
    }

    /// A picture as the input takes it: cropped to its size, and brought from 0 to 255 to what the network was trained on.
    fn picture(&self, path: &Path, port: &Port) -> Result<Array, Error> {
        let shape = port.default_shape().unwrap_or_default();
        let (color_space, height, width) = match *shape.as_slice() {
            [1, 3, height, width] => (ColorSpace::Rgb, height, width),
            [1, 1, height, width] => (ColorSpace::Grayscale, height, width),
            _ => {
                let message = format!("input `{}` is a `{}`, no picture", port.name, port.ty);
                return Err(Error::new(message).hint(
                    "pictures are for inputs [1, 3, H, W] and [1, 1, H, W]; pass `.npz` files",
                ));
            }
        };
        let sizes = ImageSizes::Fixed;
        let image = ImageType { width: width as i64, height: height as i64, color_space, sizes };
        let description = FeatureDescription::new(&port.name, FeatureType::Image(image));
        let described = Port { description: Some(description), ..port.clone() };
        let mut picture = images::read(path, &described, Some(images::Resize::Crop))?;
        let Pixels { mean, std } = self.config.pixels;
        let channels = shape[1];
        if let Some(pixels) = picture.floats_mut() {
            for (channel, plane) in pixels.chunks_mut(height * width).enumerate() {
                let at = channel % channels;
                plane.iter_mut().for_each(|pixel| *pixel = (*pixel / 255.0 - mean[at]) / std[at]);
            }
        }
        Ok(picture)
    }

    fn check(&self, sample: &Sample) -> Result<(), Error> {
        let session = self.engine.session(self.engine.default_function());
        let session = session.map_err(|error| Error::of_engine(&error))?;
        session.check(&borrowed(sample)).map(|_| ()).map_err(|error| Error::of_engine(&error))
    }

    /// Quantizes the program with samples.
    pub fn run(&self, samples: &[Sample]) -> Result<Quantized, Error> {
        let needs = if self.config.recipe.is_static() {
            Some("activations are quantized")
        } else if self.config.keep_worst > 0 {
            Some("the worst layers are to be kept")
        } else {
            None
        };
        if let (Some(why), true) = (needs, samples.is_empty()) {
            return Err(Error::new(format!("there are no samples, and {why}"))
                .hint("pass `--samples FILE.npz`, or a folder of pictures or `.npz` files"));
        }
        samples.iter().try_for_each(|sample| self.check(sample))?;
        let ranges = self.observe(samples)?;
        let measured = &samples[..samples.len().min(MEASURED)];
        let reference = self.outputs(&self.engine, measured, &self.watched())?;
        let none = HashMap::new();
        let mut losses = Vec::new();
        let mut shifts = HashMap::new();
        for layer in &self.layers {
            let mut loss = loss_of(layer, None);
            if !measured.is_empty() {
                let alone = self.quantized(&[layer], &ranges, &none)?;
                let engine = load(&self.prepared, alone, &self.in_fp32())?;
                let found = self.outputs(&engine, measured, &self.watched())?;
                loss.layer_db = decibels(&reference, &found, Some(&layer.name));
                loss.model_db = decibels(&reference, &found, None);
                if self.config.effort > 0
                    && let Some(shift) = shift(&reference, &found, layer)
                {
                    shifts.insert(layer.name.clone(), shift);
                }
            }
            losses.push(loss);
        }
        let mut order: Vec<usize> = (0..self.layers.len()).collect();
        let cost = |at: &usize| losses[*at].model_db.unwrap_or(f64::INFINITY);
        order.sort_by(|left, right| cost(left).total_cmp(&cost(right)));
        let worst: HashSet<usize> = order.iter().copied().take(self.config.keep_worst).collect();
        let chosen: Vec<&Layer> =
            order.iter().filter(|at| !worst.contains(at)).map(|&at| &self.layers[at]).collect();
        for &at in &worst {
            losses[at].kept = Some("one of the worst".to_owned());
        }
        let mut chosen_in_order = chosen;
        chosen_in_order.sort_by_key(|layer| layer.op.index());
        let draft = self.quantized(&chosen_in_order, &ranges, &shifts)?;
        let model_db = match measured {
            [] => None,
            _ => {
                let engine = load(&self.prepared, draft.clone(), &self.in_fp32())?;
                let found = self.outputs(&engine, measured, &HashSet::new())?;
                decibels(&reference, &found, None)
            }
        };
        let model = finished(&self.prepared, draft, &self.options)?;
        let mut layers: Vec<Loss> = order.iter().map(|&at| losses[at].clone()).collect();
        layers.extend(self.kept.iter().map(|(layer, why)| loss_of(layer, Some(why.clone()))));
        let target = self.prepared.target;
        Ok(Quantized { model, target, layers, model_db, samples: samples.len() })
    }

    fn in_fp32(&self) -> Options {
        Options { precision: Precision::Fp32, ..self.options.clone() }
    }

    fn quantized(
        &self,
        layers: &[&Layer],
        ranges: &HashMap<String, Range>,
        shifts: &HashMap<String, Vec<f32>>,
    ) -> Result<Draft, Error> {
        let mut draft = self.prepared.draft.clone();
        edit::apply(&mut draft, layers, &self.config, ranges, shifts)?;
        Ok(draft)
    }

    /// The ranges of activations, by name.
    fn observe(&self, samples: &[Sample]) -> Result<HashMap<String, Range>, Error> {
        if !self.config.recipe.is_static() {
            return Ok(HashMap::new());
        }
        let names = edit::observed(&self.prepared.draft, &self.layers);
        let mut seen: HashMap<String, Seen> = HashMap::new();
        for (index, sample) in samples.iter().enumerate() {
            let mut bad = None;
            let mut look = |name: &str, array: &Array| {
                let new = || Seen::new(self.config.observer);
                if names.contains(name)
                    && let Some(elements) = array.as_floats()
                    && !seen.entry(name.to_owned()).or_insert_with(new).see(elements)
                {
                    bad.get_or_insert_with(|| name.to_owned());
                }
            };
            for (name, array) in sample {
                look(name, array);
            }
            run(&self.engine, sample, &mut look)?;
            if let Some(name) = bad {
                let message = format!("sample {index} makes `{name}` NaN or infinite");
                return Err(Error::new(message).hint("look at the sample, or leave it out"));
            }
        }
        Ok(seen.into_iter().map(|(name, seen)| (name, seen.range())).collect())
    }

    /// The outputs of the layers.
    fn watched(&self) -> HashSet<String> {
        self.layers.iter().map(|layer| layer.name.clone()).collect()
    }

    /// What an engine makes of samples: the outputs, and values by name.
    fn outputs(
        &self,
        engine: &Engine,
        samples: &[Sample],
        watched: &HashSet<String>,
    ) -> Result<Vec<Given>, Error> {
        let mut all = Vec::with_capacity(samples.len());
        for sample in samples {
            let mut values = HashMap::new();
            let outputs = run(engine, sample, &mut |name, array| {
                if watched.contains(name) {
                    values.insert(name.to_owned(), array.clone());
                }
            })?;
            all.push(Given { outputs, values });
        }
        Ok(all)
    }
}

/// What one run gives.
struct Given {
    outputs: Outputs,
    values: HashMap<String, Array>,
}

fn loss_of(layer: &Layer, kept: Option<String>) -> Loss {
    Loss {
        name: layer.name.clone(),
        op: layer.kind.name(),
        module: layer.module.clone(),
        kept,
        layer_db: None,
        model_db: None,
    }
}

/// What a layer is called: its module, or what it gives.
fn shown(layer: &Layer) -> &str {
    layer.module.as_deref().filter(|path| !path.is_empty()).unwrap_or(&layer.name)
}

fn is_within(layer: &Layer, path: &str) -> bool {
    layer.module.as_deref().is_some_and(|module| compiler::is_within(module, path))
        || layer.name == identifier(path)
}

/// Why a layer stays as it is, if the rules or its weight say so.
fn reason(draft: &Draft, layer: &Layer, config: &Config) -> Result<Option<String>, Error> {
    if config.keep.iter().any(|path| is_within(layer, path)) {
        return Ok(Some("its module is kept".to_owned()));
    }
    if config.keep_ops.iter().any(|op| op == layer.kind.name()) {
        return Ok(Some("its operation is kept".to_owned()));
    }
    if layer.elements > 0 && layer.elements < config.min_elements {
        return Ok(Some(format!("has {} elements", layer.elements)));
    }
    if layer.elements == 0 {
        return Ok(None);
    }
    let mut draft = draft.clone();
    match edit::apply(&mut draft, &[layer], config, &HashMap::new(), &HashMap::new()) {
        Ok(()) => Ok(None),
        Err(error) if error.to_string().contains("do not divide") => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

fn is_picture(path: &Path) -> bool {
    has_extension(path, &["png", "jpg", "jpeg"])
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|found| extensions.iter().any(|it| it.eq_ignore_ascii_case(found)))
}

fn borrowed(sample: &Sample) -> Vec<(&str, Array)> {
    sample.iter().map(|(name, array)| (&**name, array.clone())).collect()
}

fn finished(prepared: &Prepared, draft: Draft, options: &Options) -> Result<Model, Error> {
    let mut prepared = prepared.clone();
    prepared.draft = draft;
    let model = compiler::finish(prepared, options);
    model.map_err(|error| Error::new(error.to_string()))
}

/// An engine for a program in `fp32`.
fn load(prepared: &Prepared, draft: Draft, options: &Options) -> Result<Engine, Error> {
    let options = Options { precision: Precision::Fp32, ..options.clone() };
    let model = finished(prepared, draft, &options)?;
    let verified = verify(&model).map_err(|report| {
        let first = report.diagnostics.first();
        let first = first.map_or_else(String::new, |diagnostic| diagnostic.message.clone());
        Error::new(format!("the quantized program is not sound: {first}"))
    })?;
    Engine::load(&verified, &LoadOptions::default()).map_err(|error| Error::of_engine(&error))
}

/// Runs a sample, and shows every tensor that comes about.
fn run(
    engine: &Engine,
    sample: &Sample,
    look: &mut dyn FnMut(&str, &Array),
) -> Result<Outputs, Error> {
    let session = engine.session(engine.default_function());
    let mut session = session.map_err(|error| Error::of_engine(&error))?;
    let mut observe = |_: &str, name: &str, value: &Value| {
        if let Some(array) = value.as_array() {
            look(name, array);
        }
    };
    let mut hooks = Hooks { observe: Some(&mut observe), ..Hooks::default() };
    let outputs = session.run_with(&borrowed(sample), &mut hooks);
    outputs.map_err(|error| Error::of_engine(&error))
}

/// Signal to noise over all samples: of a value, or of the worst output.
fn decibels(reference: &[Given], found: &[Given], value: Option<&str>) -> Option<f64> {
    let pairs = reference.iter().zip(found).flat_map(|(reference, found)| match value {
        Some(name) => {
            let pair = reference.values.get(name).zip(found.values.get(name));
            pair.into_iter().collect::<Vec<_>>()
        }
        None => {
            let outputs = reference.outputs.0.iter().zip(&found.outputs.0);
            outputs
                .filter_map(|((_, one), (_, other))| one.as_array().zip(other.as_array()))
                .collect()
        }
    });
    let snr = pairs.filter_map(|(one, other)| figures(one, other).ok()).map(|found| found.snr());
    snr.min_by(f64::total_cmp)
}

/// What a layer's output channels are off on average when it alone is quantized.
fn shift(reference: &[Given], found: &[Given], layer: &Layer) -> Option<Vec<f32>> {
    if !matches!(layer.kind, OpKind::Conv | OpKind::ConvTranspose | OpKind::Linear) {
        return None;
    }
    let mut sums: Vec<f64> = Vec::new();
    let mut count = 0usize;
    for (reference, found) in reference.iter().zip(found) {
        let wanted = reference.values.get(&layer.name)?;
        let (one, other) = (wanted.as_floats()?, found.values.get(&layer.name)?.as_floats()?);
        let shape = wanted.shape();
        let axis = if layer.kind == OpKind::Linear { shape.len() - 1 } else { 1 };
        let channels = *shape.get(axis)?;
        let inner: usize = shape[axis + 1..].iter().product();
        sums.resize(channels, 0.0);
        for (at, (one, other)) in one.iter().zip(other).enumerate() {
            sums[at / inner % channels] += f64::from(one - other);
        }
        count += one.len() / channels.max(1);
    }
    Some(sums.iter().map(|sum| (sum / count.max(1) as f64) as f32).collect())
}
