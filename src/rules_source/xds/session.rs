//! Judges what a control plane sends: has it served, or says why not.
//!
//! The dialects bring the resources that are to be served from now on, with what could not be read of them,
//! and send the verdict back. A session outlives streams and connections.

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
    settings::groups::XdsServer,
    text::cut,
};

/// The errors that a control plane is told of one response. Its log is not where they are read first.
const MAX_ERRORS: usize = 20;

/// A control plane that sends what was refused once more is answered so much later: some do at once what
/// they are told was not accepted, and would go on for ever as fast as they can.
const SAME_AGAIN: Duration = Duration::from_secs(1);

/// The code of a refusal, as gRPC numbers them.
const INVALID_ARGUMENT: i32 = 3;

/// The code of an error of ours.
pub(super) const INTERNAL: i32 = 13;

/// What is told, and what becomes of it.
pub(super) struct Session<'a, T> {
    source: &'a Source<T>,
    origin: String,
    clock: &'a dyn Clock,
    status: &'a Status,
    judged: watch::Sender<bool>,
    is_lost: Cell<bool>,
}

/// What is to be served from now on.
pub(super) struct Update<'u> {
    /// As the control plane counts them.
    pub(super) version: &'u str,
    /// All resources there are, those that could be read.
    pub(super) resources: Vec<&'u RateLimitConfig>,
    /// What is wrong with the others.
    pub(super) findings: Vec<Diagnostic>,
}

impl<'a, T> Session<'a, T> {
    pub(super) fn new(
        source: &'a Source<T>,
        server: &XdsServer,
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

    /// The control plane, as logs call it.
    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    pub(super) fn status(&self) -> &Status {
        self.status
    }

    pub(super) fn source(&self) -> &Source<T> {
        self.source
    }

    /// How many messages the rules may hold.
    pub(super) fn max_values(&self) -> usize {
        self.source.options.max_values
    }

    /// There is no stream any more, or none came about.
    pub(super) fn lost(&self) {
        self.is_lost.set(true);
    }

    /// Judges a response; one that causes a panic is refused, and what is served stays.
    pub(super) async fn judge_or_refuse(
        &self,
        judge: impl Future<Output = Result<(), google::rpc::Status>>,
    ) -> Result<(), google::rpc::Status> {
        let judged = caught(Boundary::XdsResponse, async {
            panics::point("xds_response");
            judge.await
        });
        judged.await.unwrap_or_else(|Panicked| {
            self.status.change(|status| status.refused = status.refused.saturating_add(1));
            self.judged.send_replace(true);
            let message = "internal error: reading the response panicked".to_owned();
            Err(google::rpc::Status { code: INTERNAL, message })
        })
    }

    /// Serves an update, or says why not, in the words that the control plane is to be told.
    pub(super) async fn judge(&self, update: Update<'_>) -> Result<(), google::rpc::Status> {
        if self.is_lost.take() {
            tracing::info!("{} is there again", self.origin);
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
            tokio::time::sleep(SAME_AGAIN).await;
        }
        let errors = state.last_error.map(|(_, errors)| errors).unwrap_or_default();
        Err(google::rpc::Status { code: INVALID_ARGUMENT, message: refusal(&errors) })
    }
}

fn refusal(errors: &[Diagnostic]) -> String {
    let mut lines: Vec<String> = errors.iter().take(MAX_ERRORS).map(ToString::to_string).collect();
    if errors.len() > MAX_ERRORS {
        lines.push("and more".to_owned());
    }
    lines.join("\n")
}

impl<T> Source<T> {
    /// Serves what the resources of a control plane say, unless there is an error in them. What was refused
    /// or is served already is [`Outcome::Unchanged`] when it comes again.
    ///
    /// The resources are read in the order of their names: control planes keep none, and replicas that were
    /// told the same are to serve the same.
    fn offer(&self, origin: &str, update: Update<'_>, now: Time) -> Outcome {
        let Update { mut resources, findings, .. } = update;
        resources.sort_by_key(|resource| (&resource.name, &resource.domain));
        let mut reloading = lock(&self.reloading);
        let digest = (hash(&resources), findings.clone());
        if reloading.last_read.as_ref() == Some(&digest) {
            return Outcome::Unchanged;
        }
        let is_complete = findings.is_empty();
        let mut compiled = compile_or_refuse(&origin, || compile_resources(&resources, self.options));
        compiled.diagnostics.splice(0..0, findings);
        let draft = Draft { origin: &origin, digest, files: resources.len(), is_complete, compiled };
        self.take(draft, now, &mut reloading)
    }
}

/// A hash of the resources, the same on every replica that was told the same: maps are encoded in order here,
/// which is why it is not that of the bytes that came.
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
