//! Append-only list of values that all live as long as the list.

use std::cell::OnceCell;

/// One link of the list: storage for a value, and the next link.
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
    /// Stores a value in this link, which must be empty. Returns the value and the next link.
    pub(crate) fn keep(&self, value: T) -> (&T, &Arena<T>) {
        let link = self.link.get_or_init(|| Box::new((value, Arena::default())));
        (&link.0, &link.1)
    }
}

impl<T> Drop for Arena<T> {
    /// Drops iteratively, as a recursive drop of a long list could overflow the stack.
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
    fn long_list_keeps_values_and_drops_iteratively() {
        let arena = Arena::default();
        let (first, mut place) = arena.keep(0);
        let mut last = first;
        for value in 1..200_000 {
            (last, place) = place.keep(value);
        }
        assert_eq!((*first, *last), (0, 199_999));
    }
}
