use std::path::PathBuf;

use coremill::llm::tokenizer_of;
use serde::Serialize;

use crate::output::{self, Failure};

/// Print the tokens of a text
///
/// Each line has the id of a token and its spelling in the vocabulary. The text is an argument, or standard input.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill tokenize SmolLM2-135M-Instruct.Q4_1.gguf 'Hello, world!'\n  coremill tokenize tokenizer.json --ids < text.txt\n  coremill tokenize smollm2 --decode '19556 28 905 17'"
)]
pub(crate) struct Args {
    /// A `tokenizer.json`, a `.gguf`, a transformers folder, or an output of `coremill llm`
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The text; without it, standard input
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Omit the tokens that are added at the start and end of every text
    #[arg(long)]
    plain: bool,
    /// Print only the ids, on one line
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print the text of token ids instead
    #[arg(long)]
    decode: bool,
    /// Print tokens as JSON
    #[arg(long)]
    json: bool,
}

/// Tokens of a text. The JSON form is stable: fields are only added while `format_version` stays.
#[derive(Serialize)]
struct Report<'t> {
    format_version: u32,
    tokens: Vec<Token<'t>>,
}

#[derive(Serialize)]
struct Token<'t> {
    id: u32,
    token: &'t str,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let tokenizer = tokenizer_of(&args.model).map_err(|error| super::failure(&error))?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => std::io::read_to_string(std::io::stdin())
            .map_err(|error| Failure::user(format_args!("cannot read standard input: {error}")))?,
    };
    if args.decode {
        let words = text.split(|c: char| c.is_whitespace() || c == ',');
        let ids: Result<Vec<u32>, _> =
            words.filter(|word| !word.is_empty()).map(str::parse).collect();
        let ids =
            ids.map_err(|error| Failure::user(format_args!("token ids must be numbers: {error}")))?;
        return output::print(&format!("{}\n", tokenizer.decode(&ids, false)));
    }
    let ids = tokenizer.encode(&text, !args.plain).map_err(|error| super::failure(&error))?;
    let tokens = ids.iter().map(|&id| Token { id, token: tokenizer.token(id).unwrap_or_default() });
    if args.json {
        return output::print_json(&Report { format_version: 1, tokens: tokens.collect() });
    }
    if args.ids {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        return output::print(&format!("{}\n", ids.join(" ")));
    }
    let lines = tokens.map(|Token { id, token }| format!("{id:>8}  {token:?}\n"));
    output::print(&lines.collect::<String>())
}
