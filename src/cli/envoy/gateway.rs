//! `tollgate replay --envoy`: makes requests from an access log as this configuration of Envoy would.

use std::path::{Path, PathBuf};

use super::{
    MAX_VALUES,
    config::{self, Gateway, Manager},
    items::{self, Surroundings},
    matches,
    tree::Value,
};
use ::replay::{
    AccessLog, Format,
    envoy::{self as replayed, Call},
};
use rules::{Diagnostics, SourceFile, yaml};

const FILE_LOG: [&str; 3] = [
    ".access_loggers.file.v3.FileAccessLog",
    ".access_loggers.stream.v3.StdoutAccessLog",
    ".access_loggers.stream.v3.StderrAccessLog",
];

/// Fields of a route's action that change paths or hosts before they are logged.
const REWRITE_PATHS: [&str; 4] = ["prefix_rewrite", "regex_rewrite", "path_rewrite_policy", "path_rewrite"];
const REWRITE_HOSTS: [&str; 5] = [
    "host_rewrite_literal",
    "auto_host_rewrite",
    "host_rewrite_header",
    "host_rewrite_path_regex",
    "host_rewrite",
];

/// Values with operators are filled in.
const FILLS_VALUES: &str = "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value";

/// How requests are made from these logs, with the format of the command line if there is one.
pub fn access_log(file: &SourceFile, logs: &[PathBuf], format: Option<&Format>) -> Result<AccessLog, String> {
    let name = &file.name;
    let document = yaml::read(&file.text, MAX_VALUES).map_err(|error| {
        let mut found = Diagnostics::of(name, false);
        found.file_error(yaml::template(&file.text).unwrap_or(error));
        found.into_sorted().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })?;
    let root = document.root.as_ref().ok_or_else(|| format!("{name}: the file is empty"))?;
    let root = Value(root);
    let gateway = Gateway::read(root);
    let (manager, format) = chosen(&gateway, logs, format).map_err(|why| format!("{name}: {why}"))?;
    if manager.hosts.is_empty() {
        let help = "use the configuration of a running Envoy: `curl ADMIN/config_dump`";
        return Err(format!(
            "{name}: the file has no routes of the listener with the rate limit filter; {help}"
        ));
    }
    Ok(AccessLog { format, by_name: false, gateway: of_manager(&gateway, manager, root) })
}

/// The connection manager that wrote the logs, and their format.
fn chosen<'g, 't>(
    gateway: &'g Gateway<'t>,
    logs: &[PathBuf],
    format: Option<&Format>,
) -> Result<(&'g Manager<'t>, Format), String> {
    if gateway.managers.is_empty() {
        return Err("no HTTP listener has a rate limit filter, so Envoy sends no request".to_owned());
    }
    let all = gateway.managers.iter().flat_map(|manager| {
        let loggers = manager.config.list("access_log").filter_map(|logger| logger.get("typed_config"));
        let loggers = loggers.filter(|logger| FILE_LOG.iter().any(|kind| logger.is(kind)));
        loggers.map(move |logger| (manager, logger))
    });
    let all: Vec<_> = all.collect();
    let named = all.iter().filter(|(_, logger)| logs.iter().all(|log| is_of(*logger, log)));
    let named: Vec<_> = named.copied().collect();
    let candidates = if named.is_empty() { all } else { named };
    let only = if let [manager] = &gateway.managers[..] { Some(manager) } else { None };
    match (&candidates[..], format, only) {
        ([(manager, _)], Some(format), _) => Ok((*manager, format.clone())),
        ([(manager, logger)], None, _) => Ok((*manager, format_of(*logger)?)),
        (_, Some(format), Some(manager)) => Ok((manager, format.clone())),
        ([], None, _) => {
            Err("no access log to a file is configured; give its format with --access-log-format".to_owned())
        }
        ([], Some(_), None) => {
            Err("several listeners have a rate limit filter; give the file only one".to_owned())
        }
        (several, ..) => {
            let path = |(_, logger): &(_, Value<'t>)| {
                logger.get("path").and_then(Value::text).unwrap_or("standard output").to_owned()
            };
            let paths = several.iter().map(path).collect::<Vec<_>>().join(", ");
            Err(format!(
                "which access log is replayed? It must have the name of one that is configured: {paths}; rotated and \
                 compressed ones may have more behind it"
            ))
        }
    }
}

/// True if a log has the name of the logger's file, or that with more behind it.
fn is_of(logger: Value<'_>, log: &Path) -> bool {
    let path = logger.get("path").and_then(Value::text).map(Path::new);
    let written = path.and_then(Path::file_name).and_then(|name| name.to_str());
    let log = log.file_name().and_then(|name| name.to_str());
    written.zip(log).is_some_and(|(written, log)| {
        log.strip_prefix(written).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '_']))
    })
}

fn format_of(logger: Value<'_>) -> Result<Format, String> {
    let holder = logger.get("log_format").unwrap_or(logger);
    let at = |error: String| format!("{}: the access log's format: {error}", logger.place().line);
    let json = holder.get("json_format").or_else(|| holder.get("typed_json_format"));
    if let Some(json) = json {
        let mut fields = Vec::new();
        fields_of(&[], json, &mut fields).map_err(at)?;
        return Format::of_fields(fields).map_err(at);
    }
    let text = holder.get("text_format").or_else(|| holder.get("format"));
    let text = text.or_else(|| holder.at(&["text_format_source", "inline_string"]));
    match text.and_then(Value::text) {
        Some(text) => Format::of_text(text).map_err(at),
        None if holder.get("text_format_source").is_some() => {
            Err(at("expected an inline_string; else give it with --access-log-format".to_owned()))
        }
        None => Ok(Format::default()),
    }
}

fn fields_of(
    path: &[String],
    value: Value<'_>,
    into: &mut Vec<(Vec<String>, ::replay::Parts)>,
) -> Result<(), String> {
    for (name, value) in value.fields() {
        let path = [path, &[name.to_owned()]].concat();
        match value.text() {
            Some(format) => into.push((path, format.parse()?)),
            None => fields_of(&path, value, into)?,
        }
    }
    Ok(())
}

fn of_manager(gateway: &Gateway<'_>, manager: &Manager<'_>, root: Value<'_>) -> replayed::Gateway {
    let mut fills_values = false;
    if let Some(runtime) = root.get("layered_runtime") {
        runtime.walk(&mut |value| {
            fills_values |= value.fields().any(|(name, value)| name == FILLS_VALUES && value.flag());
        });
    }
    let own_cluster = gateway.own_cluster.unwrap_or_default();
    let mut of = replayed::Gateway::default();
    for host in &manager.hosts {
        let domains = host.config.list("domains").filter_map(Value::text).map(str::to_ascii_lowercase);
        let mut routes = Vec::new();
        for route in &host.routes {
            let action = route.config.get("route");
            let surroundings = Surroundings {
                own_cluster,
                cluster: action.and_then(|action| action.get("cluster")?.text()),
                fills_values,
            };
            let has = |fields: &[&str]| {
                action.is_some_and(|action| fields.iter().any(|one| action.get(one).is_some()))
            };
            let rewrites_path = has(&REWRITE_PATHS);
            of.rewrites_paths |= rewrites_path;
            of.rewrites_hosts |= has(&REWRITE_HOSTS);
            let above = [Some(route.config), Some(host.config), manager.routes, action];
            routes.push(replayed::Route {
                name: route.config.get("name").and_then(Value::text).map(str::to_owned),
                shown: shown(route.config).into(),
                matches: matches::route(host.config, route.config),
                calls: route.limits.iter().flat_map(|limits| calls(limits, &surroundings)).collect(),
                changed_headers: above.into_iter().flatten().flat_map(changed_headers).collect(),
                rewrites_path,
                chooses_cluster: has(&["cluster_header", "cluster_specifier_plugin"]),
            });
        }
        of.hosts.push(replayed::Host { domains: domains.collect(), routes });
    }
    of
}

/// As the report names a route: by its name, or else by its line.
fn shown(route: Value<'_>) -> String {
    match route.get("name").and_then(Value::text) {
        Some(name) => format!("route {name:?}"),
        None => format!("the route at line {}", route.place().line),
    }
}

/// The requests for a filter's limits: before the upstream, and when the response has ended.
fn calls(limits: &config::Limits<'_>, surroundings: &Surroundings<'_>) -> Vec<Call> {
    let call = |at_end| {
        let is_of = |item: &&Value<'_>| item.get("apply_on_stream_done").is_some_and(Value::flag) == at_end;
        let items = limits.items.iter().filter(is_of);
        let descriptors = items.map(|item| items::descriptor(*item, surroundings, limits.without_hits));
        Call { domain: limits.domain.to_owned(), at_end, descriptors: descriptors.collect() }
    };
    [false, true].map(call).into_iter().filter(|call| !call.descriptors.is_empty()).collect()
}

/// The headers that a route, a host or all routes change when the router forwards a request.
fn changed_headers(holder: Value<'_>) -> Vec<String> {
    let mut changed = Vec::new();
    holder_and_clusters(holder, &mut |holder| {
        let added =
            holder.list("request_headers_to_add").filter_map(|one| one.at(&["header", "key"])?.text());
        let removed = holder.list("request_headers_to_remove").filter_map(Value::text);
        changed.extend(added.chain(removed).map(str::to_ascii_lowercase));
    });
    changed
}

/// Visits a holder of headers and the weighted clusters of a route's action.
fn holder_and_clusters<'t>(holder: Value<'t>, visit: &mut dyn FnMut(Value<'t>)) {
    visit(holder);
    let weighted = holder.get("weighted_clusters");
    weighted.into_iter().flat_map(|all| all.list("clusters")).for_each(visit);
}
