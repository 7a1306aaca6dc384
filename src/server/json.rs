//! `POST /json`: the same question and answer in protobuf's JSON mapping, for callers without gRPC.
//!
//! Both forms of a field's name are read, and numbers that come as text; unknown fields are refused.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};

use super::{
    health::Health,
    http::{Answer, read_body, text, typed},
    told,
};
use crate::{
    limiter::{self, Code, Limiter, Trail},
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
    let message = read(body)?;
    let request = limiter::Request::from(&message);
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
    text(StatusCode::BAD_REQUEST, format!("Bad Request: {why}\n"))
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
