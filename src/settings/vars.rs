//! The table of every environment variable: its name, its default, what it does.
//!
//! Reading takes each default from here, the README's table is made from here, so the program and its
//! documentation cannot differ. Names are those of the Go service where it has the variable.

pub use super::variable::Var;

use super::variable::variables;

variables! {
    "gRPC server" {
        GRPC_HOST = "0.0.0.0", "Address of the gRPC port; `0.0.0.0` and `::` both mean all, IPv4 and IPv6.";
        GRPC_PORT = "8081", "gRPC port; `0` takes any free one.";
        GRPC_UDS = "", "Path of a unix socket to serve gRPC on in place of the port.";
        GRPC_SERVER = "fast", "HTTP/2 implementation of the gRPC port: `fast`, made for `ShouldRateLimit`, or `tonic`, \
            the reference, with the same answers at several times the CPU.";
        GRPC_WORKERS = "0", "Threads that answer gRPC, each with its own share of the connections; `0` \
            is one \
            for each core that the process may use.";
        GRPC_MAX_CONNECTION_AGE = "24h", "After this age, ±10 %, a connection is asked to go away, so that \
            clients spread over new replicas; `0` is never.";
        GRPC_MAX_CONNECTION_AGE_GRACE = "1h", "How long the requests of such a connection may still take; \
            `0` is as long as they like.";
        GRPC_KEEPALIVE_INTERVAL = "2m", "A connection silent for so long is pinged: soon enough to find a \
            vanished peer, and to be remembered by load balancers, which forget idle connections after \
            four minutes and more. `0` is never.";
        GRPC_KEEPALIVE_TIMEOUT = "20s", "A connection that does not answer the ping for so long is closed.";
        GRPC_MAX_CONNECTIONS = "10000", "Connections at one time. When they are reached, a connection that never \
            sent its HTTP/2 preface is closed to make room, else the one idle longest; while all are busy, new ones \
            are refused.";
        GRPC_MAX_CONNECTIONS_PER_ADDRESS = "0", "The same for one peer address (of IPv6, one network of 64 bits); `0` \
            is three quarters of `GRPC_MAX_CONNECTIONS`, so that one address can come through a NAT or a load \
            balancer and yet never take every place. Unix sockets have no such limit.";
        GRPC_MAX_CONCURRENT_STREAMS = "1024", "Requests at one time on one connection.";
        GRPC_MAX_REQUEST_BYTES = "4194304", "Bytes of one request; larger ones are refused.";
        GRPC_RECEIVE_TIMEOUT = "5s", "Time in which a request must be complete; one that is not is answered with \
            DEADLINE_EXCEEDED.";
        GRPC_MAX_INFLIGHT_BYTES = "67108864", "Memory for incomplete requests, and for answers that clients do not \
            read, of all connections together; at least four times `GRPC_MAX_REQUEST_BYTES`, which is also the default \
            where that is more. Requests that find no room are answered with RESOURCE_EXHAUSTED.";
        MAX_DESCRIPTORS_PER_REQUEST = "128", "Descriptors of one request; requests with more are refused.";
        MAX_ENTRIES_PER_DESCRIPTOR = "64", "Entries of one descriptor; requests with more are refused.";
        SHUTDOWN_DELAY = "0s", "Time between turning unhealthy at SIGTERM and refusing new connections.";
        SHUTDOWN_TIMEOUT = "30s", "Time that requests in flight then have to finish.";
    }
    "TLS on the gRPC port" {
        GRPC_SERVER_USE_TLS = "false", "Serves gRPC with TLS 1.2 and 1.3, and without TLS no more.";
        GRPC_SERVER_TLS_CERT = "", "Path of the certificate and the chain behind it, in PEM; with TLS it must \
            be set. All files of this group are read again when they change.";
        GRPC_SERVER_TLS_KEY = "", "Path of the certificate's private key, in PEM; with TLS it must be set.";
        GRPC_CLIENT_TLS_CACERT = "", "Path of the authorities, in PEM, one of which must have signed the \
            certificate of a client; without it no client is asked for one.";
        GRPC_CLIENT_TLS_SAN = "", "The subjectAltName that the certificate of a client must have: a DNS name, an IP \
            address, a URI such as `spiffe://cluster.local/ns/a/sa/b`, or an e-mail address.";
        GRPC_SERVER_TLS_CA_CERT = "", "Changes nothing, as in the Go service; Envoy Gateway sets it. \
            `GRPC_CLIENT_TLS_CACERT` requires client certificates.";
    }
    "TLS to other servers" {
        TLS_TRUST_SYSTEM_CAS = "false", "Trusts the system's certificate authorities beside those of \
            `REDIS_TLS_CACERT`, `MEMCACHE_TLS_CACERT`, `CONFIG_GRPC_XDS_SERVER_TLS_CACERT` and \
            `OTEL_EXPORTER_OTLP_CERTIFICATE`. Without it a file of authorities replaces them; where no file is set, the \
            system's count either way.";
    }
    "HTTP" {
        HOST = "0.0.0.0", "Address of the HTTP port.";
        PORT = "8080", "HTTP port, for `/healthcheck` and `/json`; `0` takes any free one.";
        JSON_ENABLED = "true", "Serves `POST /json`, which counts as gRPC does and asks nobody for a certificate. \
            When it is not set, it is off if `GRPC_CLIENT_TLS_CACERT` has clients of the gRPC port show one.";
        HTTP_MAX_CONNECTIONS = "512", "Connections at one time on each of the ports of this group and that of \
            the metrics, three quarters of them from one address. When they are reached, a connection that sent nothing is \
            closed to make room, else the one on which nothing has moved for longest. Probes have 16 places more.";
        HTTP_TIMEOUT = "10s", "How long a client of these ports may take for the head of a request, for its body, \
            and to read the answer.";
        DEBUG_HOST = "0.0.0.0", "Address of the debug port.";
        DEBUG_PORT = "6070", "Debug port, for `/rlconfig` and `/stats`; `0` takes any free one.";
    }
    "Rules" {
        CONFIG_TYPE = "FILE", "Where rules come from: `FILE`; `GRPC_XDS_SOTW`, a control plane that tells all \
            rules each time; or `GRPC_XDS_DELTA`, one that tells what changes, which the Go service cannot do.";
        RUNTIME_ROOT = "/srv/runtime_data/current", "Where the rules' directory begins. When it is not set, \
            the default does not exist, and the working directory holds rules, it is the working directory.";
        RUNTIME_SUBDIRECTORY = "", "A directory below the root.";
        RUNTIME_APPDIRECTORY = "config", "The directory below that one; every file in it is read, at \
            any depth.";
        RUNTIME_IGNOREDOTFILES = "false", "Leaves out files and directories whose name begins with a dot.";
        RUNTIME_WATCH_ROOT = "true", "As in the Go service, where it chose what to watch. Here every way of \
            changing rules is noticed with either value.";
        MERGE_DOMAIN_CONFIG = "false", "Lets several files share a domain; their descriptors join.";
        RULES_MAX_VALUES = "500000", "Keys, values, lists and maps in all rules files together, aliases written \
            out, or messages in all resources of a control plane. A rule has about nine; each takes up to half a \
            kilobyte while rules are read. Rules with more are refused.";
        FORCE_START_WITHOUT_INITIAL_CONFIG = "false", "Opens the ports before a control plane has told rules, and \
            answers with an error until then. With files the service always starts.";
        HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED = "false", "Is unhealthy while no rules are loaded.";
    }
    "Rules from a control plane (xDS)" {
        CONFIG_GRPC_XDS_SERVER_URL = "localhost:18000", "Where the control plane is: `host:port`, or `unix:` and \
            the path of a socket.";
        CONFIG_GRPC_XDS_NODE_ID = "default", "The name by which it knows us.";
        CONFIG_GRPC_XDS_NODE_METADATA = "", "What else it is told of us, as `name=text,name=text`.";
        CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS = "", "Headers that are sent along, as `name:value,name:value`. \
            Values are never shown.";
        CONFIG_GRPC_XDS_SERVER_USE_TLS = "false", "Speaks TLS to it. The files below are read anew for each \
            connection.";
        CONFIG_GRPC_XDS_SERVER_TLS_CACERT = "", "PEM file of certificates to trust in place of those of the system.";
        CONFIG_GRPC_XDS_SERVER_TLS_SAN = "", "The name that its certificate must hold; without it, the host \
            that is asked.";
        CONFIG_GRPC_XDS_CLIENT_TLS_CERT = "", "PEM file of a certificate to show to it.";
        CONFIG_GRPC_XDS_CLIENT_TLS_KEY = "", "PEM file of its key.";
        CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL = "3s", "Pause before it is tried again to connect, from \
            half to one and a half of this.";
        XDS_CLIENT_BACKOFF_INITIAL_INTERVAL = "10s", "First pause after a stream that broke.";
        XDS_CLIENT_BACKOFF_MAX_INTERVAL = "60s", "Longest such pause.";
        XDS_CLIENT_BACKOFF_RANDOM_FACTOR = "0.5", "By this each pause is longer than the one before, as in the Go \
            service; none is shorter than the first, so that they grow with a factor above 1 only.";
        XDS_CLIENT_BACKOFF_JITTER = "true", "Takes from half to all of each pause by chance, so that replicas do \
            not come back together.";
        XDS_CLIENT_KEEPALIVE_INTERVAL = "6m", "A silent control plane is pinged so often. Servers of gRPC's own \
            libraries hang up on those who ping within five minutes. `0` is never; TCP's own keepalive finds a \
            dead peer within a minute anyway.";
        XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES = "67108864", "Bytes of one response; `0` is this default. The default of \
            the Go service is 4 MiB.";
    }
    "Counters" {
        BACKEND_TYPE = "memory", "What counts: `redis` or `memcache`, shared by all replicas, or `memory`, where each \
            replica counts by itself. When it is not set and any variable of Redis is, it is `redis`.";
        STORE_FAILURE_POLICY = "error", "What becomes of a request whose counters cannot be reached, where its \
            domain's rules do not say (`on_store_failure`): `error`, answered with an error, on which Envoy's \
            `failure_mode_deny` decides; `allow`; `deny`; or `local`, counted by this replica alone.";
        MEMORY_MAX_KEYS = "10000000", "Counters held in memory at one time.";
        LOCAL_CACHE_SIZE_IN_BYTES = "0", "Size of the cache of keys that are over their limit; `0` is \
            no cache.";
        NEAR_LIMIT_RATIO = "0.8", "The share of a limit from which hits count as `near_limit`.";
        CACHE_KEY_PREFIX = "", "Stands before every key.";
        COUNTER_KEY_FORMAT = "compatible", "Keys of counters in Redis and memcached: `compatible`, shared with the Go \
            service, or `unambiguous`, which values that a caller chooses cannot make equal. Keys in memory are \
            unambiguous.";
        STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT = "false", "A request that is over one of its limits adds no \
            hits to its others.";
        EXPIRATION_JITTER_MAX_SECONDS = "300", "Counters in Redis and memcached are forgotten up to so long \
            after their window, not all at once. Those in memory end with their window.";
    }
    "Redis" {
        REDIS_URL = "", "Where Redis is: `host:port`, the path of a unix socket, or a URL \
            `redis://user:password@host:port/database`, `rediss://` for TLS. With `REDIS_TYPE=SENTINEL` the \
            master's name and the sentinels, `name,host:port,…`; with `CLUSTER` some of the servers, `host:port,…`.";
        REDIS_SOCKET_TYPE = "", "`tcp` or `unix`; when it is not set, what `REDIS_URL` looks like. Sentinels and \
            clusters are reached over TCP whatever it says.";
        REDIS_TYPE = "SINGLE", "`SINGLE`, `SENTINEL` or `CLUSTER`, in any case.";
        REDIS_AUTH = "", "`password` or `user:password`; goes before what `REDIS_URL` says.";
        REDIS_SENTINEL_AUTH = "", "The same for the sentinels.";
        REDIS_TLS = "false", "Speaks TLS.";
        REDIS_TLS_CACERT = "", "PEM file of certificates to trust in place of those of the system. This and the next \
            three are for the second Redis too.";
        REDIS_TLS_CLIENT_CERT = "", "PEM file of a certificate to show to Redis.";
        REDIS_TLS_CLIENT_KEY = "", "PEM file of its key.";
        REDIS_TLS_SKIP_HOSTNAME_VERIFICATION = "false", "Takes a certificate that was made out to another host. \
            Who signed it is looked at all the same.";
        REDIS_TIMEOUT = "10ms", "How long an operation may take, from the question to the answer; what becomes \
            of the request then, `STORE_FAILURE_POLICY` says.";
        REDIS_CONNECT_TIMEOUT = "300ms", "How long connecting may take, TLS and log-in included; for the second \
            Redis too.";
        REDIS_POOL_SIZE = "10", "Connections to each server, at most; `0` is 4, as in the Go service.";
        REDIS_MAX_QUEUED = "8192", "Checks that may wait for one connection; those beyond fail at once. For the \
            second Redis too.";
        REDIS_PIPELINE_WINDOW = "0", "How long what is to be asked is gathered before it is sent. With `0` nothing \
            waits, and what comes while an answer is awaited is gathered.";
        REDIS_HEALTH_CHECK_ACTIVE_CONNECTION = "false", "Is unhealthy while there is no connection to Redis.";
        REDIS_STARTUP_INITIAL_INTERVAL = "50ms", "Pause after the first attempt to reach a Redis that was not \
            reached since the start. It doubles with each attempt.";
        REDIS_STARTUP_MAX_INTERVAL = "300ms", "The longest such pause.";
        REDIS_STARTUP_MAX_ELAPSED_TIME = "0", "Ends the service if Redis was not reached for so long since the \
            start; `0` tries for ever.";
        REDIS_PIPELINE_LIMIT = "0", "Changes nothing, as in the Go service.";
        REDIS_CLUSTER_PIPELINE_PARALLELISM = "1", "Changes nothing: the servers of a cluster are always asked at \
            the same time.";
        REDIS_POOL_ON_EMPTY_BEHAVIOR = "WAIT", "Changes nothing: `REDIS_MAX_QUEUED` bounds what waits.";
        REDIS_POOL_ON_EMPTY_WAIT_DURATION = "", "Changes nothing: `REDIS_TIMEOUT` bounds how long.";
    }
    "A second Redis, for limits per second" {
        REDIS_PERSECOND = "false", "Counts the limits whose unit is `second` in a Redis of their own, which the \
            variables below describe as those above do the first.";
        REDIS_PERSECOND_URL = "", "Its `REDIS_URL`.";
        REDIS_PERSECOND_SOCKET_TYPE = "", "Its `REDIS_SOCKET_TYPE`.";
        REDIS_PERSECOND_TYPE = "SINGLE", "Its `REDIS_TYPE`.";
        REDIS_PERSECOND_AUTH = "", "Its `REDIS_AUTH`.";
        REDIS_PERSECOND_SENTINEL_AUTH = "", "Its `REDIS_SENTINEL_AUTH`.";
        REDIS_PERSECOND_TLS = "false", "Its `REDIS_TLS`.";
        REDIS_PERSECOND_TIMEOUT = "10ms", "Its `REDIS_TIMEOUT`.";
        REDIS_PERSECOND_POOL_SIZE = "10", "Its `REDIS_POOL_SIZE`.";
        REDIS_PERSECOND_PIPELINE_WINDOW = "0", "Its `REDIS_PIPELINE_WINDOW`.";
        REDIS_PERSECOND_PIPELINE_LIMIT = "0", "Changes nothing, as its namesake.";
        REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM = "1", "Changes nothing, as its namesake.";
        REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR = "WAIT", "Changes nothing, as its namesake.";
        REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION = "", "Changes nothing, as its namesake.";
    }
    "Memcached" {
        MEMCACHE_HOST_PORT = "", "The servers, `host:port,host:port,…`; without a port it is 11211, and a path is a \
            unix socket. Their order decides who keeps which key, as in the Go service.";
        MEMCACHE_SRV = "", "In place of it the name under which a name server tells the servers, \
            `_memcache._tcp.example.com`.";
        MEMCACHE_SRV_REFRESH = "0", "How often the name server is asked again; with `0` never, once it has told \
            some.";
        MEMCACHE_TLS = "false", "Speaks TLS.";
        MEMCACHE_TLS_CACERT = "", "PEM file of certificates to trust in place of those of the system.";
        MEMCACHE_TLS_CLIENT_CERT = "", "PEM file of a certificate to show to memcached.";
        MEMCACHE_TLS_CLIENT_KEY = "", "PEM file of its key.";
        MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION = "false", "Takes a certificate that was made out to another host. \
            Who signed it is looked at all the same.";
        MEMCACHE_TIMEOUT = "10ms", "How long an operation may take, from the question to the answer; what becomes \
            of the request then, `STORE_FAILURE_POLICY` says.";
        MEMCACHE_CONNECT_TIMEOUT = "300ms", "How long connecting may take, TLS included.";
        MEMCACHE_MAX_QUEUED = "8192", "Checks that may wait for one connection; those beyond fail at once.";
        MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION = "false", "Is unhealthy while there is no connection to one of \
            the servers.";
        MEMCACHE_MAX_IDLE_CONNS = "2", "Changes nothing: each thread that answers keeps one connection to each \
            server.";
    }
    "Answers" {
        SHADOW_MODE = "false", "Every request is allowed; what would have been refused is counted.";
        QUOTA_MODE = "false", "Every limit is a quota: a request is refused when all of its quotas are \
            spent.";
        RESPONSE_DYNAMIC_METADATA = "false", "Answers tell Envoy the descriptors and the rules' `metadata`.";
        RESPONSE_DYNAMIC_METADATA_LIMITS = "false", "They do, and tell of each descriptor its rule, the limit \
            that decided, and why.";
        LIMIT_RESPONSE_HEADERS_ENABLED = "false", "Answers ask Envoy to add the three headers below.";
        LIMIT_LIMIT_HEADER = "RateLimit-Limit", "Name of the header that tells the limit.";
        LIMIT_REMAINING_HEADER = "RateLimit-Remaining", "Name of the header that tells what remains of it.";
        LIMIT_RESET_HEADER = "RateLimit-Reset", "Name of the header that tells the seconds until it is \
            whole again.";
        LIMIT_RETRY_AFTER_HEADER = "", "Name of a header, such as `Retry-After`, that tells a refused client \
            the seconds until the same request would pass.";
        LIMIT_POLICY_HEADERS = "false", "Answers ask Envoy to add `RateLimit-Policy` and `RateLimit`, as the \
            IETF's draft has them.";
        OVER_LIMIT_BODY = "", "Body of a refusal whose rule has no `over_limit_body`: JSON when it begins \
            with a brace or a bracket, else text, in which `{limit}`, `{unit}`, `{remaining}`, `{retry_after}` \
            and `{rule}` are filled in.";
    }
    "Statistics" {
        USE_PROMETHEUS = "true", "Serves metrics to Prometheus; the Go service does so only when asked.";
        PROMETHEUS_ADDR = ":9090", "Address of the metrics' port, as `host:port`; without a host, all \
            addresses.";
        PROMETHEUS_PATH = "/metrics", "Path of the metrics.";
        PROMETHEUS_MAPPER_YAML = "", "Path of a file in the format of `statsd_exporter` that gives metrics names and \
            labels; a missing one changes nothing.";
        PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS = "false", "Response times are in milliseconds, though the name \
            says seconds; not with a file of one's own.";
        METRICS_MAX_SERIES = "10000", "Series that the values of requests make (`detailed_metric`, `value_to_metric`, \
            limits brought along, unknown domains), over all metrics. Further ones are counted in `__overflow__`, one name a domain.";
        DISABLE_STATS = "false", "Turns metrics and sinks off, whatever the others say.";
        USE_STATSD = "true", "Sends statistics to statsd. When it is not set, not if `USE_PROMETHEUS` or \
            `USE_DOG_STATSD` is set to true, and it is no trouble if nobody listens.";
        STATSD_HOST = "localhost", "Host of statsd.";
        STATSD_PORT = "8125", "Its port.";
        STATSD_PROTOCOL = "tcp", "`tcp` as in the Go service, `udp`, or the path of a unix socket in place of host \
            and port.";
        USE_DOG_STATSD = "false", "Sends statistics with tags, as Datadog's agent reads them.";
        DOG_STATSD_ADDR = "", "Where the agent listens: `host:port` (UDP), or the path of its unix socket; not set, \
            at `STATSD_HOST` and `STATSD_PORT`.";
        USE_DOG_STATSD_MOGRIFIERS = "", "Names, with commas between, of rules that make tags of parts of a metric's \
            name: `DOG_STATSD_MOGRIFIER_<NAME>_PATTERN`, `…_NAME` and `…_TAGS`.";
        DD_ENTITY_ID = "", "Tag `dd.internal.entity_id` of what the agent is sent.";
        DD_ENV = "", "Tag `env` of it.";
        DD_SERVICE = "", "Tag `service` of it.";
        DD_VERSION = "", "Tag `version` of it.";
        EXTRA_TAGS = "", "Tags of everything that is sent, to statsd too: `key:value,key:value`.";
        STATS_FLUSH_INTERVAL = "10s", "How often it is sent.";
    }
    "Tracing" {
        TRACING_ENABLED = "false", "Sends a span of each call that is sampled to a collector, over OTLP. The rest of \
            this group counts only then.";
        TRACING_EXPORTER_PROTOCOL = "http", "`http`, or `grpc`.";
        TRACING_SAMPLING_RATE = "1", "The share of the calls that are traced where their caller does not say, from \
            0 to 1.";
        TRACING_DESCRIPTOR_VALUES = "false", "Spans tell the keys and values of descriptors, which may name people.";
        TRACING_SERVICE_NAME = "RateLimit", "The name of the service in its spans.";
        TRACING_SERVICE_NAMESPACE = "", "Its namespace.";
        TRACING_SERVICE_INSTANCE_ID = "", "Which of its replicas this is; a random UUID when it is not set.";
        OTEL_RESOURCE_ATTRIBUTES = "", "More about it: `name=value,name=value`.";
        OTEL_EXPORTER_OTLP_ENDPOINT = "", "The collector's URL; `/v1/traces` is put behind it for `http`. Not set, \
            it is `http://localhost:4318`, or `http://localhost:4317` for `grpc`.";
        OTEL_EXPORTER_OTLP_HEADERS = "", "Headers of every request to it: `name=value,name=value`, the values \
            percent-encoded.";
        OTEL_EXPORTER_OTLP_TIMEOUT = "10000", "Milliseconds that its answer may take.";
        OTEL_EXPORTER_OTLP_COMPRESSION = "none", "`gzip` or `none`.";
        OTEL_EXPORTER_OTLP_CERTIFICATE = "", "PEM file of the certificates to trust in place of those of the \
            system.";
        OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE = "", "PEM file of a certificate to show to it.";
        OTEL_EXPORTER_OTLP_CLIENT_KEY = "", "PEM file of its key.";
        OTEL_EXPORTER_OTLP_INSECURE = "false", "Speaks no TLS where the URL has no scheme.";
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = "", "Goes before its namesake without `TRACES`, and nothing is put \
            behind it. So do the next seven.";
        OTEL_EXPORTER_OTLP_TRACES_HEADERS = "", "Its headers.";
        OTEL_EXPORTER_OTLP_TRACES_TIMEOUT = "10000", "Its milliseconds.";
        OTEL_EXPORTER_OTLP_TRACES_COMPRESSION = "none", "Its compression.";
        OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE = "", "Its certificates to trust.";
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE = "", "Its certificate to show.";
        OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY = "", "The key of that.";
        OTEL_EXPORTER_OTLP_TRACES_INSECURE = "false", "Whether it speaks no TLS.";
        OTEL_BSP_MAX_QUEUE_SIZE = "2048", "Spans that wait to be sent; those beyond are dropped and counted.";
        OTEL_BSP_MAX_EXPORT_BATCH_SIZE = "512", "Spans that are sent at a time.";
        OTEL_BSP_SCHEDULE_DELAY = "5000", "Milliseconds that a span waits for others to be sent with.";
    }
    "Logs" {
        LOG_LEVEL = "INFO", "`trace`, `debug`, `info`, `warn`, `error`, or `fatal` and `panic` for silence.";
        LOG_FORMAT = "text", "`text`, or `json` with `@timestamp`, `@message` and `level`.";
    }
}
