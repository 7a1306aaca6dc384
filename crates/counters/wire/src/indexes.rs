//! The lists of a pipeline, by index, and its keys.
//!
//! An index comes from the pipeline that has the list, so one out of range is a mistake in this program: it panics, and the
//! connection is opened again.
#![expect(clippy::expect_used, reason = "asserts that an index belongs to its list")]

use std::ops::Range;

/// An index as it is stored.
pub fn index(index: usize) -> u32 {
    u32::try_from(index).expect("a queue is bounded far below 2³²")
}

pub fn at<T>(list: &[T], index: u32) -> &T {
    list.get(index as usize).expect("an index of this pipeline")
}

pub fn at_mut<T>(list: &mut [T], index: u32) -> &mut T {
    list.get_mut(index as usize).expect("an index of this pipeline")
}

#[derive(Default)]
pub struct Keys(Vec<u8>);

impl Keys {
    pub fn push(&mut self, key: &str) -> Range<u32> {
        let start = index(self.0.len());
        self.0.extend_from_slice(key.as_bytes());
        start..index(self.0.len())
    }

    pub fn get(&self, key: &Range<u32>) -> &[u8] {
        self.0.get(key.start as usize..key.end as usize).expect("a key of this pipeline")
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}
