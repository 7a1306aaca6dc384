//! HPACK's static and dynamic tables (RFC 7541, section 2.3).

use std::collections::VecDeque;

type Field<'a> = (&'a [u8], &'a [u8]);

/// The size of an entry beside its bytes (RFC 7541, section 4.1).
const OVERHEAD: usize = 32;

/// The largest size that the peer may choose: the initial value of `SETTINGS_HEADER_TABLE_SIZE`.
pub(super) const MAX_SIZE: usize = 4096;

pub(super) struct Table {
    /// The oldest first.
    entries: VecDeque<Entry>,
    /// Names and values in the order of the entries, after those of evicted entries.
    bytes: Vec<u8>,
    size: usize,
    max: usize,
    /// Changes with the meaning of any index.
    pub(super) version: u64,
}

struct Entry {
    start: usize,
    name: usize,
    value: usize,
}

impl Entry {
    fn end(&self) -> usize {
        self.start.saturating_add(self.name).saturating_add(self.value)
    }

    fn size(&self) -> usize {
        self.name.saturating_add(self.value).saturating_add(OVERHEAD)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: VecDeque::new(), bytes: Vec::new(), size: 0, max: MAX_SIZE, version: 0 }
    }
}

impl Table {
    /// The field at an index of the static table and then the dynamic one.
    pub(super) fn get(&self, index: usize) -> Option<Field<'_>> {
        let place = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(place) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let back = place.checked_sub(STATIC.len())?;
        let entry = self.entries.get(self.entries.len().checked_sub(back)?.checked_sub(1)?)?;
        self.bytes.get(entry.start..entry.end())?.split_at_checked(entry.name)
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
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        self.version = self.version.wrapping_add(1);
        let mut entry = Entry { start: 0, name: name.len(), value: value.len() };
        let Some(left) = self.max.checked_sub(entry.size()) else { return self.evict(0) };
        self.evict(left);
        let unused = self.entries.front().map_or(self.bytes.len(), |entry| entry.start);
        // Moves at most as many bytes as were added since the last time.
        if unused >= MAX_SIZE || self.entries.is_empty() {
            self.bytes.drain(..unused);
            for entry in &mut self.entries {
                entry.start = entry.start.saturating_sub(unused);
            }
        }
        entry.start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size = self.size.saturating_add(entry.size());
        self.entries.push_back(entry);
    }

    /// Adds a field with the name of the field at `index`, which may be evicted for it.
    pub(super) fn add_with_name_of(&mut self, index: usize, value: &[u8]) {
        if let Some((name, _)) = index.checked_sub(1).and_then(|place| STATIC.get(place)) {
            self.add(name.as_bytes(), value);
        } else if let Some((name, _)) = self.get(index) {
            // Adding may move or evict the name.
            let name = name.to_vec();
            self.add(&name, value);
        }
    }

    /// Drops the oldest entries until the others have at most this size.
    fn evict(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_front() else { return };
            self.size = self.size.saturating_sub(entry.size());
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
