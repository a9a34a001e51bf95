//! Weights in blocks and codes: GGUF, MLX, 4- and 8-bit integers, codebooks.

use std::collections::HashSet;

use coremill_graph::{DType, Error, Tensor, nn, ops};
use rlx_ir::op::{SynthBwdWrt, SynthKind};
use rlx_ir::quant::{QuantScheme, ScaledFormat};
use rlx_ir::{NodeId, Op, lowp_codec};

use crate::element::is_float;
use crate::formats::decoded;
use crate::gguf::StoredWeight;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::DequantMatMul { scheme } if scheme.is_gguf() => {
            let x = site.arg(0)?;
            let outputs = site.last()?;
            x.matmul_t(blocks(site, 1, *scheme, &[outputs, x.last_extent()])?)
        }
        Op::DequantGroupedMatMul { scheme } => {
            // The weight is not an operand, so the experts are the last operand.
            let (x, outputs) = (site.arg(0)?, site.last()?);
            let inputs = x.last_extent();
            let experts = experts(site, 1, *scheme, outputs * inputs)?;
            let weights = blocks(site, 1, *scheme, &[experts, outputs, inputs])?;
            nn::grouped_matmul(x, weights, site.indices(site.args.len().max(1) - 1)?)
        }
        Op::DequantMoEWeights { scheme } => match *site.shape()? {
            [experts, inputs, outputs] => {
                blocks(site, 0, *scheme, &[experts, outputs, inputs])?.swap(1, 2)
            }
            // Only experts are transposed.
            _ => blocks(site, 0, *scheme, site.shape()?)?,
        },
        Op::DequantMatMul { scheme } => coded(site, *scheme)?,
        Op::DequantGroupedMatMulMlx { scheme } => {
            let [x, codes, scales, biases] = site.operands()?;
            let (width, outputs) = (x.last_extent(), site.last()?);
            let count: usize = scales.shape().iter().product();
            let (values, group) = match scheme {
                QuantScheme::MlxAffine { bits, group_size } => {
                    (units(site, codes, *bits)?, *group_size)
                }
                QuantScheme::MlxMxfp4 { group_size } => (fp4(units(site, codes, 4)?), *group_size),
                other => {
                    return site.refuse(format!("has experts in the unsupported scheme `{other}`"));
                }
            };
            let group = group as usize;
            if group == 0
                || width % group != 0
                || !count.is_multiple_of((outputs * width / group).max(1))
            {
                return site
                    .refuse(format!("has {count} scales, which do not match groups of size {group} along an axis of size {width}"));
            }
            let experts = count / (outputs * width / group);
            let shape = [experts * outputs, width / group, group];
            let row = [experts * outputs, width / group, 1];
            let scaled = values.view(shape) * scales.view(row);
            let weights = match scheme {
                QuantScheme::MlxAffine { .. } => scaled + biases.view(row),
                _ => scaled,
            };
            nn::grouped_matmul(x, weights.view([experts, outputs, width]), site.indices(4)?)
        }
        Op::SynthMatMul { kind } => {
            let [x, codes, book] = site.operands()?;
            x.matmul_t(synthesized(site, *kind, codes, book)?)
        }
        Op::SynthReconstruct { kind } => {
            synthesized(site, *kind, site.arg(0)?, site.arg(1)?)?.swap(0, 1)
        }
        Op::SynthMatMulBackward { kind, wrt } => {
            let [x, codes, book, dy] = site.operands()?;
            match wrt {
                SynthBwdWrt::Dx => dy.dot(synthesized(site, *kind, codes, book)?),
                SynthBwdWrt::Codebook => {
                    let SynthKind::Codebook { entry_dim, .. } = kind;
                    let weights = dy.matmul(x, ops::Matmul::new().transpose_x(true));
                    let entries = weights.view([-1, *entry_dim as i32]);
                    let places = site.indices(1)?.view([-1]);
                    let options = ops::Scatter::new().axis(0).mode("add");
                    site.zeros(site.shape()?).scatter(places, entries, options)
                }
            }
        }
        _ => return Ok(None),
    }))
}

/// The parameters that are GGUF blocks: bytes that are decoded where they are used.
pub(crate) fn params(source: &rlx_ir::Graph) -> HashSet<NodeId> {
    let packed = source.nodes().iter().filter_map(|node| {
        let (scheme, at) = match &node.op {
            Op::DequantMatMul { scheme } | Op::DequantGroupedMatMul { scheme } => (scheme, 1),
            Op::DequantMoEWeights { scheme } => (scheme, 0),
            _ => return None,
        };
        let weights = *node.inputs.get(at)?;
        let is_stored = matches!(source.node(weights).op, Op::Param { .. } | Op::Constant { .. });
        (scheme.is_gguf() && is_stored).then_some(weights)
    });
    packed.collect()
}

/// Number of matrices with `elements` elements in an operand.
fn experts(
    site: &NodeContext<'_, '_>,
    at: usize,
    scheme: QuantScheme,
    elements: usize,
) -> Result<usize, Error> {
    let stored = site.node.inputs.get(at).map(|&id| site.source.node(id));
    let bytes = stored.and_then(|node| node.shape.num_elements()).unwrap_or(0);
    // An operand that is declared as floats has the shape before packing.
    let is_unpacked = stored.is_some_and(|node| is_float(node.shape.dtype()));
    if is_unpacked && elements > 0 && bytes.is_multiple_of(elements) {
        return Ok(bytes / elements);
    }
    let block = (scheme.gguf_block_size() as usize).max(1);
    let own = elements / block * scheme.gguf_block_bytes() as usize;
    match own {
        1.. if bytes.is_multiple_of(own) => Ok(bytes / own),
        _ => site.refuse(format!(
            "has {bytes} bytes of `{scheme}`, which do not match matrices of {elements} elements"
        )),
    }
}

/// The decoded numbers of an operand stored in blocks.
fn blocks<'g>(
    site: &NodeContext<'_, 'g>,
    at: usize,
    scheme: QuantScheme,
    shape: &[usize],
) -> Result<Tensor<'g>, Error> {
    let Some(known) = StoredWeight::of(scheme) else {
        return site.refuse(format!("is stored in the unsupported scheme `{scheme}`"));
    };
    let Some(stored) = site.node.inputs.get(at).map(|&id| site.source.node(id)) else {
        return site.refuse("has no weight");
    };
    match &stored.op {
        Op::Param { name } => Ok(site.block_param(name, known, shape)),
        Op::Constant { data } => {
            let extents: Vec<u64> = shape.iter().map(|&extent| extent as u64).collect();
            Ok(site.graph.floats(shape, &known.floats(&extents, data)?))
        }
        _ => site.refuse("computes GGUF blocks at run time; they must be parameters or constants"),
    }
}

/// Unpacks codes of `bits` bits, starting with the lowest bits of a byte.
fn units<'g>(site: &NodeContext<'_, 'g>, bytes: Tensor<'g>, bits: u8) -> Result<Tensor<'g>, Error> {
    if !matches!(bits, 2 | 4 | 8) {
        return site.refuse(format!("must pack codes of 2, 4 or 8 bits, got {bits}"));
    }
    let bytes = if bytes.dtype() == DType::Int32 { bytes } else { bytes.cast(DType::Int32) };
    let count = 8 / i32::from(bits);
    let steps: Vec<i32> = (0..count).map(|at| 1 << (at * i32::from(bits))).collect();
    let steps = site.graph.ints([steps.len()], &steps);
    Ok((bytes.view([-1, 1]).floor_div(steps) % (1 << bits)).view([-1]).cast(DType::Fp32))
}

fn fp4(codes: Tensor<'_>) -> Tensor<'_> {
    decoded(codes, |code| lowp_codec::decode(ScaledFormat::F4E2M1, code & 15))
}

/// The product with a weight of codes, whose scales are separate operands.
fn coded<'g>(site: &NodeContext<'_, 'g>, scheme: QuantScheme) -> Result<Tensor<'g>, Error> {
    let (x, codes) = (site.arg(0)?, site.arg(1)?);
    let (inputs, outputs) = (x.last_extent(), site.last()?);
    let count = inputs * outputs;
    // The first `count` numbers of an operand; its declared shape may be the shape before packing.
    let first = |x: Tensor<'g>, count: usize| x.view([-1]).narrow(0, ..count as i32);
    let nibbles = |bytes: Tensor<'g>| {
        Ok::<_, Error>(first(units(site, first(bytes, count.div_ceil(2)), 4)?, count))
    };
    // Scales of blocks of inputs, for each output.
    let tall = |numbers: Tensor<'g>, width: usize| {
        let rows = inputs.div_ceil(width.max(1));
        let each =
            first(numbers, rows * outputs).view([rows, 1, outputs]).tile([1, width as i32, 1]);
        each.view([rows * width, outputs]).narrow(0, ..inputs as i32)
    };
    let e4m3 = |code: u8| lowp_codec::decode(ScaledFormat::F8E4M3, code);
    let grouped = |width: u32| {
        let width = width as usize;
        if width == 0 || inputs % width != 0 {
            return site.refuse(format!(
                "has groups of size {width}, which do not divide {inputs} inputs"
            ));
        }
        Ok([outputs, inputs / width, width])
    };
    let matrix = |x: Tensor<'g>| x.view([inputs, outputs]);
    Ok(match scheme {
        QuantScheme::Int8Block { block_size } => {
            x.dot(matrix(first(site.float(1)?, count)) * tall(site.arg(2)?, block_size as usize))
        }
        QuantScheme::Int8BlockAsym { block_size } => {
            let width = block_size as usize;
            let centred = matrix(first(site.float(1)?, count)) - tall(site.arg(3)?, width);
            x.dot(centred * tall(site.arg(2)?, width))
        }
        QuantScheme::Int4Block { block_size } => {
            x.dot(matrix(nibbles(codes)?) * tall(site.arg(2)?, block_size as usize))
        }
        QuantScheme::Fp8E4m3 | QuantScheme::Fp8E5m2 => {
            let of = |code: u8| match scheme {
                QuantScheme::Fp8E5m2 => lowp_codec::decode(ScaledFormat::F8E5M2, code),
                _ => e4m3(code),
            };
            let weights = matrix(decoded(first(codes, count), of));
            match site.args.get(2) {
                Some(&scales) if scales.shape().iter().product::<usize>() >= outputs => {
                    x.dot(weights) * first(scales, outputs)
                }
                _ => x.dot(weights),
            }
        }
        QuantScheme::Nvfp4Block => {
            let scales = decoded(tall(site.arg(2)?, 16), e4m3);
            x.dot(matrix(fp4(nibbles(codes)?)) * scales) * first(site.arg(3)?, 1)
        }
        QuantScheme::MxFp4x2Block { group_size } => {
            let (width, plane) = (group_size as usize, count.div_ceil(2));
            let rest = |x: Tensor<'g>, from: usize| x.view([-1]).narrow(0, from as i32..);
            let level = |codes: Tensor<'g>, scales: Tensor<'g>| {
                Ok::<_, Error>(matrix(fp4(nibbles(codes)?)) * tall(scales, width))
            };
            let scales = site.arg(2)?;
            let second = inputs.div_ceil(width.max(1)) * outputs;
            x.dot(level(codes, scales)? + level(rest(codes, plane), rest(scales, second))?)
        }
        QuantScheme::MlxAffine { bits, group_size } => {
            let shape = grouped(group_size)?;
            let row = [shape[0], shape[1], 1];
            let values = first(units(site, codes, bits)?, count).view(shape);
            let weights = values * site.arg(2)?.view(row) + site.arg(3)?.view(row);
            x.matmul_t(weights.view([outputs, inputs]))
        }
        QuantScheme::MlxMxfp4 { group_size } | QuantScheme::MlxMxfp8 { group_size } => {
            let shape = grouped(group_size)?;
            let values = match scheme {
                QuantScheme::MlxMxfp4 { .. } => fp4(nibbles(codes)?),
                _ => decoded(first(codes, count), e4m3),
            };
            // Groups of 16 have scales in FP8; others have powers of two.
            let scales = first(site.arg(2)?, shape[0] * shape[1]).view([shape[0], shape[1], 1]);
            let scales = match group_size {
                16 => decoded(scales, e4m3),
                _ => decoded(scales, lowp_codec::e8m0_to_f32),
            };
            x.matmul_t((values.view(shape) * scales).view([outputs, inputs]))
        }
        other => return site.refuse(format!("has a weight in the unsupported scheme `{other}`")),
    })
}

/// The weight `[outputs, inputs]`, from the entries of a codebook.
fn synthesized<'g>(
    site: &NodeContext<'_, 'g>,
    kind: SynthKind,
    codes: Tensor<'g>,
    book: Tensor<'g>,
) -> Result<Tensor<'g>, Error> {
    let SynthKind::Codebook { entry_dim, .. } = kind;
    let [outputs, entries] = codes.shape()[..] else {
        return site.refuse(format!("must have codes of rank 2, got shape {:?}", codes.shape()));
    };
    let codes = if codes.dtype() == DType::Int32 { codes } else { codes.cast(DType::Int32) };
    let weights = book.gather(codes, ops::Gather::new().axis(0));
    Ok(weights.view([outputs, entries * entry_dim as usize]))
}
