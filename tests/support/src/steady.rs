//! A constant request rate, whether or not earlier requests were answered, and the result of each: the state of a service
//! while its store is slow or unreachable.
//!
//! A control request, which does not depend on the tested part, shows delays that the machine causes.

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
use proto::envoy::service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code};
use tokio::{runtime::Builder, sync::mpsc, time::sleep};

use super::raw::{Exchange, RawClient, framed};

/// Connections that share the requests: the workers of a small Envoy.
const CONNECTIONS: usize = 4;
/// The rate of the control request: high enough to show every delay of a caller's timeout.
const CONTROLS_PER_SECOND: u32 = 100;
/// A request without an answer after this time hangs.
const HANGS: Duration = Duration::from_secs(10);

/// A running load.
pub struct Steady {
    stop: Arc<AtomicBool>,
    worker: JoinHandle<Outcome>,
}

/// The results of the requests, and of the control.
#[derive(Default)]
pub struct Outcome {
    pub asked: Vec<Asked>,
    pub control: Vec<Asked>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its index in the list of requests.
    pub kind: usize,
    /// The time at which it was due. A delay of sending it counts as latency.
    pub due: Instant,
    pub took: Duration,
    pub verdict: Verdict,
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Ok,
    OverLimit,
    /// A gRPC error: its code and text.
    Error(i32, String),
    /// No answer.
    Lost(String),
}

impl Steady {
    /// Sends these in turn at a constant rate to a gRPC port of 127.0.0.1, and the control. Each request has the timeout
    /// `patience`.
    pub fn start(
        port: u16,
        per_second: u32,
        patience: Duration,
        requests: &[RateLimitRequest],
        control: &RateLimitRequest,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, asked) = mpsc::unbounded_channel();
        let load = Load {
            headers: HeaderMap::from_iter([(
                "grpc-timeout".parse().expect("invalid header name"),
                format!("{}u", patience.as_micros()).parse().expect("invalid timeout"),
            )]),
            rows: [
                Row { per_second, bodies: requests.iter().map(framed).collect(), sent: 0 },
                Row { per_second: CONTROLS_PER_SECOND, bodies: vec![framed(control)], sent: 0 },
            ],
            stop: Arc::clone(&stop),
            sender,
        };
        let worker = thread::spawn(move || {
            let runtime =
                Builder::new_current_thread().enable_all().build().expect("cannot create a runtime");
            runtime.block_on(async { tokio::join!(load.run(port), gathered(asked)).1 })
        });
        Self { stop, worker }
    }

    /// Stops it, and waits for outstanding answers.
    pub fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().expect("the load panicked")
    }
}

struct Load {
    headers: HeaderMap,
    /// The requests, and the control.
    rows: [Row; 2],
    stop: Arc<AtomicBool>,
    sender: mpsc::UnboundedSender<(bool, Asked)>,
}

/// Requests that are sent in turn at a constant rate.
struct Row {
    per_second: u32,
    bodies: Vec<Bytes>,
    sent: u32,
}

impl Load {
    /// Sends due requests until it is stopped.
    async fn run(mut self, port: u16) {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(RawClient::connect(port).await.expect("cannot connect"));
        }
        let start = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            for (is_control, row) in [false, true].into_iter().zip(&mut self.rows) {
                while let Some((number, due)) = row.next_due(start) {
                    let kind = number % row.bodies.len();
                    // Every connection sends every kind.
                    let turn = kind + number / row.bodies.len();
                    let (body, headers) = (row.bodies[kind].clone(), self.headers.clone());
                    let (client, sender) = (clients[turn % CONNECTIONS].clone(), self.sender.clone());
                    tokio::spawn(async move {
                        let _ = sender.send((is_control, ask(client, kind, due, body, headers).await));
                    });
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Row {
    /// The number of the next request and its due time, if it is due.
    fn next_due(&mut self, start: Instant) -> Option<(usize, Instant)> {
        let due = start + Duration::from_secs_f64(f64::from(self.sent) / f64::from(self.per_second));
        if due > Instant::now() {
            return None;
        }
        self.sent += 1;
        Some((usize::try_from(self.sent - 1).expect("32 bits fit"), due))
    }
}

/// Collects results until all requests are answered.
async fn gathered(mut asked: mpsc::UnboundedReceiver<(bool, Asked)>) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some((is_control, one)) = asked.recv().await {
        if is_control { &mut outcome.control } else { &mut outcome.asked }.push(one);
    }
    outcome
}

async fn ask(mut client: RawClient, kind: usize, due: Instant, body: Bytes, headers: HeaderMap) -> Asked {
    let verdict = match tokio::time::timeout(HANGS, client.ask(body, &headers)).await {
        Err(_) => Verdict::Lost(format!("no answer within {HANGS:?}")),
        Ok(Ok(answer)) if answer.overall_code() == Code::OverLimit => Verdict::OverLimit,
        Ok(Ok(_)) => Verdict::Ok,
        Ok(Err(Exchange::Answered(status))) => Verdict::Error(status.code, status.message),
        Ok(Err(Exchange::NotTaken)) => Verdict::Lost("the service closed the connection".to_owned()),
        Ok(Err(Exchange::Failed(reason))) => Verdict::Lost(reason),
    };
    Asked { kind, due, took: due.elapsed(), verdict }
}

/// The quantile of the latency; zero without requests.
pub fn quantile<'a>(asked: impl IntoIterator<Item = &'a Asked>, share: f64) -> Duration {
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
