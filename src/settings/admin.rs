//! The admin API: where it listens, who may use it, and what they may do. The variables of the group `Admin`.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use super::{
    GrpcTls, HostPort,
    address::host_port,
    parse::InvalidValue,
    reader::Reader,
    vars::{self, AdminVars},
};

/// The admin API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admin {
    /// Where it listens.
    pub listen: AdminListen,
    /// The file of bearer tokens; every call needs one of them.
    pub token_file: Option<PathBuf>,
    /// Nothing may be changed.
    pub read_only: bool,
    /// It has the gRPC port's TLS.
    pub tls: bool,
}

/// Where the admin API listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminListen {
    /// On a TCP port.
    Tcp {
        /// The address.
        address: HostPort,
        /// True where the address is only the default, so that the service runs without it if it is taken.
        is_default: bool,
    },
    /// On a unix socket.
    Unix(PathBuf),
}

impl Admin {
    /// The address that must not be another listener's.
    pub(super) fn fixed_address(&self) -> Option<&HostPort> {
        match &self.listen {
            AdminListen::Tcp { address, is_default: false } => Some(address),
            _ => None,
        }
    }
}

pub(super) fn read(
    reader: &mut Reader<'_>,
    grpc_tls: Option<&GrpcTls>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<Admin> {
    let AdminVars { address, socket, token_file, read_only, tls } = AdminVars::read(reader);
    let listen = match socket {
        Some(path) => AdminListen::Unix(path),
        None => AdminListen::Tcp { address: address?, is_default: !reader.is_set(&vars::ADMIN_ADDR) },
    };
    check_token_file(reader, &listen, token_file.as_deref(), exists);
    if tls && grpc_tls.is_none() {
        let refusal = InvalidValue::new("false without TLS on the gRPC port");
        let hint = format!("set {} and its certificate, or remove this", vars::GRPC_SERVER_USE_TLS.name);
        reader.refuse(&vars::ADMIN_USE_TLS, Some("true".to_owned()), refusal.with_hint(hint));
    }
    Some(Admin { listen, token_file, read_only, tls })
}

fn check_token_file(
    reader: &mut Reader<'_>,
    listen: &AdminListen,
    token_file: Option<&Path>,
    exists: &dyn Fn(&Path) -> bool,
) {
    match (listen, token_file) {
        (_, Some(path)) if !exists(path) => {
            let refusal = InvalidValue::new("the path of a file with tokens");
            let seen = Some(path.display().to_string());
            reader.refuse(
                &vars::ADMIN_TOKEN_FILE,
                seen,
                refusal.with_hint("nothing is there: is it mounted?"),
            );
        }
        (AdminListen::Tcp { address, .. }, None) if !is_loopback(address) => {
            let refusal = InvalidValue::new("the path of a file with tokens");
            let hint = format!(
                "{}={address} can be reached from other machines; use 127.0.0.1:6071 to serve without a token",
                vars::ADMIN_ADDR.name
            );
            reader.refuse(&vars::ADMIN_TOKEN_FILE, None, refusal.with_hint(hint));
        }
        _ => {}
    }
}

/// The address, or none for `off`.
pub(super) fn address(text: &str) -> Result<Option<HostPort>, InvalidValue> {
    if text.eq_ignore_ascii_case("off") {
        return Ok(None);
    }
    host_port(text).map(Some).map_err(|refusal| {
        let accepted = "off, or an address such as 127.0.0.1:6071, [::1]:6071 or :6071";
        InvalidValue { accepted: accepted.to_owned(), ..refusal }
    })
}

/// True when only processes of this machine reach the address.
fn is_loopback(address: &HostPort) -> bool {
    let ip = address.host.parse::<IpAddr>();
    address.host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        let Some(Admin { listen, token_file: None, read_only: false, tls: false }) = admin(&[]).unwrap()
        else {
            panic!()
        };
        let address = HostPort { host: "127.0.0.1".into(), port: 6071 };
        assert_eq!(listen, AdminListen::Tcp { address, is_default: true });
        for off in ["off", "OFF"] {
            assert_eq!(admin(&[("ADMIN_ADDR", off)]).unwrap(), None);
        }
        let socket = admin(&[("ADMIN_UDS", "/run/admin"), ("ADMIN_ADDR", "off")]).unwrap().unwrap();
        assert_eq!(socket.listen, AdminListen::Unix("/run/admin".into()));
    }

    #[test]
    fn an_address_that_others_reach_needs_tokens() {
        for address in [":6071", "0.0.0.0:6071", "10.0.0.7:6071", "[::]:6071", "admin.internal:6071"] {
            let error = admin(&[("ADMIN_ADDR", address)]).unwrap_err();
            assert!(error.starts_with("ADMIN_TOKEN_FILE: accepted is the path"), "{error}");
            assert!(error.contains("127.0.0.1:6071"), "{error}");
            let with_tokens = [("ADMIN_ADDR", address), ("ADMIN_TOKEN_FILE", "/tokens")];
            assert!(admin(&with_tokens).unwrap().is_some(), "{address}");
        }
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"] {
            assert!(admin(&[("ADMIN_ADDR", address)]).unwrap().is_some(), "{address}");
        }
    }

    #[test]
    fn refuses_what_cannot_be_served() {
        for (variables, expected) in [
            (&[("ADMIN_ADDR", "6071")][..], "ADMIN_ADDR=\"6071\": accepted is off, or an address"),
            (&[("ADMIN_TOKEN_FILE", "/missing")], "nothing is there: is it mounted?"),
            (&[("ADMIN_USE_TLS", "true")], "ADMIN_USE_TLS=\"true\": accepted is false without TLS"),
            (
                &[("ADMIN_ADDR", "127.0.0.1:8080")],
                "ADMIN_ADDR=\"127.0.0.1:8080\": accepted is a port of its own",
            ),
        ] {
            let error = admin(variables).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
