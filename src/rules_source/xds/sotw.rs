//! The dialect in which a control plane tells all resources each time ("state of the world").
//!
//! Called by `client` with a channel. A stream begins without a version, though one may have been accepted on
//! an earlier stream: a control plane that counts its versions from 1 at each start would take an old number
//! for its own, and never send what it has now.

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

/// Takes responses and answers them until the stream ends.
pub(super) async fn talk<T>(
    channel: Channel,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
) -> Result<(), Status> {
    let (asks, outbox) = tokio::sync::mpsc::channel(1);
    let ask = || DiscoveryRequest {
        node: Some(subscriber.node.clone()),
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    };
    // There is room for one, and the other end is here still.
    let _ = asks.try_send(ask());
    let mut responses = stream::open(channel, subscriber, outbox).await?;
    let mut accepted = String::new();
    while let Some(received) = responses.message().await? {
        let error_detail = session.judge_or_refuse(judge(session, &received)).await.err();
        let response: DiscoveryResponse = received.response;
        if error_detail.is_none() {
            accepted = response.version_info;
        }
        let answer = DiscoveryRequest {
            version_info: accepted.clone(),
            response_nonce: response.nonce,
            error_detail,
            ..ask()
        };
        if asks.send(answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn judge<T>(
    session: &Session<'_, T>,
    received: &Received<DiscoveryResponse>,
) -> Result<(), google::rpc::Status> {
    let response = &received.response;
    let mut findings: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    findings.extend(received.is_too_much.then(|| resource::too_much("the response", session.max_values())));
    let mut resources = Vec::with_capacity(response.resources.len());
    for (at, any) in response.resources.iter().enumerate() {
        match resource::read(|| format!("resource {} of the response", at.saturating_add(1)), any) {
            Ok(resource) => resources.push(resource),
            Err(finding) => findings.push(finding),
        }
    }
    let resources = resources.iter().collect();
    session.judge(Update { version: &response.version_info, resources, findings }).await
}
