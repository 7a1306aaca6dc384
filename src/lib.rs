//! Tollgate answers Envoy's question whether a request may pass.

pub mod algorithm;
pub mod clock;
pub mod rules;
pub mod store;
pub mod table;
