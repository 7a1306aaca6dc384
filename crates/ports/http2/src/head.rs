//! The head of a request: passes its header fields to the service, and rejects malformed requests (RFC 9113, section 8).
//!
//! Any `:authority` is accepted: Envoy sends the name of its cluster (`outbound|8081||ratelimit.default.svc.cluster.local`),
//! gRPC's C core an escaped socket path.

use super::{block::Request, connection::Service, field::Field};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadHead {
    Malformed,
    /// Larger than [`MAX_LIST`](super::hpack::MAX_LIST).
    TooLarge,
}

// A reference of one byte stands for a field of up to 4 KB, so no work depends on the length of a field beyond these.

/// No method has more bytes; the rest is ignored.
const MAX_METHOD: usize = 32;

/// The digits of the largest content-length.
const MAX_DIGITS: usize = 20;

/// Checks the fields of a request, and passes the valid ones to the service.
pub(super) struct Reader<'s, S: Service> {
    service: &'s S,
    fields: S::Fields,
    is_malformed: bool,
    has_method: bool,
    has_scheme: bool,
    has_authority: bool,
    has_path: bool,
    /// A regular field was seen; pseudo-fields must precede it.
    regular: bool,
    content_length: Option<u64>,
}

impl<'s, S: Service> Reader<'s, S> {
    pub(super) fn new(service: &'s S) -> Self {
        Self {
            service,
            fields: S::Fields::default(),
            is_malformed: false,
            has_method: false,
            has_scheme: false,
            has_authority: false,
            has_path: false,
            regular: false,
            content_length: None,
        }
    }

    pub(super) fn field(&mut self, field: Field<'_>) {
        self.is_malformed = self.is_malformed || !self.accept(field);
        if !self.is_malformed {
            self.service.field(&mut self.fields, field.name, field.value);
        }
    }

    /// False for a field that makes its request malformed.
    fn accept(&mut self, field: Field<'_>) -> bool {
        let Field { name, value, is_regular, has_valid_value } = field;
        let is_first = |seen: &mut bool| !std::mem::replace(seen, true);
        match name {
            [b':', ..] if self.regular => false,
            b":method" => is_method(value) && is_first(&mut self.has_method),
            b":path" => !value.is_empty() && has_valid_value && is_first(&mut self.has_path),
            b":scheme" => !value.is_empty() && is_first(&mut self.has_scheme),
            b":authority" => is_first(&mut self.has_authority),
            [b':', ..] => false,
            _ => {
                self.regular = true;
                is_regular && has_valid_value && self.accept_regular(name, value)
            }
        }
    }

    fn accept_regular(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => false,
            b"te" => value.eq_ignore_ascii_case(b"trailers"),
            b"content-length" => {
                let digits =
                    Some(value).filter(|value| value.len() <= MAX_DIGITS && !value.starts_with(b"+"));
                let length = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
                if length.is_none() || self.content_length.is_some_and(|first| Some(first) != length) {
                    return false;
                }
                self.content_length = length;
                true
            }
            _ => true,
        }
    }

    pub(super) fn finish(self) -> Result<Request<S::Head>, BadHead> {
        if self.is_malformed || !(self.has_method && self.has_path && self.has_scheme) {
            return Err(BadHead::Malformed);
        }
        Ok(Request { head: self.service.head(self.fields), content_length: self.content_length })
    }
}

/// True for a token (RFC 9110, section 5.6.2).
fn is_method(value: &[u8]) -> bool {
    let is_token = |byte: &u8| {
        matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'z' | b'|' | b'~')
            || byte.is_ascii_digit()
            || byte.is_ascii_uppercase()
    };
    !value.is_empty() && value.iter().take(MAX_METHOD).all(is_token)
}

#[cfg(test)]
mod tests;
