//! The dialect in which a control plane tells what changes ("incremental").
//!
//! Called by `client` with a channel. What was told is held beyond the end of a stream, so that the next one
//! can begin with the names and versions that are there, and learns of what was removed meanwhile. A
//! response that is refused changes nothing of what is held.

use std::{collections::BTreeMap, sync::Arc};

use tonic::{Request, Status, codegen::tokio_stream::wrappers::ReceiverStream, transport::Channel};

use super::{
    client::{Subscriber, client},
    resource::{self, TYPE_URL},
    session::{Session, Update},
};
use crate::proto::{
    envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
    google,
    ratelimit::config::ratelimit::v3::RateLimitConfig,
};

/// The resources that were told and accepted, by name.
pub(super) type Held = BTreeMap<String, Resource>;

/// A resource and its version.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Resource {
    version: String,
    config: Arc<RateLimitConfig>,
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
        let error_detail = judge(session, &response, held).await.err();
        let answer = DeltaDiscoveryRequest { response_nonce: response.nonce, error_detail, ..ask() };
        if asks.send(answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Has what a response makes of the held resources served, and holds it if it is.
async fn judge<T>(
    session: &Session<'_, T>,
    response: &DeltaDiscoveryResponse,
    held: &mut Held,
) -> Result<(), google::rpc::Status> {
    let mut findings: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    let mut changed = held.clone();
    for removed in &response.removed_resources {
        changed.remove(removed);
    }
    for told in &response.resources {
        let name = || format!("resource {}", told.name.escape_debug());
        let any = told.resource.clone().unwrap_or_default();
        match resource::read(name, &any) {
            Ok(config) => {
                let resource = Resource { version: told.version.clone(), config: Arc::new(config) };
                changed.insert(told.name.clone(), resource);
            }
            Err(finding) => findings.push(finding),
        }
    }
    let resources = changed.values().map(|resource| &*resource.config).collect();
    let version = &response.system_version_info;
    session.judge(Update { version, resources, findings }).await?;
    *held = changed;
    Ok(())
}
