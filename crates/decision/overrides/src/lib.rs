//! Overrides: limits, blocks and exemptions that an operator sets at run time, for single values or whole rules.
//!
//! ```
//! use clock::Time;
//! use overrides::table::of_json_line;
//!
//! let line = r#"{"domain": "shop", "descriptor": "user=ann", "action": "block", "for": "1h"}"#;
//! let block = of_json_line(line, Time::from_seconds(1_800_000_000)).unwrap().one;
//! assert_eq!(block.target.shown(recent::KeyValues::Hidden).to_string(), "shop user=***");
//! assert_eq!(block.expires, Some(1_800_003_600));
//! ```
//!
//! [`model`] is one override and its JSON, and [`table`] reads many from CSV or JSON lines. [`index`] holds up to two
//! million of them, and finds the one that applies to a request; the limiter calls it before it plans. [`keeper`] changes
//! and stores them: in memory, in a `file`, or in Redis (`shared`), which all replicas follow ([`follower`], `versions`,
//! [`progress`]). [`applies`] finds the rule of an override.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

pub mod applies;
pub mod follower;
mod index;
mod keeper;
pub mod model;
pub mod progress;
mod shared;
pub mod table;
pub mod target;

mod entry;
mod file;
mod versions;

use std::{fmt, sync::Arc};

use tracing::info;

pub use self::{
    index::{Found, Index, Usage, View},
    keeper::Keeper,
    model::{Action, Input, Override, Percent},
    target::{EVERY_DOMAIN, Scope, ShownTarget, Target, Value},
};
use clock::Time;

/// Maximum number of expired overrides that are logged one by one.
const MAX_LOGGED: usize = 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeError {
    Invalid(String),
    NotFound(String),
    Conflict(String),
    Unavailable(String),
}

/// Where a change is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Durability {
    /// In the storage, from where other replicas that share it have it.
    Stored,
    /// In this process alone, because Redis is away. Redis and the others have it when Redis is back, unless this process
    /// ends before.
    Owed,
}

impl ChangeError {
    fn unavailable(mut message: String) -> Self {
        message.push_str("; the overrides are unchanged");
        Self::Unavailable(message)
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) | Self::NotFound(text) | Self::Conflict(text) | Self::Unavailable(text) => {
                f.write_str(text)
            }
        }
    }
}

/// Removes expired overrides from an index, logs them, and returns them. Overrides that expired at second 0 are
/// removals, which were logged before.
fn sweep(index: &Index, now: Time) -> Vec<Arc<Override>> {
    let mut expired = index.sweep(now);
    expired.retain(|one| one.expires != Some(0));
    for one in expired.iter().take(MAX_LOGGED) {
        info!(target_descriptor = %one.target.shown(index.values()), action = one.effect(), "override expired");
    }
    if expired.len() > MAX_LOGGED {
        info!(suppressed = expired.len() - MAX_LOGGED, "overrides expired");
    }
    expired
}
