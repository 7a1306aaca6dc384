//! IAM logins of Amazon ElastiCache and MemoryDB: the password of a connection is a request to connect to the cache, signed
//! with AWS credentials (Signature Version 4) and valid for 15 minutes.
//!
//! [`TokenSource`] signs passwords and keeps the credentials valid. `settings` has what the operator sets, `chain` asks for
//! credentials, `client` is the HTTP client for that, `sign` computes signatures.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

mod chain;
mod client;
pub mod settings;
mod sign;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info};

use chain::Fetched;
use client::Client;
use clock::Time;
use net::{Secret, edges::Edges};
use settings::Iam;

/// The validity of a password, which AWS bounds to 15 minutes. A server checks it at the login only.
const VALID: Duration = Duration::from_secs(900);

/// Credentials are renewed this long before they expire, or after half of a shorter life.
const MARGIN: u64 = 300;

/// The pause after a failed request for credentials, in seconds.
const RETRY: u64 = 10;

/// Signs passwords for one cache and user.
pub struct TokenSource {
    iam: Iam,
    client: Client,
    edges: Edges,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    fetched: Option<Fetched>,
    /// Why the last request failed.
    problem: Option<String>,
    /// When the next request is due; `None` for credentials that do not expire.
    due: Option<Time>,
}

impl TokenSource {
    /// Returns every problem with the CAs, if credentials are fetched by TLS.
    pub fn new(iam: &Iam, edges: &Edges) -> Result<Self, Vec<String>> {
        let client = Client::new(iam.credentials.needs_tls(), edges)?;
        let state = State { due: Some(Time::default()), ..State::default() };
        Ok(Self { iam: iam.clone(), client, edges: edges.clone(), state: watch::Sender::new(state) })
    }

    pub fn user(&self) -> &str {
        &self.iam.user
    }

    /// A new password. Waits for the first credentials.
    pub async fn token(&self) -> Result<Secret, String> {
        let mut state = self.state.subscribe();
        let tried = state.wait_for(|state| state.fetched.is_some() || state.problem.is_some());
        let state = tried.await.map_err(|_| "the service is shutting down")?;
        let now = self.edges.clock.now();
        match &state.fetched {
            Some(Fetched { key, expires }) if expires.is_none_or(|expires| now < expires) => {
                Ok(Secret(sign::password(&self.iam, key, now, VALID)))
            }
            Some(_) => Err(state.problem.clone().unwrap_or_else(|| "AWS credentials: expired".to_owned())),
            None => Err(state.problem.clone().unwrap_or_default()),
        }
    }

    /// Fetches credentials if they expire soon. Called every few seconds.
    pub async fn renew(&self) {
        let now = self.edges.clock.now();
        if self.state.borrow().due.is_none_or(|due| now < due) {
            return;
        }
        let result = self.client.within_limit(chain::fetch(&self.iam, &self.client)).await;
        let step = self.iam.credentials.name();
        let now = self.edges.clock.now();
        match result {
            Ok(fetched) => {
                let had_failed = self.state.borrow().problem.is_some();
                if had_failed {
                    info!("AWS credentials from {step}: valid again");
                }
                let due = fetched.expires.map(|expires| due(now, expires, self.edges.random.fraction()));
                self.state.send_replace(State { fetched: Some(fetched), problem: None, due });
            }
            Err(why) => {
                let problem = format!("AWS credentials from {step}: {why}");
                self.state.send_modify(|state| {
                    if state.problem.as_ref() != Some(&problem) {
                        error!("{problem}; the request is repeated every {RETRY} s");
                        state.problem = Some(problem);
                    }
                    state.due = Some(Time::from_seconds(now.seconds() + RETRY));
                });
            }
        }
    }
}

/// When to renew credentials that expire then: replicas that started together must not ask together.
fn due(now: Time, expires: Time, chance: f64) -> Time {
    let life = expires.seconds().saturating_sub(now.seconds());
    let margin = net::backoff::jittered_by(Duration::from_secs(MARGIN.min(life / 2)), 0.2, chance);
    // Credentials that have expired already are not asked for without a pause.
    let earliest = now.seconds() + RETRY;
    Time::from_seconds(expires.seconds().saturating_sub(margin.as_secs()).max(earliest))
}
