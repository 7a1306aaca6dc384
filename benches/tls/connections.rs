//! Connections themselves: what it costs to open one, how long it takes, and what an idle one keeps.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{
    Kind, Result, Service,
    client::{Client, question},
    tables::quantile,
};

/// Opened one after another in a round.
const OPENED: u32 = 100;
/// Kept at the same time: enough for their memory to stand out from pages, which are 2 MB where they are huge,
/// and few enough for the usual bound of 1,024 open files.
const KEPT: u32 = 400;
/// After this the service has nothing to do any more.
const QUIET: Duration = Duration::from_millis(100);

/// What one round gave.
pub(crate) struct Opened {
    /// The service's CPU time, in microseconds, for a connection, one answer and the end.
    pub(crate) cpu: f64,
    /// From the first packet to the answer, in microseconds; the median.
    pub(crate) first_answer: f64,
    /// Sessions that were taken up again, of so many.
    pub(crate) resumed: (u32, u32),
}

/// Opens connections one after another, each for one question.
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

/// Opens many connections, asks once on each, and lets them be: the service's resident memory for each, in
/// KiB. The service is a new one.
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
