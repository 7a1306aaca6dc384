//! Access to the admin API: hosts, origins, tokens, sockets, TLS, and slow clients.

use std::{fs, net::TcpListener};

use support::{
    eventually,
    grpc_tls::{Authority, Files},
    holds, http,
    ports::free_port,
    process::assert_exit,
    server::Setup,
};

use super::{Admin, RULES, raw, setup, tollgate};

const STATUS: &str = "GET /api/v1/status HTTP/1.1";

const ANN: &str = "0123456789abcdef0123456789abcdef";
const BOB: &str = "fedcba9876543210fedcba9876543210";

#[test]
fn refuses_other_hosts_and_pages_of_other_sites() {
    let admin = Admin::start();
    let own = format!("host: 127.0.0.1:{}", admin.port);
    let page = format!("origin: http://127.0.0.1:{}", admin.port);
    for (lines, expected) in [
        (&[STATUS, &own][..], 200),
        (&[STATUS, "host: localhost"], 200),
        (&[STATUS, &own, &page, "sec-fetch-site: same-origin"], 200),
        // After DNS rebinding, the browser still sends the name of the other site.
        (&[STATUS, "host: evil.test:6071"], 403),
        (&[STATUS, "host: evil.test:6071", "origin: http://evil.test:6071"], 403),
        (&["GET / HTTP/1.1", "host: evil.test"], 403),
        (&[STATUS, "host: localhost", "host: evil.test"], 400),
        (&[STATUS], 400),
        (&[STATUS, &own, "origin: http://evil.test"], 403),
        (&[STATUS, &own, "origin: null"], 403),
        (&[STATUS, &own, "sec-fetch-site: cross-site"], 403),
        (&["OPTIONS /api/v1/status HTTP/1.1", &own, "origin: http://evil.test"], 403),
    ] {
        let (status, answer) = raw(admin.port, lines);
        assert_eq!(status, expected, "{lines:?}: {answer}");
        assert!(!answer.contains("access-control-allow"), "{answer}");
    }
}

#[test]
fn errors_of_paths_methods_and_parameters_name_the_expected_ones() {
    let admin = Admin::start();
    for (method, path, status, expected) in [
        ("GET", "/api/v1/nothing", 404, "no such path: /api/v1/nothing"),
        ("POST", "/api/v1/status", 405, "POST /api/v1/status: expected GET"),
        ("GET", "/api/v1/status?x=1", 400, "unknown parameter \\\"x\\\"; expected: replica"),
        ("GET", "/api/v1/rules?x=1", 400, "unknown parameter \\\"x\\\"; expected: n, domain, rule, by"),
        ("GET", "/api/v1/top?n=0", 400, "n=\\\"0\\\": expected a number from 1 to 1000"),
        ("GET", "/api/v1/top?n=1&n=2", 400, "parameter \\\"n\\\" is given twice"),
        ("GET", "/api/v1/top?by=hits", 400, "by=\\\"hits\\\": expected refused or shadowed or allowed"),
        ("GET", "/api/v1/refusals?descriptor=user", 400, "descriptor: the entry \\\"user\\\" has no ="),
        ("GET", "/api/v1/refusals?after=-1", 400, "after=\\\"-1\\\": expected a number"),
    ] {
        let answer = http::send(admin.port, method, path, &[], b"").unwrap();
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.text().contains(expected), "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    let answer = http::send(admin.port, "POST", "/api/v1/status", &[], b"").unwrap();
    assert_eq!(answer.header("allow"), Some("GET"));
}

#[test]
fn every_response_forbids_caching_framing_and_sniffing() {
    let admin = Admin::start();
    for path in ["/", "/page.js", "/api/v1/status", "/nothing"] {
        let answer = http::get(admin.port, path);
        for (name, expected) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
        ] {
            assert_eq!(answer.header(name), Some(expected), "{path}");
        }
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
    }
}

#[test]
fn the_schema_of_rules_needs_no_token() {
    let (setup, port) = setup();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("ann {ANN}\n")).unwrap();
    let _server = setup.env("ADMIN_TOKEN_FILE", path.to_str().unwrap()).start();
    let answer = http::get(port, "/schema.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/schema+json")));
    let printed = std::process::Command::new(support::server::BINARY).arg("schema").output().unwrap();
    assert_eq!(answer.text(), String::from_utf8(printed.stdout).unwrap());
}

#[test]
fn a_token_file_protects_every_call_and_is_reloaded() {
    let (setup, port) = setup();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("ann {ANN}\n")).unwrap();
    let admin = Admin { server: setup.env("ADMIN_TOKEN_FILE", path.to_str().unwrap()).start(), port };
    let status = |token: Option<&str>| {
        let value = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = value.iter().map(|value| ("authorization", value.as_str())).collect();
        http::send(admin.port, "GET", "/api/v1/status", &headers, b"").unwrap()
    };
    assert_eq!(status(Some(ANN)).status, 200);
    for (token, expected) in [
        (None, "send Authorization: Bearer TOKEN"),
        (Some(""), "send Authorization: Bearer TOKEN"),
        (Some(BOB), "unknown token"),
        (Some(&ANN[..31]), "unknown token"),
    ] {
        let answer = status(token);
        assert_eq!(answer.status, 401, "{token:?}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"tollgate\""));
        assert!(answer.text().contains(expected), "{}", answer.text());
    }
    assert_eq!(http::get(admin.port, "/").status, 200, "the page itself needs no token");
    assert_exit(&admin.run(&["status"]), 2, &["401 Unauthorized: a token is required", "--token-file"]);
    assert_exit(&admin.run(&["status", "--token-file", path.to_str().unwrap()]), 0, &["memory, connected"]);
    fs::write(&path, format!("bob {BOB}\n")).unwrap();
    eventually("the new token is accepted", || {
        let (ann, bob) = (status(Some(ANN)).status, status(Some(BOB)).status);
        holds((ann, bob) == (401, 200), || format!("{ann} {bob}"))
    });
    let failed = || admin.server.count("tollgate_admin_token_file_failed");
    assert_eq!(failed(), 0);
    fs::remove_file(&path).unwrap();
    let bob = dir.path().join("bob");
    fs::write(&bob, BOB).unwrap();
    let shown = ["tokens", "ADMIN_TOKEN_FILE cannot be used", "No such file"];
    eventually("status and a metric tell of the missing file", || {
        let answer = status(Some(BOB));
        holds(answer.status == 200 && answer.text().contains("token_file_failure") && failed() == 1, || {
            answer.text()
        })
    });
    assert_exit(&admin.run(&["status", "--token-file", bob.to_str().unwrap()]), 0, &shown);
    admin.server.wait_for_log(&["keeping previous tokens of ADMIN_TOKEN_FILE"]);
    fs::write(&path, "# nobody\n").unwrap();
    eventually("a file without a token revokes all", || {
        holds(status(Some(BOB)).status == 401 && failed() == 0, || admin.server.process.log())
    });
}

#[test]
fn a_non_local_address_requires_tokens() {
    let log = Setup::new().env("ADMIN_ADDR", &format!(":{}", free_port())).refused();
    assert!(log.contains("ADMIN_TOKEN_FILE: expected the path of a file with tokens"), "{log}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, "short\n").unwrap();
    let (setup, _) = setup();
    let log = setup.env("ADMIN_TOKEN_FILE", path.to_str().unwrap()).refused();
    assert!(log.contains("line 1: the token has 5 bytes, expected at least 16"), "{log}");
}

#[test]
fn a_port_in_use_stops_the_start_only_if_it_was_configured() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("127.0.0.1:{}", taken.local_addr().unwrap().port());
    let log = Setup::new().env("ADMIN_ADDR", &address).refused();
    assert!(log.contains(&format!("cannot listen for the admin API on {address}")), "{log}");
    // Only one of two services has the default port, or another process has it.
    let default = || Setup::new().rules("shop.yaml", RULES).unset("ADMIN_ADDR").env("LOG_LEVEL", "info");
    let (_first, second) = (default().start(), default().start());
    second.wait_for_log(&[
        "127.0.0.1:6071 is another process', so the admin API and its page are at 127.0.0.1:60",
    ]);
    assert!(second.is_healthy());
    let log = second.final_log();
    let (_, said) = log.split_once("--admin ").unwrap();
    let (address, _) = said.split_once(' ').unwrap();
    assert!(log.contains(&format!("admin={address}")), "{log}");
    // Nobody is sent to the page of the other process.
    assert!(!log.contains("admin=127.0.0.1:6071"), "{log}");
}

#[test]
fn a_service_removes_only_its_own_sockets() {
    for variable in ["ADMIN_UDS", "GRPC_UDS"] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let start = || Setup::new().rules("shop.yaml", RULES).env(variable, socket.to_str().unwrap()).start();
        let first = start();
        fs::remove_file(&socket).unwrap();
        let second = start();
        drop(first.final_log());
        assert!(socket.exists(), "{variable}: it is the second one's");
        drop(second.final_log());
        assert!(!socket.exists(), "{variable}: it is removed by the one that made it");
    }
}

#[test]
fn a_unix_socket_is_served_without_a_token_or_a_host() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin");
    let _server = Setup::new().rules("shop.yaml", RULES).env("ADMIN_UDS", socket.to_str().unwrap()).start();
    let address = format!("unix:{}", socket.display());
    assert_exit(&tollgate(&["status", "--admin", &address], &[]), 0, &["memory, connected"]);
    let variables = [("ADMIN_UDS", socket.to_str().unwrap())];
    assert_exit(&tollgate(&["status"], &variables), 0, &["3 rules in 1 file and 1 domain"]);
}

#[test]
fn tls_has_the_certificate_of_the_grpc_port() {
    let authority = Authority::new("test authority");
    let files = Files::new(&authority.server());
    let ca = files.put("ca.pem", &authority.pem());
    let port = free_port();
    let setup = files.setup().rules("shop.yaml", RULES).env("ADMIN_USE_TLS", "true");
    let _server = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{port}")).start();
    let address = format!("https://localhost:{port}");
    let output = tollgate(&["status", "--admin", &address, "--ca", ca.to_str().unwrap()], &[]);
    assert_exit(&output, 0, &["memory, connected"]);
    assert_exit(
        &tollgate(&["status", "--admin", &address], &[]),
        2,
        &["cannot reach the admin API at https://"],
    );
    let plain = format!("127.0.0.1:{port}");
    assert_exit(
        &tollgate(&["status", "--admin", &plain], &[]),
        2,
        &["cannot reach the admin API at http://"],
    );
}
