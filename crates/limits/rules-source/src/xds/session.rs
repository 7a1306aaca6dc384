//! Applies updates of a control plane: serves them, or rejects them with the reasons.
//!
//! `stream` passes the resources and the errors of invalid ones, and sends the result back. A session outlives streams
//! and connections.

use std::{
    cell::Cell,
    hash::{DefaultHasher, Hasher as _},
    time::Duration,
};

use prost::Message as _;
use tonic::Code;

use super::{
    super::{Input, ReloadOutcome, Source, lock},
    Status,
};
use clock::{Clock, Time};
use faults::{
    log_throttle::LogThrottle,
    panics::{self, Boundary, Panicked, caught},
};
use net::ServerAddress;
use proto::{google, ratelimit::config::ratelimit::v3::RateLimitConfig};
use rules::compile_resources;
use text::{cut, diagnostics::Diagnostic};

/// The limit of errors in a rejection; the log has more.
const MAX_ERRORS: usize = 20;

/// The delay before another update is rejected: some control planes resend a rejected update immediately and forever, and
/// two that contradict each other take turns.
const REPEATED_REJECTION_DELAY: Duration = Duration::from_secs(1);

/// What `RULES_MAX_VALUES` counts for a message of a control plane: a rule has two messages, and as YAML eleven values.
const VALUES_OF_A_MESSAGE: usize = 5;

pub(super) struct Session<'a, T> {
    pub(super) source: &'a Source<T>,
    /// The control plane's name in logs.
    pub(super) origin: String,
    clock: &'a dyn Clock,
    pub(super) status: &'a Status,
    /// The last stream ended, and the next one has not sent a response.
    pub(super) is_lost: Cell<bool>,
    recoveries: LogThrottle,
}

pub(super) struct Update<'u> {
    /// The control plane's version of the rules.
    pub(super) version: &'u str,
    pub(super) resources: Vec<RateLimitConfig>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl<'a, T> Session<'a, T> {
    pub(super) fn new(
        source: &'a Source<T>,
        server: &ServerAddress,
        clock: &'a dyn Clock,
        status: &'a Status,
    ) -> Self {
        let origin = format!("the control plane {server}");
        Self { source, origin, clock, status, is_lost: Cell::new(false), recoveries: LogThrottle::new(10) }
    }

    pub(super) fn max_messages(&self) -> usize {
        self.source.options.max_values / VALUES_OF_A_MESSAGE
    }

    /// Processes a response. A panic rejects the response, and the current rules stay.
    pub(super) async fn guarded(
        &self,
        process: impl Future<Output = Result<(), google::rpc::Status>>,
    ) -> Result<(), google::rpc::Status> {
        let processed = caught(Boundary::XdsResponse, async {
            panics::point("xds_response");
            process.await
        });
        processed.await.unwrap_or_else(|Panicked| {
            self.status.change(|status| status.refused += 1);
            let message = "internal error: processing the response panicked".to_owned();
            Err(google::rpc::Status { code: Code::Internal.into(), message })
        })
    }

    /// Serves an update, or returns the rejection to send.
    pub(super) async fn apply(&self, update: Update<'_>) -> Result<(), google::rpc::Status> {
        if self.is_lost.take() && self.recoveries.admit_now().is_some() {
            tracing::info!("{}: recovered", self.origin);
        }
        let version = cut(update.version).to_owned();
        let before = self.source.state();
        self.source.offer(&self.origin, update, self.clock.now());
        let state = self.source.state();
        self.status.change(|status| {
            status.updates += 1;
            if state.is_current {
                status.version = Some(version);
            } else {
                status.refused += 1;
            }
        });
        if state.is_current {
            return Ok(());
        }
        if !before.is_current && before.last_error.is_some() {
            tokio::time::sleep(REPEATED_REJECTION_DELAY).await;
        }
        let errors = state.last_error.map(|(_, errors)| errors).unwrap_or_default();
        let mut lines: Vec<String> = errors.iter().take(MAX_ERRORS).map(ToString::to_string).collect();
        lines.extend((errors.len() > MAX_ERRORS).then(|| "and more".to_owned()));
        Err(google::rpc::Status { code: Code::InvalidArgument.into(), message: lines.join("\n") })
    }
}

impl<T> Source<T> {
    /// Serves the resources of a control plane, unless they have an error. The same resources again are
    /// [`ReloadOutcome::Unchanged`].
    ///
    /// Resources are sorted by name: control planes send them in any order, and replicas with the same resources must
    /// serve the same rules.
    fn offer(&self, origin: &str, update: Update<'_>, now: Time) -> ReloadOutcome {
        let Update { mut resources, diagnostics, .. } = update;
        resources.sort_by(|one, other| (&one.name, &one.domain).cmp(&(&other.name, &other.domain)));
        let hash = hash(&resources);
        let files = resources.len();
        let input = Input { origin: &origin, hash, files, diagnostics };
        let compile = || (compile_resources(&resources, self.options), Vec::new());
        let outcome = self.load_input(input, compile, now, &mut lock(&self.reloading));
        outcome.refund();
        outcome
    }
}

/// A hash of the resources, to recognise the same update. They are encoded again because the received bytes have maps
/// in any order.
fn hash(resources: &[RateLimitConfig]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for resource in resources {
        hasher.write(&resource.encode_length_delimited_to_vec());
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
