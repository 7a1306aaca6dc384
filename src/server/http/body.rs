//! Bodies of requests: each of a bounded size and time, and few large ones at a time.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{Answer, text};

/// A body up to this size is ordinary: every connection may send one.
const ORDINARY: usize = 64 * 1024;

/// Larger bodies at a time, so that slow senders of them hold few times `max` bytes.
const LARGE_AT_A_TIME: usize = 4;

/// No more space is made before a body is there: its length is what the client says.
const MOST_AT_ONCE: usize = 4 << 20;

/// Reads bodies.
pub(super) struct Bodies {
    max: usize,
    timeout: Duration,
    large: Arc<Semaphore>,
}

/// A body, and the permit of a large one.
pub(super) struct Body {
    pub(super) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Why a body was not read.
pub(super) enum NotRead {
    TooLarge {
        max: usize,
    },
    Late {
        timeout: Duration,
    },
    /// Too many large ones are being read.
    Busy,
    Broken(hyper::Error),
}

impl Bodies {
    pub(super) fn new(max: usize, timeout: Duration) -> Self {
        Self { max, timeout, large: Arc::new(Semaphore::new(LARGE_AT_A_TIME)) }
    }

    pub(super) async fn read(&self, body: Incoming) -> Result<Body, NotRead> {
        if body.is_end_stream() {
            return Ok(Body { bytes: Bytes::new(), _permit: None });
        }
        let read = timeout(self.timeout, self.read_all(body)).await;
        read.unwrap_or(Err(NotRead::Late { timeout: self.timeout }))
    }

    async fn read_all(&self, mut body: Incoming) -> Result<Body, NotRead> {
        let too_large = NotRead::TooLarge { max: self.max };
        // The header says it, so that nothing need be read.
        if body.size_hint().lower() > self.max as u64 {
            return Err(too_large);
        }
        let large = || self.large.clone().try_acquire_owned().map_err(|_| NotRead::Busy);
        // Where the length is known the space is made at once, so that no piece is kept twice.
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        let length = length.unwrap_or_default().min(MOST_AT_ONCE);
        let mut permit = if length > ORDINARY { Some(large()?) } else { None };
        let mut bytes = BytesMut::with_capacity(length);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(NotRead::Broken)?.into_data() else { continue };
            let size = bytes.len().saturating_add(data.len());
            if size > self.max {
                return Err(too_large);
            }
            if size > ORDINARY && permit.is_none() {
                permit = Some(large()?);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Body { bytes: bytes.freeze(), _permit: permit })
    }
}

impl NotRead {
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::Late { .. })
    }
}

impl From<NotRead> for Answer {
    fn from(why: NotRead) -> Self {
        match why {
            NotRead::TooLarge { max } => text(
                StatusCode::BAD_REQUEST,
                format!("Bad Request: the body is larger than {max} bytes (GRPC_MAX_REQUEST_BYTES)\n"),
            ),
            NotRead::Late { timeout } => text(
                StatusCode::REQUEST_TIMEOUT,
                format!("Request Timeout: the body took longer than {timeout:?} (HTTP_TIMEOUT)\n"),
            ),
            NotRead::Busy => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "Service Unavailable: {LARGE_AT_A_TIME} bodies above {ORDINARY} bytes are being read\n"
                ),
            ),
            NotRead::Broken(error) => {
                text(StatusCode::BAD_REQUEST, format!("Bad Request: the body could not be read: {error}\n"))
            }
        }
    }
}
