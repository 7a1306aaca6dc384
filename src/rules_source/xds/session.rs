//! Applies updates of a control plane: serves them, or rejects them with the reasons.
//!
//! The protocol variants pass the complete list of resources, with what could not be read of them, and send the
//! result back. A session outlives streams and connections.

use std::{cell::Cell, hash::Hasher as _, time::Duration};

use prost::Message as _;
use siphasher::sip::SipHasher13;
use tokio::sync::watch;

use super::{
    super::{Draft, Outcome, Source, compile_or_refuse, lock},
    Status,
};
use crate::{
    clock::{Clock, Time},
    panics::{self, Boundary, Panicked, caught},
    proto::{google, ratelimit::config::ratelimit::v3::RateLimitConfig},
    rules::{Diagnostic, compile_resources},
    settings::ServerAddress,
    text::cut,
};

/// The limit of errors that a rejection lists; our log has more.
const MAX_ERRORS: usize = 20;

/// The delay before rejecting the same update again: some control planes resend a rejected update at once, for
/// ever and as fast as they can.
const REPEATED_REJECTION_DELAY: Duration = Duration::from_secs(1);

/// gRPC's code of a rejection.
const INVALID_ARGUMENT: i32 = 3;

/// gRPC's code of an internal error.
pub(super) const INTERNAL: i32 = 13;

/// Applies updates to a source.
pub(super) struct Session<'a, T> {
    source: &'a Source<T>,
    origin: String,
    clock: &'a dyn Clock,
    status: &'a Status,
    judged: watch::Sender<bool>,
    is_lost: Cell<bool>,
}

/// The rules to serve from now on.
pub(super) struct Update<'u> {
    /// The control plane's version of them.
    pub(super) version: &'u str,
    /// All readable resources.
    pub(super) resources: Vec<&'u RateLimitConfig>,
    /// Errors of the others.
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl<'a, T> Session<'a, T> {
    pub(super) fn new(
        source: &'a Source<T>,
        server: &ServerAddress,
        clock: &'a dyn Clock,
        status: &'a Status,
        judged: watch::Sender<bool>,
    ) -> Self {
        Self {
            source,
            origin: format!("the control plane {server}"),
            clock,
            status,
            judged,
            is_lost: Cell::new(false),
        }
    }

    /// The control plane's name in logs.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    pub(super) fn status(&self) -> &Status {
        self.status
    }

    pub(super) fn source(&self) -> &Source<T> {
        self.source
    }

    /// The limit of messages in all resources.
    pub(super) fn max_values(&self) -> usize {
        self.source.options.max_values
    }

    /// Notes that there is no stream.
    pub(super) fn lost(&self) {
        self.is_lost.set(true);
    }

    /// Runs the processing of a response; a panic rejects it, and the current rules stay.
    pub(super) async fn guarded(
        &self,
        process: impl Future<Output = Result<(), google::rpc::Status>>,
    ) -> Result<(), google::rpc::Status> {
        let processed = caught(Boundary::XdsResponse, async {
            panics::point("xds_response");
            process.await
        });
        processed.await.unwrap_or_else(|Panicked| {
            self.status.change(|status| status.refused = status.refused.saturating_add(1));
            self.judged.send_replace(true);
            let message = "internal error: reading the response panicked".to_owned();
            Err(google::rpc::Status { code: INTERNAL, message })
        })
    }

    /// Serves an update, or gives the rejection to send.
    pub(super) async fn apply(&self, update: Update<'_>) -> Result<(), google::rpc::Status> {
        if self.is_lost.take() {
            tracing::info!("{}: recovered", self.origin);
        }
        let version = cut(update.version).to_owned();
        let outcome = self.source.offer(&self.origin, update, self.clock.now());
        let state = self.source.state();
        self.status.change(|status| {
            status.updates = status.updates.saturating_add(1);
            if state.is_current {
                status.version = Some(version);
            } else {
                status.refused = status.refused.saturating_add(1);
            }
        });
        self.judged.send_replace(true);
        if state.is_current {
            return Ok(());
        }
        if outcome == Outcome::Unchanged {
            tokio::time::sleep(REPEATED_REJECTION_DELAY).await;
        }
        let errors = state.last_error.map(|(_, errors)| errors).unwrap_or_default();
        Err(google::rpc::Status { code: INVALID_ARGUMENT, message: rejection(&errors) })
    }
}

fn rejection(errors: &[Diagnostic]) -> String {
    let mut lines: Vec<String> = errors.iter().take(MAX_ERRORS).map(ToString::to_string).collect();
    if errors.len() > MAX_ERRORS {
        lines.push("and more".to_owned());
    }
    lines.join("\n")
}

impl<T> Source<T> {
    /// Serves the resources of a control plane, unless they have an error. The same resources again are
    /// [`Outcome::Unchanged`].
    ///
    /// The resources are sorted by name: control planes have no order, and replicas with the same resources must
    /// serve the same rules.
    fn offer(&self, origin: &str, update: Update<'_>, now: Time) -> Outcome {
        let Update { mut resources, diagnostics, .. } = update;
        resources.sort_by_key(|resource| (&resource.name, &resource.domain));
        let mut reloading = lock(&self.reloading);
        let digest = (hash(&resources), diagnostics.clone());
        if reloading.last_read.as_ref() == Some(&digest) {
            return Outcome::Unchanged;
        }
        let is_complete = diagnostics.is_empty();
        let mut compiled = compile_or_refuse(&origin, || compile_resources(&resources, self.options));
        compiled.diagnostics.splice(0..0, diagnostics);
        let draft = Draft { origin: &origin, digest, files: resources.len(), is_complete, compiled };
        self.load_draft(draft, now, &mut reloading)
    }
}

/// A hash of the resources, to recognise the same update. Maps are encoded in order here, unlike in the bytes
/// received.
fn hash(resources: &[&RateLimitConfig]) -> u64 {
    let mut hasher = SipHasher13::new();
    let mut bytes = Vec::new();
    for resource in resources {
        bytes.clear();
        // A vector takes whatever is written to it.
        let _ = resource.encode_length_delimited(&mut bytes);
        hasher.write(&bytes);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
