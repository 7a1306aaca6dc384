//! `tollgate request` over TLS: trusted CAs, client certificates, and errors.

use std::process::{Command, Stdio};

use super::RULES;
use support::{
    grpc_tls::{Authority, Files},
    server::{BINARY, Setup},
};

/// The output and exit code of `tollgate request` with these options for `a=v` of the domain `d`. Options
/// with `@` are files.
fn ask(files: &Files, addr: &str, options: &[&str]) -> (String, Option<i32>) {
    let option = |option: &&str| match option.strip_prefix('@') {
        Some(name) => files.path(name).display().to_string(),
        None => (*option).to_owned(),
    };
    let output = Command::new(BINARY)
        .args(["request", "--timeout", "10s", "--addr", addr])
        .args(options.iter().map(option))
        .args(["d", "a=v"])
        // Replaces the CAs of this machine.
        .env("SSL_CERT_FILE", files.path("system.pem"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8(said).unwrap(), output.status.code())
}

fn answered(files: &Files, addr: &str, options: &[&str]) {
    let (said, code) = ask(files, addr, options);
    assert!(code == Some(0) && said.starts_with("OK\n"), "{addr} {options:?}: {said}");
}

/// Asserts that the request fails and that all of this is printed.
fn fails(files: &Files, addr: &str, options: &[&str], expected: &[&str]) {
    let (said, code) = ask(files, addr, options);
    assert_eq!(code, Some(2), "{addr} {options:?}: {said}");
    for expected in expected {
        assert!(said.contains(expected), "{addr} {options:?}: no {expected:?} in {said}");
    }
}

#[test]
fn connects_over_tls_if_the_ca_is_trusted() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    files.put("trusted.pem", &authority.pem());
    files.put("system.pem", &Authority::new("theirs").pem());
    let server = files.setup().rules("d.yaml", RULES).start();
    let [named, numbered] = ["localhost", "127.0.0.1"].map(|host| format!("{host}:{}", server.ports.grpc));
    let https = format!("https://{named}");
    for addr in [&named, &numbered, &https] {
        answered(&files, addr, &["--ca", "@trusted.pem"]);
        answered(&files, addr, &["--tls", "--ca", "@trusted.pem", "--server-name", "127.0.0.1"]);
    }
    for (addr, options) in [(&named, &["--tls"][..]), (&https, &[])] {
        fails(&files, addr, options, &[&https, "TLS handshake failed", "unknown CA", "--ca"]);
    }
    files.put("system.pem", &authority.pem());
    answered(&files, &named, &["--tls"]);
    answered(&files, &https, &[]);
    let another = ["--ca", "@trusted.pem", "--server-name", "tollgate.test"];
    fails(&files, &named, &another, &["tollgate.test", "--server-name sets the name"]);
    fails(&files, &named, &[], &[&format!("http://{named}"), "use --tls for a port with TLS"]);
}

#[test]
fn an_option_overrides_the_expected_name() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.sign(&["tollgate.test"]));
    files.put("trusted.pem", &authority.pem());
    let socket = files.path("tollgate.sock");
    let setup = files.setup().rules("d.yaml", RULES);
    let server = setup.clone().start();
    let addr = format!("127.0.0.1:{}", server.ports.grpc);
    let named = ["--ca", "@trusted.pem", "--server-name", "tollgate.test"];
    answered(&files, &addr, &named);
    fails(&files, &addr, &named[..2], &["127.0.0.1", "--server-name sets the name"]);

    let _server = setup.env("GRPC_UDS", socket.to_str().unwrap()).start();
    let addr = format!("unix:{}", socket.display());
    answered(&files, &addr, &named);
    fails(&files, &addr, &named[..2], &[&addr, "localhost", "--server-name sets the name"]);
}

#[test]
fn presents_a_certificate_if_the_server_requires_one() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let files = Files::new(&ours.server());
    files.put("trusted.pem", &ours.pem());
    files.put_pair("client", &theirs.sign(&["client.test"]));
    files.put_pair("stranger", &ours.sign(&["client.test"]));
    let server = files.mutual(&theirs).rules("d.yaml", RULES).start();
    let addr = format!("localhost:{}", server.ports.grpc);
    let with = |name: &str| {
        let [certificate, key] = ["crt", "key"].map(|kind| format!("@{name}.{kind}"));
        ["--ca", "@trusted.pem", "--cert", &certificate, "--key", &key].map(str::to_owned)
    };
    let [client, stranger] = [with("client"), with("stranger")];
    answered(&files, &addr, &client.each_ref().map(String::as_str));
    fails(&files, &addr, &["--ca", "@trusted.pem"], &["requires a client certificate, set --cert and --key"]);
    let expected = ["may reject the client certificate", "--cert"];
    fails(&files, &addr, &stranger.each_ref().map(String::as_str), &expected);
}

#[test]
fn reports_conflicting_options_before_connecting() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    files.put_pair("other", &authority.server());
    let unreachable = "localhost:1";
    let absent = ["--ca", "@absent.pem", "--cert", "@tls.key", "--key", "@tls.crt"];
    fails(
        &files,
        unreachable,
        &absent,
        &["--ca=", "absent.pem", "No such file", "--cert=", "--key=", "expected"],
    );
    let mixed = ["--cert", "@tls.crt", "--key", "@other.key"];
    fails(&files, unreachable, &mixed, &["--key=", "other.key", "the key of the certificate in --cert"]);
    fails(&files, unreachable, &["--cert", "@tls.crt"], &["--key <FILE>"]);
    fails(&files, unreachable, &["--key", "@tls.key"], &["--cert <FILE>"]);
    fails(&files, unreachable, &["--server-name", "a b"], &["\"a b\" is not a valid server name"]);
    fails(&files, "http://localhost:1", &["--tls"], &["http://", "write https://"]);
}

#[test]
fn recognizes_a_server_without_tls() {
    let files = Files::empty();
    files.put("trusted.pem", &Authority::new("ours").pem());
    let server = Setup::new().rules("d.yaml", RULES).start();
    let addr = format!("localhost:{}", server.ports.grpc);
    fails(&files, &addr, &["--ca", "@trusted.pem"], &["TLS handshake failed", "omit the TLS options"]);
    answered(&files, &addr, &[]);
}
