//! The admin API: its address, and who may use it.

use std::{net::IpAddr, path::PathBuf};

use super::{
    GrpcTls, HostPort, ServerAddress,
    reader::Reader,
    vars::{self, AdminVars},
};

/// The admin API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    /// Its address.
    pub listen: ServerAddress,
    /// The address is the default: if it is taken, the service runs without the admin API.
    pub is_default: bool,
    /// The file of bearer tokens, if every call needs one.
    pub token_file: Option<PathBuf>,
    /// Calls that change something are rejected.
    pub read_only: bool,
    /// It uses the gRPC port's TLS.
    pub tls: bool,
}

pub(super) fn read(reader: &mut Reader<'_>, grpc_tls: Option<&GrpcTls>) -> Option<Admin> {
    let AdminVars { address, socket, token_file, read_only, tls } = AdminVars::read(reader);
    let is_default = socket.is_none() && !reader.is_set(&vars::ADMIN_ADDR);
    let listen = socket.map(ServerAddress::Unix).or_else(|| address.map(ServerAddress::Tcp))?;
    let tokens = "the path of a file with tokens";
    match (&listen, &token_file) {
        (_, Some(path)) if !reader.exists(path) => {
            reader.conflict(&vars::ADMIN_TOKEN_FILE, tokens, "the file does not exist; is it mounted?");
        }
        (ServerAddress::Tcp(address), None) if !is_loopback(address) => {
            let hint = format!(
                "ADMIN_ADDR={address} accepts connections from other machines; use 127.0.0.1:6071 to serve without \
                 a token"
            );
            reader.conflict(&vars::ADMIN_TOKEN_FILE, tokens, hint);
        }
        _ => {}
    }
    if tls && grpc_tls.is_none() {
        let hint = "set GRPC_SERVER_USE_TLS and its certificate, or remove ADMIN_USE_TLS";
        reader.conflict(&vars::ADMIN_USE_TLS, "false without TLS on the gRPC port", hint);
    }
    Some(Admin { listen, is_default, token_file, read_only, tls })
}

/// True if only processes of this machine can connect to the address.
fn is_loopback(address: &HostPort) -> bool {
    let ip = address.host.parse::<IpAddr>();
    address.host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use super::*;
    use crate::settings::Settings;

    fn admin(variables: &[(&str, &str)]) -> Result<Option<Admin>, String> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let env = |name: &str| variables.get(name).map(ToString::to_string);
        let exists = |path: &Path| path == Path::new("/tokens");
        let read = Settings::read(&env, &exists, 1);
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
}
