//! ExecuTorch programs, and the constant methods by which ExecuTorch's runners know a model.

use coremill_delegate::{Constant, ConstantTensor, ProgramOptions};
use coremill_graph::{Device, Executable};
use coremill_pte::Program;
use coremill_pte::program::ScalarType;

use crate::decoder::{LAST, POSITION, TOKENS};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::model::{BuildOptions, LanguageModel, Layout};

impl LanguageModel {
    /// The ExecuTorch program, with the constant methods that the layout's runner reads.
    pub fn to_program(&self, options: &BuildOptions) -> Result<Program> {
        self.program_of(&mut self.compile(Device::Host, 0, options)?, options)
    }

    /// The ExecuTorch program of a compiled model.
    pub(crate) fn program_of(
        &self,
        executable: &mut Executable,
        options: &BuildOptions,
    ) -> Result<Program> {
        let constant_methods = constant_methods(self, options)?;
        let wide_inputs = wide_inputs(options.layout).iter().map(|&name| name.to_owned());
        let program = ProgramOptions {
            constant_methods,
            wide_inputs: wide_inputs.collect(),
            ..ProgramOptions::default()
        };
        Ok(executable.to_program(&program)?)
    }
}

/// Names of the integer inputs that a layout's runner passes with 64 bits.
fn wide_inputs(layout: Layout) -> &'static [&'static str] {
    match layout {
        Layout::Coremill | Layout::SwiftTransformers | Layout::Chunks | Layout::Anemll => &[],
        Layout::ExecuTorch => &[TOKENS, POSITION],
        Layout::ExecuTorchStatic | Layout::ExecuTorchMultifunction => &[LAST],
    }
}

/// The constant methods that a layout's runner reads.
fn constant_methods(
    model: &LanguageModel,
    options: &BuildOptions,
) -> Result<Vec<(String, Constant)>> {
    match options.layout {
        Layout::Coremill | Layout::SwiftTransformers | Layout::Chunks | Layout::Anemll => {
            let error = Error::of_kind(
                ErrorKind::Argument,
                "the layouts `coremill`, `swift-transformers`, `chunks` and `anemll` have no methods for ExecuTorch's runners",
            );
            Err(error.with_hint(
                "choose `executorch`, `executorch-static` or `executorch-multifunction`",
            ))
        }
        Layout::ExecuTorch => text_runner(model, options),
        Layout::ExecuTorchStatic | Layout::ExecuTorchMultifunction => static_runner(model, options),
    }
}

fn int(number: usize) -> Constant {
    Constant::Int(number as i64)
}

/// The methods that `TextLLMRunner` reads.
fn text_runner(model: &LanguageModel, options: &BuildOptions) -> Result<Vec<(String, Constant)>> {
    let settings = model.generation_settings()?;
    let config = model.config();
    let block = options.block();
    let is_dynamic = block > 1;
    let mut methods = vec![
        ("enable_dynamic_shape", is_dynamic.into()),
        ("get_max_context_len", int(options.context)),
        // A runner that reads token by token has no blocks.
        ("get_max_seq_len", int(if is_dynamic { block } else { options.context })),
        ("get_n_layers", int(config.layers)),
        ("get_vocab_size", int(config.vocabulary)),
        ("use_kv_cache", true.into()),
        ("use_sdpa_with_kv_cache", false.into()),
    ];
    if let Some(bos) = settings.bos {
        methods.push(("get_bos_id", Constant::Int(bos.into())));
    }
    if !settings.eos.is_empty() {
        let ids = settings.eos.iter().map(|&id| Constant::Int(id.into())).collect();
        methods.push(("get_eos_ids", Constant::Several(ids)));
    }
    Ok(methods.into_iter().map(|(name, constant)| (name.to_owned(), constant)).collect())
}

/// Index of the first cache among the inputs: after tokens, mask, cosines and sines.
const FIRST_CACHE: usize = 4;

/// The methods that static runners read. They name inputs and outputs by index.
fn static_runner(model: &LanguageModel, options: &BuildOptions) -> Result<Vec<(String, Constant)>> {
    let config = model.config();
    let tables = rotations(model, options.context)?;
    let is_single = options.layout == Layout::ExecuTorchStatic;
    let block = options.block();
    let cached = options.context - if is_single { block } else { 1 };
    let index = |number: i64| -> Result<Constant> { Ok(tensor(&[1], &[number])?.into()) };
    let layers = config.layers;
    let specs: Vec<i64> = (0..layers)
        .flat_map(|layer| {
            let (key, value) = (FIRST_CACHE + layer, FIRST_CACHE + layers + layer);
            [key, 1 + layer, value, 1 + layers + layer, cached].map(|number| number as i64)
        })
        .collect();
    let [cos, sin] = tables;
    let mut methods = vec![
        ("vocab_size".to_owned(), int(config.vocabulary)),
        ("head_dim".to_owned(), int(config.head)),
        ("n_heads_per_cache".to_owned(), int(config.kv_heads)),
        ("freqs_cos".to_owned(), cos.into()),
        ("freqs_sin".to_owned(), sin.into()),
    ];
    let functions: &[(&str, &str, usize)] = match is_single {
        true => &[("", "forward_input_len", block)],
        false => &[("decode_", "decode_input_len", 1), ("prefill_", "prefill_input_len", block)],
    };
    for &(prefix, length, tokens) in functions {
        let mut add = |name: &str, constant: Constant| {
            methods.push((format!("{prefix}{name}"), constant));
        };
        add("freqs_cos_input_index", index(2)?);
        add("freqs_sin_input_index", index(3)?);
        add("mask_specs", tensor(&[1, 2], &[1, cached as i64])?.into());
        add("kv_cache_specs", tensor(&[layers, 5], &specs)?.into());
        methods.push((length.to_owned(), int(tokens)));
    }
    Ok(methods)
}

fn tensor(sizes: &[usize], elements: &[i64]) -> Result<ConstantTensor> {
    ConstantTensor::ints(sizes, elements).map_err(of_delegate)
}

fn of_delegate(error: coremill_delegate::Error) -> Error {
    Error::from_source(ErrorKind::Run, error)
}

/// Cosines and sines of all positions in fp16, of shape `[context, rotated / 2]`.
fn rotations(model: &LanguageModel, context: usize) -> Result<[ConstantTensor; 2]> {
    let (frequencies, amplitude) = model.config().rotation.frequencies(context);
    let Some(count) = context.checked_mul(frequencies.len()).filter(|&it| it <= 1 << 28) else {
        fail!(Argument, "the table of rotary embeddings for {context} positions is too large");
    };
    let table = |of: fn(f64) -> f64| {
        let mut bytes = Vec::with_capacity(count * 2);
        for position in 0..context {
            for frequency in &frequencies {
                let number = of(position as f64 * frequency) * amplitude;
                bytes.extend(half::f16::from_f64(number).to_le_bytes());
            }
        }
        ConstantTensor::new(ScalarType::Half, &[context, frequencies.len()], bytes)
            .map_err(of_delegate)
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}
