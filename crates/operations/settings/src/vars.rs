//! The table of every environment variable, in groups. A row has the name, the field that holds the value with its type,
//! the default, a parser if the type has several (`as`), and the description.
//!
//! A row defines everything about its variable: parsing and validation (`Reader::read`), `tollgate settings`,
//! docs/reference/settings.md, suggestions for misspelt names, and masking (`secret`, or `login` for an address that may contain
//! one). Names are those of the Go service where it has the variable.
//!
//! Where a crate has a struct for settings, the rows after `=>` fill its fields.

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderMap, Uri};
use tracing::Level;

pub use super::variable::{Secrecy, Setting, Var};
use super::{
    address,
    parse::{self, at_least},
    reader::Reader,
    values::{self, BackendType, KeyFormat, RedisType, RulesSource, SocketType, StatsdProtocol},
    variable::table,
    xds,
};
use aws_iam::settings::Service;
use counters::MostHolds;
use exporters::{
    logs::LogFormat,
    otlp::{metrics::Temporality, settings::Protocol},
    statsd::settings::{SinkAddress, Tags},
};
use faults::OnStoreFailure;
use limit::CountingMode;
use limiter::{HeaderNames, PolicyHeaders, Recorded};
use net::{HostPort, ServerAddress};
use recent::{KeyValues, Logged};
use rules::template::Template;
use rules_source::xds::settings::XdsBackoff;
use server::grpc::settings::{GrpcServer, Settings as Grpc};

/// The maximum of a gRPC message's length prefix, and of HTTP/2 settings.
const BITS_32: u64 = u32::MAX as u64;

/// In seconds. Expiries below it cannot overflow.
const CENTURY: u64 = 100 * 365 * 86_400;

/// In milliseconds.
const HOUR: u64 = 3_600_000;

const MILLION: u64 = 1_000_000;

table! {
    pub(super) MemoryVars in "Memory" {
        MEMORY_LIMIT limit: Option<usize> = "" as |text| parse::optional(text, values::memory), "Memory that the process may \
            use, in bytes or with `Ki`, `Mi` or `Gi`. By default the limit of its cgroup, else half of the machine's \
            memory. The variables without a default below are [shares of it](operating.md#memory), so that \
            everything fits at the same time; set one of them only to move memory to it.";
    }
    pub Server in "gRPC server" {
        GRPC_HOST host: String = "0.0.0.0" as address::host, "Address of the gRPC port; `0.0.0.0` and `::` \
            both mean all, IPv4 and IPv6.";
        GRPC_PORT port: u16 = "8081", "gRPC port; `0` takes any free one.";
        GRPC_UDS socket: Option<PathBuf> = "", "Path of a unix socket for gRPC; replaces the port.";
        => grpc: Grpc {
            GRPC_SERVER implementation: GrpcServer = "fast", "HTTP/2 implementation of the gRPC port: `fast`, \
                made for `ShouldRateLimit`, or `tonic`, the reference, with the same responses at several \
                times the CPU.";
            GRPC_WORKERS workers: usize = "0" as parse::whole::<_, 0, 4096>, "Worker threads for gRPC, each \
                with its own connections; `0` is one per core that the process may use.";
            GRPC_MAX_CONNECTION_AGE max_connection_age: Duration = "24h", "Age, ±10 %, after which a \
                connection receives a GOAWAY, so that clients spread over new replicas; `0` is never.";
            GRPC_MAX_CONNECTION_AGE_GRACE max_connection_age_grace: Duration = "1h", "Time for the open \
                requests of such a connection; `0` is unlimited.";
            GRPC_KEEPALIVE_INTERVAL keepalive_interval: Duration = "2m", "Idle time after which a connection \
                is pinged, to detect dead peers and to keep load balancers from dropping idle connections. `0` \
                is never.";
            GRPC_KEEPALIVE_TIMEOUT keepalive_timeout: Duration = "20s", "Time for the response to a ping; then \
                the connection is closed.";
            GRPC_MAX_CONNECTIONS max_connections: usize = "" as at_least::<1>, "Maximum number of \
                connections. At the maximum, a connection without an HTTP/2 preface is closed for a new one, \
                else the one idle longest; while all are busy, new ones are refused.";
            GRPC_MAX_CONNECTIONS_PER_ADDRESS max_connections_per_address: usize = "0" as at_least::<0>, "The \
                same per peer address (for IPv6, per /64 network); `0` is three quarters of \
                `GRPC_MAX_CONNECTIONS`, so that one NAT or load balancer works but cannot take every \
                connection. Does not apply to unix sockets.";
            GRPC_MAX_CONCURRENT_STREAMS max_concurrent_streams: u32 = "1024" as parse::whole::<_, 1, BITS_32>,
                "Maximum number of concurrent requests per connection.";
            GRPC_MAX_REQUEST_BYTES max_request_bytes: usize = "" as parse::whole::<_, 1, BITS_32>,
                "Maximum size of a request; at most 4 MiB by default, and a quarter of \
                `GRPC_MAX_INFLIGHT_BYTES`.";
            GRPC_RECEIVE_TIMEOUT receive_timeout: Duration = "5s", "Time within which a request must be \
                complete; later it returns DEADLINE_EXCEEDED. An HTTP/2 frame or header block that is incomplete for \
                as long closes the connection.";
        }
        GRPC_MAX_INFLIGHT_BYTES max_inflight_bytes: usize = "" as at_least::<1>, "Memory for \
            incomplete requests and unread responses of all connections; at least four times \
            `GRPC_MAX_REQUEST_BYTES`. Beyond it requests return \
            RESOURCE_EXHAUSTED.";
        MAX_DESCRIPTORS_PER_REQUEST max_descriptors: usize = "128" as at_least::<1>, "Maximum number of \
            descriptors per request; more return INVALID_ARGUMENT.";
        MAX_ENTRIES_PER_DESCRIPTOR max_entries: usize = "64" as at_least::<1>, "Maximum number of entries \
            per descriptor; more return INVALID_ARGUMENT.";
        SHUTDOWN_DELAY shutdown_delay: Duration = "0s", "Time between SIGTERM, when the service becomes \
            unhealthy, and closing the listeners.";
        SHUTDOWN_TIMEOUT shutdown_timeout: Duration = "30s", "Time for open requests after that. The process has ended 2 s later, whatever hangs.";
    }
    pub Quotas in "Quotas of Envoys" {
        QUOTA_ASSIGNMENT_TTL ttl_seconds: u32 = "15" as parse::whole::<_, 10, 3600>, "Seconds that an assignment of a \
            [quota](quota.md) lasts. Each report of an Envoy, every five seconds, renews it.";
        QUOTA_MAX_BUCKETS max_buckets: usize = "10000" as at_least::<1>, "Maximum number of buckets of all \
            streams; further ones are assigned nothing.";
        QUOTA_MAX_BUCKETS_PER_STREAM max_buckets_of_stream: usize = "1000" as at_least::<1>, "Maximum number of \
            buckets of one stream.";
    }
    pub(super) GrpcTlsFiles in "TLS on the gRPC port" {
        GRPC_SERVER_USE_TLS is_on: bool = "false", "Enables TLS 1.2 and 1.3. Plaintext connections are \
            rejected.";
        GRPC_SERVER_TLS_CERT certificate: Option<PathBuf> = "", "Path of the certificate and its chain, in \
            PEM; required with TLS. All files of this group are reloaded when they change.";
        GRPC_SERVER_TLS_KEY key: Option<PathBuf> = "", "Path of the certificate's private key, in PEM; \
            required with TLS.";
        GRPC_CLIENT_TLS_CACERT authorities: Option<PathBuf> = "", "Path of the CAs, in PEM, for client \
            certificates, which are then required.";
        GRPC_CLIENT_TLS_SAN client_name: String = "", "Subject alternative name that client certificates \
            must have: a DNS name, an IP address, a URI such as `spiffe://cluster.local/ns/a/sa/b`, or an \
            e-mail address.";
        GRPC_SERVER_TLS_CA_CERT: String = "", "No effect, as in the Go service; Envoy Gateway sets it. \
            `GRPC_CLIENT_TLS_CACERT` requires client certificates.";
    }
    /// TLS to the servers that the service connects to.
    pub(super) Trust in "TLS to other servers" {
        TLS_TRUST_SYSTEM_CAS in_addition: bool = "false", "Trusts the system's CAs in addition to `REDIS_TLS_CACERT`, \
            `MEMCACHE_TLS_CACERT`, `CONFIG_GRPC_XDS_SERVER_TLS_CACERT` and \
            `OTEL_EXPORTER_OTLP_CERTIFICATE`. By default such a file replaces them; without a file the \
            system's CAs are trusted.";
    }
    pub Http in "HTTP" {
        HOST host: String = "0.0.0.0" as address::host, "Address of the HTTP port.";
        PORT port: u16 = "8080", "HTTP port, for `/healthcheck` and `/json`; `0` takes any free one.";
        JSON_ENABLED json: bool = "true", "Serves `POST /json`, which counts like gRPC but cannot verify \
            client certificates. If unset, it is off with `GRPC_CLIENT_TLS_CACERT`.";
        HTTP_MAX_CONNECTIONS max_connections: usize = "" as at_least::<1>, "Maximum number of \
            connections to each port of this group and to the metrics port, three quarters of them from \
            one address. At the maximum, a connection that sent nothing is closed for a new one, else the \
            one without traffic for longest. As many further connections wait up to 200 ms for that, and \
            are answered at once if they are probes.";
        HTTP_TIMEOUT timeout: Duration = "10s" as parse::positive, "Time for the head of a request, for \
            its body, and for reading the response, on these ports.";
        DEBUG_HOST debug_host: String = "0.0.0.0" as address::host, "Address of the debug port.";
        DEBUG_PORT debug_port: u16 = "6070", "Debug port, for `/rlconfig` and `/stats`; `0` takes any free \
            one.";
    }
    pub AdminVars in "Admin API" {
        ADMIN_ADDR address: Option<HostPort> = "127.0.0.1:6071" as values::admin_address, "Address of the admin API \
            and its page: `host:port`, or `off`. On anything but a loopback address it needs \
            `ADMIN_TOKEN_FILE`. If it is unset and the port is taken, the service takes the next free one up to 6080.";
        ADMIN_UDS socket: Option<PathBuf> = "", "Path of a unix socket for the admin API; replaces the port.";
        ADMIN_TOKEN_FILE token_file: Option<PathBuf> = "", "Path of a file with bearer tokens, one a line: \
            `TOKEN`, or `NAME TOKEN`, whose name appears in the log of changes. Every call then needs one. \
            The file is read again when it changes.";
        ADMIN_READ_ONLY read_only: bool = "false", "Rejects every call that changes something.";
        ADMIN_USE_TLS tls: bool = "false", "Serves the admin API with the gRPC port's TLS: \
            `GRPC_SERVER_TLS_CERT`, and client certificates if `GRPC_CLIENT_TLS_CACERT` is set.";
    }
    pub Decisions in "Decisions" {
        KEY_VALUES key_values: KeyValues = "plain", "How values of descriptors appear in the admin API, on \
            its page, in the logs and in `METRICS_TOP_KEYS`: `plain`; `hashed`, the first 16 digits of their SHA-256; \
            or `hidden`.";
        DECISION_LOG logged: Option<Logged> = "off", "Logs decisions as JSON lines: \
            `refused`, or `sampled:` and a share, such as `sampled:0.01`; `off` logs none. At most 2,500 a \
            second per worker; more are counted as dropped.";
        DECISION_LOG_FILE file: Option<PathBuf> = "", "Path of a file that decisions are appended to; \
            standard output if unset. It may be rotated by renaming it.";
        REQUEST_LOG recorded: Option<Recorded> = "off", "Records whole requests as JSON lines for `tollgate replay`: \
            `all`, or all requests of a share of the descriptors, such as `sampled:0.01`; `off` records none. Needs \
            `KEY_VALUES` other than `hidden`.";
        REQUEST_LOG_FILE request_file: Option<PathBuf> = "", "Path of a file that requests are appended to; \
            standard output if unset. It may be rotated by renaming it.";
        REQUEST_LOG_MAX_LINES max_request_lines: u64 = "10000" as parse::whole::<_, 1, 100_000_000>, "Maximum number \
            of requests to record in a second, over all workers. The others are counted as dropped, and a line of the \
            log says how many are missing.";
        RECENT_REQUESTS_MAX_BYTES recent_request_bytes: usize = "" as parse::whole::<_, 0, 1_073_741_824>, "Maximum \
            number of bytes of whole requests that are kept in memory to try rules on, while the admin API is on: \
            about 100,000 of one descriptor. `0` records none, and so does `KEY_VALUES=hidden`.";
        METRICS_TOP_KEYS metrics_top_keys: usize = "0" as parse::whole::<_, 0, 1000>, "Number of most refused \
            keys, over all rules, to export as `tollgate_top_refused_hits`, and of those that shadow mode allowed as \
            `tollgate_top_shadowed_hits`; `0` exports none.";
    }
    /// Where rules come from and how they are read.
    pub Rules in "Rules" {
        CONFIG_TYPE source: RulesSource = "FILE", "Source of the rules: `FILE`, or `GRPC_XDS_SOTW` for a \
            control plane.";
        RUNTIME_ROOT root: PathBuf = "/srv/runtime_data/current", "Root of the rules directory. If it is \
            unset, the default does not exist and the working directory contains rules, the working \
            directory is used.";
        RUNTIME_SUBDIRECTORY subdirectory: String = "", "Directory below the root.";
        RUNTIME_APPDIRECTORY app_directory: String = "config", "Directory below that one; every file in it \
            is read, at any depth.";
        RUNTIME_IGNOREDOTFILES ignore_dot_files: bool = "false", "Skips files and directories whose name \
            begins with a dot.";
        RUNTIME_WATCH_ROOT watch_root: bool = "true", "Selects what the Go service watches. Tollgate \
            notices every change with either value.";
        MERGE_DOMAIN_CONFIG merge_domains: bool = "false", "Allows several files per domain; their \
            descriptors are joined.";
        RULES_MAX_VALUES max_values: usize = "" as at_least::<1>, "Maximum number of keys, values, \
            lists and maps in all rules files, with aliases expanded. A plain rule has eleven; a message of a \
            control plane counts as five, and a rule has two.";
        FORCE_START_WITHOUT_INITIAL_CONFIG force_start: bool = "false", "Opens the ports before a control \
            plane has sent rules, and returns an error until then. With files the service always starts.";
        HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED healthy_with_at_least_one: bool = "false", "Unhealthy \
            while no rules are loaded.";
    }
    pub(super) ControlPlane in "Rules from a control plane (xDS)" {
        CONFIG_GRPC_XDS_SERVER_URL server: ServerAddress = "localhost:18000" as values::xds_server, "Address of \
            the control plane: `host:port`, or `unix:` and the path of a socket.", login;
        CONFIG_GRPC_XDS_NODE_ID node_id: String = "default", "Node id sent to the control plane.";
        CONFIG_GRPC_XDS_NODE_METADATA node_metadata: String = "", "Node metadata sent to the control \
            plane, as `name=text,name=text`.";
        CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS headers: String = "", "Additional headers, as \
            `name:value,name:value`. Values are never shown.", secret;
        CONFIG_GRPC_XDS_SERVER_USE_TLS use_tls: bool = "false", "Enables TLS. The files below are read for \
            each connection.";
        CONFIG_GRPC_XDS_SERVER_TLS_CACERT ca: Option<PathBuf> = "", "PEM file of CAs; replaces the system's.";
        CONFIG_GRPC_XDS_SERVER_TLS_SAN server_name: String = "" as address::host, "Name that the control \
            plane's certificate must have; defaults to the host.";
        CONFIG_GRPC_XDS_CLIENT_TLS_CERT certificate: Option<PathBuf> = "", "PEM file of the client \
            certificate.";
        CONFIG_GRPC_XDS_CLIENT_TLS_KEY key: Option<PathBuf> = "", "PEM file of its key.";
        CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL connect_retry_interval: Duration = "3s" as xds::delay, "Delay \
            between attempts to connect, times 0.5 to 1.5.";
        => backoff: XdsBackoff {
            XDS_CLIENT_BACKOFF_INITIAL_INTERVAL initial: Duration = "10s" as xds::delay, "First delay after a stream \
                was closed.";
            XDS_CLIENT_BACKOFF_MAX_INTERVAL max: Duration = "60s" as xds::delay, "Maximum delay.";
            XDS_CLIENT_BACKOFF_RANDOM_FACTOR factor: f64 = "0.5" as values::backoff_factor, "Backoff multiplier, \
                as in the Go service. Values of 1 or less disable growth.";
            XDS_CLIENT_BACKOFF_JITTER jitter: bool = "true", "Multiplies each delay by a random 0.5 to \
                1, so that replicas do not reconnect together.";
        }
        XDS_CLIENT_KEEPALIVE_INTERVAL keepalive_interval: Duration = "6m", "Idle time after which the \
            control plane is pinged. Servers of gRPC's libraries disconnect clients that ping within five \
            minutes. `0` is never; TCP keepalive detects a dead peer within a minute anyway.";
        XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES max_message_bytes: usize = "0" as parse::whole::<_, 0, { u32::MAX as u64 }>,
            "Maximum size of a response; `0` is 32 bytes for each of `RULES_MAX_VALUES`. The default of the Go service \
            is 4 MiB.";
    }
    pub Store in "Counters" {
        BACKEND_TYPE: BackendType = "memory", "Counter store: `redis` or `memcache`, shared by all \
            replicas, or `memory`, where each replica counts by itself. If it is unset and any Redis \
            variable is set, `redis`.";
        STORE_FAILURE_POLICY on_failure: OnStoreFailure = "error", "Decision when counters are unreachable, \
            unless the domain's rules have `on_store_failure`: `error`, which Envoy's `failure_mode_deny` \
            resolves; `allow`; `deny`; `local`, counted by this replica; or `share`, counted by this replica against \
            the limit divided by the replicas that share the Redis.";
        MEMORY_MAX_KEYS max_keys: usize = "" as at_least::<1>, "Maximum number of counters in \
            memory.";
        COUNTING counting: CountingMode = "exact", "Counting mode of limits without `counting`, in Redis: `exact` \
            counts every hit before it is decided, `leased` reserves hits of hot keys ahead of time.";
        LEASE_MAX_KEYS max_leases: usize = "" as at_least::<1>, "Maximum number of keys with a lease. \
            Beyond it the coldest key returns its hits.";
        => holds: MostHolds {
            HOLDS_MAX in_all: usize = "1000000" as at_least::<1>, "Maximum number of open holds: in memory of all \
                counters; in Redis of requests that hold, in a cluster in each slot. As many that ended are remembered.";
            HOLDS_MAX_PER_COUNTER of_counter: usize = "100000" as at_least::<1>, "Maximum number of open \
                holds of a counter.";
            HOLDS_MAX_BYTES bytes: usize = "" as at_least::<1024>, "Maximum memory of holds in this \
                process, at 1,024 bytes each: all with `BACKEND_TYPE=memory`, those of the policies `local` and `share` with others.";
        }
        HOLDS_MAX_QUEUED max_holds_queued: usize = "" as at_least::<1>, "Maximum number of settles and ends \
            that wait until the store takes them. Those beyond it are lost.";
        LOCAL_CACHE_SIZE_IN_BYTES local_cache_bytes: usize = "0" as at_least::<0>, "Size of the cache of \
            keys over their limit; `0` disables it.";
        NEAR_LIMIT_RATIO near_limit_ratio: f32 = "0.8", "Share of a limit from which hits count as \
            `near_limit`.";
        CACHE_KEY_PREFIX key_prefix: String = "", "Prefix of every key.";
        COUNTER_KEY_FORMAT key_format: KeyFormat = "compatible", "Keys of counters in Redis and memcached: \
            `compatible`, shared with the Go service, or `unambiguous`, which values chosen by callers \
            cannot make collide. Keys in memory are unambiguous.";
        STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT stop_when_over: bool = "false", "A request that one of its \
            limits refuses adds no hits to the others.";
        USE_CALENDAR_MONTH_RATE_LIMIT calendar_months: bool = "false", "A limit per month without `calendar` \
            counts calendar months in UTC instead of 30 days, as in the Go service.";
        EXPIRATION_JITTER_MAX_SECONDS expiration_jitter_max: Duration = "300" as parse::seconds::<CENTURY>,
            "Maximum random delay of the expiry of counters in Redis and memcached. Counters in memory expire \
            with their window.";
    }
    /// Overrides, and the replicas that share them.
    pub Overrides in "Overrides" {
        OVERRIDES_FILE file: Option<PathBuf> = "", "File of overrides if counters are not in Redis; created if \
            missing. Without it, overrides are lost when the process stops. With Redis, overrides are stored in Redis.";
        REPLICA_SYNC replica_sync: bool = "true", "Shares overrides, resets and refunds of counters with the \
            replicas that use the same Redis, and lists those replicas; shares resets and refunds with those that use \
            the same memcached. If `false`, overrides are stored as without Redis.";
        REPLICA_SUMMARIES replica_summaries: bool = "true", "Publishes a summary of at most 16 KB every two seconds \
            to the Redis, with `REPLICA_SYNC`: top keys, refusals, rates and latencies, with values as `KEY_VALUES` \
            shows them. `ADMIN_ADDR=off` does not end it. If `false`, the other replicas show this one without its numbers.";
    }
    /// A Redis: the first or the second one.
    pub(super) RedisVars in "Redis" {
        REDIS_URL url: String = "", "Address of Redis: `host:port`, the path of a unix socket, or a URL \
            `redis://user:password@host:port/database`, `rediss://` for TLS. With `REDIS_TYPE=SENTINEL` \
            the master's name and the sentinels, `name,host:port,…`; with `CLUSTER` some of the nodes, \
            `host:port,…`.", login;
        REDIS_SOCKET_TYPE socket_type: Option<SocketType> = "", "`tcp` or `unix`; if unset, derived from \
            `REDIS_URL`. Sentinels and clusters always use TCP.";
        REDIS_TYPE kind: RedisType = "SINGLE", "`SINGLE`, `SENTINEL` or `CLUSTER`; case-insensitive.";
        REDIS_AUTH: String = "", "`password` or `user:password`; takes precedence over `REDIS_URL`.",
            secret;
        REDIS_AUTH_FILE: Option<PathBuf> = "", "File with one line, `password` or `user:password`, in place \
            of `REDIS_AUTH`. It is read for each connection and every two seconds.";
        REDIS_SENTINEL_AUTH: String = "", "`REDIS_AUTH` for the sentinels.", secret;
        REDIS_SENTINEL_AUTH_FILE: Option<PathBuf> = "", "`REDIS_AUTH_FILE` for the sentinels.";
        REDIS_AWS_IAM_AUTH iam: bool = "false", "Logs in to ElastiCache or MemoryDB with an AWS identity, in place of \
            `REDIS_AUTH`. Needs `REDIS_TLS`.";
        REDIS_AWS_IAM_CACHE_NAME iam_cache: String = "", "Name of the replication group, the serverless cache or the MemoryDB \
            cluster.";
        REDIS_AWS_IAM_USER_ID iam_user: String = "", "Id of the user, which equals its name.";
        REDIS_AWS_IAM_REGION iam_region: String = "", "Region of the cache; defaults to `AWS_REGION`, then \
            `AWS_DEFAULT_REGION`.";
        REDIS_AWS_IAM_SERVICE iam_service: Service = "elasticache", "`elasticache` or `memorydb`.";
        REDIS_AWS_IAM_SERVERLESS iam_serverless: bool = "false", "The cache is a serverless one of ElastiCache.";
        REDIS_TLS use_tls: bool = "false", "Enables TLS.";
        REDIS_TLS_CACERT: Option<PathBuf> = "", "PEM file of CAs; replaces the system's. This and the next \
            three apply to the second Redis too.";
        REDIS_TLS_CLIENT_CERT: Option<PathBuf> = "", "PEM file of the client certificate.";
        REDIS_TLS_CLIENT_KEY: Option<PathBuf> = "", "PEM file of its key.";
        REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: bool = "false", "Accepts a certificate for another host. Its \
            signature is still verified.";
        REDIS_TIMEOUT: Duration = "10ms", "Time limit of an operation; then `STORE_FAILURE_POLICY` \
            decides.";
        REDIS_CONNECT_TIMEOUT connect_timeout: Duration = "300ms" as parse::positive, "Time limit for \
            connecting, including TLS and authentication; for the second Redis too.";
        REDIS_POOL_SIZE connections: usize = "10" as values::redis_pool_size, "Maximum number of connections to \
            each server; `0` is 4, as in the Go service.";
        REDIS_MAX_QUEUED max_queued: usize = "8192" as at_least::<1>, "Maximum number of checks queued per \
            connection; more fail at once. For the second Redis too.";
        REDIS_PIPELINE_WINDOW pipeline_window: Duration = "0", "Time to gather checks before they are \
            sent. With `0` checks are sent at once, and gather only while a pipeline is in flight.";
        REDIS_HEALTH_CHECK_ACTIVE_CONNECTION unhealthy_without: bool = "false", "Unhealthy while a \
            master of Redis is not connected or refuses writes.";
        REDIS_STARTUP_INITIAL_INTERVAL startup_initial: Duration = "50ms", "Delay after the first failed \
            connection since the start. It doubles with each attempt.";
        REDIS_STARTUP_MAX_INTERVAL startup_max: Duration = "300ms", "Maximum delay.";
        REDIS_STARTUP_MAX_ELAPSED_TIME startup_give_up_after: Duration = "0", "Stops the service if Redis \
            was not reached in this time since the start; `0` retries forever.";
        REDIS_PIPELINE_LIMIT: () = "0" as parse::unused_integer, "No effect, as in the Go \
            service.";
        REDIS_CLUSTER_PIPELINE_PARALLELISM: () = "1" as parse::unused_count, "No effect: the \
            nodes of a cluster are always queried concurrently.";
        REDIS_POOL_ON_EMPTY_BEHAVIOR: String = "WAIT", "No effect: `REDIS_MAX_QUEUED` bounds the \
            queue.";
        REDIS_POOL_ON_EMPTY_WAIT_DURATION: String = "", "No effect: `REDIS_TIMEOUT` bounds the wait.";
    }
    /// The second Redis, whose variables `RedisVars` reads.
    pub(super) SecondRedis in "A second Redis, for limits per second" {
        REDIS_PERSECOND is_on: bool = "false", "Counts limits with the unit `second` in a second Redis, \
            configured by the variables below.";
        REDIS_PERSECOND_URL: String = "", "Its `REDIS_URL`.", login;
        REDIS_PERSECOND_SOCKET_TYPE: String = "", "Its `REDIS_SOCKET_TYPE`.";
        REDIS_PERSECOND_TYPE: String = "SINGLE", "Its `REDIS_TYPE`.";
        REDIS_PERSECOND_AUTH: String = "", "Its `REDIS_AUTH`.", secret;
        REDIS_PERSECOND_AUTH_FILE: Option<PathBuf> = "", "Its `REDIS_AUTH_FILE`.";
        REDIS_PERSECOND_SENTINEL_AUTH: String = "", "Its `REDIS_SENTINEL_AUTH`.", secret;
        REDIS_PERSECOND_SENTINEL_AUTH_FILE: Option<PathBuf> = "", "Its `REDIS_SENTINEL_AUTH_FILE`.";
        REDIS_PERSECOND_AWS_IAM_AUTH: bool = "false", "Its `REDIS_AWS_IAM_AUTH`.";
        REDIS_PERSECOND_AWS_IAM_CACHE_NAME: String = "", "Its `REDIS_AWS_IAM_CACHE_NAME`.";
        REDIS_PERSECOND_AWS_IAM_USER_ID: String = "", "Its `REDIS_AWS_IAM_USER_ID`.";
        REDIS_PERSECOND_AWS_IAM_REGION: String = "", "Its `REDIS_AWS_IAM_REGION`.";
        REDIS_PERSECOND_AWS_IAM_SERVICE: String = "elasticache", "Its `REDIS_AWS_IAM_SERVICE`.";
        REDIS_PERSECOND_AWS_IAM_SERVERLESS: bool = "false", "Its `REDIS_AWS_IAM_SERVERLESS`.";
        REDIS_PERSECOND_TLS: bool = "false", "Its `REDIS_TLS`.";
        REDIS_PERSECOND_TIMEOUT: Duration = "10ms", "Its `REDIS_TIMEOUT`.";
        REDIS_PERSECOND_POOL_SIZE: String = "10", "Its `REDIS_POOL_SIZE`.";
        REDIS_PERSECOND_PIPELINE_WINDOW: Duration = "0", "Its `REDIS_PIPELINE_WINDOW`.";
        REDIS_PERSECOND_PIPELINE_LIMIT: String = "0", "No effect.";
        REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM: String = "1", "No effect.";
        REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR: String = "WAIT", "No effect.";
        REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION: String = "", "No effect.";
    }
    /// Read with `REDIS_AWS_IAM_AUTH` only. The names are those of AWS' SDKs.
    pub(super) AwsVars in "AWS credentials" {
        AWS_REGION region: String = "", "Region. The variables of this group are read with `REDIS_AWS_IAM_AUTH` only.";
        AWS_DEFAULT_REGION default_region: String = "", "Region, if `AWS_REGION` is unset.";
        AWS_ACCESS_KEY_ID access_key: String = "", "Access key. If it is unset, the next variables that are set are the source \
            of credentials, and without any the instance metadata service.";
        AWS_SECRET_ACCESS_KEY secret_key: String = "", "Its secret.", secret;
        AWS_SESSION_TOKEN session_token: String = "", "Its session token, if it is temporary.", secret;
        AWS_WEB_IDENTITY_TOKEN_FILE web_identity: Option<PathBuf> = "", "File of a token for STS, as EKS sets it for a service \
            account with a role.";
        AWS_ROLE_ARN role: String = "", "Role of that token.";
        AWS_ROLE_SESSION_NAME role_session: String = "tollgate", "Name of its sessions.";
        AWS_ENDPOINT_URL_STS sts: Option<Uri> = "" as |text| parse::optional(text, values::http_url), "URL of STS; defaults to \
            that of the region.";
        AWS_CONTAINER_CREDENTIALS_FULL_URI container: Option<Uri> = "" as |text| parse::optional(text, values::http_url), "URL of \
            the agent that has the credentials of a container, as EKS Pod Identity sets it.";
        AWS_CONTAINER_CREDENTIALS_RELATIVE_URI container_path: String = "", "Its path at `http://169.254.170.2`, as ECS sets it.";
        AWS_CONTAINER_AUTHORIZATION_TOKEN container_token: String = "", "Header `Authorization` for the agent.", secret;
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE container_token_file: Option<PathBuf> = "", "File with that header; takes \
            precedence.";
        AWS_EC2_METADATA_DISABLED no_metadata: bool = "false", "Does not ask the instance metadata service.";
        AWS_EC2_METADATA_SERVICE_ENDPOINT metadata: Option<Uri> = "http://169.254.169.254" as |text| parse::optional(text, values::http_url), "URL \
            of the instance metadata service (IMDSv2).";
    }
    pub(super) MemcachedVars in "Memcached" {
        MEMCACHE_HOST_PORT servers: Vec<ServerAddress> = "" as values::memcached_servers, "Servers, \
            `host:port,host:port,…`; the default port is 11211, and a path is a unix socket. Their order \
            determines which server has a key, as in the Go service.";
        MEMCACHE_SRV srv: Option<String> = "" as |text| parse::optional(text, values::memcached_srv), "DNS SRV record that lists the servers, \
            `_memcache._tcp.example.com`; replaces `MEMCACHE_HOST_PORT`.";
        MEMCACHE_SRV_REFRESH srv_refresh: Duration = "0", "Interval at which the SRV record is resolved \
            again; `0` is never after the first answer.";
        MEMCACHE_TLS use_tls: bool = "false", "Enables TLS.";
        MEMCACHE_TLS_CACERT: Option<PathBuf> = "", "PEM file of CAs; replaces the system's.";
        MEMCACHE_TLS_CLIENT_CERT: Option<PathBuf> = "", "PEM file of the client certificate.";
        MEMCACHE_TLS_CLIENT_KEY: Option<PathBuf> = "", "PEM file of its key.";
        MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION: bool = "false", "Accepts a certificate for another host. \
            Its signature is still verified.";
        MEMCACHE_TIMEOUT: Duration = "10ms", "Time limit of an operation; then \
            `STORE_FAILURE_POLICY` decides.";
        MEMCACHE_CONNECT_TIMEOUT connect_timeout: Duration = "300ms" as parse::positive, "Time limit \
            for connecting, including TLS.";
        MEMCACHE_MAX_QUEUED max_queued: usize = "8192" as at_least::<1>, "Maximum number of checks queued \
            per connection; more fail at once.";
        MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION unhealthy_without: bool = "false", "Unhealthy while there \
            is no connection to one of the servers.";
        MEMCACHE_MAX_IDLE_CONNS: () = "2" as parse::unused_integer, "No effect: each worker \
            thread keeps one connection to each server.";
    }
    pub Answers in "Responses" {
        SHADOW_MODE shadow_mode: bool = "false", "Allows every request; requests over their limit are \
            counted.";
        QUOTA_MODE quota_mode: bool = "false", "Every limit is a quota: a request is rejected when all of \
            its quotas are used up.";
        QUOTA_GROUPS_ENABLED quota_groups: bool = "false", "Quotas form groups by the entries `backend_name` and \
            `model_name_override`: a request is rejected when every group has a quota that is used up.";
        RESPONSE_DYNAMIC_METADATA dynamic_metadata: bool = "false", "Adds descriptors and the rules' \
            `metadata` to responses.";
        RESPONSE_DYNAMIC_METADATA_LIMITS dynamic_metadata_limits: bool = "false", "Adds the same, and for \
            each descriptor its rule, the governing limit and the decision.";
        RESPONSE_DYNAMIC_METADATA_CODES dynamic_metadata_codes: bool = "false", "Adds `code` and `limitName` to \
            each descriptor in the metadata.";
        LIMIT_RESPONSE_HEADERS_ENABLED headers: bool = "false", "Adds the three headers below to responses.";
        => header_names: HeaderNames {
            LIMIT_LIMIT_HEADER limit: Arc<str> = "RateLimit-Limit", "Name of the header with the limit.";
            LIMIT_REMAINING_HEADER remaining: Arc<str> = "RateLimit-Remaining", "Name of the header with \
                the remaining hits.";
            LIMIT_RESET_HEADER reset: Arc<str> = "RateLimit-Reset", "Name of the header with the seconds \
                until the reset.";
        }
        LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED all_headers: bool = "false", "Adds `ratelimit-limit-<unit>s` and \
            `ratelimit-remaining-<unit>s` to responses for every descriptor with a limit.";
        LIMIT_REQUEST_HEADERS_ENABLED request_headers: bool = "false", "Has Envoy add the three headers below to \
            the request that it forwards.";
        => request_header_names: HeaderNames {
            LIMIT_REQUEST_LIMIT_HEADER limit: Arc<str> = "RateLimit-Limit", "Name of the header with \
                the limit.";
            LIMIT_REQUEST_REMAINING_HEADER remaining: Arc<str> = "RateLimit-Remaining", "Name of the \
                header with the remaining hits.";
            LIMIT_REQUEST_RESET_HEADER reset: Arc<str> = "RateLimit-Reset", "Name of the header with \
                the seconds until the reset.";
        }
        LIMIT_RETRY_AFTER_HEADER retry_after_header: Option<String> = "" as |text| parse::optional(text, parse::header_name), "Name \
            of a header, such as `Retry-After`, with the seconds until a rejected request would be \
            allowed.";
        LIMIT_POLICY_HEADERS policy_headers: PolicyHeaders = "false", "Adds `RateLimit-Policy` and `RateLimit` to \
            responses, as in the IETF draft: `true`, or `keys` with a partition key (`pk`) of each limit, a hash of the \
            descriptor's entries.";
        OVER_LIMIT_BODY over_limit_body: Option<Template> = "", "Body of over-limit \
            responses for rules without `over_limit_body`: JSON if it begins with a brace or a bracket, \
            else text, and `problem` is problem details. \
            Placeholders: `{limit}`, `{unit}`, `{remaining}`, `{retry_after}`, `{rule}` and `{policies}`.";
    }
    pub Metrics in "Metrics" {
        USE_PROMETHEUS use_prometheus: bool = "true", "Serves metrics to Prometheus; off by default in the \
            Go service.";
        PROMETHEUS_ADDR prometheus_address: HostPort = ":9090", "Address of the \
            metrics port, as `host:port`; without a host, all addresses.";
        PROMETHEUS_PATH prometheus_path: String = "/metrics" as parse::url_path, "Path of the metrics.";
        PROMETHEUS_MAPPER_YAML mapper: Option<PathBuf> = "", "Path of a file in the format of \
            `statsd_exporter` that maps names and labels; a missing file has no effect.";
        PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS response_time_in_milliseconds: bool = "false", "Response \
            times in milliseconds, though the name ends in seconds; no effect with a mapper file.";
        METRICS_MAX_SERIES max_series: usize = "" as at_least::<1>, "Maximum number of series named \
            by requests (`detailed_metric`, `value_to_metric`, limit overrides, unknown domains), over all \
            metrics. Further ones are counted in `__overflow__`, one per domain.";
        DISABLE_STATS disable: bool = "false", "Disables metrics and sinks, whatever the other variables \
            are.";
        USE_STATSD use_statsd: bool = "true", "Sends metrics to statsd. If unset, off when \
            `USE_PROMETHEUS` or `USE_DOG_STATSD` is true, and a refused connection is not a warning.";
        STATSD_HOST statsd_host: String = "localhost" as address::host, "Host of statsd.";
        STATSD_PORT statsd_port: u16 = "8125", "Port of statsd.";
        STATSD_PROTOCOL statsd_protocol: StatsdProtocol = "tcp", "`tcp` as in the Go service, `udp`, or \
            the path of a unix socket, which replaces host and port.";
        USE_DOG_STATSD use_dog_statsd: bool = "false", "Sends metrics with tags, in the format of \
            Datadog's agent.";
        DOG_STATSD_ADDR dog_statsd_address: Option<SinkAddress> = "", "Address of \
            the agent: `host:port` (UDP), or the path of its unix socket; defaults to `STATSD_HOST` and \
            `STATSD_PORT`.";
        USE_DOG_STATSD_MOGRIFIERS mogrifiers: String = "", "Comma-separated names of rules that turn parts \
            of a metric's name into tags: `DOG_STATSD_MOGRIFIER_<NAME>_PATTERN`, `…_NAME` and `…_TAGS`.";
        DD_ENTITY_ID entity_id: String = "", "Tag `dd.internal.entity_id`.";
        DD_ENV env: String = "", "Tag `env`.";
        DD_SERVICE service: String = "", "Tag `service`.";
        DD_VERSION version: String = "", "Tag `version`.";
        EXTRA_TAGS tags: Tags = "" as values::tags, "Tags of all metrics that are sent, to statsd too: \
            `key:value,key:value`.";
        STATS_FLUSH_INTERVAL flush_interval: Duration = "10s" as parse::positive, "Interval at which \
            metrics are sent.";
    }
    pub(super) Tracing in "Tracing" {
        TRACING_ENABLED: bool = "false", "Sends a span for each sampled call to a collector, over OTLP. \
            The other variables of this group need it.";
        TRACING_EXPORTER_PROTOCOL protocol: Protocol = "http", "`http` or `grpc`.";
        TRACING_SAMPLING_RATE sampling_rate: f32 = "1", "Share of the calls without a sampling decision \
            that are traced, from 0 to 1.";
        TRACING_DESCRIPTOR_VALUES descriptor_values: bool = "false", "Adds keys and values of descriptors \
            to spans; they may identify people.";
        OTEL_BSP_MAX_QUEUE_SIZE max_queued: usize = "2048" as parse::whole::<_, 1, MILLION>, "Maximum \
            number of queued spans; further ones are dropped and counted.";
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE max_batch: usize = "512" as parse::whole::<_, 1, MILLION>, "Spans \
            per export.";
        OTEL_BSP_SCHEDULE_DELAY delay: Duration = "5000" as parse::milliseconds::<0, HOUR>,
            "Maximum delay before a span is exported, in milliseconds.";
    }
    pub(super) MetricsOverOtlp in "Metrics over OTLP" {
        OTEL_METRICS_EXPORTER: bool = "none" as values::exports_over_otlp, "`otlp` sends all metrics to a \
            collector; `none` does not, nor does `prometheus`, whose page has `USE_PROMETHEUS`.";
        OTEL_METRIC_EXPORT_INTERVAL interval: Duration = "60000" as parse::milliseconds::<1, HOUR>, "Interval of \
            exports in milliseconds.";
        OTEL_METRIC_EXPORT_TIMEOUT timeout: Duration = "30000" as parse::milliseconds::<1, HOUR>, "Time limit of \
            an export in milliseconds, over all of its messages.";
        OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE temporality: Temporality = "cumulative", "`cumulative` \
            sends counts since the start, `delta` those since the last accepted export, `lowmemory` deltas of \
            histograms alone.";
    }
    pub(super) OpenTelemetry in "OpenTelemetry collector" {
        TRACING_SERVICE_NAME service_name: String = "RateLimit", "Service name in spans and metrics.";
        TRACING_SERVICE_NAMESPACE service_namespace: String = "", "Service namespace.";
        TRACING_SERVICE_INSTANCE_ID service_instance_id: String = "", "Service instance id; a \
            random UUID if unset.";
        OTEL_RESOURCE_ATTRIBUTES resource_attributes: String = "", "Further resource attributes: \
            `name=value,name=value`.";
        OTEL_EXPORTER_OTLP_ENDPOINT: String = "", "URL of the collector; `/v1/traces` or `/v1/metrics` \
            is appended for HTTP. Defaults to `http://localhost:4318`, or `http://localhost:4317` for gRPC.", login;
        OTEL_EXPORTER_OTLP_PROTOCOL: Protocol = "http/protobuf" as values::otlp_protocol, "`http/protobuf` or \
            `grpc`, for metrics; spans have `TRACING_EXPORTER_PROTOCOL`.";
        OTEL_EXPORTER_OTLP_HEADERS: HeaderMap = "" as values::headers, "Headers of every export: \
            `name=value,name=value`, values percent-encoded.", secret;
        OTEL_EXPORTER_OTLP_TIMEOUT: Duration = "10000" as parse::milliseconds::<1, HOUR>, "Time limit \
            of an export in milliseconds.";
        OTEL_EXPORTER_OTLP_COMPRESSION: bool = "none" as values::gzip, "`gzip` or `none`.";
        OTEL_EXPORTER_OTLP_CERTIFICATE: Option<PathBuf> = "", "PEM file of CAs; replaces the system's.";
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE: Option<PathBuf> = "", "PEM file of the client certificate.";
        OTEL_EXPORTER_OTLP_CLIENT_KEY: Option<PathBuf> = "", "PEM file of its key.";
        OTEL_EXPORTER_OTLP_INSECURE: bool = "false", "Disables TLS if the URL has no scheme.";
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: String = "", "For spans in place of \
            `OTEL_EXPORTER_OTLP_ENDPOINT`, and used as it is. The next seven take precedence likewise.",
            login;
        OTEL_EXPORTER_OTLP_TRACES_HEADERS: HeaderMap = "" as values::headers, "Headers.", secret;
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: Duration = "10000" as parse::milliseconds::<1, HOUR>, "Time \
            limit in milliseconds.";
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION: bool = "none" as values::gzip, "Compression.";
        OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE: Option<PathBuf> = "", "CAs.";
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE: Option<PathBuf> = "", "Client certificate.";
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY: Option<PathBuf> = "", "Its key.";
        OTEL_EXPORTER_OTLP_TRACES_INSECURE: bool = "false", "Disables TLS.";
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: String = "", "For metrics in place of \
            `OTEL_EXPORTER_OTLP_ENDPOINT`, and used as it is. The next eight take precedence likewise.",
            login;
        OTEL_EXPORTER_OTLP_METRICS_PROTOCOL: Protocol = "http/protobuf" as values::otlp_protocol, "Protocol.";
        OTEL_EXPORTER_OTLP_METRICS_HEADERS: HeaderMap = "" as values::headers, "Headers.", secret;
        OTEL_EXPORTER_OTLP_METRICS_TIMEOUT: Duration = "10000" as parse::milliseconds::<1, HOUR>, "Time \
            limit in milliseconds.";
        OTEL_EXPORTER_OTLP_METRICS_COMPRESSION: bool = "none" as values::gzip, "Compression.";
        OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE: Option<PathBuf> = "", "CAs.";
        OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE: Option<PathBuf> = "", "Client certificate.";
        OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY: Option<PathBuf> = "", "Its key.";
        OTEL_EXPORTER_OTLP_METRICS_INSECURE: bool = "false", "Disables TLS.";
    }
    pub Log in "Logs" {
        LOG_LEVEL level: Option<Level> = "INFO" as parse::level, "`trace`, `debug`, `info`, `warn`, `error`, or `fatal` and \
            `panic` for no logs.";
        LOG_FORMAT format: LogFormat = "text", "`text`, or `json` with `@timestamp`, `@message` and `level`.";
    }
}
