//! The protocol variant in which each response has all resources ("state of the world").
//!
//! `client` calls it with a channel. A stream begins without a version, though one may have been accepted on
//! an earlier stream: a control plane that counts its versions from 1 at each start would recognise an old number
//! as its own, and never send its current rules.

use tonic::{Status, transport::Channel};

use super::{
    client::Subscriber,
    resource::{self, TYPE_URL},
    session::{Session, Update},
    stream::{self, Received},
};
use crate::proto::{
    envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
    google,
};

/// Acknowledges or rejects responses until the stream ends.
pub(super) async fn process<T>(
    channel: Channel,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
) -> Result<(), Status> {
    let (requests, outbox) = tokio::sync::mpsc::channel(1);
    let request = || DiscoveryRequest {
        node: Some(subscriber.node.clone()),
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    };
    // The channel has room for one, and the receiver still exists.
    let _ = requests.try_send(request());
    let mut responses = stream::open(channel, subscriber, outbox).await?;
    let mut accepted = String::new();
    while let Some(received) = responses.message().await? {
        let error_detail = session.guarded(apply(session, &received)).await.err();
        let response: DiscoveryResponse = received.response;
        if error_detail.is_none() {
            accepted = response.version_info;
        }
        let answer = DiscoveryRequest {
            version_info: accepted.clone(),
            response_nonce: response.nonce,
            error_detail,
            ..request()
        };
        if requests.send(answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn apply<T>(
    session: &Session<'_, T>,
    received: &Received<DiscoveryResponse>,
) -> Result<(), google::rpc::Status> {
    let response = &received.response;
    let mut diagnostics: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    diagnostics
        .extend(received.is_too_much.then(|| resource::too_much("the response", session.max_values())));
    let mut resources = Vec::with_capacity(response.resources.len());
    for (index, any) in response.resources.iter().enumerate() {
        match resource::read(|| format!("resource {} of the response", index.saturating_add(1)), any) {
            Ok(resource) => resources.push(resource),
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    let resources = resources.iter().collect();
    session.apply(Update { version: &response.version_info, resources, diagnostics }).await
}
