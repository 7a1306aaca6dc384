//! Changes through the admin API by action and result: `tollgate_admin_changes_total`.

use crate::mutex::lock;
use std::{collections::BTreeMap, sync::Mutex};

/// The changes so far. The admin API names the actions, so that there are few.
#[derive(Debug, Default)]
pub struct AdminChanges(Mutex<BTreeMap<(&'static str, ChangeResult), u64>>);

named! {
    /// What became of a change.
    #[derive(PartialOrd, Ord)]
    pub enum ChangeResult {
        /// It was made.
        Ok = "ok",
        /// It was invalid or not allowed.
        Rejected = "rejected",
        /// It could not be made.
        Error = "error",
    }
}

impl AdminChanges {
    /// Counts a change.
    pub fn count(&self, action: &'static str, result: ChangeResult) {
        let mut counts = lock(&self.0);
        let count = counts.entry((action, result)).or_default();
        *count = count.saturating_add(1);
    }

    /// The changes by action and result.
    pub(super) fn totals(&self) -> Vec<([&'static str; 2], u64)> {
        lock(&self.0).iter().map(|((action, result), n)| ([*action, result.name()], *n)).collect()
    }
}
