//! Rules, and the limits that they set.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

// Limits that follow a calendar.
pub(crate) mod calendars;
pub(crate) mod schedules;
// Midnight, ends of months and years, leap days, clock steps.
pub(crate) mod moments;
// The example rules, compared with their comments.
pub(crate) mod lesson;
// Rules that change at run time.
pub(crate) mod reload;
// As many rules as the memory allows.
pub(crate) mod many;
// Rules from a control plane.
pub(crate) mod xds;
