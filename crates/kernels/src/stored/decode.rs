//! Decoders that convert stored elements to vectors of weights.

#![expect(unsafe_code, reason = "vectors are read from bytes whose extents are checked once")]

use std::marker::PhantomData;

use coremill_simd::vector::{FIELDS_BYTES, Fields, Vector};

/// Parameters of a block in one row.
#[derive(Clone, Copy)]
pub(super) struct BlockNumbers {
    pub scale: f32,
    pub offset: f32,
    /// The palette of the block, or the values of narrow integers.
    pub palette: *const f32,
}

/// Start of the elements of a row.
#[derive(Clone, Copy)]
pub(super) struct RowStart {
    /// Pointer to the byte with the first element.
    pub pointer: *const u8,
    /// Index of the first element.
    element: usize,
}

/// A format of stored elements. Elements are indexed from the first one of the matrix. Decoded values must
/// still be multiplied by the scale of their block.
pub(super) trait Decoder: Copy + Sync {
    /// Whether [`parted`](Self::parted), which returns two vectors in another order, is faster.
    const PARTED: bool = false;

    /// Prepared parameters of a block.
    type Block<V: Vector>: Copy;

    /// Number of bits of an element.
    fn bits(&self) -> usize;

    /// End of the elements at which vectors can be read within the data.
    fn readable(&self) -> usize;

    /// # Safety
    /// The element must be in the matrix.
    unsafe fn row(&self, element: usize) -> RowStart;

    /// # Safety
    /// The palette must belong to the format.
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> Self::Block<V>;

    /// Reads a vector of elements at index `at` of the row.
    ///
    /// # Safety
    /// The index must be below `readable`, and all elements of the vector must be in the matrix.
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, block: Self::Block<V>) -> V;

    /// Reads two vectors of elements at index `at` of the row: the elements at even positions, and those at
    /// odd positions.
    ///
    /// # Safety
    /// All elements must be in the matrix, and the format must be [`PARTED`](Self::PARTED).
    unsafe fn parted<V: Vector>(&self, _: RowStart, _: usize, _: Self::Block<V>) -> [V; 2] {
        unreachable!("the format's elements come in order");
    }

    /// # Safety
    /// The element must be in the matrix, and the palette must belong to the format.
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32;
}

/// More elements than any matrix has, but small enough for additions.
const ALL: usize = usize::MAX / 4;

/// Pointer to bytes, and their number.
#[derive(Clone, Copy)]
pub(super) struct Data(pub *const u8, pub usize);

// SAFETY: the pointer is only read.
unsafe impl Sync for Data {}

impl Data {
    /// End of the elements of `bits` bits at which vectors can be read within the bytes.
    #[inline(always)]
    fn readable(&self, bits: usize) -> usize {
        match self.1.checked_sub(FIELDS_BYTES) {
            // A vector that starts in the last of these bytes is within the data.
            Some(last) => last * 8 / bits + 1,
            None => 0,
        }
    }

    /// Reads a field of at most eight bits.
    ///
    /// # Safety
    /// The field must be within the data.
    #[inline(always)]
    unsafe fn field(&self, element: usize, bits: usize) -> usize {
        let bit = element * bits;
        // SAFETY: the caller guarantees the field.
        let byte = |at: usize| u32::from(unsafe { *self.0.add(at) });
        let straddles = bit % 8 + bits > 8;
        let high = if straddles { byte(bit / 8 + 1) } else { 0 };
        ((byte(bit / 8) | high << 8) >> (bit % 8) & ((1 << bits) - 1)) as usize
    }
}

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
            fn bits(&self) -> usize {
                $size * 8
            }
            #[inline(always)]
            fn readable(&self) -> usize {
                ALL
            }
            #[inline(always)]
            unsafe fn row(&self, element: usize) -> RowStart {
                // SAFETY: the caller guarantees the element.
                RowStart { pointer: unsafe { self.0.0.add(element * $size) }, element }
            }
            #[inline(always)]
            unsafe fn block<V: Vector>(&self, _numbers: BlockNumbers) {}
            #[inline(always)]
            unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, _block: ()) -> V {
                // SAFETY: the caller guarantees the elements.
                unsafe { $load(row.pointer.add(at * $size)) }
            }
            #[inline(always)]
            unsafe fn single(&self, element: usize, _numbers: BlockNumbers) -> f32 {
                // SAFETY: the caller guarantees the element.
                $single(unsafe { self.0.0.add(element * $size).cast::<[u8; $size]>().read() })
            }
        }
    };
}

float_decoder!(F32, 4, |at: *const u8| V::load(at.cast()), f32::from_le_bytes);
float_decoder!(F16, 2, |at| V::unpack_f16(at), |bytes| half::f16::from_le_bytes(bytes).to_f32());
float_decoder!(Bf16, 2, |at| V::unpack_bf16(at), |bytes| half::bf16::from_le_bytes(bytes).to_f32());

/// 8-bit integers.
#[derive(Clone, Copy)]
pub(super) struct Byte<const SIGNED: bool>(pub Data);

impl<const SIGNED: bool> Decoder for Byte<SIGNED> {
    type Block<V: Vector> = V;

    #[inline(always)]
    fn bits(&self) -> usize {
        8
    }
    #[inline(always)]
    fn readable(&self) -> usize {
        ALL
    }
    #[inline(always)]
    unsafe fn row(&self, element: usize) -> RowStart {
        // SAFETY: the caller guarantees the element.
        RowStart { pointer: unsafe { self.0.0.add(element) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> V {
        V::splat(numbers.offset)
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, offset: V) -> V {
        // SAFETY: the caller guarantees the elements.
        let integers = unsafe {
            let source = row.pointer.add(at);
            if SIGNED { V::unpack_i8(source) } else { V::unpack_u8(source) }
        };
        integers.sub(offset)
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller guarantees the element.
        let byte = unsafe { *self.0.0.add(element) };
        let integer = if SIGNED { f32::from(byte as i8) } else { f32::from(byte) };
        integer - numbers.offset
    }
}

/// Method for converting fields of bits to weights.
pub(super) trait Kind: Copy + Sync {
    /// Prepared parameters of a block.
    type Block<V: Vector>: Copy;

    /// # Safety
    /// The palette must have sixteen entries, and one for each value of a field.
    unsafe fn block<V: Vector>(numbers: BlockNumbers) -> Self::Block<V>;

    /// # Safety
    /// The bytes of the fields must be readable, and the block's palette must still be valid.
    unsafe fn vector<V: Vector>(source: *const u8, fields: &Fields, block: Self::Block<V>) -> V;

    fn single(entry: f32, numbers: BlockNumbers) -> f32;
}

/// Declares a kind: the preparation of a block, the lookup of vectors, and the conversion of a single entry.
macro_rules! kind {
    ($(#[$doc:meta])* $name:ident, $block:ty,
        |$numbers:ident| $prepare:expr, |$source:ident, $fields:ident, $prepared:ident| $vector:expr,
        |$entry:ident, $block_numbers:ident| $single:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Kind for $name {
            type Block<V: Vector> = $block;

            #[inline(always)]
            unsafe fn block<V: Vector>($numbers: BlockNumbers) -> $block {
                // SAFETY: the caller guarantees the palette.
                unsafe { $prepare }
            }
            #[inline(always)]
            unsafe fn vector<V: Vector>(
                $source: *const u8,
                $fields: &Fields,
                $prepared: $block,
            ) -> V {
                // SAFETY: the caller guarantees the bytes and the palette.
                unsafe { $vector }
            }
            #[inline(always)]
            fn single($entry: f32, $block_numbers: BlockNumbers) -> f32 {
                $single
            }
        }
    };
}

kind!(
    /// Fields of at most 4 bits; the weight is the entry minus an offset.
    Affine,
    V::Table,
    |numbers| V::shift_table(V::load_table(numbers.palette), V::splat(numbers.offset)),
    |source, fields, table| V::look_up(source, fields, table),
    |entry, numbers| entry - numbers.offset
);
kind!(
    /// Fields of 6 bits; the weight is the entry.
    Wide,
    V::WideTable,
    |numbers| V::load_wide_table(numbers.palette),
    |source, fields, table| V::look_up_wide(source, fields, table),
    |entry, _numbers| entry
);
/// Fields of any size; entries are read from memory.
#[derive(Clone, Copy)]
pub(super) struct GatheredFields;

impl Kind for GatheredFields {
    type Block<V: Vector> = *const f32;

    #[inline(always)]
    unsafe fn block<V: Vector>(numbers: BlockNumbers) -> *const f32 {
        numbers.palette
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(source: *const u8, fields: &Fields, palette: *const f32) -> V {
        // SAFETY: the caller guarantees the bytes and the palette.
        unsafe { V::gather(source, fields, palette) }
    }
    #[inline(always)]
    fn single(entry: f32, _numbers: BlockNumbers) -> f32 {
        entry
    }
}

/// Bit fields that are indices into a palette.
#[derive(Clone, Copy)]
pub(super) struct Bits<K> {
    pub data: Data,
    pub bits: usize,
    /// Positions of fields, for each bit of a byte at which a vector may start.
    pub fields: &'static [Fields; 8],
    pub kind: PhantomData<K>,
}

impl<K: Kind> Decoder for Bits<K> {
    type Block<V: Vector> = K::Block<V>;

    #[inline(always)]
    fn bits(&self) -> usize {
        self.bits
    }
    #[inline(always)]
    fn readable(&self) -> usize {
        self.data.readable(self.bits)
    }
    #[inline(always)]
    unsafe fn row(&self, element: usize) -> RowStart {
        // SAFETY: the caller guarantees the element.
        RowStart { pointer: unsafe { self.data.0.add(element * self.bits / 8) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> K::Block<V> {
        // SAFETY: the caller guarantees the palette.
        unsafe { K::block::<V>(numbers) }
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, block: K::Block<V>) -> V {
        // SAFETY: the caller guarantees the elements; there are positions for each bit of a byte.
        unsafe {
            let bit = (row.element + at) * self.bits;
            K::vector::<V>(self.data.0.add(bit / 8), self.fields.get_unchecked(bit % 8), block)
        }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller guarantees the element and the palette.
        unsafe { K::single(*numbers.palette.add(self.data.field(element, self.bits)), numbers) }
    }
}

/// 4-bit fields, for rows and blocks that are multiples of two vectors. Without `SHIFTED`, offsets are zero.
#[derive(Clone, Copy)]
pub(super) struct Halves<const SHIFTED: bool>(pub Data);

impl<const SHIFTED: bool> Decoder for Halves<SHIFTED> {
    const PARTED: bool = true;
    type Block<V: Vector> = V::Table;

    #[inline(always)]
    fn bits(&self) -> usize {
        4
    }
    #[inline(always)]
    fn readable(&self) -> usize {
        self.0.readable(4)
    }
    #[inline(always)]
    unsafe fn row(&self, element: usize) -> RowStart {
        // SAFETY: the caller guarantees the element.
        RowStart { pointer: unsafe { self.0.0.add(element / 2) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> V::Table {
        // SAFETY: the caller guarantees the palette.
        let table = unsafe { V::load_table(numbers.palette) };
        if SHIFTED { V::shift_table(table, V::splat(numbers.offset)) } else { table }
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, table: V::Table) -> V {
        // SAFETY: the caller guarantees the elements.
        unsafe { V::look_up(row.pointer.add(at / 2), &Fields::of(4)[0], table) }
    }
    #[inline(always)]
    unsafe fn parted<V: Vector>(&self, row: RowStart, at: usize, table: V::Table) -> [V; 2] {
        // SAFETY: the caller guarantees the elements.
        unsafe { V::look_up_halves(row.pointer.add(at / 2), table) }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller guarantees the element and the palette.
        unsafe { *numbers.palette.add(self.0.field(element, 4)) - numbers.offset }
    }
}

/// 4-bit fields whose entries are multiplied with the entries of 1-bit fields, minus a number.
#[derive(Clone, Copy)]
pub(super) struct Split {
    pub lower: Data,
    pub upper: Data,
}

impl Decoder for Split {
    type Block<V: Vector> = (V::Table, V::Table, V);

    #[inline(always)]
    fn bits(&self) -> usize {
        4
    }
    #[inline(always)]
    fn readable(&self) -> usize {
        self.lower.readable(4).min(self.upper.readable(1))
    }
    #[inline(always)]
    unsafe fn row(&self, element: usize) -> RowStart {
        // SAFETY: the caller guarantees the element.
        RowStart { pointer: unsafe { self.lower.0.add(element / 2) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> Self::Block<V> {
        // SAFETY: the caller guarantees the tables of the format: sixteen entries each, and a number.
        unsafe {
            let tables = numbers.palette;
            (V::load_table(tables), V::load_table(tables.add(16)), V::splat(*tables.add(32)))
        }
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, block: Self::Block<V>) -> V {
        let (lower, upper, shift) = block;
        let element = row.element + at;
        let (lower_fields, upper_fields) = (Fields::of(4), Fields::of(1));
        // SAFETY: the caller guarantees the elements, in both matrices.
        unsafe {
            let source = self.lower.0.add(element / 2);
            let values = V::look_up(source, &lower_fields[element % 2 * 4], lower);
            let source = self.upper.0.add(element / 8);
            let factors = V::look_up(source, &upper_fields[element % 8], upper);
            values.mul(factors).sub(shift)
        }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller guarantees the element and the tables.
        unsafe {
            let value = *numbers.palette.add(self.lower.field(element, 4));
            let factor = *numbers.palette.add(16 + self.upper.field(element, 1));
            value * factor - *numbers.palette.add(32)
        }
    }
}
