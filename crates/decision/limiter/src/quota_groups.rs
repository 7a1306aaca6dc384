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

#[derive(Default)]
pub(super) struct QuotaGroups<'e>(SmallVec<[Group<'e>; 4]>);

struct Group<'e> {
    key: GroupKey<'e>,
    /// The exhausted quota with the longest wait, by the index of its descriptor.
    last: Option<(usize, u64)>,
}

impl<'e> QuotaGroups<'e> {
    /// Adds the quota of a descriptor, with its wait if it is exhausted.
    pub(super) fn add(&mut self, entries: &[Entry<'e>], index: usize, wait: Option<u64>) {
        let key = GroupKey::of(entries);
        let known = self.0.iter().position(|group| group.key == key).unwrap_or(self.0.len());
        if known == self.0.len() {
            self.0.push(Group { key, last: None });
        }
        if let (Some(group), Some(wait)) = (self.0.get_mut(known), wait)
            && group.last.is_none_or(|(_, last)| wait > last)
        {
            group.last = Some((index, wait));
        }
    }

    /// The quota that the request waits for, if every group is exhausted: the last one of the group that is free first.
    pub(super) fn first(&self) -> Option<(usize, u64)> {
        let mut first: Option<(usize, u64)> = None;
        for group in &self.0 {
            let last = group.last?;
            if first.is_none_or(|(_, wait)| last.1 < wait) {
                first = Some(last);
            }
        }
        first
    }
}
