//! The head of a call: what it calls, its timeout, and the header fields that the tracer reads.

use std::{rc::Rc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::rpc::Rpc;
use crate::wire::DecisionRpc;

#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) route: Route,
    pub(super) timeout: Option<Duration>,
    /// The fields of [`TRACED`], if the call is traced.
    pub(super) traced: Option<Rc<HeaderMap>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Rpc(Rpc),
    /// A method that decides, without POST.
    NotPost(DecisionRpc),
    NoSuchMethod,
}

/// The fields that the tracer reads.
const TRACED: [&[u8]; 7] =
    [b"traceparent", b"tracestate", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-sampled", b"x-b3-flags"];

/// The maximum bytes of kept fields: a reference of one byte stands for a field of up to 4 KB. All fields of the tracer
/// together have less: a `tracestate` is used up to 512 bytes.
const MAX_KEPT: usize = 1024;

#[derive(Default)]
pub(super) struct Fields {
    rpc: Option<Rpc>,
    is_post: bool,
    is_grpc: Option<bool>,
    timeout: Option<Duration>,
    traced: HeaderMap,
    /// The bytes in `traced`.
    kept: usize,
}

impl Fields {
    pub(super) fn add(&mut self, name: &[u8], value: &[u8], is_traced: bool) {
        match name {
            b":method" => self.is_post = value == b"POST",
            b":path" => self.rpc = Rpc::at(value),
            b"content-type" => {
                self.is_grpc.get_or_insert(value.starts_with(b"application/grpc"));
            }
            b"grpc-timeout" => self.timeout = self.timeout.or_else(|| grpc_timeout(value)),
            _ if is_traced && matches!(self.rpc, Some(Rpc::Decision(_))) && TRACED.contains(&name) => {
                self.keep(name, value);
            }
            _ => {}
        }
    }

    fn keep(&mut self, name: &[u8], value: &[u8]) {
        let kept = self.kept + name.len() + value.len();
        if kept > MAX_KEPT {
            return;
        }
        self.kept = kept;
        // Fields that the http crate rejects are of no use to the tracer.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            self.traced.append(name, value);
        }
    }

    pub(super) fn finish(self, is_traced: bool) -> Head {
        let route = match self.rpc {
            _ if self.is_grpc != Some(true) => Route::Rpc(Rpc::NotGrpc),
            Some(Rpc::Decision(rpc)) if !self.is_post => Route::NotPost(rpc),
            Some(rpc) => Route::Rpc(rpc),
            None => Route::NoSuchMethod,
        };
        let is_traced = is_traced && matches!(route, Route::Rpc(Rpc::Decision(_)));
        Head { route, timeout: self.timeout, traced: is_traced.then(|| Rc::new(self.traced)) }
    }
}

/// Parses `grpc-timeout`: at most eight digits and a unit. An invalid one is ignored.
pub(super) fn grpc_timeout(text: &[u8]) -> Option<Duration> {
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
