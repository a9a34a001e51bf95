use std::path::{Path, PathBuf};
use std::time::Instant;

use coremill::llm::{Bundle, GenerateOptions, Generator, Message, Sampling, Tokenizer};
use serde::Serialize;

use super::loaded::DeviceArg;
use crate::output::{self, Failure};
use crate::progress::Progress;

/// Generate text with a language model
///
/// The model is what `coremill llm` wrote, a GGUF file, or a folder with `config.json` and safetensors. The text is printed as
/// it is generated. Without `--temperature` the most likely token is chosen each time.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill generate smollm2 --chat -p 'What is the capital of France?'\n  coremill generate SmolLM2.gguf -p 'Once upon a time' --temperature 0.8 --top-p 0.95 --seed 7\n  coremill generate smollm2 -p 'def main' --stop return --max-tokens 64 --timings"
)]
pub(crate) struct Args {
    /// A directory or a package that `coremill llm` wrote, a `.gguf`, or a folder with `config.json` and safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The text to continue, or with `--chat` the message to answer; `-` is standard input
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    /// Apply the model's chat template to the prompt
    #[arg(long)]
    chat: bool,
    /// System message
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    max_tokens: usize,
    /// Text that ends the generation, in which `\n` and `\t` are recognized; repeatable
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Divisor of logits before sampling; 0 chooses the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0, help_heading = "Sampling")]
    temperature: f32,
    /// Number of the most likely tokens to sample from; 0 samples from all
    #[arg(long, value_name = "K", default_value_t = 0, help_heading = "Sampling")]
    top_k: usize,
    /// Sample from the smallest set of most likely tokens with this total probability
    #[arg(long, value_name = "P", default_value_t = 1.0, help_heading = "Sampling")]
    top_p: f32,
    /// Leave out tokens with less than this share of the most likely token's probability
    #[arg(long, value_name = "P", default_value_t = 0.0, help_heading = "Sampling")]
    min_p: f32,
    /// Divisor of the logits of tokens that the text already contains
    #[arg(long, value_name = "R", default_value_t = 1.0, help_heading = "Sampling")]
    repeat_penalty: f32,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Sampling")]
    seed: u64,

    #[command(flatten)]
    generator: GeneratorArgs,
    /// Print times and speeds on standard error
    #[arg(long)]
    timings: bool,
    /// Print text, tokens and times as JSON at the end of the generation
    #[arg(long)]
    json: bool,
}

/// Where and how a language model runs.
#[derive(clap::Args)]
pub(super) struct GeneratorArgs {
    /// Number of cache positions, for weight files [default: the model's longest sequence, at most 2048]
    #[arg(long, value_name = "N")]
    pub(super) context: Option<usize>,
    /// Device to compute on
    #[arg(long, value_enum, default_value_t = DeviceArg::Host)]
    pub(super) device: DeviceArg,
    /// Number of threads on the host; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    pub(super) threads: usize,
}

/// Opens a model that generates text.
pub(super) fn open_bundle(path: &Path) -> Result<Bundle, Failure> {
    Bundle::open(path).map_err(|error| super::failure(&error))
}

impl GeneratorArgs {
    /// The model, compiled and planned.
    pub(super) fn load(&self, bundle: &Bundle) -> Result<Generator, Failure> {
        let build = bundle.build_options(self.context);
        let mut generator = bundle
            .generator(self.device.into(), self.threads, &build)
            .map_err(|error| super::failure(&error))?;
        generator.prepare().map_err(|error| super::failure(&error))?;
        Ok(generator)
    }
}

/// A generated text. Its JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    text: String,
    tokens: Vec<u32>,
    prompt_tokens: Vec<u32>,
    finish_reason: &'static str,
    load_seconds: f64,
    prefill_seconds: f64,
    decode_seconds: f64,
}

fn prompt_ids(args: &Args, bundle: &Bundle, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let prompt = match args.prompt.as_str() {
        "-" => std::io::read_to_string(std::io::stdin())
            .map_err(|error| Failure::user(format_args!("cannot read standard input: {error}")))?,
        prompt => prompt.to_owned(),
    };
    if !args.chat {
        return tokenizer.encode(&prompt, true).map_err(|error| super::failure(&error));
    }
    let template = bundle.chat_template().map_err(|error| super::failure(&error))?;
    let Some(template) = template else {
        let hint = "leave `--chat` out to continue the prompt itself";
        return Err(Failure::user("the model has no chat template").hint(Some(hint)));
    };
    let system = args.system.iter().map(|text| Message::new("system", text));
    let messages: Vec<_> = system.chain([Message::new("user", prompt)]).collect();
    let text = template.render(&messages, true).map_err(|error| super::failure(&error))?;
    // Templates write the tokens at the start of a text themselves.
    tokenizer.encode(&text, false).map_err(|error| super::failure(&error))
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let start = Instant::now();
    let progress = Progress::start(format!("loading {}", args.model.display()));
    let bundle = open_bundle(&args.model)?;
    let tokenizer = bundle.tokenizer().map_err(|error| super::failure(&error))?;
    let settings = bundle.generation_settings().map_err(|error| super::failure(&error))?;
    let prompt = prompt_ids(args, &bundle, &tokenizer)?;
    let mut generator = args.generator.load(&bundle)?;
    let load_seconds = start.elapsed().as_secs_f64();
    drop(progress);
    let mut sampling = Sampling::default();
    sampling.temperature = args.temperature;
    sampling.top_k = args.top_k;
    sampling.top_p = args.top_p;
    sampling.min_p = args.min_p;
    sampling.repetition_penalty = args.repeat_penalty;
    sampling.seed = args.seed;
    let mut options = GenerateOptions::default();
    options.max_tokens = args.max_tokens;
    options.sampling = sampling;
    options.stops = args.stop.iter().map(|text| unescaped(text)).collect();
    options.end_tokens = settings.eos.clone();
    let mut failed = None;
    let mut show = |text: &str| match args.json {
        true => true,
        false => output::print(text).map_err(|failure| failed = Some(failure)).is_ok(),
    };
    let generation = generator
        .generate(&tokenizer, &prompt, &options, &mut show)
        .map_err(|error| super::failure(&error))?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    let report = Report {
        format_version: 1,
        finish_reason: generation.reason.name(),
        load_seconds,
        prefill_seconds: generation.prefill.as_secs_f64(),
        decode_seconds: generation.decode.as_secs_f64(),
        text: generation.text,
        tokens: generation.tokens,
        prompt_tokens: prompt,
    };
    if args.timings {
        let speed = |count: usize, seconds: f64| count as f64 / seconds.max(1e-9);
        let (read, made) = (report.prompt_tokens.len(), report.tokens.len());
        output::tell(&format!(
            "{}loading: {load_seconds:.2} s\nprompt: {read} tokens in {:.2} s, {:.1} tokens/s\ngeneration: {made} tokens in {:.2} s, {:.1} tokens/s\n",
            if args.json { "" } else { "\n" },
            report.prefill_seconds,
            speed(read, report.prefill_seconds),
            report.decode_seconds,
            speed(made, report.decode_seconds),
        ));
    }
    if args.json { output::print_json(&report) } else { output::print("\n") }
}

/// A text with characters in the place of `\n`, `\t` and `\\`.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let next = if character == '\\' { characters.clone().next() } else { None };
        let replacement = match next {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('\\') => '\\',
            _ => {
                plain.push(character);
                continue;
            }
        };
        characters.next();
        plain.push(replacement);
    }
    plain
}

#[cfg(test)]
mod tests {
    #[test]
    fn decodes_backslash_escapes() {
        assert_eq!(super::unescaped(r"a\nb\\n\x"), "a\nb\\n\\x");
    }
}
