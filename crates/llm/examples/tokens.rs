//! `tokens TOKENIZER`, a `tokenizer.json` or a `.gguf`: token ids of the texts in a JSON list on standard input, and the text of these tokens, one JSON a line.
//! `tokens FOLDER --chat`: texts of conversations, whose variables the list holds.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill_llm::{ChatTemplate, LanguageModel, Tokenizer};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("TOKENIZER")?;
    let inputs: Vec<Value> = serde_json::from_reader(std::io::stdin())?;
    if arguments.next().is_some() {
        let template = ChatTemplate::open(&path)?.ok_or("the folder has no template")?;
        for case in inputs {
            let prompts = case["add_generation_prompt"].as_bool().unwrap_or(false);
            println!("{}", json!(template.render_with(&case, prompts)?));
        }
        return Ok(());
    }
    let tokenizer = match path.ends_with(".gguf") {
        true => LanguageModel::open(&path)?.tokenizer()?,
        false => Tokenizer::open(&path)?,
    };
    for text in inputs {
        let ids = tokenizer.encode(text.as_str().unwrap_or_default(), true)?;
        println!("{}", json!({ "ids": ids, "text": tokenizer.decode(&ids, true) }));
    }
    Ok(())
}
