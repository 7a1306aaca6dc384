//! The body of an answer: one message and the trailers behind it, or whatever tonic answers.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use crate::panics;

/// Of every gRPC answer.
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// What is still to be sent.
#[derive(Default)]
pub(super) enum AnswerBody {
    /// A message, then the status that all went well.
    Message(Bytes),
    /// The status alone.
    Trailers,
    /// Nothing any more.
    #[default]
    Nothing,
    /// The answer of another service.
    Tonic(tonic::body::Body),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        panics::point("grpc_response_body");
        match &mut *self {
            Self::Message(message) => {
                let message = std::mem::take(message);
                *self = Self::Trailers;
                Poll::Ready(Some(Ok(Frame::data(message))))
            }
            Self::Trailers => {
                *self = Self::Nothing;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
            Self::Nothing => Poll::Ready(None),
            Self::Tonic(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(_) | Self::Trailers => false,
            Self::Nothing => true,
            Self::Tonic(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Tonic(body) => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}
