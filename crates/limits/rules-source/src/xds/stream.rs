//! A stream of the aggregated discovery service, in which each response has all resources ("state of the world").
//!
//! `client` calls [`process`] with a channel. Messages of a response are counted before it is decoded: the generated
//! client would decode a message of any size.
//!
//! A stream begins without a version, even if one was accepted on an earlier stream: a control plane that numbers its
//! versions from 1 at each start would take an old number for its own, and never send its current rules.

use futures_util::FutureExt as _;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder},
    codegen::{Bytes, tokio_stream::wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};
use tonic_prost::ProstEncoder;

use super::{
    message_count,
    resource::{self, TYPE_URL},
    session::{Session, Update},
    update_limit::UpdateLimit,
};
use proto::{
    envoy::{
        config::core::v3::Node,
        service::discovery::v3::{DiscoveryRequest, DiscoveryResponse},
    },
    google,
};

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// The fields of a response that its answer needs, and its type.
#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

/// A received response, without its resources if they are too many.
pub(super) struct Received {
    pub(super) response: DiscoveryResponse,
    is_too_large: bool,
}

/// Identifies this subscriber to the control plane.
pub(super) struct Subscriber {
    pub(super) node: Node,
    pub(super) headers: MetadataMap,
    pub(super) max_message_bytes: usize,
}

/// Acknowledges or rejects responses until the stream ends.
pub(super) async fn process<T>(
    channel: Channel,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
) -> Result<(), Status> {
    let (requests, outbox) = mpsc::channel(1);
    let subscribe = || DiscoveryRequest {
        node: Some(subscriber.node.clone()),
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    };
    // The channel has room for one, and the receiver still exists.
    let _ = requests.try_send(subscribe());
    let mut responses = open(channel, subscriber, session.max_messages(), outbox).await?;
    let mut limit = UpdateLimit::default();
    let mut accepted = String::new();
    while let Some(mut received) = responses.message().await? {
        let delay = limit.delay(Instant::now());
        if !delay.is_zero() {
            sleep(delay).await;
            // The newest response replaces older ones.
            while let Some(newer) = responses.message().now_or_never().transpose()?.flatten() {
                received = newer;
            }
        }
        let error_detail = session.guarded(apply(session, &received)).await.err();
        if error_detail.is_none() {
            accepted = received.response.version_info;
        }
        let version_info = accepted.clone();
        let response_nonce = received.response.nonce;
        let answer = DiscoveryRequest { version_info, response_nonce, error_detail, ..subscribe() };
        if requests.send(answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn open(
    channel: Channel,
    subscriber: &Subscriber,
    max: usize,
    outbox: mpsc::Receiver<DiscoveryRequest>,
) -> Result<Streaming<Received>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(subscriber.max_message_bytes);
    client.ready().await.map_err(|error| Status::unknown(format!("the service is not ready: {error}")))?;
    let headers = subscriber.headers.clone();
    let outbox = ReceiverStream::new(outbox);
    let request = Request::from_parts(headers, tonic::Extensions::new(), outbox);
    let response =
        client.streaming(request, PathAndQuery::from_static(METHOD), CountingCodec { max }).await?;
    Ok(response.into_inner())
}

/// Applies a response, or returns the reason for rejecting it.
async fn apply<T>(
    session: &Session<'_, T>,
    Received { response, is_too_large }: &Received,
) -> Result<(), google::rpc::Status> {
    let mut diagnostics = resource::check_response(&response.type_url, *is_too_large, session.max_messages());
    let mut resources = Vec::with_capacity(response.resources.len());
    for (any, number) in response.resources.iter().zip(1..) {
        match resource::decode(|| format!("resource {number} of the response"), any) {
            Ok(resource) => resources.push(resource),
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    session.apply(Update { version: &response.version_info, resources, diagnostics }).await
}

/// Prost's codec, with a limit of messages in a response.
struct CountingCodec {
    max: usize,
}

impl Codec for CountingCodec {
    type Encode = DiscoveryRequest;
    type Decode = Received;
    type Encoder = ProstEncoder<DiscoveryRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self { max: self.max }
    }
}

impl Decoder for CountingCodec {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        use prost::bytes::Buf as _;
        // The message is contiguous already, so this copies nothing.
        let message = message.copy_to_bytes(message.remaining());
        decode(message, self.max).map(Some)
    }
}

pub(super) fn decode(message: Bytes, max: usize) -> Result<Received, Status> {
    let malformed =
        |error: &dyn std::error::Error| Status::internal(format!("the response is malformed: {error}"));
    let count = message_count::of_response(&message).map_err(|error| malformed(&error))?;
    let is_too_large = count > max;
    let response = if is_too_large {
        Head::decode(message).map(|Head { version_info, type_url, nonce }| DiscoveryResponse {
            version_info,
            type_url,
            nonce,
            ..DiscoveryResponse::default()
        })
    } else {
        DiscoveryResponse::decode(message)
    };
    Ok(Received { response: response.map_err(|error| malformed(&error))?, is_too_large })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_that_is_too_large_keeps_the_fields_of_its_answer() {
        let head = DiscoveryResponse {
            version_info: "7".to_owned(),
            type_url: "t".to_owned(),
            nonce: "n".to_owned(),
            ..DiscoveryResponse::default()
        };
        for (resources, is_too_large) in [(0, false), (9, false), (10, false), (11, true), (4_000_000, true)]
        {
            let message = [head.encode_to_vec(), [0x12, 0].repeat(resources)].concat();
            let received = decode(message.into(), 10).unwrap();
            assert_eq!(received.is_too_large, is_too_large, "{resources}");
            assert_eq!(received.response.resources.len(), if is_too_large { 0 } else { resources });
            let response = received.response;
            assert_eq!((&*response.version_info, &*response.type_url, &*response.nonce), ("7", "t", "n"));
        }
    }

    #[test]
    fn rejects_a_malformed_response() {
        let message = [[0x12, 0].repeat(1_000_000), vec![0x12, 5]].concat();
        assert!(decode(message.into(), usize::MAX).is_err());
    }
}
