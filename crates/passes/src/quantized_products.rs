//! Clips quantized products.
//!
//! ```text
//! p = mul(x = dequantize(…), y = dequantize(…));         p = mul(x = dequantize(…), y = dequantize(…));
//! y = quantize(input = p, scale = s, …);       becomes   c = clip(x = p, alpha = s · low, beta = s · high);
//!                                                        y = quantize(input = c, scale = s, …);
//! ```
//!
//! `low` and `high` are the range of `y`, minus its zero point, so the result is the same. Without the `clip`, the
//! Neural Engine is reported to apply the scale of another branch to `y`.

use coremill_tensor::DType;
use half::f16;

use super::Editor;
use coremill_mil::ir::{Binding, Constant, Op, OpId};
use coremill_mil::ops::OpKind;

/// Runs the pass and returns the number of clipped products.
pub(super) fn clip_quantized_products(editor: &mut Editor<'_>) -> usize {
    editor.ops().into_iter().filter(|&id| clip(editor, id).is_some()).count()
}

fn clip(editor: &mut Editor<'_>, id: OpId) -> Option<()> {
    editor.op_of(id, OpKind::Quantize)?;
    let product = editor.argument(id, "input")?;
    let mul = editor.produced_by(product, OpKind::Mul)?;
    for side in ["x", "y"] {
        editor.produced_by(editor.argument(mul, side)?, OpKind::Dequantize)?;
    }
    // A scale per channel would need a bound per channel.
    let scale = editor.number(id, "scale")?;
    let has_zero_point = editor.op(id)?.binding("zero_point").is_some();
    let zero_point = if has_zero_point { editor.number(id, "zero_point")? } else { 0.0 };
    let (low, high) = match editor.text(id, "output_dtype")? {
        "uint8" => (0.0, 255.0),
        "int8" => (-128.0, 127.0),
        _ => return None,
    };
    let dtype = editor.dtype(product)?;
    let bound = |code: f64| {
        let bound = (code - zero_point) * scale;
        match dtype {
            DType::Fp16 => {
                let largest = f16::MAX.to_f64();
                Some(Constant::fp16(f16::from_f64(bound.clamp(-largest, largest))))
            }
            DType::Fp32 => Some(Constant::fp32(bound as f32)),
            _ => None,
        }
    };
    let clip = Op::new(OpKind::Clip)
        .with("x", Binding::Value(product))
        .with("alpha", Binding::Literal(bound(low)?))
        .with("beta", Binding::Literal(bound(high)?));
    let label = format!("{}_clipped", editor.name(product));
    let clipped = *editor.insert(id, clip, &label).ok()?.first()?;
    let mut op = editor.op(id)?.clone();
    op.outputs.clear();
    op.set_input("input".into(), vec![Binding::Value(clipped)]);
    editor.rewrite(id, op).ok()
}
