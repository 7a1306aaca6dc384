//! `POST /json`: requests and responses in protobuf's JSON mapping, for callers without gRPC.
//!
//! `prost-reflect` converts both; `request` bounds what it reads.

mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header, request::Parts};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use prost_reflect::DynamicMessage;
use tokio::{sync::Semaphore, task::spawn_blocking};

use self::request::to_message;
use super::{Answer, BodyLimit, Handler, text, typed, with_length};
use crate::{
    health::Health,
    log_undecodable, traced,
    wire::{self, DecisionRpc},
};
use exporters::tracing::{OpenSpan, Tracer};
use faults::panics::{self, Boundary};
use limiter::{self, Bounds, Code, Decided, HoldToken, Limiter, RequestError};
use recent::{KeyValues, Quoting};
use text::cut;

/// The size from which a body is read, and a response written, on another thread: that takes up to 50 ns a byte, and
/// probes wait meanwhile.
const LARGE: usize = 2 * 1024;

static TURN: Semaphore = Semaphore::const_new(1);

/// Why a request was not decided: the status of the response, and the reason.
struct NotDecided(StatusCode, Quoting);

impl From<RequestError> for NotDecided {
    fn from(error: RequestError) -> Self {
        let is_unavailable = error.is_unavailable();
        let status = if is_unavailable { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::BAD_REQUEST };
        Self(status, Quoting::new(error.to_string()))
    }
}

/// The endpoints of the HTTP port: `/healthcheck`, and `/json` if it is enabled.
pub struct Endpoints {
    pub health: Arc<Health>,
    /// The state of the parts, also of those that health ignores: a line each, for `?verbose`.
    pub details: Box<dyn Fn() -> Vec<String> + Send + Sync>,
    pub limiter: Arc<Limiter>,
    pub tracer: Option<Arc<Tracer>>,
    pub has_json: bool,
    pub key_values: KeyValues,
    pub max_request_bytes: usize,
}

/// What a request to the port asks for.
pub enum Asked {
    Health { verbose: bool },
    Decision,
}

impl Handler for Endpoints {
    type Asked = Asked;

    fn admit(&self, head: &Parts) -> Result<(Asked, BodyLimit), Answer> {
        match head.uri.path() {
            "/healthcheck" => {
                let verbose = head.uri.query() == Some("verbose");
                Ok((Asked::Health { verbose }, BodyLimit::NOTHING))
            }
            "/json" if !self.has_json => {
                Err(text(StatusCode::NOT_FOUND, "Not Found: /json is disabled (JSON_ENABLED)\n"))
            }
            // Browsers send GET for any page, so GET must not count.
            "/json" if matches!(head.method, Method::GET | Method::HEAD) => {
                let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed: use POST\n");
                answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
                Err(answer)
            }
            "/json" => {
                let limit = BodyLimit { bytes: self.max_request_bytes, name: "GRPC_MAX_REQUEST_BYTES" };
                Ok((Asked::Decision, limit))
            }
            _ => Err(text(StatusCode::NOT_FOUND, "Not found. Endpoints: GET /healthcheck, POST /json.\n")),
        }
    }

    async fn answer(self: Arc<Self>, asked: Asked, request: Request<Bytes>) -> Answer {
        match asked {
            Asked::Health { verbose } => healthcheck(&self, verbose),
            Asked::Decision => respond(&self, &request).await,
        }
    }
}

/// 200 `OK`, or 500 with a line for each unhealthy part; if `verbose`, followed by the state of all parts.
fn healthcheck(endpoints: &Endpoints, verbose: bool) -> Answer {
    let unhealthy = endpoints.health.unhealthy();
    let mut lines: Vec<String> = unhealthy.iter().map(|part| part.name().to_owned()).collect();
    let status = if lines.is_empty() { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    if lines.is_empty() && !verbose {
        return text(status, "OK");
    }
    if verbose {
        lines.insert(0, if unhealthy.is_empty() { "OK" } else { "unhealthy" }.to_owned());
        lines.extend((endpoints.details)());
    }
    text(status, lines.join("\n") + "\n")
}

async fn respond(endpoints: &Endpoints, request: &Request<Bytes>) -> Answer {
    let mut span = endpoints.tracer.as_ref().and_then(|tracer| tracer.join(request.headers(), "POST /json"));
    let decided = decide(request.body(), endpoints, span.as_deref_mut()).await;
    let (answer, error) = match decided {
        Ok(mut decided) => {
            let hold = decided.hold.take();
            let answer = answered(&decided).await;
            // Without the response the caller has no identity: the hold is cancelled.
            let hold = hold.filter(|_| !answer.status().is_server_error());
            let answer = match hold {
                Some(hold) => delivering(answer, hold),
                None => answer,
            };
            (answer, None)
        }
        Err(NotDecided(status, why)) => {
            let reason = status.canonical_reason().unwrap_or_default();
            let is_own = status.is_server_error();
            let traced = if is_own { why.for_caller() } else { why.logged(endpoints.key_values) };
            (text(status, format!("{reason}: {}\n", cut(why.for_caller()))), Some(traced.to_owned()))
        }
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

async fn decide(
    body: &Bytes,
    Endpoints { limiter, key_values, .. }: &Endpoints,
    mut span: Option<&mut OpenSpan>,
) -> Result<limiter::Answer, NotDecided> {
    panics::point("json");
    let message = read(body, limiter.policy().bounds, *key_values).await?;
    let mut request = limiter::Request::default();
    let read =
        wire::read_escaped(DecisionRpc::ShouldRateLimit, &message, limiter.policy().bounds, &mut request);
    #[expect(clippy::expect_used, reason = "prost-reflect has encoded it")]
    read.expect("an encoded request can be decoded");
    match traced::try_decide(limiter, span.as_deref_mut(), &request, limiter.now(), None)? {
        Decided::Answer(answer) => Ok(answer),
        Decided::Wait(waiting) => Ok(traced::concluded(span, waiting.await)?),
    }
}

async fn read(body: &Bytes, bounds: Bounds, values: KeyValues) -> Result<Vec<u8>, NotDecided> {
    let bytes = body.clone();
    let read = run(body.len(), move || to_message(&bytes, bounds)).await?;
    read.map_err(|why| {
        let why = Quoting::new(why);
        log_undecodable(why.logged(values));
        NotDecided(StatusCode::BAD_REQUEST, why)
    })
}

async fn answered(answer: &limiter::Answer) -> Answer {
    let status = match answer.code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    let mut encoded = Vec::new();
    wire::encode(answer, &mut encoded);
    match run(encoded.len(), move || write(&encoded)).await {
        Ok(Ok(json)) => typed(status, "application/json", json),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
        Err(NotDecided(status, why)) => text(status, why.for_caller().to_owned()),
    }
}

/// Runs work on so many bytes, on another thread if they are many.
async fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotDecided> {
    if bytes < LARGE {
        return Ok(work());
    }
    // One at a time: the others wait, and not the pages that further threads render.
    let _turn = TURN.acquire().await;
    match spawn_blocking(|| panics::catch(Boundary::HttpRequest, work)).await {
        Ok(Ok(done)) => Ok(done),
        _ => Err(NotDecided(StatusCode::INTERNAL_SERVER_ERROR, Quoting::new("the log has the details"))),
    }
}

/// A response whose hold is delivered when the connection takes its bytes, and cancelled if that is gone before.
fn delivering(answer: Answer, hold: Box<HoldToken>) -> Answer {
    let length = answer.body().size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut hold = Some(hold);
    let deliver = move |frame| {
        if let Some(hold) = hold.take() {
            hold.delivered();
        }
        frame
    };
    let answer = answer.map(|body| body.map_frame(deliver).boxed_unsync());
    match length {
        Some(length) => with_length(answer, length),
        None => answer,
    }
}

/// A response in protobuf's JSON mapping. No response of this service causes an error.
fn write(encoded: &[u8]) -> Result<Bytes, String> {
    let descriptor = proto::descriptor("envoy.service.ratelimit.v3.RateLimitResponse")?;
    let message = DynamicMessage::decode(descriptor, encoded).map_err(|error| error.to_string())?;
    serde_json::to_vec(&message).map(Bytes::from).map_err(|error| error.to_string())
}

#[cfg(any(test, feature = "testing"))]
pub fn fuzz(bytes: &[u8]) {
    request::fuzz(bytes);
}
