//! Rules: from the text of YAML files to a compiled [`RuleSet`], and from a request to its rule.
//!
//! Reading order: [`model`] and [`limit`] are the compiled rules, [`matcher`] finds a rule in them, and
//! [`compile()`] makes them from files and reports every error in one run. Its stages are `yaml` (text to a tree
//! with places), `ast` (the tree to typed fields), `lower` and `store_failure` (the fields to the model), [`countable`] (what the store can count) and `lint` (what is probably not meant).
//! `messages` makes the same AST of the messages of a control plane. [`fingerprint`] hashes what rules mean.
//! Nothing here reads a file or the clock: texts and messages come in, rules and [`Diagnostic`]s go out.

pub(crate) mod ast;
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
pub(crate) mod spelling;
mod store_failure;
mod unused;
pub(crate) mod yaml;

#[cfg(test)]
mod tests;

pub use compile::{CompileOptions, Compiled, SourceFile, compile, compile_resources};
pub use countable::Countable;
pub use diagnostic::{Diagnostic, Place, Severity, render};
pub use limit::{CountingMode, LONGEST_LOG, Limit, Limits, Unit};
pub use matcher::{Entry, How, Matched};
pub use model::{Allowance, Metadata, OnStoreFailure, Origin, Rule, RuleId, RuleSet, Value};
pub(crate) use spelling::nearest;
