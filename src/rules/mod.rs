//! Rules: from the text of YAML files to a compiled [`RuleSet`], and from a request to its rule.
//!
//! Reading order: [`model`] and [`limit`] are what the service relies on, [`matcher`] finds a rule in it,
//! [`compile()`] makes it from files and says all that is wrong with them in one run. On the way lie
//! `yaml` (text to a tree with places), `shapes` (the tree to what a file says), `lower` and
//! `store_failure` (that to the model) and `suspicion` (what loads but hardly means what it says).
//! Nothing here reads a file or the clock: texts come in, rules and [`Diagnostic`]s go out.

pub mod compile;
pub mod diagnostic;
pub mod limit;
pub mod matcher;
pub mod model;
pub mod wildcard;

mod findings;
mod lower;
mod shapes;
mod spelling;
mod store_failure;
mod suspicion;
mod unused;
mod yaml;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod mutation;
#[cfg(test)]
mod told;

pub use compile::{CompileOptions, Compiled, SourceFile, compile};
pub use diagnostic::{Diagnostic, Place, Severity, render};
pub use limit::{Limit, Limits, Unit};
pub use matcher::{Entry, Matched};
pub use model::{Allowance, Metadata, OnStoreFailure, Rule, RuleId, RuleSet, Value};
