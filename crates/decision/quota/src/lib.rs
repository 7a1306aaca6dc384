//! Divides limits among Envoys that report what they use, by the protocol RLQS.
//!
//! A stream of an Envoy reports its buckets to [`Quotas`], and takes the [`BucketAction`]s that it is owed. A keeper pays
//! for what is assigned: it reserves hits of the rule's counter ahead of time, through the limiter.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use limiter::Limiter;
use net::edges::Edges;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long an assignment lasts, in seconds; at least one.
    pub ttl_seconds: u32,
    /// The maximum number of buckets of all streams.
    pub max_buckets: usize,
    /// The maximum number of buckets of a stream.
    pub max_buckets_of_stream: usize,
}

/// The entries of a bucket's id, in the order in which they were reported.
pub type BucketId = Arc<[(Box<str>, Box<str>)]>;

/// What an Envoy has used of a bucket since its last report.
#[derive(Clone, Copy, Debug)]
pub struct Usage<'a> {
    pub bucket: &'a [(&'a str, &'a str)],
    pub allowed: u64,
    pub denied: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketAction {
    pub bucket: BucketId,
    pub action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The Envoy forgets the bucket, and reports its next request at once.
    Abandon,
    Assign {
        strategy: Strategy,
        ttl_seconds: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    AllowAll,
    DenyAll,
    Tokens(Tokens),
}

/// A token bucket, which begins full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tokens {
    pub max: u32,
    /// Tokens added in each interval; at least one.
    pub per_fill: u32,
    pub fill_seconds: u32,
}

/// Why a bucket of a report is not divided. The stream goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    TooManyBuckets,
    TooManyOfStream,
}

/// The buckets of all streams of this replica.
pub struct Quotas {
    _limiter: Arc<Limiter>,
    _edges: Edges,
    _settings: Settings,
}

impl Quotas {
    pub fn new(limiter: Arc<Limiter>, edges: Edges, settings: Settings) -> Arc<Self> {
        Arc::new(Self { _limiter: limiter, _edges: edges, _settings: settings })
    }

    /// Starts the keeper on the runtime of the calling thread, unless it runs.
    pub fn start(self: &Arc<Self>) {}

    /// A stream of this domain.
    pub fn open(self: &Arc<Self>, _domain: &str) -> Stream {
        Stream { _quotas: self.clone() }
    }

    /// Extends what is assigned before the replica ends, so that Envoys have time to find another one.
    pub async fn close(&self) {}

    /// The number of buckets that are assigned.
    pub fn buckets(&self) -> usize {
        0
    }
}

/// A stream of an Envoy. What it was assigned stays reserved for its time to live when it is dropped.
pub struct Stream {
    _quotas: Arc<Quotas>,
}

impl Stream {
    /// Takes one usage of a report.
    ///
    /// # Errors
    /// When there are too many buckets.
    pub fn report(&mut self, _usage: Usage<'_>) -> Result<(), Refused> {
        Ok(())
    }

    /// Actions that the stream is owed: at most this many. Pending, and the waker registered, if there are none.
    pub fn poll_actions(&mut self, _most: usize, _context: &mut Context<'_>) -> Poll<Vec<BucketAction>> {
        Poll::Pending
    }
}
