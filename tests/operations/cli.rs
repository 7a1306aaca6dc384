//! The command line: its output and its exit codes.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::Value;

use support::{
    client::request,
    ports::free_port,
    process::{assert_exit, printed},
    server::{BINARY, Server, Setup},
};

const RULES: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";

fn tollgate(args: &[&str]) -> Output {
    tollgate_in(args, &[])
}

fn tollgate_in(args: &[&str], variables: &[(&str, &str)]) -> Output {
    run(Path::new(BINARY), args, variables)
}

fn run(program: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.args(args).envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap()
}

/// A directory with these files.
fn rules_dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

fn check(dir: &Path, options: &[&str]) -> Output {
    tollgate(&[&["check", dir.to_str().unwrap()], options].concat())
}

/// `tollgate request` to the service on this port.
fn send(port: u16, domain: &str, descriptors: &[&str]) -> Output {
    let address = format!("127.0.0.1:{port}");
    tollgate(&[&["request", "--addr", &address, domain], descriptors].concat())
}

#[test]
fn check_reports_every_error_of_every_file_with_its_place() {
    let bad = "domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: fortnight, requests_per_unit: 2}\n  - value: v\n";
    let dir = rules_dir(&[("a.yaml", bad), ("b.yaml", "domain: b\ndescriptors:\n  - kye: k\n")]);
    assert_exit(
        &check(dir.path(), &[]),
        1,
        &["a.yaml:4:", "fortnight", "a.yaml:5:", "b.yaml:3:", "kye", "errors in 2 files"],
    );
}

#[test]
fn check_suggests_the_unit_that_an_abbreviation_means() {
    for (written, meant) in [
        ("secs", "second"),
        ("mins", "minute"),
        ("hr", "hour"),
        ("daily", "day"),
        ("wk", "week"),
        ("yrs", "year"),
    ] {
        let dir = rules_dir(&[("d.yaml", &RULES.replace("hour", written))]);
        assert_exit(&check(dir.path(), &[]), 1, &[&format!("did you mean `{meant}`?")]);
    }
}

#[test]
fn check_and_the_service_report_the_same_hash_of_equal_rules() {
    let hash = |rules: &str| {
        let output = check(rules_dir(&[("d.yaml", rules)]).path(), &["--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["hash"].as_str().unwrap().to_owned()
    };
    let served = Server::start(RULES).metrics();
    let same = "# a comment\ndomain: 'd'\ndescriptors:\n  - rate_limit:\n      requests_per_unit: 2\n      unit: HOUR\n    key: k\n";
    assert_eq!(hash(RULES), hash(same));
    assert_ne!(hash(RULES), hash(&RULES.replace("hour", "day")));
    let served: Vec<_> = served.keys().filter(|name| name.contains(&hash(RULES))).collect();
    assert!(!served.is_empty(), "the metrics have the hash {}", hash(RULES));
}

#[test]
fn check_rejects_limits_that_memcached_cannot_count() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("config");
    fs::create_dir(&rules).unwrap();
    fs::write(rules.join("d.yaml"), RULES.replace("unit: hour", "algorithm: token_bucket, unit: hour"))
        .unwrap();
    let refused = ["d.yaml:2:48", "`token_bucket`", "help: use `fixed_window`"];
    assert_exit(&check(&rules, &[]), 0, &[]);
    assert_exit(&check(&rules, &["--memcached"]), 1, &refused);

    let root = dir.path().to_str().unwrap();
    let as_served = |backend| {
        let place = [("RUNTIME_ROOT", root), ("RUNTIME_SUBDIRECTORY", "")];
        let store = [("BACKEND_TYPE", backend), ("MEMCACHE_HOST_PORT", "memcached:11211")];
        tollgate_in(&["check"], &[place, store].concat())
    };
    assert_exit(&as_served("memcache"), 1, &refused);
    assert_exit(&as_served("memory"), 0, &[]);
}

/// A variable that only the service obeyed led to errors whose help named the variable.
#[test]
fn check_reads_named_files_with_the_settings_of_the_environment() {
    let other = "domain: d\ndescriptors: [{key: m, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let dir = rules_dir(&[("a.yaml", RULES), ("b.yaml", other), (".c.yaml", "domain: [")]);
    let path = dir.path().to_str().unwrap();
    let merging = ("MERGE_DOMAIN_CONFIG", "true");
    let skipping = ("RUNTIME_IGNOREDOTFILES", "true");
    assert_exit(&tollgate_in(&["check", path], &[merging]), 1, &[".c.yaml"]);
    assert_exit(&tollgate_in(&["check", path], &[skipping]), 1, &["set MERGE_DOMAIN_CONFIG=true"]);
    assert_exit(&tollgate_in(&["check", path], &[merging, skipping]), 0, &["2 rules, 1 domain, 2 files: OK"]);
    let before = ["check", "--before", path, path];
    assert_exit(&tollgate_in(&before, &[merging, skipping]), 0, &["OK"]);

    let bucket = RULES.replace("unit: hour", "algorithm: token_bucket, unit: hour");
    let dir = rules_dir(&[("d.yaml", &bucket)]);
    let memcached = [("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", "memcached:11211")];
    let checked = tollgate_in(&["check", dir.path().to_str().unwrap()], &memcached);
    assert_exit(&checked, 1, &["help: use `fixed_window`"]);
}

#[test]
fn check_names_both_files_that_contradict_each_other() {
    let other = "domain: d\non_store_failure: deny\ndescriptors: [{key: m, rate_limit: {unlimited: true}}]\n";
    let dir = rules_dir(&[("a.yaml", &format!("on_store_failure: local\n{RULES}")), ("b.yaml", other)]);
    let texts = ["b.yaml:2:19", "`deny`", "a.yaml sets `local` at line 1, column 19"];
    assert_exit(&check(dir.path(), &["--merge-domains"]), 1, &texts);
}

#[test]
fn check_has_no_verdict_on_unreadable_files() {
    assert_exit(&check(Path::new("/nowhere/at/all"), &[]), 2, &["/nowhere/at/all"]);
    assert_exit(&tollgate_in(&["check"], &[("NEAR_LIMIT_RATIO", "x")]), 2, &["NEAR_LIMIT_RATIO"]);
    // Invalid files are errors, also if others cannot be read.
    let dir = rules_dir(&[("b.yaml", "domain: b\ndescriptors: [{kye: k}]\n")]);
    assert_exit(&check(dir.path(), &["/nowhere/at/all"]), 1, &["kye", "/nowhere"]);
}

#[test]
fn check_answers_in_json_whatever_happens() {
    let report = |args: &[&str], variables: &[(&str, &str)], code: i32| -> Value {
        let output = tollgate_in(&[&["check", "--json"], args].concat(), variables);
        assert_exit(&output, code, &[]);
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let settings = report(&[], &[("NEAR_LIMIT_RATIO", "x")], 2);
    assert!(
        settings["diagnostics"][0]["message"].as_str().unwrap().contains("NEAR_LIMIT_RATIO"),
        "{settings}"
    );
    for path in ["/nowhere/at/all", "/dev/null/below-a-file.yaml"] {
        let unread = report(&[path], &[], 2);
        assert_eq!((&unread["valid"], &unread["diagnostics"][0]["file"]), (&false.into(), &path.into()));
    }
}

#[test]
fn check_names_a_path_that_was_mistyped_without_advice_about_the_service() {
    let dir = rules_dir(&[("a.yaml", RULES)]);
    let output = check(&dir.path().join("b.yaml"), &[]);
    assert_exit(&output, 2, &["cannot read the file: No such file or directory", "b.yaml", "check the path"]);
    assert!(!printed(&output).contains("RUNTIME_"), "{}", printed(&output));
}

#[test]
fn check_reads_no_more_of_a_device_than_of_a_file() {
    assert_exit(&check(Path::new("/dev/zero"), &[]), 2, &["the file exceeds the limit of", "bytes"]);
}

#[test]
fn rules_that_can_limit_nothing_are_an_error_of_check() {
    let dir = rules_dir(&[]);
    assert_exit(&check(dir.path(), &[]), 1, &["error: no rules files here", "1 error in 0 files"]);
    assert_exit(&check(dir.path(), &["--deny-warnings"]), 1, &["error: no rules files here"]);
    let place = [("RUNTIME_ROOT", dir.path().to_str().unwrap()), ("RUNTIME_SUBDIRECTORY", "")];
    fs::create_dir(dir.path().join("config")).unwrap();
    assert_exit(&tollgate_in(&["check"], &place), 1, &["error: no rules files here"]);
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    for (text, cause) in [
        (format!("domain: d\ndescriptors:\n- key: k\n{limit}\n"), "`rate_limit` has no effect here"),
        (
            "domain: d\ndescriptors:\n- key: k\n  descriptors:\n  - key: m\n".to_owned(),
            "this descriptor has no effect",
        ),
        ("domain: d\ndescriptors: []\n".to_owned(), "the domain `d` has no descriptors"),
        (
            "domain: d\ndescriptors:\n- {key: k, rate_limit: {unlimited: true}}\n".to_owned(),
            "no descriptor has a limit",
        ),
    ] {
        let dir = rules_dir(&[("a.yaml", &text)]);
        let nothing = "error: these rules limit nothing: no descriptor has a limit";
        assert_exit(&check(dir.path(), &[]), 1, &[nothing, cause, "a.yaml"]);
        let json = check(dir.path(), &["--json"]);
        let report: Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(
            (json.status.code(), &report["valid"], &report["errors"]),
            (Some(1), &false.into(), &1.into())
        );
    }
    // A limit may be left to overrides, or be tried without refusing anyone.
    for descriptor in
        ["{key: k, overrides_only: true}".to_owned(), format!("{{key: k, shadow_mode: true, {limit}}}")]
    {
        let dir = rules_dir(&[("a.yaml", &format!("domain: d\ndescriptors: [{descriptor}]\n"))]);
        assert_exit(&check(dir.path(), &[]), 0, &["1 rule, 1 domain, 1 file: OK"]);
    }
}

#[test]
fn check_reads_standard_input_and_pipes() {
    let dir = rules_dir(&[("a.yaml", RULES)]);
    let bash = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("TOLLGATE", BINARY).current_dir(&dir).stdin(Stdio::null());
        command.output().unwrap()
    };
    assert_exit(&bash("$TOLLGATE check - < a.yaml"), 0, &["1 rule, 1 domain, 1 file: OK"]);
    assert_exit(&bash("$TOLLGATE check <(sed s/hour/secs/ a.yaml)"), 1, &["did you mean `second`?", ":2:"]);
    assert_exit(&bash("$TOLLGATE explain --rules - d k=1 < a.yaml"), 0, &["matches rule d.k (-:2)"]);
}

#[test]
fn a_wrong_number_is_named_with_what_is_expected() {
    for (args, expected) in [
        (&["request", "--hits", "x", "d", "k=1"][..], "from 0 to 9007199254740991"),
        (&["explain", "--hits", "9007199254740992", "d", "k=1"], "from 0 to 9007199254740991"),
        (&["top", "-n", "x"], "from 1 to 1000"),
        (&["refusals", "-n", "1001"], "from 1 to 1000"),
    ] {
        assert_exit(&tollgate(args), 2, &[&format!("expected an integer {expected}")]);
    }
}

#[test]
fn colours_are_for_terminals_and_can_be_disabled() {
    let dir = rules_dir(&[("d.yaml", RULES)]);
    let args = ["check", dir.path().to_str().unwrap()];
    let is_coloured = |variables: &[(&str, &str)]| printed(&tollgate_in(&args, variables)).contains('\u{1b}');
    assert!(!is_coloured(&[]), "a pipe is not a terminal");
    assert!(is_coloured(&[("CLICOLOR_FORCE", "1")]));
    // `script` gives the command a terminal.
    let on_terminal = |prefix: &str| {
        let line = format!("{prefix} {BINARY} check {}", dir.path().display());
        let output = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        printed(&output).contains('\u{1b}')
    };
    assert!(on_terminal("env"));
    assert!(!on_terminal("env NO_COLOR=1"));
}

#[test]
fn request_exits_with_0_1_or_2() {
    let server = Server::start(RULES);
    let port = server.ports.grpc;
    for (code, text) in [(0, "OK"), (0, "OK"), (1, "OVER_LIMIT")] {
        assert_exit(&send(port, "d", &["k=v"]), code, &[text]);
    }
    assert_exit(&send(port, "", &["k=v"]), 2, &["domain must not be empty"]);
    assert_exit(&send(free_port(), "d", &["k=v"]), 2, &["cannot reach", "Connection refused"]);
}

#[test]
fn request_reads_counters_without_counting() {
    let server = Server::start(RULES);
    let port = server.ports.grpc;
    for looking in [&["--peek"][..], &["--hits", "0"], &["--peek"]] {
        assert_exit(&send(port, "d", &[looking, &["k=v"]].concat()), 0, &["2 of 2 per hour remaining"]);
    }
    assert_exit(&send(port, "d", &["--hits", "2", "k=v"]), 0, &["0 of 2 per hour remaining"]);
    assert_exit(&send(port, "d", &["k=v"]), 1, &["OVER_LIMIT"]);
}

#[test]
fn health_exits_with_0_1_or_2() {
    let server = Setup::new().env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").start();
    let port = server.ports.http.to_string();
    // A file that is gone is no reason to restart a service that has read it.
    let gone = ("REDIS_AUTH_FILE", "/nowhere/at/all");
    let health_with = |args: &[&str], port: &str| {
        tollgate_in(&[&["health", "--timeout", "5s"], args].concat(), &[("PORT", port), gone])
    };
    let health = |port: &str| health_with(&[], port);
    assert_exit(&health(&port), 1, &["unhealthy: rules: none loaded"]);
    assert_exit(&health_with(&["--live"], &port), 0, &["unhealthy: rules: none loaded"]);
    server.write("d.yaml", RULES);
    server.wait_until_healthy();
    assert_exit(&health(&port), 0, &["healthy\n"]);
    assert_exit(
        &health(&free_port().to_string()),
        2,
        &["cannot reach http://localhost:", "Connection refused"],
    );
    assert_exit(&health_with(&["--live"], &free_port().to_string()), 2, &["Connection refused"]);
    assert_exit(&health("x"), 2, &["invalid settings", "PORT=\"x\""]);
}

#[test]
fn health_waits_no_longer_than_its_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let trickle = thread::spawn(move || {
        // A response that comes byte by byte must not extend the timeout.
        let (mut socket, _) = listener.accept().unwrap();
        assert!(socket.read(&mut [0; 1024]).unwrap() > 0);
        socket.write_all(b"HTTP/1.1 200 OK\r\nx: ").unwrap();
        while socket.write_all(b"H").is_ok() {
            thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let output = tollgate_in(&["health", "--timeout", "200ms"], &[("PORT", &port), ("HOST", "127.0.0.1")]);
    assert_exit(&output, 2, &["no response within 200ms"]);
    trickle.join().unwrap();
}

#[test]
fn settings_prints_the_values_in_effect_without_secrets() {
    let variables =
        [("GRPC_PORT", "9081"), ("REDIS_URL", "redis://user:hunter2@redis:6379"), ("REDIS_AUTH", "hunter2")];
    let output = tollgate_in(&["settings", "--effective"], &variables);
    let texts = [
        "\nGRPC_PORT=9081  # set; default: 8081\n",
        "\nREDIS_URL=redis://***@redis:6379  # set; default: unset\n",
        "\nREDIS_AUTH=***  # set",
        "\nBACKEND_TYPE=redis  # derived\n",
        "\nPORT=8080\n",
    ];
    assert_exit(&output, 0, &texts);
    assert!(!printed(&output).contains("hunter2"), "{}", printed(&output));
    let output = tollgate_in(&["settings", "--effective"], &[("GRPC_PORT", "web")]);
    assert_exit(&output, 1, &["\nGRPC_PORT=web  # set", "GRPC_PORT=\"web\": "]);
    let output = tollgate_in(&["settings", "--effective"], &[("GPRC_PORT", "9081"), ("GRPC_POTR", "1")]);
    assert_exit(&output, 0, &["warning: GRPC_POTR"]);
}

#[test]
fn help_version_settings_completions_and_man_pages_are_printed() {
    for (args, text) in [
        (&["--help"][..], "check"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["settings"], "GRPC_MAX_CONNECTION_AGE"),
        (&["completions", "bash"], "tollgate"),
        (&["man"], ".TH tollgate 1"),
    ] {
        let output = tollgate(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", printed(&output));
        assert!(String::from_utf8_lossy(&output.stdout).contains(text), "{args:?}: {}", printed(&output));
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man/man1");
    assert_exit(&tollgate(&["man", pages.to_str().unwrap()]), 0, &[]);
    assert!(fs::read_to_string(pages.join("tollgate-check.1")).unwrap().contains("deny\\-warnings"));
}

#[test]
fn an_unknown_command_is_an_error_with_a_suggestion() {
    assert_exit(&tollgate(&["serv"]), 2, &["serve"]);
}

#[test]
fn called_as_ratelimit_it_serves_and_warns_about_arguments() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("ratelimit");
    symlink(BINARY, &link).unwrap();
    let args = ["-config", "/somewhere", "--quotaRateLimitServiceAddr=elsewhere"];
    let server = Setup::new().rules("d.yaml", RULES).program(&link, &args).start();
    assert!(server.ask(request("d", &[&[("k", "v")]])).is_ok());
    server.wait_for_log(&["--quotaRateLimitServiceAddr=elsewhere"]);
}

#[test]
fn called_as_ratelimit_it_runs_known_commands() {
    let dir = rules_dir(&[("d.yaml", RULES)]);
    let link = dir.path().join("ratelimit");
    symlink(BINARY, &link).unwrap();
    let rules = dir.path().join("d.yaml").display().to_string();
    assert_exit(&run(&link, &["check", &rules], &[]), 0, &["1 rule, 1 domain, 1 file: OK"]);
    assert_exit(&run(&link, &["check", "--nonsense"], &[]), 2, &["--nonsense"]);
}

/// Rules whose texts control a terminal or change the direction of what follows, with one mistake.
const HOSTILE: &str = r#"
domain: "d\u202e"
descriptors:
  - key: "k\e[31m\u202e\x9b"
    value: "v\e[2J\u202e*"
    rate_limit: {unit: minute, requests_per_unit: 1, name: "n\e]0;x\a\u202e"}
  - key: "k\e[31m\u202e\x9b"
    over_limit_body: "b\e[2J\u202e {rule}"
    rate_limit: [{unit: month, requests_per_unit: 90, calendar: {time_zone: Europe/Berlin}}, {unit: day, requests_per_unit: 9}]
"#;

#[test]
fn no_output_of_check_and_explain_controls_the_terminal() {
    let raw = "# \u{202e}\u{1b}[2J\n  - key: \u{202e}\n    valeu: x\n";
    let dirs = [("a.yaml", HOSTILE.to_owned()), ("a\u{202e}.yaml", format!("{HOSTILE}{raw}"))];
    let dirs = dirs.each_ref().map(|(name, text)| rules_dir(&[(name, text)]));
    let [valid, invalid] = dirs.each_ref().map(|dir| dir.path().to_str().unwrap());
    let key = "k\u{1b}[31m\u{202e}\u{9b}";
    let [named, other, none] =
        ["v\u{1b}[2J\u{202e}x", "\u{1b}[2J\u{202e}", ""].map(|value| format!("{key}={value}"));
    let none = format!("x{none},y=\u{202e}");
    let domain = "d\u{202e}";
    for args in [
        &["check", valid][..],
        &["check", valid, "--json"],
        &["check", invalid],
        &["check", invalid, "--json"],
        &["check", invalid, "--format", "github"],
        &["explain", "--rules", valid, domain, &named, &other, &none],
        &["explain", "--rules", valid, "--json", domain, &named, &other, &none],
        &["explain", "--rules", valid, "\u{202e}", &named],
        &["explain", "--rules", invalid, domain, &named],
        &["explain", "--rules", valid, "--\u{202e}\u{1b}[2J"],
    ] {
        // As on a terminal: escape codes are not removed.
        let output = tollgate_in(args, &[("CLICOLOR_FORCE", "1"), ("LIMIT_POLICY_HEADERS", "true")]);
        let shown = printed(&output);
        let raw: Vec<&str> = ["\u{202e}", "\u{9b}", "\u{7}", "\u{1b}]", "\u{1b}[2J", "\u{1b}[31m\u{202e}"]
            .into_iter()
            .filter(|raw| shown.contains(raw))
            .collect();
        assert!(raw.is_empty(), "{args:?}: {raw:?} in {}", shown.escape_debug());
        let is_escaped = [r"\u{202e}", r"\u202e", "hash "].iter().any(|escape| shown.contains(escape));
        assert!(is_escaped || shown.contains("\"hash\""), "{args:?}: {shown}");
    }
    let explained = tollgate(&["explain", "--rules", valid, domain, &named, &other]);
    assert_exit(
        &explained,
        0,
        &[
            r"matches rule d\u{202e}.k\u{1b}[31m\u{202e}\u{9b}_v\u{1b}[2J\u{202e}*",
            r"counter d\u{202e}_k\u{1b}[31m\u{202e}\u{9b}_v\u{1b}[2J\u{202e}x_",
        ],
    );
    let json: Value =
        serde_json::from_slice(&tollgate(&["explain", "--rules", valid, "--json", domain, &named]).stdout)
            .unwrap();
    assert_eq!(json["domain"], domain, "nothing is lost");
}
