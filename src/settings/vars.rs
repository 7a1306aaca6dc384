//! The table of every environment variable: its name, its default, what it does.
//!
//! Readers take defaults from here and docs/settings.md is generated from here, so the program and its
//! documentation cannot differ. Names are those of the Go service where it has the variable.

pub use super::variable::Var;

use super::variable::variables;

variables! {
    "gRPC server" {
        GRPC_HOST = "0.0.0.0", "Address of the gRPC port; `0.0.0.0` and `::` both mean all, IPv4 and IPv6.";
        GRPC_PORT = "8081", "gRPC port; `0` takes any free one.";
        GRPC_UDS = "", "Path of a unix socket for gRPC; replaces the port.";
        GRPC_SERVER = "fast", "HTTP/2 implementation of the gRPC port: `fast`, made for `ShouldRateLimit`, \
            or `tonic`, the reference, with the same responses at several times the CPU.";
        GRPC_WORKERS = "0", "Worker threads for gRPC, each with its own connections; `0` is one per core \
            that the process may use.";
        GRPC_MAX_CONNECTION_AGE = "24h", "Age, ±10 %, after which a connection receives a GOAWAY, so that \
            clients spread over new replicas; `0` is never.";
        GRPC_MAX_CONNECTION_AGE_GRACE = "1h", "Time for the open requests of such a connection; `0` is \
            unlimited.";
        GRPC_KEEPALIVE_INTERVAL = "2m", "Idle time after which a connection is pinged, to detect dead \
            peers and to keep load balancers from dropping idle connections. `0` is never.";
        GRPC_KEEPALIVE_TIMEOUT = "20s", "Time for the response to a ping; then the connection is closed.";
        GRPC_MAX_CONNECTIONS = "10000", "Maximum number of connections. At the maximum, a connection \
            without an HTTP/2 preface is closed for a new one, else the one idle longest; while all are \
            busy, new ones are refused.";
        GRPC_MAX_CONNECTIONS_PER_ADDRESS = "0", "The same per peer address (for IPv6, per /64 network); \
            `0` is three quarters of `GRPC_MAX_CONNECTIONS`, so that one NAT or load balancer works but \
            cannot take every connection. Does not apply to unix sockets.";
        GRPC_MAX_CONCURRENT_STREAMS = "1024", "Maximum number of concurrent requests per connection.";
        GRPC_MAX_REQUEST_BYTES = "4194304", "Maximum size of a request.";
        GRPC_RECEIVE_TIMEOUT = "5s", "Time within which a request must be complete; later it returns \
            DEADLINE_EXCEEDED.";
        GRPC_MAX_INFLIGHT_BYTES = "67108864", "Memory for incomplete requests and unread responses of all \
            connections; at least four times `GRPC_MAX_REQUEST_BYTES`, which is also the default if \
            larger. Beyond it requests return RESOURCE_EXHAUSTED.";
        MAX_DESCRIPTORS_PER_REQUEST = "128", "Maximum number of descriptors per request; more return \
            INVALID_ARGUMENT.";
        MAX_ENTRIES_PER_DESCRIPTOR = "64", "Maximum number of entries per descriptor; more return \
            INVALID_ARGUMENT.";
        SHUTDOWN_DELAY = "0s", "Time between SIGTERM, when the service becomes unhealthy, and closing the \
            listeners.";
        SHUTDOWN_TIMEOUT = "30s", "Time for open requests after that.";
    }
    "TLS on the gRPC port" {
        GRPC_SERVER_USE_TLS = "false", "Enables TLS 1.2 and 1.3. Plaintext connections are rejected.";
        GRPC_SERVER_TLS_CERT = "", "Path of the certificate and its chain, in PEM; required with TLS. All \
            files of this group are reloaded when they change.";
        GRPC_SERVER_TLS_KEY = "", "Path of the certificate's private key, in PEM; required with TLS.";
        GRPC_CLIENT_TLS_CACERT = "", "Path of the CAs, in PEM, for client certificates, which are then \
            required.";
        GRPC_CLIENT_TLS_SAN = "", "Subject alternative name that client certificates must have: a DNS \
            name, an IP address, a URI such as `spiffe://cluster.local/ns/a/sa/b`, or an e-mail address.";
        GRPC_SERVER_TLS_CA_CERT = "", "No effect, as in the Go service; Envoy Gateway sets it. \
            `GRPC_CLIENT_TLS_CACERT` requires client certificates.";
    }
    "TLS to other servers" {
        TLS_TRUST_SYSTEM_CAS = "false", "Trusts the system's CAs in addition to `REDIS_TLS_CACERT`, \
            `MEMCACHE_TLS_CACERT`, `CONFIG_GRPC_XDS_SERVER_TLS_CACERT` and \
            `OTEL_EXPORTER_OTLP_CERTIFICATE`. By default such a file replaces them; without a file the \
            system's CAs are trusted.";
    }
    "HTTP" {
        HOST = "0.0.0.0", "Address of the HTTP port.";
        PORT = "8080", "HTTP port, for `/healthcheck` and `/json`; `0` takes any free one.";
        JSON_ENABLED = "true", "Serves `POST /json`, which counts like gRPC but cannot verify client \
            certificates. If unset, it is off with `GRPC_CLIENT_TLS_CACERT`.";
        HTTP_MAX_CONNECTIONS = "512", "Maximum number of connections to each port of this group and to the \
            metrics port, three quarters of them from one address. At the maximum, a connection that sent \
            nothing is closed for a new one, else the one without traffic for longest. 16 further \
            connections are reserved for probes.";
        HTTP_TIMEOUT = "10s", "Time for the head of a request, for its body, and for reading the response, \
            on these ports.";
        DEBUG_HOST = "0.0.0.0", "Address of the debug port.";
        DEBUG_PORT = "6070", "Debug port, for `/rlconfig` and `/stats`; `0` takes any free one.";
    }
    "Admin API" {
        ADMIN_ADDR = "127.0.0.1:6071", "Address of the admin API and its page: `host:port`, or `off`. On \
            anything but a loopback address it needs `ADMIN_TOKEN_FILE`. If it is unset and the port is \
            taken, the service runs without it.";
        ADMIN_UDS = "", "Path of a unix socket for the admin API; replaces the port.";
        ADMIN_TOKEN_FILE = "", "Path of a file with bearer tokens, one a line: `TOKEN`, or `NAME TOKEN`, \
            whose name appears in the log of changes. Every call then needs one. The file is read again \
            when it changes.";
        ADMIN_READ_ONLY = "false", "Rejects every call that changes something.";
        KEY_VALUES = "plain", "How values of descriptors appear in the admin API, on its page, in the log of \
            decisions and in `METRICS_TOP_KEYS`: `plain`, `hashed`, the first 16 digits of their SHA-256, or \
            `hidden`.";
        DECISION_LOG = "off", "Logs decisions as JSON lines: `refused`, or `sampled:` and a share, such as \
            `sampled:0.01`; `off` logs none. At most 2,500 a second per worker; more are counted as dropped.";
        DECISION_LOG_FILE = "", "Path of the file they are appended to; standard output if unset. It may be \
            moved away at any time.";
        ADMIN_USE_TLS = "false", "Serves the admin API with the gRPC port's TLS: `GRPC_SERVER_TLS_CERT`, \
            and client certificates if `GRPC_CLIENT_TLS_CACERT` is set.";
    }
    "Rules" {
        CONFIG_TYPE = "FILE", "Source of the rules: `FILE`; `GRPC_XDS_SOTW`, a control plane that sends \
            all rules each time; or `GRPC_XDS_DELTA`, one that sends changes, which the Go service does \
            not support.";
        RUNTIME_ROOT = "/srv/runtime_data/current", "Root of the rules directory. If it is unset, the \
            default does not exist and the working directory contains rules, the working directory is \
            used.";
        RUNTIME_SUBDIRECTORY = "", "Directory below the root.";
        RUNTIME_APPDIRECTORY = "config", "Directory below that one; every file in it is read, at any depth.";
        RUNTIME_IGNOREDOTFILES = "false", "Skips files and directories whose name begins with a dot.";
        RUNTIME_WATCH_ROOT = "true", "Selects what the Go service watches. Tollgate notices every change \
            with either value.";
        MERGE_DOMAIN_CONFIG = "false", "Allows several files per domain; their descriptors are joined.";
        RULES_MAX_VALUES = "500000", "Maximum number of keys, values, lists and maps in all rules files, \
            with aliases expanded, or of messages in all resources of a control plane. A rule has about \
            nine; each takes up to half a kilobyte while rules are read.";
        FORCE_START_WITHOUT_INITIAL_CONFIG = "false", "Opens the ports before a control plane has sent \
            rules, and returns an error until then. With files the service always starts.";
        HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED = "false", "Unhealthy while no rules are loaded.";
    }
    "Rules from a control plane (xDS)" {
        CONFIG_GRPC_XDS_SERVER_URL = "localhost:18000", "Address of the control plane: `host:port`, or \
            `unix:` and the path of a socket.";
        CONFIG_GRPC_XDS_NODE_ID = "default", "Node id sent to the control plane.";
        CONFIG_GRPC_XDS_NODE_METADATA = "", "Node metadata sent to the control plane, as \
            `name=text,name=text`.";
        CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS = "", "Additional headers, as `name:value,name:value`. \
            Values are never shown.";
        CONFIG_GRPC_XDS_SERVER_USE_TLS = "false", "Enables TLS. The files below are read for each connection.";
        CONFIG_GRPC_XDS_SERVER_TLS_CACERT = "", "PEM file of CAs; replaces the system's.";
        CONFIG_GRPC_XDS_SERVER_TLS_SAN = "", "Name that the control plane's certificate must have; \
            defaults to the host.";
        CONFIG_GRPC_XDS_CLIENT_TLS_CERT = "", "PEM file of the client certificate.";
        CONFIG_GRPC_XDS_CLIENT_TLS_KEY = "", "PEM file of its key.";
        CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL = "3s", "Delay between attempts to connect, times \
            0.5 to 1.5.";
        XDS_CLIENT_BACKOFF_INITIAL_INTERVAL = "10s", "First delay after a stream was closed.";
        XDS_CLIENT_BACKOFF_MAX_INTERVAL = "60s", "Maximum delay.";
        XDS_CLIENT_BACKOFF_RANDOM_FACTOR = "0.5", "Backoff multiplier, as in the Go service. Values of 1 \
            or less disable growth.";
        XDS_CLIENT_BACKOFF_JITTER = "true", "Multiplies each delay by a random 0.5 to 1, so that replicas \
            do not reconnect together.";
        XDS_CLIENT_KEEPALIVE_INTERVAL = "6m", "Idle time after which the control plane is pinged. Servers \
            of gRPC's libraries disconnect clients that ping within five minutes. `0` is never; TCP \
            keepalive detects a dead peer within a minute anyway.";
        XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES = "67108864", "Maximum size of a response; `0` is the default. \
            The default of the Go service is 4 MiB.";
    }
    "Counters" {
        BACKEND_TYPE = "memory", "Counter store: `redis` or `memcache`, shared by all replicas, or \
            `memory`, where each replica counts by itself. If it is unset and any Redis variable is set, \
            `redis`.";
        STORE_FAILURE_POLICY = "error", "Decision when counters are unreachable, unless the domain's rules \
            have `on_store_failure`: `error`, which Envoy's `failure_mode_deny` resolves; `allow`; `deny`; \
            or `local`, counted by this replica.";
        MEMORY_MAX_KEYS = "10000000", "Maximum number of counters in memory.";
        LOCAL_CACHE_SIZE_IN_BYTES = "0", "Size of the cache of keys over their limit; `0` disables it.";
        NEAR_LIMIT_RATIO = "0.8", "Share of a limit from which hits count as `near_limit`.";
        CACHE_KEY_PREFIX = "", "Prefix of every key.";
        COUNTER_KEY_FORMAT = "compatible", "Keys of counters in Redis and memcached: `compatible`, shared \
            with the Go service, or `unambiguous`, which values chosen by callers cannot make collide. \
            Keys in memory are unambiguous.";
        STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT = "false", "A request over one of its limits adds no hits \
            to the others.";
        EXPIRATION_JITTER_MAX_SECONDS = "300", "Maximum random delay of the expiry of counters in Redis \
            and memcached. Counters in memory end with their window.";
    }
    "Overrides" {
        OVERRIDES_FILE = "", "File of overrides where counters are not in Redis, created if it is missing. \
            Without it, overrides end with the process. With Redis, overrides are in Redis.";
        REPLICA_SYNC = "true", "Shares overrides and resets of counters with the replicas that use the same \
            Redis, and lists those replicas. Without it, overrides are as without Redis.";
    }
    "Redis" {
        REDIS_URL = "", "Address of Redis: `host:port`, the path of a unix socket, or a URL \
            `redis://user:password@host:port/database`, `rediss://` for TLS. With `REDIS_TYPE=SENTINEL` \
            the master's name and the sentinels, `name,host:port,…`; with `CLUSTER` some of the nodes, \
            `host:port,…`.";
        REDIS_SOCKET_TYPE = "", "`tcp` or `unix`; if unset, derived from `REDIS_URL`. Sentinels and \
            clusters always use TCP.";
        REDIS_TYPE = "SINGLE", "`SINGLE`, `SENTINEL` or `CLUSTER`, in any case.";
        REDIS_AUTH = "", "`password` or `user:password`; takes precedence over `REDIS_URL`.";
        REDIS_SENTINEL_AUTH = "", "The same for the sentinels.";
        REDIS_TLS = "false", "Enables TLS.";
        REDIS_TLS_CACERT = "", "PEM file of CAs; replaces the system's. This and the next three apply to \
            the second Redis too.";
        REDIS_TLS_CLIENT_CERT = "", "PEM file of the client certificate.";
        REDIS_TLS_CLIENT_KEY = "", "PEM file of its key.";
        REDIS_TLS_SKIP_HOSTNAME_VERIFICATION = "false", "Accepts a certificate for another host. Its \
            signature is still verified.";
        REDIS_TIMEOUT = "10ms", "Time limit of an operation; then `STORE_FAILURE_POLICY` decides.";
        REDIS_CONNECT_TIMEOUT = "300ms", "Time limit for connecting, including TLS and authentication; for \
            the second Redis too.";
        REDIS_POOL_SIZE = "10", "Maximum number of connections to each server; `0` is 4, as in the Go service.";
        REDIS_MAX_QUEUED = "8192", "Maximum number of checks queued per connection; more fail at once. For \
            the second Redis too.";
        REDIS_PIPELINE_WINDOW = "0", "Time to gather checks before they are sent. With `0` checks are sent \
            at once, and gather only while a pipeline is in flight.";
        REDIS_HEALTH_CHECK_ACTIVE_CONNECTION = "false", "Unhealthy while there is no connection to Redis.";
        REDIS_STARTUP_INITIAL_INTERVAL = "50ms", "Delay after the first failed connection since the start. \
            It doubles with each attempt.";
        REDIS_STARTUP_MAX_INTERVAL = "300ms", "Maximum delay.";
        REDIS_STARTUP_MAX_ELAPSED_TIME = "0", "Stops the service if Redis was not reached in this time \
            since the start; `0` retries forever.";
        REDIS_PIPELINE_LIMIT = "0", "No effect, as in the Go service.";
        REDIS_CLUSTER_PIPELINE_PARALLELISM = "1", "No effect: the nodes of a cluster are always queried \
            concurrently.";
        REDIS_POOL_ON_EMPTY_BEHAVIOR = "WAIT", "No effect: `REDIS_MAX_QUEUED` bounds the queue.";
        REDIS_POOL_ON_EMPTY_WAIT_DURATION = "", "No effect: `REDIS_TIMEOUT` bounds the wait.";
    }
    "A second Redis, for limits per second" {
        REDIS_PERSECOND = "false", "Counts limits with the unit `second` in a second Redis, configured by \
            the variables below.";
        REDIS_PERSECOND_URL = "", "Its `REDIS_URL`.";
        REDIS_PERSECOND_SOCKET_TYPE = "", "Its `REDIS_SOCKET_TYPE`.";
        REDIS_PERSECOND_TYPE = "SINGLE", "Its `REDIS_TYPE`.";
        REDIS_PERSECOND_AUTH = "", "Its `REDIS_AUTH`.";
        REDIS_PERSECOND_SENTINEL_AUTH = "", "Its `REDIS_SENTINEL_AUTH`.";
        REDIS_PERSECOND_TLS = "false", "Its `REDIS_TLS`.";
        REDIS_PERSECOND_TIMEOUT = "10ms", "Its `REDIS_TIMEOUT`.";
        REDIS_PERSECOND_POOL_SIZE = "10", "Its `REDIS_POOL_SIZE`.";
        REDIS_PERSECOND_PIPELINE_WINDOW = "0", "Its `REDIS_PIPELINE_WINDOW`.";
        REDIS_PERSECOND_PIPELINE_LIMIT = "0", "No effect.";
        REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM = "1", "No effect.";
        REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR = "WAIT", "No effect.";
        REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION = "", "No effect.";
    }
    "Memcached" {
        MEMCACHE_HOST_PORT = "", "Servers, `host:port,host:port,…`; the default port is 11211, and a path \
            is a unix socket. Their order determines which server has a key, as in the Go service.";
        MEMCACHE_SRV = "", "DNS SRV record that lists the servers, `_memcache._tcp.example.com`; replaces \
            `MEMCACHE_HOST_PORT`.";
        MEMCACHE_SRV_REFRESH = "0", "Interval at which the SRV record is resolved again; `0` is never \
            after the first answer.";
        MEMCACHE_TLS = "false", "Enables TLS.";
        MEMCACHE_TLS_CACERT = "", "PEM file of CAs; replaces the system's.";
        MEMCACHE_TLS_CLIENT_CERT = "", "PEM file of the client certificate.";
        MEMCACHE_TLS_CLIENT_KEY = "", "PEM file of its key.";
        MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION = "false", "Accepts a certificate for another host. Its \
            signature is still verified.";
        MEMCACHE_TIMEOUT = "10ms", "Time limit of an operation; then `STORE_FAILURE_POLICY` decides.";
        MEMCACHE_CONNECT_TIMEOUT = "300ms", "Time limit for connecting, including TLS.";
        MEMCACHE_MAX_QUEUED = "8192", "Maximum number of checks queued per connection; more fail at once.";
        MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION = "false", "Unhealthy while there is no connection to one \
            of the servers.";
        MEMCACHE_MAX_IDLE_CONNS = "2", "No effect: each worker thread keeps one connection to each server.";
    }
    "Responses" {
        SHADOW_MODE = "false", "Allows every request; requests over their limit are counted.";
        QUOTA_MODE = "false", "Every limit is a quota: a request is rejected when all of its quotas are \
            used up.";
        RESPONSE_DYNAMIC_METADATA = "false", "Adds descriptors and the rules' `metadata` to responses.";
        RESPONSE_DYNAMIC_METADATA_LIMITS = "false", "Adds the same, and for each descriptor its rule, the \
            governing limit and the decision.";
        LIMIT_RESPONSE_HEADERS_ENABLED = "false", "Adds the three headers below to responses.";
        LIMIT_LIMIT_HEADER = "RateLimit-Limit", "Name of the header with the limit.";
        LIMIT_REMAINING_HEADER = "RateLimit-Remaining", "Name of the header with the remaining hits.";
        LIMIT_RESET_HEADER = "RateLimit-Reset", "Name of the header with the seconds until the reset.";
        LIMIT_RETRY_AFTER_HEADER = "", "Name of a header, such as `Retry-After`, with the seconds until a \
            rejected request would be allowed.";
        LIMIT_POLICY_HEADERS = "false", "Adds `RateLimit-Policy` and `RateLimit` to responses, as in the \
            IETF draft.";
        OVER_LIMIT_BODY = "", "Body of over-limit responses for rules without `over_limit_body`: JSON if \
            it begins with a brace or a bracket, else text. Placeholders: `{limit}`, `{unit}`, \
            `{remaining}`, `{retry_after}` and `{rule}`.";
    }
    "Metrics" {
        USE_PROMETHEUS = "true", "Serves metrics to Prometheus; off by default in the Go service.";
        PROMETHEUS_ADDR = ":9090", "Address of the metrics port, as `host:port`; without a host, all \
            addresses.";
        PROMETHEUS_PATH = "/metrics", "Path of the metrics.";
        PROMETHEUS_MAPPER_YAML = "", "Path of a file in the format of `statsd_exporter` that maps names \
            and labels; a missing file has no effect.";
        PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS = "false", "Response times in milliseconds, though the \
            name ends in seconds; no effect with a mapper file.";
        METRICS_MAX_SERIES = "10000", "Maximum number of series named by requests (`detailed_metric`, \
            `value_to_metric`, limit overrides, unknown domains), over all metrics. Further ones are \
            counted in `__overflow__`, one per domain.";
        METRICS_TOP_KEYS = "0", "Number of most refused keys, over all rules, that have a series \
            `tollgate_top_refused_hits`; `0` is none.";
        DISABLE_STATS = "false", "Disables metrics and sinks, whatever the other variables are.";
        USE_STATSD = "true", "Sends metrics to statsd. If unset, off when `USE_PROMETHEUS` or \
            `USE_DOG_STATSD` is true, and a refused connection is not a warning.";
        STATSD_HOST = "localhost", "Host of statsd.";
        STATSD_PORT = "8125", "Port of statsd.";
        STATSD_PROTOCOL = "tcp", "`tcp` as in the Go service, `udp`, or the path of a unix socket, which \
            replaces host and port.";
        USE_DOG_STATSD = "false", "Sends metrics with tags, in the format of Datadog's agent.";
        DOG_STATSD_ADDR = "", "Address of the agent: `host:port` (UDP), or the path of its unix socket; \
            defaults to `STATSD_HOST` and `STATSD_PORT`.";
        USE_DOG_STATSD_MOGRIFIERS = "", "Comma-separated names of rules that turn parts of a metric's name \
            into tags: `DOG_STATSD_MOGRIFIER_<NAME>_PATTERN`, `…_NAME` and `…_TAGS`.";
        DD_ENTITY_ID = "", "Tag `dd.internal.entity_id`.";
        DD_ENV = "", "Tag `env`.";
        DD_SERVICE = "", "Tag `service`.";
        DD_VERSION = "", "Tag `version`.";
        EXTRA_TAGS = "", "Tags of everything that is sent, also to statsd: `key:value,key:value`.";
        STATS_FLUSH_INTERVAL = "10s", "Interval at which metrics are sent.";
    }
    "Tracing" {
        TRACING_ENABLED = "false", "Sends a span for each sampled call to a collector, over OTLP. The \
            other variables of this group need it.";
        TRACING_EXPORTER_PROTOCOL = "http", "`http` or `grpc`.";
        TRACING_SAMPLING_RATE = "1", "Share of the calls without a sampling decision that are traced, from \
            0 to 1.";
        TRACING_DESCRIPTOR_VALUES = "false", "Adds keys and values of descriptors to spans; they may \
            identify people.";
        TRACING_SERVICE_NAME = "RateLimit", "Service name in spans.";
        TRACING_SERVICE_NAMESPACE = "", "Service namespace in spans.";
        TRACING_SERVICE_INSTANCE_ID = "", "Service instance id in spans; a random UUID if unset.";
        OTEL_RESOURCE_ATTRIBUTES = "", "Further resource attributes: `name=value,name=value`.";
        OTEL_EXPORTER_OTLP_ENDPOINT = "", "URL of the collector; `/v1/traces` is appended for `http`. \
            Defaults to `http://localhost:4318`, or `http://localhost:4317` for `grpc`.";
        OTEL_EXPORTER_OTLP_HEADERS = "", "Headers of every export: `name=value,name=value`, values \
            percent-encoded.";
        OTEL_EXPORTER_OTLP_TIMEOUT = "10000", "Time limit of an export in milliseconds.";
        OTEL_EXPORTER_OTLP_COMPRESSION = "none", "`gzip` or `none`.";
        OTEL_EXPORTER_OTLP_CERTIFICATE = "", "PEM file of CAs; replaces the system's.";
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE = "", "PEM file of the client certificate.";
        OTEL_EXPORTER_OTLP_CLIENT_KEY = "", "PEM file of its key.";
        OTEL_EXPORTER_OTLP_INSECURE = "false", "Disables TLS if the URL has no scheme.";
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = "", "Takes precedence over `OTEL_EXPORTER_OTLP_ENDPOINT`, and \
            is used as is. The next seven take precedence likewise.";
        OTEL_EXPORTER_OTLP_TRACES_HEADERS = "", "Headers.";
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT = "10000", "Time limit in milliseconds.";
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION = "none", "Compression.";
        OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE = "", "CAs.";
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE = "", "Client certificate.";
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY = "", "Its key.";
        OTEL_EXPORTER_OTLP_TRACES_INSECURE = "false", "Disables TLS.";
        OTEL_BSP_MAX_QUEUE_SIZE = "2048", "Maximum number of queued spans; further ones are dropped and \
            counted.";
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE = "512", "Spans per export.";
        OTEL_BSP_SCHEDULE_DELAY = "5000", "Milliseconds that a span waits for others.";
    }
    "Logs" {
        LOG_LEVEL = "INFO", "`trace`, `debug`, `info`, `warn`, `error`, or `fatal` and `panic` for no logs.";
        LOG_FORMAT = "text", "`text`, or `json` with `@timestamp`, `@message` and `level`.";
    }
}
