//! The settings of TLS on the gRPC port: paths, and whom a client's certificate must be made out to.
//!
//! Whether the files are there and hold what they should is found out when they are read, at start and
//! whenever they change.

use std::path::PathBuf;

use tokio_rustls::rustls::pki_types::ServerName;

use super::{
    parse::InvalidValue,
    reader::Reader,
    vars::{self, GrpcTlsFiles, Var},
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
    /// The name that it must be made out to; none lets any pass.
    pub name: Option<ClientName>,
}

/// A subjectAltName.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientName {
    /// A DNS name or an IP address.
    Host(ServerName<'static>),
    /// A URI, such as SPIFFE's.
    Uri(String),
    /// An e-mail address.
    Email(String),
}

/// TLS as it is set, if it is.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<GrpcTls> {
    if reader.is_set(&vars::GRPC_SERVER_TLS_CA_CERT) {
        let message = "changes nothing, as in the Go service: no client is asked for a certificate because of it. \
            GRPC_CLIENT_TLS_CACERT requires client certificates";
        reader.warn(&vars::GRPC_SERVER_TLS_CA_CERT, message);
    }
    let files = GrpcTlsFiles::read(reader);
    if !files.is_on {
        warn_of_unused(reader);
        return None;
    }
    let clients = clients(reader, &files);
    let certificate = needed(reader, &vars::GRPC_SERVER_TLS_CERT, files.certificate);
    Some(GrpcTls { certificate, key: needed(reader, &vars::GRPC_SERVER_TLS_KEY, files.key), clients })
}

fn clients(reader: &mut Reader<'_>, files: &GrpcTlsFiles) -> Option<GrpcTlsClients> {
    let san = files.client_name.as_str();
    let Some(authorities) = files.authorities.clone() else {
        if !san.is_empty() {
            // The Go service ignores it in silence; refusing it would stop what starts there.
            let message = "does nothing without GRPC_CLIENT_TLS_CACERT: no client is asked for a certificate";
            reader.warn(&vars::GRPC_CLIENT_TLS_SAN, message);
        }
        return None;
    };
    let name = (!san.is_empty()).then(|| name_of(san)).transpose();
    let name = name.unwrap_or_else(|invalid| {
        reader.refuse(&vars::GRPC_CLIENT_TLS_SAN, Some(san.to_owned()), invalid);
        None
    });
    Some(GrpcTlsClients { authorities, name })
}

/// A path that TLS cannot do without.
fn needed(reader: &mut Reader<'_>, var: &'static Var, path: Option<PathBuf>) -> PathBuf {
    path.unwrap_or_else(|| {
        let refusal =
            InvalidValue::new("the path of a PEM file").with_hint("GRPC_SERVER_USE_TLS=true needs it");
        reader.refuse(var, Some(String::new()), refusal);
        PathBuf::new()
    })
}

/// A name in one of the forms that certificates hold. Addresses may stand in brackets, as in Go.
fn name_of(text: &str) -> Result<ClientName, InvalidValue> {
    let refusal = InvalidValue::new("a DNS name, an IP address, a URI or an e-mail address");
    if text.contains('*') {
        let hint = "write a name in full; a certificate for *.example.com has every name one level below";
        return Err(refusal.with_hint(hint));
    }
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if let Some((scheme, rest)) = text.split_once("://") {
        return match scheme {
            "spiffe" => spiffe_id(rest)
                .map_err(|hint| refusal.with_hint(hint))
                .map(|()| ClientName::Uri(text.to_owned())),
            _ if is_plain && !scheme.is_empty() && !rest.is_empty() => Ok(ClientName::Uri(text.to_owned())),
            _ => Err(refusal),
        };
    }
    if let Some((local, domain)) = text.split_once('@') {
        let is_address = is_plain && !local.is_empty() && !domain.is_empty() && !domain.contains('@');
        return if is_address { Ok(ClientName::Email(text.to_owned())) } else { Err(refusal) };
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    ServerName::try_from(bare.to_owned()).map(ClientName::Host).map_err(|_| refusal)
}

/// What may stand behind `spiffe://`, by the SPIFFE ID specification.
fn spiffe_id(rest: &str) -> Result<(), &'static str> {
    let (domain, path) = rest.split_once('/').map_or((rest, None), |(domain, path)| (domain, Some(path)));
    let is_lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    if domain.is_empty() || !domain.bytes().all(is_lower) {
        return Err(
            "the trust domain of a SPIFFE ID has lower-case letters, digits, dots, dashes and underscores",
        );
    }
    let is_segment = |segment: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !matches!(segment, "" | "." | "..") && segment.bytes().all(is_known)
    };
    if path.is_none_or(|path| path.split('/').all(is_segment)) {
        return Ok(());
    }
    Err(
        "the path of a SPIFFE ID has segments of letters, digits, dots, dashes and underscores, and no slash at its end",
    )
}

fn warn_of_unused(reader: &mut Reader<'_>) {
    let unused: [&Var; 4] = [
        &vars::GRPC_SERVER_TLS_CERT,
        &vars::GRPC_SERVER_TLS_KEY,
        &vars::GRPC_CLIENT_TLS_CACERT,
        &vars::GRPC_CLIENT_TLS_SAN,
    ];
    for var in unused {
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
    fn clients_are_named_by_every_kind_of_name() {
        let host = |name: &'static str| Some(ClientName::Host(ServerName::try_from(name).unwrap()));
        let uri = |text: &str| Some(ClientName::Uri(text.to_owned()));
        for (text, name) in [
            ("", None),
            ("envoy.test", host("envoy.test")),
            ("a_b", host("a_b")),
            ("10.0.0.1", host("10.0.0.1")),
            ("::1", host("::1")),
            ("[::1]", host("::1")),
            ("spiffe://cluster.local/ns/a/sa/b", uri("spiffe://cluster.local/ns/a/sa/b")),
            ("spiffe://cluster.local", uri("spiffe://cluster.local")),
            ("https://Envoy.test/x?y", uri("https://Envoy.test/x?y")),
            ("gateway@envoy.test", Some(ClientName::Email("gateway@envoy.test".to_owned()))),
        ] {
            let set =
                [&ON[..], &[("GRPC_CLIENT_TLS_CACERT", "ca.crt"), ("GRPC_CLIENT_TLS_SAN", text)]].concat();
            let clients = settings(&set).0.unwrap().clients.unwrap();
            assert_eq!(clients.name, name, "{text}");
        }
    }

    #[test]
    fn names_that_no_certificate_could_have_are_refused() {
        for text in [
            "*.envoy.test",
            "a b",
            "[envoy.test",
            "-",
            "spiffe://",
            "spiffe:///ns",
            "spiffe://Cluster.local/ns",
            "spiffe://cluster.local/",
            "spiffe://cluster.local/ns//a",
            "spiffe://cluster.local/../a",
            "spiffe://cluster.local/*",
            "://x",
            "https://a b",
            "@envoy.test",
            "a@",
            "a@b@c",
        ] {
            let set =
                [&ON[..], &[("GRPC_CLIENT_TLS_CACERT", "ca.crt"), ("GRPC_CLIENT_TLS_SAN", text)]].concat();
            let problems = settings(&set).2;
            assert!(
                problems.len() == 1 && problems[0].contains("a DNS name, an IP address, a URI"),
                "{text}: {problems:?}"
            );
        }
    }

    #[test]
    fn warns_once_of_the_variable_that_envoy_gateway_sets() {
        for on in [&ON[..], &[]] {
            let set = [on, &[("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt")]].concat();
            let (tls, warnings, problems) = settings(&set);
            assert!(tls.is_none_or(|tls| tls.clients.is_none()));
            assert_eq!((warnings.len(), problems.len()), (1, 0), "{warnings:?}");
            assert!(warnings[0].starts_with("GRPC_SERVER_TLS_CA_CERT: changes nothing"), "{warnings:?}");
        }
    }

    #[test]
    fn what_tls_needs_is_named_all_at_once() {
        let problems = settings(&ON[..1]).2;
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("GRPC_SERVER_TLS_CERT") && problems[1].contains("GRPC_SERVER_TLS_KEY"));
    }

    #[test]
    fn warns_of_files_without_tls() {
        let (tls, warnings, problems) = settings(&ON[1..]);
        assert_eq!((tls, warnings.len(), problems.len()), (None, 2, 0), "{warnings:?}");
    }
}
