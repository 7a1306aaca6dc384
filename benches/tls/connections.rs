//! The cost and duration of opening a connection, and the memory of an idle one.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{
    Kind, Result, Service,
    client::{Client, question},
    tables::quantile,
};

/// Opened one after another in a round.
const OPENED: u32 = 100;
/// Open at the same time: enough to measure their memory despite huge pages of 2 MB, and few enough for the usual bound of
/// 1,024 open files.
const KEPT: u32 = 400;
/// After this time the service is idle.
const QUIET: Duration = Duration::from_millis(100);

/// The results of one round.
pub(crate) struct Opened {
    /// The service's CPU time, in microseconds, for a connection, one answer and the end.
    pub(crate) cpu: f64,
    /// From the first packet to the answer, in microseconds; the median.
    pub(crate) first_answer: f64,
    /// Resumed sessions, and all.
    pub(crate) resumed: (u32, u32),
}

/// Opens connections one after another, each for one request.
pub(crate) async fn open(service: &Service, kind: &Kind) -> Result<Opened> {
    let (mut times, mut resumed) = (Vec::new(), 0);
    let before = service.cpu()?;
    for _ in 0..OPENED {
        let begun = Instant::now();
        let mut client = Client::connect(service, kind).await?;
        client.apply(question(0)).await?;
        times.push(begun.elapsed());
        resumed += u32::from(client.is_resumed);
    }
    sleep(QUIET).await;
    let cpu = service.cpu()?.saturating_sub(before);
    Ok(Opened {
        cpu: cpu.as_secs_f64() * 1e6 / f64::from(OPENED),
        first_answer: quantile(&mut times, 50),
        resumed: (resumed, OPENED),
    })
}

/// Opens many connections with one request each, and leaves them idle. Returns the resident memory of the service for
/// each, in KiB. The service must be new.
pub(crate) async fn keep(service: &Service, kind: &Kind) -> Result<f64> {
    let mut first = Client::connect(service, kind).await?;
    first.apply(question(0)).await?;
    let before = service.resident_kib()?;
    let mut kept = Vec::new();
    for _ in 0..KEPT {
        let mut client = Client::connect(service, kind).await?;
        client.apply(question(0)).await?;
        kept.push(client);
    }
    sleep(QUIET).await;
    let grown = service.resident_kib()? - before;
    Ok(grown / f64::from(KEPT))
}
