//! So many requests a second, whether the earlier ones were answered or not, and what became of each: the
//! state of a service while something behind it is slow or gone.
//!
//! Beside them a control is asked, a request that what is tested has no part in: what it suffers is the
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
/// Often enough that nothing which lasts as long as a caller waits escapes the control.
const CONTROLS_PER_SECOND: u32 = 100;
/// A request that took so long hangs.
const HANGS: Duration = Duration::from_secs(10);

/// A load at work.
pub(crate) struct Steady {
    stop: Arc<AtomicBool>,
    worker: JoinHandle<Outcome>,
}

/// What became of the requests, and of the control.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) asked: Vec<Asked>,
    pub(crate) control: Vec<Asked>,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Its place in the list of requests.
    pub(crate) kind: usize,
    /// When it was to be sent. The machine may have had no time for it then, which counts as waiting.
    pub(crate) due: Instant,
    pub(crate) took: Duration,
    pub(crate) verdict: Verdict,
}

/// What a request received.
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
    /// Asks these in turn, so often a second, on a gRPC port of 127.0.0.1, and beside them the control. Each
    /// request says that its caller waits for so long.
    pub(crate) fn start(
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
                "grpc-timeout".parse().expect("a header's name"),
                format!("{}u", patience.as_micros()).parse().expect("a number of microseconds"),
            )]),
            rows: [
                Row { per_second, bodies: requests.iter().map(framed).collect(), sent: 0 },
                Row { per_second: CONTROLS_PER_SECOND, bodies: vec![framed(control)], sent: 0 },
            ],
            stop: Arc::clone(&stop),
            sender,
        };
        let worker = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
            runtime.block_on(async { tokio::join!(load.run(port), gathered(asked)).1 })
        });
        Self { stop, worker }
    }

    /// Ends it, and waits for the answers that are still to come.
    pub(crate) fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().expect("the load does not panic")
    }
}

struct Load {
    headers: HeaderMap,
    /// The requests, and the control.
    rows: [Row; 2],
    stop: Arc<AtomicBool>,
    sender: mpsc::UnboundedSender<(bool, Asked)>,
}

/// Requests that are asked in turn, so often a second.
struct Row {
    per_second: u32,
    bodies: Vec<Bytes>,
    sent: u32,
}

impl Load {
    /// Sends what is due until it is stopped.
    async fn run(mut self, port: u16) {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(RawClient::connect(port).await.expect("the service takes connections"));
        }
        let start = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            for (is_control, row) in [false, true].into_iter().zip(&mut self.rows) {
                while let Some((number, due)) = row.next_due(start) {
                    let kind = number % row.bodies.len();
                    // Every connection gets every kind.
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
    /// The number of the next request and when it was due, if it was.
    fn next_due(&mut self, start: Instant) -> Option<(usize, Instant)> {
        let due = start + Duration::from_secs_f64(f64::from(self.sent) / f64::from(self.per_second));
        if due > Instant::now() {
            return None;
        }
        self.sent += 1;
        Some((usize::try_from(self.sent - 1).expect("32 bits fit"), due))
    }
}

/// Takes what becomes of the requests until there are no more requests and all are answered.
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
