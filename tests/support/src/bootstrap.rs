//! Envoy's configuration for a test: one listener, the rate limit filter, one upstream.

use std::path::Path;

use serde_json::{Value, json};

use super::{server::Server, upstream::Upstream};

/// The address of the rate limit service.
#[derive(Clone, Copy)]
pub enum Service<'a> {
    /// A port on 127.0.0.1.
    Port(u16),
    /// A unix socket.
    Socket(&'a Path),
}

/// The configuration that differs between tests.
pub struct Wanted<'a> {
    pub service: Service<'a>,
    /// The name of the service's cluster, which Envoy sends as `:authority`.
    pub cluster: &'a str,
    /// The route's `rate_limits`: a list of `config.route.v3.RateLimit`.
    pub rate_limits: Value,
    /// Fields of the rate limit filter besides its domain and service.
    pub filter: Value,
    /// HTTP filters before it.
    pub filters_before: Vec<Value>,
    /// The `transport_socket` of the service's cluster; null means none.
    pub transport_socket: Value,
    /// The connection manager's `tracing`; null means none.
    pub tracing: Value,
    /// The port of the cluster `collector`, if any.
    pub collector: Option<u16>,
}

impl Wanted<'_> {
    /// The default configuration of the rate limit filter.
    pub fn of(server: &Server, rate_limits: Value) -> Self {
        let service = Service::Port(server.ports.grpc);
        Self {
            service,
            cluster: "rate_limit",
            rate_limits,
            filter: json!({}),
            filters_before: Vec::new(),
            transport_socket: Value::Null,
            tracing: Value::Null,
            collector: None,
        }
    }
}

/// The domain of every test's filter.
pub const DOMAIN: &str = "edge";

/// A descriptor of one entry: `key`, and the value of a request header.
pub fn by_header(key: &str, header: &str) -> Value {
    json!({"actions": [{"request_headers": {"header_name": header, "descriptor_key": key}}]})
}

/// A descriptor of one constant entry.
pub fn always(key: &str, value: &str) -> Value {
    json!({"actions": [{"generic_key": {"descriptor_key": key, "descriptor_value": value}}]})
}

/// A filter that copies the response header `x-tokens` to the dynamic metadata `tokens.used`, as a number.
pub fn tokens_to_metadata() -> Value {
    let rule = json!({
        "header": "x-tokens",
        "on_header_present": {"metadata_namespace": "tokens", "key": "used", "type": "NUMBER"},
    });
    json!({
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "response_rules": [rule],
        },
    })
}

/// A filter that sets dynamic metadata.
pub fn metadata(namespace: &str, value: &Value) -> Value {
    json!({
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": namespace, "value": value}],
        },
    })
}

/// The whole configuration.
pub fn bootstrap(wanted: &Wanted<'_>, ports: [u16; 2], upstream: &Upstream, access_log: &Path) -> Value {
    let [admin, listener] = ports;
    let service = match wanted.service {
        Service::Port(port) => tcp(port),
        Service::Socket(path) => json!({"pipe": {"path": path}}),
    };
    let mut service = cluster(wanted.cluster, &service, "http2_protocol_options");
    if !wanted.transport_socket.is_null() {
        service["transport_socket"] = wanted.transport_socket.clone();
    }
    let mut clusters = vec![cluster("upstream", &tcp(upstream.port), "http_protocol_options"), service];
    clusters.extend(wanted.collector.map(|port| cluster("collector", &tcp(port), "http2_protocol_options")));
    json!({
        "admin": {"address": tcp(admin)},
        "static_resources": {
            "listeners": [{
                "name": "edge",
                "address": tcp(listener),
                "filter_chains": [{"filters": [connection_manager(wanted, access_log)]}],
            }],
            "clusters": clusters,
        },
    })
}

fn connection_manager(wanted: &Wanted<'_>, access_log: &Path) -> Value {
    let mut filters = wanted.filters_before.clone();
    filters.push(rate_limit_filter(wanted));
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }));
    let route = json!({
        "match": {"prefix": "/"},
        "route": {"cluster": "upstream"},
        // Envoy applies `hits_addend` only in the filter's per-route configuration.
        "typed_per_filter_config": {"envoy.filters.http.ratelimit": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
            "rate_limits": wanted.rate_limits,
        }},
    });
    let mut manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "edge",
            "access_log": [metadata_log(access_log)],
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
            "http_filters": filters,
            // A connection ends with its last answer, not a second later.
            "delayed_close_timeout": "0s",
        },
    });
    if !wanted.tracing.is_null() {
        manager["typed_config"]["tracing"] = wanted.tracing.clone();
    }
    manager
}

fn rate_limit_filter(wanted: &Wanted<'_>) -> Value {
    let mut config = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": DOMAIN,
        // Envoy's default is 20 ms, which a busy test machine may exceed.
        "timeout": "5s",
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": wanted.cluster}},
        },
    });
    for (field, value) in wanted.filter.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    json!({"name": "envoy.filters.http.ratelimit", "typed_config": config})
}

/// An access log with the dynamic metadata of the rate limit filter: a JSON line for each request.
fn metadata_log(path: &Path) -> Value {
    json!({
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": path,
            "log_format": {"text_format_source": {
                "inline_string": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit)%\n",
            }},
        },
    })
}

fn cluster(name: &str, address: &Value, protocol: &str) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {protocol: {}},
            },
        },
    })
}

fn tcp(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}
