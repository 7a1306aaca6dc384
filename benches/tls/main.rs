//! The cost of TLS on the gRPC port: `cargo bench --bench tls`, or `cargo bench --bench tls -- 25` for 25 rounds. Linux only;
//! prints the two tables of `docs/dev/figures.md`.
//!
//! Starts the real binary with plaintext, with TLS, with an RSA key if `openssl` is installed, and with mutual TLS, and sends
//! requests to each in turn, round by round, so that other load on the machine affects all of them. The services have one
//! core and this process has another. CPU is that of the service alone. Compare the ratios, which are to plaintext in the
//! same round. [`kinds`] has the certificates, [`service`] starts the binary and measures it, [`client`] sends requests,
//! [`load`] and [`connections`] are the measurements, and [`tables`] prints them.

use std::{env, error::Error, result};

use tokio::{runtime::Builder, task::LocalSet};

mod client;
mod connections;
mod cores;
mod kinds;
mod load;
mod service;
mod tables;

use cores::Cores;
use kinds::{Kind, Kinds};
use load::{LOADS, Round};
use service::Service;

type Result<T> = result::Result<T, Box<dyn Error>>;

/// About a minute in total. Many short rounds, so that other load on the machine does not change the medians.
const ROUNDS: usize = 9;

fn main() -> Result<()> {
    // cargo adds an argument that is not a number.
    let rounds = env::args().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS).max(1);
    let cores = Cores::allowed()?;
    let kinds = Kinds::new()?;
    println!("AES-128-GCM, X25519, ECDSA P-256 unless said otherwise; {cores}; medians of {rounds} rounds\n");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        decisions(&kinds, cores, rounds).await?;
        opened(&kinds, cores, rounds).await
    })
}

/// The cost of a decision on open connections.
async fn decisions(kinds: &Kinds, cores: Cores, rounds: usize) -> Result<()> {
    let kinds: Vec<_> = kinds.iter().filter(|kind| kind.differs_when_open).collect();
    let services = started(&kinds, cores)?;
    let questions = client::questions();
    tables::head_of_decisions();
    for load in LOADS {
        let mut measured: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((kind, service), rounds) in kinds.iter().zip(&services).zip(&mut measured) {
                rounds.push(load::measure(service, kind, &load, questions.clone()).await?);
            }
        }
        for (kind, rounds) in kinds.iter().zip(&measured) {
            tables::row_of_decisions(load.name, kind.name, rounds, &measured[0]);
        }
    }
    println!();
    Ok(())
}

/// The cost of opening and keeping a connection.
async fn opened(kinds: &Kinds, cores: Cores, rounds: usize) -> Result<()> {
    let kinds: Vec<_> = kinds.iter().collect();
    let services = started(&kinds, cores)?;
    let mut measured: Vec<Vec<_>> = kinds.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((kind, service), opened) in kinds.iter().zip(&services).zip(&mut measured) {
            // Idle connections are measured in a new service.
            let kib = connections::keep(&Service::start(kind, cores)?, kind).await?;
            opened.push((connections::open(service, kind).await?, kib));
        }
    }
    tables::head_of_connections();
    for (kind, opened) in kinds.iter().zip(&measured) {
        tables::row_of_connections(kind.name, opened, &measured[0]);
    }
    Ok(())
}

fn started(kinds: &[&Kind], cores: Cores) -> Result<Vec<Service>> {
    kinds.iter().map(|kind| Service::start(kind, cores)).collect()
}
