//! How vectors of weights come from stored elements.

#![expect(unsafe_code, reason = "vectors are read from bytes whose extents are checked once")]

use crate::kernels::vector::{FIELDS_BYTES, Fields, Vector};

/// The numbers of a block in one row.
#[derive(Clone, Copy)]
pub(super) struct BlockNumbers {
    pub scale: f32,
    pub offset: f32,
    /// The block's palette, or null.
    pub palette: *const f32,
}

/// A format of stored elements, which are counted from the first one of the matrix.
pub(super) trait Decoder: Copy + Sync {
    /// What is prepared for a block.
    type Block<V: Vector>: Copy;

    /// The element up to which vectors can be read without leaving the data.
    fn readable(&self) -> usize;

    /// # Safety
    /// The palette must be one of the format.
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> Self::Block<V>;

    /// # Safety
    /// The element must be under `readable`, and as many as the vector has must be in the matrix.
    unsafe fn vector<V: Vector>(&self, element: usize, block: Self::Block<V>) -> V;

    /// # Safety
    /// The element must be in the matrix, and the palette one of the format.
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32;
}

/// More elements than any matrix has, but not so many that they could not be added to.
const ALL: usize = usize::MAX / 4;

/// Where bytes start, and how many they are.
#[derive(Clone, Copy)]
pub(super) struct Data(pub *const u8, pub usize);

// SAFETY: only reads through the pointer.
unsafe impl Sync for Data {}

#[derive(Clone, Copy)]
pub(super) struct F32(pub Data);

#[derive(Clone, Copy)]
pub(super) struct F16(pub Data);

#[derive(Clone, Copy)]
pub(super) struct Bf16(pub Data);

macro_rules! float_decoder {
    ($name:ty, $size:literal, $load:expr, $single:expr) => {
        impl Decoder for $name {
            type Block<V: Vector> = ();

            #[inline(always)]
            fn readable(&self) -> usize {
                ALL
            }
            #[inline(always)]
            unsafe fn block<V: Vector>(&self, _numbers: BlockNumbers) {}
            #[inline(always)]
            unsafe fn vector<V: Vector>(&self, element: usize, _block: ()) -> V {
                // SAFETY: the caller vouches for the elements.
                unsafe { $load(self.0.0.add(element * $size)) }
            }
            #[inline(always)]
            unsafe fn single(&self, element: usize, _numbers: BlockNumbers) -> f32 {
                // SAFETY: the caller vouches for the element.
                $single(unsafe { self.0.0.add(element * $size).cast::<[u8; $size]>().read() })
            }
        }
    };
}

float_decoder!(F32, 4, |at: *const u8| V::load(at.cast()), f32::from_le_bytes);
float_decoder!(F16, 2, |at| V::unpack_f16(at), |bytes| half::f16::from_le_bytes(bytes).to_f32());
float_decoder!(Bf16, 2, |at| V::unpack_bf16(at), |bytes| half::bf16::from_le_bytes(bytes).to_f32());

/// Integers of 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Byte<const SIGNED: bool, const OFFSET: bool>(pub Data);

impl<const SIGNED: bool, const OFFSET: bool> Decoder for Byte<SIGNED, OFFSET> {
    type Block<V: Vector> = (V, V);

    #[inline(always)]
    fn readable(&self) -> usize {
        ALL
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> (V, V) {
        (V::splat(numbers.offset), V::splat(numbers.scale))
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, element: usize, (offset, scale): (V, V)) -> V {
        // SAFETY: the caller vouches for the elements.
        let integers = unsafe {
            let source = self.0.0.add(element);
            if SIGNED { V::unpack_i8(source) } else { V::unpack_u8(source) }
        };
        if OFFSET { integers.sub(offset).mul(scale) } else { integers.mul(scale) }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller vouches for the element.
        let byte = unsafe { *self.0.0.add(element) };
        let integer = if SIGNED { f32::from(byte as i8) } else { f32::from(byte) };
        (integer - numbers.offset) * numbers.scale
    }
}

/// Fields of bits: those of at most 4 through a table in registers, scaled once for each block; others
/// (`WIDE`) through a palette in memory, whose numbers need no scale.
///
/// With `EVEN`, rows and blocks start at whole bytes.
#[derive(Clone, Copy)]
pub(super) struct Bits<const WIDE: bool, const EVEN: bool> {
    pub data: Data,
    pub bits: usize,
    /// For each bit of a byte that a vector may start at.
    pub fields: &'static [Fields; 8],
}

impl<const WIDE: bool, const EVEN: bool> Decoder for Bits<WIDE, EVEN> {
    /// The table, and the palette.
    type Block<V: Vector> = (V::Table, *const f32);

    #[inline(always)]
    fn readable(&self) -> usize {
        match self.data.1.checked_sub(FIELDS_BYTES) {
            // A vector that starts in the last of these bytes is inside.
            Some(last) => last * 8 / self.bits + 1,
            None => 0,
        }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> (V::Table, *const f32) {
        // SAFETY: palettes have at least sixteen entries.
        let table = unsafe { V::load_table(numbers.palette) };
        if WIDE {
            return (table, numbers.palette);
        }
        let (offset, scale) = (V::splat(numbers.offset), V::splat(numbers.scale));
        (V::scale_table(table, offset, scale), numbers.palette)
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, element: usize, block: (V::Table, *const f32)) -> V {
        let bit = element * self.bits;
        // SAFETY: the caller vouches for the elements; the bits of a byte are fewer than the fields.
        unsafe {
            let source = self.data.0.add(bit / 8);
            let fields = self.fields.get_unchecked(if EVEN { 0 } else { bit % 8 });
            if WIDE {
                V::gather(source, fields, block.1)
            } else {
                V::look_up(source, fields, block.0)
            }
        }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        let bit = element * self.bits;
        // SAFETY: the caller vouches for the element and the palette.
        unsafe {
            let low = u32::from(*self.data.0.add(bit / 8));
            let straddles = bit % 8 + self.bits > 8;
            let high = if straddles { u32::from(*self.data.0.add(bit / 8 + 1)) } else { 0 };
            let index = (low | high << 8) >> (bit % 8) & ((1 << self.bits) - 1);
            let entry = *numbers.palette.add(index as usize);
            if WIDE { entry } else { (entry - numbers.offset) * numbers.scale }
        }
    }
}
