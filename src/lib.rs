//! Tollgate answers Envoy's question whether a request may pass.

pub mod clock;
pub mod rules;
pub mod source;
