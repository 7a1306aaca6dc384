//! Every byte that Envoy accepts in a header, UTF-8 or not: the request is decided, and whatever shows its value can.

use std::{collections::BTreeSet, fs, process::Command, thread};

use serde_json::{Value, json};

use support::{
    bootstrap::{Wanted, always, by_header},
    envoy::Envoy,
    eventually, holds, http,
    ports::free_port,
    process::assert_exit,
    server::{BINARY, Setup},
};

/// Two requests an hour for each user, but one for the user whose value a rule names.
const RULES: &str = r#"
domain: edge
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: user
    value: "caf\uFFFDE9e"
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: generic_key
    value: everyone
    rate_limit: {unit: hour, requests_per_unit: 1000000}
"#;

/// The texts of a descriptor's value in lines of JSON.
fn values(lines: &str) -> BTreeSet<String> {
    let of_line = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        let descriptors = line["descriptors"].as_array().cloned().unwrap_or_default();
        let entries = descriptors.iter().filter_map(|one| one["entries"].as_array().or(one.as_array()));
        let mut entries: Vec<Value> = entries.flatten().cloned().collect();
        entries.extend(line["descriptor"].as_array().cloned().unwrap_or_default());
        entries
    };
    let entries = lines.lines().filter(|line| line.starts_with('{')).flat_map(of_line);
    let users = entries.filter(|entry| entry["key"] == "user");
    users.map(|entry| entry["value"].as_str().expect("a text").to_owned()).collect()
}

/// The statuses of the second and the third request with this byte, if the first one passes.
fn statuses(envoy: &Envoy, byte: u8) -> Option<[Option<u16>; 2]> {
    let ask = || envoy.status_of("x-user", &[b"caf", &[byte][..], b"e"].concat());
    (ask() == Some(200)).then(|| [ask(), ask()])
}

#[test]
fn every_byte_that_envoy_accepts_is_counted_apart_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let [requests, decisions] = ["requests.jsonl", "decisions.jsonl"].map(|name| dir.path().join(name));
    let admin = free_port();
    let setup = Setup::new().rules("edge.yaml", RULES).env("ADMIN_ADDR", &format!("127.0.0.1:{admin}"));
    let setup = setup.env("REQUEST_LOG", "all").env("REQUEST_LOG_FILE", requests.to_str().unwrap());
    let setup = setup.env("DECISION_LOG", "refused").env("DECISION_LOG_FILE", decisions.to_str().unwrap());
    let mut server = setup.start();
    let limits = json!([by_header("user", "x-user"), always("generic_key", "everyone")]);
    let envoy = Envoy::start(&Wanted::of(&server, limits));

    // Each connection to Envoy is open for some time after its answer.
    let seen = thread::scope(|scope| {
        let bytes: Vec<u8> = (1..=255).collect();
        let parts = bytes.chunks(16).map(<[u8]>::to_vec).map(|part| {
            let envoy = &envoy;
            scope
                .spawn(move || part.into_iter().map(|byte| (byte, statuses(envoy, byte))).collect::<Vec<_>>())
        });
        let parts: Vec<_> = parts.collect();
        parts.into_iter().flat_map(|part| part.join().unwrap()).collect::<Vec<_>>()
    });
    let mut shown = BTreeSet::new();
    let mut refused = 0;
    for (byte, statuses) in seen {
        let Some(statuses) = statuses else {
            assert!(byte < b' ' || byte == 127, "Envoy accepts {byte:#04x}");
            continue;
        };
        let expected = if byte == 0xe9 { [429, 429] } else { [200, 429] };
        assert_eq!(statuses, expected.map(Some), "{byte:#04x}");
        refused += expected.iter().filter(|status| **status == 429).count();
        let value = match byte {
            // Envoy removes it.
            b'\r' => "cafe".to_owned(),
            ..0x80 => format!("caf{}e", char::from(byte)),
            _ => format!("caf\u{fffd}{byte:02X}e"),
        };
        assert!(shown.insert(value));
    }
    assert!(shown.len() >= 0xff - 0x20, "{} bytes", shown.len());
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error"), 0);
    // What a value would have to be to look like an escaped one.
    for _ in 0..2 {
        assert_eq!(envoy.status_of("x-user", "caf\u{fffd}E9e".as_bytes()), Some(200));
    }
    shown.insert("caf\u{fffd}EF\u{fffd}BF\u{fffd}BDE9e".to_owned());

    let metrics = String::from_utf8(http::get(server.ports.metrics, "/metrics").body).expect("UTF-8");
    assert!(metrics.contains("key1=\"user_caf\u{fffd}E8e\""), "{metrics}");
    let top = http::get(admin, "/api/v1/top?n=1000");
    String::from_utf8(top.body.clone()).expect("UTF-8");
    assert!(top.text().contains("caf\u{fffd}E9e"), "{}", top.text());
    let explain = Command::new(BINARY)
        .args(["explain", "--rules"])
        .arg(server.rules_dir())
        .args(["edge", "user=caf\u{fffd}E9e"])
        .output()
        .unwrap();
    assert_exit(&explain, 0, &["user_caf\u{fffd}E9e"]);

    drop(envoy);
    assert!(server.process.stop().success());
    let recorded = fs::read_to_string(&requests).expect("UTF-8");
    assert_eq!(values(&recorded), shown);
    let decided = eventually("the refusals are logged", || {
        let text = fs::read_to_string(&decisions).expect("UTF-8");
        holds(text.lines().count() >= refused, || text.clone())?;
        Ok(text)
    });
    assert_eq!(values(&decided).len(), shown.len() - 1);
    let mut replay = Command::new(BINARY);
    replay.arg("replay").arg(&requests).arg("--json").arg("--rules").arg(server.rules_dir());
    let output = replay.output().unwrap();
    assert_exit(&output, 0, &[]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["refused"], refused, "{report}");
}
