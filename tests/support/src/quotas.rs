//! An Envoy's stream of RLQS, played by a test.

use std::{collections::BTreeMap, time::Duration};

use futures_util::stream;
use proto::envoy::{
    service::rate_limit_quota::v3::{
        BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
        rate_limit_quota_response::bucket_action::BucketAction as Action,
        rate_limit_quota_service_client::RateLimitQuotaServiceClient,
        rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    r#type::v3::rate_limit_strategy::{BlanketRule, Strategy},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tonic::{Status, Streaming};

use super::{PATIENCE, client::Client, server::Server};

/// The entries of a bucket's id, and the requests that were allowed and denied.
type Usage<'u> = (&'u [(&'u str, &'u str)], u64, u64);

/// The method, for raw frames.
pub const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// What was assigned to a bucket last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assigned {
    Allow,
    Deny,
    /// A token bucket with this size.
    Tokens(u64),
    Abandoned,
}

pub struct Quotas {
    client: Client,
    reports: Option<mpsc::UnboundedSender<RateLimitQuotaUsageReports>>,
    responses: Streaming<RateLimitQuotaResponse>,
    /// By the text of the bucket: its entries in the order of their keys.
    pub assigned: BTreeMap<String, Assigned>,
}

impl Quotas {
    pub fn open(server: &Server) -> Self {
        let (client, (sender, mut receiver)) = (server.client(), mpsc::unbounded_channel());
        let reports = stream::poll_fn(move |context| receiver.poll_recv(context));
        let opened = client.call(|channel| async move {
            RateLimitQuotaServiceClient::new(channel).stream_rate_limit_quotas(reports).await
        });
        let responses = opened.expect("the stream is opened").into_inner();
        Self { client, reports: Some(sender), responses, assigned: BTreeMap::new() }
    }

    /// Reports usages of buckets, each with the requests that were allowed and denied.
    pub fn report(&self, domain: &str, usages: &[Usage<'_>]) {
        let usages = usages.iter().map(|(entries, allowed, denied)| usage(entries, *allowed, *denied));
        self.send(RateLimitQuotaUsageReports {
            domain: domain.to_owned(),
            bucket_quota_usages: usages.collect(),
        });
    }

    pub fn send(&self, report: RateLimitQuotaUsageReports) {
        self.reports.as_ref().expect("the stream has not ended").send(report).expect("the stream is open");
    }

    /// Ends this side of the stream.
    pub fn end(&mut self) {
        self.reports = None;
    }

    /// Waits for a response; `None` at the end of the stream.
    pub fn next(&mut self) -> Result<Option<RateLimitQuotaResponse>, Status> {
        self.next_within(PATIENCE).unwrap_or_else(|| panic!("no response, after {:?}", self.assigned))
    }

    fn next_within(&mut self, limit: Duration) -> Option<Result<Option<RateLimitQuotaResponse>, Status>> {
        let responses = &mut self.responses;
        let next = self.client.call(|_| async { timeout(limit, responses.message()).await.ok() })?;
        if let Ok(Some(response)) = &next {
            for action in &response.bucket_action {
                let bucket = &action.bucket_id.as_ref().expect("a bucket").bucket;
                let texts: BTreeMap<_, _> = bucket.iter().collect();
                let text: Vec<_> = texts.iter().map(|(key, value)| format!("{key}={value}")).collect();
                self.assigned.insert(text.join(","), assigned(action.bucket_action.as_ref()));
            }
        }
        Some(next)
    }

    /// The status that ends the stream, after any responses.
    pub fn failure(&mut self) -> Status {
        loop {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    }

    /// Sends what was reported, and reads nothing.
    pub fn send_for(&self, time: Duration) {
        self.client.call(|_| async move { sleep(time).await });
    }

    /// Reads what arrives for a while.
    pub fn read_for(&mut self, time: Duration) {
        while let Some(Ok(Some(_))) = self.next_within(time) {}
    }

    /// Waits until what a bucket is assigned is as wanted, and reports it without use from time to time.
    pub fn wait_for(&mut self, bucket: &[(&str, &str)], is_wanted: impl Fn(Assigned) -> bool) -> Assigned {
        let mut sorted = bucket.to_vec();
        sorted.sort_unstable();
        let text: Vec<_> = sorted.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let text = text.join(",");
        super::eventually("the bucket is assigned", || {
            self.report("", &[(bucket, 0, 0)]);
            self.read_for(Duration::from_millis(200));
            match self.assigned.get(&text) {
                Some(assigned) if is_wanted(*assigned) => Ok(*assigned),
                other => Err(format!("{text}: {other:?}")),
            }
        })
    }
}

fn assigned(action: Option<&Action>) -> Assigned {
    let assignment = match action.expect("an action") {
        Action::AbandonAction(_) => return Assigned::Abandoned,
        Action::QuotaAssignmentAction(assignment) => assignment,
    };
    let ttl = assignment.assignment_time_to_live.as_ref().expect("a time to live");
    assert!(ttl.seconds >= 1 && ttl.nanos == 0, "Envoy 1.40 has whole seconds: {ttl:?}");
    let strategy = assignment.rate_limit_strategy.as_ref().and_then(|strategy| strategy.strategy.as_ref());
    match strategy.expect("a strategy") {
        Strategy::BlanketRule(rule) if *rule == BlanketRule::AllowAll as i32 => Assigned::Allow,
        Strategy::BlanketRule(_) => Assigned::Deny,
        Strategy::TokenBucket(tokens) => {
            let interval = tokens.fill_interval.as_ref().expect("an interval");
            assert!(interval.seconds >= 1 && interval.nanos == 0, "Envoy 1.40 divides by it: {interval:?}");
            assert!(tokens.tokens_per_fill.is_some_and(|tokens| tokens > 0));
            Assigned::Tokens(tokens.max_tokens.into())
        }
        Strategy::RequestsPerTimeUnit(_) => panic!("Envoy 1.40 does not know this strategy"),
    }
}

pub fn usage(entries: &[(&str, &str)], allowed: u64, denied: u64) -> BucketQuotaUsage {
    let bucket = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        time_elapsed: None,
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    }
}
