//! Tollgate answers Envoy's question whether a request may pass.

pub mod cli;
pub mod clock;
pub mod rules;
