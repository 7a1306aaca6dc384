//! The head of a request: parses its header fields and rejects malformed requests (RFC 9113, section 8).
//!
//! `:method`, `:path` and `content-type` determine the route. Any `:authority` is accepted: Envoy sends the name of its
//! cluster (`outbound|8081||ratelimit.default.svc.cluster.local`), gRPC's C core an escaped socket path. Other fields
//! are kept only for calls that need them.

use std::{rc::Rc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};

use super::{
    budget::Share,
    field::Field,
    hpack::MAX_LIST,
    meter::{Work, count},
};

#[derive(Clone, Debug)]
pub struct Head {
    pub route: Route,
    pub timeout: Option<Duration>,
    pub(super) content_length: Option<u64>,
    /// The fields of [`KEPT`], for calls that need them.
    pub request: Option<Rc<Request<()>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// `ShouldRateLimit`.
    Unary,
    /// Its path, but not with POST.
    NotPost,
    Other,
    /// Any path, without `content-type: application/grpc`.
    NotGrpc,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadHead {
    Malformed,
    /// Larger than [`MAX_LIST`].
    TooLarge,
}

/// The fields that tonic and the tracer read.
const KEPT: [&[u8]; 10] = [
    b"content-type",
    b"grpc-encoding",
    b"grpc-accept-encoding",
    b"traceparent",
    b"tracestate",
    b"b3",
    b"x-b3-traceid",
    b"x-b3-spanid",
    b"x-b3-sampled",
    b"x-b3-flags",
];

// A reference of one byte stands for a field of up to 4 KB, so no work depends on the length of a field beyond these.

/// The maximum bytes of kept fields. All of them together have less: a `tracestate` is used up to 512 bytes.
const MAX_KEPT: usize = 1024;

/// No service has a longer path.
const MAX_PATH: usize = 128;

/// No method has more bytes; the rest is ignored.
const MAX_METHOD: usize = 32;

/// The digits of the largest content-length.
const MAX_DIGITS: usize = 20;

#[derive(Default)]
pub(super) struct Reader<'p> {
    /// The path of [`Route::Unary`].
    unary: &'p str,
    keep_fields: bool,
    is_malformed: bool,
    method: Option<Method>,
    has_scheme: bool,
    has_authority: bool,
    path: Option<Path>,
    /// A regular field was seen; pseudo-fields must precede it.
    regular: bool,
    is_grpc: Option<bool>,
    timeout: Option<Duration>,
    content_length: Option<u64>,
    headers: HeaderMap,
    /// The bytes in `headers`.
    kept: usize,
}

enum Path {
    Unary,
    Other(Vec<u8>),
}

impl<'p> Reader<'p> {
    pub(super) fn new(unary: &'p str, keep_fields: bool) -> Self {
        Self { unary, keep_fields, ..Self::default() }
    }

    pub(super) fn field(&mut self, field: Field<'_>) {
        self.is_malformed = self.is_malformed || !self.accept(field);
    }

    /// False for a field that makes its request malformed.
    fn accept(&mut self, field: Field<'_>) -> bool {
        let Field { name, value, is_regular, has_valid_value } = field;
        match name {
            [b':', ..] if self.regular => false,
            b":method" => {
                let method = Method::from_bytes(value.get(..MAX_METHOD).unwrap_or(value)).ok();
                method.is_some() && self.method.replace(method.unwrap_or_default()).is_none()
            }
            b":path" => {
                let path = match value {
                    unary if unary == self.unary.as_bytes() => Path::Unary,
                    long if long.len() > MAX_PATH => Path::Other(Vec::new()),
                    other => Path::Other(other.to_vec()),
                };
                !value.is_empty() && has_valid_value && self.path.replace(path).is_none()
            }
            b":scheme" => !value.is_empty() && !std::mem::replace(&mut self.has_scheme, true),
            b":authority" => !std::mem::replace(&mut self.has_authority, true),
            [b':', ..] => false,
            _ => {
                self.regular = true;
                is_regular && has_valid_value && self.accept_regular(name, value)
            }
        }
    }

    fn accept_regular(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                return false;
            }
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => return false,
            b"content-length" => {
                let digits =
                    Some(value).filter(|value| value.len() <= MAX_DIGITS && !value.starts_with(b"+"));
                let length = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
                if length.is_none() || self.content_length.is_some_and(|first| Some(first) != length) {
                    return false;
                }
                self.content_length = length;
            }
            b"content-type" => {
                self.is_grpc.get_or_insert(value.starts_with(b"application/grpc"));
            }
            b"grpc-timeout" => self.timeout = self.timeout.or_else(|| grpc_timeout(value)),
            _ => {}
        }
        if (self.keep_fields || matches!(self.path, Some(Path::Other(_)))) && KEPT.contains(&name) {
            self.keep(name, value);
        }
        true
    }

    fn keep(&mut self, name: &[u8], value: &[u8]) {
        let kept = self.kept.saturating_add(name.len()).saturating_add(value.len());
        if kept > MAX_KEPT {
            return;
        }
        self.kept = kept;
        // Fields that the http crate rejects are of no use to the services.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            self.headers.append(name, value);
        }
    }

    pub(super) fn finish(self) -> Result<Head, BadHead> {
        if self.is_malformed {
            return Err(BadHead::Malformed);
        }
        let (Some(method), Some(path), true) = (self.method, self.path, self.has_scheme) else {
            return Err(BadHead::Malformed);
        };
        let route = match (&path, self.is_grpc) {
            (_, None | Some(false)) => Route::NotGrpc,
            (Path::Other(_), _) => Route::Other,
            (Path::Unary, _) if method != Method::POST => Route::NotPost,
            (Path::Unary, _) => Route::Unary,
        };
        let is_kept = route == Route::Other || (self.keep_fields && route != Route::NotGrpc);
        let request = is_kept.then(|| {
            let mut request = Request::new(());
            (*request.version_mut(), *request.method_mut()) = (Version::HTTP_2, method);
            if let Path::Other(path) = path {
                // An invalid path becomes `/`, which no service has.
                *request.uri_mut() = Uri::try_from(path).unwrap_or_default();
            }
            *request.headers_mut() = self.headers;
            Rc::new(request)
        });
        Ok(Head { route, timeout: self.timeout, content_length: self.content_length, request })
    }
}

/// The maximum size of a header block: no list below [`MAX_LIST`] needs more (CVE-2024-27316).
const MAX_BLOCK: usize = 2 * MAX_LIST;

/// The maximum number of frames of a header block, for the same reason.
const MAX_BLOCK_FRAMES: u32 = 16;

/// The last header block that did not change the HPACK table, and its decoded head.
#[derive(Default)]
pub(super) struct Memo {
    pub(super) block: Vec<u8>,
    pub(super) version: u64,
    pub(super) head: Option<Head>,
}

/// A header block that CONTINUATION frames complete.
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end: bool,
    pub(super) depends_on_itself: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: u32,
    pub(super) share: Share,
}

impl Block {
    pub(super) fn add(&mut self, bytes: &[u8]) -> bool {
        self.frames = self.frames.saturating_add(1);
        let length = self.bytes.len().saturating_add(bytes.len());
        if length > MAX_BLOCK || self.frames > MAX_BLOCK_FRAMES || !self.share.resize(length) {
            return false;
        }
        self.bytes.reserve_exact(bytes.len());
        count(Work::Copied, bytes.len());
        self.bytes.extend_from_slice(bytes);
        true
    }
}

/// Parses `grpc-timeout`: at most eight digits and a unit. An invalid one is ignored.
pub fn grpc_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number.saturating_mul(3600)),
        b'M' => Duration::from_secs(number.saturating_mul(60)),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
