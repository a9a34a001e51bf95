//! `logits DIRECTORY`: logits of language models in fp32, for comparison with other software.
//!
//! `DIRECTORY/cases.json` lists cases: a name, the path of a model, the size of blocks, and tokens. The first block of tokens is
//! read by `prefill`, the others by `decode`. With `last`, a block that is not filled is read, and its last logits are returned. With
//! `chunks`, the layers are in that number of models. `DIRECTORY/NAME.json` gets the logits after each token, or the error.

use std::path::Path;

use coremill_graph::{Device, Precision};
use coremill_llm::{BuildOptions, Bundle, Destination, Generator, LanguageModel, Layout};
use serde_json::{Value, json};

const CONTEXT: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).ok_or("DIRECTORY")?;
    let directory = Path::new(&directory);
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(directory.join("cases.json"))?)?;
    for case in &cases {
        let name = case["name"].as_str().ok_or("a case has no name")?;
        let result = match logits(case) {
            Ok(logits) => json!({ "logits": logits }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        std::fs::write(directory.join(format!("{name}.json")), result.to_string())?;
    }
    Ok(())
}

fn logits(case: &Value) -> Result<Vec<Vec<f32>>, Box<dyn std::error::Error>> {
    let model = LanguageModel::open(case["model"].as_str().ok_or("no model")?)?;
    let tokens = case["tokens"].as_array().ok_or("no tokens")?;
    let tokens: Vec<u32> = tokens.iter().filter_map(Value::as_u64).map(|id| id as u32).collect();
    let block = case["block"].as_u64().unwrap_or(1) as usize;
    let options = BuildOptions::default().context(CONTEXT).prefill(block);
    let options = options.precision(Precision::Fp32);
    let options = if case["last"] == true { options } else { options.all_logits() };
    let mut generator = match case["chunks"].as_u64() {
        Some(count) => {
            // The models for the Neural Engine return the logits of the last token only.
            let options = options.chunks(count as usize);
            let folder = tempfile::tempdir()?;
            let destination = Destination::of(folder.path(), Some(Layout::Chunks))?;
            model.save(&destination, &[], &options, false, &mut |_| {})?;
            Bundle::open(folder.path())?.generator(Device::Host, 1, &options)?
        }
        None => Generator::new(model.compile(Device::Host, 1, &options)?)?,
    };
    let mut rows = Vec::new();
    let count = if case["last"] == true { block - 1 } else { block };
    let (first, rest) = tokens.split_at(count.min(tokens.len()));
    generator.read_all(first, &mut |_, logits| rows.push(logits.to_vec()))?;
    for token in rest {
        rows.push(generator.read(&[*token])?);
    }
    Ok(rows)
}
