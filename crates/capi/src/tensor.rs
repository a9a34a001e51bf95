//! Checked tensors in the caller's memory.
#![expect(unsafe_code, reason = "accesses memory that C owns")]

use std::ffi::{c_char, c_void};
use std::ops::Range;

use coremill_runtime::{MAX_RANK, ScalarType, View};

use crate::error::{Failure, Result};
use crate::options::array;

/// Maximum rank of a tensor.
pub const COREMILL_MAX_RANK: usize = 16;

const _: () = assert!(COREMILL_MAX_RANK == MAX_RANK);

/// A dense tensor in the caller's memory.
///
/// Set unused fields to zero: a `dim_order` of zeros means the standard dimension order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillTensor {
    /// The elements, at any address. They are used in place if the address is aligned to the element size.
    pub data: *mut c_void,
    /// Bytes of memory at `data`. An output may use fewer.
    pub length: usize,
    /// Element type, by PyTorch's and ExecuTorch's numbers: 0 uint8, 1 int8, 2 int16, 3 int32, 4 int64, 5 float16, 6
    /// float32, 7 float64, 11 bool, 15 bfloat16.
    pub scalar_type: i32,
    /// Number of dimensions; 0 for a scalar.
    pub rank: u32,
    /// Sizes of the `rank` dimensions. For an output, the maximum sizes; the run sets the actual ones.
    pub sizes: [u64; COREMILL_MAX_RANK],
    /// Dimensions in memory order, outermost first.
    pub dim_order: [u8; COREMILL_MAX_RANK],
}

/// Kind of a port.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoremillPortKind {
    /// Read by a run.
    Input = 0,
    /// Written by a run.
    Output = 1,
    /// Kept between runs.
    State = 2,
}

/// An input, an output or a state of a method.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillPort {
    /// Name. It belongs to the library and is valid until the method is freed.
    pub name: *const c_char,
    /// Element type in the model, by the numbers of [`CoremillTensor`]. Tensors of other types are converted if no
    /// element is changed by it.
    pub scalar_type: i32,
    /// Number of dimensions.
    pub rank: u32,
    /// Minimum size of each dimension; 0 in programs, which do not declare minimum sizes.
    pub least: [u64; COREMILL_MAX_RANK],
    /// Maximum size of each dimension; `UINT64_MAX` if unbounded.
    pub largest: [u64; COREMILL_MAX_RANK],
}

/// An empty description, to be filled by the library.
impl Default for CoremillPort {
    fn default() -> CoremillPort {
        let (least, largest) = ([0; COREMILL_MAX_RANK], [0; COREMILL_MAX_RANK]);
        CoremillPort { name: std::ptr::null(), scalar_type: 0, rank: 0, least, largest }
    }
}

/// A validated tensor of the caller.
#[derive(Clone, Debug)]
pub(crate) struct CheckedTensor {
    pub(crate) scalar_type: ScalarType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) order: Vec<u8>,
    pub(crate) data: *mut u8,
    /// Size of the memory in bytes.
    pub(crate) length: usize,
    /// Number of bytes that the sizes require.
    pub(crate) needed: usize,
}

impl CheckedTensor {
    pub(crate) fn of(tensor: &CoremillTensor) -> Result<CheckedTensor> {
        let number = i8::try_from(tensor.scalar_type).ok();
        let scalar_type = number.and_then(ScalarType::from_number).ok_or_else(|| {
            Failure::argument(format!("{} is not the number of a scalar type", tensor.scalar_type))
        })?;
        let rank = usize::try_from(tensor.rank).ok().filter(|rank| *rank <= MAX_RANK);
        let rank = rank.ok_or_else(|| {
            Failure::argument(format!("the rank must be at most {MAX_RANK}, got {}", tensor.rank))
        })?;
        let sizes = tensor.sizes[..rank].iter().map(|size| usize::try_from(*size).ok());
        let sizes: Option<Vec<usize>> = sizes.collect();
        let needed = sizes.as_ref().and_then(|sizes| {
            let width = scalar_type.bytes() as usize;
            let needed = sizes.iter().try_fold(width, |bytes, size| bytes.checked_mul(*size))?;
            isize::try_from(needed).is_ok().then_some(needed)
        });
        let (Some(sizes), Some(needed)) = (sizes, needed) else {
            let sizes = &tensor.sizes[..rank];
            return Err(Failure::argument(format!(
                "sizes {sizes:?} are not valid: they are negative or exceed the address space"
            )));
        };
        let mut order = tensor.dim_order[..rank].to_vec();
        if order.iter().all(|axis| *axis == 0) {
            order = (0..rank).map(|axis| axis as u8).collect();
        }
        let data = tensor.data.cast::<u8>();
        if data.is_null() && tensor.length > 0 || isize::try_from(tensor.length).is_err() {
            let length = tensor.length;
            return Err(Failure::argument(format!(
                "{length} bytes at {data:p} are not a valid memory range"
            )));
        }
        Ok(CheckedTensor { scalar_type, sizes, order, data, length: tensor.length, needed })
    }

    /// Address range of the memory.
    pub(crate) fn place(&self) -> Range<usize> {
        self.data.addr()..self.data.addr() + self.length
    }

    /// The memory, for reading.
    ///
    /// # Safety
    /// The tensor's memory is valid and not modified for `'a`.
    pub(crate) unsafe fn bytes<'a>(&self) -> Result<&'a [u8]> {
        // SAFETY: guaranteed by the caller.
        unsafe { array(self.data.cast_const(), self.length, "data") }
    }

    /// The memory, for writing.
    ///
    /// # Safety
    /// The tensor's memory is valid and exclusive for `'a`.
    pub(crate) unsafe fn memory<'a>(&self) -> &'a mut [u8] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: the pointer was checked not to be null, and the length is valid; the rest is guaranteed by the
        // caller.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.length) }
    }

    /// A view of the tensor in `bytes`, which may be a copy of its memory.
    pub(crate) fn view<'a>(&'a self, bytes: &'a [u8]) -> Result<View<'a>> {
        let found = bytes.get(..self.needed).ok_or_else(|| {
            let CheckedTensor { scalar_type, sizes, .. } = self;
            let found = bytes.len();
            Failure::argument(format!(
                "a `{scalar_type:?}` tensor of sizes {sizes:?} requires {} bytes, got {found}",
                self.needed
            ))
        })?;
        let view = View::new(self.scalar_type, &self.sizes, &self.order, found);
        view.map_err(Failure::argument)
    }
}

/// Whether two address ranges overlap.
pub(crate) fn overlap(left: &Range<usize>, right: &Range<usize>) -> bool {
    left.start.max(right.start) < left.end.min(right.end)
}

impl CoremillTensor {
    /// Sets the sizes of an output.
    pub(crate) fn set_sizes(&mut self, sizes: &[usize]) {
        self.rank = sizes.len() as u32;
        self.sizes = [0; COREMILL_MAX_RANK];
        for (size, found) in self.sizes.iter_mut().zip(sizes) {
            *size = *found as u64;
        }
    }

    /// A tensor in the library's memory, passed to a callback.
    #[cfg(feature = "host")]
    pub(crate) fn shown(scalar_type: ScalarType, sizes: &[usize], bytes: &[u8]) -> CoremillTensor {
        let mut tensor = CoremillTensor {
            data: bytes.as_ptr().cast_mut().cast(),
            length: bytes.len(),
            scalar_type: scalar_type as i32,
            rank: 0,
            sizes: [0; COREMILL_MAX_RANK],
            dim_order: [0; COREMILL_MAX_RANK],
        };
        tensor.set_sizes(&sizes[..sizes.len().min(COREMILL_MAX_RANK)]);
        for (axis, place) in tensor.dim_order.iter_mut().enumerate().take(sizes.len()) {
            *place = axis as u8;
        }
        tensor
    }
}
