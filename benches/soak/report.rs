//! The measurements of the soak test, as the table of docs/dev/cost.md.

use std::{fmt, fs};

use super::{REPLICAS, RESTARTED, load::Outcome};
use support::server::Server;

/// Allowed growth of memory: fragmented pages.
const LEEWAY_KIB: u64 = 24 * 1024;

/// The resources of a replica.
pub(super) struct Sample {
    resident_kib: u64,
    files: usize,
    threads: usize,
    queued: f64,
    panics: f64,
}

/// All measurements.
pub(super) struct Report {
    pub(super) minutes: f64,
    pub(super) rate: u32,
    pub(super) faults: usize,
    pub(super) restarts: usize,
    pub(super) reloads: usize,
    pub(super) pests: usize,
    pub(super) before: Vec<Sample>,
    pub(super) after: Vec<Sample>,
    pub(super) outcome: Outcome,
}

/// The number of entries in `/proc/PID/fd` or `/proc/PID/task`.
fn entries(server: &Server, name: &str) -> usize {
    let path = format!("/proc/{}/{name}", server.process.id());
    fs::read_dir(&path).unwrap_or_else(|error| panic!("{path}: {error}")).count()
}

impl Sample {
    pub(super) fn of(server: &Server) -> Self {
        let metrics = server.metrics();
        let sum = |name: &str| {
            let of = |sample: &&String| sample.split('{').next() == Some(name);
            metrics.iter().filter(|(sample, _)| of(sample)).map(|(_, value)| value).sum()
        };
        Self {
            resident_kib: server.process.resident_kib(),
            files: entries(server, "fd"),
            threads: entries(server, "task"),
            queued: sum("tollgate_redis_queued_checks"),
            panics: sum("tollgate_panics_total"),
        }
    }
}

/// Connections to the gRPC port.
pub(super) fn connections(server: &Server) -> f64 {
    server.metric("tollgate_connections_open")
}

impl Report {
    /// Fails if a request was lost or something leaked.
    pub(super) fn check(&self) {
        assert!(self.outcome.errors.is_empty(), "requests failed");
        for (index, (before, after)) in self.before.iter().zip(&self.after).enumerate() {
            let name = REPLICAS[index];
            assert!(after.panics == 0.0, "{name} panicked");
            assert!(after.queued == 0.0, "{name}: checks wait for Redis though there are no requests");
            let most = before.resident_kib + LEEWAY_KIB;
            assert!(
                after.resident_kib <= most,
                "{name}: {} KiB, {} before",
                after.resident_kib,
                before.resident_kib
            );
            if !RESTARTED.contains(&index) {
                assert!(
                    after.files <= before.files,
                    "{name}: {} files, {} before",
                    after.files,
                    before.files
                );
                assert!(
                    after.threads <= before.threads,
                    "{name}: {} threads, {} before",
                    after.threads,
                    before.threads
                );
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { minutes, rate, faults, restarts, reloads, pests, outcome, .. } = self;
        let Outcome { admitted, over_limit, sent_again, connections, left_out, errors, .. } = outcome;
        writeln!(f, "| requests | |\n|---|---:|")?;
        writeln!(f, "| minutes, requests a second | {minutes}, {rate} |")?;
        writeln!(f, "| admitted | {admitted} |\n| over limit | {over_limit} |")?;
        writeln!(
            f,
            "| sent again after GOAWAY | {sent_again} |\n| connections of the load | {connections} |"
        )?;
        writeln!(f, "| due, and not sent beside 64 unanswered ones | {left_out} |")?;
        for (cause, count) in errors {
            writeln!(f, "| error: {cause} | {count} |")?;
        }
        writeln!(f, "| errors | {} |", errors.values().sum::<u64>())?;
        for (name, share) in [("median", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)] {
            writeln!(f, "| {name} | {:.2} ms |", outcome.quantile(share).as_secs_f64() * 1e3)?;
        }
        writeln!(f, "| faults of Redis, restarts, reloads | {faults}, {restarts}, {reloads} |")?;
        writeln!(f, "| silent, slow and broken connections | {pests} |\n")?;
        writeln!(f, "| replica | memory before | after | files before | after | threads before | after |")?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|")?;
        for (name, (before, after)) in REPLICAS.iter().zip(self.before.iter().zip(&self.after)) {
            writeln!(
                f,
                "| {name} | {} MiB | {} MiB | {} | {} | {} | {} |",
                before.resident_kib / 1024,
                after.resident_kib / 1024,
                before.files,
                after.files,
                before.threads,
                after.threads
            )?;
        }
        Ok(())
    }
}
