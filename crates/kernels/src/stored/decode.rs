//! How vectors of weights come from stored elements.

#![expect(unsafe_code, reason = "vectors are read from bytes whose extents are checked once")]

use std::marker::PhantomData;

use coremill_simd::vector::{FIELDS_BYTES, Fields, Vector};

/// The numbers of a block in one row.
#[derive(Clone, Copy)]
pub(super) struct BlockNumbers {
    pub scale: f32,
    pub offset: f32,
    /// The block's palette, or what integers are.
    pub palette: *const f32,
}

/// Where the elements of a row start.
#[derive(Clone, Copy)]
pub(super) struct RowStart {
    /// The byte of the first one.
    pub pointer: *const u8,
    /// The elements before it.
    element: usize,
}

/// A format of stored elements, which are counted from the first one of the matrix. What it gives of them
/// still has to be multiplied by the block's scale.
pub(super) trait Decoder: Copy + Sync {
    /// Whether the elements of two vectors come faster in another order, see [`parted`](Self::parted).
    const PARTED: bool = false;

    /// What is prepared for a block.
    type Block<V: Vector>: Copy;

    /// The bits of an element.
    fn bits(&self) -> usize;

    /// The element up to which vectors can be read without leaving the data.
    fn readable(&self) -> usize;

    /// # Safety
    /// The element must be in the matrix.
    unsafe fn row(&self, element: usize) -> RowStart;

    /// # Safety
    /// The palette must be one of the format.
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> Self::Block<V>;

    /// Elements `at` some place in the row.
    ///
    /// # Safety
    /// The element must be under `readable`, and as many as the vector has must be in the matrix.
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, block: Self::Block<V>) -> V;

    /// As many elements `at` some place in the row as two vectors have: those at even places, and those
    /// between them.
    ///
    /// # Safety
    /// As many elements must be in the matrix, and the format be [`PARTED`](Self::PARTED).
    unsafe fn parted<V: Vector>(&self, _: RowStart, _: usize, _: Self::Block<V>) -> [V; 2] {
        unreachable!("the format's elements come in order");
    }

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

impl Data {
    /// The element up to which fields of so many bits can be read without leaving the bytes.
    #[inline(always)]
    fn readable(&self, bits: usize) -> usize {
        match self.1.checked_sub(FIELDS_BYTES) {
            // A vector that starts in the last of these bytes is inside.
            Some(last) => last * 8 / bits + 1,
            None => 0,
        }
    }

    /// A field of at most eight bits.
    ///
    /// # Safety
    /// There must be so many fields.
    #[inline(always)]
    unsafe fn field(&self, element: usize, bits: usize) -> usize {
        let bit = element * bits;
        // SAFETY: the caller vouches for the field.
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
                // SAFETY: the caller vouches for the element.
                RowStart { pointer: unsafe { self.0.0.add(element * $size) }, element }
            }
            #[inline(always)]
            unsafe fn block<V: Vector>(&self, _numbers: BlockNumbers) {}
            #[inline(always)]
            unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, _block: ()) -> V {
                // SAFETY: the caller vouches for the elements.
                unsafe { $load(row.pointer.add(at * $size)) }
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
        // SAFETY: the caller vouches for the element.
        RowStart { pointer: unsafe { self.0.0.add(element) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> V {
        V::splat(numbers.offset)
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, offset: V) -> V {
        // SAFETY: the caller vouches for the elements.
        let integers = unsafe {
            let source = row.pointer.add(at);
            if SIGNED { V::unpack_i8(source) } else { V::unpack_u8(source) }
        };
        integers.sub(offset)
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller vouches for the element.
        let byte = unsafe { *self.0.0.add(element) };
        let integer = if SIGNED { f32::from(byte as i8) } else { f32::from(byte) };
        integer - numbers.offset
    }
}

/// What the entry that a field of bits selects goes through.
pub(super) trait Kind: Copy + Sync {
    /// What is prepared for a block.
    type Block<V: Vector>: Copy;

    /// # Safety
    /// The palette must have sixteen entries, and one for each value that fields have.
    unsafe fn block<V: Vector>(numbers: BlockNumbers) -> Self::Block<V>;

    /// # Safety
    /// The bytes of the fields must be readable, and the block's palette still be there.
    unsafe fn vector<V: Vector>(source: *const u8, fields: &Fields, block: Self::Block<V>) -> V;

    fn single(entry: f32, numbers: BlockNumbers) -> f32;
}

/// Declares a kind: what is prepared, how vectors are looked up in it, and what becomes of one entry.
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
                // SAFETY: the caller vouches for the palette.
                unsafe { $prepare }
            }
            #[inline(always)]
            unsafe fn vector<V: Vector>(
                $source: *const u8,
                $fields: &Fields,
                $prepared: $block,
            ) -> V {
                // SAFETY: the caller vouches for the bytes and the palette.
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
    /// Fields of at most 4 bits, the entries less an offset.
    Affine,
    V::Table,
    |numbers| V::shift_table(V::load_table(numbers.palette), V::splat(numbers.offset)),
    |source, fields, table| V::look_up(source, fields, table),
    |entry, numbers| entry - numbers.offset
);
kind!(
    /// Fields of 6 bits, the entries as they are.
    Wide,
    V::WideTable,
    |numbers| V::load_wide_table(numbers.palette),
    |source, fields, table| V::look_up_wide(source, fields, table),
    |entry, _numbers| entry
);
/// Fields of any size, the entries from memory.
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
        // SAFETY: the caller vouches for the bytes and the palette.
        unsafe { V::gather(source, fields, palette) }
    }
    #[inline(always)]
    fn single(entry: f32, _numbers: BlockNumbers) -> f32 {
        entry
    }
}

/// Fields of bits.
#[derive(Clone, Copy)]
pub(super) struct Bits<K> {
    pub data: Data,
    pub bits: usize,
    /// For each bit of a byte that a vector may start at.
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
        // SAFETY: the caller vouches for the element.
        RowStart { pointer: unsafe { self.data.0.add(element * self.bits / 8) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> K::Block<V> {
        // SAFETY: the caller vouches for the palette.
        unsafe { K::block::<V>(numbers) }
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, block: K::Block<V>) -> V {
        // SAFETY: the caller vouches for the elements; there are fields for each bit of a byte.
        unsafe {
            let bit = (row.element + at) * self.bits;
            K::vector::<V>(self.data.0.add(bit / 8), self.fields.get_unchecked(bit % 8), block)
        }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller vouches for the element and the palette.
        unsafe { K::single(*numbers.palette.add(self.data.field(element, self.bits)), numbers) }
    }
}

/// Halves of bytes, where rows and blocks are whole pairs of vectors. Without `SHIFTED`, offsets are zero.
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
        // SAFETY: the caller vouches for the element.
        RowStart { pointer: unsafe { self.0.0.add(element / 2) }, element }
    }
    #[inline(always)]
    unsafe fn block<V: Vector>(&self, numbers: BlockNumbers) -> V::Table {
        // SAFETY: the caller vouches for the palette.
        let table = unsafe { V::load_table(numbers.palette) };
        if SHIFTED { V::shift_table(table, V::splat(numbers.offset)) } else { table }
    }
    #[inline(always)]
    unsafe fn vector<V: Vector>(&self, row: RowStart, at: usize, table: V::Table) -> V {
        // SAFETY: the caller vouches for the elements.
        unsafe { V::look_up(row.pointer.add(at / 2), &Fields::of(4)[0], table) }
    }
    #[inline(always)]
    unsafe fn parted<V: Vector>(&self, row: RowStart, at: usize, table: V::Table) -> [V; 2] {
        // SAFETY: the caller vouches for the elements.
        unsafe { V::look_up_halves(row.pointer.add(at / 2), table) }
    }
    #[inline(always)]
    unsafe fn single(&self, element: usize, numbers: BlockNumbers) -> f32 {
        // SAFETY: the caller vouches for the element and the palette.
        unsafe { *numbers.palette.add(self.0.field(element, 4)) - numbers.offset }
    }
}
