//! Configurations of Envoy with planted mistakes.

use serde_json::Value;

use super::check;

/// A configuration with this filter, these routes and this host's `rate_limits`, in flow style.
fn envoy(filter: &str, routes: &str, host: &str) -> String {
    format!(
        "static_resources:
  listeners:
  - filter_chains:
    - filters:
      - name: manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              {filter}
              rate_limit_service: {{grpc_service: {{envoy_grpc: {{cluster_name: tollgate}}}}}}
          route_config:
            virtual_hosts:
            - name: all
              rate_limits: [{host}]
              routes: [{routes}]
  clusters:
  - {{name: tollgate, http2_protocol_options: {{}}}}
"
    )
}

/// A route with these items of `rate_limits`.
fn route(items: &str) -> String {
    format!("{{match: {{prefix: /}}, route: {{cluster: shop, rate_limits: [{items}]}}}}")
}

const RULES: &str = "domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 2}
  descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 2}
- key: plan
  value: gold
  rate_limit: {unit: hour, requests_per_unit: 2}
";

/// The diagnostics of a report: severity, place, message and help.
fn said(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |one: &Value| {
        let file = text(&one["file"]);
        format!(
            "{} {file}:{} {}; {}",
            text(&one["severity"]),
            one["line"],
            text(&one["message"]),
            text(&one["help"])
        )
    };
    report["diagnostics"].as_array().unwrap().iter().map(one).collect()
}

fn user() -> &'static str {
    "{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]}"
}

fn all() -> String {
    let two = "{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}, {generic_key: {descriptor_key: path, descriptor_value: /}}]}";
    format!("{}, {two}, {{actions: [{{metadata: {{descriptor_key: plan}}}}]}}", user())
}

#[test]
fn a_configuration_that_fits_the_rules_has_no_remark() {
    let (report, code) = check(&envoy("domain: shop", &route(&all()), ""), RULES, &["--deny-warnings"]);
    assert_eq!((said(&report), code), (vec![], Some(0)), "{report:#}");
    assert_eq!(
        report["envoy"],
        serde_json::json!({
            "filters": 1, "descriptors": 3, "unmatched_descriptors": 0, "unreached_rules": 0,
        })
    );
}

#[test]
fn a_misspelt_domain_a_short_timeout_and_a_cluster_without_http2_are_named() {
    let config = envoy("{domain: shpo, timeout: 0.01s}", &route(&all()), "");
    // The filter's fields in flow style need a map of their own.
    let config =
        config.replace("{domain: shpo, timeout: 0.01s}", "domain: shpo\n              timeout: 0.01s");
    let config = config.replace("http2_protocol_options: {}", "connect_timeout: 1s");
    let (report, code) = check(&config, RULES, &["--deny-warnings"]);
    let said = said(&report);
    for (line, part) in [
        (12, "the domain `shpo` has no rules, so its requests are not limited; did you mean `shop`?"),
        (13, "Envoy waits 10ms for an answer, and REDIS_TIMEOUT is 10ms"),
        (21, "the cluster `tollgate` has no `http2_protocol_options`"),
    ] {
        let found = said
            .iter()
            .any(|one| one.starts_with(&format!("error envoy.yaml:{line} ")) && one.contains(part));
        assert!(found, "{line} {part}: {said:#?}");
    }
    assert!(
        said.iter().any(|one| one.contains("rules.yaml:null no filter of Envoy has the domain `shop`")),
        "{said:#?}"
    );
    assert_eq!(code, Some(1));
}

#[test]
fn rules_that_envoy_cannot_reach_are_an_error_and_so_is_a_misspelt_domain() {
    for (domain, expected) in
        [("bank", "these rules limit nothing: Envoy can meet none of them"), ("shpo", "did you mean `shop`?")]
    {
        let (report, code) = check(&envoy(&format!("domain: {domain}"), &route(&all()), ""), RULES, &[]);
        let said = said(&report);
        assert!(said.iter().any(|one| one.starts_with("error ") && one.contains(expected)), "{said:#?}");
        assert_eq!((code, &report["valid"]), (Some(1), &false.into()), "{said:#?}");
    }
    let (report, code) = check(
        &envoy("domain: shop", &route("{actions: [{generic_key: {descriptor_value: x}}]}"), ""),
        RULES,
        &[],
    );
    assert!(said(&report).iter().any(|one| one.contains("these rules limit nothing")), "{report:#}");
    assert_eq!(code, Some(1));
}

#[test]
fn descriptors_that_no_rule_meets_are_named_with_the_reason() {
    let items = |actions: &str| format!("{{actions: [{actions}]}}");
    let header = |key: &str| format!("{{request_headers: {{header_name: x, descriptor_key: {key}}}}}");
    for (actions, message, help) in [
        (header("usr"), "`usr=…`", "did you mean `user`?"),
        (
            format!("{}, {}", header("path"), header("user")),
            "`path=…,user=…`",
            "the domain has rules for other keys: `plan`, `user`",
        ),
        (
            format!("{}, {}", header("user"), header("host")),
            "`user=…,host=…`",
            "`user=…` has rules for other keys: `path`",
        ),
        (
            format!("{}, {}, {}", header("user"), header("path"), header("x")),
            "`user=…,path=…,x=…`",
            "has no level below",
        ),
        (
            "{generic_key: {descriptor_key: plan, descriptor_value: free}}".to_owned(),
            "`plan=free`",
            "the rules have other values of `plan`: `gold`",
        ),
        (
            "{generic_key: {descriptor_value: v}}".to_owned(),
            "`generic_key=v`",
            "the domain has rules for other keys",
        ),
    ] {
        let config = envoy("domain: shop", &route(&format!("{}, {}", all(), items(&actions))), "");
        let (report, code) = check(&config, RULES, &[]);
        let said = said(&report);
        let begin =
            format!("warning envoy.yaml:18 no rule of the domain `shop` meets the descriptor {message}; ");
        assert!(said.len() == 1 && said[0].starts_with(&begin) && said[0].contains(help), "{said:#?}");
        assert_eq!((code, &report["envoy"]["unmatched_descriptors"]), (Some(0), &Value::from(1)));
    }
    // A limit of its own needs no rule.
    let own = "{limit: {dynamic_metadata: {}}, actions: [{generic_key: {descriptor_value: v}}]}";
    let (report, _) = check(&envoy("domain: shop", &route(&format!("{}, {own}", all())), ""), RULES, &[]);
    assert_eq!(said(&report), [""; 0]);
}

/// Verified with Envoy 1.40 in `connect.rs`.
#[test]
fn a_command_that_envoy_sends_as_text_is_named() {
    let flag = "envoy.reloadable_features.enable_formatter_for_ratelimit_action_descriptor_value";
    for (action, is_text) in [
        ("generic_key: {descriptor_key: user, descriptor_value: '%REQ(x-user)%'}", true),
        ("header_value_match: {descriptor_key: user, descriptor_value: 'a-%REQ(x-user)%'}", true),
        ("query_parameter_value_match: {descriptor_key: user, descriptor_value: '%REQ(x-user)%'}", true),
        ("remote_address_match: {descriptor_key: user, descriptor_value: '%REQ(x-user)%'}", false),
        ("generic_key: {descriptor_key: user, descriptor_value: 50%}", false),
    ] {
        let config = envoy("domain: shop", &route(&format!("{}, {{actions: [{{{action}}}]}}", all())), "");
        let remarks = said(&check(&config, RULES, &[]).0);
        if !is_text {
            assert_eq!(remarks, [""; 0], "{action}");
            continue;
        }
        let named = format!("%REQ(x-user)%` for every request, without the runtime flag `{flag}`; use ");
        assert!(remarks.len() == 1 && remarks[0].contains(&named), "{remarks:#?}");
        // The parts of a name may be maps.
        let nested = format!("{}: true}}}}", flag.replace('.', ": {"));
        for (layers, is_on) in [
            (format!("[{{static_layer: {{{flag}: true}}}}]"), true),
            (format!("[{{staticLayer: {{{nested}}}}}]"), true),
            (format!("[{{static_layer: {{{flag}: true}}}}, {{static_layer: {{{flag}: false}}}}]"), false),
        ] {
            let (report, _) = check(&format!("layered_runtime: {{layers: {layers}}}\n{config}"), RULES, &[]);
            assert_eq!(said(&report).is_empty(), is_on, "{layers}: {report:#}");
        }
    }
}

#[test]
fn rules_out_of_reach_are_named_at_their_places() {
    let (report, code) = check(&envoy("domain: shop", &route(user()), &all()), RULES, &[]);
    assert_eq!(
        said(&report),
        [
            "warning rules.yaml:6 Envoy sends no descriptor that meets the rule `shop.user.path`; a descriptor for it has the entries `user`, `path`",
            "warning rules.yaml:8 Envoy sends no descriptor that meets the rule `shop.plan_gold`; a descriptor for it has the entries `plan`",
        ]
    );
    assert_eq!(code, Some(0));
}

#[test]
fn fields_that_do_nothing_and_contradictions_are_named() {
    let config = envoy(
        "domain: shop\n              failure_mode_deny: true",
        &route(&format!(
            "{}, {{stage: 3, actions: [{{remote_address: {{}}}}]}}, {{hits_addend: {{number: 2}}, actions: [{{request_headers: {{header_name: ':path', descriptor_key: user}}}}]}}",
            all()
        )),
        "",
    );
    let (report, _) =
        check(&config, &RULES.replace("domain: shop", "domain: shop\non_store_failure: allow"), &[]);
    let said = said(&report);
    for part in [
        "with `failure_mode_deny: true` requests get 500 while Tollgate does not answer, but with the policy `allow` they are allowed",
        "no filter of this listener has the stage 3",
        "`hits_addend` has no effect here",
        "`:path` contains the query, so `?x=1` evades a limit per path",
    ] {
        assert!(said.iter().any(|one| one.contains(part)), "{part}: {said:#?}");
    }
    assert_eq!(said.len(), 4, "{said:#?}");
}

#[test]
fn what_is_not_known_is_said_and_nothing_is_concluded_from_it() {
    let clusters = (0..100).map(|n| format!("{{name: c{n}}}")).collect::<Vec<_>>().join(", ");
    let many = "{actions: [{destination_cluster: {}}, {destination_cluster: {}}, {destination_cluster: {}}]}";
    let weighted =
        format!("{{route: {{weighted_clusters: {{clusters: [{clusters}]}}, rate_limits: [{many}]}}}}");
    for (config, part) in [
        (
            envoy("domain: shop", &route("{actions: [{next_year: {}}]}"), ""),
            "not judged: descriptors with `next_year`",
        ),
        (
            envoy("domain: shop", &route("{actions: [{extension: {name: mine}}]}"), ""),
            "not judged: descriptors with an extension",
        ),
        (envoy("domain: shop", &weighted, ""), "not judged: descriptors with more than 1000 combinations"),
        (
            envoy("domain: shop", "", "").replace("route_config:", "rds:"),
            "not read: routes come from a control plane",
        ),
        ("dynamic_resources: {lds_config: {}}".to_owned(), "not read: listeners come from a control plane"),
    ] {
        let (report, code) = check(&config, RULES, &["--deny-warnings"]);
        let said = said(&report);
        assert!(said.len() == 1 && said[0].starts_with("note ") && said[0].contains(part), "{said:#?}");
        assert_eq!(
            (code, &report["envoy"]["unreached_rules"], &report["warnings"]),
            (Some(0), &Value::Null, &Value::from(0))
        );
    }
}

#[test]
fn a_file_that_is_no_configuration_is_an_error() {
    for (config, part) in [
        ("", "the file is empty"),
        ("a: [", "invalid YAML"),
        ("a: {{ .Values.x }}", "template"),
        ("apiVersion: v1\nkind: EnvoyFilter", "a Kubernetes manifest of the kind `EnvoyFilter`"),
    ] {
        let (report, code) = check(config, RULES, &[]);
        let said = said(&report);
        assert!(
            said.len() == 1 && said[0].starts_with("error envoy.yaml:") && said[0].contains(part),
            "{said:#?}"
        );
        assert_eq!(code, Some(1), "{config}");
    }
    let (report, code) = check("static_resources: {}", RULES, &[]);
    assert!(said(&report)[0].contains("no rate limit filter"), "{report:#}");
    assert_eq!(code, Some(1));
    let (report, code) = check("{}", RULES, &["--envoy", "missing.yaml"]);
    assert!(said(&report).iter().any(|one| one.contains("missing.yaml")), "{report:#}");
    assert_eq!(code, Some(2));
}
