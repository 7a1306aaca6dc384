//! Sets of hits, each by its number.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Hits(u16);

impl Hits {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn one(number: u8) -> Self {
        Self(1 << number)
    }

    /// The hits with numbers below this one.
    pub(crate) fn first_of(count: u8) -> Self {
        Self((1 << count) - 1)
    }

    pub(crate) fn count(self) -> u8 {
        u8::try_from(self.0.count_ones()).expect("there are 16 bits")
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn remove(&mut self, other: Self) {
        *self = self.without(other);
    }

    pub(crate) fn numbers(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |number| !self.and(Self::one(*number)).is_empty())
    }

    /// The hit with the lowest number.
    pub(crate) fn first(self) -> Self {
        self.numbers().next().map_or(Self::NONE, Self::one)
    }

    pub(crate) fn first_number(self) -> Option<u8> {
        self.numbers().next()
    }

    pub(crate) fn last(self) -> Option<u8> {
        self.numbers().last()
    }
}

impl fmt::Debug for Hits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.numbers()).finish()
    }
}
