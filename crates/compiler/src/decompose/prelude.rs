//! Vocabulary of decompositions: typed calls of operators that have kernels, and the imports every family needs.

pub(crate) use coremill_pt2::{Argument, ScalarType, Size};

pub(crate) use super::call::{
    Call, IntoArgument, Results, RewriteResult, Tensor, TensorResult, first, given, list, one,
    position, promoted, spatial,
};
pub(crate) use super::dtype::{
    fractional, is_complex, is_float, is_half, is_integer, promote, promote_ranked, promote_scalar,
    summed,
};
pub(crate) use super::formula::calc;
pub(crate) use super::row::{Row, by, formula, to};
pub(crate) use super::size;
pub(crate) use crate::bounds::{
    CheckedIndex, axis_from_end, checked, checked_numel, product, take,
};
pub(crate) use crate::error::{LoweringError, Result, refuse};

/// Rounds a float to `dtype`, so that a value that rounds to the type's maximum is in range.
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

/// Promoted type of two tensors.
fn common(x: &Tensor, y: &Tensor) -> ScalarType {
    promote_ranked([(x.dtype, x.rank()), (y.dtype, y.rank())]).unwrap_or(x.dtype)
}

/// Shape that two operands broadcast to.
pub(crate) fn broadcast(left: &Tensor, right: &Tensor) -> Result<Vec<Size>> {
    match size::broadcast(&left.sizes, &right.sizes) {
        Some(sizes) => Ok(sizes),
        None => refuse!("two operands do not broadcast"),
    }
}

/// Shape after a reduction of these dimensions.
pub(crate) fn left(x: &Tensor, dimensions: &[usize], keep: bool) -> Vec<Size> {
    let of = |(at, size): (usize, &Size)| match (dimensions.contains(&at), keep) {
        (false, _) => Some(size.clone()),
        (true, true) => Some(Size::Fixed(1)),
        (true, false) => None,
    };
    x.sizes.iter().enumerate().filter_map(of).collect()
}

impl Call<'_> {
    // Elementwise functions.

    /// A function that preserves type and shape, such as `abs`.
    pub(crate) fn map(&mut self, function: &str, x: &Tensor) -> TensorResult {
        self.like(x, &format!("aten.{function}.default"), given!(self = x))
    }

    /// A function with boolean result, such as `logical_not`.
    pub(crate) fn test(&mut self, function: &str, x: &Tensor) -> TensorResult {
        let operator = format!("aten.{function}.default");
        self.emit(&operator, given!(self = x), ScalarType::Bool, x.sizes.clone())
    }

    /// A function of two tensors in their promoted type, such as `mul` or `maximum`.
    pub(crate) fn join(&mut self, operator: &str, x: &Tensor, y: &Tensor) -> TensorResult {
        self.binary(operator, x, y, common(x, y))
    }

    /// A function of two tensors with this result type.
    fn binary(
        &mut self,
        operator: &str,
        x: &Tensor,
        y: &Tensor,
        dtype: ScalarType,
    ) -> TensorResult {
        self.emit(operator, given!(self = x, other = y), dtype, broadcast(x, y)?)
    }

    pub(crate) fn add(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        self.join("aten.add.Tensor", x, y)
    }

    pub(crate) fn subtract(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        self.join("aten.sub.Tensor", x, y)
    }

    pub(crate) fn multiply(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        self.join("aten.mul.Tensor", x, y)
    }

    /// Quotient with fractions.
    pub(crate) fn divide(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        self.binary("aten.div.Tensor", x, y, fractional(common(x, y)))
    }

    /// A comparison of two tensors, such as `lt`.
    pub(crate) fn compare(&mut self, function: &str, x: &Tensor, y: &Tensor) -> TensorResult {
        self.binary(&format!("aten.{function}.Tensor"), x, y, ScalarType::Bool)
    }

    /// A comparison of a tensor with a number.
    pub(crate) fn compare_number(
        &mut self,
        function: &str,
        x: &Tensor,
        number: Argument,
    ) -> TensorResult {
        let operator = format!("aten.{function}.Scalar");
        let given = given!(self = x, other = number);
        self.emit(&operator, given, ScalarType::Bool, x.sizes.clone())
    }

    /// `logical_and` and similar functions.
    pub(crate) fn logic(&mut self, function: &str, x: &Tensor, y: &Tensor) -> TensorResult {
        self.binary(&format!("aten.{function}.default"), x, y, ScalarType::Bool)
    }

    /// A function of a tensor and a number, such as `mul`.
    pub(crate) fn with(&mut self, function: &str, x: &Tensor, number: Argument) -> TensorResult {
        let kind = self.number_dtype(&number).unwrap_or(x.dtype);
        let mut dtype = promote_scalar(kind, x.dtype);
        if function == "div" {
            dtype = fractional(dtype);
        }
        // Kernels require a tensor of the result type.
        let x = &self.cast(x, dtype)?;
        self.like(x, &format!("aten.{function}.Scalar"), given!(self = x, other = number))
    }

    pub(crate) fn add_number(&mut self, x: &Tensor, number: f64) -> TensorResult {
        self.with("add", x, Argument::Float(number))
    }

    pub(crate) fn times(&mut self, x: &Tensor, number: f64) -> TensorResult {
        self.with("mul", x, Argument::Float(number))
    }

    pub(crate) fn power(&mut self, x: &Tensor, exponent: Argument) -> TensorResult {
        let kind = self.number_dtype(&exponent).unwrap_or(x.dtype);
        let given = given!(self = x, exponent = exponent);
        self.emit("aten.pow.Tensor_Scalar", given, promote_scalar(kind, x.dtype), x.sizes.clone())
    }

    pub(crate) fn raised(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        let given = given!(self = x, exponent = y);
        self.emit("aten.pow.Tensor_Tensor", given, common(x, y), broadcast(x, y)?)
    }

    /// Clamps between optional bounds.
    pub(crate) fn clamp(
        &mut self,
        x: &Tensor,
        low: Option<f64>,
        high: Option<f64>,
    ) -> TensorResult {
        let whole = is_integer(x.dtype)
            && [low, high].into_iter().flatten().all(|bound| bound.fract() == 0.0);
        let number = |bound: f64| {
            if whole { Argument::Int(bound as i64) } else { Argument::Float(bound) }
        };
        let given = given!(self = x, min = low.map(number), max = high.map(number));
        let dtype = if whole { x.dtype } else { promote_scalar(ScalarType::Float32, x.dtype) };
        self.emit("aten.clamp.default", given, dtype, x.sizes.clone())
    }

    pub(crate) fn choose(&mut self, condition: &Tensor, x: &Tensor, y: &Tensor) -> TensorResult {
        let condition = self.cast(condition, ScalarType::Bool)?;
        let Some(sizes) = size::broadcast(&broadcast(x, y)?, &condition.sizes) else {
            refuse!("the condition does not broadcast with the values");
        };
        let given = given!(condition = condition, self = x, other = y);
        self.emit("aten.where.self", given, common(x, y), sizes)
    }

    /// Casts to another type.
    pub(crate) fn cast(&mut self, x: &Tensor, dtype: ScalarType) -> TensorResult {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        let order: Vec<usize> = (0..x.rank()).collect();
        let given = given!(self = x, dtype = dtype, dim_order = order);
        self.emit("dim_order_ops._to_dim_order_copy.default", given, dtype, x.sizes.clone())
    }

    // Creation of tensors.

    /// A tensor filled with one number.
    pub(crate) fn full(
        &mut self,
        sizes: Vec<Size>,
        value: Argument,
        dtype: ScalarType,
    ) -> TensorResult {
        let wanted = self.sizes_argument(&sizes)?;
        let value = rounded(value, dtype);
        let given = given!(size = wanted, fill_value = value, dtype = dtype);
        self.emit("aten.full.default", given, dtype, sizes)
    }

    /// A scalar tensor.
    pub(crate) fn scalar(&mut self, value: Argument, dtype: ScalarType) -> TensorResult {
        self.full(Vec::new(), value, dtype)
    }

    /// A number as a scalar tensor that does not change the type of `x` in type promotion, if possible.
    pub(crate) fn number_beside(&mut self, number: Argument, x: &Tensor) -> TensorResult {
        let kind = self.number_dtype(&number).unwrap_or(x.dtype);
        self.scalar(number, promote_scalar(kind, x.dtype))
    }

    /// The integers from 0 to below `length`.
    pub(crate) fn count(&mut self, length: &Size, dtype: ScalarType) -> TensorResult {
        let end = self.size_argument(length)?;
        self.count_to(end, length, dtype)
    }

    /// The integers from 0 to below `end`, which equals `length`.
    pub(crate) fn count_to(
        &mut self,
        end: Argument,
        length: &Size,
        dtype: ScalarType,
    ) -> TensorResult {
        let given = given!(end = end, dtype = dtype);
        self.emit("aten.arange.default", given, dtype, vec![length.clone()])
    }

    // Views and other movement of elements.

    /// Reshapes to a shape with the same number of elements.
    pub(crate) fn view(&mut self, x: &Tensor, sizes: Vec<Size>) -> TensorResult {
        if x.sizes == sizes {
            return Ok(x.clone());
        }
        let unknown = sizes.iter().filter(|size| size.fixed().is_none()).count();
        let empty = sizes.contains(&Size::Fixed(0));
        let wanted = if unknown == 1 && !empty {
            sizes.iter().map(|size| size.fixed().unwrap_or(-1)).collect::<Vec<_>>().given()
        } else {
            self.sizes_argument(&sizes)?
        };
        self.emit("aten.view_copy.default", given!(self = x, size = wanted), x.dtype, sizes)
    }

    /// Reshapes to the shape that torch recorded for the first result.
    pub(crate) fn viewed(&mut self, x: &Tensor) -> TensorResult {
        let sizes = self.result_sizes()?;
        self.view(x, sizes)
    }

    /// Flattens to one dimension.
    pub(crate) fn flat(&mut self, x: &Tensor) -> TensorResult {
        self.view(x, vec![size::product(&x.sizes)])
    }

    /// Reshapes a vector to run along one dimension of a tensor of rank `rank`.
    pub(crate) fn along(&mut self, x: &Tensor, at: usize, rank: usize) -> TensorResult {
        let mut sizes = vec![Size::Fixed(1); rank];
        *sizes.at_mut(at)? = size::product(&x.sizes);
        self.view(x, sizes)
    }

    pub(crate) fn permute(&mut self, x: &Tensor, order: &[usize]) -> TensorResult {
        if order.iter().copied().eq(0..x.rank()) {
            return Ok(x.clone());
        }
        if order.len() != x.rank() {
            refuse!("{order:?} is not a permutation of the axes of a tensor of rank {}", x.rank());
        }
        let sizes = order.iter().map(|from| x.extent(*from).cloned()).collect::<Result<_, _>>()?;
        self.emit("aten.permute_copy.default", given!(self = x, dims = order), x.dtype, sizes)
    }

    /// Swaps two dimensions.
    pub(crate) fn transpose(&mut self, x: &Tensor, first: usize, second: usize) -> TensorResult {
        let mut order: Vec<_> = (0..x.rank()).collect();
        order.exchange(first, second)?;
        self.permute(x, &order)
    }

    /// Swaps the last two dimensions.
    pub(crate) fn turned(&mut self, x: &Tensor) -> TensorResult {
        match x.rank() {
            0 | 1 => Ok(x.clone()),
            rank => self.transpose(x, axis_from_end(rank, 2)?, axis_from_end(rank, 1)?),
        }
    }

    /// Inserts a unit dimension.
    pub(crate) fn unsqueeze(&mut self, x: &Tensor, at: usize) -> TensorResult {
        let mut sizes = x.sizes.clone();
        if at > sizes.len() {
            refuse!("dimension {at} is out of range for a tensor of rank {}", x.rank());
        }
        sizes.insert(at, Size::Fixed(1));
        self.emit("aten.unsqueeze_copy.default", given!(self = x, dim = at), x.dtype, sizes)
    }

    /// Removes a unit dimension.
    pub(crate) fn squeeze(&mut self, x: &Tensor, at: usize) -> TensorResult {
        let mut sizes = x.sizes.clone();
        take(&mut sizes, at)?;
        self.emit("aten.squeeze_copy.dims", given!(self = x, dim = [at]), x.dtype, sizes)
    }

    /// Broadcasts unit dimensions to these sizes.
    pub(crate) fn expand(&mut self, x: &Tensor, sizes: Vec<Size>) -> TensorResult {
        if x.sizes == sizes {
            return Ok(x.clone());
        }
        let wanted = self.sizes_argument(&sizes)?;
        self.emit("aten.expand_copy.default", given!(self = x, size = wanted), x.dtype, sizes)
    }

    /// Repeats each element of a dimension `times` times in place.
    pub(crate) fn spread(
        &mut self,
        x: &Tensor,
        at: usize,
        times: Size,
        sizes: Vec<Size>,
    ) -> TensorResult {
        let apart = self.unsqueeze(x, at + 1)?;
        let wide = apart.with_size(at + 1, times)?;
        let spread = self.expand(&apart, wide)?;
        self.view(&spread, sizes)
    }

    /// Slices a dimension to a constant length.
    pub(crate) fn slice(
        &mut self,
        x: &Tensor,
        at: usize,
        start: i64,
        length: i64,
        step: i64,
    ) -> TensorResult {
        if start == 0 && step == 1 && *x.extent(at)? == Size::Fixed(length) {
            return Ok(x.clone());
        }
        let end = start.saturating_add(length.saturating_sub(1).max(0).saturating_mul(step));
        let end = if length > 0 { end.saturating_add(1) } else { start };
        let given = given!(self = x, dim = at, start = start, end = end, step = step);
        let sizes = x.with_size(at, Size::Fixed(length))?;
        self.emit("aten.slice_copy.Tensor", given, x.dtype, sizes)
    }

    /// Slices a dimension from `start` to `end`, with torch's semantics. `length` is the resulting size.
    pub(crate) fn run(
        &mut self,
        x: &Tensor,
        at: usize,
        start: Argument,
        end: Argument,
        length: Size,
    ) -> TensorResult {
        let given = given!(self = x, dim = at, start = start, end = end);
        self.emit("aten.slice_copy.Tensor", given, x.dtype, x.with_size(at, length)?)
    }

    /// Drops the first or the last element of a dimension.
    pub(crate) fn all_but(&mut self, x: &Tensor, at: usize, is_last: bool) -> TensorResult {
        let (start, end) = if is_last { (0, -1) } else { (1, i64::MAX) };
        let less = size::add(x.extent(at)?, &Size::Fixed(-1));
        self.run(x, at, Argument::Int(start), Argument::Int(end), less)
    }

    /// Selects one index of a dimension and removes the dimension.
    pub(crate) fn select(&mut self, x: &Tensor, at: usize, index: Argument) -> TensorResult {
        let mut sizes = x.sizes.clone();
        if at >= sizes.len() {
            refuse!("dimension {at} is out of range for a tensor of rank {}", x.rank());
        }
        take(&mut sizes, at)?;
        let given = given!(self = x, dim = at, index = index);
        self.emit("aten.select_copy.int", given, x.dtype, sizes)
    }

    /// Casts tensors of equal rank to their common type.
    pub(crate) fn alike(&mut self, all: &[Tensor]) -> Result<Vec<Tensor>> {
        let dtype = all.iter().map(|tensor| tensor.dtype).reduce(promote);
        let Some((first, dtype)) = all.first().zip(dtype) else {
            refuse!("expected at least one tensor to join");
        };
        if all.iter().any(|tensor| tensor.rank() != first.rank()) {
            refuse!("cannot join tensors of different ranks; the first has rank {}", first.rank());
        }
        all.iter().map(|tensor| self.cast(tensor, dtype)).collect()
    }

    /// Concatenates along a dimension.
    pub(crate) fn concatenate(&mut self, all: &[Tensor], at: usize) -> TensorResult {
        let all = self.alike(all)?;
        let mut length = Size::Fixed(0);
        for tensor in &all {
            length = size::add(&length, tensor.extent(at)?);
        }
        let first = all.at(0)?;
        let sizes = first.with_size(at, length)?;
        self.emit("aten.cat.default", given!(tensors = all, dim = at), first.dtype, sizes)
    }

    /// Stacks along a new dimension.
    pub(crate) fn stack(&mut self, all: &[Tensor], at: usize) -> TensorResult {
        let all = self.alike(all)?;
        let first = all.at(0)?;
        let mut sizes = first.sizes.clone();
        if at > sizes.len() {
            refuse!(
                "dimension {at} is out of range for a stack of tensors of rank {}",
                sizes.len()
            );
        }
        sizes.insert(at, Size::Fixed(all.len() as i64));
        self.emit("aten.stack.default", given!(tensors = all, dim = at), first.dtype, sizes)
    }

    pub(crate) fn flip(&mut self, x: &Tensor, dimensions: &[usize]) -> TensorResult {
        self.like(x, "aten.flip.default", given!(self = x, dims = dimensions))
    }

    /// Rolls elements along dimensions.
    pub(crate) fn roll(
        &mut self,
        x: &Tensor,
        shifts: Argument,
        dimensions: &[usize],
    ) -> TensorResult {
        self.like(x, "aten.roll.default", given!(self = x, shifts = shifts, dims = dimensions))
    }

    /// Pads dimensions by pairs of widths, last dimension first. Negative widths crop, which the kernel does not
    /// support.
    pub(crate) fn pad(&mut self, x: &Tensor, pads: &[i64], value: Argument) -> TensorResult {
        let mut x = x.clone();
        for (nth, pair) in pads.chunks(2).enumerate() {
            let cut: i64 = pair.iter().map(|pad| (*pad).min(0)).sum();
            if let ([before, after], true) = (pair, cut < 0) {
                let at = axis_from_end(x.rank(), nth + 1)?;
                let end = if *after < 0 { *after } else { i64::MAX };
                let (start, end) = (Argument::Int((-before).max(0)), Argument::Int(end));
                let length = size::add(x.extent(at)?, &Size::Fixed(cut));
                x = self.run(&x, at, start, end, length)?;
            }
        }
        let pads: Vec<i64> = pads.iter().map(|pad| (*pad).max(0)).collect();
        if pads.iter().all(|pad| *pad == 0) {
            return Ok(x);
        }
        let sizes = padded_sizes(&x, &pads)?;
        let given = given!(self = x, pad = pads, value = value);
        self.emit("aten.constant_pad_nd.default", given, x.dtype, sizes)
    }

    // Indexing.

    pub(crate) fn gather(&mut self, x: &Tensor, at: usize, index: &Tensor) -> TensorResult {
        let given = given!(self = x, dim = at, index = index);
        self.emit("aten.gather.default", given, x.dtype, index.sizes.clone())
    }

    pub(crate) fn index_select(&mut self, x: &Tensor, at: usize, index: &Tensor) -> TensorResult {
        if x.rank() == 0 {
            return Ok(x.clone());
        }
        let sizes = x.with_size(at, size::product(&index.sizes))?;
        let given = given!(self = x, dim = at, index = index);
        self.emit("aten.index_select.default", given, x.dtype, sizes)
    }

    /// Rows of an embedding table.
    pub(crate) fn rows(&mut self, table: &Tensor, indices: &Tensor) -> TensorResult {
        let [_, width] = table.extent(..)? else {
            refuse!("`weight` must have rank 2, got {}", table.rank());
        };
        let sizes = [&indices.sizes[..], std::slice::from_ref(width)].concat();
        let given = given!(weight = table, indices = indices);
        self.emit("aten.embedding.default", given, table.dtype, sizes)
    }

    // Reductions. A scalar has no dimensions and reduces to itself.

    pub(crate) fn sum(&mut self, x: &Tensor, dimensions: &[usize], keep: bool) -> TensorResult {
        self.sum_as(x, dimensions, keep, summed(x.dtype))
    }

    pub(crate) fn sum_as(
        &mut self,
        x: &Tensor,
        dimensions: &[usize],
        keep: bool,
        dtype: ScalarType,
    ) -> TensorResult {
        if x.rank() == 0 {
            return self.cast(x, dtype);
        }
        let given = given!(self = x, dim = dimensions, keepdim = keep, dtype = dtype);
        self.emit("aten.sum.dim_IntList", given, dtype, left(x, dimensions, keep))
    }

    pub(crate) fn mean(&mut self, x: &Tensor, dimensions: &[usize], keep: bool) -> TensorResult {
        let dtype = fractional(x.dtype);
        if x.rank() == 0 {
            return self.cast(x, dtype);
        }
        let given = given!(self = x, dim = dimensions, keepdim = keep, dtype = dtype);
        self.emit("aten.mean.dim", given, dtype, left(x, dimensions, keep))
    }

    /// Variance; the divisor is the element count minus `correction`.
    pub(crate) fn variance(
        &mut self,
        x: &Tensor,
        dimensions: &[usize],
        correction: f64,
        keep: bool,
    ) -> TensorResult {
        let given = given!(self = x, dim = dimensions, correction = correction, keepdim = keep);
        self.emit("aten.var.correction", given, x.dtype, left(x, dimensions, keep))
    }

    /// Vector norm of order `degree`.
    pub(crate) fn norm(
        &mut self,
        x: &Tensor,
        degree: f64,
        dimensions: &[usize],
        keep: bool,
    ) -> TensorResult {
        let given = given!(self = x, ord = degree, dim = dimensions, keepdim = keep);
        let sizes = left(x, dimensions, keep);
        self.emit("aten.linalg_vector_norm.default", given, x.dtype, sizes)
    }

    /// `amax` or `amin`.
    pub(crate) fn extreme(
        &mut self,
        function: &str,
        x: &Tensor,
        dimensions: &[usize],
        keep: bool,
    ) -> TensorResult {
        if x.rank() == 0 {
            return Ok(x.clone());
        }
        let given = given!(self = x, dim = dimensions, keepdim = keep);
        let sizes = left(x, dimensions, keep);
        self.emit(&format!("aten.{function}.default"), given, x.dtype, sizes)
    }

    /// Whether any element is true.
    pub(crate) fn any(&mut self, x: &Tensor, dimensions: &[usize], keep: bool) -> TensorResult {
        if x.rank() == 0 {
            return self.cast(x, ScalarType::Bool);
        }
        let given = given!(self = x, dim = dimensions, keepdim = keep);
        self.emit("aten.any.dims", given, ScalarType::Bool, left(x, dimensions, keep))
    }

    pub(crate) fn softmax(&mut self, x: &Tensor, at: usize) -> TensorResult {
        self.like(x, "aten._softmax.default", given!(self = x, dim = at, half_to_float = false))
    }

    /// Log-softmax. The kernel lacks 64-bit floats.
    pub(crate) fn log_softmax(&mut self, x: &Tensor, at: usize) -> TensorResult {
        if x.dtype == ScalarType::Float64 {
            let most = self.extreme("amax", x, &[at], true)?;
            let formula = "moved = x - most; moved - log(sum(exp(moved), at, 1))";
            return calc!(self, formula, x, most, at);
        }
        let given = given!(self = x, dim = at, half_to_float = false);
        self.like(x, "aten._log_softmax.default", given)
    }

    /// Reduces a loss according to the `reduction` argument: none, mean or sum.
    pub(crate) fn reduced(&mut self, x: &Tensor) -> TensorResult {
        let all: Vec<usize> = (0..x.rank()).collect();
        match self.int("reduction")? {
            0 => Ok(x.clone()),
            1 => self.mean(x, &all, false),
            2 => self.sum(x, &all, false),
            other => {
                refuse!("`reduction` must be 0 (none), 1 (mean) or 2 (sum), got {other}")
            }
        }
    }

    // Matrix products.

    /// torch's `matmul` for tensors of any rank.
    pub(crate) fn matmul(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        let (Some((inner, left)), Some((last, right))) =
            (x.sizes.split_last(), y.sizes.split_last())
        else {
            refuse!("a number is not a matrix");
        };
        // A vector is a row on the left and a column on the right.
        let (rows, left) = left.split_last().map_or((None, left), |(r, l)| (Some(r), l));
        let (_, right) = right.split_last().map_or((inner, right), |(r, b)| (r, b));
        let Some(mut sizes) = size::broadcast(left, right) else {
            refuse!("the batches of the matrices do not broadcast");
        };
        sizes.extend(rows.cloned());
        sizes.extend((y.rank() > 1).then(|| last.clone()));
        self.emit("aten.matmul.default", given!(self = x, other = y), x.dtype, sizes)
    }

    pub(crate) fn mm(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        self.addmm(None, x, y)
    }

    /// Product of two matrices, plus an optional bias.
    pub(crate) fn addmm(&mut self, bias: Option<&Tensor>, x: &Tensor, y: &Tensor) -> TensorResult {
        let ([rows, _], [_, columns]) = (x.extent(..)?, &y.sizes[..]) else {
            refuse!(
                "cannot multiply tensors of rank {} and {}; both ranks must be 2",
                x.rank(),
                y.rank()
            );
        };
        let sizes = vec![rows.clone(), columns.clone()];
        match bias {
            None => self.emit("aten.mm.default", given!(self = x, mat2 = y), x.dtype, sizes),
            Some(bias) => {
                let given = given!(self = bias, mat1 = x, mat2 = y);
                self.emit("aten.addmm.default", given, x.dtype, sizes)
            }
        }
    }

    pub(crate) fn bmm(&mut self, x: &Tensor, y: &Tensor) -> TensorResult {
        let ([batch, rows, _], [_, _, columns]) = (x.extent(..)?, &y.sizes[..]) else {
            refuse!(
                "cannot multiply tensors of rank {} and {}; both ranks must be 3",
                x.rank(),
                y.rank()
            );
        };
        let sizes = vec![batch.clone(), rows.clone(), columns.clone()];
        self.emit("aten.bmm.default", given!(self = x, mat2 = y), x.dtype, sizes)
    }
}

/// Shape after padding; pairs of widths, last dimension first.
pub(crate) fn padded_sizes(x: &Tensor, pads: &[i64]) -> Result<Vec<Size>> {
    let mut sizes = x.sizes.clone();
    for (nth, pair) in pads.chunks(2).enumerate() {
        let at = axis_from_end(x.rank(), nth + 1)?;
        let more = Size::Fixed(pair.iter().fold(0, |sum, pad| pad.saturating_add(sum)));
        *sizes.at_mut(at)? = size::add(x.extent(at)?, &more);
    }
    Ok(sizes)
}
