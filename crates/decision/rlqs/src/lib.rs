//! Divides limits among Envoys that report what they use, by the protocol RLQS.
//!
//! The stream of an Envoy tells [`Quotas`] what its buckets have used, and takes the [`BucketAction`]s that it is owed.
//! `division` divides one limit, without I/O; `keeper` pays for what it assigns: it takes hits of the rule's counter
//! through the limiter, before an Envoy may use them. docs/reference/quota.md describes the guarantee.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod demand;
mod division;
mod grant;
mod keeper;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, atomic::AtomicU64},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use division::{Division, Now};
use faults::mutex::lock;
use limiter::{Limiter, QuotaBucket};
use net::edges::Edges;
use tokio::sync::Notify;

/// An Envoy reports all of its buckets this often, and a new one at once.
const REPORT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long an assignment lasts without a report, in seconds: more than the eight after which an Envoy is
    /// silent.
    pub ttl_seconds: u32,
    /// The maximum number of buckets of all streams, each counted once for each of its streams.
    pub max_buckets: usize,
    /// The maximum number of buckets of a stream.
    pub max_buckets_of_stream: usize,
    /// The memory for all buckets.
    pub max_bytes: usize,
}

/// What a bucket takes beside its texts, each of its entries, and each stream that has it. Measured with one stream: 2,160
/// bytes of a bucket with one entry, 9,480 with sixty.
const BUCKET: usize = 1_600;
const ENTRY: usize = 120;
const OF_STREAM: usize = 450;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketAction {
    /// The domain, and the entries in the order of their keys.
    pub bucket: Arc<QuotaBucket>,
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
    /// A token bucket that gains none. A new one begins full.
    Tokens {
        max: u32,
        is_new: bool,
    },
}

/// Why a bucket of a report is not divided. The stream goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    TooManyBuckets,
    TooManyOfStream,
    /// All buckets have as many bytes as they may.
    Memory,
}

/// What was done since the start.
#[derive(Default, Debug)]
pub struct QuotaCounts {
    /// Hits taken of counters ahead of time, and those that were given back.
    pub taken: AtomicU64,
    pub given_back: AtomicU64,
    /// Actions by kind.
    pub granted: AtomicU64,
    pub renewed: AtomicU64,
    pub allowed: AtomicU64,
    pub denied: AtomicU64,
    pub abandoned: AtomicU64,
}

/// The buckets of all streams of this replica.
pub struct Quotas {
    limiter: Arc<Limiter>,
    edges: Edges,
    settings: Settings,
    state: Mutex<State>,
    /// A report came.
    reported: Notify,
    epoch: Instant,
    pub counts: QuotaCounts,
}

#[derive(Default)]
struct State {
    buckets: BTreeMap<Arc<QuotaBucket>, Bucket>,
    /// Those with reports that are not answered.
    asked: BTreeSet<Arc<QuotaBucket>>,
    streams: BTreeMap<u64, Outbox>,
    next_stream: u64,
    /// The buckets of each stream, together.
    used: usize,
    /// The memory of `buckets`.
    bytes: usize,
}

#[derive(Default)]
struct Bucket {
    division: Division,
    /// What applies to it when it was last looked at.
    mode: Mode,
    /// Its next turn, unless a report comes.
    due: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mode {
    #[default]
    Divided,
    Allowed,
    Denied,
}

/// The actions that a stream is owed: of each bucket the last.
#[derive(Default)]
struct Outbox {
    actions: BTreeMap<Arc<QuotaBucket>, Action>,
    waker: Option<Waker>,
}

impl State {
    fn bytes(&self) -> usize {
        self.bytes + self.used * OF_STREAM
    }

    /// The division of a bucket, which is added if there is none.
    fn division(&mut self, bucket: &Arc<QuotaBucket>) -> &mut Division {
        if !self.buckets.contains_key(bucket) {
            self.bytes += bytes_of(bucket);
        }
        &mut self.buckets.entry(bucket.clone()).or_default().division
    }

    /// Removes the buckets that no Envoy uses, and of which nothing is to be returned.
    fn remove_unused(&mut self) {
        let Self { buckets, bytes, .. } = self;
        buckets.retain(|key, bucket| {
            let is_used = !bucket.division.is_over();
            *bytes -= if is_used { 0 } else { bytes_of(key) };
            is_used
        });
    }
}

fn bytes_of(bucket: &QuotaBucket) -> usize {
    let entries = bucket.entries.iter().map(|(key, value)| ENTRY + key.len() + value.len());
    BUCKET + bucket.domain.len() + entries.sum::<usize>()
}

impl Outbox {
    fn put(&mut self, bucket: &Arc<QuotaBucket>, action: Action) {
        let is_renewal =
            matches!(action, Action::Assign { strategy: Strategy::Tokens { is_new: false, .. }, .. });
        match self.actions.get(bucket) {
            // What would be renewed is not sent yet.
            Some(Action::Assign { strategy: Strategy::Tokens { is_new: true, .. }, .. }) if is_renewal => {}
            _ => drop(self.actions.insert(bucket.clone(), action)),
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Quotas {
    pub fn new(limiter: Arc<Limiter>, edges: Edges, settings: Settings) -> Arc<Self> {
        let epoch = edges.timer.now();
        Arc::new(Self {
            limiter,
            edges,
            settings,
            state: Mutex::default(),
            reported: Notify::new(),
            epoch,
            counts: QuotaCounts::default(),
        })
    }

    /// Starts the keeper on the runtime of the calling thread, which should be one of its own: its turns with thousands of
    /// buckets would delay callers.
    pub fn start(self: &Arc<Self>) {
        let keeper = self.clone();
        self.edges.start(async move { keeper.keep_running().await });
    }

    /// Opens a stream that reports buckets of this domain.
    pub fn open(self: &Arc<Self>, domain: &str) -> Stream {
        let mut state = lock(&self.state);
        let id = state.next_stream;
        state.next_stream += 1;
        state.streams.insert(id, Outbox::default());
        Stream {
            quotas: self.clone(),
            id,
            domain: domain.into(),
            buckets: BTreeSet::new(),
            reported_at: None,
        }
    }

    /// The buckets of each stream, together.
    pub fn buckets(&self) -> usize {
        lock(&self.state).used
    }

    /// The memory of all buckets.
    pub fn bytes(&self) -> usize {
        lock(&self.state).bytes()
    }

    pub fn streams(&self) -> usize {
        lock(&self.state).streams.len()
    }

    fn now(&self) -> Now {
        let elapsed = self.edges.timer.now().saturating_duration_since(self.epoch);
        Now { time: self.edges.clock.now(), elapsed }
    }
}

/// A stream of an Envoy. Its end frees nothing that it was assigned.
pub struct Stream {
    quotas: Arc<Quotas>,
    id: u64,
    domain: Box<str>,
    buckets: BTreeSet<Arc<QuotaBucket>>,
    /// The last report of all buckets: of one that was known, or the first, as Envoy opens a stream to report.
    reported_at: Option<Instant>,
}

impl Stream {
    /// When the Envoy reports all of its buckets again, if that is known.
    pub fn next_report(&self) -> Option<Instant> {
        self.reported_at.and_then(|last| last.checked_add(REPORT))
    }

    /// Takes what a bucket has used since it was last reported. Its entries may come in any order.
    ///
    /// # Errors
    /// When there are too many buckets. What the bucket has used is counted all the same.
    pub fn report(&mut self, entries: &[(&str, &str)], allowed: u64, denied: u64) -> Result<(), Refused> {
        let mut entries: Box<[(Box<str>, Box<str>)]> =
            entries.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        entries.sort_unstable();
        let quotas = &self.quotas;
        let bucket = QuotaBucket { domain: self.domain.clone(), entries };
        let now = quotas.now();
        quotas.limiter.count_quota(&bucket, allowed, denied, now.time);
        let mut state = lock(&quotas.state);
        let known = self.buckets.get(&bucket).cloned();
        if known.is_some() || self.reported_at.is_none() {
            self.reported_at = Some(quotas.edges.timer.now());
        }
        let bucket = match known {
            Some(bucket) => bucket,
            None if self.buckets.len() >= quotas.settings.max_buckets_of_stream => {
                return Err(Refused::TooManyOfStream);
            }
            None if state.used >= quotas.settings.max_buckets => return Err(Refused::TooManyBuckets),
            None => {
                let known = state.buckets.get_key_value(&bucket).map(|(known, _)| known.clone());
                let more = OF_STREAM + if known.is_some() { 0 } else { bytes_of(&bucket) };
                if state.bytes() + more > quotas.settings.max_bytes {
                    return Err(Refused::Memory);
                }
                let bucket = known.unwrap_or_else(|| Arc::new(bucket));
                self.buckets.insert(bucket.clone());
                state.used += 1;
                bucket
            }
        };
        state.division(&bucket).report(self.id, allowed, denied, now);
        state.asked.insert(bucket);
        drop(state);
        quotas.reported.notify_one();
        Ok(())
    }

    /// At most this many actions that the stream is owed. Pending, and the waker registered, if there are none.
    pub fn poll_actions(&mut self, most: usize, context: &mut Context<'_>) -> Poll<Vec<BucketAction>> {
        let mut state = lock(&self.quotas.state);
        let Some(outbox) = state.streams.get_mut(&self.id) else { return Poll::Pending };
        let mut actions = Vec::new();
        while actions.len() < most
            && let Some((bucket, action)) = outbox.actions.pop_first()
        {
            actions.push(BucketAction { bucket, action });
        }
        if actions.is_empty() {
            outbox.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        for BucketAction { bucket, action } in &actions {
            if *action == Action::Abandon && self.buckets.remove(bucket) {
                state.used -= 1;
            }
        }
        Poll::Ready(actions)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = lock(&self.quotas.state);
        state.streams.remove(&self.id);
        let buckets = mem::take(&mut self.buckets);
        state.used -= buckets.len();
        for bucket in buckets {
            if let Some(Bucket { division, .. }) = state.buckets.get_mut(&bucket) {
                division.remove(self.id);
            }
        }
    }
}
