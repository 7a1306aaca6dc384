//! Settings: environment variables, parsed and checked.
//!
//! [`vars`] is the table of variables with their types: a new setting is a row there, and a use of its field. [`Settings`]
//! is what the program uses. `parse`, `address` and `values` parse one value each; `tls`, `redis`, `aws`,
//! `memcached`, `xds`, `sinks` and `otlp` check values that depend on each other. The command line passes the
//! environment and prints the problems that [`Settings::read`] reports; nothing here reads the process's environment, the
//! clock or a file.

pub mod address;
pub mod memory;
pub mod parse;
pub mod vars;

mod aws;
mod listing;
pub mod memcached;
mod otlp;
mod policy;
mod reader;
pub mod redis;
pub mod sinks;
#[cfg(test)]
mod tests;
mod tls;
mod values;
mod variable;
pub mod xds;

use std::{
    mem,
    net::IpAddr,
    path::{Path, PathBuf},
};

pub use self::{
    listing::{Row, Source, effective, markdown, misspelt},
    memory::{Available, Bound, Memory},
    policy::{compile_options, policy, rules_directory},
    reader::{Problem, Warning},
    values::KeyFormat,
    vars::{Answers, Decisions, Http, Log, Metrics, Overrides, Quotas, Rules, Server, Store},
};
pub use exporters::logs::LogFormat;
use net::{HostPort, ServerAddress};
use recent::KeyValues;
use server::tls::settings::GrpcTls;

use self::{
    reader::Reader,
    sinks::Sinks,
    values::BackendType,
    vars::{AdminVars, Var},
};
use ::memcached::settings::Memcached;
use exporters::tracing::settings::Spans;
use redis_store::settings::{Redis, RedisServers};
use rules_source::xds::settings::Xds;

#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    pub memory: Memory,
    pub server: Server,
    pub quotas: Quotas,
    pub grpc_tls: Option<GrpcTls>,
    pub http: Http,
    pub admin: Option<Admin>,
    pub decisions: Decisions,
    /// Where rules come from and how they are read.
    pub rules: Rules,
    /// The control plane, if rules come from one.
    pub control_plane: Option<Box<Xds>>,
    pub store: Store,
    /// Overrides, and the replicas that share them.
    pub overrides: Overrides,
    pub backend: Backend,
    /// Neither `BACKEND_TYPE` nor a variable of Redis is set.
    pub is_backend_default: bool,
    pub answers: Answers,
    pub metrics: Metrics,
    pub sinks: Sinks,
    pub spans: Option<Spans>,
    pub log: Log,
    /// Defaults that depend on the machine or on other variables, for listings.
    derived: Vec<(&'static str, String)>,
}

impl Settings {
    pub fn quota(&self) -> rlqs::Settings {
        let Quotas { ttl_seconds, max_buckets, max_buckets_of_stream } = self.quotas;
        let max_bytes = self.memory.bytes(Bound::Quotas);
        rlqs::Settings { ttl_seconds, max_buckets, max_buckets_of_stream, max_bytes }
    }
}

impl Server {
    pub fn listen(&self) -> ServerAddress {
        match &self.socket {
            Some(path) => ServerAddress::Unix(path.clone()),
            None => ServerAddress::Tcp(HostPort { host: self.host.clone(), port: self.port }),
        }
    }
}

impl Http {
    /// The address of the port for health checks and `/json`.
    pub fn listen(&self) -> HostPort {
        HostPort { host: self.host.clone(), port: self.port }
    }

    pub fn debug(&self) -> HostPort {
        HostPort { host: self.debug_host.clone(), port: self.debug_port }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    pub listen: ServerAddress,
    /// The address is the default: if it is taken, the service runs without the admin API.
    pub is_default: bool,
    /// The file of bearer tokens, if every call needs one.
    pub token_file: Option<PathBuf>,
    /// Calls that change something are rejected.
    pub read_only: bool,
    pub tls: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backend {
    Memory,
    Redis(Box<Redis>),
    Memcached(Box<Memcached>),
}

impl Backend {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis(_) => "redis",
            Self::Memcached(_) => "memcached",
        }
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Redis(redis) if matches!(redis.main.servers, RedisServers::Cluster { .. }))
    }

    /// Its servers, without credentials; `None` for the memory of this process.
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Memory => None,
            Self::Redis(redis) => {
                let second = redis.per_second.iter().map(|pool| format!(" per_second={}", pool.servers));
                Some([redis.main.servers.to_string()].into_iter().chain(second).collect())
            }
            Self::Memcached(memcached) => Some(memcached.servers.to_string()),
        }
    }
}

impl Settings {
    /// The settings of this environment, with warnings about them.
    ///
    /// `exists` returns whether a path exists: a file that a variable names must exist, and the default of the rules'
    /// root depends on it. `cores` and `available` are what the process may use. An empty value means the default,
    /// unless the variable accepts any text.
    pub fn read(
        env: &dyn Fn(&str) -> Option<String>,
        exists: &dyn Fn(&Path) -> bool,
        cores: usize,
        available: Available,
    ) -> Result<(Self, Vec<Warning>), Vec<Problem>> {
        let mut reader = Reader::new(env, exists);
        let memory = Memory::read(&mut reader, available);
        let server = server(&mut reader, cores);
        let grpc_tls = tls::read(&mut reader);
        let mut http = Http::read(&mut reader);
        http.json = json(&mut reader, http.json, grpc_tls.as_ref());
        let admin = admin(&mut reader, grpc_tls.as_ref());
        let mut rules = Rules::read(&mut reader);
        let control_plane = xds::read(&mut reader, rules.source, memory.text_of_rules());
        if control_plane.is_none() {
            rules.root = rules_root(&mut reader, &rules);
            reader.derive(&vars::RUNTIME_ROOT, rules.root.display().to_string());
        }
        let (backend, is_backend_default) = backend(&mut reader);
        let mut metrics = Metrics::read(&mut reader);
        metrics.use_prometheus &= !metrics.disable;
        let settings = Self {
            memory,
            server,
            quotas: Quotas::read(&mut reader),
            grpc_tls,
            http,
            admin,
            decisions: decisions(&mut reader),
            rules,
            control_plane,
            store: store(&mut reader),
            overrides: overrides(&mut reader, &backend),
            backend,
            is_backend_default,
            answers: answers(&mut reader),
            sinks: sinks::read(&mut reader, &metrics),
            metrics,
            spans: otlp::spans(&mut reader),
            log: log(&mut reader),
            derived: mem::take(&mut reader.derived),
        };
        reject_shared_ports(&mut reader, &settings);
        if reader.problems.is_empty() { Ok((settings, reader.warnings)) } else { Err(reader.problems) }
    }
}

fn server(reader: &mut Reader<'_>, cores: usize) -> Server {
    let mut server = Server::read(reader);
    let grpc = &mut server.grpc;
    if grpc.workers == 0 {
        grpc.workers = cores.max(1);
        reader.derive(&vars::GRPC_WORKERS, grpc.workers.to_string());
    }
    if grpc.max_connections_per_address == 0 {
        grpc.max_connections_per_address = grpc.max_connections - grpc.max_connections / 4;
        reader.derive(&vars::GRPC_MAX_CONNECTIONS_PER_ADDRESS, grpc.max_connections_per_address.to_string());
    }
    // Requests larger than a stream's first window share half of it, so that the largest one fits beside others.
    let least = grpc.max_request_bytes.saturating_mul(4);
    if server.max_inflight_bytes < least {
        let var = &vars::GRPC_MAX_INFLIGHT_BYTES;
        if reader.is_set(var) && !reader.is_rejected(var) {
            let expected = format!("an integer from {least} to {}", i64::MAX);
            reader.conflict(var, &expected, "it is at least four times GRPC_MAX_REQUEST_BYTES");
        }
        server.max_inflight_bytes = least;
    }
    server
}

/// Whether `/json` is served. If client certificates are required, its default is off.
fn json(reader: &mut Reader<'_>, is_on: bool, tls: Option<&GrpcTls>) -> bool {
    if tls.is_none_or(|tls| tls.clients.is_none()) {
        return is_on;
    }
    if !reader.is_set(&vars::JSON_ENABLED) {
        let message = "is false, because GRPC_CLIENT_TLS_CACERT requires client certificates and /json accepts \
            requests without one; set it to true to serve /json anyway";
        reader.warn(&vars::JSON_ENABLED, message);
        reader.derive(&vars::JSON_ENABLED, false.to_string());
        return false;
    }
    if is_on {
        let message = "serves /json to clients without the certificate that GRPC_CLIENT_TLS_CACERT requires on the \
            gRPC port";
        reader.warn(&vars::JSON_ENABLED, message);
    }
    is_on
}

fn admin(reader: &mut Reader<'_>, grpc_tls: Option<&GrpcTls>) -> Option<Admin> {
    let AdminVars { address, socket, token_file, read_only, tls } = AdminVars::read(reader);
    let is_default = socket.is_none() && !reader.is_set(&vars::ADMIN_ADDR);
    let listen = socket.map(ServerAddress::Unix).or_else(|| address.map(ServerAddress::Tcp))?;
    let tokens = "the path of a file with tokens";
    match (&listen, &token_file) {
        (_, Some(path)) if !reader.exists(path) => {
            reader.conflict(&vars::ADMIN_TOKEN_FILE, tokens, "the file does not exist; is it mounted?");
        }
        (ServerAddress::Tcp(address), None) if !is_loopback(address) => {
            let hint = format!(
                "ADMIN_ADDR={address} accepts connections from other machines; use 127.0.0.1:6071 to serve without \
                 a token"
            );
            reader.conflict(&vars::ADMIN_TOKEN_FILE, tokens, hint);
        }
        _ => {}
    }
    if tls && grpc_tls.is_none() {
        let hint = "set GRPC_SERVER_USE_TLS and its certificate, or remove ADMIN_USE_TLS";
        reader.conflict(&vars::ADMIN_USE_TLS, "false without TLS on the gRPC port", hint);
    }
    Some(Admin { listen, is_default, token_file, read_only, tls })
}

/// True if only processes of this machine can connect to the address.
fn is_loopback(address: &HostPort) -> bool {
    let ip = address.host.parse::<IpAddr>();
    address.host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

/// The root as set, else the default, else the working directory if it contains rules, so that a clone of the project
/// serves its rules.
fn rules_root(reader: &mut Reader<'_>, rules: &Rules) -> PathBuf {
    let here = PathBuf::from(".");
    let below = Path::new(&rules.subdirectory).join(&rules.app_directory);
    if rules.root.as_os_str().is_empty() {
        return here;
    }
    let is_set = reader.raw(&vars::RUNTIME_ROOT).is_some();
    if is_set || reader.exists(&rules.root) || !reader.exists(&here.join(&below)) {
        return rules.root.clone();
    }
    let message = format!(
        "is not set and {} does not exist; using {} in the working directory",
        rules.root.display(),
        below.display(),
    );
    reader.warn(&vars::RUNTIME_ROOT, message);
    here
}

fn store(reader: &mut Reader<'_>) -> Store {
    let store = Store::read(reader);
    reader.warn_outside_of_0_to_1(&vars::NEAR_LIMIT_RATIO, store.near_limit_ratio);
    store
}

/// The store, and whether it is only the default. Memory replaces a store whose settings were rejected.
///
/// The Go service counts in Redis by default. Here Redis is the default if any variable of Redis is set, so that a clone of
/// the project starts with counters in memory.
fn backend(reader: &mut Reader<'_>) -> (Backend, bool) {
    let is_set = reader.is_set(&vars::BACKEND_TYPE);
    let has_redis = !reader.set_with_prefix("REDIS_").is_empty();
    let is_default = !is_set && !has_redis;
    if is_default {
        reader.warn_unused_prefix(&vars::BACKEND_TYPE, "memcache", "MEMCACHE_");
    }
    let chosen = if is_set || is_default { reader.read(&vars::BACKEND_TYPE) } else { BackendType::Redis };
    let backend = match chosen {
        BackendType::Memory => None,
        BackendType::Redis => redis::read(reader).map(|redis| Backend::Redis(Box::new(redis))),
        BackendType::Memcached => memcached::read(reader).map(|read| Backend::Memcached(Box::new(read))),
    };
    (backend.unwrap_or(Backend::Memory), is_default)
}

fn overrides(reader: &mut Reader<'_>, backend: &Backend) -> Overrides {
    let overrides = Overrides::read(reader);
    if overrides.replica_sync && overrides.file.is_some() && matches!(backend, Backend::Redis(_)) {
        reader.warn(&vars::OVERRIDES_FILE, "has no effect: overrides are stored in Redis");
    }
    overrides
}

fn decisions(reader: &mut Reader<'_>) -> Decisions {
    let decisions = Decisions::read(reader);
    if decisions.logged.is_none() {
        let condition = "unless DECISION_LOG is refused or a share, such as sampled:0.01";
        reader.warn_unused(&[&vars::DECISION_LOG_FILE], condition);
    }
    if decisions.recorded.is_none() {
        let condition = "unless REQUEST_LOG is all or a share, such as sampled:0.01";
        reader.warn_unused(&[&vars::REQUEST_LOG_FILE], condition);
    } else if decisions.key_values == KeyValues::Hidden {
        let hint = "set KEY_VALUES to plain or hashed: with hidden values, all keys are one";
        reader.conflict(&vars::REQUEST_LOG, "off with KEY_VALUES=hidden", hint);
    }
    decisions
}

fn answers(reader: &mut Reader<'_>) -> Answers {
    let answers = Answers::read(reader);
    // Names that are not used may be invalid, as in the Go service.
    let of_response = [&vars::LIMIT_LIMIT_HEADER, &vars::LIMIT_REMAINING_HEADER, &vars::LIMIT_RESET_HEADER];
    let of_request = [
        &vars::LIMIT_REQUEST_LIMIT_HEADER,
        &vars::LIMIT_REQUEST_REMAINING_HEADER,
        &vars::LIMIT_REQUEST_RESET_HEADER,
    ];
    for (is_used, names) in [(answers.headers, of_response), (answers.request_headers, of_request)] {
        for setting in names.into_iter().filter(|_| is_used) {
            if let Err(invalid) = parse::header_name(&reader.read(setting)) {
                reader.reject(setting, invalid);
            }
        }
    }
    answers
}

fn log(reader: &mut Reader<'_>) -> Log {
    let format = reader.raw(&vars::LOG_FORMAT).unwrap_or_default().to_ascii_lowercase();
    if !matches!(&*format, "" | "text" | "json") {
        reader.warn(&vars::LOG_FORMAT, format!("{format:?} is neither text nor json; using text"));
    }
    Log::read(reader)
}

fn reject_shared_ports(reader: &mut Reader<'_>, settings: &Settings) {
    let http: [(&'static Var, HostPort); 2] =
        [(&vars::PORT, settings.http.listen()), (&vars::DEBUG_PORT, settings.http.debug())];
    let mut listeners = http.to_vec();
    if let ServerAddress::Tcp(listen) = settings.server.listen() {
        listeners.push((&vars::GRPC_PORT, listen));
    }
    if settings.metrics.use_prometheus {
        listeners.push((&vars::PROMETHEUS_ADDR, settings.metrics.prometheus_address.clone()));
    }
    if let Some(Admin { listen: ServerAddress::Tcp(listen), is_default: false, .. }) = &settings.admin {
        listeners.push((&vars::ADMIN_ADDR, listen.clone()));
    }
    listeners.retain(|(var, _)| !reader.is_rejected(var));
    for (at, &(var, ref listen)) in listeners.iter().enumerate() {
        for (earlier, other) in listeners[..at].iter().filter(|(_, other)| listen.collides_with(other)) {
            let hint = format!("{listen} collides with {}, {other}", earlier.name);
            reader.conflict(var, "a port that no other listener has", hint);
        }
    }
}
