//! The guard and the table of routes.

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::{
    guard::{Hosts, check_host, check_origin},
    routes::{self, Found, ROUTES},
};

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &'static str)| {
        (HeaderName::from_static(name), HeaderValue::from_static(value))
    };
    pairs.iter().map(pair).collect()
}

#[test]
fn rejects_requests_to_the_name_of_another_site() {
    let own = Hosts::Local("admin.internal".to_owned());
    for (host, is_refused) in [
        ("127.0.0.1:6071", false),
        ("127.0.0.1", false),
        ("[::1]:6071", false),
        ("10.1.2.3:80", false),
        ("localhost:6071", false),
        ("LocalHost", false),
        ("admin.internal:6071", false),
        ("evil.test:6071", true),
        ("evil.test", true),
        ("localhost.evil.test", true),
        ("127.0.0.1.evil.test", true),
        ("a@localhost@evil.test", true),
        ("", true),
    ] {
        let refused = check_host(&own, &headers(&[("host", host)]), false).is_err();
        assert_eq!(refused, is_refused, "{host:?}");
    }
    let evil = headers(&[("host", "evil.test")]);
    assert!(check_host(&own, &evil, true).is_ok(), "a page of another site has no token");
    assert!(check_host(&Hosts::Any, &evil, false).is_ok());
    assert!(check_host(&own, &HeaderMap::new(), false).is_err());
    let mut two = headers(&[("host", "localhost")]);
    two.append("host", HeaderValue::from_static("localhost"));
    assert!(check_host(&own, &two, false).is_err(), "two hosts");
}

#[test]
fn rejects_requests_of_another_sites_page() {
    for (pairs, is_refused) in [
        (&[][..], false),
        (&[("origin", "http://127.0.0.1:6071")], false),
        (&[("origin", "https://127.0.0.1:6071")], false),
        (&[("origin", "http://127.0.0.1:6071"), ("sec-fetch-site", "same-origin")], false),
        (&[("sec-fetch-site", "none")], false),
        (&[("origin", "http://127.0.0.1:8080")], true),
        (&[("origin", "http://127.0.0.1")], true),
        (&[("origin", "http://evil.test")], true),
        (&[("origin", "null")], true),
        (&[("origin", "")], true),
        (&[("origin", "127.0.0.1:6071")], true),
        (&[("sec-fetch-site", "cross-site")], true),
        (&[("sec-fetch-site", "same-site")], true),
        (&[("origin", "http://127.0.0.1:6071"), ("sec-fetch-site", "cross-site")], true),
    ] {
        let mut headers = headers(pairs);
        headers.insert("host", HeaderValue::from_static("127.0.0.1:6071"));
        assert_eq!(check_origin(&headers).is_err(), is_refused, "{pairs:?}");
    }
}

#[test]
fn finds_the_route_of_a_path_or_its_methods() {
    let found = |method, path| match routes::find(&method, path) {
        Found::Route(route) => format!("{} {}", route.method, route.path),
        Found::OtherMethods(others) => others,
        Found::Nothing => "nothing".to_owned(),
    };
    assert_eq!(found(Method::GET, "/api/v1/status"), "GET /api/v1/status");
    assert_eq!(found(Method::HEAD, "/api/v1/status"), "GET /api/v1/status");
    assert_eq!(found(Method::POST, "/api/v1/status"), "GET");
    for path in ["/api/v1/status/", "/api/v1", "/api/v2/status", "//api/v1/status", "/api/v1/%73tatus"] {
        assert_eq!(found(Method::GET, path), "nothing", "{path}");
    }
}

#[test]
fn every_route_is_listed_once_and_reads_are_no_changes() {
    for (at, route) in ROUTES.iter().enumerate() {
        let is_same = |other: &routes::Route| (&other.method, other.path) == (&route.method, route.path);
        assert!(!ROUTES[..at].iter().any(is_same), "{} {}", route.method, route.path);
        // An import is counted as a change by its commit; all its calls are rejected by ADMIN_READ_ONLY.
        let prepares = route.path.starts_with("/api/v1/imports") && route.method != Method::PUT;
        let is_trial = ["/api/v1/try", "/api/v1/override-preview"].contains(&route.path);
        let reads = route.method == Method::GET || is_trial;
        assert_eq!(reads, route.reads, "{} {}", route.method, route.path);
        assert_eq!(reads || prepares, route.action.is_none(), "{} {}", route.method, route.path);
    }
}
