//! A header field, and the validity of its name and value (RFC 9113, section 8.2.1). `hpack` and `table` produce fields,
//! `head` reads them.
//!
//! Validity is found once, from the bytes that the peer sent, and stored with an entry of the dynamic table: a reference
//! takes one byte and would otherwise have 4 KB checked.

use super::meter::{Work, count};

/// What a field counts beside its bytes, in the dynamic table and in a header list (RFC 7541, section 4.1; RFC 9113,
/// section 6.5.2).
const OVERHEAD: usize = 32;

#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// The name is valid, and not that of a pseudo-field.
    pub(super) is_regular: bool,
    pub(super) has_valid_value: bool,
}

impl<'a> Field<'a> {
    pub(super) fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self { name, value, is_regular: is_name(name), has_valid_value: is_value(value) }
    }

    pub(super) fn with_value(self, value: &'a [u8]) -> Self {
        Self { value, has_valid_value: is_value(value), ..self }
    }

    pub(super) fn size(&self) -> usize {
        self.name.len() + self.value.len() + OVERHEAD
    }
}

// Without an early end, so that the compiler vectorizes both.

fn is_name(name: &[u8]) -> bool {
    count(Work::Scanned, name.len());
    let fits = |byte: u8| matches!(byte, 0x21..=0x39 | 0x3b..=0x40 | 0x5b..=0x7e);
    !name.is_empty() && name.iter().fold(true, |valid, byte| valid & fits(*byte))
}

fn is_value(value: &[u8]) -> bool {
    count(Work::Scanned, value.len());
    value.iter().fold(true, |valid, byte| valid & !matches!(byte, 0 | b'\r' | b'\n'))
}
