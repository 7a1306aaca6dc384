//! Reads bodies of requests: each has a maximum size and a timeout, and few large ones are read at a time.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// The size up to which every connection may send a body.
const ORDINARY: usize = 64 * 1024;

/// Maximum number of larger bodies at a time, so that slow senders hold at most a few times `max` bytes.
const MAX_LARGE: usize = 4;

/// The maximum capacity reserved before a body arrives: its declared length may be wrong.
const MAX_RESERVED: usize = 4 << 20;

pub(super) struct Bodies {
    max: usize,
    timeout: Duration,
    large: Arc<Semaphore>,
}

pub(super) struct Body {
    pub(super) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Why a body was not read: the status and the text of the response.
type NotRead = (StatusCode, String);

impl Bodies {
    pub(super) fn new(max: usize, timeout: Duration) -> Self {
        Self { max, timeout, large: Arc::new(Semaphore::new(MAX_LARGE)) }
    }

    pub(super) async fn read(&self, body: Incoming) -> Result<Body, NotRead> {
        if body.is_end_stream() {
            return Ok(Body { bytes: Bytes::new(), _permit: None });
        }
        timeout(self.timeout, self.read_all(body)).await.unwrap_or_else(|_| {
            let limit = self.timeout;
            let text = format!("Request Timeout: the body took longer than {limit:?} (HTTP_TIMEOUT)\n");
            Err((StatusCode::REQUEST_TIMEOUT, text))
        })
    }

    async fn read_all(&self, mut body: Incoming) -> Result<Body, NotRead> {
        let too_large = || {
            let max = self.max;
            let text = format!("Bad Request: the body is larger than {max} bytes (GRPC_MAX_REQUEST_BYTES)\n");
            Err((StatusCode::BAD_REQUEST, text))
        };
        // `content-length` is enough to reject a body.
        if body.size_hint().lower() > self.max as u64 {
            return too_large();
        }
        // With a known length the buffer does not grow, so that no piece is copied twice.
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        let length = length.unwrap_or_default().min(MAX_RESERVED);
        let mut permit = if length > ORDINARY { Some(self.permit()?) } else { None };
        let mut bytes = BytesMut::with_capacity(length);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                (StatusCode::BAD_REQUEST, format!("Bad Request: the body could not be read: {error}\n"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            let size = bytes.len() + data.len();
            if size > self.max {
                return too_large();
            }
            if size > ORDINARY && permit.is_none() {
                permit = Some(self.permit()?);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Body { bytes: bytes.freeze(), _permit: permit })
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, NotRead> {
        self.large.clone().try_acquire_owned().map_err(|_| {
            let text =
                format!("Service Unavailable: {MAX_LARGE} bodies above {ORDINARY} bytes are being read\n");
            (StatusCode::SERVICE_UNAVAILABLE, text)
        })
    }
}
