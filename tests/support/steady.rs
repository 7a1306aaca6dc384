//! So many requests a second, whether the earlier ones were answered or not, and what became of each: how a
//! service fares while something behind it is slow or gone.
//!
//! The requests are taken in turn from a list. One of a list may serve as the control: what it suffers is the
//! machine's doing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::HeaderMap;
use tokio::{runtime::Builder, sync::mpsc, time::sleep};
use tollgate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code};

use super::raw::{Exchange, RawClient, framed};

/// Connections that share the requests, as many as a small Envoy has workers.
const CONNECTIONS: usize = 4;
/// A request that took so long hangs.
const HANGS: Duration = Duration::from_secs(10);

/// A load at work.
pub(crate) struct Steady {
    stop: Arc<AtomicBool>,
    worker: JoinHandle<Vec<Asked>>,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Its place in the list of requests.
    pub(crate) kind: usize,
    pub(crate) sent: Instant,
    pub(crate) took: Duration,
    pub(crate) verdict: Verdict,
}

/// What a request was told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Ok,
    OverLimit,
    /// A gRPC error: its code and text.
    Error(i32, String),
    /// No answer.
    Lost(String),
}

impl Steady {
    /// Asks on a gRPC port of 127.0.0.1; each request says that its caller waits for so long.
    pub(crate) fn start(
        port: u16,
        per_second: u32,
        patience: Duration,
        requests: &[RateLimitRequest],
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let load = Load {
            port,
            per_second,
            bodies: requests.iter().map(framed).collect(),
            headers: HeaderMap::from_iter([(
                "grpc-timeout".parse().expect("a header's name"),
                format!("{}u", patience.as_micros()).parse().expect("a number of microseconds"),
            )]),
            stop: Arc::clone(&stop),
        };
        let worker = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
            runtime.block_on(load.run())
        });
        Self { stop, worker }
    }

    /// Ends it, and waits for the answers that are still to come.
    pub(crate) fn stop(self) -> Vec<Asked> {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().expect("the load does not panic")
    }
}

struct Load {
    port: u16,
    per_second: u32,
    bodies: Vec<Bytes>,
    headers: HeaderMap,
    stop: Arc<AtomicBool>,
}

impl Load {
    async fn run(self) -> Vec<Asked> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(RawClient::connect(self.port).await.expect("the service takes connections"));
        }
        let (sender, mut asked) = mpsc::unbounded_channel();
        let start = Instant::now();
        let mut sent = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let due = start.elapsed().as_secs_f64() * f64::from(self.per_second);
            while f64::from(sent) < due {
                let number = usize::try_from(sent).expect("a test asks less than four billion times");
                let (kind, turn) = (number % self.bodies.len(), number / self.bodies.len());
                let (body, headers) = (self.bodies[kind].clone(), self.headers.clone());
                let (client, sender) = (clients[turn % CONNECTIONS].clone(), sender.clone());
                tokio::spawn(async move {
                    let _ = sender.send(ask(client, kind, body, headers).await);
                });
                sent += 1;
            }
            sleep(Duration::from_millis(1)).await;
        }
        drop(sender);
        let mut all = Vec::new();
        while let Some(one) = asked.recv().await {
            all.push(one);
        }
        all.sort_by_key(|one| one.sent);
        all
    }
}

async fn ask(mut client: RawClient, kind: usize, body: Bytes, headers: HeaderMap) -> Asked {
    let sent = Instant::now();
    let verdict = match tokio::time::timeout(HANGS, client.ask(body, &headers)).await {
        Err(_) => Verdict::Lost(format!("no answer within {HANGS:?}")),
        Ok(Ok(answer)) if answer.overall_code() == Code::OverLimit => Verdict::OverLimit,
        Ok(Ok(_)) => Verdict::Ok,
        Ok(Err(Exchange::Answered(status))) => Verdict::Error(status.code, status.message),
        Ok(Err(Exchange::NotTaken)) => Verdict::Lost("the service closed the connection".to_owned()),
        Ok(Err(Exchange::Failed(reason))) => Verdict::Lost(reason),
    };
    Asked { kind, sent, took: sent.elapsed(), verdict }
}

/// The time within which this share of the requests was answered; zero where there are none.
pub(crate) fn quantile<'a>(asked: impl IntoIterator<Item = &'a Asked>, share: f64) -> Duration {
    let mut times: Vec<_> = asked.into_iter().map(|one| one.took).collect();
    times.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a test's numbers are small"
    )]
    let place = ((times.len() as f64 * share).ceil() as usize).saturating_sub(1);
    times.get(place).copied().unwrap_or_default()
}
