//! Values that are made one after the other, and all live as long as the first.

use std::cell::OnceCell;

/// A place for a value, and the places after it.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    link: OnceCell<Box<(T, Arena<T>)>>,
}

impl<T> Default for Arena<T> {
    fn default() -> Arena<T> {
        Arena { link: OnceCell::new() }
    }
}

impl<T> Arena<T> {
    /// Keeps a value here, which has to be free; gives it, and the place after it.
    pub(crate) fn keep(&self, value: T) -> (&T, &Arena<T>) {
        let link = self.link.get_or_init(|| Box::new((value, Arena::default())));
        (&link.0, &link.1)
    }
}

impl<T> Drop for Arena<T> {
    /// One after the other: a chain that drops itself by recursion could be longer than the stack.
    fn drop(&mut self) {
        let mut next = self.link.take();
        while let Some(mut link) = next {
            next = link.1.link.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_live_as_long_as_the_first() {
        let arena = Arena::default();
        let (first, mut place) = arena.keep(0);
        let mut last = first;
        for value in 1..200_000 {
            (last, place) = place.keep(value);
        }
        assert_eq!((*first, *last), (0, 199_999));
    }
}
