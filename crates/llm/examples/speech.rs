//! `speech DIRECTORY`: features, hidden states and logits of a speech model in fp32, for comparison with other software.
//!
//! `DIRECTORY` has the folder `model`, the audio `audio.wav`, and `tokens.json`: the first tokens are read by `prefill`, at most four,
//! and the others by `decode`. `DIRECTORY/result.json` gets the numbers. The logits are those after the first tokens, and after each other
//! one.

use std::path::Path;

use coremill_graph::{Device, Precision};
use coremill_llm::{Audio, SpeechOptions, Transcriber};
use serde_json::json;

const BLOCK: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).ok_or("DIRECTORY")?;
    let directory = Path::new(&directory);
    let tokens = std::fs::read(directory.join("tokens.json"))?;
    let tokens: Vec<u32> = serde_json::from_slice(&tokens)?;
    let options = SpeechOptions::default().precision(Precision::Fp32);
    let model = directory.join("model");
    let mut transcriber = Transcriber::open(model, Device::Host, 1, &options)?;
    let audio = Audio::read(directory.join("audio.wav"))?;
    let features = transcriber.features().features(&audio.samples);
    let window = features.window(0, transcriber.features().frames());
    let [hidden, cross] = transcriber.encode(&window)?;
    let (first, rest) = tokens.split_at(BLOCK.min(tokens.len()));
    let mut logits = vec![transcriber.begin(&cross, first)?];
    for (index, token) in rest.iter().enumerate() {
        logits.push(transcriber.read(*token, first.len() + index)?);
    }
    let result = json!({ "features": features.values, "hidden": hidden, "logits": logits });
    std::fs::write(directory.join("result.json"), result.to_string())?;
    Ok(())
}
