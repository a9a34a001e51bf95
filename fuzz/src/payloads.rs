//! Payloads of delegates, written in MIL, for the tests of the C interface and its fuzz target.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each user needs only some of these functions"
)]

use coremill_mil::model::FeatureDescription;
use coremill_mil::{model, text};
use coremill_mlpackage::package;
use coremill_pte::coreml::{Directory, Interface, METADATA, Metadata, Methods, PACKAGE};
use coremill_verify as verify;

/// Doubles the input: one operation.
pub(crate) const TWICE: &str = "
    program(1.3) {
        func main<ios17>(tensor<fp32, [2, 3]> x) {
            tensor<fp32, [2, 3]> y = add(x = x, y = x);
        } -> (y);
    }
";

/// Accumulates its inputs in a state.
pub(crate) const COUNTER: &str = "
    program(1.3) {
        func main<ios18>(state<tensor<fp16, [2]>> total, tensor<fp16, [2]> x) {
            tensor<fp16, [2]> before = read_state(input = total);
            tensor<fp16, [2]> after = add(x = before, y = x);
            write_state(data = after, input = total);
            tensor<fp16, [2]> y = read_state(input = total);
        } -> (y);
    }
";

/// A dynamic number of rows.
pub(crate) const ROWS: &str = r#"
    program(1.3) {
        func main<ios17>(tensor<fp32, [?, 4]> x) [FlexibleShapeInformation =
            tuple<tuple<string, dict<string, tensor<int32, [?]>>>, tuple<string, dict<string, list<tensor<int32, [2]>, ?>>>>(
                (("DefaultShapes", {{"x", [2, 4]}}), ("RangeDims", {{"x", [[1, 64], [4, 4]]}})))] {
            tensor<fp32, [?, 4]> y = exp(x = x);
        } -> (y);
    }
"#;

/// Integers and booleans.
pub(crate) const WHOLE: &str = "
    program(1.3) {
        func main<ios17>(tensor<int32, [3]> x) {
            tensor<int32, [3]> y = add(x = x, y = int32(1));
        } -> (y);
    }
";

/// Two functions that share an input's name.
pub(crate) const TWO: &str = "
    program(1.3) {
        func main<ios18>(tensor<fp32, [2]> x) {
            tensor<fp32, [2]> y = add(x = x, y = fp32(1));
        } -> (y);
        func other<ios18>(tensor<fp32, [2]> x) {
            tensor<fp32, [2]> y = mul(x = x, y = fp32(10));
        } -> (y);
    }
";

/// The directory of a delegate with a program.
pub(crate) fn payload(program: &str) -> Vec<u8> {
    let program = text::parse(program, &text::NoWeights).expect("it is MIL");
    let model = model::describe(program).expect("it is complete");
    let names = |features: &[FeatureDescription]| {
        features.iter().map(|feature| feature.name.clone()).collect()
    };
    let interface = |signature: &model::Signature<'_>| Interface {
        inputs: names(signature.inputs),
        outputs: names(signature.outputs),
    };
    let signatures = model.signatures();
    let methods = match &signatures[..] {
        [one] => Methods::One(interface(one)),
        several => Methods::Several(
            several.iter().map(|one| (one.name.to_owned(), interface(one))).collect(),
        ),
    };
    let metadata =
        Metadata { identifier: "executorch_test".into(), methods, unknown: Default::default() };
    let mut directory = Directory::new("lowered_module");
    directory.insert(METADATA, metadata.to_bytes()).expect("a file");
    let tree = package::to_tree(&verify::verify(&model).expect("it is sound")).expect("files");
    for file in tree.files {
        let content: coremill_pte::ByteRope = file.parts.into_iter().collect();
        directory.insert(format!("{PACKAGE}/{}", file.path), content).expect("a file");
    }
    for path in tree.empty_directories {
        directory.insert_directory(format!("{PACKAGE}/{path}")).expect("a directory");
    }
    directory.to_data().expect("it fits").to_buffer().as_bytes().to_vec()
}
