//! A blocking gRPC client.

use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::PATIENCE;

/// One connection to a rate limit service.
pub struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects to `http://host:port` or to `unix:/path`.
    pub fn connect(address: &str) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
        let endpoint =
            Endpoint::from_shared(address.to_owned()).map_err(|error| format!("{address}: {error}"))?;
        let endpoint = endpoint.timeout(PATIENCE);
        let connected = runtime.block_on(async {
            let channel = endpoint.connect().await;
            // The task of the connection sends the rest of the preface. It runs only during calls, and a service closes
            // a connection that has no preface after ten seconds.
            yield_now().await;
            channel
        });
        let channel = connected.map_err(|error| format!("{address}: {error:?}"))?;
        Ok(Self { runtime, channel })
    }

    /// Calls `ShouldRateLimit`.
    pub fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.call(
            |channel| async move { RateLimitServiceClient::new(channel).should_rate_limit(request).await },
        )
        .map(tonic::Response::into_inner)
    }

    /// Makes any call on the connection.
    pub fn call<F: Future>(&self, call: impl FnOnce(Channel) -> F) -> F::Output {
        self.runtime.block_on(call(self.channel.clone()))
    }
}

/// A request for `domain` with these descriptors, each a list of keys and values.
pub fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

/// A descriptor of these keys and values.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

/// The dynamic metadata of a response.
pub fn metadata(answer: &RateLimitResponse) -> serde_json::Value {
    fn value(one: &prost_types::Value) -> serde_json::Value {
        use prost_types::value::Kind;
        match one.kind.as_ref() {
            Some(Kind::NumberValue(number)) => (*number).into(),
            Some(Kind::StringValue(text)) => text.clone().into(),
            Some(Kind::BoolValue(flag)) => (*flag).into(),
            Some(Kind::StructValue(map)) => fields(map),
            Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
            Some(Kind::NullValue(_)) | None => serde_json::Value::Null,
        }
    }
    fn fields(map: &prost_types::Struct) -> serde_json::Value {
        map.fields
            .iter()
            .map(|(key, one)| (key.clone(), value(one)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
    answer.dynamic_metadata.as_ref().map_or(serde_json::Value::Null, fields)
}

/// The identity in a response, which only one that passes has.
pub fn hold_id(answer: &RateLimitResponse) -> Option<String> {
    let id = metadata(answer)["hold"].as_str().map(str::to_owned)?;
    assert_eq!(answer.overall_code(), Code::Ok, "{id}");
    let is_opaque = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    assert!((22..=128).contains(&id.len()) && id.bytes().all(is_opaque), "{id}");
    Some(id)
}
