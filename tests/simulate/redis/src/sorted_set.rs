//! The value of a sorted set: members by name, and in the order of their scores.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::resp::exact;

type Member = Box<[u8]>;

/// A double that is a number, so that scores have an order. Members of one score are in the order of their bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Score(f64);

impl Eq for Score {}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).expect("a score is a number")
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Score {
    const ZERO: Self = Self(0.0);

    pub(crate) fn new(number: f64) -> Option<Self> {
        (!number.is_nan()).then_some(Self(number))
    }

    pub(crate) fn number(self) -> f64 {
        self.0
    }

    /// `None` if they are infinite with opposite signs.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        Self::new(self.0 + other.0)
    }

    /// Parses a number of a command, which must not overflow.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let is_infinity = text.iter().any(|byte| matches!(byte, b'i' | b'I'));
        let is_number = text.first().is_some_and(|byte| !byte.is_ascii_whitespace());
        Self::of(text).filter(|score| is_number && (score.0.is_finite() || is_infinity))
    }

    /// Reads a number as C's `strtod` does, except hexadecimal digits. Nothing is 0.
    fn of(text: &[u8]) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::ZERO);
        }
        Self::new(std::str::from_utf8(text.trim_ascii_start()).ok()?.parse().ok()?)
    }

    /// As C formats a number with `%.17g`.
    pub(crate) fn text(self) -> Vec<u8> {
        exact(self.0).into_bytes()
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct SortedSet {
    scores: BTreeMap<Member, Score>,
    order: BTreeSet<(Score, Member)>,
}

impl SortedSet {
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<Score> {
        self.scores.get(member).copied()
    }

    pub(crate) fn set(&mut self, member: &[u8], score: Score) {
        self.remove(member);
        // A small set has integers as such, without a negative zero.
        let score = Score(score.0 + 0.0);
        self.scores.insert(member.into(), score);
        self.order.insert((score, member.into()));
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let Some((member, score)) = self.scores.remove_entry(member) else { return false };
        self.order.remove(&(score, member))
    }

    /// The members in the order of their scores.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], Score)> {
        self.order.iter().map(|(score, member)| (&**member, *score))
    }

    /// The members with scores from `range`, in their order.
    pub(crate) fn within(&self, range: &Scores) -> impl DoubleEndedIterator<Item = (&[u8], Score)> {
        self.iter().filter(|(_, score)| range.contains(*score))
    }
}

/// A range of scores, as `ZRANGEBYSCORE` has it: `(5` is without 5.
pub(crate) struct Scores(Bound<Score>, Bound<Score>);

impl Scores {
    pub(crate) fn parse(least: &[u8], most: &[u8]) -> Option<Self> {
        let bound = |text: &[u8]| {
            Some(match text.strip_prefix(b"(") {
                Some(number) => Bound::Excluded(Score::of(number)?),
                None => Bound::Included(Score::of(text)?),
            })
        };
        Some(Self(bound(least)?, bound(most)?))
    }

    fn contains(&self, score: Score) -> bool {
        use std::ops::RangeBounds as _;
        (self.0, self.1).contains(&score)
    }
}
