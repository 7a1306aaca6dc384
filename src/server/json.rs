//! `POST /json`: the same question and answer in protobuf's JSON mapping, for callers without gRPC.
//!
//! Both forms of a field's name are read, and numbers that come as text; unknown fields are refused.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};

use super::{
    health::Health,
    http::{Answer, text, typed},
    told,
};
use crate::{
    limiter::{self, Code, Limiter, Refusal, Trail},
    panics,
    proto::{
        self,
        envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
    spans::{OpenSpan, Tracer},
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

impl From<Refusal> for NotDecided {
    fn from(refusal: Refusal) -> Self {
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
            Ok(answer) => (answered(answer), None),
            Err(NotDecided::BadRequest(why)) => {
                (text(StatusCode::BAD_REQUEST, format!("Bad Request: {why}\n")), Some(why))
            }
            Err(NotDecided::Unavailable(why)) => {
                (text(StatusCode::SERVICE_UNAVAILABLE, format!("Service Unavailable: {why}\n")), Some(why))
            }
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
) -> Result<limiter::Answer, NotDecided> {
    panics::point("json");
    let message = read(body).map_err(NotDecided::BadRequest)?;
    let request = limiter::Request::from(&message);
    let Some(span) = span else {
        return Ok(limiter.decide(&request, None).await?);
    };
    let mut trail = Trail::default();
    let decided = limiter.decide_traced(&request, None, &mut trail).await;
    told::tell(span, &request, decided.as_ref().ok(), &trail);
    Ok(decided?)
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

/// Reads a request in protobuf's JSON mapping.
///
/// # Errors
/// When the text is no such request; the text says where.
pub fn read(body: &[u8]) -> Result<RateLimitRequest, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = descriptor("envoy.service.ratelimit.v3.RateLimitRequest")?;
    let read = DynamicMessage::deserialize_with_options(message, &mut json, &options)
        .and_then(|message| json.end().map(|()| message))
        .map_err(|error| error.to_string())?;
    read.transcode_to().map_err(|error| error.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms_of_names_and_numbers_as_text() {
        for json in [
            r#"{"domain":"d","hitsAddend":"2","descriptors":[{"entries":[{"key":"k"}],"hits_addend":3}]}"#,
            r#"{"domain":"d","hits_addend":2.0,"descriptors":[{"entries":[{"key":"k"}],"hitsAddend":"3"}]}"#,
        ] {
            let request = read(json.as_bytes()).unwrap();
            assert_eq!((request.hits_addend, request.descriptors[0].hits_addend), (2, Some(3)), "{json}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (json, told) in [
            (r#"{"domian":"d"}"#, "domian"),
            (r#"{"domain":"d"} x"#, "trailing"),
            (r#"{"domain":1}"#, "expected a string at line 1"),
            (r#"{"descriptors":[{"limit":{"unit":"WEEK"}}]}"#, "WEEK"),
            ("[]", "map"),
            ("", "EOF"),
        ] {
            let error = read(json.as_bytes()).unwrap_err();
            assert!(error.contains(told), "{json}: {error}");
        }
    }
}
