//! HPACK's tables of fields (RFC 7541, section 2.3): the static one, and one that the peer fills.

use std::collections::VecDeque;

/// A name and a value.
type Field<'a> = (&'a [u8], &'a [u8]);

/// What an entry costs beside its bytes.
const OVERHEAD: usize = 32;

/// The largest size that the peer may choose: the initial value of `SETTINGS_HEADER_TABLE_SIZE`.
pub(super) const MAX_SIZE: usize = 4096;

/// Fields that the peer added, the latest first.
pub(super) struct Table {
    /// The oldest first.
    entries: VecDeque<Entry>,
    /// Names and values, each entry's behind those of the one before; those at the start may be evicted.
    bytes: Vec<u8>,
    size: usize,
    max: usize,
    /// Changes whenever a reference may mean another field than before.
    version: u64,
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

impl Table {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), bytes: Vec::new(), size: 0, max: MAX_SIZE, version: 0 }
    }

    /// Differs after any change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The field of this index, in either table.
    pub(super) fn get(&self, index: usize) -> Option<Field<'_>> {
        let place = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(place) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let back = place.checked_sub(STATIC.len())?;
        let entry = self.entries.get(self.entries.len().checked_sub(back)?.checked_sub(1)?)?;
        self.bytes.get(entry.start..entry.end())?.split_at_checked(entry.name)
    }

    /// Sets the size that the peer chose; false if it is larger than it may be.
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
        if let Some(start) = self.make_room(name.len(), value.len()) {
            self.bytes.extend_from_slice(name);
            self.bytes.extend_from_slice(value);
            self.push(start, name.len(), value.len());
        }
    }

    /// Adds a field whose name is that of the field at `index`, which may be evicted by it.
    pub(super) fn add_with_name_of(&mut self, index: usize, value: &[u8]) {
        let Some((name, _)) = self.get(index) else { return };
        if STATIC.len() < index {
            // Off the usual way: the name may move or go while room is made.
            let name = name.to_vec();
            return self.add(&name, value);
        }
        if let Some((name, _)) = index.checked_sub(1).and_then(|place| STATIC.get(place)) {
            self.add(name.as_bytes(), value);
        }
    }

    /// Where an entry of these lengths begins; `None` if it is not kept.
    fn make_room(&mut self, name: usize, value: usize) -> Option<usize> {
        self.version = self.version.wrapping_add(1);
        let entry = Entry { start: 0, name, value };
        let Some(left) = self.max.checked_sub(entry.size()) else {
            self.evict(0);
            return None;
        };
        self.evict(left);
        let unused = self.entries.front().map_or(self.bytes.len(), |entry| entry.start);
        // Moving at most as many bytes as were added since the last time.
        if unused >= MAX_SIZE || self.entries.is_empty() {
            self.bytes.drain(..unused);
            for entry in &mut self.entries {
                entry.start = entry.start.saturating_sub(unused);
            }
        }
        Some(self.bytes.len())
    }

    fn push(&mut self, start: usize, name: usize, value: usize) {
        let entry = Entry { start, name, value };
        self.size = self.size.saturating_add(entry.size());
        self.entries.push_back(entry);
    }

    /// Drops the oldest entries until the others take at most so much.
    fn evict(&mut self, most: usize) {
        while self.size > most {
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
