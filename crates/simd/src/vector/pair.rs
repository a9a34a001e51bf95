//! Two vectors as one vector of twice the width, for machines with narrow vectors.

use super::Vector;
use super::unpack::unpack_by_element;

#[derive(Clone, Copy)]
pub(super) struct Pair<V>(V, V);

unpack_by_element!(Pair<V>, any V);

/// A pair of masks or of integers.
#[derive(Clone, Copy)]
pub(super) struct Both<T>(T, T);

macro_rules! vectors {
    ($($name:ident($($argument:ident),*);)*) => {
        $(
            #[inline(always)]
            fn $name(self $(, $argument: Self)*) -> Self {
                Pair(self.0.$name($($argument.0),*), self.1.$name($($argument.1),*))
            }
        )*
    };
}

macro_rules! comparisons {
    ($($name:ident)*) => {
        $(
            #[inline(always)]
            fn $name(self, other: Self) -> Self::Mask {
                Both(self.0.$name(other.0), self.1.$name(other.1))
            }
        )*
    };
}

macro_rules! masks {
    ($($name:ident)*) => {
        $(
            #[inline(always)]
            fn $name(left: Self::Mask, right: Self::Mask) -> Self::Mask {
                Both(V::$name(left.0, right.0), V::$name(left.1, right.1))
            }
        )*
    };
}

macro_rules! integers {
    ($($name:ident)*) => {
        $(
            #[inline(always)]
            fn $name(left: Self::Bits, right: Self::Bits) -> Self::Bits {
                Both(V::$name(left.0, right.0), V::$name(left.1, right.1))
            }
        )*
    };
}

macro_rules! shifts {
    ($($name:ident)*) => {
        $(
            #[inline(always)]
            fn $name<const N: u32>(bits: Self::Bits) -> Self::Bits {
                Both(V::$name::<N>(bits.0), V::$name::<N>(bits.1))
            }
        )*
    };
}

/// The numbers of lanes in each half for the first `count` lanes.
#[inline(always)]
fn halves<V: Vector>(count: usize) -> (usize, usize) {
    (count.min(V::LANES), count.saturating_sub(V::LANES))
}

impl<V: Vector> Vector for Pair<V> {
    const LANES: usize = 2 * V::LANES;
    const FUSED: bool = V::FUSED;
    const TUNED: bool = false;
    type Mask = Both<V::Mask>;
    type Bits = Both<V::Bits>;

    // SAFETY of the next six functions: the caller guarantees all lanes, and each half has a part of them.
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { Pair(V::load(source), V::load(source.add(V::LANES))) }
    }
    #[inline(always)]
    unsafe fn load_partial(source: *const f32, count: usize) -> Self {
        let (first, second) = halves::<V>(count);
        // SAFETY: as above.
        unsafe { Pair(V::load_partial(source, first), V::load_partial(source.add(first), second)) }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: as above.
        unsafe {
            self.0.store(target);
            self.1.store(target.add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn store_partial(self, target: *mut f32, count: usize) {
        let (first, second) = halves::<V>(count);
        // SAFETY: as above.
        unsafe {
            self.0.store_partial(target, first);
            self.1.store_partial(target.add(first), second);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(source: *const u16) -> Self {
        // SAFETY: as above.
        unsafe { Pair(V::load_f16(source), V::load_f16(source.add(V::LANES))) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut u16) {
        // SAFETY: as above.
        unsafe {
            self.0.store_f16(target);
            self.1.store_f16(target.add(V::LANES));
        }
    }
    #[inline(always)]
    unsafe fn load_words(source: *const i16) -> Self {
        // SAFETY: as above.
        unsafe { Pair(V::load_words(source), V::load_words(source.add(V::LANES))) }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Pair(V::splat(value), V::splat(value))
    }

    vectors! {
        add(other);
        sub(other);
        mul(other);
        div(other);
        mul_add(factor, addend);
        neg_mul_add(factor, addend);
        min(other);
        max(other);
        sqrt();
        round();
        floor();
        ceil();
        trunc();
        scale(exponent);
        round_to_f16();
    }
    comparisons! { less less_equal equal }
    masks! { both either }
    integers! { bits_add bits_sub bits_and bits_or bits_xor }
    shifts! { bits_left bits_right_signed }

    #[inline(always)]
    fn not(mask: Self::Mask) -> Self::Mask {
        Both(V::not(mask.0), V::not(mask.1))
    }
    #[inline(always)]
    fn any(mask: Self::Mask) -> bool {
        V::any(V::either(mask.0, mask.1))
    }
    #[inline(always)]
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
        Pair(V::select(mask.0, yes.0, no.0), V::select(mask.1, yes.1, no.1))
    }
    #[inline(always)]
    fn to_bits(self) -> Self::Bits {
        Both(self.0.to_bits(), self.1.to_bits())
    }
    #[inline(always)]
    fn from_bits(bits: Self::Bits) -> Self {
        Pair(V::from_bits(bits.0), V::from_bits(bits.1))
    }
    #[inline(always)]
    fn to_int(self) -> Self::Bits {
        Both(self.0.to_int(), self.1.to_int())
    }
    #[inline(always)]
    fn from_int(bits: Self::Bits) -> Self {
        Pair(V::from_int(bits.0), V::from_int(bits.1))
    }
    #[inline(always)]
    fn bits(value: u32) -> Self::Bits {
        Both(V::bits(value), V::bits(value))
    }
    #[inline(always)]
    fn bits_equal(left: Self::Bits, right: Self::Bits) -> Self::Mask {
        Both(V::bits_equal(left.0, right.0), V::bits_equal(left.1, right.1))
    }

    #[inline(always)]
    fn interleave(self, other: Self) -> (Self, Self) {
        let (a, b) = self.0.interleave(other.0);
        let (c, d) = self.1.interleave(other.1);
        (Pair(a, b), Pair(c, d))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self.0.add(self.1).sum()
    }
    #[inline(always)]
    fn maximum(self) -> f32 {
        self.0.max(self.1).maximum()
    }
}
