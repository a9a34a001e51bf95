//! Concatenation, repetition, padding and rolling.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(cat, &["aten.{cat,concat,concatenate}"]),
    by(stack, &["aten.stack"]),
    by(stacked, &["aten.{h,v,d,row_,column_}stack"]),
    by(pad, &["aten.{pad,_pad_enum,_pad_circular,constant_pad_nd}"]),
    by(|call| pad_by_name(call, "reflect"), &["aten.reflection_pad{1,2,3}d"]),
    by(|call| pad_by_name(call, "replicate"), &["aten.replication_pad{1,2,3}d"]),
    by(roll, &["aten.roll"]),
    by(flip, &["aten.flip"]),
    formula("flip(self, 1)", &["aten.fliplr"]),
    formula("flip(self, 0)", &["aten.flipud"]),
    by(rot90, &["aten.rot90"]),
    by(repeat, &["aten.repeat", "aten.tile"]),
    by(repeat_each, &["aten.repeat_interleave.self_int"]),
    by(repeat_by, &["aten.repeat_interleave.self_Tensor"]),
    by(diff, &["aten.diff"]),
    by(select_scatter, &["aten.select_scatter", "aten.slice_scatter"]),
    by(channel_shuffle, &["aten.channel_shuffle", "aten.native_channel_shuffle"]),
    by(shift, &["aten.fft_fftshift", "aten.fft_ifftshift"]),
];

/// Concatenation; empty tensors of rank 1 are skipped.
fn cat(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let dtype = call.result(0)?.dtype;
    let all = all.iter().map(|tensor| call.cast(tensor, dtype));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    if all.iter().any(|tensor| tensor.rank() != 1) {
        all.retain(|tensor| tensor.sizes != [Size::Fixed(0)]);
    }
    let Some(first) = all.first() else { refuse!("expected at least one tensor to concatenate") };
    let at = call.dimension("dim", first.rank())?;
    if all.len() == 1 {
        return one(first.clone());
    }
    one(call.noted("aten.cat.default", given!(tensors = all, dim = at))?)
}

fn stack(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let rank = all.first().map_or(0, Tensor::rank) + 1;
    let at = call.dimension("dim", rank)?;
    one(call.stack(&all, at)?)
}

fn stacked(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let dtype = call.result(0)?.dtype;
    let all = all.iter().map(|tensor| call.cast(tensor, dtype));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    // Minimum rank of the inputs, and whether a vector becomes a row.
    let (least, is_row) = match call.name() {
        "hstack" => (1, false),
        "column_stack" => (2, false),
        "dstack" => (3, true),
        _ => (2, true),
    };
    let mut ready = Vec::with_capacity(all.len());
    for tensor in all {
        let mut sizes = tensor.sizes.clone();
        if is_row && sizes.len() == 1 {
            sizes.insert(0, Size::Fixed(1));
        }
        sizes.resize(sizes.len().max(least), Size::Fixed(1));
        ready.push(call.view(&tensor, sizes)?);
    }
    let rank = call.result(0)?.sizes.len();
    let at = match call.name() {
        "hstack" => usize::from(rank > 1),
        "column_stack" => 1,
        "dstack" => 2,
        _ => 0,
    };
    one(call.concatenate(&ready, at)?)
}

/// Pad widths, last dimension first.
fn pads(call: &Call<'_>) -> Result<Vec<i64>> {
    call.ints(if call.has("pad") { "pad" } else { "padding" })
}

fn pad(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let mode = match call.name() {
        "_pad_circular" => "circular",
        "_pad_enum" => {
            const NAMES: [&str; 4] = ["constant", "reflect", "replicate", "circular"];
            let mode = call.int("mode")?;
            match usize::try_from(mode).ok().and_then(|mode| NAMES.get(mode)) {
                Some(name) => name,
                None => refuse!("padding mode {mode} is not supported"),
            }
        }
        _ if call.has("mode") => call.text("mode")?,
        _ => "constant",
    };
    if mode != "constant" {
        let pads = pads(call)?;
        return one(padded(call, &x, &pads, mode)?);
    }
    let value = if call.has("value") { call.argument("value")?.clone() } else { Argument::Int(0) };
    if let Ok(pads) = pads(call)
        && pads.iter().any(|pad| *pad < 0)
    {
        return one(call.pad(&x, &pads, value)?);
    }
    let pads = call.argument("pad")?;
    one(call.noted("aten.constant_pad_nd.default", given!(self = x, pad = pads, value = value))?)
}

/// Pads in one of torch's modes; pairs of widths, last dimension first.
pub(crate) fn padded(call: &mut Call<'_>, x: &Tensor, pads: &[i64], mode: &str) -> TensorResult {
    match mode {
        "constant" => call.pad(x, pads, Argument::Float(0.0)),
        "circular" => circular(call, x, pads),
        mode => mirrored(call, x, pads, mode),
    }
}

fn pad_by_name(call: &mut Call<'_>, mode: &str) -> Results {
    let x = call.tensor("self")?;
    let pads = pads(call)?;
    one(mirrored(call, &x, &pads, mode)?)
}

fn mirrored(call: &mut Call<'_>, x: &Tensor, pads: &[i64], mode: &str) -> TensorResult {
    let count = pads.len() / 2;
    if !(1..=3).contains(&count) {
        refuse!("cannot pad {count} dimensions; 1 to 3 are supported");
    }
    fits(x, pads)?;
    let kind = match mode {
        "reflect" => "reflection",
        "replicate" => "replication",
        other => refuse!("padding mode `{other}` is not supported"),
    };
    let operator = format!("aten.{kind}_pad{count}d.default");
    call.emit(&operator, given!(self = x, padding = pads), x.dtype, padded_sizes(x, pads)?)
}

/// Checks that the rank covers the padded dimensions.
fn fits(x: &Tensor, pads: &[i64]) -> Result<()> {
    if !pads.len().is_multiple_of(2) || pads.len() / 2 > x.rank() {
        refuse!("{} padding sizes do not match a tensor of rank {}", pads.len(), x.rank());
    }
    Ok(())
}

/// Pads with elements from the opposite end.
fn circular(call: &mut Call<'_>, x: &Tensor, pads: &[i64]) -> TensorResult {
    fits(x, pads)?;
    let mut done = x.clone();
    for (nth, pair) in pads.chunks(2).enumerate() {
        let at = axis_from_end(x.rank(), nth + 1)?;
        let [before, after] = pair else { continue };
        let length = done.known(at, "the size of a dimension that is padded")?;
        let mut parts = Vec::with_capacity(3);
        if *before > 0 {
            parts.push(call.slice(&done, at, length - before, *before, 1)?);
        }
        let start = (-before).max(0);
        parts.push(call.slice(&done, at, start, length - start - (-after).max(0), 1)?);
        if *after > 0 {
            parts.push(call.slice(&done, at, 0, *after, 1)?);
        }
        done = call.concatenate(&parts, at)?;
    }
    Ok(done)
}

/// Without `dims`, rolls the flattened tensor.
fn roll(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let shifts = call.argument("shifts")?.clone();
    let over = call.positions("dims", x.rank())?;
    if !over.is_empty() {
        return one(call.roll(&x, shifts, &over)?);
    }
    let flat = call.flat(&x)?;
    let done = call.roll(&flat, shifts, &[0])?;
    one(call.view(&done, x.sizes)?)
}

fn flip(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let over = call.positions("dims", x.rank())?;
    one(if over.is_empty() || x.rank() == 0 { x } else { call.flip(&x, &over)? })
}

fn rot90(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dims = call.positions("dims", x.rank())?;
    let [first, second] = dims[..] else { refuse!("a rotation requires two dimensions") };
    let formula = match call.int("k")?.rem_euclid(4) {
        0 => "x",
        1 => "transpose(flip(x, second), first, second)",
        2 => "flip(x, dims)",
        _ => "flip(transpose(x, first, second), second)",
    };
    one(calc!(call, formula, x, first, second, dims)?)
}

fn repeat(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = if call.has("repeats") { "repeats" } else { "dims" };
    let items = list(name, call.argument(name)?)?;
    let mut repeats = vec![Argument::Int(1); x.rank().saturating_sub(items.len())];
    repeats.extend(items.iter().cloned());
    one(call.noted("aten.repeat.default", given!(self = x, repeats = repeats))?)
}

/// Operand and dimension of a repetition. Without `dim`, the operand is flattened.
fn repeated(call: &mut Call<'_>) -> Result<(Tensor, usize)> {
    let x = call.tensor("self")?;
    if call.has("dim") {
        let at = call.dimension("dim", x.rank())?;
        return Ok((x, at));
    }
    Ok((call.flat(&x)?, 0))
}

fn repeat_each(call: &mut Call<'_>) -> Results {
    let (x, at) = repeated(call)?;
    let times = call.size("repeats")?;
    let sizes = call.result_sizes()?;
    one(call.spread(&x, at, times, sizes)?)
}

/// Repeats each element by a count of its own.
fn repeat_by(call: &mut Call<'_>) -> Results {
    let repeats = call.tensor("repeats")?;
    let (x, at) = repeated(call)?;
    let repeats = call.expand(&repeats, vec![x.extent(at)?.clone()])?;
    let count = vec![size::at(&call.result_sizes()?, at)?.clone()];
    let operator = "aten.repeat_interleave.Tensor";
    let index = call.emit(operator, given!(repeats = repeats), repeats.dtype, count)?;
    let index = call.cast(&index, ScalarType::Int64)?;
    one(call.index_select(&x, at, &index)?)
}

fn diff(call: &mut Call<'_>) -> Results {
    let mut x = call.tensor("self")?;
    let at = call.dimension("dim", x.rank())?;
    let (before, after) = (call.optional_tensor("prepend")?, call.optional_tensor("append")?);
    let parts: Vec<_> = before.into_iter().chain([x.clone()]).chain(after).collect();
    if parts.len() > 1 {
        x = call.concatenate(&parts, at)?;
    }
    for _ in 0..call.int("n")?.max(0) {
        let function = if x.dtype == ScalarType::Bool { "logical_xor" } else { "sub" };
        x = calc!(call, &format!("{function}(tail(x, at), head(x, at))"), x, at)?;
    }
    one(x)
}

/// Writes a source, cast to the tensor's type, to a selection.
fn select_scatter(call: &mut Call<'_>) -> Results {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let mut source = call.cast(&source, x.dtype)?;
    let at = call.dimension("dim", x.rank())?;
    let is_select = call.has("index");
    if !is_select && source.rank() < x.rank() {
        refuse!("the source has fewer dimensions than its destination");
    }
    if is_select && source.rank() + 1 != x.rank() {
        let mut sizes = x.sizes.clone();
        take(&mut sizes, at)?;
        source = call.expand(&source, sizes)?;
    }
    let operator = call.node.target.to_string();
    one(call.again(&operator, given!(self = x, src = source, dim = at))?)
}

fn channel_shuffle(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let groups = call.int("groups")?;
    let channels = x.known(1, "the number of channels")?;
    let mut sizes = x.sizes.clone();
    sizes.splice(1..2, [Size::Fixed(groups), Size::Fixed(channels / groups.max(1))]);
    let apart = call.view(&x, sizes)?;
    let turned = call.transpose(&apart, 1, 2)?;
    one(call.view(&turned, x.sizes)?)
}

/// Moves the zero frequency to the middle, or back.
fn shift(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let over = call.dimensions("dim", x.rank())?;
    let more = i64::from(call.name() == "fft_ifftshift");
    let lengths = over.iter().map(|at| x.known(*at, "the length of the dimension"));
    let shifts = lengths.map(|length| Ok((length? + more) / 2));
    let shifts = shifts.collect::<Result<Vec<_>>>()?;
    one(call.roll(&x, shifts.given(), &over)?)
}
