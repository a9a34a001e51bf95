//! Tensors one after the other, repeated, padded, rolled.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::{At, back, take};
use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::{Maybe, list, places};
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(cat, &["aten.cat.default", "aten.concat.default", "aten.concatenate.default"]),
    by(stack, &["aten.stack.default"]),
    by(
        stacked,
        &[
            "aten.hstack.default",
            "aten.vstack.default",
            "aten.row_stack.default",
            "aten.dstack.default",
            "aten.column_stack.default",
        ],
    ),
    by(
        pad,
        &[
            "aten.pad.default",
            "aten._pad_enum.default",
            "aten._pad_circular.default",
            "aten.constant_pad_nd.default",
        ],
    ),
    by(
        pad_by_name,
        &[
            "aten.reflection_pad1d.default",
            "aten.reflection_pad2d.default",
            "aten.reflection_pad3d.default",
            "aten.replication_pad1d.default",
            "aten.replication_pad2d.default",
            "aten.replication_pad3d.default",
        ],
    ),
    by(roll, &["aten.roll.default"]),
    by(flip, &["aten.flip.default", "aten.fliplr.default", "aten.flipud.default"]),
    by(rot90, &["aten.rot90.default"]),
    by(repeat, &["aten.repeat.default", "aten.tile.default"]),
    by(repeat_each, &["aten.repeat_interleave.self_int"]),
    by(repeat_by, &["aten.repeat_interleave.self_Tensor"]),
    by(diff, &["aten.diff.default"]),
    by(select_scatter, &["aten.select_scatter.default", "aten.slice_scatter.default"]),
    by(channel_shuffle, &["aten.channel_shuffle.default", "aten.native_channel_shuffle.default"]),
    by(shift, &["aten.fft_fftshift.default", "aten.fft_ifftshift.default"]),
];

/// All as the type that they have in common.
fn alike(call: &mut Call<'_>, all: &[Tensor]) -> Result<Vec<Tensor>, Refusal> {
    let dtype = call.result(0)?.dtype;
    all.iter().map(|tensor| call.cast(tensor, dtype)).collect()
}

/// Empty tensors of rank 1 do not count.
fn cat(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let mut all = alike(call, &all)?;
    let is_nothing = |tensor: &Tensor| tensor.sizes == [Size::Fixed(0)];
    if all.iter().any(|tensor| tensor.rank() != 1) {
        all.retain(|tensor| !is_nothing(tensor));
    }
    let [first, ..] = all.as_slice() else { refuse!("there is nothing to concatenate") };
    let at = first.dimension(call.int("dim")?)?;
    if all.len() == 1 {
        return one(first.clone());
    }
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let tensors = Argument::List(all.iter().map(Tensor::argument).collect());
    let given = [("tensors", tensors), ("dim", Argument::Int(at as i64))];
    one(call.emit("aten.cat.default", &given, dtype, sizes)?)
}

fn stack(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let rank = all.first().map_or(0, Tensor::rank) + 1;
    let at = crate::decompose::call::position(call.int("dim")?, rank)?;
    one(call.stack(&all, at)?)
}

fn stacked(call: &mut Call<'_>) -> Results {
    let all = call.tensors("tensors")?;
    let name = call.node.target.to_string();
    let mut ready = Vec::with_capacity(all.len());
    for tensor in alike(call, &all)? {
        let mut sizes = tensor.sizes.clone();
        let unit = Size::Fixed(1);
        match (name.split('.').nth(1), tensor.rank()) {
            (_, 0) => sizes = vec![unit],
            (Some("vstack" | "row_stack"), 1) => sizes.insert(0, unit),
            (Some("column_stack"), 1) => sizes.push(unit),
            (Some("dstack"), 1) => {
                sizes.insert(0, unit.clone());
                sizes.push(unit);
            }
            (Some("dstack"), 2) => sizes.push(unit),
            _ => {}
        }
        if name.contains("vstack") || name.contains("column_stack") || name.contains("row_stack") {
            sizes.resize(sizes.len().max(2), Size::Fixed(1));
        }
        if name.contains("dstack") {
            while sizes.len() < 3 {
                sizes.push(Size::Fixed(1));
            }
        }
        ready.push(call.view(&tensor, sizes)?);
    }
    let rank = call.result(0)?.sizes.len();
    let at = match name.split('.').nth(1) {
        Some("hstack") => usize::from(rank > 1),
        Some("column_stack") => 1,
        Some("dstack") => 2,
        _ => 0,
    };
    one(call.concatenate(&ready, at)?)
}

/// Pads of each end, the last dimension first.
fn pads(call: &Call<'_>) -> Result<Vec<i64>, Refusal> {
    call.ints(if call.has("pad") { "pad" } else { "padding" })
}

fn pad(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = call.node.target.to_string();
    let mode = if name.contains("circular") {
        "circular".to_owned()
    } else if call.has("mode") && !name.contains("enum") {
        call.text("mode")?.to_owned()
    } else if name.contains("enum") {
        let names = ["constant", "reflect", "replicate", "circular"];
        let mode = call.int("mode")?;
        match usize::try_from(mode).ok().and_then(|mode| names.get(mode)) {
            Some(name) => (*name).to_owned(),
            None => refuse!("{mode} is not a way to pad"),
        }
    } else {
        "constant".to_owned()
    };
    if mode == "constant" {
        let value = match call.node.argument("value") {
            None | Some(Argument::None) => Argument::Int(0),
            Some(value) => value.clone(),
        };
        let wanted = call.argument("pad")?.clone();
        if let Ok(pads) = pads(call)
            && pads.iter().any(|pad| *pad < 0)
        {
            return one(call.pad(&x, &pads, value)?);
        }
        let noted = call.result(0)?;
        let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
        let given = [("self", x.argument()), ("pad", wanted), ("value", value)];
        return one(call.emit("aten.constant_pad_nd.default", &given, dtype, sizes)?);
    }
    let pads = pads(call)?;
    one(padded(call, &x, &pads, &mode)?)
}

/// Padded in torch's way of that name: pairs for the last dimension first.
pub(crate) fn padded(call: &mut Call<'_>, x: &Tensor, pads: &[i64], mode: &str) -> Maybe {
    match mode {
        "constant" => call.pad(x, pads, Argument::Float(0.0)),
        "circular" => circular(call, x, pads),
        mode => mirrored(call, x, pads, mode),
    }
}

fn pad_by_name(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let pads = pads(call)?;
    let reflects = call.node.target.to_string().contains("reflection");
    one(mirrored(call, &x, &pads, if reflects { "reflect" } else { "replicate" })?)
}

fn mirrored(call: &mut Call<'_>, x: &Tensor, pads: &[i64], mode: &str) -> Maybe {
    let count = pads.len() / 2;
    if !(1..=3).contains(&count) {
        refuse!("{count} dimensions are padded; 1 to 3 have a kernel");
    }
    fits(x, pads)?;
    let kind = match mode {
        "reflect" => "reflection",
        "replicate" => "replication",
        other => refuse!("`{other}` is not a way to pad"),
    };
    let mut sizes = x.sizes.clone();
    for (nth, pair) in pads.chunks(2).enumerate() {
        let at = back(x.rank(), nth + 1)?;
        *sizes.at_mut(at)? = size::add(size::at(&sizes, at)?, &Size::Fixed(pair.iter().sum()));
    }
    let given = [("self", x.argument()), ("padding", list(pads.iter().copied()))];
    call.emit(&format!("aten.{kind}_pad{count}d.default"), &given, x.dtype, sizes)
}

/// Whether a tensor has as many dimensions as are padded.
fn fits(x: &Tensor, pads: &[i64]) -> Result<(), Refusal> {
    if pads.len() % 2 != 0 || pads.len() / 2 > x.rank() {
        refuse!("{} numbers pad a tensor of rank {}", pads.len(), x.rank());
    }
    Ok(())
}

/// The other end on each side.
fn circular(call: &mut Call<'_>, x: &Tensor, pads: &[i64]) -> Maybe {
    fits(x, pads)?;
    let mut done = x.clone();
    for (nth, pair) in pads.chunks(2).enumerate() {
        let at = back(x.rank(), nth + 1)?;
        let ([before, after], Some(length)) = (pair, done.extent(at)?.fixed()) else {
            refuse!("a dimension whose size is unknown at compile time is padded");
        };
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

/// Without dimensions all elements are in a row.
fn roll(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let shifts = call.argument("shifts")?.clone();
    let dims = call.ints("dims")?;
    let rolled = |call: &mut Call<'_>, x: &Tensor, dims: Argument| {
        let given = [("self", x.argument()), ("shifts", shifts.clone()), ("dims", dims)];
        call.emit("aten.roll.default", &given, x.dtype, x.sizes.clone())
    };
    if !dims.is_empty() {
        return one(rolled(call, &x, list(dims))?);
    }
    let flat = call.view(&x, vec![size::product(&x.sizes)])?;
    let done = rolled(call, &flat, list([0]))?;
    one(call.view(&done, x.sizes)?)
}

fn flip(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = call.node.target.to_string();
    let over = if name.contains("fliplr") {
        vec![1]
    } else if name.contains("flipud") {
        vec![0]
    } else {
        let dims = call.ints("dims")?;
        if dims.is_empty() || x.rank() == 0 {
            return one(x);
        }
        dims.into_iter().map(|at| x.dimension(at)).collect::<Result<Vec<_>, _>>()?
    };
    one(call.flip(&x, &over)?)
}

fn rot90(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let dims = call.ints("dims")?;
    let [first, second] = dims.as_slice() else { refuse!("a plane has two dimensions") };
    let (first, second) = (x.dimension(*first)?, x.dimension(*second)?);
    one(match call.int("k")?.rem_euclid(4) {
        0 => x,
        1 => {
            let flipped = call.flip(&x, &[second])?;
            call.transpose(&flipped, first, second)?
        }
        2 => call.flip(&x, &[first, second])?,
        _ => {
            let turned = call.transpose(&x, first, second)?;
            call.flip(&turned, &[second])?
        }
    })
}

fn repeat(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let name = if call.has("repeats") { "repeats" } else { "dims" };
    let Argument::List(items) = call.argument(name)?.clone() else {
        refuse!("`{name}` is not a list");
    };
    let noted = call.result(0)?;
    let (dtype, sizes) = (noted.dtype, noted.sizes.clone());
    let mut repeats = vec![Argument::Int(1); x.rank().saturating_sub(items.len())];
    repeats.extend(items);
    let given = [("self", x.argument()), ("repeats", Argument::List(repeats))];
    one(call.emit("aten.repeat.default", &given, dtype, sizes)?)
}

fn repeat_each(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let Some(times) = call.frame.size_of(call.argument("repeats")?) else {
        refuse!("`repeats` is not an integer");
    };
    let (x, at) = if call.has("dim") {
        let at = x.dimension(call.int("dim")?)?;
        (x, at)
    } else {
        (call.view(&x, vec![size::product(&x.sizes)])?, 0)
    };
    let apart = call.unsqueeze(&x, at + 1)?;
    let mut sizes = apart.sizes.clone();
    *sizes.at_mut(at + 1)? = times;
    let spread = call.expand(&apart, sizes)?;
    let sizes = call.result(0)?.sizes.clone();
    one(call.view(&spread, sizes)?)
}

/// The place of each element as often as it is repeated.
fn repeat_by(call: &mut Call<'_>) -> Results {
    let (x, repeats) = (call.tensor("self")?, call.tensor("repeats")?);
    let (x, at) = if call.has("dim") {
        let at = x.dimension(call.int("dim")?)?;
        (x, at)
    } else {
        (call.view(&x, vec![size::product(&x.sizes)])?, 0)
    };
    let sizes = call.result(0)?.sizes.clone();
    let repeats = call.expand(&repeats, vec![x.extent(at)?.clone()])?;
    let given = [("repeats", repeats.argument())];
    let operator = "aten.repeat_interleave.Tensor";
    let index = call.emit(operator, &given, repeats.dtype, vec![size::at(&sizes, at)?.clone()])?;
    let index = call.cast(&index, ScalarType::Int64)?;
    one(call.index_select(&x, at, &index)?)
}

fn diff(call: &mut Call<'_>) -> Results {
    let mut x = call.tensor("self")?;
    let at = x.dimension(call.int("dim")?)?;
    let mut parts = Vec::with_capacity(3);
    for (name, own) in [("prepend", false), ("self", true), ("append", false)] {
        if own {
            parts.push(x.clone());
        } else if let Some(tensor) = call.optional_tensor(name)? {
            parts.push(tensor);
        }
    }
    if parts.len() > 1 {
        x = call.concatenate(&parts, at)?;
    }
    for _ in 0..call.int("n")?.max(0) {
        let less = size::add(x.extent(at)?, &Size::Fixed(-1));
        let run = |call: &mut Call<'_>, start: Argument, end: Argument| {
            let mut sizes = x.sizes.clone();
            *sizes.at_mut(at)? = less.clone();
            let given = [
                ("self", x.argument()),
                ("dim", Argument::Int(at as i64)),
                ("start", start),
                ("end", end),
            ];
            call.emit("aten.slice_copy.Tensor", &given, x.dtype, sizes)
        };
        let after = run(call, Argument::Int(1), Argument::Int(i64::MAX))?;
        let before = run(call, Argument::Int(0), Argument::Int(-1))?;
        x = if x.dtype == ScalarType::Bool {
            call.logic("logical_xor", &after, &before)?
        } else {
            call.subtract(&after, &before)?
        };
    }
    one(x)
}

/// The source as the type of what it is written to.
fn select_scatter(call: &mut Call<'_>) -> Results {
    let (x, source) = (call.tensor("self")?, call.tensor("src")?);
    let source = call.cast(&source, x.dtype)?;
    let operator = call.node.target.to_string();
    let mut given =
        vec![("self", x.argument()), ("dim", Argument::Int(x.dimension(call.int("dim")?)? as i64))];
    let own: &[&str] = if call.has("index") { &["index"] } else { &["start", "end", "step"] };
    let mut source = source;
    for name in own {
        given.push((name, call.argument(name)?.clone()));
    }
    if own.len() == 3 && source.rank() < x.rank() {
        refuse!("the source has fewer dimensions than what it is written to");
    }
    if own.len() == 1 && source.rank() + 1 != x.rank() {
        let at = x.dimension(call.int("dim")?)?;
        let mut sizes = x.sizes.clone();
        take(&mut sizes, at)?;
        source = call.expand(&source, sizes)?;
    }
    given.push(("src", source.argument()));
    one(call.emit(&operator, &given, x.dtype, x.sizes.clone())?)
}

fn channel_shuffle(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let groups = call.int("groups")?;
    let Some(channels) = x.sizes.get(1).and_then(Size::fixed) else {
        refuse!("the number of channels is not known");
    };
    let mut sizes = x.sizes.clone();
    sizes.splice(1..2, [Size::Fixed(groups), Size::Fixed(channels / groups.max(1))]);
    let apart = call.view(&x, sizes)?;
    let turned = call.transpose(&apart, 1, 2)?;
    one(call.view(&turned, x.sizes)?)
}

/// Zero in the middle, or back at the start.
fn shift(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let over = call.dimensions("dim", x.rank())?;
    let back = call.node.target.to_string().contains("ifftshift");
    let mut shifts = Vec::with_capacity(over.len());
    for at in &over {
        let Some(length) = x.extent(*at)?.fixed() else {
            refuse!("the length of the dimension is unknown at compile time");
        };
        shifts.push(if back { (length + 1) / 2 } else { length / 2 });
    }
    let given = [("self", x.argument()), ("shifts", list(shifts)), ("dims", places(&over))];
    one(call.emit("aten.roll.default", &given, x.dtype, x.sizes.clone())?)
}
