//! Values of states between runs.

use coremill_kernels::matmul::WordVectors;
use coremill_reference::array::Array;
use coremill_reference::call::Call;
use coremill_reference::error::{Result, fail};
use coremill_reference::ops;
use coremill_simd::Isa;
use coremill_tensor::DType;

/// The value of a state, in one of several forms.
#[derive(Clone, Debug)]
pub struct StateValue {
    dtype: DType,
    shape: Vec<usize>,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// Zeros, without memory.
    Zeros,
    Array(Array),
    /// A cache that the plan reads and writes by whole vectors along the last axis. It takes half the memory.
    Words(WordVectors),
}

impl From<Array> for StateValue {
    fn from(array: Array) -> StateValue {
        let (dtype, shape) = (array.dtype(), array.shape().to_vec());
        StateValue { dtype, shape, form: Form::Array(array) }
    }
}

impl StateValue {
    /// Takes the value, and leaves an empty one.
    pub(crate) fn take(&mut self) -> StateValue {
        let empty = StateValue { dtype: self.dtype, shape: Vec::new(), form: Form::Zeros };
        std::mem::replace(self, empty)
    }

    /// A state of zeros. It has no memory before it is written.
    pub(crate) fn zeros(dtype: DType, shape: Vec<usize>) -> StateValue {
        StateValue { dtype, shape, form: Form::Zeros }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Size of each dimension, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Size in memory in bytes.
    pub fn bytes(&self) -> usize {
        match &self.form {
            Form::Zeros => 0,
            Form::Array(array) => 4 * array.view().len(),
            Form::Words(vectors) => vectors.bytes(),
        }
    }

    /// The elements as an array, which is shared if the state is one.
    pub fn to_array(&self) -> Array {
        let shape = &*self.shape;
        let count = shape.iter().product();
        match &self.form {
            Form::Array(array) => array.clone(),
            // Memory of zeros is not touched before it is written.
            Form::Zeros if self.dtype.is_float() => {
                Array::floats(self.dtype, shape, vec![0.0; count])
            }
            Form::Zeros => Array::ints(self.dtype, shape, vec![0; count]),
            Form::Words(vectors) => {
                let mut elements = vec![0.0; count];
                vectors.read(Isa::detect(), 0, &mut elements);
                Array::floats(self.dtype, shape, elements)
            }
        }
    }

    /// The vectors, if the state is in this form.
    pub(crate) fn words(&self) -> Option<&WordVectors> {
        match &self.form {
            Form::Words(vectors) => Some(vectors),
            Form::Zeros | Form::Array(_) => None,
        }
    }

    /// Whether the state is an array.
    pub(crate) fn is_array(&self) -> bool {
        matches!(self.form, Form::Array(_))
    }

    /// Replaces a slice, in place unless the array is shared. The call is a `slice_update` without its `x`.
    pub(crate) fn update(&mut self, isa: Isa, call: &Call) -> Result<()> {
        match &mut self.form {
            Form::Words(vectors) => {
                let depth = vectors.depth().max(1);
                ops::each_update(call, &self.shape, &mut |start, elements| {
                    vectors.write(isa, start / depth, elements);
                })
            }
            Form::Array(array) => ops::update_in_place(call, array),
            Form::Zeros => fail!("the state is not in a form that a plan uses"),
        }
    }

    /// Converts the state to the form that a plan uses: vectors of 16-bit integers, or an array.
    pub(crate) fn convert(&mut self, to_words: bool, isa: Isa) {
        match (&self.form, to_words) {
            (Form::Words(_), true) | (Form::Array(_), false) => {}
            (_, false) => self.form = Form::Array(self.to_array()),
            (form, true) => {
                let depth = self.shape.last().copied().unwrap_or(1);
                let count = self.shape.iter().rev().skip(1).product();
                let mut vectors = WordVectors::zeros(count, depth);
                if let Form::Array(array) = form
                    && let Some(floats) = array.as_floats()
                {
                    vectors.write(isa, 0, floats);
                }
                self.form = Form::Words(vectors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_form_conversions_preserve_elements() {
        let mut state = StateValue::zeros(DType::Fp16, vec![2, 3, 5]);
        assert_eq!((state.bytes(), state.to_array().as_floats()), (0, Some(&[0.0; 30][..])));
        let floats: Vec<f32> = (0..30).map(|at| (at as f32 * 0.7 - 9.0).sin()).collect();
        state = Array::floats(DType::Fp16, [2, 3, 5], floats.clone()).into();
        for (to_words, bytes) in [(true, 30 * 2 + 6 * 4), (false, 30 * 4), (true, 30 * 2 + 6 * 4)] {
            state.convert(to_words, Isa::detect());
            assert_eq!(state.bytes(), bytes);
            let array = state.to_array();
            for (vector, found) in
                floats.chunks(5).zip(array.as_floats().expect("floats").chunks(5))
            {
                let most = vector.iter().fold(0f32, |most, element| most.max(element.abs()));
                for (element, found) in vector.iter().zip(found) {
                    assert!((element - found).abs() <= most / 32768.0, "{found} for {element}");
                }
            }
        }
    }
}
