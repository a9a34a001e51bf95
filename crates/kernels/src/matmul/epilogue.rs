use crate::activation::{Activation, activate};
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, Vector, dispatch};

/// Elementwise functions applied to a matrix product before it leaves the cache.
///
/// They are applied in this order: add the bias, add the residual, apply the activation. A residual with
/// [`after_activation`](Residual::after_activation) is added last. With [`Rounding::Fp16`] the result of each
/// step is rounded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// The bias, with one element for each column.
    pub bias: Option<&'a [f32]>,
    /// The residual.
    pub residual: Option<Residual<'a>>,
    /// The activation.
    pub activation: Activation,
    /// The precision to which results are rounded.
    pub rounding: Rounding,
}

/// A matrix of the same size that is added to a product.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// The matrix.
    pub rows: super::Matrix<'a>,
    /// Whether it is added after the activation, else before.
    pub after_activation: bool,
}

/// Precision to which results are rounded. Results are stored as `f32` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// No rounding.
    #[default]
    None,
    /// Half precision, as on a device that computes in it.
    Fp16,
}

/// Division of an epilogue into a part that is done in registers and a part that follows.
#[derive(Clone, Copy)]
pub(crate) struct Division {
    /// Whether the residual is added in registers.
    pub residual: bool,
    /// The bounds that are applied in registers.
    pub bounds: (f32, f32),
    /// Whether [`finish`] has remaining work.
    pub rest: bool,
}

const UNBOUNDED: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);

impl Division {
    /// Division in which only the bias is added in registers.
    pub(crate) const NOTHING_IN_REGISTERS: Division =
        Division { residual: false, bounds: UNBOUNDED, rest: true };
}

impl Epilogue<'_> {
    /// The bias is always added in registers.
    pub(crate) fn divide(&self) -> Division {
        let rounds = self.rounding != Rounding::None;
        let late = self.residual.is_some_and(|residual| residual.after_activation);
        let residual = self.residual.is_some() && !late && !rounds;
        match self.activation.bounds() {
            Some(bounds) if !rounds && !late => Division { residual, bounds, rest: false },
            _ => Division { residual, bounds: UNBOUNDED, rest: true },
        }
    }

    pub(crate) fn check(&self, rows: usize, columns: usize) {
        if let Some(bias) = self.bias {
            assert!(bias.len() >= columns, "the bias needs an element for each column");
        }
        if let Some(residual) = self.residual {
            residual.rows.check(rows, columns);
        }
    }
}

/// Applies the remaining part of the epilogue to a part of a row that starts at `column`.
pub(crate) fn finish(
    isa: Isa,
    epilogue: &Epilogue,
    division: Division,
    row: usize,
    column: usize,
    elements: &mut [f32],
) {
    let round = epilogue.rounding == Rounding::Fp16;
    if round {
        dispatch(isa, Round(elements));
    }
    let residual = epilogue.residual.filter(|_| !division.residual).map(|residual| {
        let start = row * residual.rows.stride + column;
        (&residual.rows.elements[start..start + elements.len()], residual.after_activation)
    });
    if let Some((residual, false)) = residual {
        dispatch(isa, Add { elements, residual, round });
    }
    if epilogue.activation != Activation::None {
        activate(isa, epilogue.activation, elements);
        if round {
            dispatch(isa, Round(elements));
        }
    }
    if let Some((residual, true)) = residual {
        dispatch(isa, Add { elements, residual, round });
    }
}

/// Applies the whole epilogue to a part of a row that starts at `column`.
pub(crate) fn apply(
    isa: Isa,
    epilogue: &Epilogue,
    row: usize,
    column: usize,
    elements: &mut [f32],
) {
    if let Some(bias) = epilogue.bias {
        let residual = &bias[column..column + elements.len()];
        dispatch(isa, Add { elements, residual, round: false });
    }
    let division = Division { residual: false, bounds: UNBOUNDED, rest: true };
    finish(isa, epilogue, division, row, column, elements);
}

struct Round<'a>(&'a mut [f32]);

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        map::<V>(self.0, None, true);
    }
}

struct Add<'a> {
    elements: &'a mut [f32],
    residual: &'a [f32],
    round: bool,
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        map::<V>(self.elements, Some(self.residual), self.round);
    }
}

#[inline(always)]
fn map<V: Vector>(elements: &mut [f32], addend: Option<&[f32]>, round: bool) {
    let length = elements.len();
    let addend = addend.inspect(|addend| assert_eq!(addend.len(), length)).map(<[f32]>::as_ptr);
    let mut at = 0;
    while at < length {
        let count = (length - at).min(V::LANES);
        // SAFETY: `at + count` is at most the length of both slices.
        #[expect(unsafe_code, reason = "vectors are loaded and stored without bounds checks")]
        unsafe {
            let target = elements.as_mut_ptr().add(at);
            let mut value = V::load_partial(target, count);
            if let Some(addend) = addend {
                value = value.add(V::load_partial(addend.add(at), count));
            }
            if round {
                value = value.round_to_f16();
            }
            value.store_partial(target, count);
        }
        at += count;
    }
}
