//! Properties of all bytes that are read as arrays. The fuzz target and the test of the seeds share them.

use coremill::arrays;
use coremill_engine::{Array, Elements};
use coremill_tensor::Buffer;

/// Arrays are read or refused; arrays that were read are written, and are equal when read again.
pub(crate) fn arrays(data: &[u8]) {
    if let Ok(array) = arrays::from_npy(data) {
        let mut bytes = Vec::new();
        arrays::to_npy(&mut bytes, &array).expect("writing to memory succeeds");
        same(&array, &arrays::from_npy(&bytes).expect("written data can be read"));
    }
    if let Ok(all) = arrays::from_npz(Buffer::from(data.to_vec())) {
        let mut bytes = Vec::new();
        arrays::to_npz(&mut bytes, &all).expect("writing to memory succeeds");
        let again = arrays::from_npz(Buffer::from(bytes)).expect("written data can be read");
        assert_eq!(all.len(), again.len());
        for ((name, array), (again_name, again)) in all.iter().zip(&again) {
            assert_eq!(name, again_name);
            same(array, again);
        }
    }
}

fn same(one: &Array, other: &Array) {
    assert_eq!(one.shape(), other.shape());
    match (one.elements(), other.elements()) {
        // NaN keeps its bits.
        (Elements::Floats(one), Elements::Floats(other)) => {
            assert!(one.iter().zip(&**other).all(|(x, y)| x == y || x.is_nan() && y.is_nan()));
        }
        (one, other) => assert_eq!(one, other),
    }
}
