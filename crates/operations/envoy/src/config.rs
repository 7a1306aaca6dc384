//! Reads what Envoy sends to its rate limit service from a bootstrap file or a config dump.
//!
//! Envoy's messages are read by the names of their fields, without Envoy's protobuf files. What comes from elsewhere (a
//! control plane, an extension) is noted, and never guessed.

use std::{collections::HashMap, fmt, time::Duration};

use super::{
    actions::{Context, Descriptor, FORMATTER_FLAG, HitsSource, OwnLimit, descriptors, has_command},
    pitfalls,
    tree::Value,
};
use text::diagnostics::{Place, Severity};

pub(super) struct Filter<'t> {
    pub(super) domain: &'t str,
    pub(super) place: Place,
    pub(super) timeout: (Place, Duration),
    pub(super) failure_mode: (Place, FailureMode),
    /// The status of a request that the failure mode denies.
    pub(super) status_on_error: &'t str,
    /// `enable_retry_after_header`, if it is on.
    pub(super) retry_after: Option<Place>,
    /// The status of a request over limit.
    pub(super) limited_status: &'t str,
    /// The cluster of the rate limit service.
    pub(super) cluster: Option<Value<'t>>,
}

/// What Envoy does with requests while the service does not answer.
#[derive(Clone, Copy)]
pub(super) enum FailureMode {
    /// `failure_mode_deny`.
    Deny(bool),
    /// `failure_mode_deny_percent`, which replaces it: denies `part` of `whole` requests.
    DenyPercent { part: u64, whole: u64 },
}

impl FailureMode {
    fn read(config: Value<'_>) -> Self {
        let Some(percent) = config.get("failure_mode_deny_percent") else {
            return Self::Deny(config.get("failure_mode_deny").is_some_and(Value::flag));
        };
        let part = percent.at(&["default_value", "numerator"]).and_then(Value::text);
        let whole = match percent.at(&["default_value", "denominator"]).and_then(Value::text) {
            Some("TEN_THOUSAND") => 10_000,
            Some("MILLION") => 1_000_000,
            _ => 100,
        };
        Self::DenyPercent { part: part.and_then(|part| part.parse().ok()).unwrap_or(0), whole }
    }

    /// True if a percentage replaces a flag of this value, which says otherwise.
    fn contradicts(self, deny: bool) -> bool {
        match self {
            Self::Deny(_) => false,
            Self::DenyPercent { part, whole } => {
                if deny {
                    part < whole
                } else {
                    part > 0
                }
            }
        }
    }
}

impl fmt::Display for FailureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deny(deny) => write!(f, "`failure_mode_deny: {deny}`"),
            Self::DenyPercent { part, whole } => {
                write!(f, "`failure_mode_deny_percent` of {part} in {whole}")
            }
        }
    }
}

/// A descriptor and the domain it is sent to.
pub(super) struct Sent<'t> {
    pub(super) domain: &'t str,
    pub(super) descriptor: Descriptor,
}

pub(super) struct Remark {
    pub(super) severity: Severity,
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) help: &'static str,
}

impl Remark {
    pub(super) fn new(
        severity: Severity,
        at: Value<'_>,
        message: impl Into<String>,
        help: &'static str,
    ) -> Self {
        Self { severity, place: at.place(), message: message.into(), help }
    }
}

#[derive(Default)]
pub(super) struct Gateway<'t> {
    pub(super) filters: Vec<Filter<'t>>,
    pub(super) sent: Vec<Sent<'t>>,
    pub(super) remarks: Vec<Remark>,
    /// A part was not read, so Envoy may send more descriptors.
    pub(super) is_partial: bool,
    own_cluster: Option<&'t str>,
    /// The runtime flag [`FORMATTER_FLAG`] is on.
    formats_values: bool,
    /// The route configurations of a config dump, by name.
    named_routes: HashMap<&'t str, Value<'t>>,
}

/// Envoy's default, which is short: docs/reference/envoy.md.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);

const MANAGER: &str = ".http_connection_manager.v3.HttpConnectionManager";
const HTTP_FILTER: &str = ".filters.http.ratelimit.v3.RateLimit";
const NETWORK_FILTER: &str = ".filters.network.ratelimit.v3.RateLimit";
const DUMP: &str = "use the configuration of a running Envoy: `curl ADMIN/config_dump`";

impl<'t> Gateway<'t> {
    pub(super) fn read(root: Value<'t>) -> Self {
        let mut gateway = Self::default();
        root.walk(&mut |value| {
            if let Some(node) = value.get("node") {
                gateway.own_cluster = gateway.own_cluster.or(node.get("cluster").and_then(Value::text));
            }
            if let Some(flag) = value.get("static_layer").and_then(runtime_flag) {
                gateway.formats_values = flag;
            }
            let routes = value.get("route_config");
            if let Some((name, routes)) =
                routes.and_then(|routes| Some((routes.get("name")?.text()?, routes)))
            {
                gateway.named_routes.insert(name, routes);
            }
        });
        // A config dump has the listeners of its bootstrap twice.
        let dumped = root.list("configs").find(|config| config.is(".ListenersConfigDump"));
        let listeners = dumped.unwrap_or(root);
        for filter in listeners.messages(NETWORK_FILTER) {
            gateway.network_filter(filter);
        }
        for manager in listeners.messages(MANAGER) {
            gateway.manager(manager);
        }
        let dynamic = root.get("dynamic_resources").filter(|value| value.get("lds_config").is_some());
        if let Some(dynamic) = dynamic {
            gateway.unread(dynamic, "listeners come from a control plane", DUMP);
        }
        gateway
    }

    fn unread(&mut self, at: Value<'_>, what: &str, help: &'static str) {
        self.is_partial = true;
        let message = format!("not read: {what}, so this Envoy may send more descriptors");
        self.remarks.push(Remark::new(Severity::Note, at, message, help));
    }

    fn warn(&mut self, at: Value<'_>, message: impl Into<String>, help: &'static str) {
        self.remarks.push(Remark::new(Severity::Warning, at, message, help));
    }

    fn filter(&mut self, config: Value<'t>) -> Option<&'t str> {
        let domain = config.get("domain")?;
        let timeout = config.get("timeout");
        let written = timeout.and_then(Value::text).and_then(|text| text::duration::parse(text).ok());
        let deny = config.get("failure_mode_deny_percent").or_else(|| config.get("failure_mode_deny"));
        let mode = FailureMode::read(config);
        if let Some(flag) = config.get("failure_mode_deny").filter(|flag| mode.contradicts(flag.flag())) {
            let message = format!("`failure_mode_deny: {}` has no effect beside {mode}", flag.flag());
            self.warn(flag, message, "remove it");
        }
        let status = |field, default| config.at(&[field, "code"]).and_then(Value::text).unwrap_or(default);
        let retry_after = config.get("enable_retry_after_header").filter(|value| value.flag());
        let service = config.at(&["rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name"]);
        self.filters.push(Filter {
            domain: domain.text()?,
            place: domain.place(),
            timeout: (timeout.map_or(domain.place(), Value::place), written.unwrap_or(DEFAULT_TIMEOUT)),
            failure_mode: (deny.map_or(domain.place(), Value::place), mode),
            status_on_error: status("status_on_error", "500"),
            retry_after: retry_after.map(Value::place),
            limited_status: status("rate_limited_status", "429"),
            cluster: service,
        });
        domain.text()
    }

    /// The filter of connections, whose descriptors are constant.
    fn network_filter(&mut self, config: Value<'t>) {
        let Some(domain) = self.filter(config) else { return };
        for item in config.list("descriptors") {
            let entry = |entry: Value<'_>| super::actions::Entry {
                key: entry.get("key").and_then(Value::text).unwrap_or_default().to_owned(),
                value: entry
                    .get("value")
                    .and_then(Value::text)
                    .filter(|text| !has_command(text))
                    .map(str::to_owned),
            };
            let entries = item.list("entries").map(entry).collect();
            let limit = OwnLimit::read(item);
            let descriptor = Descriptor { place: item.place(), entries, limit, hits: HitsSource::Item };
            self.sent.push(Sent { domain, descriptor });
        }
    }

    /// The filters of a listener, with the descriptors of its routes.
    fn manager(&mut self, manager: Value<'t>) {
        let chain: Vec<_> = manager.list("http_filters").collect();
        let mut filters = Vec::new();
        for (at, filter) in chain.iter().copied().enumerate() {
            if filter.get("config_discovery").is_some() {
                self.unread(filter, "the filter comes from a control plane", DUMP);
            }
            let name = filter.get("name").and_then(Value::text).unwrap_or_default();
            let is_disabled = filter.get("disabled").is_some_and(Value::flag);
            let before = &chain[..at];
            let configs = filter.messages(HTTP_FILTER).into_iter();
            filters.extend(configs.map(|config| (name, is_disabled, before, config)));
        }
        let routes = manager.get("route_config").or_else(|| {
            let name = manager.at(&["rds", "route_config_name"])?.text()?;
            self.named_routes.get(name).copied()
        });
        let stages: Vec<u64> = filters.iter().map(|(.., config)| stage(*config)).collect();
        let mut scopes = Vec::new();
        for (name, is_disabled, before, config) in filters {
            let Some(domain) = self.filter(config) else { continue };
            scopes.push(Scope { name, domain, is_disabled, before, config, stages: &stages });
        }
        if scopes.is_empty() {
            return;
        }
        if let Some(routes) = routes {
            self.routes(&scopes, routes);
        } else {
            let source = manager.get("rds").or_else(|| manager.get("scoped_routes"));
            self.unread(source.unwrap_or(manager), "routes come from a control plane", DUMP);
        }
    }

    fn routes(&mut self, scopes: &[Scope<'t, '_>], routes: Value<'t>) {
        if let Some(source) = routes.get("vhds") {
            self.unread(source, "virtual hosts come from a control plane", DUMP);
        }
        for host in routes.list("virtual_hosts") {
            if let Some(matcher) = host.get("matcher") {
                self.unread(matcher, "routes of a matcher", DUMP);
            }
            for route in host.list("routes") {
                // Envoy limits no redirects or direct responses.
                let Some(action) = route.get("route") else { continue };
                for scope in scopes {
                    let own = [route, host, routes].into_iter().find_map(|holder| scope.per_route(holder));
                    self.limits(scope, host, action, own);
                }
            }
        }
    }

    /// The limits of a filter on a route.
    fn limits(&mut self, scope: &Scope<'t, '_>, host: Value<'t>, action: Value<'t>, own: Option<Value<'t>>) {
        let is_disabled = match own {
            Some(own) => own.get("disabled").is_some_and(Value::flag),
            None => scope.is_disabled,
        };
        if is_disabled {
            return;
        }
        let own = own.map(|own| own.get("config").unwrap_or(own));
        let domain = own.and_then(|own| own.get("domain")?.text()).unwrap_or(scope.domain);
        // The most specific `rate_limits` of the filter's own configurations replaces those of routes and hosts.
        let of_filter =
            own.into_iter().chain([scope.config]).find(|config| config.list("rate_limits").next().is_some());
        let items = match of_filter {
            Some(config) => {
                let items = config.list("rate_limits");
                items.inspect(|item| self.remarks.extend(pitfalls::of_filter_item(*item))).collect()
            }
            None => self.items_of_route(scope, host, action, own),
        };
        let context = Context {
            own_cluster: self.own_cluster,
            clusters: clusters(action),
            formats_values: self.formats_values,
            request_has_hits: pitfalls::request_has_hits(scope.before),
        };
        for item in items {
            self.remarks.extend(pitfalls::of_item(item, scope, &context));
            self.item(domain, item, &context);
        }
    }

    /// The items of a route and its host for the stage of a filter.
    fn items_of_route(
        &mut self,
        scope: &Scope<'t, '_>,
        host: Value<'t>,
        action: Value<'t>,
        own: Option<Value<'t>>,
    ) -> Vec<Value<'t>> {
        let mut items: Vec<_> = action.list("rate_limits").collect();
        if items.is_empty() || includes_host(action, own) {
            items.extend(host.list("rate_limits"));
        }
        if own.is_some_and(ignores_host) {
            items = action.list("rate_limits").collect();
        }
        items.retain(|item| {
            if let Some(addend) = item.get("hits_addend") {
                let message = "`hits_addend` has no effect here, so each request counts as one hit";
                self.warn(
                    addend,
                    message,
                    "move the item to `rate_limits` of `RateLimitPerRoute` or of the filter",
                );
            }
            let stage = stage(*item);
            if !scope.stages.contains(&stage) {
                let message = format!(
                    "no filter of this listener has the stage {stage}, so the descriptor is never sent"
                );
                self.warn(*item, message, "set `stage` of a filter, or remove it here");
            }
            stage == self::stage(scope.config)
        });
        items
    }

    /// The descriptors of an item of `rate_limits`.
    fn item(&mut self, domain: &'t str, item: Value<'t>, context: &Context<'t>) {
        match descriptors(item, context) {
            Ok(descriptors) => {
                let sent = descriptors.into_iter().map(|descriptor| Sent { domain, descriptor });
                self.sent.extend(sent);
            }
            Err((at, what)) => {
                self.is_partial = true;
                let message = format!("not judged: descriptors with {what}, which are not known here");
                let help = "check what it sends with `tollgate explain DOMAIN KEY=VALUE`";
                self.remarks.push(Remark { severity: Severity::Note, place: at, message, help });
            }
        }
    }
}

/// A filter, for the routes of its listener.
pub(super) struct Scope<'t, 's> {
    name: &'t str,
    domain: &'t str,
    /// Only routes with a configuration of their own use the filter.
    is_disabled: bool,
    /// The filters that a request passes first.
    pub(super) before: &'s [Value<'t>],
    pub(super) config: Value<'t>,
    /// The stages of all filters of the listener.
    stages: &'s [u64],
}

impl<'t> Scope<'t, '_> {
    /// The filter's configuration for a route, a host or all routes.
    fn per_route(&self, holder: Value<'t>) -> Option<Value<'t>> {
        let mut configs = holder.get("typed_per_filter_config")?.fields();
        configs.find(|(name, _)| *name == self.name).map(|(_, config)| config)
    }
}

/// [`FORMATTER_FLAG`] in a layer of the runtime; the parts of its name may be maps.
fn runtime_flag(layer: Value<'_>) -> Option<bool> {
    let nested: Vec<&str> = FORMATTER_FLAG.split('.').collect();
    layer.get(FORMATTER_FLAG).or_else(|| layer.at(&nested)).map(Value::flag)
}

fn stage(holder: Value<'_>) -> u64 {
    holder.get("stage").and_then(Value::text).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The clusters of a route; empty if requests choose them.
fn clusters(action: Value<'_>) -> Vec<&str> {
    if let Some(cluster) = action.get("cluster").and_then(Value::text) {
        return vec![cluster];
    }
    let weighted = action.get("weighted_clusters");
    weighted
        .into_iter()
        .flat_map(|all| all.list("clusters"))
        .filter_map(|one| one.get("name")?.text())
        .collect()
}

/// True if the limits of the virtual host apply beside those of the route.
fn includes_host(action: Value<'_>, own: Option<Value<'_>>) -> bool {
    action.get("include_vh_rate_limits").is_some_and(Value::flag)
        || own.is_some_and(|own| option(own) == "INCLUDE")
}

/// True if the limits of the virtual host never apply.
fn ignores_host(own: Value<'_>) -> bool {
    option(own) == "IGNORE"
}

/// `override_option`, or else `vh_rate_limits`.
fn option(own: Value<'_>) -> &str {
    let text = |name| own.get(name).and_then(Value::text);
    match text("override_option").and_then(|option| option.strip_suffix("_POLICY")) {
        Some(option) => option,
        None => text("vh_rate_limits").unwrap_or("OVERRIDE"),
    }
}
