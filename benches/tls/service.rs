//! The real binary, with counters in memory and one worker, and its CPU time and memory.

use std::{
    fs::{self, File},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{Cores, Kind, Result};

const RULES: &str =
    "domain: bench\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}]\n";

/// The log line with the address of the gRPC port.
const LISTENS: &str = "listening grpc=";

/// A start takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running service. It is killed when this is dropped.
pub(crate) struct Service {
    child: Child,
    pub(crate) address: SocketAddr,
    _dir: TempDir,
}

impl Service {
    /// Starts one, on free ports, that serves this kind of connection.
    pub(crate) fn start(kind: &Kind, cores: Cores) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tollgate-bench-").tempdir()?;
        fs::create_dir(dir.path().join("config"))?;
        fs::write(dir.path().join("config/bench.yaml"), RULES)?;
        let log = dir.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let ports = ["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0"));
        let hosts = ["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1"));
        let others = [
            ("PROMETHEUS_ADDR", "127.0.0.1:0"),
            ("BACKEND_TYPE", "memory"),
            ("GRPC_WORKERS", "1"),
            ("USE_STATSD", "false"),
        ];
        command.env_clear().envs(ports).envs(hosts).envs(others).env("RUNTIME_ROOT", dir.path());
        command.envs(kind.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut child = cores.as_service(|| command.spawn())??;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = fs::read_to_string(&log)?;
            // A line that is still being written has no end.
            let line = said.split_inclusive('\n').find(|line| line.contains(LISTENS) && line.ends_with('\n'));
            let address = line.and_then(|line| line.split_once(LISTENS)?.1.split([' ', ',', '\n']).next());
            if let Some(address) = address {
                return Ok(Self { address: address.parse()?, child, _dir: dir });
            }
            if child.try_wait()?.is_some() || Instant::now() > deadline {
                // It may have ended by itself.
                let _ = child.kill();
                child.wait()?;
                return Err(format!("the service did not start:\n{said}").into());
            }
            thread::sleep(Duration::from_millis(3));
        }
    }

    /// The CPU time of its threads, to the nanosecond; that of the process has a resolution of a hundredth of a second.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let mut sum = Duration::ZERO;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            let nanos = text.split_whitespace().next().ok_or("schedstat is empty")?;
            sum += Duration::from_nanos(nanos.parse()?);
        }
        Ok(sum)
    }

    /// Its resident memory, in KiB.
    pub(crate) fn resident_kib(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
