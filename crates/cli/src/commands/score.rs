use std::path::PathBuf;

use coremill::llm::{Bundle, Generator, Score, score};
use serde::Serialize;

use super::generate::open_bundle;
use crate::output::{self, Failure};
use crate::progress::Progress;

/// Measure how well a language model predicts a text
///
/// Prints the perplexity, and with `--against` the distance from another model's predictions: the mean
/// Kullback-Leibler divergence, and how often the most likely token is the same.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill score smollm2 --text wiki.txt\n  coremill score smollm2 --text wiki.txt --against SmolLM2-135M-Instruct.Q4_1.gguf --fp32"
)]
pub(crate) struct Args {
    /// A directory or a package that `coremill llm` wrote, a `.gguf`, or a folder with `config.json` and safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The text
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// The model to compare with, which must have the same tokens
    #[arg(long, value_name = "MODEL")]
    against: Option<PathBuf>,
    /// Maximum number of tokens to read
    #[arg(long, value_name = "N", default_value_t = 2048)]
    tokens: usize,
    /// Compute with weight files in fp32 instead of the precision of converted models
    #[arg(long)]
    fp32: bool,
    /// Number of cache positions, for weight files [default: the model's longest sequence, at most 2048]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Number of threads; 0 uses all processors
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::threads)]
    threads: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A score. Its JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    tokens: usize,
    loss: f64,
    perplexity: f64,
    accuracy: f64,
    comparison: Option<ComparisonReport>,
}

#[derive(Serialize)]
struct ComparisonReport {
    perplexity: f64,
    divergence: f64,
    max_divergence: f64,
    agreement: f64,
}

fn load(args: &Args, bundle: &Bundle) -> Result<Generator, Failure> {
    let mut options = bundle.build_options(args.context).all_logits();
    if args.fp32 {
        options = options.precision(coremill::graph::Precision::Fp32);
    }
    let generator = bundle.generator(coremill::session::Device::Host, args.threads, &options);
    generator.map_err(|error| super::failure(&error))
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let progress = Progress::start(format!("loading {}", args.model.display()));
    let bundle = open_bundle(&args.model)?;
    let tokenizer = bundle.tokenizer().map_err(|error| super::failure(&error))?;
    let text = std::fs::read_to_string(&args.text).map_err(|error| {
        Failure::user(format_args!("cannot read {}: {error}", args.text.display()))
    })?;
    let mut ids = tokenizer.encode(&text, true).map_err(|error| super::failure(&error))?;
    ids.truncate(args.tokens);
    let mut model = load(args, &bundle)?;
    let reference = args.against.as_deref().map(open_bundle).transpose()?;
    let mut reference = reference.as_ref().map(|bundle| load(args, bundle)).transpose()?;
    let total = ids.len();
    let mut watch = |count: usize| progress.stage(format!("{count} of {total} tokens"));
    let score = score(&mut model, reference.as_mut(), &ids, &mut watch)
        .map_err(|error| super::failure(&error))?;
    drop(progress);
    let Score { tokens, loss, perplexity, accuracy, comparison, .. } = score;
    let comparison = comparison.map(|compared| ComparisonReport {
        perplexity: compared.perplexity,
        divergence: compared.divergence,
        max_divergence: compared.max_divergence,
        agreement: compared.agreement,
    });
    if args.json {
        let report = Report { format_version: 1, tokens, loss, perplexity, accuracy, comparison };
        return output::print_json(&report);
    }
    let mut text = format!("{tokens} tokens: perplexity {perplexity:.4}, loss {loss:.5}\n");
    text += &format!("the most likely token was right for {:.2} %\n", accuracy * 100.0);
    if let Some(compared) = comparison {
        let ComparisonReport { perplexity, divergence, max_divergence, agreement } = compared;
        text += &format!("reference: perplexity {perplexity:.4}\n");
        text += &format!("divergence: mean {divergence:.3e}, largest {max_divergence:.3e}\n");
        text += &format!("same most likely token: {:.2} %\n", agreement * 100.0);
    }
    output::print(&text)
}
