//! The words that decompositions are written in: calls of operators that have kernels, with the types of their results.

use coremill_pt2::{Argument, ScalarType, Size};

use super::call::{Call, Tensor};
use super::dtype::{beside, fractional, is_integer, promote_ranked, summed};
use super::size;
use crate::bounds::{At, back, take};
use crate::error::{Refusal, refuse};

pub(crate) type Maybe = Result<Tensor, Refusal>;

/// Integers as an argument.
pub(crate) fn list(values: impl IntoIterator<Item = i64>) -> Argument {
    Argument::List(values.into_iter().map(Argument::Int).collect())
}

/// Positions as an argument.
pub(crate) fn places(values: &[usize]) -> Argument {
    list(values.iter().map(|value| *value as i64))
}

/// The number as a type has it: one that rounds to the type's largest is not out of its range.
fn rounded(value: Argument, dtype: ScalarType) -> Argument {
    match (value, dtype) {
        (Argument::Float(value), ScalarType::Float32) => Argument::Float(f64::from(value as f32)),
        (Argument::Float(value), ScalarType::Float16) => {
            Argument::Float(half::f16::from_f64(value).to_f64())
        }
        (Argument::Float(value), ScalarType::BFloat16) => {
            Argument::Float(half::bf16::from_f64(value).to_f64())
        }
        (value, _) => value,
    }
}

fn tensors(all: &[Tensor]) -> Argument {
    Argument::List(all.iter().map(Tensor::argument).collect())
}

/// The type that two tensors compute in.
fn common(x: &Tensor, y: &Tensor) -> ScalarType {
    promote_ranked([(x.dtype, x.rank()), (y.dtype, y.rank())]).unwrap_or(x.dtype)
}

fn broadcast(left: &Tensor, right: &Tensor) -> Result<Vec<Size>, Refusal> {
    match size::broadcast(&left.sizes, &right.sizes) {
        Some(sizes) => Ok(sizes),
        None => refuse!("two operands do not broadcast"),
    }
}

impl Call<'_> {
    // Element by element.

    /// A function that keeps type and sizes: `abs`.
    pub(crate) fn map(&mut self, function: &str, x: &Tensor) -> Maybe {
        let given = [("self", x.argument())];
        self.emit(&format!("aten.{function}.default"), &given, x.dtype, x.sizes.clone())
    }

    /// A function that gives truth: `logical_not`.
    pub(crate) fn test(&mut self, function: &str, x: &Tensor) -> Maybe {
        let given = [("self", x.argument())];
        self.emit(&format!("aten.{function}.default"), &given, ScalarType::Bool, x.sizes.clone())
    }

    /// A function of two tensors of the type that they compute in: `mul`, `maximum`.
    pub(crate) fn join(&mut self, operator: &str, x: &Tensor, y: &Tensor) -> Maybe {
        self.binary(operator, x, y, common(x, y))
    }

    /// A function of two tensors that gives this type.
    fn binary(&mut self, operator: &str, x: &Tensor, y: &Tensor, dtype: ScalarType) -> Maybe {
        let given = [("self", x.argument()), ("other", y.argument())];
        let sizes = broadcast(x, y)?;
        self.emit(operator, &given, dtype, sizes)
    }

    pub(crate) fn add(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        self.join("aten.add.Tensor", x, y)
    }

    pub(crate) fn subtract(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        self.join("aten.sub.Tensor", x, y)
    }

    pub(crate) fn multiply(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        self.join("aten.mul.Tensor", x, y)
    }

    /// The quotient with fractions.
    pub(crate) fn divide(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        self.binary("aten.div.Tensor", x, y, fractional(common(x, y)))
    }

    /// A comparison of two tensors: `lt`.
    pub(crate) fn compare(&mut self, function: &str, x: &Tensor, y: &Tensor) -> Maybe {
        self.binary(&format!("aten.{function}.Tensor"), x, y, ScalarType::Bool)
    }

    /// A comparison with a number.
    pub(crate) fn compare_number(&mut self, function: &str, x: &Tensor, number: Argument) -> Maybe {
        let given = [("self", x.argument()), ("other", number)];
        self.emit(&format!("aten.{function}.Scalar"), &given, ScalarType::Bool, x.sizes.clone())
    }

    /// `logical_and` and the like.
    pub(crate) fn logic(&mut self, function: &str, x: &Tensor, y: &Tensor) -> Maybe {
        self.binary(&format!("aten.{function}.default"), x, y, ScalarType::Bool)
    }

    /// A function of a tensor and a number: `mul`.
    pub(crate) fn with(&mut self, function: &str, x: &Tensor, number: Argument) -> Maybe {
        let kind = self.number_dtype(&number).unwrap_or(x.dtype);
        let mut dtype = beside(kind, x.dtype);
        if function == "div" {
            dtype = fractional(dtype);
        }
        // Kernels want a tensor of the type that they give.
        let x = &self.cast(x, dtype)?;
        let given = [("self", x.argument()), ("other", number)];
        self.emit(&format!("aten.{function}.Scalar"), &given, dtype, x.sizes.clone())
    }

    pub(crate) fn add_number(&mut self, x: &Tensor, number: f64) -> Maybe {
        self.with("add", x, Argument::Float(number))
    }

    pub(crate) fn times(&mut self, x: &Tensor, number: f64) -> Maybe {
        self.with("mul", x, Argument::Float(number))
    }

    pub(crate) fn power(&mut self, x: &Tensor, exponent: Argument) -> Maybe {
        let kind = self.number_dtype(&exponent).unwrap_or(x.dtype);
        let given = [("self", x.argument()), ("exponent", exponent)];
        self.emit("aten.pow.Tensor_Scalar", &given, beside(kind, x.dtype), x.sizes.clone())
    }

    pub(crate) fn raised(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        let given = [("self", x.argument()), ("exponent", y.argument())];
        let sizes = broadcast(x, y)?;
        self.emit("aten.pow.Tensor_Tensor", &given, common(x, y), sizes)
    }

    /// Between two numbers, either of which may be missing.
    pub(crate) fn clamp(&mut self, x: &Tensor, low: Option<f64>, high: Option<f64>) -> Maybe {
        let whole = is_integer(x.dtype)
            && [low, high].into_iter().flatten().all(|bound| bound.fract() == 0.0);
        let number = |bound: f64| {
            if whole { Argument::Int(bound as i64) } else { Argument::Float(bound) }
        };
        let bound = |bound: Option<f64>| bound.map_or(Argument::None, number);
        let given = [("self", x.argument()), ("min", bound(low)), ("max", bound(high))];
        let dtype = if whole { x.dtype } else { beside(ScalarType::Float32, x.dtype) };
        self.emit("aten.clamp.default", &given, dtype, x.sizes.clone())
    }

    pub(crate) fn choose(&mut self, condition: &Tensor, x: &Tensor, y: &Tensor) -> Maybe {
        let condition = self.cast(condition, ScalarType::Bool)?;
        let given =
            [("condition", condition.argument()), ("self", x.argument()), ("other", y.argument())];
        let Some(sizes) = size::broadcast(&broadcast(x, y)?, &condition.sizes) else {
            refuse!("the condition does not broadcast with what is chosen");
        };
        self.emit("aten.where.self", &given, common(x, y), sizes)
    }

    /// The same numbers as another type.
    pub(crate) fn cast(&mut self, x: &Tensor, dtype: ScalarType) -> Maybe {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        let given = [
            ("self", x.argument()),
            ("dtype", Argument::ScalarType(dtype)),
            ("dim_order", list(0..x.rank() as i64)),
        ];
        self.emit("dim_order_ops._to_dim_order_copy.default", &given, dtype, x.sizes.clone())
    }

    // New tensors.

    /// One number everywhere.
    pub(crate) fn full(&mut self, sizes: Vec<Size>, value: Argument, dtype: ScalarType) -> Maybe {
        let wanted = self.sizes_argument(&sizes)?;
        let value = rounded(value, dtype);
        let given =
            [("size", wanted), ("fill_value", value), ("dtype", Argument::ScalarType(dtype))];
        self.emit("aten.full.default", &given, dtype, sizes)
    }

    /// A number as a tensor beside which `x` keeps its type, if the number lets it.
    pub(crate) fn number_beside(&mut self, number: Argument, x: &Tensor) -> Maybe {
        let kind = self.number_dtype(&number).unwrap_or(x.dtype);
        self.full(Vec::new(), number, beside(kind, x.dtype))
    }

    /// 0, 1, 2 and so on.
    pub(crate) fn count(&mut self, length: &Size, dtype: ScalarType) -> Maybe {
        let end = self.size_argument(length)?;
        self.count_to(end, length, dtype)
    }

    /// The same up to a number that is the length.
    pub(crate) fn count_to(&mut self, end: Argument, length: &Size, dtype: ScalarType) -> Maybe {
        let given = [("end", end), ("dtype", Argument::ScalarType(dtype))];
        self.emit("aten.arange.default", &given, dtype, vec![length.clone()])
    }

    // The same elements in other places.

    /// The elements with other sizes; there have to be as many.
    pub(crate) fn view(&mut self, x: &Tensor, sizes: Vec<Size>) -> Maybe {
        if x.sizes == sizes {
            return Ok(x.clone());
        }
        let unknown = sizes.iter().filter(|size| size.fixed().is_none()).count();
        let empty = sizes.contains(&Size::Fixed(0));
        let wanted = if unknown == 1 && !empty {
            list(sizes.iter().map(|size| size.fixed().unwrap_or(-1)))
        } else {
            self.sizes_argument(&sizes)?
        };
        let given = [("self", x.argument()), ("size", wanted)];
        self.emit("aten.view_copy.default", &given, x.dtype, sizes)
    }

    pub(crate) fn permute(&mut self, x: &Tensor, order: &[usize]) -> Maybe {
        if order.iter().copied().eq(0..x.rank()) {
            return Ok(x.clone());
        }
        if order.len() != x.rank() {
            refuse!("puts the axes of a tensor of rank {} in the order {order:?}", x.rank());
        }
        let given = [("self", x.argument()), ("dims", places(order))];
        let sizes = order.iter().map(|from| x.extent(*from).cloned()).collect::<Result<_, _>>()?;
        self.emit("aten.permute_copy.default", &given, x.dtype, sizes)
    }

    /// With two dimensions swapped.
    pub(crate) fn transpose(&mut self, x: &Tensor, first: usize, second: usize) -> Maybe {
        let mut order: Vec<_> = (0..x.rank()).collect();
        order.exchange(first, second)?;
        self.permute(x, &order)
    }

    /// With the last two dimensions swapped.
    pub(crate) fn turned(&mut self, x: &Tensor) -> Maybe {
        match x.rank() {
            0 | 1 => Ok(x.clone()),
            rank => self.transpose(x, back(rank, 2)?, back(rank, 1)?),
        }
    }

    /// With a dimension of 1 at this position.
    pub(crate) fn unsqueeze(&mut self, x: &Tensor, at: usize) -> Maybe {
        let mut sizes = x.sizes.clone();
        if at > sizes.len() {
            refuse!("dimension {at} is out of range for a tensor of rank {}", x.rank());
        }
        sizes.insert(at, Size::Fixed(1));
        let given = [("self", x.argument()), ("dim", Argument::Int(at as i64))];
        self.emit("aten.unsqueeze_copy.default", &given, x.dtype, sizes)
    }

    /// Without a dimension of 1.
    pub(crate) fn squeeze(&mut self, x: &Tensor, at: usize) -> Maybe {
        let mut sizes = x.sizes.clone();
        take(&mut sizes, at)?;
        let given = [("self", x.argument()), ("dim", places(&[at]))];
        self.emit("aten.squeeze_copy.dims", &given, x.dtype, sizes)
    }

    /// Repeated where the size is 1 so that it has these sizes.
    pub(crate) fn expand(&mut self, x: &Tensor, sizes: Vec<Size>) -> Maybe {
        if x.sizes == sizes {
            return Ok(x.clone());
        }
        let wanted = self.sizes_argument(&sizes)?;
        let given = [("self", x.argument()), ("size", wanted)];
        self.emit("aten.expand_copy.default", &given, x.dtype, sizes)
    }

    /// A run of a dimension, of a length that the caller knows.
    pub(crate) fn slice(
        &mut self,
        x: &Tensor,
        at: usize,
        start: i64,
        length: i64,
        step: i64,
    ) -> Maybe {
        if start == 0 && step == 1 && *x.extent(at)? == Size::Fixed(length) {
            return Ok(x.clone());
        }
        let mut sizes = x.sizes.clone();
        *sizes.at_mut(at)? = Size::Fixed(length);
        let end = start.saturating_add(length.saturating_sub(1).max(0).saturating_mul(step));
        let end = if length > 0 { end.saturating_add(1) } else { start };
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(at as i64)),
            ("start", Argument::Int(start)),
            ("end", Argument::Int(end)),
            ("step", Argument::Int(step)),
        ];
        self.emit("aten.slice_copy.Tensor", &given, x.dtype, sizes)
    }

    /// One place of a dimension, which goes away.
    pub(crate) fn select(&mut self, x: &Tensor, at: usize, index: Argument) -> Maybe {
        let mut sizes = x.sizes.clone();
        if at >= sizes.len() {
            refuse!("dimension {at} is out of range for a tensor of rank {}", x.rank());
        }
        take(&mut sizes, at)?;
        let given = [("self", x.argument()), ("dim", Argument::Int(at as i64)), ("index", index)];
        self.emit("aten.select_copy.int", &given, x.dtype, sizes)
    }

    /// One after the other.
    pub(crate) fn concatenate(&mut self, all: &[Tensor], at: usize) -> Maybe {
        let [first, rest @ ..] = all else { refuse!("there is nothing to concatenate") };
        let mut sizes = first.sizes.clone();
        let mut dtype = first.dtype;
        if at >= first.rank() || rest.iter().any(|tensor| tensor.rank() != first.rank()) {
            refuse!(
                "concatenates tensors of other ranks than {} along dimension {at}",
                first.rank()
            );
        }
        for tensor in rest {
            *sizes.at_mut(at)? = size::add(size::at(&sizes, at)?, tensor.extent(at)?);
            dtype = super::dtype::promote(dtype, tensor.dtype);
        }
        let mut same = Vec::with_capacity(all.len());
        for tensor in all {
            same.push(self.cast(tensor, dtype)?);
        }
        let given = [("tensors", tensors(&same)), ("dim", Argument::Int(at as i64))];
        self.emit("aten.cat.default", &given, dtype, sizes)
    }

    /// Along a new dimension.
    pub(crate) fn stack(&mut self, all: &[Tensor], at: usize) -> Maybe {
        let Some(first) = all.first() else { refuse!("there is nothing to stack") };
        let mut sizes = first.sizes.clone();
        if at > sizes.len() || all.iter().any(|tensor| tensor.rank() != first.rank()) {
            refuse!("stacks tensors of other ranks than {} along dimension {at}", first.rank());
        }
        sizes.insert(at, Size::Fixed(all.len() as i64));
        let dtypes = all.iter().map(|tensor| tensor.dtype);
        let dtype = dtypes.reduce(super::dtype::promote).unwrap_or(first.dtype);
        let mut same = Vec::with_capacity(all.len());
        for tensor in all {
            same.push(self.cast(tensor, dtype)?);
        }
        let given = [("tensors", tensors(&same)), ("dim", Argument::Int(at as i64))];
        self.emit("aten.stack.default", &given, dtype, sizes)
    }

    pub(crate) fn flip(&mut self, x: &Tensor, dimensions: &[usize]) -> Maybe {
        let given = [("self", x.argument()), ("dims", places(dimensions))];
        self.emit("aten.flip.default", &given, x.dtype, x.sizes.clone())
    }

    /// Padded at both ends of dimensions: pairs for the last dimension first, as torch has them. Less than nothing is cut
    /// off; the kernel only adds.
    pub(crate) fn pad(&mut self, x: &Tensor, pads: &[i64], value: Argument) -> Maybe {
        let mut x = x.clone();
        for (nth, pair) in pads.chunks(2).enumerate() {
            let cut: i64 = pair.iter().map(|pad| (*pad).min(0)).sum();
            if let ([before, after], true) = (pair, cut < 0) {
                let at = back(x.rank(), nth + 1)?;
                let mut sizes = x.sizes.clone();
                *sizes.at_mut(at)? = size::add(size::at(&sizes, at)?, &Size::Fixed(cut));
                let end = if *after < 0 { *after } else { i64::MAX };
                let given = [
                    ("self", x.argument()),
                    ("dim", Argument::Int(at as i64)),
                    ("start", Argument::Int((-before).max(0))),
                    ("end", Argument::Int(end)),
                ];
                x = self.emit("aten.slice_copy.Tensor", &given, x.dtype, sizes)?;
            }
        }
        let pads: Vec<i64> = pads.iter().map(|pad| (*pad).max(0)).collect();
        if pads.iter().all(|pad| *pad == 0) {
            return Ok(x);
        }
        let mut sizes = x.sizes.clone();
        for (nth, pair) in pads.chunks(2).enumerate() {
            let at = back(x.rank(), nth + 1)?;
            *sizes.at_mut(at)? = size::add(size::at(&sizes, at)?, &Size::Fixed(pair.iter().sum()));
        }
        let given = [("self", x.argument()), ("pad", list(pads)), ("value", value)];
        self.emit("aten.constant_pad_nd.default", &given, x.dtype, sizes)
    }

    // Picked by indices.

    pub(crate) fn gather(&mut self, x: &Tensor, at: usize, index: &Tensor) -> Maybe {
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(at as i64)),
            ("index", index.argument()),
        ];
        self.emit("aten.gather.default", &given, x.dtype, index.sizes.clone())
    }

    pub(crate) fn index_select(&mut self, x: &Tensor, at: usize, index: &Tensor) -> Maybe {
        let mut sizes = x.sizes.clone();
        let Some(extent) = sizes.get_mut(at) else {
            refuse!("dimension {at} is out of range for a tensor of rank {}", x.rank());
        };
        *extent = size::product(&index.sizes);
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(at as i64)),
            ("index", index.argument()),
        ];
        self.emit("aten.index_select.default", &given, x.dtype, sizes)
    }

    // Along dimensions.

    fn reduced(x: &Tensor, dimensions: &[usize], keep: bool) -> Vec<Size> {
        let of = |(at, size): (usize, &Size)| match (dimensions.contains(&at), keep) {
            (false, _) => Some(size.clone()),
            (true, true) => Some(Size::Fixed(1)),
            (true, false) => None,
        };
        x.sizes.iter().enumerate().filter_map(of).collect()
    }

    pub(crate) fn sum(&mut self, x: &Tensor, dimensions: &[usize], keep: bool) -> Maybe {
        let dtype = summed(x.dtype);
        let given = [
            ("self", x.argument()),
            ("dim", places(dimensions)),
            ("keepdim", Argument::Bool(keep)),
            ("dtype", Argument::ScalarType(dtype)),
        ];
        self.emit("aten.sum.dim_IntList", &given, dtype, Self::reduced(x, dimensions, keep))
    }

    pub(crate) fn mean(&mut self, x: &Tensor, dimensions: &[usize], keep: bool) -> Maybe {
        let dtype = fractional(x.dtype);
        let given = [
            ("self", x.argument()),
            ("dim", places(dimensions)),
            ("keepdim", Argument::Bool(keep)),
            ("dtype", Argument::ScalarType(dtype)),
        ];
        self.emit("aten.mean.dim", &given, dtype, Self::reduced(x, dimensions, keep))
    }

    /// The length of vectors: the root of this degree of the sum of powers of it.
    pub(crate) fn norm(
        &mut self,
        x: &Tensor,
        degree: f64,
        dimensions: &[usize],
        keep: bool,
    ) -> Maybe {
        let given = [
            ("self", x.argument()),
            ("ord", Argument::Float(degree)),
            ("dim", places(dimensions)),
            ("keepdim", Argument::Bool(keep)),
        ];
        let sizes = Self::reduced(x, dimensions, keep);
        self.emit("aten.linalg_vector_norm.default", &given, x.dtype, sizes)
    }

    /// `amax` or `amin`.
    pub(crate) fn extreme(
        &mut self,
        function: &str,
        x: &Tensor,
        dimensions: &[usize],
        keep: bool,
    ) -> Maybe {
        let given = [
            ("self", x.argument()),
            ("dim", places(dimensions)),
            ("keepdim", Argument::Bool(keep)),
        ];
        let sizes = Self::reduced(x, dimensions, keep);
        self.emit(&format!("aten.{function}.default"), &given, x.dtype, sizes)
    }

    /// Whether one is true.
    pub(crate) fn any(&mut self, x: &Tensor, dimensions: &[usize], keep: bool) -> Maybe {
        let given = [
            ("self", x.argument()),
            ("dim", places(dimensions)),
            ("keepdim", Argument::Bool(keep)),
        ];
        let sizes = Self::reduced(x, dimensions, keep);
        self.emit("aten.any.dims", &given, ScalarType::Bool, sizes)
    }

    pub(crate) fn softmax(&mut self, x: &Tensor, at: usize) -> Maybe {
        let given = [
            ("self", x.argument()),
            ("dim", Argument::Int(at as i64)),
            ("half_to_float", Argument::Bool(false)),
        ];
        self.emit("aten._softmax.default", &given, x.dtype, x.sizes.clone())
    }

    // Products of matrices.

    /// torch's product of tensors of any rank.
    pub(crate) fn matmul(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        let (Some((inner, left)), Some((last, right))) =
            (x.sizes.split_last(), y.sizes.split_last())
        else {
            refuse!("a number is not a matrix");
        };
        // A vector is a row on the left, and a column on the right.
        let (rows, left) = left.split_last().map_or((None, left), |(r, l)| (Some(r), l));
        let (_, right) = right.split_last().map_or((inner, right), |(r, b)| (r, b));
        let Some(mut sizes) = size::broadcast(left, right) else {
            refuse!("the batches of the matrices do not broadcast");
        };
        sizes.extend(rows.cloned());
        sizes.extend((y.rank() > 1).then(|| last.clone()));
        let given = [("self", x.argument()), ("other", y.argument())];
        self.emit("aten.matmul.default", &given, x.dtype, sizes)
    }

    pub(crate) fn mm(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        let ([rows, _], [_, columns]) = (x.extent(..)?, &y.sizes[..]) else {
            refuse!("multiplies tensors of rank {} and {}; both must be 2", x.rank(), y.rank());
        };
        let sizes = vec![rows.clone(), columns.clone()];
        let given = [("self", x.argument()), ("mat2", y.argument())];
        self.emit("aten.mm.default", &given, x.dtype, sizes)
    }

    pub(crate) fn bmm(&mut self, x: &Tensor, y: &Tensor) -> Maybe {
        let ([batch, rows, _], [_, _, columns]) = (x.extent(..)?, &y.sizes[..]) else {
            refuse!("multiplies tensors of rank {} and {}; both must be 3", x.rank(), y.rank());
        };
        let sizes = vec![batch.clone(), rows.clone(), columns.clone()];
        let given = [("self", x.argument()), ("mat2", y.argument())];
        self.emit("aten.bmm.default", &given, x.dtype, sizes)
    }
}
