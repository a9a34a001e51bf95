/// Converts a vector to an empty vector in the same memory, whose elements may have another lifetime. `Vec`
/// collects in place if the sizes agree.
pub fn recycle_vec<A, B>(mut vector: Vec<A>) -> Vec<B> {
    vector.clear();
    vector.into_iter().map(|_| unreachable!("it is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recycled_vec_keeps_allocation() {
        let one = 1.0f32;
        let kept: Vec<&'static [f32]> = Vec::with_capacity(17);
        let address = kept.as_ptr() as usize;
        let mut other: Vec<&[f32]> = recycle_vec(kept);
        other.push(std::slice::from_ref(&one));
        assert_eq!((other.as_ptr() as usize, other.capacity()), (address, 17));
    }
}
