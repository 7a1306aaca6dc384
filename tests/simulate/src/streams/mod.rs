//! Requests that hold: `plan` draws them, `run` sends them, `ledger` knows what callers know of them, and `checks` compares it
//! with Redis.

mod checks;
pub mod ledger;
pub mod plan;
mod run;

pub use run::StreamEvent;
