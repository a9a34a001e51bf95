//! A small model in files: reading, conversion, generation and errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coremill_compress::linear::Config as LinearConfig;
use coremill_compress::{CompressionConfig, Palette, Rule, Selector, Values};
use coremill_graph::{Device, Precision};
use coremill_llm::{
    BuildOptions, Bundle, Cache, Destination, ErrorKind, FinishReason, GenerateOptions, Generator,
    LanguageModel, Layout, Message, Weights, check_companions, supported_companions,
    write_companions,
};
use serde_json::json;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tiny")
}

/// A copy of the model with one file changed.
fn changed(directory: &Path, name: &str, change: impl FnOnce(String) -> String) -> PathBuf {
    let folder = directory.join("changed");
    fs::create_dir_all(&folder).expect("a folder");
    for entry in fs::read_dir(tiny()).expect("the model") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
    }
    let text = fs::read_to_string(folder.join(name)).expect("a text");
    fs::write(folder.join(name), change(text)).expect("a change");
    folder
}

fn generator(model: &LanguageModel, prefill: usize) -> Generator {
    let options = BuildOptions::default().context(16).prefill(prefill);
    let options = options.precision(Precision::Fp32);
    Generator::new(model.compile(Device::Host, 1, &options).expect("compiles")).expect("loads")
}

#[test]
fn prefill_blocks_match_single_token_logits() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let ids = model.tokenizer().expect("a tokenizer").encode("ab cab.", true).expect("short");
    let [mut blocks, mut singles] = [8, 1].map(|prefill| generator(&model, prefill));
    let [found, expected] = [&mut blocks, &mut singles].map(|it| it.read(&ids).expect("runs"));
    let max_error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(max_error < 1e-5, "maximum error {max_error}");
    assert!(found.iter().any(|logit| (logit - found[0]).abs() > 1e-2), "{found:?}");
}

#[test]
fn prefill_with_two_block_sizes_matches_single_tokens() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let options = BuildOptions::default().context(32).prefill(4).long_prefill(8);
    let options = options.precision(Precision::Fp32);
    let mut executable = model.compile(Device::Host, 1, &options).expect("compiles");
    let mut names = executable.functions().expect("functions");
    names.sort();
    assert_eq!(names, ["decode", "long_prefill", "prefill"]);
    let mut blocks = Generator::new(executable).expect("loads");
    let single = model.compile(Device::Host, 1, &options.prefill(1)).expect("compiles");
    let mut singles = Generator::new(single).expect("loads");
    let ids: Vec<u32> = (0..31).map(|at| (at * 7 + 3) % 32).collect();
    for count in [1, 3, 5, 6, 7, 8, 11, 15, 22, 26, 31] {
        let [found, expected] = [&mut blocks, &mut singles].map(|generator| {
            generator.reset();
            generator.read(&ids[..count]).expect("runs")
        });
        let max_error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_error < 1e-5, "{count} tokens: maximum error {max_error}");
    }
}

#[test]
fn caller_held_kv_cache_matches_stateful_cache() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let options = BuildOptions::default().context(32).prefill(4).precision(Precision::Fp32);
    let compiled = |options: &BuildOptions| model.compile(Device::Host, 1, options);
    let mut executable = compiled(&options.clone().cache(Cache::Io)).expect("compiles");
    for function in ["decode", "prefill"] {
        assert!(executable.states(function).expect("states").is_empty());
        let outputs = executable.outputs(function).expect("outputs");
        assert!(outputs.iter().any(|output| output.name == "new_cache"), "{outputs:?}");
    }
    let mut caller_held = Generator::new(executable).expect("loads");
    let mut stateful = Generator::new(compiled(&options).expect("compiles")).expect("loads");
    assert_eq!(caller_held.context(), stateful.context());
    let ids: Vec<u32> = (0..31).map(|at| (at * 7 + 3) % 32).collect();
    for count in [1, 9, 31] {
        let [found, expected] = [&mut caller_held, &mut stateful].map(|generator| {
            generator.reset();
            generator.read(&ids[..count]).expect("runs")
        });
        // The cache is rounded to fp16 if it is an input, but not if it is a state.
        let max_error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_error < 5e-3, "{count} tokens: maximum error {max_error}");
    }
    for layout in [Layout::ExecuTorch, Layout::SwiftTransformers] {
        let error = compiled(&options.clone().layout(layout).cache(Cache::Io));
        let error = error.err().expect("callers of this layout expect states");
        assert_eq!(error.kind(), ErrorKind::Argument);
    }
}

#[test]
fn omits_long_prefill_block_for_unsuitable_options() {
    let defaults = BuildOptions::default();
    assert_eq!(defaults.long_block(), Some(256));
    assert_eq!(defaults.clone().context(512).long_block(), Some(256));
    for options in [
        defaults.clone().context(511),
        defaults.clone().prefill(1),
        defaults.clone().prefill(256),
        defaults.clone().long_prefill(1),
        defaults.clone().layout(Layout::ExecuTorch),
        defaults.all_logits(),
    ] {
        assert_eq!(options.long_block(), None, "{options:?}");
    }
}

#[test]
fn warns_if_tokenizer_is_missing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let folder = changed(scratch.path(), "config.json", |text| text);
    let warning = || {
        let model = LanguageModel::open(&folder).expect("opens");
        supported_companions(model.companions()).expect("files").1
    };
    assert_eq!(warning(), None);
    fs::remove_file(folder.join("tokenizer.json")).expect("removed");
    assert!(warning().expect("a warning").contains("no tokenizer was found"));
}

#[test]
fn generation_ends_at_context_max_tokens_or_eos() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let prompt = tokenizer.encode("ab", true).expect("short");
    let mut generator = generator(&model, 1);
    let mut generate = |change: &dyn Fn(&mut GenerateOptions)| {
        let mut options = GenerateOptions::default();
        change(&mut options);
        generator.reset();
        let mut shown = String::new();
        let mut show = |part: &str| {
            shown.push_str(part);
            true
        };
        let generation = generator.generate(&tokenizer, &prompt, &options, &mut show);
        let generation = generation.expect("runs");
        assert_eq!(generation.text, shown);
        generation
    };
    let full = generate(&|_| {});
    // The context of 16 holds 1 prompt token and 15 generated ones. The 16th generated token is returned, but not read by the
    // model.
    assert_eq!((full.reason, full.tokens.len()), (FinishReason::Length, 16));
    assert_eq!(generate(&|options| options.max_tokens = 3).tokens, full.tokens[..3]);
    let end = full.tokens[2];
    let stopped = generate(&|options| options.end_tokens = vec![end]);
    let first = full.tokens.iter().position(|&id| id == end).expect("generated");
    assert_eq!(
        (stopped.reason, stopped.tokens.as_slice()),
        (FinishReason::Stop, &full.tokens[..first])
    );
}

/// Reads texts one after another, and reuses the prefix that each shares with the previous one. Asserts that reuse does not
/// change the logits. Returns the logits, and the lengths of the reused prefixes.
fn shared_prefixes<const N: usize>(
    generator: &mut Generator,
    texts: [&[u32]; N],
) -> ([Vec<f32>; N], Vec<usize>) {
    let expected = texts.map(|ids| {
        generator.reset();
        generator.read(ids).expect("runs")
    });
    generator.reset();
    let mut kept = Vec::new();
    for (text, expected) in texts.iter().zip(&expected) {
        kept.push(generator.keep_prefix(text));
        let found = generator.read(&text[kept[kept.len() - 1]..]).expect("runs");
        let max_error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_error < 1e-5, "{text:?}: maximum error {max_error}");
    }
    (expected, kept)
}

#[test]
fn reuses_kv_cache_of_common_prefix() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let texts = [&[3, 5, 4, 9, 7, 6][..], &[3, 5, 4, 8, 7], &[3, 5, 4, 8, 7], &[9, 3]];
    let (_, kept) = shared_prefixes(&mut generator(&model, 4), texts);
    // The last token of a text is read again, because its logits are not kept.
    assert_eq!(kept, [0, 3, 4, 0]);
}

/// A small model with a recurrent layer.
fn recurrent(folder: &Path) -> LanguageModel {
    let config = json!({
        "model_type": "mamba", "vocab_size": 16, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1, "expand": 2,
        "intermediate_size": 16, "conv_kernel": 4, "time_step_rank": 2, "use_conv_bias": true, "use_bias": false,
        "layer_norm_epsilon": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let tensors: [(&str, &[usize]); 12] = [
        ("embeddings.weight", &[16, 8]),
        ("norm_f.weight", &[8]),
        ("layers.0.norm.weight", &[8]),
        ("layers.0.mixer.in_proj.weight", &[32, 8]),
        ("layers.0.mixer.conv1d.weight", &[16, 1, 4]),
        ("layers.0.mixer.conv1d.bias", &[16]),
        ("layers.0.mixer.x_proj.weight", &[10, 16]),
        ("layers.0.mixer.dt_proj.weight", &[16, 2]),
        ("layers.0.mixer.dt_proj.bias", &[16]),
        ("layers.0.mixer.A_log", &[16, 4]),
        ("layers.0.mixer.D", &[16]),
        ("layers.0.mixer.out_proj.weight", &[8, 16]),
    ];
    let (mut header, mut data) = (json!({}), Vec::new());
    let mut random = 1u32;
    for (name, shape) in tensors {
        let start = data.len();
        for _ in 0..shape.iter().product() {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            data.extend((random as f32 / u32::MAX as f32 * 2.0 - 1.0).to_le_bytes());
        }
        header[format!("backbone.{name}")] =
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
    }
    let header = header.to_string().into_bytes();
    let parts = [&(header.len() as u64).to_le_bytes()[..], &header, &data];
    fs::write(folder.join("model.safetensors"), parts.concat()).expect("written");
    LanguageModel::open(folder).expect("opens")
}

/// A recurrent state summarizes all tokens so far: it can be extended, but not rolled back to a shorter prefix.
#[test]
fn recurrent_model_rereads_prompt_if_prefix_changes() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let texts = [&[3, 5, 4, 9][..], &[3, 5, 4, 9, 6, 2], &[3, 5, 4, 8, 7]];
    let mut generator = generator(&recurrent(scratch.path()), 1);
    let (expected, kept) = shared_prefixes(&mut generator, texts);
    assert_eq!(kept, [0, 4, 0]);
    assert_ne!(expected[0], expected[2]);
}

#[test]
fn cancellation_stops_prefill_and_generation() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let mut generator = generator(&model, 2);
    let cancel = Arc::new(AtomicBool::new(true));
    let mut options = GenerateOptions::default();
    options.cancel = Some(cancel.clone());
    let prompt = [3, 5, 4, 9];
    let generation = generator.generate(&tokenizer, &prompt, &options, &mut |_| true);
    let generation = generation.expect("runs");
    assert_eq!((generation.reason, generation.tokens.len()), (FinishReason::Cancelled, 0));
    // Only the first block of 2 tokens was read.
    assert_eq!(generator.position(), 2);
    generator.reset();
    let mut show = |_: &str| {
        cancel.store(true, Ordering::Relaxed);
        true
    };
    cancel.store(false, Ordering::Relaxed);
    let generation = generator.generate(&tokenizer, &prompt, &options, &mut show).expect("runs");
    assert_eq!(generation.reason, FinishReason::Cancelled);
    assert!(!generation.tokens.is_empty() && generation.tokens.len() < 12);
}

#[test]
fn rejects_unsupported_config_and_missing_tensors() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let refusal = |name: &str, from: &str, to: &str| {
        let folder = changed(scratch.path(), name, |text| text.replace(from, to));
        LanguageModel::open(&folder).expect_err("refused")
    };
    let family = refusal("config.json", "\"model_type\": \"llama\"", "\"model_type\": \"t5\"");
    assert_eq!(family.kind(), ErrorKind::Unsupported);
    assert!(
        family.to_string().contains("`t5` is not supported; expected llama, mistral"),
        "{family}"
    );
    let rope = refusal("config.json", "\"rope_type\": \"default\"", "\"rope_type\": \"spiral\"");
    assert!(rope.to_string().contains("`spiral`"), "{rope}");
    for (from, to) in [
        ("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 99999999"),
        ("\"num_attention_heads\": 2", "\"num_attention_heads\": 0"),
        ("\"head_dim\": 8", "\"head_dim\": -8"),
        ("\"rope_theta\": 10000.0", "\"rope_theta\": -1.0"),
        ("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": null"),
    ] {
        assert_eq!(refusal("config.json", from, to).kind(), ErrorKind::Format, "{to}");
    }
    let deeper = changed(scratch.path(), "config.json", |text| {
        text.replace("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2")
    });
    let model = LanguageModel::open(&deeper).expect("opens");
    let missing = model.compile(Device::Host, 1, &BuildOptions::default().context(16).prefill(1));
    let missing = missing.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(missing.contains("no tensor `model.layers.1."), "{missing}");
}

#[test]
fn rejects_context_prefill_and_tokens_out_of_range() {
    let model = LanguageModel::open(tiny()).expect("opens");
    for (context, prefill) in [(0, 1), (33, 1), (16, 17), (16, 0)] {
        let options = BuildOptions::default().context(context).prefill(prefill);
        let error = model.graphs(&options).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Argument, "{context} {prefill}");
    }
    let mut generator = generator(&model, 4);
    assert_eq!(generator.read(&[3; 17]).expect_err("too long").kind(), ErrorKind::Argument);
    assert_eq!(
        generator.read(&[32]).expect_err("a token out of range").kind(),
        ErrorKind::Argument
    );
}

#[test]
fn rejects_overwriting_companions_of_another_model() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = LanguageModel::open(tiny()).expect("opens");
    let files = model.companions().expect("files");
    write_companions(scratch.path(), &files).expect("written");
    check_companions(scratch.path(), &files).expect("the same files");
    fs::write(scratch.path().join("tokenizer.json"), "{}").expect("written");
    let error = check_companions(scratch.path(), &files).expect_err("refused");
    assert!(error.to_string().contains("another model"), "{error}");
}

#[test]
fn compression_rules_apply_to_selected_weights() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let form = CompressionConfig {
        values: Values::Linear(LinearConfig::default()),
        ..CompressionConfig::default()
    };
    let rule = |pattern: &str| {
        let names = vec![pattern.to_owned()];
        let selector = Selector { names, min_elements: Some(1), ..Selector::default() };
        Rule { selector, form: form.clone() }
    };
    let scratch = tempfile::tempdir().expect("a directory");
    let rules = [rule("no.such.weight"), rule("model.layers.*.mlp.down_proj.weight")];
    let saved = |name: &str, layout: Layout, options: &BuildOptions| {
        let destination = Destination::of(&scratch.path().join(name), Some(layout))?;
        model.save(&destination, &model.companions()?, options, false, &mut |_| {})
    };
    let options = BuildOptions::default().context(32).prefill(4).rules(rules.clone());
    for (name, layout) in [("whole", Layout::Coremill), ("chunks", Layout::Chunks)] {
        let saved = saved(name, layout, &options).expect("written");
        assert_eq!(saved.warnings, ["rule 1 selects no weight"]);
        assert!(!saved.losses.is_empty());
        for loss in &saved.losses {
            assert!(loss.tensor.ends_with("mlp.down_proj.weight"), "{loss:?}");
            assert!(loss.decibels > 30.0, "{loss:?}");
        }
    }
    // The 32 rows of the embedding table are not divisible into groups of 7, so this palette does not apply.
    let palette = Palette { bits: Some(2), group: Some(7), ..Palette::default() };
    let form =
        CompressionConfig { values: Values::Palette(palette), ..CompressionConfig::default() };
    let uneven = Rule { form, ..rule("*.embed_tokens.weight") };
    let uneven = saved("uneven", Layout::Coremill, &options.rules([uneven])).expect("written");
    let start = "`model.embed_tokens.weight` stays in fp16 despite rule 1: ";
    assert!(uneven.losses.is_empty() && uneven.warnings.len() == 1, "{uneven:?}");
    assert!(uneven.warnings[0].starts_with(start), "{uneven:?}");
    let error = saved("anemll", Layout::Anemll, &BuildOptions::default().context(32).rules(rules));
    assert_eq!(error.expect_err("rules for a bundle").kind(), ErrorKind::Argument);
}

#[test]
fn loads_chat_template_from_model_folder() {
    let bundle = Bundle::open(tiny()).expect("opens");
    let template = bundle.chat_template().expect("sound").expect("there is one");
    let text = template.render(&[Message::new("user", "cab")], true).expect("sound");
    assert_eq!(text, "user cab\na ");
}

#[test]
fn weights_exact_in_fp16_report_no_losses() {
    let model = LanguageModel::open(tiny()).expect("opens");
    for weights in [Weights::Exact, Weights::Fp16] {
        let losses = model.losses(weights).expect("reads");
        assert!(losses.is_empty(), "{losses:?}");
    }
}
