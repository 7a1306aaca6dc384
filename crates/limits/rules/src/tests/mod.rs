//! Complete rules files: recordings of the Go service, mutations, and every diagnostic.

mod countable;
mod diagnostics;
mod domains;
mod golden;
mod holds;
mod mutation;
mod over_limit_body;
mod schedules;
mod store_failure;
