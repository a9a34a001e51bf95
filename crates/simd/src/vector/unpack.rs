use super::Vector;

/// Extraction of bit fields from bytes to lanes: for each field, the two bytes that may contain it, and the
/// shift.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Fields {
    /// Four indices for each lane; 0x80 is a zero byte.
    pub(super) bytes: [u8; 64],
    pub(super) shifts: [u32; 16],
    /// Mask of a field.
    pub(super) mask: u32,
}

/// Number of bytes read for fields, independent of their number and size.
pub const FIELDS_BYTES: usize = 16;

impl Fields {
    /// Returns the extraction of fields of 1, 2, 3, 4, 6 or 8 bits, for each start bit in the first byte.
    pub fn of(bits: usize) -> &'static [Fields; 8] {
        static ALL: [[Fields; 8]; 6] =
            [phases(1), phases(2), phases(3), phases(4), phases(6), phases(8)];
        match bits {
            1..=4 => &ALL[bits - 1],
            6 => &ALL[4],
            8 => &ALL[5],
            _ => panic!("fields must have 1, 2, 3, 4, 6 or 8 bits, got {bits}"),
        }
    }

    /// Extracts one field.
    ///
    /// # Safety
    /// The bytes must be readable.
    #[inline(always)]
    pub(super) unsafe fn get(&self, source: *const u8, lane: usize) -> usize {
        let byte = |at: u8| match at {
            0x80 => 0,
            // SAFETY: the caller guarantees the bytes.
            at => u32::from(unsafe { *source.add(usize::from(at)) }),
        };
        let both = byte(self.bytes[4 * lane]) | byte(self.bytes[4 * lane + 1]) << 8;
        (both >> self.shifts[lane] & self.mask) as usize
    }
}

/// Fields of eight bits start only at the first bit.
const fn phases(bits: usize) -> [Fields; 8] {
    let mut all = [Fields { bytes: [0x80; 64], shifts: [0; 16], mask: (1 << bits) - 1 }; 8];
    let mut phase = 0;
    while phase < if bits == 8 { 1 } else { 8 } {
        let mut lane = 0;
        while lane < 16 {
            let bit = phase + lane * bits;
            all[phase].bytes[4 * lane] = (bit / 8) as u8;
            if bit % 8 + bits > 8 {
                all[phase].bytes[4 * lane + 1] = (bit / 8 + 1) as u8;
            }
            all[phase].shifts[lane] = (bit % 8) as u32;
            lane += 1;
        }
        phase += 1;
    }
    all
}

/// Loading of compressed elements into vectors. Pointers may be unaligned.
pub trait Unpack: Copy {
    /// A table with sixteen entries.
    type Table: Copy;
    /// A table with sixty-four entries.
    type WideTable: Copy;

    /// # Safety
    /// `LANES` fp16 numbers must be readable.
    unsafe fn unpack_f16(source: *const u8) -> Self;
    /// # Safety
    /// `LANES` elements must be readable.
    unsafe fn unpack_bf16(source: *const u8) -> Self;
    /// # Safety
    /// `LANES` bytes must be readable.
    unsafe fn unpack_i8(source: *const u8) -> Self;
    /// # Safety
    /// `LANES` bytes must be readable.
    unsafe fn unpack_u8(source: *const u8) -> Self;

    /// # Safety
    /// Sixteen elements must be readable.
    unsafe fn load_table(entries: *const f32) -> Self::Table;
    /// # Safety
    /// Sixty-four elements must be readable as long as the table is used.
    unsafe fn load_wide_table(entries: *const f32) -> Self::WideTable;
    /// Subtracts an offset from each entry.
    fn shift_table(table: Self::Table, offset: Self) -> Self::Table;
    /// Looks up the entries for fields of at most 4 bits. If the fields have fewer bits, the table must be
    /// repeated.
    ///
    /// # Safety
    /// [`FIELDS_BYTES`] bytes must be readable.
    unsafe fn look_up(source: *const u8, fields: &Fields, table: Self::Table) -> Self;
    /// Looks up the entries for the lower four bits of bytes, and for the upper four bits.
    ///
    /// # Safety
    /// `LANES` bytes must be readable.
    unsafe fn look_up_halves(source: *const u8, table: Self::Table) -> [Self; 2];
    /// Looks up the entries for fields of 6 bits.
    ///
    /// # Safety
    /// [`FIELDS_BYTES`] bytes must be readable, and the entries of the table must still be valid.
    unsafe fn look_up_wide(source: *const u8, fields: &Fields, table: Self::WideTable) -> Self;
    /// Looks up the entries for fields of any size.
    ///
    /// # Safety
    /// [`FIELDS_BYTES`] bytes must be readable, and there must be an entry for each value of a field.
    unsafe fn gather(source: *const u8, fields: &Fields, entries: *const f32) -> Self;
}

/// Implements [`Unpack`] element by element for a [`Vector`].
macro_rules! unpack_by_element {
    ($vector:ty $(, any $narrow:ident)?) => {
        const _: () = {
            use $crate::vector::Vector;
            use $crate::vector::unpack::{Fields, Unpack, from_elements, map_table};

            impl $(<$narrow: Vector>)? Unpack for $vector {
                type Table = [f32; 16];
                type WideTable = *const f32;

                #[inline(always)]
                unsafe fn unpack_f16(source: *const u8) -> Self {
                    // SAFETY: the caller guarantees the elements.
                    from_elements(|lane| unsafe {
                        half::f16::from_bits(source.cast::<u16>().add(lane).read_unaligned())
                            .to_f32_const()
                    })
                }
                #[inline(always)]
                unsafe fn unpack_bf16(source: *const u8) -> Self {
                    // SAFETY: the caller guarantees the elements.
                    from_elements(|lane| unsafe {
                        let bits = source.cast::<u16>().add(lane).read_unaligned();
                        f32::from_bits(u32::from(bits) << 16)
                    })
                }
                #[inline(always)]
                unsafe fn unpack_i8(source: *const u8) -> Self {
                    // SAFETY: the caller guarantees the elements.
                    from_elements(|lane| f32::from(unsafe { *source.add(lane) } as i8))
                }
                #[inline(always)]
                unsafe fn unpack_u8(source: *const u8) -> Self {
                    // SAFETY: the caller guarantees the elements.
                    from_elements(|lane| f32::from(unsafe { *source.add(lane) }))
                }
                #[inline(always)]
                unsafe fn load_table(entries: *const f32) -> [f32; 16] {
                    // SAFETY: the caller guarantees the entries.
                    unsafe { entries.cast::<[f32; 16]>().read_unaligned() }
                }
                #[inline(always)]
                unsafe fn load_wide_table(entries: *const f32) -> *const f32 {
                    entries
                }
                #[inline(always)]
                fn shift_table(table: [f32; 16], offset: Self) -> [f32; 16] {
                    map_table(table, |entries: Self| entries.sub(offset))
                }
                #[inline(always)]
                unsafe fn look_up_wide(source: *const u8, fields: &Fields, table: *const f32) -> Self {
                    // SAFETY: the caller guarantees the bytes and the entries.
                    unsafe { Self::gather(source, fields, table) }
                }
                #[inline(always)]
                unsafe fn look_up(source: *const u8, fields: &Fields, table: [f32; 16]) -> Self {
                    // SAFETY: the caller guarantees the bytes.
                    from_elements(|lane| table[unsafe { fields.get(source, lane) } & 15])
                }
                #[inline(always)]
                unsafe fn look_up_halves(source: *const u8, table: [f32; 16]) -> [Self; 2] {
                    // SAFETY: the caller guarantees the bytes.
                    let byte = |lane| usize::from(unsafe { *source.add(lane) });
                    [
                        from_elements(|lane| table[byte(lane) & 15]),
                        from_elements(|lane| table[byte(lane) >> 4]),
                    ]
                }
                #[inline(always)]
                unsafe fn gather(source: *const u8, fields: &Fields, entries: *const f32) -> Self {
                    // SAFETY: the caller guarantees the bytes and the entries.
                    from_elements(|lane| unsafe { *entries.add(fields.get(source, lane)) })
                }
            }
        };
    };
}

pub(super) use unpack_by_element;

#[inline(always)]
pub(super) fn map_table<V: Vector>(mut table: [f32; 16], map: impl Fn(V) -> V) -> [f32; 16] {
    for at in (0..16).step_by(V::LANES) {
        let entries = table[at..].as_mut_ptr();
        // SAFETY: the lanes divide sixteen.
        unsafe { map(V::load(entries)).store(entries) };
    }
    table
}

#[inline(always)]
pub(super) fn from_elements<V: Vector>(element: impl Fn(usize) -> f32) -> V {
    let mut lanes = [0.0; super::MAX_LANES];
    for (lane, to) in lanes[..V::LANES].iter_mut().enumerate() {
        *to = element(lane);
    }
    // SAFETY: there are as many lanes as in the widest vector.
    unsafe { V::load(lanes.as_ptr()) }
}
