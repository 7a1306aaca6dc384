//! Overrides: limits, blocks and exemptions that an operator sets at run time, for single values or whole rules.
//!
//! [`model`] is one override and its JSON, and [`table`] reads many from CSV or JSON lines. [`index`] holds up to two
//! million of them in `record`s of a few dozen bytes, and finds the one that applies to a request; the limiter calls it
//! before it plans. [`keeper`] changes and stores them: in memory, in a `file`, or in Redis (`shared`), which all
//! replicas follow. [`applies`] finds the rule of an override.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod applies;
pub mod index;
pub mod keeper;
pub mod model;
pub mod shared;
pub mod table;

mod file;
mod record;

pub use index::{Found, Index, Usage};
pub use keeper::{ChangeError, Keeper};
pub use model::{Action, Override, Target, Value};
