//! Responses of the HTTP ports: a complete body, or a stream of pieces.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::sync::mpsc;

pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// The response to a request that panicked.
pub(crate) fn internal_error() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal error; the log has the details.\n")
}

/// A response in plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

/// A response with this content type.
pub(crate) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    with_body(status, content_type, Full::new(body.into()).boxed_unsync())
}

/// A response whose pieces are sent as they come; it ends when the sender is dropped.
pub(crate) fn streamed(content_type: &'static str, mut pieces: mpsc::Receiver<Bytes>) -> Answer {
    let frames =
        stream::poll_fn(move |context| pieces.poll_recv(context).map(|piece| piece.map(Frame::data).map(Ok)));
    with_body(StatusCode::OK, content_type, StreamBody::new(frames).boxed_unsync())
}

fn with_body(
    status: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
