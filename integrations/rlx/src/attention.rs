//! Attention, rotary positions, and the blocks that contain both.

use coremill_graph::nn::{self, AttentionOptions, RopeStyle as Style, RopeTables};
use coremill_graph::{DType, Error, Tensor};
use rlx_ir::Op;
use rlx_ir::op::{AttentionBwdWrt, MaskKind, RopeStyle};

use crate::arithmetic::activated;
use crate::network::normalized;
use crate::site::NodeContext;

/// Score of a masked key: small enough to vanish in the softmax, and within the range of `fp16`.
const MASKED: f32 = -3e4;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::Attention { num_heads, mask_kind, score_scale, attn_logit_softcap, .. } => {
            let [query, key, value] = site.operands()?;
            let layout = Layout::of(site, query, *num_heads)?;
            let [query, key, value] = [query, key, value].map(|x| layout.canonical(x));
            let mut options = AttentionOptions::new();
            options.scale = *score_scale;
            options.soft_cap = *attn_logit_softcap;
            match mask_kind {
                MaskKind::None => {}
                MaskKind::Causal => options.causal = true,
                MaskKind::SlidingWindow(width) => options.window = Some(width + 1),
                MaskKind::Bias => options.bias = Some(site.arg(3)?),
                MaskKind::Custom => options.bias = Some(padding(site.arg(3)?)),
            }
            layout.restored(nn::attention(query, key, value, &options))
        }
        Op::AttentionBackward { num_heads, head_dim, mask_kind, wrt } => {
            let gradients = gradients(site, *num_heads, *head_dim, *mask_kind)?;
            match wrt {
                AttentionBwdWrt::Query => gradients[0],
                AttentionBwdWrt::Key => gradients[1],
                AttentionBwdWrt::Value => gradients[2],
            }
        }
        Op::AttentionBackwardAll { num_heads, head_dim, mask_kind } => {
            site.joined(gradients(site, *num_heads, *head_dim, *mask_kind)?, 0)
        }
        Op::Rope { head_dim, n_rot, style } => {
            turned(site, site.operands()?, [*head_dim, *n_rot], *style, 1.0)?
        }
        // The adjoint of a rotation rotates in the opposite direction.
        Op::RopeBackward { head_dim, n_rot, style } => {
            turned(site, site.operands()?, [*head_dim, *n_rot], *style, -1.0)?
        }
        Op::AxialRope2d { end_x, end_y, head_dim, num_heads, theta, repeat_factor } => {
            let x = site.arg(0)?;
            let (places, repeats) = (end_x * end_y, (*repeat_factor).max(1));
            let width = num_heads * head_dim;
            let count: usize = x.shape().iter().product();
            if places * width == 0 || !count.is_multiple_of(places * repeats * width) {
                return site.refuse(format!(
                    "cannot rotate {places} positions, repeated {repeats} times each, of a tensor with {count} elements"
                ));
            }
            let tables = nn::axial_tables(site.graph, *head_dim, f64::from(*theta), *end_y, *end_x);
            // The repetitions of a position are adjacent, like additional heads.
            let heads = x.view([
                count / (places * repeats * width),
                places,
                repeats * num_heads,
                *head_dim,
            ]);
            nn::rotate(heads.transpose([0, 2, 1, 3]), tables)
                .transpose([0, 2, 1, 3])
                .view(x.shape())
        }
        Op::FusedAttentionBlock { num_heads, head_dim, has_bias, has_rope } => {
            let [x, qkv, out, mask] = site.operands()?;
            let bias = |at: usize| if *has_bias { site.arg(at).map(Some) } else { Ok(None) };
            let (qkv_bias, out_bias) = (bias(4)?, bias(5)?);
            let after = if *has_bias { 6 } else { 4 };
            let tables = match has_rope {
                true => Some(RopeTables::new(
                    site.arg(after)?,
                    site.arg(after + 1)?,
                    Style::SplitHalves,
                )),
                false => None,
            };
            let heads = [*num_heads, *head_dim];
            block(site, x, heads, [(qkv, qkv_bias), (out, out_bias)], tables, mask)?
        }
        Op::FusedTransformerLayer {
            num_heads, head_dim, eps1, eps2, activation, has_bias, ..
        } => {
            let place =
                |with: usize, without: usize| site.arg(if *has_bias { with } else { without });
            let bias = |at: usize| if *has_bias { site.arg(at).map(Some) } else { Ok(None) };
            let x = site.arg(0)?;
            let attended = block(
                site,
                x,
                [*num_heads, *head_dim],
                [(place(1, 1)?, bias(2)?), (place(3, 2)?, bias(4)?)],
                None,
                place(13, 7)?,
            )?;
            let norm =
                |x: Tensor<'g>, epsilon: f32, gamma: Tensor<'g>, beta: Option<Tensor<'g>>| {
                    plus(normalized(x, -1, epsilon) * gamma, beta)
                };
            let x = norm(x + attended, *eps1, place(5, 3)?, bias(6)?);
            let inner = activated(*activation, plus(x.dot(place(7, 4)?), bias(8)?));
            let y = plus(inner.dot(place(9, 5)?), bias(10)?);
            norm(x + y, *eps2, place(11, 6)?, bias(12)?)
        }
        _ => return Ok(None),
    }))
}

fn plus<'g>(x: Tensor<'g>, bias: Option<Tensor<'g>>) -> Tensor<'g> {
    bias.map_or(x, |bias| x + bias)
}

/// Layout of an operand with heads.
#[derive(Clone, Copy)]
enum Layout {
    /// `[batch, heads, positions, head]`.
    HeadsFirst,
    /// `[batch, positions, heads, head]`.
    HeadsLast,
    /// `[batch, positions, heads · head]`.
    Flat(usize),
}

impl Layout {
    fn of(site: &NodeContext<'_, '_>, query: Tensor<'_>, heads: usize) -> Result<Layout, Error> {
        match query.rank() {
            4 if query.extent(1) == heads => Ok(Layout::HeadsFirst),
            4 if query.extent(2) == heads => Ok(Layout::HeadsLast),
            3 if heads > 0 && query.extent(2).is_multiple_of(heads) => Ok(Layout::Flat(heads)),
            _ => site.refuse(format!("has no axis of {heads} heads in shape {:?}", query.shape())),
        }
    }

    fn canonical<'g>(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Layout::HeadsFirst => x,
            Layout::HeadsLast => x.transpose([0, 2, 1, 3]),
            Layout::Flat(heads) => {
                let split = x.view([x.extent(0), x.extent(1), heads, x.extent(2) / heads]);
                split.transpose([0, 2, 1, 3])
            }
        }
    }

    fn restored<'g>(self, x: Tensor<'g>) -> Tensor<'g> {
        match self {
            Layout::HeadsFirst => x,
            Layout::HeadsLast => x.transpose([0, 2, 1, 3]),
            Layout::Flat(heads) => {
                let x = x.transpose([0, 2, 1, 3]);
                x.view([x.extent(0), x.extent(1), heads * x.extent(3)])
            }
        }
    }
}

/// The mask to add to scores, for a mask of `[batch, keys]` that is 1 for valid keys.
fn padding(mask: Tensor<'_>) -> Tensor<'_> {
    let hidden = mask.less(0.5).cast(DType::Fp32) * MASKED;
    match mask.rank() {
        2 => hidden.view([mask.extent(0), 1, 1, mask.extent(1)]),
        _ => hidden,
    }
}

/// The gradients of queries, keys and values.
fn gradients<'g>(
    site: &NodeContext<'_, 'g>,
    heads: usize,
    width: usize,
    mask: MaskKind,
) -> Result<[Tensor<'g>; 3], Error> {
    let [query, key, value, dy] = site.operands()?;
    let layout = Layout::of(site, query, heads)?;
    let [query, key, value, dy] = [query, key, value, dy].map(|x| layout.canonical(x));
    let scale = 1.0 / (width as f32).sqrt();
    let mut scores = query.matmul_t(key) * scale;
    let (queries, keys) = (query.extent(2), key.extent(2));
    let hidden = |reach: usize| {
        let ahead = keys.saturating_sub(queries);
        let seen = |query: usize, key: usize| key <= query + ahead && query + ahead <= key + reach;
        let mask: Vec<f32> = (0..queries * keys)
            .map(|at| if seen(at / keys, at % keys) { 0.0 } else { MASKED })
            .collect();
        site.graph.floats([queries, keys], &mask)
    };
    match mask {
        MaskKind::None => {}
        MaskKind::Causal => scores = scores + hidden(queries + keys),
        MaskKind::SlidingWindow(width) => scores = scores + hidden(width),
        MaskKind::Bias => scores = scores + site.arg(4)?,
        MaskKind::Custom => scores = scores + padding(site.arg(4)?),
    }
    let weights = scores.softmax_on(-1);
    let first = coremill_graph::ops::Matmul::new().transpose_x(true);
    let slopes = dy.matmul_t(value);
    let slopes = weights * (slopes - (slopes * weights).sum([-1], true)) * scale;
    let all = [slopes.dot(key), slopes.matmul(query, first.clone()), weights.matmul(dy, first)];
    Ok(all.map(|x| layout.restored(x)))
}

/// Rotates heads by tables of cosines and sines, with a row for each position, or for each position of each
/// batch item.
fn turned<'g>(
    site: &NodeContext<'_, 'g>,
    [x, cos, sin]: [Tensor<'g>; 3],
    [width, rotated]: [usize; 2],
    style: RopeStyle,
    direction: f32,
) -> Result<Tensor<'g>, Error> {
    let shape = x.shape();
    let (length, flat) = match shape[..] {
        [.., length, flat] => (length, flat),
        _ => return site.refuse("must rotate a tensor of rank at least 2"),
    };
    let (half, row) = (rotated / 2, cos.last_extent());
    if width == 0 || flat % width != 0 || half == 0 || rotated > width || half > row {
        return site.refuse(format!(
            "cannot rotate {rotated} of {width} elements per head in rows of {flat} elements with {row} angles"
        ));
    }
    let batch: usize = shape[..shape.len() - 2].iter().product();
    let angles: usize = cos.shape().iter().product::<usize>() / row;
    let table = |table: Tensor<'g>| {
        let table = table.view([angles, row]).narrow(1, ..half as i32);
        match angles {
            _ if angles == length => Ok(table),
            _ if angles == batch * length => Ok(table.view([batch, 1, length, half])),
            // Longer tables contain unused positions.
            _ if angles > length => Ok(table.narrow(0, ..length as i32)),
            _ => site.refuse(format!(
                "has angles for {angles} positions, but the number of positions is {length}"
            )),
        }
    };
    let style = match style {
        RopeStyle::NeoX => Style::SplitHalves,
        RopeStyle::GptJ => Style::Interleaved,
    };
    let tables = RopeTables::new(table(cos)?, table(sin)? * direction, style);
    let heads = x.view([batch, length, flat / width, width]).transpose([0, 2, 1, 3]);
    Ok(nn::rotate(heads, tables).transpose([0, 2, 1, 3]).view(shape))
}

/// Attention with its projections; queries, keys and values share one projection matrix.
fn block<'g>(
    site: &NodeContext<'_, 'g>,
    x: Tensor<'g>,
    [heads, width]: [usize; 2],
    [(qkv, qkv_bias), (out, out_bias)]: [(Tensor<'g>, Option<Tensor<'g>>); 2],
    rope: Option<RopeTables<'g>>,
    mask: Tensor<'g>,
) -> Result<Tensor<'g>, Error> {
    if x.rank() != 3 {
        return site.refuse(format!(
            "requires the shape `[batch, positions, width]`, found {:?}",
            x.shape()
        ));
    }
    let (batch, length) = (x.extent(0), x.extent(1));
    let joint = plus(x.dot(qkv), qkv_bias).view([batch, length, 3, heads, width]);
    let joint = joint.transpose([2, 0, 3, 1, 4]);
    let [query, key, value] = [0, 1, 2].map(|at| joint.at(0, at));
    let turn = |x: Tensor<'g>| rope.map_or(x, |tables| nn::rotate(x, tables));
    let options = AttentionOptions::new().bias(padding(mask));
    let y = nn::attention(turn(query), turn(key), value, &options);
    let y = y.transpose([0, 2, 1, 3]).view([batch, length, heads * width]);
    Ok(plus(y.dot(out), out_bias))
}
