//! Tests compression case by case. A file in `compress/` has a configuration in its first line, a
//! program, and the result after a line `// becomes`. `BLESS=1` rewrites the result.

use std::fs;
use std::path::Path;

use coremill_compress::linear::{self, Config};
use coremill_compress::{
    self as compress, Budget, CompressionConfig, CompressionOutcome, Options, Palette, Rule,
    Selector, Values,
};
use coremill_mil::ir::{Binding, Constant, ConstantData, Function, Opset, Program};
use coremill_mil::model;
use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_passes::AnalyzedFunction;
use coremill_verify as verify;

const SEPARATOR: &str = "// becomes\n";

fn program(text: &str) -> Program {
    let program = text::parse(text, &NoWeights).expect("cases are programs");
    verify::verify_program(&program).expect("cases are sound");
    program
}

fn draft(text: &str) -> AnalyzedFunction {
    AnalyzedFunction::new(program(text).functions.remove(0)).expect("cases are sound")
}

/// Moves weights into the program, so that they are printed.
fn inline_weights(function: &mut Function) {
    let inline = |constant: &mut Constant| {
        if let ConstantData::Weight(weight) = &constant.data {
            let bytes = weight.data.clone().expect("the bytes of a new weight are in memory");
            constant.data = ConstantData::Bytes(bytes);
        }
    };
    let ops: Vec<_> = function.all_ops().map(|(id, _)| id).collect();
    for id in ops {
        let op = function.op_mut(id);
        op.attributes.values_mut().for_each(inline);
        for binding in op.inputs.iter_mut().flat_map(|input| &mut input.bindings) {
            if let Binding::Literal(constant) = binding {
                inline(constant);
            }
        }
    }
}

#[test]
fn quantized_programs_match_case_files() {
    let bless = std::env::var_os("BLESS").is_some();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compress");
    let entries = fs::read_dir(&root).expect("the directory can be read");
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("the entry can be read").path();
        let file = fs::read_to_string(&path).expect("the case can be read");
        let (before, wanted) = file.split_once(SEPARATOR).unwrap_or((&file, ""));
        let (header, text) = before.split_once('\n').expect("the first line is the configuration");
        let header = header.strip_prefix("// ").expect("the first line is a comment");
        let config = Config::from_json(header).expect("the configuration is valid");
        let mut program = program(text);
        let mut draft = draft(text);
        let outcome = linear::quantize(&mut draft, &config).expect("weights can be quantized");
        inline_weights(&mut draft.function);
        program.functions = vec![draft.function];
        verify::verify_program(&program).expect("quantized programs are sound");
        let printed = text::print(&program, &PrintOptions::default());
        let mut found = format!("{}\n", printed.text.trim_end());
        for (name, reason) in &outcome.kept {
            found.push_str(&format!("// `{name}` stays: {reason}\n"));
        }
        if bless {
            let text = format!("{}\n{SEPARATOR}{found}", before.trim_end());
            fs::write(&path, text).expect("the case can be written");
        } else {
            assert_eq!(found, wanted, "{}", path.display());
        }
        count += 1;
    }
    assert!(count > 0, "there are no cases");
}

const LINEAR: &str = "program(1.3)
{
    func main<TARGET>(tensor<fp32, [1, 6]> x) {
            tensor<fp32, [2, 6]> w = const()[val = tensor<fp32, [2, 6]>([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])];
            tensor<fp32, [1, 2]> y = linear(weight = w, x = x);
        } -> (y);
}
";

fn refusal(target: &str, config: &str) -> compress::Error {
    let config = Config::from_json(config).expect("the configuration is valid");
    let mut draft = draft(&LINEAR.replace("TARGET", target));
    linear::quantize(&mut draft, &config).expect_err("the quantization is rejected")
}

#[test]
fn rejects_quantization_newer_than_target() {
    let cases = [
        ("ios15", "{}", "need iOS16; the program targets iOS15"),
        ("ios17", r#"{"dtype": "int4"}"#, "need iOS18; the program targets iOS17"),
        ("ios17", r#"{"granularity": "per_block"}"#, "need iOS18; the program targets iOS17"),
    ];
    for (target, config, expected) in cases {
        let error = refusal(target, config);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn rejects_block_size_with_wrong_rank() {
    let config = r#"{"granularity": "per_block", "block_size": [1, 0, 0], "weight_threshold": 0}"#;
    let error = refusal("ios18", config);
    assert_eq!(error.to_string(), "`block_size` has 3 elements, but `w` has 2 axes");
}

/// A lookup table in the opset of iOS 16.
const LOOKUP: &str = "program(1.3)
{
    func main<ios16>(tensor<int32, [3]> rows) {
        tensor<fp32, [4, 4]> table = const()[val = tensor<fp32, [4, 4]>([[1.0, -2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.5]])];
        int32 axis = const()[val = int32(0)];
        tensor<fp32, [3, 4]> y = gather(x = table, indices = rows, axis = axis);
    } -> (y);
}";

fn rule(values: Values) -> Rule {
    let selector = Selector { min_elements: Some(10), ..Selector::default() };
    Rule { selector, form: CompressionConfig { prune: None, values } }
}

#[test]
fn opset_upgrade_guards_negative_gather_indices() {
    for (bits, opset, guarded) in [(2, Opset::Ios16, false), (3, Opset::Ios18, true)] {
        let mut model = model::describe(program(LOOKUP)).expect("the case can be described");
        let palette = Palette { bits: Some(bits), ..Palette::default() };
        let options = Options { rules: vec![rule(Values::Palette(palette))], ..Options::default() };
        let report = compress::compress(&mut model, &options, &|_, _| {})
            .expect("the model can be compressed");
        assert!(matches!(report[0].fate, CompressionOutcome::Compressed { .. }), "{report:?}");
        verify::verify(&model).expect("compressed models are sound");
        let function = &model.program.functions[0];
        assert_eq!(function.opset, opset);
        let has_select = function.all_ops().any(|(_, op)| op.type_name() == "select");
        assert_eq!(has_select, guarded);
    }
}

#[test]
fn budget_chooses_palette_bits() {
    let with = |budget| {
        let mut model = model::describe(program(LOOKUP)).expect("the case can be described");
        let rules = vec![rule(Values::Palette(Palette::default()))];
        let options = Options { rules, target: None, budget: Some(budget), ..Options::default() };
        let report = compress::compress(&mut model, &options, &|_, _| {});
        report.map(|report| match &report[0].fate {
            CompressionOutcome::Compressed { after, form, .. } => (*after, form.to_string()),
            CompressionOutcome::Kept(reason) => (0, (*reason).to_owned()),
        })
    };
    // Two entries of four bytes, two bytes of indices, and a shape of two numbers.
    assert_eq!(with(Budget::Bytes(20)), Ok((18, "1-bit palette per tensor".to_owned())));
    assert_eq!(with(Budget::Bytes(30)), Ok((28, "2-bit palette per tensor".to_owned())));
    assert_eq!(
        with(Budget::Snr(90.0)).expect("the weight is kept").1,
        "compressing it would miss the target"
    );
    let error = with(Budget::Bytes(17)).expect_err("the budget is too small");
    assert_eq!(error.to_string(), "the weights take at least 18 bytes; the target is 17");
    with(Budget::Snr(f64::NAN)).expect_err("not a number");
}

#[test]
fn rejects_non_finite_layer_weights() {
    let source = "program(1.3)
{
    func main<ios18>(tensor<fp32, [4, 4]> x) {
        tensor<fp32, [4, 4]> w = const()[val = tensor<fp32, [4, 4]>([[1.0, -2.0, 3.0, 4.0], [5.0, NUMBER, 7.0, 8.0], [9.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.5]])];
        tensor<fp32, [4, 4]> y = OPERATION;
    } -> (y);
}";
    let compressed = |number: &str, operation: &str, rule: Rule| {
        let text = source.replace("NUMBER", number).replace("OPERATION", operation);
        let mut model = model::describe(program(&text)).expect("the case can be described");
        let options = Options { rules: vec![rule], ..Options::default() };
        let report = compress::compress(&mut model, &options, &|_, _| {});
        report.map(|report| match &report[0].fate {
            CompressionOutcome::Compressed { .. } => "compressed",
            CompressionOutcome::Kept(reason) => *reason,
        })
    };
    let (layer, mask) = ("linear(x = x, weight = w)", "add(x = x, y = w)");
    let reason = "some of its elements are NaN or infinite";
    let linear = || rule(Values::Linear(Config::default()));
    let mut pruned = rule(Values::Floats);
    pruned.form.prune = Some(compress::Prune::Magnitude(0.5));
    assert_eq!(compressed("6.0", layer, linear()), Ok("compressed"));
    for (number, rule) in [
        ("nan", linear()),
        ("inf", linear()),
        ("-inf", rule(Values::Palette(Palette::default()))),
        ("nan", pruned),
    ] {
        let error = compressed(number, layer, rule.clone()).expect_err("the weight is rejected");
        assert_eq!(error.to_string(), format!("`w` cannot be compressed: {reason}"));
        assert!(error.hint().is_some());
        // A mask is not a weight of a layer.
        assert_eq!(compressed(number, mask, rule), Ok(reason));
    }
}
