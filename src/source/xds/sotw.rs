//! The dialect in which a control plane tells all resources each time ("state of the world").
//!
//! Called by `client` with a channel. A stream begins without a version, though one may have been accepted on
//! an earlier stream: a control plane that counts its versions from 1 at each start would take an old number
//! for its own, and never send what it has now.

use tonic::{Request, Status, codegen::tokio_stream::wrappers::ReceiverStream, transport::Channel};

use super::{
    client::{Subscriber, client},
    resource::{self, TYPE_URL},
    session::{Session, Update},
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
    let request = Request::from_parts(
        subscriber.headers.clone(),
        tonic::Extensions::new(),
        ReceiverStream::new(outbox),
    );
    let mut responses = client(channel, subscriber).stream_aggregated_resources(request).await?.into_inner();
    let mut accepted = String::new();
    while let Some(response) = responses.message().await? {
        let error_detail = session.judge_or_refuse(judge(session, &response)).await.err();
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

async fn judge<T>(session: &Session<'_, T>, response: &DiscoveryResponse) -> Result<(), google::rpc::Status> {
    let mut findings: Vec<_> = resource::check_response(&response.type_url).into_iter().collect();
    let mut resources = Vec::with_capacity(response.resources.len());
    for (at, any) in response.resources.iter().enumerate() {
        match resource::read(|| format!("resource {} of the response", at + 1), any) {
            Ok(resource) => resources.push(resource),
            Err(finding) => findings.push(finding),
        }
    }
    let resources = resources.iter().collect();
    session.judge(Update { version: &response.version_info, resources, findings }).await
}
