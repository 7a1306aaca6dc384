//! What a request is answered, and why.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// Recorded answers of the Go service.
pub(crate) mod golden;
// The pull requests of the Go service after the recordings.
pub(crate) mod pulls;
// Overrides, on one replica and on several.
pub(crate) mod overrides;
// `tollgate explain`.
pub(crate) mod explain;
// What a request means, and random requests that are compared with it.
pub(crate) mod model;
pub(crate) mod random;
