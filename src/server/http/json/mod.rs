//! `POST /json`: the same question and answer in protobuf's JSON mapping, for callers without gRPC.
//!
//! `request` reads the question; the answer is written by `prost-reflect`.

mod part;
mod request;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use crate::server::{
    health::Health,
    http::{Answer, text, typed},
    span_attributes, wire,
};
use crate::{
    limiter::{self, Code, DecisionTrace, Limiter, RequestError},
    panics, proto,
    telemetry::tracing::{OpenSpan, Tracer},
    text::cut,
};

/// What the questions are answered with.
#[derive(Clone)]
pub struct Parts {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// Whether the service is healthy.
    pub health: Arc<Health>,
    /// Where spans go, if there are any.
    pub tracer: Option<Arc<Tracer>>,
    /// `JSON_ENABLED`: answers `/json`.
    pub is_enabled: bool,
}

/// Why a request was not decided.
enum NotDecided {
    /// It is no request, or asks what cannot be.
    BadRequest(String),
    /// The service cannot answer now.
    Unavailable(String),
}

impl From<RequestError> for NotDecided {
    fn from(refusal: RequestError) -> Self {
        let why = refusal.to_string();
        if refusal.is_unavailable() { Self::Unavailable(why) } else { Self::BadRequest(why) }
    }
}

impl Parts {
    /// Answers `/healthcheck` and `/json`.
    pub async fn answer(self, request: Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/healthcheck" => healthcheck(&self.health),
            "/json" if !self.is_enabled => {
                text(StatusCode::NOT_FOUND, "Not Found: /json is off (JSON_ENABLED)\n")
            }
            // What changes something is not done for GET, which a browser sends for any page.
            "/json" if matches!(*request.method(), Method::GET | Method::HEAD) => {
                let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed: use POST\n");
                answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
                answer
            }
            "/json" => self.decide(&request).await,
            _ => text(StatusCode::NOT_FOUND, "Not found. Endpoints: GET /healthcheck, POST /json.\n"),
        }
    }

    async fn decide(&self, request: &Request<Bytes>) -> Answer {
        let mut span = self.tracer.as_ref().and_then(|tracer| tracer.join(request.headers(), "POST /json"));
        let decided = decide(request.body(), &self.limiter, span.as_deref_mut()).await;
        let (answer, error) = match decided {
            Ok(answer) => (answered(&answer), None),
            Err(NotDecided::BadRequest(why)) => {
                (text(StatusCode::BAD_REQUEST, format!("Bad Request: {}\n", cut(&why))), Some(why))
            }
            Err(NotDecided::Unavailable(why)) => (
                text(StatusCode::SERVICE_UNAVAILABLE, format!("Service Unavailable: {}\n", cut(&why))),
                Some(why),
            ),
        };
        if let Some(mut span) = span {
            span.add("http.request.method", "POST".into());
            span.add("url.path", "/json".into());
            span.add("http.response.status_code", i64::from(answer.status().as_u16()).into());
            if let Some(error) = error {
                span.fail(&error);
            }
            span.answered();
        }
        answer
    }
}

/// 200 `OK`; else why not, a line for each part that is not well.
fn healthcheck(health: &Health) -> Answer {
    let unwell = health.unwell();
    if unwell.is_empty() {
        return text(StatusCode::OK, "OK");
    }
    let why: Vec<String> = unwell.iter().map(ToString::to_string).collect();
    text(StatusCode::INTERNAL_SERVER_ERROR, why.join("\n") + "\n")
}

async fn decide(
    body: &[u8],
    limiter: &Limiter,
    span: Option<&mut OpenSpan>,
) -> Result<limiter::Answer, NotDecided> {
    panics::point("json");
    let read = request::read(body, limiter.bounds()).map_err(NotDecided::BadRequest)?;
    let request = read.to_limiter();
    let Some(span) = span else {
        return Ok(limiter.decide(&request, None, None).await?);
    };
    let mut trace = DecisionTrace::default();
    let decided = limiter.decide(&request, None, Some(&mut trace)).await;
    span_attributes::add(span, &request, decided.as_ref().ok(), &trace);
    Ok(decided?)
}

fn answered(answer: &limiter::Answer) -> Answer {
    let status = match answer.code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    match write(answer) {
        Ok(json) => typed(status, "application/json", json),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// Writes a response in protobuf's JSON mapping.
///
/// # Errors
/// When the response cannot be written, which no response of this service causes.
fn write(answer: &limiter::Answer) -> Result<Bytes, String> {
    let mut encoded = Vec::new();
    wire::encode(answer, &mut encoded);
    let descriptor = descriptor("envoy.service.ratelimit.v3.RateLimitResponse")?;
    let message = DynamicMessage::decode(descriptor, &*encoded).map_err(|error| error.to_string())?;
    serde_json::to_vec(&message).map(Bytes::from).map_err(|error| error.to_string())
}

fn descriptor(name: &str) -> Result<MessageDescriptor, String> {
    static POOL: LazyLock<Option<DescriptorPool>> =
        LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).ok());
    POOL.as_ref()
        .and_then(|pool| pool.get_message_by_name(name))
        .ok_or_else(|| format!("{name} is not among the compiled descriptors"))
}

/// A body, read by our own reader and by `prost-reflect`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    request::fuzz(bytes);
}
