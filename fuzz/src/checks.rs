//! Properties of all bytes. Fuzz targets and the test of the seeds share them.

use coremill_mil::ir::{Program, TensorType, WeightPlace};
use coremill_mil::model::Model;
use coremill_mil::text;
use coremill_mlpackage::package::weights::{Layout, WeightFiles};
use coremill_mlpackage::{compiled, package};
use coremill_tensor::{Buffer, DType};
use coremill_verify as verify;

/// Text is parsed or refused. A parsed program is printed, and the output parses to the same program. Diagnostics
/// find their lines in both texts.
pub(crate) fn text(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok((program, spans)) = text::parse_with_spans(source, &text::NoWeights) else { return };
    reprint(&program);
    let report = verify::check_program(&program);
    report.render(&program, &verify::RenderOptions::default());
    let listing = text::Listing { text: source.to_owned(), spans };
    report.render_in(&listing, &verify::RenderOptions::default());
    if let Ok(model) = coremill_mil::model::describe(program) {
        check(&model);
    }
}

/// A model file is decoded or refused; a decoded model is encoded to a file that decodes to the same model.
pub(crate) fn model(data: &[u8]) {
    let Ok(model) = package::from_bytes(data) else { return };
    check(&model);
    let Ok(layout) = Layout::plan(&model.program) else { return };
    let bytes = package::to_bytes(&model, &layout).expect("a decoded model can be encoded");
    let again = package::from_bytes(&bytes).expect("an encoded model can be decoded");
    let layout = Layout::plan(&again.program).expect("a re-decoded model must have a layout");
    let twice = package::to_bytes(&again, &layout).expect("a decoded model can be encoded");
    assert!(bytes == twice, "encoding is not stable");
}

/// A manifest is parsed or refused; a parsed one contains no path outside the package.
pub(crate) fn manifest(data: &[u8]) {
    let Ok(manifest) = package::Manifest::from_bytes(data) else { return };
    for path in manifest.items.iter().chain([&manifest.root]).map(|item| &item.path) {
        assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path}");
    }
}

/// A weight file returns elements of exactly the requested size, or an error. The first bytes are the requests.
pub(crate) fn weights(data: &[u8]) {
    let Some((asked, file)) = data.split_at_checked(64) else { return };
    let files = WeightFiles::in_memory([("w".to_owned(), Buffer::from(file.to_vec()))]);
    for question in asked.chunks_exact(8) {
        let dtype = DType::ALL[usize::from(question[0]) % DType::ALL.len()];
        let extent = u64::from(u16::from_le_bytes([question[1], question[2]]));
        let ty = TensorType::fixed(dtype, &[extent, u64::from(question[3] % 4)]);
        let offset = u64::from(u32::from_le_bytes([question[4], question[5], question[6], 0]));
        let place = WeightPlace { file: "@model_path/w".into(), offset };
        if let Ok(elements) = files.elements(&place, &ty) {
            assert_eq!(Some(elements.len() as u64), ty.storage_bytes());
        }
    }
}

/// The metadata of a compiled model is read or refused.
pub(crate) fn compiled(data: &[u8]) {
    const PROGRAM: &[u8] =
        b"program(1.3) { func main<ios17>(tensor<fp32, [?]> x) { fp32 y = relu(x = x); } -> (y); }";
    if let Ok(model) = compiled::from_bytes(data, PROGRAM) {
        check(&model);
    }
}

fn check(model: &Model) {
    let report = verify::check(model);
    report.render(&model.program, &verify::RenderOptions::default());
    reprint(&model.program);
}

fn reprint(program: &Program) {
    // Text does not contain metadata and unknown fields, so the texts are compared.
    let printed = text::print(program, &text::PrintOptions::default()).text;
    if let Ok(parsed) = text::parse(&printed, &text::NoWeights) {
        let again = text::print(&parsed, &text::PrintOptions::default()).text;
        assert!(printed == again, "printing is not stable:\n{printed}\n{again}");
    }
}
