use std::path::PathBuf;

use coremill::graph::Precision;
use coremill::llm::{Embedder, EmbeddingOptions};
use serde::Serialize;

use super::loaded::DeviceArg;
use crate::output::{self, Failure};
use crate::progress::Progress;

/// Compute the embeddings of texts
///
/// The model is what `coremill llm` wrote, a GGUF file, or a folder with `config.json` and safetensors: BERT and related models.
/// Each text becomes a vector, which is printed as one line. Texts that are too long are truncated.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill embed all-MiniLM-L6-v2 -p 'Hello, world!'\n  coremill embed bge-small -p 'a cat' -p 'a dog' --json\n  coremill embed nomic-embed-text-v1.5.Q8_0.gguf --lines < sentences.txt"
)]
pub(crate) struct Args {
    /// A directory or a package that `coremill llm` wrote, a `.gguf`, or a folder with `config.json` and safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Text to embed; repeatable
    #[arg(short, long, value_name = "TEXT", required_unless_present = "lines")]
    prompt: Vec<String>,
    /// Read each line of standard input as a text
    #[arg(long, conflicts_with = "prompt")]
    lines: bool,
    /// Compute with weight files in fp32 instead of the precision of converted models
    #[arg(long)]
    fp32: bool,
    /// Device to compute on
    #[arg(long, value_enum, default_value_t = DeviceArg::Host)]
    device: DeviceArg,
    /// Number of threads on the host; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    threads: usize,
    /// Print the embeddings as JSON
    #[arg(long)]
    json: bool,
}

/// Embeddings of texts. The JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    width: usize,
    embeddings: Vec<Embedding>,
}

#[derive(Serialize)]
struct Embedding {
    tokens: usize,
    values: Vec<f32>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let failure = |error: coremill::llm::Error| super::failure(&error);
    let progress = Progress::start(format!("loading {}", args.model.display()));
    let mut options = EmbeddingOptions::default();
    if args.fp32 {
        options = options.precision(Precision::Fp32);
    }
    let opened = Embedder::open(&args.model, args.device.into(), args.threads, &options);
    let mut embedder = opened.map_err(failure)?;
    let texts = match args.lines {
        true => {
            let text = std::io::read_to_string(std::io::stdin()).map_err(|error| {
                Failure::user(format_args!("cannot read standard input: {error}"))
            })?;
            text.lines().map(str::to_owned).collect()
        }
        false => args.prompt.clone(),
    };
    let mut embeddings = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        progress.stage(format!("text {} of {}", index + 1, texts.len()));
        let ids = embedder.encode(text).map_err(failure)?;
        let values = embedder.embed(&ids).map_err(failure)?;
        embeddings.push(Embedding { tokens: ids.len(), values });
    }
    drop(progress);
    if args.json {
        let width = embedder.width();
        return output::print_json(&Report { format_version: 1, width, embeddings });
    }
    let line = |embedding: &Embedding| {
        let numbers: Vec<_> = embedding.values.iter().map(ToString::to_string).collect();
        numbers.join(" ") + "\n"
    };
    output::print(&embeddings.iter().map(line).collect::<String>())
}
