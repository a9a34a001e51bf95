//! Core ML's arrays, in our memory or its own.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;

use block2::RcBlock;
use coremill_tensor::DType;
use objc2::AnyThread;
use objc2::rc::Retained;
use objc2_core_ml::{MLMultiArray, MLMultiArrayDataType};
use objc2_foundation::{NSArray, NSInteger, NSNumber};

use super::call::error_of;
use crate::convert;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Layout, Tensor, TensorMut};

/// Core ML's equivalent of a type.
pub(super) fn data_type(dtype: DType) -> Option<MLMultiArrayDataType> {
    match dtype {
        DType::Fp16 => Some(MLMultiArrayDataType::Float16),
        DType::Fp32 => Some(MLMultiArrayDataType::Float32),
        DType::Fp64 => Some(MLMultiArrayDataType::Float64),
        DType::Int8 => Some(MLMultiArrayDataType::Int8),
        DType::Int32 => Some(MLMultiArrayDataType::Int32),
        _ => None,
    }
}

/// The equivalent of Core ML's type.
pub(super) fn dtype_of(data_type: MLMultiArrayDataType) -> Result<DType> {
    let known = [DType::Fp16, DType::Fp32, DType::Fp64, DType::Int8, DType::Int32];
    let found = known.into_iter().find(|dtype| self::data_type(*dtype) == Some(data_type));
    found.ok_or_else(|| {
        let message = format!("Core ML uses an array of the unknown type {:#x}", data_type.0);
        Error::new(ErrorKind::Unavailable, message).with_hint("use a newer version of coremill")
    })
}

pub(super) fn numbers(values: &[usize]) -> Retained<NSArray<NSNumber>> {
    let numbers: Vec<_> = values.iter().map(|value| NSNumber::new_usize(*value)).collect();
    NSArray::from_retained_slice(&numbers)
}

pub(super) fn sizes(numbers: &NSArray<NSNumber>) -> Vec<usize> {
    numbers.iter().map(|number| number.as_usize()).collect()
}

/// An array over existing memory, if Core ML can use it in place.
///
/// # Safety
/// The memory matches the layout. Until the array is released, it is not freed, not modified if Core ML reads it,
/// and not accessed if Core ML writes it.
pub(super) unsafe fn over(
    layout: &Layout<'_>,
    memory: *mut u8,
) -> Result<Option<Retained<MLMultiArray>>> {
    let (Some(data_type), width) = (data_type(layout.dtype), layout.width()?) else {
        return Ok(None);
    };
    if memory.addr() % width != 0 {
        return Ok(None);
    }
    let Some(pointer) = NonNull::new(memory.cast::<c_void>()) else { return Ok(None) };
    // Core ML's interface has no scalars.
    let (shape, strides) = match layout.shape {
        [] => (vec![1], vec![1]),
        shape => (shape.to_vec(), layout.strides()),
    };
    // SAFETY: the memory matches the layout by the contract above; the types are Core ML's.
    let array = unsafe {
        MLMultiArray::initWithDataPointer_shape_dataType_strides_deallocator_error(
            MLMultiArray::alloc(),
            pointer,
            &numbers(&shape),
            data_type,
            &numbers(&strides),
            None,
        )
    };
    array.map(Some).map_err(|error| error_of(ErrorKind::Input, "use an array", &error))
}

/// A new array that contains the converted elements of a tensor.
pub(super) fn converted(tensor: &Tensor<'_>, dtype: DType) -> Result<Retained<MLMultiArray>> {
    let Some(data_type) = data_type(dtype) else {
        return Err(Error::input(format!("Core ML has no arrays of `{dtype}`")));
    };
    let shape = if tensor.shape().is_empty() { &[1][..] } else { tensor.shape() };
    // SAFETY: plain values.
    let array = unsafe {
        MLMultiArray::initWithShape_dataType_error(
            MLMultiArray::alloc(),
            &numbers(shape),
            data_type,
        )
    };
    let array = array.map_err(|error| error_of(ErrorKind::Input, "create an array", &error))?;
    let source = Tensor { layout: Layout { shape, ..tensor.layout }, ..*tensor };
    // A scalar with strides becomes a vector without.
    let source = match tensor.shape() {
        [] => Tensor { layout: Layout { strides: None, ..source.layout }, ..source },
        _ => source,
    };
    with_elements_mut(&array, |target| convert::copy(source, target))?;
    Ok(array)
}

/// Calls `act` with the elements of an array.
pub(super) fn with_elements<T>(
    array: &MLMultiArray,
    act: impl FnOnce(Tensor<'_>) -> Result<T>,
) -> Result<T> {
    // SAFETY: these only read the array.
    let (dtype, shape, strides) =
        unsafe { (dtype_of(array.dataType())?, sizes(&array.shape()), sizes(&array.strides())) };
    let (act, outcome) = (RefCell::new(Some(act)), RefCell::new(None));
    let handler = RcBlock::new(|pointer: NonNull<c_void>, bytes: NSInteger| {
        let bytes = usize::try_from(bytes).unwrap_or(0);
        // SAFETY: Core ML provides this number of bytes until the handler returns.
        let bytes = unsafe { slice::from_raw_parts(pointer.as_ptr().cast::<u8>(), bytes) };
        let tensor = Tensor::strided(dtype, &shape, &strides, bytes);
        if let Some(act) = act.take() {
            *outcome.borrow_mut() = Some(tensor.and_then(act));
        }
    });
    // SAFETY: the handler is called before this returns.
    unsafe { array.getBytesWithHandler(&handler) };
    drop(handler);
    outcome.into_inner().unwrap_or_else(|| Err(silent()))
}

/// Calls `act` with the mutable elements of an array.
pub(super) fn with_elements_mut<T>(
    array: &MLMultiArray,
    act: impl FnOnce(&mut TensorMut<'_>) -> Result<T>,
) -> Result<T> {
    // SAFETY: these only read the array.
    let (dtype, shape) = unsafe { (dtype_of(array.dataType())?, sizes(&array.shape())) };
    let (act, outcome) = (RefCell::new(Some(act)), RefCell::new(None));
    let handler = RcBlock::new(
        |pointer: NonNull<c_void>, bytes: NSInteger, strides: NonNull<NSArray<NSNumber>>| {
            let bytes = usize::try_from(bytes).unwrap_or(0);
            // SAFETY: Core ML provides this number of bytes and the strides until the handler returns.
            let (bytes, strides) = unsafe {
                let bytes = slice::from_raw_parts_mut(pointer.as_ptr().cast::<u8>(), bytes);
                (bytes, sizes(strides.as_ref()))
            };
            let tensor = TensorMut::strided(dtype, &shape, &strides, bytes);
            if let Some(act) = act.take() {
                *outcome.borrow_mut() = Some(tensor.and_then(|mut tensor| act(&mut tensor)));
            }
        },
    );
    // SAFETY: the handler is called before this returns.
    unsafe { array.getMutableBytesWithHandler(&handler) };
    drop(handler);
    outcome.into_inner().unwrap_or_else(|| Err(silent()))
}

fn silent() -> Error {
    Error::new(ErrorKind::Predict, "Core ML does not expose the elements of an array")
}
