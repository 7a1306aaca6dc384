//! The settings of TLS on the gRPC port: paths, and whom a client's certificate must be made out to.
//!
//! Whether the files are there and hold what they should is found out when they are read, at start and
//! whenever they change.

use std::path::PathBuf;

use tokio_rustls::rustls::pki_types::ServerName;

use super::{
    parse::Refusal,
    reader::Reader,
    vars::{self, Var},
};

/// TLS on the gRPC port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcTls {
    /// The certificate that clients are shown, and the chain behind it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// What is asked of clients, if anything.
    pub clients: Option<GrpcTlsClients>,
}

/// Clients must show a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrpcTlsClients {
    /// The authorities that may have signed it.
    pub authorities: PathBuf,
    /// The name or address that it must be made out to; none lets any pass.
    pub name: Option<ServerName<'static>>,
}

/// TLS as it is set, if it is.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<GrpcTls> {
    if !reader.flag(vars::GRPC_SERVER_USE_TLS) {
        warn_of_unused(reader);
        return None;
    }
    Some(GrpcTls {
        certificate: path(reader, vars::GRPC_SERVER_TLS_CERT),
        key: path(reader, vars::GRPC_SERVER_TLS_KEY),
        clients: clients(reader),
    })
}

fn clients(reader: &mut Reader<'_>) -> Option<GrpcTlsClients> {
    let authorities = reader.text(vars::GRPC_CLIENT_TLS_CACERT);
    if !authorities.is_empty() {
        return Some(GrpcTlsClients { authorities: authorities.into(), name: client_name(reader) });
    }
    if reader.is_set(vars::GRPC_CLIENT_TLS_SAN) {
        // The Go service passes over it in silence; refusing would stop what starts there.
        let message = "does nothing without GRPC_CLIENT_TLS_CACERT: no client is asked for a certificate";
        reader.warn(vars::GRPC_CLIENT_TLS_SAN, message);
    }
    None
}

/// A path that TLS cannot do without.
fn path(reader: &mut Reader<'_>, var: Var) -> PathBuf {
    reader.parsed_text(var, |text| {
        if text.is_empty() {
            let refusal = Refusal::new("the path of a PEM file");
            return Err(refusal.with_hint("GRPC_SERVER_USE_TLS=true needs it"));
        }
        Ok(text.into())
    })
}

/// A DNS name or an IP address, in brackets or without, which is what Go compares as well.
fn client_name(reader: &mut Reader<'_>) -> Option<ServerName<'static>> {
    reader.parsed_text(vars::GRPC_CLIENT_TLS_SAN, |text| {
        if text.is_empty() {
            return Ok(None);
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        ServerName::try_from(bare.to_owned()).map(Some).map_err(|_| {
            let refusal = Refusal::new("a DNS name or an IP address");
            if text.contains("://") {
                refusal.with_hint("URIs, as of SPIFFE, are not compared, in the Go service neither")
            } else if text.contains('*') {
                refusal.with_hint(
                    "write a name in full; a certificate for *.example.com has every name one level below",
                )
            } else {
                refusal
            }
        })
    })
}

fn warn_of_unused(reader: &mut Reader<'_>) {
    for var in [
        vars::GRPC_SERVER_TLS_CERT,
        vars::GRPC_SERVER_TLS_KEY,
        vars::GRPC_CLIENT_TLS_CACERT,
        vars::GRPC_CLIENT_TLS_SAN,
    ] {
        if reader.is_set(var) {
            reader.warn(var, "does nothing without GRPC_SERVER_USE_TLS=true: gRPC is served without TLS");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What these variables come to: TLS, warnings and problems.
    fn settings(set: &[(&str, &str)]) -> (Option<GrpcTls>, Vec<String>, Vec<String>) {
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let mut reader = Reader::new(&env);
        let tls = read(&mut reader);
        let text = |warning: &dyn ToString| warning.to_string();
        let warnings = reader.warnings.iter().map(|warning| text(warning)).collect();
        let problems = reader.problems.iter().map(|problem| text(problem)).collect();
        (tls, warnings, problems)
    }

    const ON: [(&str, &str); 3] = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
    ];

    #[test]
    fn without_an_authority_no_client_is_asked_for_a_certificate() {
        let (tls, warnings, problems) = settings(&ON);
        assert_eq!((warnings.len(), problems.len()), (0, 0));
        let key = "/certs/tls.key".into();
        assert_eq!(tls, Some(GrpcTls { certificate: "/certs/tls.crt".into(), key, clients: None }));

        let (tls, warnings, _) = settings(&[&ON[..], &[("GRPC_CLIENT_TLS_SAN", "envoy.test")]].concat());
        assert_eq!(tls.unwrap().clients, None);
        assert!(warnings[0].starts_with("GRPC_CLIENT_TLS_SAN: does nothing"), "{warnings:?}");
    }

    #[test]
    fn clients_are_told_by_name_or_address() {
        for (text, name) in [
            ("", None),
            ("envoy.test", Some("envoy.test")),
            ("a_b", Some("a_b")),
            ("10.0.0.1", Some("10.0.0.1")),
            ("::1", Some("::1")),
            ("[::1]", Some("::1")),
        ] {
            let set =
                [&ON[..], &[("GRPC_CLIENT_TLS_CACERT", "ca.crt"), ("GRPC_CLIENT_TLS_SAN", text)]].concat();
            let clients = settings(&set).0.unwrap().clients.unwrap();
            assert_eq!(clients.name, name.map(|name| ServerName::try_from(name).unwrap()), "{text}");
        }
    }

    #[test]
    fn names_that_no_certificate_could_have_are_refused() {
        for text in ["spiffe://cluster.local/ns/a", "*.envoy.test", "a b", "[envoy.test", "-"] {
            let set =
                [&ON[..], &[("GRPC_CLIENT_TLS_CACERT", "ca.crt"), ("GRPC_CLIENT_TLS_SAN", text)]].concat();
            let problems = settings(&set).2;
            assert!(
                problems.len() == 1 && problems[0].contains("a DNS name or an IP address"),
                "{problems:?}"
            );
        }
    }

    #[test]
    fn what_tls_needs_is_named_all_at_once() {
        let problems = settings(&ON[..1]).2;
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("GRPC_SERVER_TLS_CERT") && problems[1].contains("GRPC_SERVER_TLS_KEY"));
    }

    #[test]
    fn files_without_tls_are_warned_of() {
        let (tls, warnings, problems) = settings(&ON[1..]);
        assert_eq!((tls, warnings.len(), problems.len()), (None, 2, 0), "{warnings:?}");
    }
}
