//! The dialect in which a control plane tells what changes ("incremental").
//!
//! Called by `client` with a channel. What was told is held beyond the end of a stream, so that the next one
//! can begin with the names and versions that are there, and learns of what was removed meanwhile. A response
//! that is refused is held as well: a control plane that repairs one bad resource does not send the good ones
//! again that came with it.

use std::collections::BTreeMap;

use prost_types::Any;
use tonic::{Request, Status, codegen::tokio_stream::wrappers::ReceiverStream, transport::Channel};

use super::{
    client::{Subscriber, client},
    resource::{self, TYPE_URL},
    session::{INTERNAL, Session, Update},
};
use crate::{
    proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
        google,
        ratelimit::config::ratelimit::v3::RateLimitConfig,
    },
    rules::Diagnostic,
};

/// The resources that there are by what was told, by name.
pub(super) type Held = BTreeMap<String, Resource>;

/// A resource and its version.
pub(super) struct Resource {
    version: String,
    config: Result<RateLimitConfig, Diagnostic>,
}

/// Takes responses and answers them until the stream ends.
pub(super) async fn talk<T>(
    channel: Channel,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
    held: &mut Held,
) -> Result<(), Status> {
    let (asks, outbox) = tokio::sync::mpsc::channel(1);
    let ask = || DeltaDiscoveryRequest {
        node: Some(subscriber.node.clone()),
        type_url: TYPE_URL.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let versions = held.iter().map(|(name, resource)| (name.clone(), resource.version.clone()));
    // There is room for one, and the other end is here still.
    let _ = asks.try_send(DeltaDiscoveryRequest { initial_resource_versions: versions.collect(), ..ask() });
    let request = Request::from_parts(
        subscriber.headers.clone(),
        tonic::Extensions::new(),
        ReceiverStream::new(outbox),
    );
    let mut responses = client(channel, subscriber).delta_aggregated_resources(request).await?.into_inner();
    while let Some(response) = responses.message().await? {
        let error_detail = session.judge_or_refuse(judge(session, &response, held)).await.err();
        let is_lost = error_detail.as_ref().is_some_and(|status| status.code == INTERNAL);
        let answer = DeltaDiscoveryRequest { response_nonce: response.nonce, error_detail, ..ask() };
        if asks.send(answer).await.is_err() {
            break;
        }
        if is_lost {
            // What the response changed is only known to the control plane, which sends it again to a new stream.
            return Err(Status::internal("a response could not be read"));
        }
    }
    Ok(())
}

/// Takes a response into what is held, and has all of that served.
async fn judge<T>(
    session: &Session<'_, T>,
    response: &DeltaDiscoveryResponse,
    held: &mut Held,
) -> Result<(), google::rpc::Status> {
    let mut findings: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    if findings.is_empty() {
        change(held, response);
    }
    let (mut resources, version) = (Vec::with_capacity(held.len()), &response.system_version_info);
    for Resource { config, .. } in held.values() {
        match config {
            Ok(config) => resources.push(config),
            Err(finding) => findings.push(finding.clone()),
        }
    }
    session.judge(Update { version, resources, findings }).await
}

fn change(held: &mut Held, response: &DeltaDiscoveryResponse) {
    for removed in &response.removed_resources {
        held.remove(removed);
    }
    for told in &response.resources {
        let name = || format!("resource {}", told.name.escape_debug());
        let config = match &told.resource {
            Some(any) => resource::read(name, any),
            None => resource::read(name, &Any::default()),
        };
        held.insert(told.name.clone(), Resource { version: told.version.clone(), config });
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::envoy::service::discovery::v3;

    fn told(name: &str, value: Vec<u8>) -> v3::Resource {
        let resource = Some(Any { type_url: TYPE_URL.to_owned(), value });
        v3::Resource { name: name.to_owned(), version: "1".to_owned(), resource }
    }

    fn response(resources: Vec<v3::Resource>, removed: &[&str]) -> DeltaDiscoveryResponse {
        let removed_resources = removed.iter().map(ToString::to_string).collect();
        DeltaDiscoveryResponse { resources, removed_resources, ..DeltaDiscoveryResponse::default() }
    }

    /// What is held: names, and whether each could be read.
    fn shown(held: &Held) -> Vec<(&str, bool)> {
        held.iter().map(|(name, resource)| (name.as_str(), resource.config.is_ok())).collect()
    }

    #[test]
    fn what_came_beside_a_bad_resource_is_there_when_that_is_repaired() {
        let config = |domain: &str| {
            RateLimitConfig { domain: domain.to_owned(), ..RateLimitConfig::default() }.encode_to_vec()
        };
        let mut held = Held::new();
        change(&mut held, &response(vec![told("a", config("a")), told("b", config("b"))], &[]));
        change(&mut held, &response(vec![told("a", vec![0xff]), told("c", config("c"))], &["b", "unknown"]));
        assert_eq!(shown(&held), [("a", false), ("c", true)]);
        change(&mut held, &response(vec![told("a", config("a"))], &[]));
        assert_eq!(shown(&held), [("a", true), ("c", true)]);
        change(
            &mut held,
            &response(vec![v3::Resource { name: "a".to_owned(), ..v3::Resource::default() }], &[]),
        );
        assert_eq!(shown(&held), [("a", false), ("c", true)]);
    }
}
