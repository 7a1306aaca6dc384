//! What TLS on the gRPC port costs: `cargo bench --bench tls`, or `cargo bench --bench tls -- 25` for so many
//! rounds. On Linux; the answers are two tables for `docs/tls.md`.
//!
//! Starts the real binary plain, with TLS, with an RSA key where there is `openssl` to make one, and with
//! mutual TLS, and asks them in turns, round by round, so that a busy moment of the machine falls on all
//! alike. The services have one core and this process, which asks, has another. CPU is that of the service
//! alone. Ratios are to plain in the same round, and are the figures to compare. [`kinds`] has the
//! certificates, [`service`] starts the binary and reads what it uses, [`client`] speaks to it, [`load`] and
//! [`connections`] are what is measured, and [`tables`] prints it.

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

/// About a minute in all. Many short ones, because what else the machine does then falls out of the medians.
const ROUNDS: usize = 9;

fn main() -> Result<()> {
    // cargo adds an argument of its own, which is not a number.
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

/// What each decision costs on connections that are there.
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

/// What a connection costs to open, and to keep.
async fn opened(kinds: &Kinds, cores: Cores, rounds: usize) -> Result<()> {
    let kinds: Vec<_> = kinds.iter().collect();
    let services = started(&kinds, cores)?;
    let mut measured: Vec<Vec<_>> = kinds.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((kind, service), opened) in kinds.iter().zip(&services).zip(&mut measured) {
            // What lies idle is looked at in a service that has served nobody yet.
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
