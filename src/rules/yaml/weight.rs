//! The size of a value with its aliases expanded, and the bounds that keep a small file from becoming a large tree.

use super::{super::diagnostics::FileError, NodeRef, Pair};

/// Maximum depth of lists and maps, with aliases expanded. Readers of the tree recurse; this is far below what a thread's
/// stack allows. The bound of the Go service is 10,000.
pub(super) const MAX_DEPTH: u32 = 250;

/// Maximum number of values from aliases. In a file that yaml.v2 accepts they are at most a tenth of the values, and a file
/// of the maximum size has about eight million.
const MAX_ALIASED: u64 = 1_000_000;

/// The size of a value, itself included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    /// Levels of lists and maps.
    pub(super) depth: u32,
    /// Values, with aliases expanded.
    pub(super) values: u64,
    /// Values that come from an alias.
    aliased: u64,
}

impl Weight {
    pub(super) const SCALAR: Self = Self { depth: 0, values: 1, aliased: 0 };

    pub(super) const EMPTY: Self = Self { depth: 1, ..Self::SCALAR };

    pub(super) fn of_list(items: &[NodeRef]) -> Self {
        items.iter().fold(Self::EMPTY, |sum, item| sum.holding(Self::of_link(item)))
    }

    pub(super) fn holding(self, inner: Self) -> Self {
        Self {
            depth: self.depth.max(inner.depth.saturating_add(1)),
            values: self.values.saturating_add(inner.values),
            aliased: self.aliased.saturating_add(inner.aliased),
        }
    }

    /// A use of a value: yaml.v2 counts an alias, and each of its values again.
    pub(super) fn of_link(link: &NodeRef) -> Self {
        let weight = link.node.weight;
        if link.alias.is_none() {
            return weight;
        }
        Self { values: weight.values.saturating_add(1), aliased: weight.values, ..weight }
    }

    pub(super) fn of_pair(pair: &Pair) -> Self {
        let (key, value) = (Self::of_link(&pair.key), Self::of_link(&pair.value));
        // A key is on the level of its value, not above it.
        Self { depth: value.depth, ..key.holding(value) }
    }

    /// True if aliases expand to more values than any file needs.
    pub(super) fn is_a_bomb(self) -> bool {
        self.aliased > MAX_ALIASED
    }

    /// Rejects a document most of whose values come from aliases, as yaml.v2 does.
    pub(super) fn check(self) -> Result<(), FileError> {
        // The exact shares are yaml.v2's; counts are well below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let (values, aliased) = (self.values as f64, self.aliased as f64);
        let allowed = 0.99 - 0.89 * ((values - 400_000.0) / 3_600_000.0).clamp(0.0, 1.0);
        if self.aliased > 100 && self.values > 1_000 && aliased / values > allowed {
            return Err(too_much_aliasing());
        }
        Ok(())
    }
}

pub(super) fn too_much_aliasing() -> FileError {
    FileError::new("the aliases of this file expand to too many values")
        .with_help("use fewer aliases within aliases")
}
