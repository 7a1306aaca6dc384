//! Calls of the admin API and their replies: query parameters, JSON, and errors.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http2::{Budget, Share};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use super::{
    Who,
    routes::{Parameter, Takes},
};
use overrides::model::MAX_JSON;
use server::http::{Answer, streamed, typed};
use text::{cut_display, entries};

pub(super) struct Call<'a> {
    pub(super) who: &'a Who,
    /// The value of `{id}` in the path; empty if the route has none.
    pub(super) parameter: &'a str,
    pub(super) query: Query<'a>,
    pub(super) request: &'a Request<Bytes>,
}

pub(super) struct Reply {
    pub(super) body: Body,
    pub(super) change: Option<(String, Option<String>)>,
}

pub(super) enum Body {
    Json(Bytes),
    Events(mpsc::Receiver<Bytes>),
}

/// Why a call failed. The message has the value seen, the expected one, and what to do.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    pub(super) message: String,
    /// The same call succeeds with `"force": true`.
    pub(super) needs_force: bool,
    allowed: Option<HeaderValue>,
}

/// The size up to which a reply is small: a status, or the answer to a change. A connection has at most one reply, so
/// that `HTTP_MAX_CONNECTIONS` bounds the small ones, and none waits for clients that do not read large ones.
const SMALL: usize = 16 << 10;

/// The memory for large replies that are being sent. Beyond it further ones are rejected, but a single one never is.
pub(super) struct Sending(Arc<Budget>);

struct Sent {
    body: Bytes,
    _share: Share,
}

/// The query parameters of a call, which are those of its route.
pub(super) struct Query<'a> {
    known: &'static [Parameter],
    given: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl Call<'_> {
    /// The body, which must be JSON of this type.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let content_type =
            self.request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        if !media_type.trim().eq_ignore_ascii_case("application/json") {
            let message =
                format!("content-type {:?}: expected application/json", content_type.unwrap_or_default());
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let size = self.request.body().len();
        if size > MAX_JSON {
            return Err(Problem::bad_request(format!(
                "the body has {size} bytes; the maximum is {MAX_JSON}"
            )));
        }
        serde_json::from_slice(self.request.body())
            .map_err(|error| Problem::bad_request(format!("invalid body: {}", cut_display(error))))
    }
}

impl<'a> Query<'a> {
    /// Each of the `known` parameters at most once with a valid value, and no others.
    pub(super) fn read(known: &'static [Parameter], text: Option<&'a str>) -> Result<Self, Problem> {
        let given: Vec<_> = form_urlencoded::parse(text.unwrap_or_default().as_bytes()).collect();
        for (at, (name, value)) in given.iter().enumerate() {
            let Some(parameter) = known.iter().find(|known| known.name == name) else {
                let known: Vec<_> = known.iter().map(|known| known.name).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Problem::bad_request(format!("unknown parameter {name:?}; expected: {known}")));
            };
            if given.iter().take(at).any(|(earlier, _)| earlier == name) {
                return Err(Problem::bad_request(format!("parameter {name:?} is given twice")));
            }
            parameter
                .takes
                .check(value)
                .map_err(|expected| Problem::bad_request(format!("{name}={value:?}: expected {expected}")))?;
        }
        let query = Self { known, given };
        for Parameter { name, takes, .. } in known {
            if let (Takes::Needed(example), "") = (takes, query.needed(name)) {
                let message = format!("parameter {name:?} is missing; expected {name}={example}");
                return Err(Problem::bad_request(message));
            }
        }
        Ok(query)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// A parameter that every call has.
    pub(super) fn needed(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    /// The entries of a descriptor in a parameter, `key=value,key=value`, if it is given.
    pub(super) fn descriptor(&self, name: &str) -> Result<Option<Vec<(String, String)>>, Problem> {
        let read = self.text(name).map(entries::parse_with_values).transpose();
        read.map_err(|error| Problem::bad_request(format!("{name}: {error}")))
    }

    /// One of the words of a parameter; the first one if it is not given.
    pub(super) fn word(&self, name: &str) -> &str {
        self.text(name).unwrap_or_else(|| match self.takes(name) {
            Some(Takes::Words([first, ..])) => first,
            _ => "",
        })
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.word(name) == "true"
    }

    /// The number of a parameter; its default, or 0, if it is not given.
    pub(super) fn number(&self, name: &str) -> usize {
        let given = self.text(name).and_then(|text| text.parse().ok());
        given.unwrap_or(match self.takes(name) {
            Some(Takes::Number { default: Some(default), .. }) => *default,
            _ => 0,
        })
    }

    fn takes(&self, name: &str) -> Option<&'static Takes> {
        self.known.iter().find(|known| known.name == name).map(|known| &known.takes)
    }
}

impl Sending {
    pub(super) fn new(memory: Arc<Budget>) -> Self {
        Self(memory)
    }

    /// The same bytes, counted until the last copy is dropped if they are many.
    pub(super) fn count(&self, body: Bytes) -> Bytes {
        if body.len() <= SMALL {
            return body;
        }
        let mut share = Share::new(&self.0);
        share.take(body.len());
        Bytes::from_owner(Sent { body, _share: share })
    }

    /// Fails if there is no room for a reply of this size.
    fn check(&self, bytes: usize) -> Result<(), Problem> {
        let message = "clients do not read their large replies; ask for less, or again when they have";
        let used = self.0.used();
        let has_room = bytes <= SMALL || used == 0 || used.saturating_add(bytes) <= self.0.limit();
        if has_room { Ok(()) } else { Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)) }
    }
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Reply {
    pub(super) fn json(value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the reply is not JSON: {error}"))
        })?;
        Ok(Self { body: Body::Json(body.into()), change: None })
    }

    /// The answer, unless it has no room. That of a change, which is made already, always has.
    pub(super) fn into_answer(self, sending: &Sending) -> Result<Answer, Problem> {
        Ok(match self.body {
            Body::Json(body) => {
                if self.change.is_none() {
                    sending.check(body.len())?;
                }
                typed(StatusCode::OK, "application/json", sending.count(body))
            }
            Body::Events(events) => streamed("text/event-stream", events),
        })
    }

    /// The same, with a change for the log; the reason may be empty.
    pub(super) fn changed(self, what: impl Into<String>, reason: &str) -> Self {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Self { change: Some((what.into(), reason)), ..self }
    }
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), needs_force: false, allowed: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A change that has no effect as it is.
    pub(super) fn needs_force(message: impl Into<String>) -> Self {
        Self { needs_force: true, ..Self::bad_request(message) }
    }

    pub(super) fn method_not_allowed(method: &Method, path: &str, allowed: &str) -> Self {
        let message = format!("{method} {path}: expected {allowed}");
        let allowed = HeaderValue::from_str(allowed).ok();
        Self { allowed, ..Self::new(StatusCode::METHOD_NOT_ALLOWED, message) }
    }

    /// `{"error": message}`, with `"needs_force": true` if that is so.
    pub(super) fn into_answer(self) -> Answer {
        let body = api::Error { error: self.message, needs_force: self.needs_force };
        let body = serde_json::to_string(&body).unwrap_or_default();
        let mut answer = typed(self.status, "application/json", body);
        if let Some(allowed) = self.allowed {
            answer.headers_mut().insert(header::ALLOW, allowed);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"tollgate\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_of_replies_wait_for_slow_readers() {
        let sending = Sending::new(Budget::new(3 * SMALL));
        assert!(sending.check(usize::MAX).is_ok(), "a single one is always sent");
        let large = sending.count(Bytes::from(vec![0; SMALL + 1]));
        assert!(sending.check(2 * SMALL - 1).is_ok());
        let copy = sending.count(Bytes::from(vec![0; 2 * SMALL - 1])).clone();
        assert_eq!(sending.check(SMALL + 1).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(sending.check(SMALL).is_ok(), "small ones have their own room");
        drop((large, copy));
        assert!(sending.check(SMALL + 1).is_ok(), "they were sent");
    }
}
