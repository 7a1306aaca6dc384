//! HPACK's static and dynamic tables (RFC 7541, section 2.3).
//!
//! A name is shared by the entries that were added by reference to it. A peer adds such an entry with two bytes, and a
//! copy of the name would have up to 4 KB.

use std::{collections::VecDeque, rc::Rc};

use super::field::Field;

/// The largest size that the peer may choose: the initial value of `SETTINGS_HEADER_TABLE_SIZE`.
pub(super) const MAX_SIZE: usize = 4096;

pub(super) struct Table {
    /// The oldest first.
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
    pub(super) version: u64,
}

struct Entry {
    name: Rc<[u8]>,
    value: Box<[u8]>,
    is_regular: bool,
    has_valid_value: bool,
}

impl Entry {
    fn new(name: Rc<[u8]>, field: Field<'_>) -> Self {
        let Field { value, is_regular, has_valid_value, .. } = field;
        Self { name, value: value.into(), is_regular, has_valid_value }
    }

    fn field(&self) -> Field<'_> {
        let Self { name, value, is_regular, has_valid_value } = self;
        Field { name, value, is_regular: *is_regular, has_valid_value: *has_valid_value }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: VecDeque::new(), size: 0, max: MAX_SIZE, version: 0 }
    }
}

impl Table {
    /// The field at an index of the static table and then the dynamic one.
    pub(super) fn get(&self, index: usize) -> Option<Field<'_>> {
        let place = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(place) {
            let is_regular = !name.starts_with(':');
            let name = name.as_bytes();
            let value = value.as_bytes();
            return Some(Field { name, value, is_regular, has_valid_value: true });
        }
        self.entry(index).map(Entry::field)
    }

    fn entry(&self, index: usize) -> Option<&Entry> {
        let back = index.checked_sub(STATIC.len())?;
        self.entries.get(self.entries.len().checked_sub(back)?)
    }

    /// Sets the maximum size; false if it is above [`MAX_SIZE`].
    pub(super) fn resize(&mut self, max: usize) -> bool {
        if max > MAX_SIZE {
            return false;
        }
        self.max = max;
        self.evict(max);
        self.version = self.version.wrapping_add(1);
        true
    }

    /// Adds a field; one that is larger than the table empties it.
    pub(super) fn add(&mut self, field: Field<'_>) {
        self.insert(Entry::new(field.name.into(), field));
    }

    /// Adds a field with the name of the field at `index`, which may be evicted for it; `None` without a change if there is
    /// none.
    pub(super) fn add_with_name_of(&mut self, index: usize, value: &[u8]) -> Option<()> {
        let field = self.get(index)?;
        let name = self.entry(index).map_or_else(|| field.name.into(), |entry| entry.name.clone());
        self.insert(Entry::new(name, field.with_value(value)));
        Some(())
    }

    fn insert(&mut self, entry: Entry) {
        self.version = self.version.wrapping_add(1);
        let size = entry.field().size();
        let Some(left) = self.max.checked_sub(size) else { return self.evict(0) };
        self.evict(left);
        self.size += size;
        self.entries.push_back(entry);
    }

    /// Drops the oldest entries until the others have at most this size.
    #[expect(clippy::expect_used, reason = "asserts that the size is that of the entries")]
    fn evict(&mut self, size: usize) {
        while self.size > size {
            let entry = self.entries.pop_front().expect("a table with a size has entries");
            self.size = self.size.checked_sub(entry.field().size()).expect("an entry is part of the size");
        }
    }
}

/// RFC 7541, appendix A.
static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
