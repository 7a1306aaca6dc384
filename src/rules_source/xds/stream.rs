//! A stream of the aggregated service, whose messages are counted before they are decoded.
//!
//! Each protocol variant opens one. The generated client would decode a message of any size.

use std::marker::PhantomData;

use http::uri::PathAndQuery;
use prost::Message;
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder},
    codegen::{Bytes, tokio_stream::wrappers::ReceiverStream},
    transport::Channel,
};
use tonic_prost::ProstEncoder;

use super::{client::Subscriber, message_count};
use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};

/// A response of a protocol variant.
pub(super) trait Response: Message + Default + 'static {
    const WRAPPING: message_count::Wrapping;
    const METHOD: &'static str;

    /// A response without its resources.
    fn without_resources(head: Head) -> Self;
}

/// The fields of a response that its answer needs, and its type.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Head {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

impl Response for DiscoveryResponse {
    const WRAPPING: message_count::Wrapping = message_count::Wrapping::Plain;
    const METHOD: &'static str =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

    fn without_resources(Head { version, type_url, nonce }: Head) -> Self {
        Self { version_info: version, type_url, nonce, ..Self::default() }
    }
}

impl Response for DeltaDiscoveryResponse {
    const WRAPPING: message_count::Wrapping = message_count::Wrapping::Named;
    const METHOD: &'static str =
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

    fn without_resources(Head { version, type_url, nonce }: Head) -> Self {
        Self { system_version_info: version, type_url, nonce, ..Self::default() }
    }
}

/// A response as it was received.
pub(super) struct Received<R> {
    /// Without resources where they are too many.
    pub(super) response: R,
    pub(super) is_too_much: bool,
}

/// Opens a stream that sends what comes out of `outbox`.
pub(super) async fn open<Q: Message + 'static, R: Response>(
    channel: Channel,
    subscriber: &Subscriber,
    outbox: tokio::sync::mpsc::Receiver<Q>,
) -> Result<Streaming<Received<R>>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(subscriber.max_message_bytes);
    client.ready().await.map_err(|error| Status::unknown(format!("the service was not ready: {error}")))?;
    let request = Request::from_parts(
        subscriber.headers.clone(),
        tonic::Extensions::new(),
        ReceiverStream::new(outbox),
    );
    let codec = CountingCodec { max: subscriber.max_values, messages: PhantomData };
    let response = client.streaming(request, PathAndQuery::from_static(R::METHOD), codec).await?;
    Ok(response.into_inner())
}

/// Prost's codec, which weighs what it receives.
struct CountingCodec<Q, R> {
    max: usize,
    messages: PhantomData<fn(Q) -> R>,
}

impl<Q: Message + 'static, R: Response> Codec for CountingCodec<Q, R> {
    type Encode = Q;
    type Decode = Received<R>;
    type Encoder = ProstEncoder<Q>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self { max: self.max, messages: PhantomData }
    }
}

impl<Q, R: Response> Decoder for CountingCodec<Q, R> {
    type Item = Received<R>;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Received<R>>, Status> {
        use prost::bytes::Buf as _;
        // The message is in one piece already, so that nothing is copied.
        let message = message.copy_to_bytes(message.remaining());
        decode(message, self.max).map(Some)
    }
}

fn decode<R: Response>(message: Bytes, max: usize) -> Result<Received<R>, Status> {
    let malformed =
        |error: &dyn std::error::Error| Status::internal(format!("the response is malformed: {error}"));
    if message_count::fits(&message, R::WRAPPING, max).map_err(|error| malformed(&error))? {
        let response = R::decode(message).map_err(|error| malformed(&error))?;
        return Ok(Received { response, is_too_much: false });
    }
    // Of all fields but these nothing is kept.
    let head = Head::decode(message).map_err(|error| malformed(&error))?;
    Ok(Received { response: R::without_resources(head), is_too_much: true })
}

/// Decodes a response in both dialects, and compiles what can be read of it.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    use super::resource;
    use crate::rules::{CompileOptions, compile_resources};

    let plain = decode::<DiscoveryResponse>(Bytes::copy_from_slice(bytes), 1_000);
    let resources = plain.map(|received| received.response.resources).unwrap_or_default();
    let configs: Vec<_> =
        resources.iter().filter_map(|any| resource::read(|| "a resource".to_owned(), any).ok()).collect();
    for any in &resources {
        assert!(message_count::weight(any, usize::MAX).is_some());
    }
    let _ = compile_resources(&configs.iter().collect::<Vec<_>>(), CompileOptions::default());
    let _ = decode::<DeltaDiscoveryResponse>(Bytes::copy_from_slice(bytes), 1_000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_that_is_too_much_keeps_what_it_is_answered_by() {
        let head = DiscoveryResponse {
            version_info: "7".to_owned(),
            type_url: "t".to_owned(),
            nonce: "n".to_owned(),
            ..DiscoveryResponse::default()
        };
        for (resources, is_too_much) in [(0, false), (9, false), (10, false), (11, true), (4_000_000, true)] {
            let message = [head.encode_to_vec(), [0x12, 0].repeat(resources)].concat();
            let received = decode::<DiscoveryResponse>(message.into(), 10).unwrap();
            assert_eq!(received.is_too_much, is_too_much, "{resources}");
            assert_eq!(received.response.resources.len(), if is_too_much { 0 } else { resources });
            let response = received.response;
            assert_eq!((&*response.version_info, &*response.type_url, &*response.nonce), ("7", "t", "n"));
        }
    }

    #[test]
    fn a_malformed_response_is_refused_before_anything_is_built() {
        let message = [[0x12, 0].repeat(1_000_000), vec![0x12, 5]].concat();
        assert!(decode::<DeltaDiscoveryResponse>(message.into(), usize::MAX).is_err());
    }
}
