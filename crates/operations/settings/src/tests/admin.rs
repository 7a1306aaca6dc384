//! The admin API.

use std::collections::BTreeMap;

use super::super::*;
use net::HostPort;
use net::ServerAddress;

fn admin(variables: &[(&str, &str)]) -> Result<Option<Admin>, String> {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    let env = |name: &str| variables.get(name).map(ToString::to_string);
    let exists = |path: &Path| path == Path::new("/tokens");
    let read = Settings::read(&env, &exists, 1, Available::default());
    read.map(|(settings, _)| settings.admin)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

#[test]
fn listens_on_loopback_unless_configured_otherwise() {
    let listen = ServerAddress::Tcp(HostPort { host: "127.0.0.1".into(), port: 6071 });
    let usual = Admin { listen, is_default: true, token_file: None, read_only: false, tls: false };
    assert_eq!(admin(&[]).unwrap(), Some(usual));
    for off in ["off", "OFF"] {
        assert_eq!(admin(&[("ADMIN_ADDR", off)]).unwrap(), None);
    }
    let socket = admin(&[("ADMIN_UDS", "/run/admin"), ("ADMIN_ADDR", "off")]).unwrap().unwrap();
    assert_eq!(socket.listen, ServerAddress::Unix("/run/admin".into()));
}

#[test]
fn an_address_other_than_loopback_requires_tokens() {
    for address in [":6071", "0.0.0.0:6071", "10.0.0.7:6071", "[::]:6071", "admin.internal:6071"] {
        let error = admin(&[("ADMIN_ADDR", address)]).unwrap_err();
        assert!(error.starts_with("ADMIN_TOKEN_FILE: expected the path"), "{error}");
        assert!(error.contains("127.0.0.1:6071"), "{error}");
        let with_tokens = [("ADMIN_ADDR", address), ("ADMIN_TOKEN_FILE", "/tokens")];
        assert!(admin(&with_tokens).unwrap().is_some(), "{address}");
    }
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"] {
        assert!(admin(&[("ADMIN_ADDR", address)]).unwrap().is_some(), "{address}");
    }
}

#[test]
fn rejects_settings_that_cannot_be_served() {
    for (variables, expected) in [
        (&[("ADMIN_ADDR", "6071")][..], "ADMIN_ADDR=\"6071\": expected off, or an address"),
        (&[("ADMIN_TOKEN_FILE", "/missing")], "does not exist; is it mounted?"),
        (&[("ADMIN_USE_TLS", "true")], "ADMIN_USE_TLS=\"true\": expected false without TLS"),
        (
            &[("ADMIN_ADDR", "127.0.0.1:8080")],
            "ADMIN_ADDR=\"127.0.0.1:8080\": expected a port that no other listener has",
        ),
    ] {
        let error = admin(variables).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
