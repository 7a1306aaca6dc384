//! Rules: compiles YAML files to a [`RuleSet`], and finds the rule of a request.
//!
//! ```
//! use rules::{CompileOptions, SourceFile, compile};
//!
//! let text = "
//! domain: shop
//! descriptors:
//!   - key: user
//!     rate_limit: { unit: minute, requests_per_unit: 5 }
//! ";
//! let file = SourceFile { name: "shop.yaml".into(), text: text.into() };
//! let rules = compile(&[file], CompileOptions::default()).rules.unwrap();
//! let found = rules.domain("shop").unwrap().find(&[("user", "ann")], &mut String::new()).unwrap();
//! assert_eq!(found.rule.limits().unwrap().first().requests_per_unit, 5);
//! ```
//!
//! Reading order: [`model`] has the compiled rules, [`matcher`] finds a rule in them, and [`compile()`] creates
//! them from files and reports every error in one run. Its stages are `yaml` (text to a tree with places), `ast` (the tree
//! to typed fields, by a table of all keys), `lower` (the fields to the model) and `lint` (warnings about valid rules).
//! `messages` converts the messages of a control plane to the same tree. [`fingerprint`] hashes the meaning of rules.
//! Nothing here reads a file or the clock: the input is texts and messages, the output rules and diagnostics.

mod ast;
mod lint;

pub mod compile;
mod fingerprint;
mod matcher;
pub mod model;
pub mod quota_policy;
mod schema;
pub mod template;
pub mod wildcard;

mod lower;
mod messages;
mod options;
mod written_calendar;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use compile::{Compiled, SourceFile, compile, compile_resources};
pub use matcher::{Entry, How, Matched};
pub use model::{Allowance, Domain, Level, Metadata, Node, Origin, Rule, RuleId, RuleSet, Value};
pub use options::CompileOptions;
pub use schema::schema;
pub use written_calendar::{CalendarField, CalendarMistake, WrittenCalendar, calendar_text};
