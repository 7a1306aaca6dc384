//! The protocol variant in which responses contain only changes ("incremental").
//!
//! The known resources outlive a stream: the next one begins with their names and versions, so that the control plane
//! sends only what changed or was removed meanwhile. Resources of a rejected response are kept as well: a control plane
//! that repairs one bad resource does not send the good ones of that response again.

use std::collections::BTreeMap;

use prost_types::Any;

use super::{
    message_count::{self, Field},
    resource::{self, TYPE_URL},
    session::{Session, Update},
    stream::{Head, Received, Variant},
};
use proto::{
    envoy::{
        config::core::v3::Node,
        service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
    },
    google,
    ratelimit::config::ratelimit::v3::RateLimitConfig,
};
use rules::Diagnostic;
use text::cut_display;

/// The resources of the control plane by name.
#[derive(Default)]
pub(super) struct Delta(BTreeMap<String, Resource>);

struct Resource {
    version: String,
    config: Result<RateLimitConfig, Diagnostic>,
    /// The number of messages, including itself.
    messages: usize,
}

impl Variant for Delta {
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;
    const METHOD: &'static str =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
    const RESPONSE_FIELDS: &'static [Field] = &message_count::DELTA_RESPONSE;
    const IS_INCREMENTAL: bool = true;

    fn subscribe(&self, node: Node) -> DeltaDiscoveryRequest {
        let versions = self.0.iter().map(|(name, resource)| (name.clone(), resource.version.clone()));
        DeltaDiscoveryRequest { initial_resource_versions: versions.collect(), ..request(node) }
    }

    fn without_resources(Head { version, type_url, nonce }: Head) -> DeltaDiscoveryResponse {
        let system_version_info = version;
        DeltaDiscoveryResponse { system_version_info, type_url, nonce, ..DeltaDiscoveryResponse::default() }
    }

    async fn apply<T>(
        &mut self,
        session: &Session<'_, T>,
        Received { response, is_too_large }: &Received<DeltaDiscoveryResponse>,
    ) -> Result<(), google::rpc::Status> {
        let max = session.max_values();
        let mut diagnostics = resource::check_response(&response.type_url, *is_too_large, max);
        if diagnostics.is_empty() && !self.change(response, max) {
            diagnostics.push(resource::too_large("the control plane", max));
        }
        let mut resources = Vec::with_capacity(self.0.len());
        for Resource { config, .. } in self.0.values() {
            match config {
                Ok(config) => resources.push(config),
                Err(diagnostic) => diagnostics.push(diagnostic.clone()),
            }
        }
        session.apply(Update { version: &response.system_version_info, resources, diagnostics }).await
    }

    fn answer(
        &mut self,
        node: Node,
        response: DeltaDiscoveryResponse,
        error_detail: Option<google::rpc::Status>,
    ) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest { response_nonce: response.nonce, error_detail, ..request(node) }
    }
}

fn request(node: Node) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Some(node),
        type_url: TYPE_URL.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

impl Delta {
    /// Applies the changes to the known resources. False if even the names of all resources exceed `max` messages.
    ///
    /// A resource that exceeds `max` together with the others is kept as an error without a version, so that the
    /// control plane sends it again on the next stream.
    fn change(&mut self, response: &DeltaDiscoveryResponse, max: usize) -> bool {
        for removed in &response.removed_resources {
            self.0.remove(removed);
        }
        let mut room = max.saturating_sub(self.0.values().map(|resource| resource.messages).sum());
        let nothing = Any::default();
        for sent in &response.resources {
            room = room.saturating_add(self.0.remove(&sent.name).map_or(0, |before| before.messages));
            let name = || cut_display(format_args!("resource {}", sent.name.escape_debug()));
            let any = sent.resource.as_ref().unwrap_or(&nothing);
            let messages = message_count::of_resource(any);
            let resource = if messages <= room {
                Resource { version: sent.version.clone(), config: resource::decode(name, any), messages }
            } else if room > 0 {
                let config = Err(resource::too_large(&name(), max));
                Resource { version: String::new(), config, messages: 1 }
            } else {
                return false;
            };
            room = room.saturating_sub(resource.messages);
            self.0.insert(sent.name.clone(), resource);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use proto::envoy::service::discovery::v3;

    fn sent(name: &str, value: Vec<u8>) -> v3::Resource {
        let resource = Some(Any { type_url: TYPE_URL.to_owned(), value });
        v3::Resource { name: name.to_owned(), version: "1".to_owned(), resource }
    }

    fn response(resources: Vec<v3::Resource>, removed: &[&str]) -> DeltaDiscoveryResponse {
        let removed_resources = removed.iter().map(ToString::to_string).collect();
        DeltaDiscoveryResponse { resources, removed_resources, ..DeltaDiscoveryResponse::default() }
    }

    /// The names of the known resources, and whether each is valid.
    fn shown(Delta(known): &Delta) -> Vec<(&str, bool)> {
        known.iter().map(|(name, resource)| (name.as_str(), resource.config.is_ok())).collect()
    }

    #[test]
    fn keeps_good_resources_of_a_rejected_response() {
        let config = |domain: &str| {
            RateLimitConfig { domain: domain.to_owned(), ..RateLimitConfig::default() }.encode_to_vec()
        };
        let mut known = Delta::default();
        known.change(&response(vec![sent("a", config("a")), sent("b", config("b"))], &[]), 100);
        known.change(&response(vec![sent("a", vec![0xff]), sent("c", config("c"))], &["b", "unknown"]), 100);
        assert_eq!(shown(&known), [("a", false), ("c", true)]);
        known.change(&response(vec![sent("a", config("a"))], &[]), 100);
        assert_eq!(shown(&known), [("a", true), ("c", true)]);
        known.change(
            &response(vec![v3::Resource { name: "a".to_owned(), ..v3::Resource::default() }], &[]),
            100,
        );
        assert_eq!(shown(&known), [("a", false), ("c", true)]);
    }

    #[test]
    fn rejects_a_resource_until_it_fits_together_with_the_others() {
        // One message for the resource, and one for each descriptor.
        let of = |descriptors: usize| [0x1a, 2, 0x0a, 0].repeat(descriptors);
        let mut known = Delta::default();
        assert!(known.change(&response(vec![sent("a", of(5)), sent("b", of(3))], &[]), 10));
        assert_eq!(shown(&known), [("a", true), ("b", true)]);
        // A replaced resource makes room for its successor: below, at and above the limit.
        for (descriptors, fits) in [(4, true), (5, true), (6, false), (5, true)] {
            assert!(known.change(&response(vec![sent("a", of(descriptors))], &[]), 10));
            assert_eq!(shown(&known), [("a", fits), ("b", true)], "{descriptors}");
        }
        // Names alone reach the limit, and nothing grows after that.
        let many = (0..20).map(|n| sent(&n.to_string(), Vec::new())).collect();
        assert!(!known.change(&response(many, &["a"]), 10));
        assert_eq!(known.0.len(), 7);
        assert!(known.change(&response(Vec::new(), &["b"]), 10));
        assert!(known.change(&response(vec![sent("c", of(3))], &[]), 10));
        assert!(known.0.values().all(|resource| resource.config.is_ok()));
    }
}
