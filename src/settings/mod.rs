//! Settings: from environment variables to checked values, grouped by who needs them.
//!
//! [`vars`] is the table of variables, with types: whoever adds a setting adds a row there and uses the field. `groups`
//! has what the program relies on; `parse`, `duration`, `address` and `names` read one value each, `redis`,
//! `memcached`, `xds`, `sinks`, `spans` and `grpc_tls` values that depend on each other. The command line hands in the
//! environment and prints the problems that [`Settings::read`] finds; nothing here looks at the process, the clock or
//! a file.

pub mod address;
pub mod duration;
pub mod groups;
pub mod names;
pub mod parse;
pub mod vars;

mod admin;
mod answers;
mod backend;
pub mod decisions;
pub mod grpc_tls;
mod listing;
pub mod memcached;
mod misspelt;
mod reader;
pub mod redis;
mod server;
pub mod sinks;
pub mod spans;
#[cfg(test)]
mod tests;
mod variable;
pub mod xds;

use std::path::{Path, PathBuf};

pub use self::{
    address::HostPort,
    admin::{Admin, AdminListen},
    decisions::{DecisionLog, Decisions, KeyValues, Logged},
    duration::duration,
    groups::{
        Answers, Backend, GrpcListen, GrpcServer, Http, KeyFormat, Log, LogFormat, Overrides, Prometheus,
        Rules, Server, Settings, StatsSettings, Store,
    },
    grpc_tls::{ClientName, GrpcTls, GrpcTlsClients},
    listing::{Row, Source, effective, markdown},
    misspelt::misspelt,
    names::LogLevel,
    reader::{Problem, Warning},
    server::{ClientTls, ServerAddress},
};

use self::{
    parse::InvalidValue,
    reader::Reader,
    vars::{Metrics, Var},
};

impl Settings {
    /// The settings of this environment, with warnings about them.
    ///
    /// `exists` says whether a path exists, and `cores` is how many cores the process may use: both
    /// decide defaults, and a file that is named must exist. An empty value means the default, unless any text will
    /// do.
    ///
    /// # Errors
    /// Every setting that cannot be used.
    pub fn read(
        env: &dyn Fn(&str) -> Option<String>,
        exists: &dyn Fn(&Path) -> bool,
        cores: usize,
    ) -> Result<(Self, Vec<Warning>), Vec<Problem>> {
        let mut reader = Reader::new(env);
        let server = server(&mut reader, cores);
        let grpc_tls = grpc_tls::read(&mut reader);
        let mut http = Http::read(&mut reader);
        http.json = json(&mut reader, http.json, grpc_tls.as_ref());
        let admin = admin::read(&mut reader, grpc_tls.as_ref(), exists);
        let mut rules = Rules::read(&mut reader);
        let control_plane = xds::read(&mut reader, rules.source, exists);
        if control_plane.is_none() {
            rules.root = rules_root(&mut reader, &rules, exists);
        }
        let (backend, is_backend_default) = backend::read(&mut reader, exists);
        let settings = Self {
            server,
            grpc_tls,
            http,
            admin,
            decisions: decisions::read(&mut reader),
            rules,
            control_plane,
            store: store(&mut reader),
            overrides: overrides(&mut reader, &backend),
            backend,
            is_backend_default,
            answers: answers::read(&mut reader),
            stats: stats(&mut reader),
            spans: spans::read(&mut reader),
            log: log(&mut reader),
        };
        refuse_shared_ports(&mut reader, &settings);
        if reader.problems.is_empty() { Ok((settings, reader.warnings)) } else { Err(reader.problems) }
    }
}

fn server(reader: &mut Reader<'_>, cores: usize) -> Server {
    let mut server = Server::read(reader);
    if server.workers == 0 {
        server.workers = cores.max(1);
    }
    if server.max_connections_per_address == 0 {
        server.max_connections_per_address = server.max_connections - server.max_connections / 4;
    }
    // Half of it is for requests that are larger than a stream's first window, so that one of the largest fits
    // beside others.
    let least = server.max_request_bytes.saturating_mul(4);
    if server.max_inflight_bytes < least {
        if reader.is_set(&vars::GRPC_MAX_INFLIGHT_BYTES) && !reader.is_refused(&vars::GRPC_MAX_INFLIGHT_BYTES)
        {
            let accepted = format!("a whole number from {least} to {}", i64::MAX);
            let seen = reader.raw(&vars::GRPC_MAX_INFLIGHT_BYTES);
            reader.refuse(&vars::GRPC_MAX_INFLIGHT_BYTES, seen, InvalidValue::new(accepted));
        }
        server.max_inflight_bytes = least;
    }
    server
}

/// Whether `/json` is served: where clients of the gRPC port must show a certificate, only when it is set.
fn json(reader: &mut Reader<'_>, is_on: bool, tls: Option<&GrpcTls>) -> bool {
    if tls.is_none_or(|tls| tls.clients.is_none()) {
        return is_on;
    }
    if !reader.is_set(&vars::JSON_ENABLED) {
        let message = "is false, because GRPC_CLIENT_TLS_CACERT requires client certificates and /json would count \
            without one: set it to serve /json all the same";
        reader.warn(&vars::JSON_ENABLED, message);
        return false;
    }
    if is_on {
        let message = "serves /json to clients without a certificate, which GRPC_CLIENT_TLS_CACERT requires on the \
            gRPC port";
        reader.warn(&vars::JSON_ENABLED, message);
    }
    is_on
}

/// The root as set, else the default, else the working directory if there are rules below it: so that
/// a clone of the project serves the rules that come with it.
fn rules_root(reader: &mut Reader<'_>, rules: &Rules, exists: &dyn Fn(&Path) -> bool) -> PathBuf {
    let here = PathBuf::from(".");
    let below = Path::new(&rules.subdirectory).join(&rules.app_directory);
    if rules.root.as_os_str().is_empty() {
        return here;
    }
    let is_set = reader.raw(&vars::RUNTIME_ROOT).is_some();
    if is_set || exists(&rules.root) || !exists(&here.join(&below)) {
        return rules.root.clone();
    }
    let message = format!(
        "is not set and {} does not exist: rules are read from {} in the working directory",
        rules.root.display(),
        below.display(),
    );
    reader.warn(&vars::RUNTIME_ROOT, message);
    here
}

fn store(reader: &mut Reader<'_>) -> Store {
    let store = Store::read(reader);
    let ratio = store.near_limit_ratio;
    if !(0.0..=1.0).contains(&ratio) {
        let message = format!("{ratio} is not a share of a limit, from 0 to 1");
        reader.warn(&vars::NEAR_LIMIT_RATIO, message);
    }
    store
}

fn overrides(reader: &mut Reader<'_>, backend: &Backend) -> Overrides {
    let overrides = Overrides::read(reader);
    if overrides.replica_sync && overrides.file.is_some() && matches!(backend, Backend::Redis(_)) {
        reader.warn(&vars::OVERRIDES_FILE, "has no effect: overrides are in Redis");
    }
    overrides
}

fn stats(reader: &mut Reader<'_>) -> StatsSettings {
    let metrics = Metrics::read(reader);
    let prometheus =
        Prometheus { listen: metrics.prometheus_address.clone(), path: metrics.prometheus_path.clone() };
    StatsSettings {
        prometheus: (metrics.use_prometheus && !metrics.disable).then_some(prometheus),
        mapper: metrics.mapper.clone(),
        response_time_in_milliseconds: metrics.response_time_in_milliseconds,
        max_series: metrics.max_series,
        sinks: sinks::read(reader, metrics),
    }
}

fn log(reader: &mut Reader<'_>) -> Log {
    let format = reader.raw(&vars::LOG_FORMAT).unwrap_or_default().to_ascii_lowercase();
    if !matches!(&*format, "" | "text" | "json") {
        reader.warn(&vars::LOG_FORMAT, format!("{format:?} is neither text nor json: logs are text"));
    }
    Log::read(reader)
}

/// Two of our own listeners on one port would leave one of them without.
fn refuse_shared_ports(reader: &mut Reader<'_>, settings: &Settings) {
    let http: [(&'static Var, HostPort); 2] =
        [(&vars::PORT, settings.http.listen()), (&vars::DEBUG_PORT, settings.http.debug())];
    let mut listeners = http.to_vec();
    if let GrpcListen::Tcp(listen) = settings.server.listen() {
        listeners.push((&vars::GRPC_PORT, listen));
    }
    if let Some(prometheus) = &settings.stats.prometheus {
        listeners.push((&vars::PROMETHEUS_ADDR, prometheus.listen.clone()));
    }
    if let Some(address) = settings.admin.as_ref().and_then(Admin::fixed_address) {
        listeners.push((&vars::ADMIN_ADDR, address.clone()));
    }
    listeners.retain(|(var, _)| !reader.is_refused(var));
    for (at, &(var, ref listen)) in listeners.iter().enumerate() {
        for (earlier, other) in &listeners[..at] {
            if listen.collides_with(other) {
                let refusal = InvalidValue::new("a port of its own")
                    .with_hint(format!("{} has {other} already", earlier.name));
                reader.refuse(var, Some(listen.to_string()), refusal);
            }
        }
    }
}
