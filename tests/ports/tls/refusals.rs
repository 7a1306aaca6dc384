//! Failed handshakes, with OpenSSL as the client: its alert, the log line and the metric.

use std::{fs, io::Write as _, net::TcpStream, process::Command};

use rcgen::{ExtendedKeyUsagePurpose, date_time_ymd};

use super::RULES;
use support::{
    client::{Client, request},
    eventually,
    grpc_tls::{Authority, Files, Pair, TlsClient, s_client},
    holds,
    server::{Server, Setup},
};

/// A service that requires a client certificate issued to `envoy.test`.
struct Mutual {
    ours: Authority,
    theirs: Authority,
    files: Files,
    server: Server,
}

impl Mutual {
    fn start() -> Self {
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let files = Files::new(&ours.server());
        let setup = files.mutual(&theirs).env("GRPC_CLIENT_TLS_SAN", "envoy.test").rules("d.yaml", RULES);
        let server = setup.env("LOG_LEVEL", "debug").start();
        Self { ours, theirs, files, server }
    }

    /// Connects with this certificate in both versions of TLS; OpenSSL must receive `alert`, and the log must
    /// contain `logged`.
    fn refuses(&self, shown: Option<&Pair>, alert: &str, logged: &str) {
        let mut args = Vec::new();
        if let Some(shown) = shown {
            self.files.put_pair("shown", shown);
            args = [("-cert", "shown.crt"), ("-key", "shown.key")]
                .into_iter()
                .flat_map(|(flag, name)| [flag.to_owned(), self.files.path(name).display().to_string()])
                .collect();
        }
        for version in ["-tls1_2", "-tls1_3"] {
            let before = failures(&self.server, "client_certificate");
            let args: Vec<_> = args.iter().map(String::as_str).chain([version]).collect();
            let said = s_client(self.server.ports.grpc, &args);
            assert!(said.contains(alert), "{version}: no {alert:?} in {said}");
            wait_for_failures(&self.server, "client_certificate", before + 1.0);
        }
        self.server.wait_for_log(&[logged]);
    }
}

fn failures(server: &Server, reason: &str) -> f64 {
    server.metric(&format!("tollgate_tls_handshake_failures_total{{reason=\"{reason}\"}}"))
}

fn wait_for_failures(server: &Server, reason: &str, count: f64) {
    eventually("the failure is counted", || {
        let have = failures(server, reason);
        holds(have >= count, || format!("{have} of {count} with the reason {reason}"))
    });
}

#[test]
fn rejects_invalid_client_certificates() {
    let mutual = Mutual::start();
    let theirs = &mutual.theirs;
    mutual.refuses(None, "alert certificate required", "presented no certificate");
    mutual.refuses(Some(&mutual.ours.sign(&["envoy.test"])), "alert unknown ca", "not signed by a CA");
    mutual.refuses(Some(&theirs.sign(&["other.test"])), "alert", "not issued to GRPC_CLIENT_TLS_SAN");
    let expired = theirs.sign_with(&["envoy.test"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    mutual.refuses(Some(&expired), "alert certificate expired", "expired");
    let for_servers = theirs.sign_with(&["envoy.test"], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    mutual.refuses(Some(&for_servers), "alert", "invalid client certificate");
    mutual.refuses(Some(&theirs.own()), "alert", "it is a CA certificate");
    mutual.refuses(Some(&of_version_1(theirs, &mutual.files)), "alert", "X.509 version 1");
}

/// A certificate without extensions, as `openssl x509 -req` makes them.
fn of_version_1(authority: &Authority, files: &Files) -> Pair {
    files.put_pair("authority", &authority.own());
    let (key, certificate) = (files.path("v1.key"), files.path("v1.crt"));
    let script = "openssl req -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=envoy \
         -keyout v1.key -out v1.csr && \
         openssl x509 -req -in v1.csr -CA authority.crt -CAkey authority.key -CAcreateserial -days 2 -out v1.crt";
    let made = Command::new("sh").args(["-c", script]).current_dir(files.dir()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Pair { certificate: fs::read_to_string(certificate).unwrap(), key: fs::read_to_string(key).unwrap() }
}

#[test]
fn rejects_clients_that_do_not_offer_http2() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().start();
    let said = s_client(server.ports.grpc, &["-alpn", "http/1.1"]);
    assert!(said.contains("alert no application protocol"), "{said}");
    wait_for_failures(&server, "protocol", 1.0);
}

#[test]
fn rejects_old_versions_and_weak_ciphers() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().env("LOG_LEVEL", "debug").start();
    let weak = "DEFAULT:@SECLEVEL=0";
    for (number, (version, cipher)) in
        (1_u8..).zip([("-tls1", weak), ("-tls1_1", weak), ("-tls1_2", "ECDHE-ECDSA-AES128-SHA")])
    {
        let said = s_client(server.ports.grpc, &[version, "-cipher", cipher]);
        assert!(said.contains("Cipher is (NONE)") || said.contains("alert"), "{version}: {said}");
        wait_for_failures(&server, "protocol", f64::from(number));
    }
}

#[test]
fn rejects_plaintext_on_a_tls_port() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().rules("d.yaml", RULES).start();
    let asked = Client::connect(&format!("http://127.0.0.1:{}", server.ports.grpc))
        .and_then(|client| client.ask(request("d", &[&[("a", "v")]])).map_err(|status| status.to_string()));
    assert!(asked.is_err());
    wait_for_failures(&server, "protocol", 1.0);
    server.wait_for_log(&["the client does not speak TLS", "127.0.0.1:"]);
    TlsClient::new(&[&authority], None).ask(server.ports.grpc).unwrap();
}

#[test]
fn rejects_tls_on_a_plaintext_port() {
    let server = Setup::new().rules("d.yaml", RULES).start();
    let said = s_client(server.ports.grpc, &[]);
    assert!(said.contains("Cipher is (NONE)"), "{said}");
    assert!(server.metrics().keys().all(|name| !name.starts_with("tollgate_tls_")));
    assert!(server.ask(request("d", &[&[("a", "v")]])).is_ok());
}

#[test]
fn logs_a_client_that_rejects_the_certificate() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let files = Files::new(&ours.server());
    let server = files.setup().start();
    let refused = TlsClient::new(&[&others], None).ask(server.ports.grpc).unwrap_err();
    assert!(refused.contains("UnknownIssuer"), "{refused}");
    wait_for_failures(&server, "refused_by_client", 1.0);
    server.wait_for_log(&["does not trust the CA", "GRPC_SERVER_TLS_CERT"]);
}

#[test]
fn many_failures_log_few_lines() {
    let authority = Authority::new("ours");
    let files = Files::new(&authority.server());
    let server = files.setup().start();
    for _ in 0..50 {
        TcpStream::connect(("127.0.0.1", server.ports.grpc))
            .unwrap()
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .unwrap();
    }
    wait_for_failures(&server, "protocol", 50.0);
    let log = server.final_log();
    let lines = log.matches("handshake failed").count();
    // One in ten seconds; the machine may be slow.
    assert!((1..=3).contains(&lines), "{log}");
}
