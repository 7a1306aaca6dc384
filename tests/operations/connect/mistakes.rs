//! Configurations of Envoy with planted mistakes.

use serde_json::Value;

use super::{check, check_with};

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
    // A limit that is always sent needs no rule; one of metadata is absent with the metadata.
    let remarks = |limit: &str| {
        let own = format!("{{limit: {{{limit}}}, actions: [{{generic_key: {{descriptor_value: v}}}}]}}");
        said(&check(&envoy("domain: shop", &route(&format!("{}, {own}", all())), ""), RULES, &[]).0)
    };
    assert_eq!(remarks("rate_limit: {requests_per_unit: 5, unit: HOUR}"), [""; 0]);
    let of_metadata = remarks("dynamic_metadata: {}");
    let part = "the descriptor `generic_key=v`, so a request without the metadata of `limit` has no limit; add a rule";
    assert!(
        of_metadata.len() == 1 && of_metadata[0].starts_with("note ") && of_metadata[0].contains(part),
        "{of_metadata:#?}"
    );
}

/// A configuration with filters before the rate limit filter, and items of the filter's own.
fn with_filters(before: &[&str], items: &str) -> String {
    let config = envoy(&format!("domain: shop\n              rate_limits: [{items}]"), &route(""), "");
    let before = before
        .iter()
        .map(|filter| format!("          - {{name: x, typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.{filter}}}}}\n"))
        .collect::<Vec<_>>()
        .concat();
    config.replace("http_filters:\n", &format!("http_filters:\n{before}"))
}

/// An item with the entry `user=…`, and more fields.
fn user_item(more: &str) -> String {
    format!("{{actions: [{{request_headers: {{header_name: x-user, descriptor_key: user}}}}]{more}}}")
}

/// An item whose entry `user=…` comes from an extension.
fn extension(kind: &str, fields: &str) -> String {
    let kind =
        format!("'@type': type.googleapis.com/envoy.extensions.rate_limit_descriptors.{kind}.v3.Descriptor");
    format!(
        "{{actions: [{{extension: {{name: x, typed_config: {{{kind}, descriptor_key: user, {fields}}}}}}}]}}"
    )
}

/// The remarks about the item alone.
fn of_item(before: &[&str], item: &str, rules: &str) -> Vec<String> {
    let mut said = said(&check(&with_filters(before, &format!("{}, {item}", all())), rules, &[]).0);
    said.retain(|one| !one.contains(" no rule of the domain"));
    said
}

const AI: &str =
    "ai_protocol_manager.v3.AiProtocolManager, response_handling: {token_usage: {metadata_namespace: llm}}";
const HITS: &str =
    "set_filter_state.v3.Config, on_request_headers: [{object_key: envoy.ratelimit.hits_addend}]";

/// Filters before, an item, and the remark about it; empty for none.
type Row<'r> = (&'r [&'r str], String, &'r str);

/// What Envoy 1.40 did with each item is in `connect.rs` and in `docs/reference/envoy-recipes.md`.
fn assert_named(rows: &[Row<'_>]) {
    for (before, item, expected) in rows {
        let said = of_item(before, item, RULES);
        let fits = |one: &String| {
            // Without the place, which depends on the filters.
            let (severity, rest) = one.split_once(' ').unwrap();
            format!("{severity}  {}", rest.split_once(' ').unwrap().1).contains(*expected)
        };
        // The other items of `all` count the hits of the request too.
        let is_as_expected = if expected.is_empty() {
            said.iter().all(|one| one.starts_with("note "))
                && said.len() == 3 * before.iter().filter(|one| **one == HITS).count()
        } else {
            said.iter().any(fits)
        };
        assert!(is_as_expected, "{item}: {expected:?} {said:#?}");
    }
}

#[test]
fn an_item_whose_limit_or_text_envoy_does_not_take_is_named() {
    let static_limit = |limit: &str| user_item(&format!(", limit: {{rate_limit: {{{limit}}}}}"));
    let entry = "actions: [{generic_key: {descriptor_key: user, descriptor_value: v";
    assert_named(&[
        (
            &[],
            static_limit("requests_per_unit: 5"),
            "error  a limit without `unit` is an error for each request",
        ),
        (&[], static_limit("requests_per_unit: 5, unit: UNKNOWN"), "error  a limit without `unit`"),
        (&[], static_limit("requests_per_unit: 5, unit: DAY"), ""),
        (
            &[],
            user_item(", stage: 1"),
            "error  Envoy refuses `stage` and `disable_key` in `rate_limits` of a filter",
        ),
        (&[], user_item(", disable_key: x"), "error  Envoy refuses `stage` and `disable_key`"),
        (
            &[],
            format!("{{{entry}, default_value: '%REQ(x)%'}}}}]}}"),
            "warning  Envoy sends the text `%REQ(x)%` as it is: `default_value`",
        ),
        (
            &[],
            "{actions: [{generic_key: {descriptor_key: '%REQ(x)%', descriptor_value: v}}]}".to_owned(),
            "`%REQ(x)%` as it is: `descriptor_key`",
        ),
        (&[], format!("{{{entry}100%%}}}}]}}"), ""),
    ]);
}

#[test]
fn an_item_whose_cost_or_expression_has_no_value_is_named() {
    let hits = |format: &str| user_item(&format!(", hits_addend: {{format: \"{format}\"}}"));
    let at_end = |format: &str| {
        user_item(&format!(", apply_on_stream_done: true, hits_addend: {{format: \"{format}\"}}"))
    };
    assert_named(&[
        (
            &[],
            at_end("%DYNAMIC_METADATA(envoy.ai.token_usage:total_tokens)%"),
            "warning  `envoy.ai.token_usage` is typed metadata, which only CEL reads",
        ),
        (&[AI], at_end("%DYNAMIC_METADATA(llm:total_tokens)%"), "warning  `llm` is typed metadata"),
        (&[], at_end("%DYNAMIC_METADATA(llm:total_tokens)%"), ""),
        (
            &[],
            hits("%CEL(metadata.typed_filter_metadata['r'].max_output_tokens)%"),
            "warning  `max_output_tokens` is 0 in a request that does not state it",
        ),
        (&[], hits("%CEL(has(metadata.typed_filter_metadata['r'].max_output_tokens) ? 5 : 4)%"), ""),
        (&[], hits("%RESP(x-cost)%"), "warning  this has no value before the response"),
        (&[], hits("%BYTES_SENT%"), "this has no value before the response"),
        (&[], at_end("%RESP(x-cost)%"), ""),
        (&[], extension("expr", "text: 'response.code'"), "this has no value before the response"),
        (
            &[],
            extension("expr", "text: \"request.host + '|'\""),
            "warning  Envoy's CEL does not concatenate texts",
        ),
        (&[], extension("expr", "text: 'size(request.host) + 1'"), ""),
    ]);
}

#[test]
fn an_item_whose_metadata_or_token_is_not_there_is_named() {
    let metadata = |key: &str, more: &str| {
        format!("{{actions: [{{metadata: {{descriptor_key: {key}, metadata_key: {more}}}}}]")
    };
    assert_named(&[
        (
            &[],
            metadata("user", "{key: envoy.ai.request_info, path: [{key: model}]}") + "}",
            "`envoy.ai.request_info` is typed metadata",
        ),
        (
            &[],
            metadata("user", "{key: k}, source: CLUSTER_LOCALITY_ENTRY") + "}",
            "warning  Envoy knows no locality before",
        ),
        (
            &[],
            metadata("user", "{key: k}, source: CLUSTER_LOCALITY_ENTRY") + ", apply_on_stream_done: true}",
            "",
        ),
        (
            &[],
            metadata("hold_end", "{key: other, path: [{key: hold}]}") + ", apply_on_stream_done: true}",
            "warning  the id of a hold is in the metadata `envoy.filters.http.ratelimit`, not in `other`",
        ),
        (
            &[],
            metadata("hold_settle", "{key: envoy.filters.http.ratelimit}") + ", apply_on_stream_done: true}",
            "warning  `hold_settle` without a `hits_addend` is an end",
        ),
        (
            &[],
            metadata("hold_end", "{key: envoy.filters.http.ratelimit}") + ", apply_on_stream_done: true}",
            "",
        ),
        (
            &[],
            extension("jwt_claim", "header_name: authorization, claim_name: sub"),
            "warning  no filter before verifies this token",
        ),
        (
            &["jwt_authn.v3.JwtAuthentication, providers: {idp: {issuer: i}}"],
            extension("jwt_claim", "header_name: Authorization, claim_name: sub"),
            "warning  `jwt_authn` removes `Authorization` for the provider `idp`",
        ),
        (
            &[
                "jwt_authn.v3.JwtAuthentication, providers: {idp: {forward: true}, other: {from_headers: [{name: x-other}]}}",
            ],
            extension("jwt_claim", "header_name: authorization, claim_name: sub"),
            "",
        ),
        (
            &[HITS],
            user_item(""),
            "note  a request counts `envoy.ratelimit.hits_addend` hits for the rule `shop.user`, which has no `hold`",
        ),
        (&[HITS], user_item(", hits_addend: {number: 1}"), ""),
    ]);
}

#[test]
fn an_item_without_an_optional_entry_of_an_extension_is_known() {
    let text = "{actions: [{request_headers: {header_name: x, descriptor_key: user}}, {extension: {name: e, typed_config: {";
    let kind = "'@type': type.googleapis.com/envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor";
    let item = format!("{text}{kind}, descriptor_key: unknown, text: 'true', skip_if_error: true}}}}}}]}}");
    let report = check(&with_filters(&[], &format!("{}, {item}", all())), RULES, &[]).0;
    // `user=…` of the item meets a rule, and `user=…,unknown=…` meets none.
    assert_eq!((&report["envoy"]["descriptors"], said(&report).len()), (&Value::from(5), 1), "{report:#}");
    // The name of a matching input is its key.
    let input = "{actions: [{extension: {name: user, typed_config: {'@type': type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x}}}]}";
    assert_eq!(of_item(&[], input, RULES), [""; 0]);
}

#[test]
fn a_cost_that_the_algorithm_of_its_rule_loses_is_named() {
    for algorithm in ["sliding_window", "sliding_log", "token_bucket", "leaky_bucket", "fixed_window"] {
        let rules = RULES.replacen("2}", &format!("2, algorithm: {algorithm}}}"), 1);
        for (hits, is_lost) in [
            (
                ", apply_on_stream_done: true, hits_addend: {format: '%RESP(x-cost)%'}",
                algorithm != "fixed_window",
            ),
            (", apply_on_stream_done: true, hits_addend: {number: 1, is_negative_hits: true}", false),
            (", hits_addend: {number: 5}", false),
        ] {
            let said = of_item(&[], &user_item(hits), &rules);
            let message =
                format!("a cost above what remains is not charged: `{algorithm}` of the rule `shop.user`");
            let is_named = said.len() == 1 && said[0].starts_with("warning ") && said[0].contains(&message);
            assert!(if is_lost { is_named } else { said.is_empty() }, "{algorithm} {hits}: {said:#?}");
        }
    }
    // A list of fixed windows counts all or nothing.
    let cost = ", apply_on_stream_done: true, hits_addend: {format: '%RESP(x-cost)%'}";
    let list = "[{unit: hour, requests_per_unit: 2}, {unit: day, requests_per_unit: 9}]";
    let said = of_item(&[], &user_item(cost), &RULES.replacen("{unit: hour, requests_per_unit: 2}", list, 1));
    let message = "not charged: the limits of the rule `shop.user` count only hits that fit all of them";
    assert!(said.len() == 1 && said[0].contains(message), "{said:#?}");
}

#[test]
fn a_failure_mode_in_percent_replaces_the_flag() {
    let percent = |part: u32| {
        format!(
            "failure_mode_deny_percent: {{default_value: {{numerator: {part}, denominator: TEN_THOUSAND}}}}"
        )
    };
    for (flag, percent, policy, expected) in [
        (true, percent(10_000), "deny", ""),
        (false, percent(0), "allow", ""),
        (false, percent(10_000), "deny", ""),
        (true, percent(0), "deny", "with `failure_mode_deny_percent` of 0 in 10000 requests pass while"),
        (true, percent(0), "allow", ""),
        (false, percent(10_000), "allow", "of 10000 in 10000 requests get 503 while"),
        (false, percent(5), "deny", "requests pass, or get 503, while"),
        (false, percent(5), "local", "remove `failure_mode_deny_percent` and set `failure_mode_deny: false`"),
        (false, percent(5), "error", ""),
    ] {
        let fields =
            ["domain: shop", &format!("failure_mode_deny: {flag}"), &percent, "status_on_error: {code: 503}"];
        let config = envoy(&fields.join("\n              "), &route(&all()), "");
        let rules = RULES.replace("domain: shop", &format!("domain: shop\non_store_failure: {policy}"));
        let mut said = said(&check(&config, &rules, &[]).0);
        let has_effect = [(true, "numerator: 10000,"), (false, "numerator: 0,")]
            .iter()
            .any(|(same, part)| *same == flag && percent.contains(part));
        let is_useless =
            format!("`failure_mode_deny: {flag}` has no effect beside `failure_mode_deny_percent` of ");
        let useless = said.extract_if(.., |one| one.contains(&is_useless)).count();
        assert_eq!(useless, usize::from(!has_effect), "{flag} {percent}: {said:#?}");
        let is_as_expected =
            if expected.is_empty() { said.is_empty() } else { said.len() == 1 && said[0].contains(expected) };
        assert!(is_as_expected, "{percent} {policy}: {said:#?}");
    }
}

#[test]
fn a_retry_after_of_envoy_that_is_later_than_tollgates_is_named() {
    let fields = |more: &str| format!("domain: shop\n              enable_retry_after_header: true{more}");
    let bucket = RULES.replacen("2}", "2, algorithm: token_bucket}", 1);
    for (more, rules, expected) in [
        ("", RULES, None),
        (
            "",
            &*bucket,
            Some(
                "warning  Envoy's `retry-after` is the time until the limit is full again, which with `token_bucket` of the rule `shop.user`",
            ),
        ),
        (
            "\n              rate_limited_status: {code: 503}",
            &bucket,
            Some("note  `enable_retry_after_header` has no effect with `rate_limited_status` 503"),
        ),
    ] {
        let said = said(&check(&envoy(&fields(more), &route(&all()), ""), rules, &[]).0);
        let expected: Vec<_> = expected.iter().collect();
        assert_eq!(said.len(), expected.len(), "{said:#?}");
        for (one, expected) in said.iter().zip(expected) {
            let (severity, message) = expected.split_once("  ").unwrap();
            assert!(one.starts_with(severity) && one.contains(message), "{one}");
        }
    }
    let with_header = [("LIMIT_RETRY_AFTER_HEADER", "retry-after")];
    let report = check_with(&envoy(&fields(""), &route(&all()), ""), &bucket, &[], &with_header).0;
    assert_eq!(said(&report), [""; 0], "Envoy keeps the header");
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
