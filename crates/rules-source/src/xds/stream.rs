//! A stream of the aggregated discovery service, in either protocol variant.
//!
//! `client` calls [`process`] with a channel. Messages of a response are counted before it is decoded: the generated
//! client would decode a message of any size.

use std::marker::PhantomData;

use futures_util::FutureExt as _;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder},
    codegen::{Bytes, tokio_stream::wrappers::ReceiverStream},
    metadata::MetadataMap,
    transport::Channel,
};
use tonic_prost::ProstEncoder;

use super::{
    message_count::{self, Field},
    session::Session,
    update_limit::UpdateLimit,
};
use proto::{envoy::config::core::v3::Node, google};

pub(super) trait Variant: 'static {
    type Request: Message + 'static;
    type Response: Message + Default + 'static;
    const METHOD: &'static str;
    const RESPONSE_FIELDS: &'static [Field];
    /// Later responses omit the resources of earlier ones.
    const IS_INCREMENTAL: bool;

    fn subscribe(&self, node: Node) -> Self::Request;

    /// A response without its resources.
    fn without_resources(head: Head) -> Self::Response;

    /// Applies a response, or returns the reason for rejecting it.
    async fn apply<T>(
        &mut self,
        session: &Session<'_, T>,
        received: &Received<Self::Response>,
    ) -> Result<(), google::rpc::Status>;

    /// Acknowledges a response, or rejects it with `error_detail`.
    fn answer(
        &mut self,
        node: Node,
        response: Self::Response,
        error_detail: Option<google::rpc::Status>,
    ) -> Self::Request;
}

/// The fields of a response that its answer needs, and its type. The tags are the same in both variants.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Head {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    #[prost(string, tag = "4")]
    pub(super) type_url: String,
    #[prost(string, tag = "5")]
    pub(super) nonce: String,
}

/// A received response, without its resources if they are too many.
pub(super) struct Received<R> {
    pub(super) response: R,
    pub(super) is_too_large: bool,
}

/// Identifies this subscriber to the control plane.
pub(super) struct Subscriber {
    pub(super) node: Node,
    pub(super) headers: MetadataMap,
    pub(super) max_message_bytes: usize,
}

/// Acknowledges or rejects responses until the stream ends.
pub(super) async fn process<T, V: Variant>(
    channel: Channel,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
    variant: &mut V,
) -> Result<(), Status> {
    let (requests, outbox) = mpsc::channel(1);
    let node = || subscriber.node.clone();
    // The channel has room for one, and the receiver still exists.
    let _ = requests.try_send(variant.subscribe(node()));
    let mut responses = open::<V>(channel, subscriber, session.max_values(), outbox).await?;
    let mut limit = UpdateLimit::default();
    while let Some(mut received) = responses.message().await? {
        let delay = limit.delay(Instant::now());
        if !delay.is_zero() {
            sleep(delay).await;
            // A response with all resources replaces those that are older.
            while let Some(newer) = newer::<V>(&mut responses)? {
                received = newer;
            }
        }
        let error_detail = session.guarded(variant.apply(session, &received)).await.err();
        let is_lost = V::IS_INCREMENTAL
            && error_detail.as_ref().is_some_and(|status| status.code == i32::from(Code::Internal));
        if requests.send(variant.answer(node(), received.response, error_detail)).await.is_err() {
            break;
        }
        if is_lost {
            // Only a new stream makes the control plane send the changes of this response again.
            return Err(Status::internal("processing a response panicked"));
        }
    }
    Ok(())
}

/// Returns a response that arrived already and replaces earlier ones.
fn newer<V: Variant>(
    responses: &mut Streaming<Received<V::Response>>,
) -> Result<Option<Received<V::Response>>, Status> {
    let arrived = if V::IS_INCREMENTAL { None } else { responses.message().now_or_never() };
    Ok(arrived.transpose()?.flatten())
}

async fn open<V: Variant>(
    channel: Channel,
    subscriber: &Subscriber,
    max: usize,
    outbox: mpsc::Receiver<V::Request>,
) -> Result<Streaming<Received<V::Response>>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(subscriber.max_message_bytes);
    client.ready().await.map_err(|error| Status::unknown(format!("the service is not ready: {error}")))?;
    let (headers, outbox) = (subscriber.headers.clone(), ReceiverStream::new(outbox));
    let request = Request::from_parts(headers, tonic::Extensions::new(), outbox);
    let codec = CountingCodec::<V> { max, variant: PhantomData };
    let response = client.streaming(request, PathAndQuery::from_static(V::METHOD), codec).await?;
    Ok(response.into_inner())
}

/// Prost's codec, with a limit of messages in a response.
struct CountingCodec<V> {
    max: usize,
    variant: PhantomData<fn() -> V>,
}

impl<V: Variant> Codec for CountingCodec<V> {
    type Encode = V::Request;
    type Decode = Received<V::Response>;
    type Encoder = ProstEncoder<V::Request>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self { max: self.max, variant: PhantomData }
    }
}

impl<V: Variant> Decoder for CountingCodec<V> {
    type Item = Received<V::Response>;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        use prost::bytes::Buf as _;
        // The message is contiguous already, so this copies nothing.
        let message = message.copy_to_bytes(message.remaining());
        decode::<V>(message, self.max).map(Some)
    }
}

pub(super) fn decode<V: Variant>(message: Bytes, max: usize) -> Result<Received<V::Response>, Status> {
    let malformed =
        |error: &dyn std::error::Error| Status::internal(format!("the response is malformed: {error}"));
    let count =
        message_count::of_response(&message, V::RESPONSE_FIELDS).map_err(|error| malformed(&error))?;
    let is_too_large = count > max;
    let response = if is_too_large {
        Head::decode(message).map(V::without_resources)
    } else {
        V::Response::decode(message)
    };
    Ok(Received { response: response.map_err(|error| malformed(&error))?, is_too_large })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xds::{delta::Delta, sotw::Sotw};
    use proto::envoy::service::discovery::v3::DiscoveryResponse;

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
            let received = decode::<Sotw>(message.into(), 10).unwrap();
            assert_eq!(received.is_too_large, is_too_large, "{resources}");
            assert_eq!(received.response.resources.len(), if is_too_large { 0 } else { resources });
            let response = received.response;
            assert_eq!((&*response.version_info, &*response.type_url, &*response.nonce), ("7", "t", "n"));
        }
    }

    #[test]
    fn rejects_a_malformed_response() {
        let message = [[0x12, 0].repeat(1_000_000), vec![0x12, 5]].concat();
        assert!(decode::<Delta>(message.into(), usize::MAX).is_err());
    }
}
