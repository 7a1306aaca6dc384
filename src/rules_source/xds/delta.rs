//! The protocol variant in which responses have only changes ("incremental").
//!
//! `client` calls it with a channel. The known resources outlive a stream, so that the next one
//! can begin with the names and versions that are there, and learns of what was removed meanwhile. A response
//! that is rejected is kept as well: a control plane that repairs one bad resource does not send the good ones
//! again that came with it.

use std::collections::BTreeMap;

use prost_types::Any;
use tonic::{Status, transport::Channel};

use super::{
    client::Subscriber,
    message_count,
    resource::{self, TYPE_URL},
    session::{INTERNAL, Session, Update},
    stream::{self, Received},
};
use crate::{
    proto::{
        envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
        google,
        ratelimit::config::ratelimit::v3::RateLimitConfig,
    },
    rules::Diagnostic,
    text::cut_display,
};

/// The resources of the control plane by name.
pub(super) type Known = BTreeMap<String, Resource>;

/// A resource and its version.
pub(super) struct Resource {
    version: String,
    config: Result<RateLimitConfig, Diagnostic>,
    /// How many messages it has, itself included.
    weight: usize,
}

/// Acknowledges or rejects responses until the stream ends.
pub(super) async fn process<T>(
    channel: Channel,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
    known: &mut Known,
) -> Result<(), Status> {
    let (requests, outbox) = tokio::sync::mpsc::channel(1);
    let request = || DeltaDiscoveryRequest {
        node: Some(subscriber.node.clone()),
        type_url: TYPE_URL.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    let versions = known.iter().map(|(name, resource)| (name.clone(), resource.version.clone()));
    // The channel has room for one, and the receiver still exists.
    let _ = requests
        .try_send(DeltaDiscoveryRequest { initial_resource_versions: versions.collect(), ..request() });
    let mut responses = stream::open(channel, subscriber, outbox).await?;
    while let Some(received) = responses.message().await? {
        let error_detail = session.guarded(apply(session, &received, known)).await.err();
        let is_lost = error_detail.as_ref().is_some_and(|status| status.code == INTERNAL);
        let response_nonce = received.response.nonce;
        let answer = DeltaDiscoveryRequest { response_nonce, error_detail, ..request() };
        if requests.send(answer).await.is_err() {
            break;
        }
        if is_lost {
            // What the response changed is only known to the control plane, which sends it again to a new stream.
            return Err(Status::internal("a response could not be read"));
        }
    }
    Ok(())
}

/// Applies a response to the known resources, and serves them all.
async fn apply<T>(
    session: &Session<'_, T>,
    received: &Received<DeltaDiscoveryResponse>,
    known: &mut Known,
) -> Result<(), google::rpc::Status> {
    let response = &received.response;
    let mut diagnostics: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    diagnostics
        .extend(received.is_too_much.then(|| resource::too_much("the response", session.max_values())));
    if diagnostics.is_empty() && !change(known, response, session.max_values()) {
        diagnostics.push(resource::too_much("the control plane", session.max_values()));
    }
    let (mut resources, version) = (Vec::with_capacity(known.len()), &response.system_version_info);
    for Resource { config, .. } in known.values() {
        match config {
            Ok(config) => resources.push(config),
            Err(diagnostic) => diagnostics.push(diagnostic.clone()),
        }
    }
    session.apply(Update { version, resources, diagnostics }).await
}

/// Applies the changes to the known resources; false when not even the names of all resources fit.
///
/// A resource that does not fit beside the others is kept as an error, until it is sent again: without its
/// version, so that it does when the next stream begins.
fn change(known: &mut Known, response: &DeltaDiscoveryResponse, max: usize) -> bool {
    for removed in &response.removed_resources {
        known.remove(removed);
    }
    let mut room = max.saturating_sub(known.values().map(|resource| resource.weight).sum());
    let nothing = Any::default();
    for sent in &response.resources {
        room = room.saturating_add(known.remove(&sent.name).map_or(0, |before| before.weight));
        let name = || cut_display(format_args!("resource {}", sent.name.escape_debug()));
        let any = sent.resource.as_ref().unwrap_or(&nothing);
        let resource = match message_count::weight(any, room) {
            Some(weight) => {
                Resource { version: sent.version.clone(), config: resource::read(name, any), weight }
            }
            None if room == 0 => return false,
            None => {
                Resource { version: String::new(), config: Err(resource::too_much(&name(), max)), weight: 1 }
            }
        };
        room = room.saturating_sub(resource.weight);
        known.insert(sent.name.clone(), resource);
    }
    true
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::envoy::service::discovery::v3;

    fn sent(name: &str, value: Vec<u8>) -> v3::Resource {
        let resource = Some(Any { type_url: TYPE_URL.to_owned(), value });
        v3::Resource { name: name.to_owned(), version: "1".to_owned(), resource }
    }

    fn response(resources: Vec<v3::Resource>, removed: &[&str]) -> DeltaDiscoveryResponse {
        let removed_resources = removed.iter().map(ToString::to_string).collect();
        DeltaDiscoveryResponse { resources, removed_resources, ..DeltaDiscoveryResponse::default() }
    }

    /// The known resources: names, and whether each could be read.
    fn shown(known: &Known) -> Vec<(&str, bool)> {
        known.iter().map(|(name, resource)| (name.as_str(), resource.config.is_ok())).collect()
    }

    #[test]
    fn what_came_beside_a_bad_resource_is_there_when_that_is_repaired() {
        let config = |domain: &str| {
            RateLimitConfig { domain: domain.to_owned(), ..RateLimitConfig::default() }.encode_to_vec()
        };
        let mut known = Known::new();
        change(&mut known, &response(vec![sent("a", config("a")), sent("b", config("b"))], &[]), 100);
        change(
            &mut known,
            &response(vec![sent("a", vec![0xff]), sent("c", config("c"))], &["b", "unknown"]),
            100,
        );
        assert_eq!(shown(&known), [("a", false), ("c", true)]);
        change(&mut known, &response(vec![sent("a", config("a"))], &[]), 100);
        assert_eq!(shown(&known), [("a", true), ("c", true)]);
        change(
            &mut known,
            &response(vec![v3::Resource { name: "a".to_owned(), ..v3::Resource::default() }], &[]),
            100,
        );
        assert_eq!(shown(&known), [("a", false), ("c", true)]);
    }

    #[test]
    fn a_resource_that_does_not_fit_beside_the_others_is_refused_until_it_does() {
        // One message for the resource, and one for each descriptor.
        let of = |descriptors: usize| [0x1a, 2, 0x0a, 0].repeat(descriptors);
        let mut known = Known::new();
        assert!(change(&mut known, &response(vec![sent("a", of(5)), sent("b", of(3))], &[]), 10));
        assert_eq!(shown(&known), [("a", true), ("b", true)]);
        // What is replaced makes room for what replaces it, one below the bound, at it, and above it.
        for (descriptors, fits) in [(4, true), (5, true), (6, false), (5, true)] {
            assert!(change(&mut known, &response(vec![sent("a", of(descriptors))], &[]), 10));
            assert_eq!(shown(&known), [("a", fits), ("b", true)], "{descriptors}");
        }
        // Names alone fill it at last, and nothing grows from then on.
        let many = (0..20).map(|n| sent(&n.to_string(), Vec::new())).collect();
        assert!(!change(&mut known, &response(many, &["a"]), 10));
        assert_eq!(known.len(), 7);
        assert!(change(&mut known, &response(Vec::new(), &["b"]), 10));
        assert!(change(&mut known, &response(vec![sent("c", of(3))], &[]), 10));
        assert!(known.values().all(|resource| resource.config.is_ok()));
    }
}
