//! Tests that the output of every command with `--json` conforms to `docs/schema.json`.

#[path = "support/schema.rs"]
mod schema;
#[path = "support/scratch.rs"]
mod scratch;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use schema::Schema;
use scratch::{Scratch, copy};

/// Calls that print JSON, and the calls that create their inputs. Together they cover every field.
const CALLS: &str = "
convert examples/digits.pt2 -o digits.mlpackage --verify --json
convert files/double.pt2 -o double.mlpackage --verify --json
convert files/overflow.pt2 -o auto.mlpackage --precision auto --json
convert files/overflow.pt2 -o overflow.mlpackage --target ios15 --verify --json
convert files/refused.pt2 files/nothing.pt2 --output-dir refused --json
lower examples/digits.pt2 -o digits.pte --verify --json
lower examples/digits.pt2 -o parts.pte --skip-ops aten.conv2d.default,aten.nothing.default --json
lower files/overflow.pt2 -o auto.pte --precision auto --json
lower files/refused.pt2 -o refused.pte --full-graph --json
lower examples/digits.pt2 -o small.pte --compile-spec op_linear_quantizer_config={\"weight_threshold\":100} --json
lower one=examples/digits.pt2 two=examples/digits.pt2 -o several.pte --constant version=3 --json
quantize examples/digits.pt2 -o quantized.mlpackage --recipe int8-static --samples files/digits_in.npz --keep head --json
compress digits.mlpackage -o palettized.mlpackage --palettize 4 --min-elements 100 --json
compress digits.pte -o compressed.pte --linear int8 --min-elements 100 --json
check examples/broken.mil --json
check examples/decoder.mlpackage --json
check digits.pte --json
check packages --no-warnings --json
check files/weightless.mil --json
check files/convs.mil --ane-share 0.5 --json
check digits.pte --ane-share 0 --device m1 --json
plan files/convs.mil --json
plan files/convs.mil --device iphone12 --units cpu_only --json
inspect examples/decoder.mlpackage --json
inspect files/flexible.mil --json
inspect packages/enumerated-ios16.mlpackage --json
inspect packages/ranged-ios15.mlpackage --json
inspect packages/metadata-ios17.mlpackage --json
inspect packages/compact-ios16-lut4.mlpackage --json
inspect packages/classifier_names-ios15.mlpackage --json
inspect files/total.pte --json
inspect parts.pte --json
inspect several.pte --json
inspect examples/digits.pt2 --json
run files/counter.mil -i files/one.npz -i files/one.npz --json
run files/counter.mil --batch -i files/one.npz -i files/one.npz --json
run digits.mlpackage --random 1 --profile --repeat 3 --json
run packages/lists-ios15.mlpackage --random 1 --json
run packages/classifier_names-ios15.mlpackage --image picture=files/picture.png --resize crop --json
compare examples/digits.pt2 digits.mlpackage --json
compare files/overflow.pt2 overflow.mlpackage --per-op --json
compare files/digits_out.npz digits.mlpackage --inputs files/digits_in.npz --positional --json
compare files/counter.mil files/counter.mil -i files/one.npz -i files/one.npz --per-op --json
diff files/small.mil files/counter.mil --json
diff files/convs.mil files/fewer_convs.mil --json
diff digits.mlpackage palettized.mlpackage --json
extract several.pte -o models --json
split files/convs.mil -o pieces --after second --json
bisect files/convs.mil --json -- false
llm files/tiny -o tiny --verify files/tiny/text.txt --json
generate tiny -p ab -n 3 --json
score tiny --text files/tiny/text.txt --against files/tiny --json
tokenize tiny abc --json
llm files/tinybert -o tinybert --json
embed tinybert -p cats --json
llm files/tinywhisper -o tinywhisper --json
transcribe tinywhisper files/tinywhisper/audio.wav --json
cache list --json
cache size --json
cache verify --json
cache prune --to 1KB --json
cache purge --json
";

/// Fields that no call prints, or that are always null.
const ABSENT: [&str; 33] = [
    // The module of a value that needs fp32, and the error of an output in plain fp16. The test
    // program has neither.
    "chosen/cures/module",
    "chosen/outputs/before",
    // Values of the same name that two programs compute with different operations.
    "compare/per_op/unpaired",
    "compare/per_op/unpaired/name",
    "compare/per_op/unpaired/op",
    "compare/per_op/unpaired/reference_op",
    // Operations that support fp16 only in a later release.
    "convert/conversions/kept_in_fp32",
    "convert/conversions/kept_in_fp32/count",
    "convert/conversions/kept_in_fp32/narrow_from",
    "convert/conversions/kept_in_fp32/op",
    // Invalid descriptions, which packages cannot contain.
    "diagnostics/diagnostics/feature",
    "diagnostics/diagnostics/feature_role",
    // Schemes of weights that lose precision; the small model is stored exactly.
    "llm/losses/decibels",
    "llm/losses/scheme",
    "llm/losses/tensor",
    // Programs with named modules, which the test program lacks.
    "origin/module",
    // Outputs with another shape than the reference.
    "line/mismatch",
    // Unsupported calls with a hint.
    "lower/methods/outside/hint",
    "refused/hint",
    // Models with list outputs.
    "run/outputs/elements",
    "run/outputs/elements/dtype",
    "run/outputs/elements/first",
    "run/outputs/elements/infinite",
    "run/outputs/elements/max",
    "run/outputs/elements/mean",
    "run/outputs/elements/min",
    "run/outputs/elements/nan",
    "run/outputs/elements/shape",
    "run/outputs/length",
    // Core ML devices, which only Macs have.
    "side/device",
    // References with NaN or another shape.
    "verified/caveat",
    "verified/outputs/mismatch",
    "verified/outputs/undefined",
];

fn json(scratch: &Scratch, cache: &Path, arguments: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.args(arguments).current_dir(scratch.path()).env("COREMILL_CACHE", cache);
    let output = command.output().expect("the command starts");
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        format!("prints no JSON: {error}\n{stderr}")
    })
}

/// A cache with a valid and a damaged entry.
fn make_cache(root: &Path) {
    use coremill_cache::{Key, Options, Store};
    let store = Store::open(root, &Options::default()).expect("it opens");
    for name in ["sound", "damaged"] {
        let entry = store.get_or_insert_bytes(&Key::new([name]), "model", name, &[1; 1500]);
        let entry = entry.expect("it is stored");
        if name == "damaged" {
            std::fs::write(entry.path().join("data"), [2; 1500]).expect("it is written");
        }
    }
}

#[test]
fn json_output_conforms_to_published_schema() {
    let schema =
        Schema::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema.json"));
    let scratch = Scratch::new();
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mlpackage/tests/packages");
    copy(&packages, &scratch.path().join("packages"));
    let cache = scratch.path().join("cache");
    make_cache(&cache);
    let (mut seen, mut faults) = (BTreeSet::new(), Vec::new());
    for call in CALLS.lines().filter(|call| !call.is_empty()) {
        let arguments: Vec<&str> = call.split(' ').collect();
        let found = match json(&scratch, &cache, &arguments) {
            Ok(value) => schema.check(arguments[0], &value, &mut seen),
            Err(fault) => vec![fault],
        };
        faults.extend(found.into_iter().map(|fault| format!("`{call}`: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let unseen: Vec<_> =
        schema.fields().into_iter().filter(|field| !seen.contains(field)).collect();
    let absent: BTreeSet<_> = ABSENT.into_iter().collect();
    let unseen: BTreeSet<_> = unseen.iter().map(String::as_str).collect();
    assert_eq!(unseen, absent, "fields that no call prints (left) must equal ABSENT (right)");
}

#[test]
fn schema_checker_rejects_invalid_values() {
    let schema =
        Schema::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema.json"));
    let report = r#"{"format_version": 1, "models": [{"path": "a", "bytes": 1, "uses": []}]}"#;
    let is_rejected = |from: &str, to: &str| {
        let value = serde_json::from_str(&report.replace(from, to)).expect("JSON");
        !schema.check("extract", &value, &mut BTreeSet::new()).is_empty()
    };
    assert!(!is_rejected("", ""));
    for (from, to) in [
        ("\"format_version\": 1", "\"format_version\": 2"),
        ("\"bytes\": 1", "\"bytes\": \"1\""),
        ("\"bytes\": 1", "\"bytes\": -1"),
        ("\"bytes\": 1", "\"bytes\": 1.5"),
        ("\"bytes\": 1, ", ""),
        ("\"bytes\": 1", "\"bytes\": 1, \"more\": 1"),
        ("[]", "{}"),
        ("[]", "[null]"),
    ] {
        assert!(is_rejected(from, to), "accepts `{to}` in place of `{from}`");
    }
}
