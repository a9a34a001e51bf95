//! A small model as ExecuTorch programs: each layout computes the same logits as the layout `coremill`.

use std::path::{Path, PathBuf};

use coremill_graph::{Device, Precision};
use coremill_llm::{
    BuildOptions, Bundle, Destination, ErrorKind, Generator, LanguageModel, Layout,
};
use coremill_pte::program::{Placement, ScalarType, Value};

const CONTEXT: usize = 16;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tiny")
}

fn options(layout: Layout, prefill: usize) -> BuildOptions {
    let options = BuildOptions::default().context(CONTEXT).prefill(prefill).layout(layout);
    options.precision(Precision::Fp32)
}

/// Logits after each call of a generator that reads tokens in parts.
fn logits(generator: &mut Generator, parts: &[&[u32]]) -> Vec<Vec<f32>> {
    parts.iter().map(|part| generator.read(part).expect("runs")).collect()
}

const PARTS: [&[u32]; 4] = [&[3, 5, 4, 9, 7], &[6], &[11, 3], &[8]];

#[test]
fn executorch_layouts_match_coremill_logits() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let compiled = model.compile(Device::Host, 1, &options(Layout::Coremill, 4));
    let mut reference = Generator::new(compiled.expect("compiles")).expect("loads");
    let expected = logits(&mut reference, &PARTS);
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let layouts = [
        ("dynamic.pte", Layout::ExecuTorch, 8, 1e-5),
        ("chunks.pte", Layout::ExecuTorch, 2, 1e-5),
        ("single.pte", Layout::ExecuTorch, 1, 1e-5),
        // Here the KV cache and the cosines and sines of RoPE are fp16 inputs, hence the larger tolerance.
        ("static.pte", Layout::ExecuTorchStatic, 4, 5e-3),
        ("several.pte", Layout::ExecuTorchMultifunction, 4, 5e-3),
    ];
    for (name, layout, prefill, tolerance) in layouts {
        let output = scratch.path().join(name);
        let destination = Destination::of(&output, Some(layout)).expect("a destination");
        let options = options(layout, prefill);
        let written = model.save(&destination, &[], &options, false, &mut |_| {});
        assert_eq!(written.expect("written").files, std::slice::from_ref(&output));
        let bundle = Bundle::open(&output).expect("opens");
        let mut generator =
            bundle.generator(Device::Host, 1, &BuildOptions::default()).expect("loads");
        assert_eq!(generator.vocabulary(), reference.vocabulary());
        for round in 0..2 {
            generator.reset();
            let found = logits(&mut generator, &PARTS);
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            let max_error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(max_error < tolerance, "{name}, round {round}: maximum error {max_error}");
        }
        assert_eq!(generator.position(), 9);
        let error = generator.read(&[3; CONTEXT]).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::Argument);
    }
    // The last logits must depend on the first tokens, or the caches would not be tested.
    reference.reset();
    let other = logits(&mut reference, &[&[5, 3, 4, 9, 7], &[6], &[11, 3], &[8]]);
    let changed = other[3].iter().zip(&expected[3]).map(|(a, b)| (a - b).abs());
    assert!(changed.fold(0.0, f32::max) > 1e-2);
}

/// The results of a constant method.
fn constants<'p>(program: &'p coremill_pte::Program, name: &str) -> &'p [Value] {
    let plan = program.plans.iter().find(|plan| plan.name == name);
    &plan.unwrap_or_else(|| panic!("no method `{name}`")).values
}

fn elements(program: &coremill_pte::Program, name: &str) -> (ScalarType, Vec<i32>, Vec<i64>) {
    let [Value::Tensor(tensor)] = constants(program, name) else {
        panic!("`{name}` is not a tensor")
    };
    let Placement::Constant(index) = tensor.placement else {
        panic!("`{name}` is not a stored constant")
    };
    let buffer = program.constants[index as usize].to_buffer();
    let ints = buffer.as_bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes));
    (tensor.scalar_type, tensor.sizes.clone(), ints.collect())
}

#[test]
fn constant_methods_hold_model_metadata() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let program = model.to_program(&options(Layout::ExecuTorch, 8)).expect("a program");
    assert_eq!(constants(&program, "get_max_seq_len"), [Value::Int(8)]);
    assert_eq!(constants(&program, "get_max_context_len"), [Value::Int(16)]);
    assert_eq!(constants(&program, "enable_dynamic_shape"), [Value::Bool(true)]);
    assert_eq!(constants(&program, "use_kv_cache"), [Value::Bool(true)]);
    let settings = model.generation_settings().expect("settings");
    let ends: Vec<_> = settings.eos.iter().map(|&id| Value::Int(id.into())).collect();
    assert_eq!(constants(&program, "get_eos_ids"), ends);
    let single = model.to_program(&options(Layout::ExecuTorch, 1)).expect("a program");
    assert_eq!(constants(&single, "enable_dynamic_shape"), [Value::Bool(false)]);
    assert_eq!(constants(&single, "get_max_seq_len"), [Value::Int(16)]);

    let options = options(Layout::ExecuTorchMultifunction, 4);
    let program = model.to_program(&options).expect("a program");
    let specs = elements(&program, "prefill_kv_cache_specs");
    assert_eq!(specs, (ScalarType::Long, vec![1, 5], vec![4, 1, 5, 2, 15]));
    let masks = elements(&program, "decode_mask_specs");
    assert_eq!(masks, (ScalarType::Long, vec![1, 2], vec![1, 15]));
    assert_eq!(constants(&program, "prefill_input_len"), [Value::Int(4)]);
    let names: Vec<_> = program.plans.iter().map(|plan| plan.name.as_str()).collect();
    assert!(names.contains(&"forward") && names.contains(&"prefill"), "{names:?}");
    assert_eq!(program.named_data.len(), 1);
}

#[test]
fn default_prefill_block_fits_context() {
    let model = LanguageModel::open(tiny()).expect("opens");
    for layout in [Layout::ExecuTorch, Layout::ExecuTorchStatic, Layout::ExecuTorchMultifunction] {
        let options = BuildOptions::default().context(CONTEXT).layout(layout);
        model.to_program(&options).expect("a program");
        // Static layouts reserve at least one position for the cache, so a block has at most `context - 1` tokens.
        let is_full = layout == Layout::ExecuTorch;
        assert_eq!(options.block(), if is_full { CONTEXT } else { CONTEXT - 1 });
    }
    assert_eq!(BuildOptions::default().block(), 64);
}

#[test]
fn rejects_coremill_layout_and_prefill_of_whole_context() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let error = model.to_program(&options(Layout::Coremill, 4)).expect_err("the coremill layout");
    assert_eq!(error.kind(), ErrorKind::Argument);
    let error = model
        .to_program(&options(Layout::ExecuTorchStatic, CONTEXT))
        .expect_err("a block of the whole context");
    assert!(error.to_string().contains("must be less than the context"), "{error}");
}
