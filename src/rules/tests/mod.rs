//! Rules files as a whole: what is recorded of the Go service, what is damaged, and every diagnostic.

mod diagnostics;
mod golden;
mod mutation;
mod over_limit_body;
