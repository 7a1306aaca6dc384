//! Groups of quotas (`QUOTA_GROUPS_ENABLED`): the quotas of one model of one backend, by the entries of their descriptors.
//! A group is exhausted if one of its quotas is, and a request if all of its groups are.

use smallvec::SmallVec;

use super::request::{Entry, Request};

/// The backend and the model of a descriptor's group, or all entries of one that names neither.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum GroupKey<'e> {
    Backend { backend: &'e str, model: &'e str },
    Entries(SmallVec<[Entry<'e>; 4]>),
}

pub(super) const BACKEND: &str = "backend_name";
pub(super) const MODEL: &str = "model_name_override";

impl<'e> GroupKey<'e> {
    /// Of several entries of one key the last counts.
    pub(super) fn of(entries: &[Entry<'e>]) -> Self {
        let last = |key| entries.iter().rev().find(|entry| entry.key == key).map_or("", |entry| entry.value);
        match (last(BACKEND), last(MODEL)) {
            ("", "") => Self::Entries(entries.into()),
            (backend, model) => Self::Backend { backend, model },
        }
    }
}

/// The first descriptor of a descriptor's group.
pub(super) fn first_of_group(request: &Request<'_>, index: usize) -> usize {
    let key = GroupKey::of(request.entries(index));
    (0..index).find(|other| GroupKey::of(request.entries(*other)) == key).unwrap_or(index)
}
