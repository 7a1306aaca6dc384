//! How much a value holds once its aliases are written out: the bounds that keep a small file from
//! becoming a large tree.

use super::{Fault, NodeRef, Pair};

/// How deep lists and maps may be nested, aliases followed. Readers of the tree recurse; this keeps
/// them far from the end of a thread's stack. The Go service stops at 10,000.
pub(super) const MAX_DEPTH: u32 = 250;

/// More values than this never come from aliases in a file that yaml.v2 takes: it allows a tenth of
/// the values, and a file of the largest size has some eight million.
const MAX_ALIASED: u64 = 1_000_000;

/// What a value holds, itself included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    /// Levels of lists and maps.
    pub(super) depth: u32,
    /// Values, those behind aliases counted at each use.
    values: u64,
    /// Those among them that come from an alias.
    aliased: u64,
}

impl Weight {
    /// One scalar.
    pub(super) const SCALAR: Self = Self { depth: 0, values: 1, aliased: 0 };

    /// A list or a map with nothing in it.
    pub(super) const EMPTY: Self = Self { depth: 1, ..Self::SCALAR };

    /// Values, those behind aliases counted at each use.
    pub(super) const fn values(self) -> u64 {
        self.values
    }

    /// A list of these.
    pub(super) fn of_list(items: &[NodeRef]) -> Self {
        items.iter().fold(Self::EMPTY, |sum, item| sum.holding(Self::of_link(item)))
    }

    /// This weight with one more value inside.
    pub(super) fn holding(self, inner: Self) -> Self {
        Self {
            depth: self.depth.max(inner.depth.saturating_add(1)),
            values: self.values.saturating_add(inner.values),
            aliased: self.aliased.saturating_add(inner.aliased),
        }
    }

    /// A value as it is used: yaml.v2 counts an alias, and each value behind it again.
    pub(super) fn of_link(link: &NodeRef) -> Self {
        let weight = link.node.weight;
        if link.alias.is_none() {
            return weight;
        }
        Self { values: weight.values.saturating_add(1), aliased: weight.values, ..weight }
    }

    /// A pair as it is used.
    pub(super) fn of_pair(pair: &Pair) -> Self {
        let (key, value) = (Self::of_link(&pair.key), Self::of_link(&pair.value));
        // A key is on the level of its value, not above it.
        Self { depth: value.depth, ..key.holding(value) }
    }

    /// True when aliases expand to more than any file needs.
    pub(super) fn is_a_bomb(self) -> bool {
        self.aliased > MAX_ALIASED
    }

    /// Refuses what yaml.v2 refuses: a document most of which comes from aliases.
    pub(super) fn check(self) -> Result<(), Fault> {
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

/// The fault of a document that repeats itself without measure.
pub(super) fn too_much_aliasing() -> Fault {
    let message = "the aliases of this file expand to too many values".to_owned();
    let fault = Fault { place: None, message, help: None };
    fault.with_help("use fewer aliases within aliases")
}
