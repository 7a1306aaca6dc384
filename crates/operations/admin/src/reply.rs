//! Calls of the admin API and their replies: query parameters, JSON, and errors.

use std::{borrow::Cow, io, sync::Arc};

use budget::{Budget, Reservation};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use super::{
    Api, Who,
    routes::{Parameter, Takes},
};
use overrides::model::MAX_JSON;
use recent::{KeyValues, Quoting};
use server::http::{Answer, pieces, streamed, typed};
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
    Json(Paper),
    Events(mpsc::Receiver<Bytes>),
}

/// The JSON of a reply. What it takes is reserved before, piece by piece, until it is sent.
pub(super) struct Paper {
    pieces: Vec<Vec<u8>>,
    reserved: Reservation,
}

/// Why a call failed. The message has the value seen, the expected one, and what to do.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    message: Quoting,
    /// The same call succeeds with `"force": true`.
    pub(super) needs_force: bool,
    allowed: Option<HeaderValue>,
}

/// The size of a piece. One has room whatever others take: a status, or the answer to a change. A connection has at most
/// one reply, so that `HTTP_MAX_CONNECTIONS` bounds them, and none waits for clients that do not read large ones.
const PIECE: usize = 16 << 10;

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

impl Paper {
    pub(super) fn new(memory: &Arc<Budget>) -> Self {
        Self { pieces: Vec::new(), reserved: Reservation::new(memory) }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(Vec::as_slice)
    }
}

/// An error is that there is no room.
impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            if !self.pieces.is_empty() && !self.reserved.resize(self.pieces.len() * PIECE) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.pieces.push(Vec::new());
        }
        let Some(last) = self.pieces.last_mut() else { return Ok(0) };
        let (here, _) = bytes.split_at(bytes.len().min(PIECE - last.len()));
        last.extend_from_slice(here);
        Ok(here.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Reply {
    pub(super) fn json(api: &Api, value: &impl Serialize) -> Result<Self, Problem> {
        let mut paper = Paper::new(&api.managed.replies);
        match serde_json::to_writer(&mut paper, value) {
            Ok(()) => Ok(paper.into()),
            Err(error) if error.is_io() => Err(Problem::no_room()),
            Err(error) => {
                let message = format!("the reply is not JSON: {error}");
                Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            }
        }
    }

    pub(super) fn into_answer(self) -> Answer {
        match self.body {
            Body::Json(paper) => pieces("application/json", paper.pieces, paper.reserved),
            Body::Events(events) => streamed("text/event-stream", events),
        }
    }

    /// The same, with a change for the log; the reason may be empty.
    pub(super) fn changed(self, what: impl Into<String>, reason: &str) -> Self {
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Self { change: Some((what.into(), reason)), ..self }
    }
}

impl From<Paper> for Reply {
    fn from(paper: Paper) -> Self {
        Self { body: Body::Json(paper), change: None }
    }
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: Quoting::new(message), needs_force: false, allowed: None }
    }

    /// The message for the log. One about the call may quote it; one about a fault of the service does not.
    pub(super) fn logged(&self, values: KeyValues) -> &str {
        if self.status.is_server_error() { self.message.for_caller() } else { self.message.logged(values) }
    }

    /// The message about a line of the body.
    pub(super) fn in_line(&self, number: usize) -> String {
        format!("line {number}: {}", self.message.for_caller())
    }

    pub(super) fn no_room() -> Self {
        let message = "no room for the reply: clients do not read their large replies, or it is larger than all of them \
                       may be; ask for less, or again when they have read";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
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
        let body = api::Error { error: self.message.for_caller().to_owned(), needs_force: self.needs_force };
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
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_reply_reserves_what_it_takes_and_a_small_one_always_has_room() {
        let memory = Budget::new(3 * PIECE);
        let push = |paper: &mut Paper, bytes: usize| paper.write_all(&vec![b'x'; bytes]);
        let mut large = Paper::new(&memory);
        push(&mut large, PIECE).unwrap();
        assert_eq!(memory.used(), 0);
        push(&mut large, PIECE + 1).unwrap();
        assert_eq!((memory.used(), large.len()), (2 * PIECE, 2 * PIECE + 1));
        let mut other = Paper::new(&memory);
        push(&mut other, 2 * PIECE).unwrap();
        assert!(push(&mut other, 1).is_err());
        push(&mut Paper::new(&memory), PIECE).unwrap();
        assert_eq!(large.pieces().map(<[u8]>::len).sum::<usize>(), large.len());
        drop(large);
        push(&mut other, PIECE).unwrap();
        drop(other);
        assert_eq!(memory.used(), 0);
    }
}
