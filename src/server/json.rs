//! `POST /json`: the same question and answer in protobuf's JSON mapping, for callers without gRPC.
//!
//! `request` reads the question; the answer is written by `prost-reflect`.

mod request;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use super::{
    health::Health,
    http::{Answer, read_body, text, typed},
    told,
};
use crate::{
    limiter::{self, Code, Limiter, Trail},
    panics,
    proto::{self, envoy::service::ratelimit::v3::RateLimitResponse},
    spans::{OpenSpan, Tracer},
    text::cut,
};

/// What the questions are answered with.
#[derive(Clone)]
pub struct Parts {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// Tells whether the service is fit to be asked.
    pub health: Arc<Health>,
    /// Where spans go, if there are any.
    pub tracer: Option<Arc<Tracer>>,
    /// The size of a question.
    pub max_request_bytes: usize,
}

impl Parts {
    /// Answers `/healthcheck` and `/json`.
    pub async fn answer(self, request: Request<Incoming>) -> Answer {
        match request.uri().path() {
            "/healthcheck" => healthcheck(&self.health),
            "/json" => self.decide(request).await,
            _ => text(StatusCode::NOT_FOUND, "Here are /healthcheck and /json.\n"),
        }
    }

    async fn decide(&self, request: Request<Incoming>) -> Answer {
        let mut span = self.tracer.as_ref().and_then(|tracer| tracer.join(request.headers(), "POST /json"));
        let decided = match read_body(request.into_body(), self.max_request_bytes).await {
            Ok(body) => decide(&body, &self.limiter, span.as_deref_mut()).await,
            Err(error) => Err(error),
        };
        let error = decided.as_ref().err().cloned();
        let answer = match decided {
            Ok(answer) => answered(answer),
            Err(error) => bad_request(&error),
        };
        if let Some(mut span) = span {
            span.tell("http.request.method", "POST".into());
            span.tell("url.path", "/json".into());
            span.tell("http.response.status_code", i64::from(answer.status().as_u16()).into());
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
) -> Result<limiter::Answer, String> {
    panics::point("json");
    let read = request::read(body, limiter.bounds())?;
    let request = read.to_limiter();
    let Some(span) = span else {
        return limiter.decide(&request, None).await.map_err(|refusal| refusal.to_string());
    };
    let mut trail = Trail::default();
    let decided = limiter.decide_traced(&request, None, &mut trail).await;
    told::tell(span, &request, decided.as_ref().ok(), &trail);
    decided.map_err(|refusal| refusal.to_string())
}

fn answered(answer: limiter::Answer) -> Answer {
    let status = match answer.code {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    };
    match write(&RateLimitResponse::from(answer)) {
        Ok(json) => typed(status, "application/json", json),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

fn bad_request(why: &str) -> Answer {
    text(StatusCode::BAD_REQUEST, format!("Bad Request: {}\n", cut(why)))
}

/// Writes a response in protobuf's JSON mapping.
///
/// # Errors
/// When the response cannot be written, which no response of this service causes.
pub fn write(response: &RateLimitResponse) -> Result<Bytes, String> {
    let mut message = DynamicMessage::new(descriptor("envoy.service.ratelimit.v3.RateLimitResponse")?);
    message.transcode_from(response).map_err(|error| error.to_string())?;
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
