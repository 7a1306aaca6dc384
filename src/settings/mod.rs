//! Settings: from environment variables to checked values, grouped by who needs them.
//!
//! Reading order: [`vars`] is the table of variables, which [`markdown()`] shows, [`groups`] what the
//! program relies on; [`parse`], [`mod@duration`], [`address`] and [`names`] read one value each, [`redis`]
//! and [`memcached`] those that mean something together. `main` hands in the environment and prints what
//! [`Settings::read`] complains of; nothing here looks at the process, the clock or a file.

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
mod effective;
pub mod grpc_tls;
mod markdown;
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

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

pub use self::{
    address::HostPort,
    admin::{Admin, AdminListen},
    duration::duration,
    effective::{Row, Source, effective},
    groups::{
        Answers, Backend, DynamicMetadata, GrpcListen, GrpcServer, HeaderNames, Http, KeyFormat, Log,
        LogFormat, OnFailure, Prometheus, Rules, Server, Settings, StatsSettings, Store,
    },
    grpc_tls::{ClientName, GrpcTls, GrpcTlsClients},
    markdown::markdown,
    misspelt::misspelt,
    reader::{Problem, Warning},
    server::{ServerAddress, StoreTls},
};

use tracing::level_filters::LevelFilter;

use self::reader::Reader;

impl Settings {
    /// The settings of this environment, with what is suspicious about them.
    ///
    /// `exists` says whether a path exists, and `cores` is how many cores the process may use: both
    /// decide defaults, and a file that is named must exist. An empty value means the default, but where any text will do it is that text.
    ///
    /// # Errors
    /// Everything that cannot be served, all at once.
    pub fn read(
        env: &dyn Fn(&str) -> Option<String>,
        exists: &dyn Fn(&Path) -> bool,
        cores: usize,
    ) -> Result<(Self, Vec<Warning>), Vec<Problem>> {
        let mut reader = Reader::new(env);
        let server = server(&mut reader, cores);
        let http = http(&mut reader, &server);
        let settings = Self {
            admin: admin::read(&mut reader, &server, exists),
            decisions: decisions::read(&mut reader),
            server,
            http,
            rules: rules(&mut reader, exists),
            store: store(&mut reader, exists),
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
    let tcp = reader.host_port(vars::GRPC_HOST, vars::GRPC_PORT);
    let socket = reader.text(vars::GRPC_UDS);
    // More threads than any machine has cores are a slip.
    let workers = reader.whole(vars::GRPC_WORKERS, 0..=4096);
    // The length that stands before a message of gRPC has 32 bits.
    let max_request_bytes = reader.bits_32(vars::GRPC_MAX_REQUEST_BYTES, 1);
    let max_connections = reader.count(vars::GRPC_MAX_CONNECTIONS, 1);
    Server {
        implementation: reader.parsed(vars::GRPC_SERVER, grpc_server),
        tls: grpc_tls::read(reader),
        listen: if socket.is_empty() { GrpcListen::Tcp(tcp) } else { GrpcListen::Unix(socket.into()) },
        workers: usize::try_from(workers).ok().filter(|workers| *workers > 0).unwrap_or(cores.max(1)),
        max_connection_age: reader.duration(vars::GRPC_MAX_CONNECTION_AGE),
        max_connection_age_grace: reader.duration(vars::GRPC_MAX_CONNECTION_AGE_GRACE),
        keepalive_interval: reader.duration(vars::GRPC_KEEPALIVE_INTERVAL),
        keepalive_timeout: reader.duration(vars::GRPC_KEEPALIVE_TIMEOUT),
        max_connections,
        max_connections_per_address: per_address(
            reader.count(vars::GRPC_MAX_CONNECTIONS_PER_ADDRESS, 0),
            max_connections,
        ),
        max_concurrent_streams: reader.bits_32(vars::GRPC_MAX_CONCURRENT_STREAMS, 1),
        max_request_bytes: usize::try_from(max_request_bytes).unwrap_or(usize::MAX),
        receive_timeout: reader.duration(vars::GRPC_RECEIVE_TIMEOUT),
        max_inflight_bytes: max_inflight_bytes(reader, max_request_bytes),
        max_descriptors: reader.count(vars::MAX_DESCRIPTORS_PER_REQUEST, 1),
        max_entries: reader.count(vars::MAX_ENTRIES_PER_DESCRIPTOR, 1),
        shutdown_delay: reader.duration(vars::SHUTDOWN_DELAY),
        shutdown_timeout: reader.duration(vars::SHUTDOWN_TIMEOUT),
    }
}

/// Half of it is for requests that are larger than a stream's first window, so that one of the largest fits
/// beside others.
fn max_inflight_bytes(reader: &mut Reader<'_>, max_request_bytes: u32) -> usize {
    let least = u64::from(max_request_bytes) * 4;
    let is_set = reader.is_set(vars::GRPC_MAX_INFLIGHT_BYTES);
    let most = reader.count(vars::GRPC_MAX_INFLIGHT_BYTES, if is_set { least } else { 1 });
    most.max(usize::try_from(least).unwrap_or(usize::MAX))
}

/// Connections of one peer address, of all that there may be; three quarters of them when it is not set.
fn per_address(set: usize, of_all: usize) -> usize {
    if set > 0 { set } else { of_all - of_all / 4 }
}

fn grpc_server(text: &str) -> Result<GrpcServer, parse::InvalidValue> {
    match text.to_ascii_lowercase().as_str() {
        "fast" => Ok(GrpcServer::Fast),
        "tonic" => Ok(GrpcServer::Tonic),
        _ => Err(parse::InvalidValue::new("fast or tonic")),
    }
}

fn http(reader: &mut Reader<'_>, server: &Server) -> Http {
    Http {
        listen: reader.host_port(vars::HOST, vars::PORT),
        debug: reader.host_port(vars::DEBUG_HOST, vars::DEBUG_PORT),
        json: json(reader, server),
        max_connections: reader.count(vars::HTTP_MAX_CONNECTIONS, 1),
        timeout: reader.parsed(vars::HTTP_TIMEOUT, server::some_duration),
    }
}

/// Whether `/json` is served: where clients of the gRPC port must show a certificate, only when it is set.
fn json(reader: &mut Reader<'_>, server: &Server) -> bool {
    let is_on = reader.flag(vars::JSON_ENABLED);
    if server.tls.as_ref().is_none_or(|tls| tls.clients.is_none()) {
        return is_on;
    }
    if !reader.is_set(vars::JSON_ENABLED) {
        let message = "is false, because GRPC_CLIENT_TLS_CACERT requires client certificates and /json would count \
            without one: set it to serve /json all the same";
        reader.warn(vars::JSON_ENABLED, message);
        return false;
    }
    if is_on {
        let message = "serves /json to clients without a certificate, which GRPC_CLIENT_TLS_CACERT requires on the \
            gRPC port";
        reader.warn(vars::JSON_ENABLED, message);
    }
    is_on
}

fn rules(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Rules {
    let subdirectory = reader.text(vars::RUNTIME_SUBDIRECTORY);
    let app_directory = reader.text(vars::RUNTIME_APPDIRECTORY);
    let control_plane = xds::read(reader, exists);
    // Where nobody looks for files, it makes no difference which there are.
    let exists = |path: &Path| control_plane.is_none() && exists(path);
    Rules {
        root: rules_root(reader, &exists, &Path::new(&subdirectory).join(&app_directory)),
        subdirectory,
        app_directory,
        ignore_dot_files: reader.flag(vars::RUNTIME_IGNOREDOTFILES),
        watch_root: reader.flag(vars::RUNTIME_WATCH_ROOT),
        merge_domains: reader.flag(vars::MERGE_DOMAIN_CONFIG),
        max_values: reader.count(vars::RULES_MAX_VALUES, 1),
        healthy_with_at_least_one: reader.flag(vars::HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED),
        force_start: reader.flag(vars::FORCE_START_WITHOUT_INITIAL_CONFIG),
        control_plane,
    }
}

/// The root as set, else the default, else the working directory if `below` it there are rules: so that
/// a clone of the project serves the rules that come with it.
fn rules_root(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool, below: &Path) -> PathBuf {
    let here = PathBuf::from(".");
    let usual = PathBuf::from(vars::RUNTIME_ROOT.default);
    match reader.raw(vars::RUNTIME_ROOT) {
        Some(set) if set.is_empty() => here,
        Some(set) => set.into(),
        None if !exists(&usual) && exists(&here.join(below)) => {
            let message = format!(
                "is not set and {} does not exist: rules are read from {} in the working directory",
                usual.display(),
                below.display(),
            );
            reader.warn(vars::RUNTIME_ROOT, message);
            here
        }
        None => usual,
    }
}

fn store(reader: &mut Reader<'_>, exists: &dyn Fn(&Path) -> bool) -> Store {
    let (chosen, by_default) = backend::read(reader, exists);
    let near_limit_ratio = reader.parsed(vars::NEAR_LIMIT_RATIO, parse::ratio);
    if !(0.0..=1.0).contains(&near_limit_ratio) {
        reader.warn(
            vars::NEAR_LIMIT_RATIO,
            format!("{near_limit_ratio} is not a share of a limit, from 0 to 1"),
        );
    }
    // A century: expiries stay far from where they would overflow.
    let jitter = reader.whole(vars::EXPIRATION_JITTER_MAX_SECONDS, 0..=100 * 365 * 86_400);
    let overrides_file = reader.text(vars::OVERRIDES_FILE);
    let replica_sync = reader.flag(vars::REPLICA_SYNC);
    if replica_sync && !overrides_file.is_empty() && matches!(chosen, Backend::Redis(_)) {
        reader.warn(vars::OVERRIDES_FILE, "has no effect: overrides are in Redis".to_owned());
    }
    Store {
        overrides_file: (!overrides_file.is_empty()).then(|| overrides_file.into()),
        replica_sync,
        chosen,
        by_default,
        max_keys: reader.count(vars::MEMORY_MAX_KEYS, 1),
        local_cache_bytes: reader.count(vars::LOCAL_CACHE_SIZE_IN_BYTES, 0),
        near_limit_ratio,
        key_prefix: reader.text(vars::CACHE_KEY_PREFIX),
        key_format: reader.parsed(vars::COUNTER_KEY_FORMAT, backend::key_format),
        stop_when_over: reader.flag(vars::STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT),
        expiration_jitter_max: Duration::from_secs(jitter),
        on_failure: reader.parsed(vars::STORE_FAILURE_POLICY, backend::on_failure),
    }
}

fn stats(reader: &mut Reader<'_>) -> StatsSettings {
    let prometheus = Prometheus {
        listen: reader.parsed(vars::PROMETHEUS_ADDR, address::host_port),
        path: reader.parsed(vars::PROMETHEUS_PATH, names::url_path),
    };
    let (wanted, disabled) = (reader.flag(vars::USE_PROMETHEUS), reader.flag(vars::DISABLE_STATS));
    let mapper = reader.text(vars::PROMETHEUS_MAPPER_YAML);
    StatsSettings {
        prometheus: (wanted && !disabled).then_some(prometheus),
        mapper: (!mapper.is_empty()).then(|| mapper.into()),
        response_time_in_milliseconds: reader.flag(vars::PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS),
        sinks: sinks::read(reader),
        max_series: reader.count(vars::METRICS_MAX_SERIES, 1),
    }
}

fn log(reader: &mut Reader<'_>) -> Log {
    let format = reader.parsed(vars::LOG_FORMAT, |text| Ok(text.to_ascii_lowercase()));
    if !matches!(format.as_str(), "text" | "json") {
        // The Go service takes anything but json for text.
        reader.warn(vars::LOG_FORMAT, format!("{format:?} is neither text nor json: logs are text"));
    }
    Log {
        level: reader
            .parsed(vars::LOG_LEVEL, |text| names::level(text).map(Some))
            .unwrap_or(LevelFilter::INFO),
        format: if format == "json" { LogFormat::Json } else { LogFormat::Text },
    }
}

/// Two of our own listeners on one port would leave one of them without.
fn refuse_shared_ports(reader: &mut Reader<'_>, settings: &Settings) {
    let mut listeners = vec![(vars::PORT, &settings.http.listen), (vars::DEBUG_PORT, &settings.http.debug)];
    if let GrpcListen::Tcp(listen) = &settings.server.listen {
        listeners.push((vars::GRPC_PORT, listen));
    }
    if let Some(prometheus) = &settings.stats.prometheus {
        listeners.push((vars::PROMETHEUS_ADDR, &prometheus.listen));
    }
    if let Some(listen) = settings.admin.as_ref().and_then(Admin::fixed_address) {
        listeners.push((vars::ADMIN_ADDR, listen));
    }
    for (at, (var, listen)) in listeners.iter().enumerate() {
        for (earlier, other) in &listeners[..at] {
            if listen.collides_with(other) {
                let refusal = parse::InvalidValue::new("a port of its own")
                    .with_hint(format!("{} has {other} already", earlier.name));
                reader.refuse(*var, Some(listen.to_string()), refusal);
            }
        }
    }
}
