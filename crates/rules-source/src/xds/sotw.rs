//! The protocol variant in which each response has all resources ("state of the world").
//!
//! A stream begins without a version, even if one was accepted on an earlier stream: a control plane that numbers its
//! versions from 1 at each start would take an old number for its own, and never send its current rules.

use super::{
    message_count::{self, Field},
    resource::{self, TYPE_URL},
    session::{Session, Update},
    stream::{Head, Received, Variant},
};
use proto::{
    envoy::{
        config::core::v3::Node,
        service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
    },
    google,
};

/// The state of a stream: the last accepted version.
#[derive(Default)]
pub(super) struct Sotw(String);

impl Variant for Sotw {
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;
    const METHOD: &'static str =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    const RESPONSE_FIELDS: &'static [Field] = &message_count::RESPONSE;
    const IS_INCREMENTAL: bool = false;

    fn subscribe(&self, node: Node) -> DiscoveryRequest {
        DiscoveryRequest { node: Some(node), type_url: TYPE_URL.to_owned(), ..DiscoveryRequest::default() }
    }

    fn without_resources(Head { version, type_url, nonce }: Head) -> DiscoveryResponse {
        DiscoveryResponse { version_info: version, type_url, nonce, ..DiscoveryResponse::default() }
    }

    async fn apply<T>(
        &mut self,
        session: &Session<'_, T>,
        Received { response, is_too_large }: &Received<DiscoveryResponse>,
    ) -> Result<(), google::rpc::Status> {
        let mut diagnostics =
            resource::check_response(&response.type_url, *is_too_large, session.max_values());
        let mut resources = Vec::with_capacity(response.resources.len());
        for (index, any) in response.resources.iter().enumerate() {
            match resource::decode(|| format!("resource {} of the response", index.saturating_add(1)), any) {
                Ok(resource) => resources.push(resource),
                Err(diagnostic) => diagnostics.push(diagnostic),
            }
        }
        let resources = resources.iter().collect();
        session.apply(Update { version: &response.version_info, resources, diagnostics }).await
    }

    fn answer(
        &mut self,
        node: Node,
        response: DiscoveryResponse,
        error_detail: Option<google::rpc::Status>,
    ) -> DiscoveryRequest {
        if error_detail.is_none() {
            self.0 = response.version_info;
        }
        let (version_info, response_nonce) = (self.0.clone(), response.nonce);
        DiscoveryRequest { version_info, response_nonce, error_detail, ..self.subscribe(node) }
    }
}
