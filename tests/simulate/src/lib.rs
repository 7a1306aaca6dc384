//! Runs replicas of the service under a seeded clock, network and Redis: docs/dev/simulation.md.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "a test"
)]

pub mod checks;
pub mod clocks;
pub mod fleet;
pub mod generate;
pub mod inspect;
pub mod ledger;
pub mod limits;
pub mod machine;
pub mod meters;
pub mod named;
pub mod network;
pub mod operations;
pub mod plan;
pub mod quotas;
pub mod random;
pub mod replica;
pub mod servers;
pub mod shrink;
pub mod simulation;
pub mod streams;
pub mod topology;
pub mod trace;
pub mod world;
