//! `tollgate check --envoy`: compares what Envoy can send with the rules.
//!
//! [`config`] reads the limits of routes from Envoy's configuration; [`actions`] knows the entries of their descriptors,
//! [`pitfalls`] what Envoy does not do as it is written, and [`coverage`] finds the rules that they meet. Here the
//! differences become diagnostics.

mod actions;
mod config;
mod coverage;
mod pitfalls;
mod tree;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use actions::{Descriptor, HitsSource, OwnLimit};
use config::{FailureMode, Filter, Gateway, Remark, Sent};
use coverage::{Coverage, nodes, notation};
use faults::OnStoreFailure;
use limit::{Kind, Limits};
use rules::{
    Domain, Level, Node, Rule, RuleSet, SourceFile,
    yaml::{self, MaxValues},
};
use text::{
    diagnostics::{Diagnostic, Diagnostics, Path, Place, Severity},
    spelling::nearest,
};
use tree::Value;

/// The settings that Envoy's are compared with.
pub struct Service {
    /// The variable of the store's timeout, and its value.
    pub timeout: (&'static str, Duration),
    /// The policy of domains that set none.
    pub policy: OnStoreFailure,
    /// `LIMIT_RETRY_AFTER_HEADER`.
    pub retry_after_header: Option<String>,
}

#[derive(Default)]
pub struct Compared {
    pub diagnostics: Vec<Diagnostic>,
    pub filters: usize,
    pub descriptors: usize,
    pub unmatched: usize,
    /// Rules that no descriptor meets; `None` if a part of the configurations was not read.
    pub unreached: Option<usize>,
}

/// The configuration of a gateway has a few thousand values, and the config dump of a large mesh a million.
const MAX_VALUES: MaxValues = MaxValues {
    values: 2_000_000,
    set_by: "the most of a config dump",
    help: "keep only its listeners and routes",
};

/// Compares Envoys with the rules, which were read from `rules_files`.
pub fn compare(
    envoys: &[SourceFile],
    rules: &RuleSet,
    rules_files: &[SourceFile],
    service: &Service,
) -> Compared {
    let compared = Compared { unreached: Some(0), ..Compared::default() };
    let mut comparison = Comparison { rules, service, coverage: HashMap::new(), compared };
    for file in envoys {
        let mut found = Diagnostics::of(&file.name, false);
        match yaml::read(&file.text, MAX_VALUES) {
            Ok(document) => match &document.root {
                Some(root) => comparison.gateway(Value(root), &mut found),
                None => found.error(
                    Place { line: 1, column: 1 },
                    &Path::File,
                    "the file is empty".to_owned(),
                    None,
                ),
            },
            Err(error) => {
                found.file_error(yaml::template(&file.text).unwrap_or(error));
                comparison.compared.unreached = None;
            }
        }
        comparison.compared.diagnostics.extend(found.into_sorted());
    }
    comparison.unreached(rules_files);
    comparison.compared
}

struct Comparison<'r> {
    rules: &'r RuleSet,
    service: &'r Service,
    /// The domains that Envoy names, with the rules that it can reach.
    coverage: HashMap<String, Coverage<'r>>,
    compared: Compared,
}

impl Comparison<'_> {
    fn gateway(&mut self, root: Value<'_>, found: &mut Diagnostics) {
        let gateway = Gateway::read(root);
        if gateway.filters.is_empty() && !gateway.is_partial {
            no_filter(root, found);
        }
        if gateway.is_partial {
            self.compared.unreached = None;
        }
        self.compared.filters += gateway.filters.len();
        for Remark { severity, place, message, help } in &gateway.remarks {
            found.add(*severity, Some(*place), &Path::File, message.clone(), Some((*help).to_owned()));
        }
        for filter in &gateway.filters {
            self.domain(filter.place, filter.domain, found);
            self.timeout(filter, found);
            self.failure_mode(filter, found);
            self.retry_after(filter, found);
            cluster(root, filter, found);
        }
        let named: HashSet<&str> = gateway.filters.iter().map(|filter| filter.domain).collect();
        let mut seen = HashSet::new();
        for Sent { domain, descriptor } in &gateway.sent {
            let shown = notation(&descriptor.entries);
            if !seen.insert((descriptor.place, *domain, shown.clone())) {
                continue;
            }
            self.compared.descriptors += 1;
            // An unknown domain is reported once, at its filter.
            let is_reported = named.contains(domain) && self.rules.domain(domain).is_none();
            if is_reported || !self.domain(descriptor.place, domain, found) {
                self.compared.unmatched += 1;
                continue;
            }
            let Some(coverage) = self.coverage.get_mut(*domain) else { continue };
            let met = coverage.add(&descriptor.entries);
            hits(descriptor, &met.rules, found);
            let Some(help) = &met.help else { continue };
            let message = format!("no rule of the domain {} meets the descriptor `{shown}`", quoted(domain));
            match descriptor.limit {
                OwnLimit::Absent => {
                    self.compared.unmatched += 1;
                    found.warning(descriptor.place, &Path::File, message, Some(help.clone()));
                }
                OwnLimit::OfMetadata => {
                    let message = message + ", so a request without the metadata of `limit` has no limit";
                    let help = "add a rule, which limits such requests".to_owned();
                    found.add(Severity::Note, Some(descriptor.place), &Path::File, message, Some(help));
                }
                OwnLimit::Static => {}
            }
        }
    }

    /// True if the domain has rules, else reports it.
    fn domain(&mut self, place: Place, name: &str, found: &mut Diagnostics) -> bool {
        if let Some(domain) = self.rules.domain(name) {
            self.coverage.entry(name.to_owned()).or_insert_with(|| Coverage::of(domain));
            return true;
        }
        let mut known: Vec<&str> = self.rules.domains().map(|domain| &*domain.name).collect();
        known.sort_unstable();
        // A misspelt domain leaves all requests of its filter without a limit.
        let (severity, help) = match nearest(name, known.iter().copied()) {
            Some(meant) => (Severity::Error, format!("did you mean {}?", quoted(meant))),
            None => (Severity::Warning, format!("the rules have the domains: {}", list(&known))),
        };
        let message = format!("the domain {} has no rules, so its requests are not limited", quoted(name));
        found.add(severity, Some(place), &Path::File, message, Some(help));
        false
    }

    fn timeout(&self, filter: &Filter<'_>, found: &mut Diagnostics) {
        let (place, timeout) = filter.timeout;
        let (variable, of_store) = self.service.timeout;
        if timeout > of_store {
            return;
        }
        let message = format!(
            "Envoy waits {timeout:?} for an answer, and {variable} is {of_store:?}: with a slow store Envoy gives up first, \
             and `on_store_failure` never decides"
        );
        let help = format!("set `timeout` above {of_store:?}, or {variable} below {timeout:?}");
        found.warning(place, &Path::File, message, Some(help));
    }

    fn failure_mode(&self, filter: &Filter<'_>, found: &mut Diagnostics) {
        let of_domain = self.rules.domain(filter.domain).and_then(|domain| domain.on_store_failure);
        let policy = of_domain.unwrap_or(self.service.policy);
        let (place, mode) = filter.failure_mode;
        let status = filter.status_on_error;
        let without_service = match mode {
            FailureMode::Deny(false) | FailureMode::DenyPercent { part: 0, .. } => "pass".to_owned(),
            FailureMode::DenyPercent { part, whole } if part < whole => format!("pass, or get {status},"),
            FailureMode::Deny(true) | FailureMode::DenyPercent { .. } => format!("get {status}"),
        };
        let (with_policy, agreeing) = match policy {
            OnStoreFailure::Deny => ("refused", format!("get {status}")),
            OnStoreFailure::Allow | OnStoreFailure::Local | OnStoreFailure::Share => {
                ("allowed", "pass".to_owned())
            }
            // Envoy decides in both cases.
            OnStoreFailure::Error => return,
        };
        if without_service == agreeing {
            return;
        }
        let message = format!(
            "with {mode} requests {without_service} while Tollgate does not answer, but with the policy \
             `{}` they are {with_policy} while its store is lost",
            policy.name()
        );
        let first = match mode {
            FailureMode::Deny(_) => "",
            FailureMode::DenyPercent { .. } => "remove `failure_mode_deny_percent` and ",
        };
        let deny = policy == OnStoreFailure::Deny;
        let help = format!("{first}set `failure_mode_deny: {deny}`, or change `on_store_failure`");
        found.warning(place, &Path::File, message, Some(help));
    }

    /// Reports a `retry-after` of Envoy that is later than the next request that passes.
    fn retry_after(&self, filter: &Filter<'_>, found: &mut Diagnostics) {
        let Some(place) = filter.retry_after else { return };
        if filter.limited_status != "429" {
            let message = format!(
                "`enable_retry_after_header` has no effect with `rate_limited_status` {}",
                filter.limited_status
            );
            let help = "set LIMIT_RETRY_AFTER_HEADER=Retry-After of Tollgate instead".to_owned();
            found.add(Severity::Note, Some(place), &Path::File, message, Some(help));
            return;
        }
        // Envoy keeps the header of the service.
        let is_replaced = |header: &String| header.eq_ignore_ascii_case("retry-after");
        if self.service.retry_after_header.as_ref().is_some_and(is_replaced) {
            return;
        }
        let rules = self.rules.domain(filter.domain).map(Domain::rules).unwrap_or_default();
        let mut refilling = rules.into_iter().filter_map(|(rule, _)| Some((rule, refilling(rule)?)));
        if let Some((rule, kind)) = refilling.next() {
            let message = format!(
                "Envoy's `retry-after` is the time until the limit is full again, which with `{}` of the rule {} is later \
                 than the next request that passes",
                kind.name(),
                quoted(&rule.full_key)
            );
            let help = "set LIMIT_RETRY_AFTER_HEADER=Retry-After of Tollgate, which Envoy keeps".to_owned();
            found.warning(place, &Path::File, message, Some(help));
        }
    }

    /// Reports the rules that no descriptor meets, in the order of the files.
    fn unreached(&mut self, files: &[SourceFile]) {
        if self.compared.unreached.is_none() || self.compared.filters == 0 {
            return;
        }
        let mut found: BTreeMap<&str, Diagnostics> = BTreeMap::new();
        let mut count = 0;
        for domain in self.rules.domains() {
            let coverage = self.coverage.get(&*domain.name);
            let mut rules = Vec::new();
            collect(&domain.root, &mut Vec::new(), &mut rules);
            rules.retain(|(node, _)| {
                let id = node.rule.as_ref().map(|rule| rule.id);
                coverage.is_none_or(|coverage| id.is_some_and(|id| !coverage.reached.contains(&id)))
            });
            count += rules.len();
            if coverage.is_none() {
                let Some((file, _)) = rules.first().and_then(|(node, _)| self.rules.origin(node)) else {
                    continue;
                };
                let message = format!(
                    "no filter of Envoy has the domain {}, so its rules are never reached",
                    quoted(&domain.name)
                );
                let found = found.entry(file).or_insert_with(|| Diagnostics::of(file, false));
                found.add(Severity::Warning, None, &Path::File, message, None);
                continue;
            }
            for (node, keys) in rules {
                let Some((file, line)) = self.rules.origin(node) else { continue };
                let column =
                    files.iter().find(|known| known.name == file).map_or(1, |file| first_column(file, line));
                let full_key = node.rule.as_ref().map_or("", |rule| &*rule.full_key);
                let message = format!("Envoy sends no descriptor that meets the rule {}", quoted(full_key));
                let help = format!("a descriptor for it has the entries {}", list(&keys));
                let found = found.entry(file).or_insert_with(|| Diagnostics::of(file, false));
                found.warning(Place { line, column }, &Path::File, message, Some(help));
            }
        }
        self.compared.unreached = Some(count);
        self.compared.diagnostics.extend(found.into_values().flat_map(Diagnostics::into_sorted));
    }
}

/// A sliding window or a bucket of the rule: these count only hits that fit, and admit requests before they are full again.
fn refilling(rule: &Rule) -> Option<Kind> {
    let mut kinds = rule.limits()?.iter().map(|limit| limit.algorithm.kind());
    kinds.find(|kind| !matches!(kind, Kind::FixedWindow | Kind::Concurrency))
}

/// Reports hits that a rule does not count as they are meant.
fn hits(descriptor: &Descriptor, rules: &[&Rule], found: &mut Diagnostics) {
    for rule in rules {
        let name = quoted(&rule.full_key);
        let holds = || rule.limits().is_some_and(|limits| limits.iter().any(|limit| limit.holds));
        match descriptor.hits {
            HitsSource::EndOfStream if descriptor.limit == OwnLimit::Absent => {
                let counts = match refilling(rule) {
                    Some(kind) => format!("`{}` of the rule {name} counts only hits that fit", kind.name()),
                    None if rule.limits().is_some_and(Limits::are_several) => {
                        format!("the limits of the rule {name} count only hits that fit all of them")
                    }
                    None => continue,
                };
                let message = format!("a cost above what remains is not charged: {counts}");
                let help =
                    "use one `fixed_window`, or a `hold`: docs/reference/holds.md#peek-and-charge".to_owned();
                found.warning(descriptor.place, &Path::File, message, Some(help));
            }
            HitsSource::Request if rule.limits().is_some() && !holds() => {
                let message = format!(
                    "a request counts `{}` hits for the rule {name}, which has no `hold`",
                    pitfalls::HITS_OF_REQUEST
                );
                let help =
                    "for one hit set `hits_addend: {number: 1}` in `rate_limits` of the filter".to_owned();
                found.add(Severity::Note, Some(descriptor.place), &Path::File, message, Some(help));
            }
            _ => {}
        }
    }
}

/// The descriptors with a rule, each with the keys of its path.
fn collect<'r>(level: &'r Level, path: &mut Vec<&'r str>, into: &mut Vec<(&'r Node, Vec<&'r str>)>) {
    for node in nodes(level) {
        path.push(node.key());
        if node.rule.is_some() {
            into.push((node, path.clone()));
        }
        collect(&node.children, path, into);
        path.pop();
    }
}

/// The column of the first character of a line that is not a blank.
fn first_column(file: &SourceFile, line: u32) -> u32 {
    let text = String::from_utf8_lossy(&file.text);
    let line = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
    let blanks = line.chars().take_while(|c| c.is_whitespace()).count();
    u32::try_from(blanks + 1).unwrap_or(1)
}

fn no_filter(root: Value<'_>, found: &mut Diagnostics) {
    if let (Some(_), Some(kind)) = (root.get("apiVersion"), root.get("kind").and_then(Value::text)) {
        let message = format!(
            "this is a Kubernetes manifest of the kind {}, not a configuration of Envoy",
            quoted(kind)
        );
        let help = "check what the proxy received: `curl localhost:9901/config_dump`, or `istioctl proxy-config all POD -o json`";
        found.error(root.place(), &Path::File, message, Some(help.to_owned()));
        return;
    }
    let message = "this configuration has no rate limit filter, so Envoy sends nothing".to_owned();
    let help =
        "add `envoy.filters.http.ratelimit` to `http_filters`, before the router: docs/reference/envoy.md";
    found.warning(root.place(), &Path::File, message, Some(help.to_owned()));
}

/// Reports a cluster of the service that does not exist, or does not speak gRPC.
fn cluster(root: Value<'_>, filter: &Filter<'_>, found: &mut Diagnostics) {
    let (Some(written), Some(resources)) = (filter.cluster, root.get("static_resources")) else { return };
    let Some(name) = written.text() else { return };
    let named =
        resources.list("clusters").find(|cluster| cluster.get("name").and_then(Value::text) == Some(name));
    let Some(cluster) = named else {
        if root.at(&["dynamic_resources", "cds_config"]).is_none() {
            let message = format!("there is no cluster {}", quoted(name));
            found.warning(written.place(), &Path::File, message, Some("add it to `clusters`".to_owned()));
        }
        return;
    };
    let mut speaks_http2 = false;
    cluster.walk(&mut |value| speaks_http2 |= value.get("http2_protocol_options").is_some());
    if !speaks_http2 {
        let message =
            format!("the cluster {} has no `http2_protocol_options`, and gRPC needs HTTP/2", quoted(name));
        let help = "add `typed_extension_protocol_options` as in docs/reference/envoy.md".to_owned();
        found.warning(cluster.place(), &Path::File, message, Some(help));
    }
}

/// The most names that a sentence lists.
const MAX_NAMES: usize = 5;

fn list(names: &[&str]) -> String {
    let shown = names.iter().take(MAX_NAMES).map(|name| quoted(name));
    let more = if names.len() > MAX_NAMES { ", …" } else { "" };
    shown.collect::<Vec<_>>().join(", ") + more
}

fn quoted(text: &str) -> String {
    format!("`{}`", text.escape_debug())
}
