//! A blocking gRPC client.

use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
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
pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects to `http://host:port` or to `unix:/path`.
    pub(crate) fn connect(address: &str) -> Result<Self, String> {
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
    pub(crate) fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.call(
            |channel| async move { RateLimitServiceClient::new(channel).should_rate_limit(request).await },
        )
        .map(tonic::Response::into_inner)
    }

    /// Makes any call on the connection.
    pub(crate) fn call<F: Future>(&self, call: impl FnOnce(Channel) -> F) -> F::Output {
        self.runtime.block_on(call(self.channel.clone()))
    }
}

/// A request for `domain` with these descriptors, each a list of keys and values.
pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

/// A descriptor of these keys and values.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}
