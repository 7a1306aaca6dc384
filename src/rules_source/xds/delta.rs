//! The dialect in which a control plane tells what changes ("incremental").
//!
//! Called by `client` with a channel. What was told is held beyond the end of a stream, so that the next one
//! can begin with the names and versions that are there, and learns of what was removed meanwhile. A response
//! that is refused is held as well: a control plane that repairs one bad resource does not send the good ones
//! again that came with it.

use std::collections::BTreeMap;

use prost_types::Any;
use tonic::{Status, transport::Channel};

use super::{
    client::Subscriber,
    resource::{self, TYPE_URL},
    session::{INTERNAL, Session, Update},
    stream::{self, Received},
    weigh,
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

/// The resources that there are by what was told, by name.
pub(super) type Held = BTreeMap<String, Resource>;

/// A resource and its version.
pub(super) struct Resource {
    version: String,
    config: Result<RateLimitConfig, Diagnostic>,
    /// How many messages it holds, itself included.
    weight: usize,
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
    let mut responses = stream::open(channel, subscriber, outbox).await?;
    while let Some(received) = responses.message().await? {
        let error_detail = session.judge_or_refuse(judge(session, &received, held)).await.err();
        let is_lost = error_detail.as_ref().is_some_and(|status| status.code == INTERNAL);
        let response_nonce = received.response.nonce;
        let answer = DeltaDiscoveryRequest { response_nonce, error_detail, ..ask() };
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
    received: &Received<DeltaDiscoveryResponse>,
    held: &mut Held,
) -> Result<(), google::rpc::Status> {
    let response = &received.response;
    let mut diagnostics: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    diagnostics
        .extend(received.is_too_much.then(|| resource::too_much("the response", session.max_values())));
    if diagnostics.is_empty() && !change(held, response, session.max_values()) {
        diagnostics.push(resource::too_much("the control plane", session.max_values()));
    }
    let (mut resources, version) = (Vec::with_capacity(held.len()), &response.system_version_info);
    for Resource { config, .. } in held.values() {
        match config {
            Ok(config) => resources.push(config),
            Err(diagnostic) => diagnostics.push(diagnostic.clone()),
        }
    }
    session.judge(Update { version, resources, diagnostics }).await
}

/// Takes the changes into what is held; false when not even the names of all resources fit.
///
/// A resource that does not fit beside the others is held as an error, until it comes again: without its
/// version, so that it does when the next stream begins.
fn change(held: &mut Held, response: &DeltaDiscoveryResponse, most: usize) -> bool {
    for removed in &response.removed_resources {
        held.remove(removed);
    }
    let mut room = most.saturating_sub(held.values().map(|resource| resource.weight).sum());
    let nothing = Any::default();
    for told in &response.resources {
        room = room.saturating_add(held.remove(&told.name).map_or(0, |before| before.weight));
        let name = || cut_display(format_args!("resource {}", told.name.escape_debug()));
        let any = told.resource.as_ref().unwrap_or(&nothing);
        let resource = match weigh::weight(any, room) {
            Some(weight) => {
                Resource { version: told.version.clone(), config: resource::read(name, any), weight }
            }
            None if room == 0 => return false,
            None => {
                Resource { version: String::new(), config: Err(resource::too_much(&name(), most)), weight: 1 }
            }
        };
        room = room.saturating_sub(resource.weight);
        held.insert(told.name.clone(), resource);
    }
    true
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
        change(&mut held, &response(vec![told("a", config("a")), told("b", config("b"))], &[]), 100);
        change(
            &mut held,
            &response(vec![told("a", vec![0xff]), told("c", config("c"))], &["b", "unknown"]),
            100,
        );
        assert_eq!(shown(&held), [("a", false), ("c", true)]);
        change(&mut held, &response(vec![told("a", config("a"))], &[]), 100);
        assert_eq!(shown(&held), [("a", true), ("c", true)]);
        change(
            &mut held,
            &response(vec![v3::Resource { name: "a".to_owned(), ..v3::Resource::default() }], &[]),
            100,
        );
        assert_eq!(shown(&held), [("a", false), ("c", true)]);
    }

    #[test]
    fn a_resource_that_does_not_fit_beside_the_others_is_refused_until_it_does() {
        // One message for the resource, and one for each descriptor.
        let of = |descriptors: usize| [0x1a, 2, 0x0a, 0].repeat(descriptors);
        let mut held = Held::new();
        assert!(change(&mut held, &response(vec![told("a", of(5)), told("b", of(3))], &[]), 10));
        assert_eq!(shown(&held), [("a", true), ("b", true)]);
        // What is replaced makes room for what replaces it, one below the bound, at it, and above it.
        for (descriptors, fits) in [(4, true), (5, true), (6, false), (5, true)] {
            assert!(change(&mut held, &response(vec![told("a", of(descriptors))], &[]), 10));
            assert_eq!(shown(&held), [("a", fits), ("b", true)], "{descriptors}");
        }
        // Names alone fill it at last, and nothing grows from then on.
        let many = (0..20).map(|n| told(&n.to_string(), Vec::new())).collect();
        assert!(!change(&mut held, &response(many, &["a"]), 10));
        assert_eq!(held.len(), 7);
        assert!(change(&mut held, &response(Vec::new(), &["b"]), 10));
        assert!(change(&mut held, &response(vec![told("c", of(3))], &[]), 10));
        assert!(held.values().all(|resource| resource.config.is_ok()));
    }
}
