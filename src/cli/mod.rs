//! What the `tollgate` command does beside serving.
//!
//! Each subcommand is a plain function that takes what it needs and writes to what it is given; the
//! command line itself is read elsewhere.

pub mod check;
