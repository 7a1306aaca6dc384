//! Rules: from the text of YAML files to a compiled [`RuleSet`], and from a request to its rule.
//!
//! Reading order: [`model`] and [`limit`] are what the service relies on, [`matcher`] finds a rule in it,
//! [`compile()`] makes it from files and says all that is wrong with them in one run. On the way lie
//! `yaml` (text to a tree with places), `shapes` (the tree to what a file says), `lower`,
//! `over_limit_body` and `store_failure` (that to the model), [`countable`] (what the store can count) and
//! `suspicion` (what loads but hardly means what it says).
//! `messages` is the other way in: what the messages of a control plane say, in the same shapes.
//! Nothing here reads a file or the clock: texts and messages come in, rules and [`Diagnostic`]s go out.

pub(crate) mod ast;
#[cfg(test)]
pub(crate) mod config_dump;
pub(crate) mod lint;

pub mod compile;
pub mod countable;
pub mod diagnostic;
pub mod fingerprint;
pub mod limit;
pub mod matcher;
pub mod model;
pub mod quota_policy;
pub mod wildcard;

pub(crate) mod diagnostics;
mod lower;
mod messages;
mod over_limit_body;
pub(crate) mod spelling;
mod store_failure;
mod unused;
pub(crate) mod yaml;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod mutation;

pub use compile::{CompileOptions, Compiled, SourceFile, compile, compile_resources};
pub use countable::Countable;
pub use diagnostic::{Diagnostic, Place, Severity, render};
pub use limit::{Limit, Limits, Unit};
pub use matcher::{Entry, How, Matched};
pub use model::{Allowance, Metadata, OnStoreFailure, Origin, Rule, RuleId, RuleSet, Value};
pub(crate) use spelling::nearest;
