//! What a port answers: a response that is there as a whole, or one that is sent as it is made.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::sync::mpsc;

/// What is answered.
pub type Answer = Response<AnswerBody>;

/// The body of an answer.
pub enum AnswerBody {
    /// All of it.
    Full(Full<Bytes>),
    /// Each piece as it comes; the answer ends when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl AnswerBody {
    /// True for a body whose end is not known yet.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Full(body) => Pin::new(body).poll_frame(context),
            Self::Stream(pieces) => pieces.poll_recv(context).map(|piece| piece.map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(body) => body.is_end_stream(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(body) => body.size_hint(),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// The answer to a request that panicked.
#[must_use]
pub fn internal_error() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "Internal error; the log has the details.\n")
}

/// An answer in plain text.
#[must_use]
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(status, "text/plain; charset=utf-8", body)
}

/// An answer of this content type.
#[must_use]
pub fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    with_body(status, content_type, AnswerBody::Full(Full::new(body.into())))
}

/// An answer whose pieces come one after another.
#[must_use]
pub fn streamed(content_type: &'static str, pieces: mpsc::Receiver<Bytes>) -> Answer {
    with_body(StatusCode::OK, content_type, AnswerBody::Stream(pieces))
}

fn with_body(status: StatusCode, content_type: &'static str, body: AnswerBody) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
