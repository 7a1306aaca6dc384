//! The requests that were read from a part of a log, with their texts in one string.
//!
//! A [`Block`] is filled on one thread and decided on another. Its requests borrow their texts from it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use clock::Time;
use limiter::{Descriptor, Entry, LimitOverride, Request};

/// The range of a text among those of the block.
type Span = (u32, u32);

#[derive(Debug)]
pub(crate) struct Block {
    /// The name of its log.
    pub(crate) log: Arc<str>,
    /// The number of its first line, from 1.
    pub(crate) first_line: u64,
    texts: String,
    entries: Vec<[Span; 2]>,
    descriptors: Vec<DescriptorAt>,
    requests: Vec<RequestAt>,
    pub(crate) notes: LogNotes,
}

/// What is to be known about logs beside their requests.
#[derive(Serialize, Clone, PartialEq, Debug, Default)]
pub struct LogNotes {
    /// Requests that are older than the sorting window allows, which were not decided.
    pub late: u64,
    /// `LOG:LINE` of the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_late: Option<String>,
    /// Requests that the service did not record, because there were too many.
    pub missing: u64,
    /// Lines of access logs for which Envoy sends no request, since no descriptor has all of its values.
    pub without_descriptors: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unlogged: Vec<Unlogged>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
}

/// An operator of `--descriptor` of which an access log has no value.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Unlogged {
    pub operator: String,
    /// Descriptors that need it.
    pub dropped: u64,
}

/// The share of the requests that a log has.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub by: SampledBy,
    pub rate: f64,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum SampledBy {
    /// By a hash of the key, so that a key has all of its requests or none.
    Key,
    Request,
}

impl LogNotes {
    /// Adds what was read in a block.
    pub(crate) fn add(&mut self, block: Self) {
        self.missing = self.missing.saturating_add(block.missing);
        self.without_descriptors += block.without_descriptors;
        for Unlogged { operator, dropped } in block.unlogged {
            self.add_unlogged(operator, dropped);
        }
        // A sample by request is the weaker one: what it has is not whole.
        self.sample = match (self.sample, block.sample) {
            (Some(Sample { by: SampledBy::Key, .. }), Some(new)) => Some(new),
            (known, new) => known.or(new),
        };
    }

    /// Adds descriptors that were dropped because the log does not have this operator.
    pub(crate) fn add_unlogged(&mut self, operator: String, dropped: u64) {
        match self.unlogged.iter_mut().find(|known| known.operator == operator) {
            Some(known) => known.dropped += dropped,
            None => self.unlogged.push(Unlogged { operator, dropped }),
        }
    }
}

#[derive(Debug)]
struct RequestAt {
    time: Time,
    line: u32,
    domain: Span,
    /// The random part of the identity of what it may hold; 0 for none.
    hold: u128,
    /// The index behind its last descriptor.
    end: u32,
}

#[derive(Debug)]
struct DescriptorAt {
    /// The index behind its last entry.
    end: u32,
    hits: Option<u64>,
    is_refund: bool,
    limit: Option<LimitOverride>,
}

#[expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "spans and indexes are those of this block, which has less than 4 GiB"
)]
impl Block {
    /// A block for the requests of lines of so many bytes.
    pub(crate) fn new(log: Arc<str>, first_line: u64, bytes: usize) -> Self {
        // A line of one descriptor has about a hundred bytes, a fifth of them texts.
        let likely = bytes / 100;
        Self {
            log,
            first_line,
            entries: Vec::with_capacity(likely),
            descriptors: Vec::with_capacity(likely),
            requests: Vec::with_capacity(likely),
            texts: String::with_capacity(bytes / 5),
            notes: LogNotes::default(),
        }
    }

    fn keep(&mut self, text: &str) -> Span {
        let start = index(self.texts.len());
        self.texts.push_str(text);
        (start, index(self.texts.len()))
    }

    pub(crate) fn push_entry(&mut self, key: &str, value: &str) {
        let entry = [self.keep(key), self.keep(value)];
        self.entries.push(entry);
    }

    /// Ends a descriptor, which has the entries since the last one.
    pub(crate) fn push_descriptor(
        &mut self,
        hits: Option<u64>,
        is_refund: bool,
        limit: Option<LimitOverride>,
    ) {
        self.descriptors.push(DescriptorAt { end: index(self.entries.len()), hits, is_refund, limit });
    }

    /// Ends a request, which has the descriptors since the last one.
    pub(crate) fn push_request(&mut self, time: Time, line: u32, domain: &str) {
        let domain = self.keep(domain);
        let end = index(self.descriptors.len());
        self.requests.push(RequestAt { time, line, domain, hold: 0, end });
    }

    /// Sets the identity of what the last request may hold.
    pub(crate) fn hold(&mut self, random: u128) {
        if let Some(request) = self.requests.last_mut() {
            request.hold = random;
        }
    }

    /// The random part of the identity of what a request may hold.
    pub(crate) fn hold_of(&self, request: usize) -> Option<u128> {
        Some(self.requests[request].hold).filter(|random| *random != 0)
    }

    pub(crate) fn times(&self) -> impl Iterator<Item = Time> {
        self.requests.iter().map(|request| request.time)
    }

    /// The line of a request, from 1.
    pub(crate) fn line(&self, request: usize) -> u64 {
        self.first_line + u64::from(self.requests[request].line)
    }

    fn text(&self, (start, end): Span) -> &str {
        self.texts.get(start as usize..end as usize).expect("a range of a text of this block")
    }

    pub(crate) fn request(&self, index: usize) -> Request<'_> {
        let request = &self.requests[index];
        let before = |at: usize| self.requests.get(at).map_or(0, |request| request.end as usize);
        let first = index.checked_sub(1).map_or(0, before);
        let mut descriptors = SmallVec::new();
        for at in first..request.end as usize {
            let descriptor = &self.descriptors[at];
            let first = at.checked_sub(1).map_or(0, |before| self.descriptors[before].end as usize);
            let entries = self.entries[first..descriptor.end as usize].iter();
            descriptors.push(Descriptor {
                entries: entries
                    .map(|[key, value]| Entry { key: self.text(*key), value: self.text(*value) })
                    .collect(),
                excess_entries: 0,
                limit: descriptor.limit,
                hits_addend: descriptor.hits,
                is_negative_hits: descriptor.is_refund,
            });
        }
        Request { domain: self.text(request.domain), descriptors, ..Request::default() }
    }
}

#[expect(clippy::expect_used, reason = "a block is cut at a megabyte, and a line has at most 16")]
fn index(length: usize) -> u32 {
    u32::try_from(length).expect("a block has less than 4 GiB")
}
