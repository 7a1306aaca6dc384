//! TLS on the gRPC port, and TLS to the servers that the service connects to.
//!
//! The files of the gRPC port are checked when they are read, at start and whenever they change.

use std::path::PathBuf;

use tokio_rustls::rustls::pki_types::ServerName;

use net::tls::ClientTls;

use super::{
    reader::Reader,
    variable::{Setting, Var},
    vars::{self, GrpcTlsFiles, Trust},
};
use server::tls::settings::ClientName;
use server::tls::settings::GrpcTls;
use server::tls::settings::GrpcTlsClients;
use text::InvalidValue;

pub(super) const PEM: &str = "the path of a PEM file";

pub(super) struct TlsVars {
    pub(super) ca: &'static Setting<Option<PathBuf>>,
    pub(super) certificate: &'static Setting<Option<PathBuf>>,
    pub(super) key: &'static Setting<Option<PathBuf>>,
    pub(super) enabled_by: &'static str,
}

impl TlsVars {
    /// The values, whether TLS is enabled or not.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> ClientTls {
        ClientTls {
            ca: reader.read(self.ca),
            trust_system: Trust::read(reader).in_addition,
            identity: reader.read(self.certificate).zip(reader.read(self.key)),
            skip_hostname: false,
        }
    }

    /// Rejects files that do not exist, and warns about files that have no effect.
    pub(super) fn check_files(&self, reader: &mut Reader<'_>, is_enabled: bool) {
        for setting in [self.ca, self.certificate, self.key] {
            if !is_enabled {
                reader.warn_unused(&[setting], &format!("without {}", self.enabled_by));
            } else if let Some(path) = reader.read(setting)
                && !reader.exists(&path)
            {
                reader.conflict(setting, PEM, "the file does not exist; is it mounted?");
            }
        }
    }

    /// The variable of a certificate without a key, or of a key without a certificate, and the missing one.
    pub(super) fn half_identity(&self, reader: &Reader<'_>) -> Option<(&'static Var, &'static Var)> {
        match (reader.is_set(self.certificate), reader.is_set(self.key)) {
            (true, false) => Some((self.certificate, self.key)),
            (false, true) => Some((self.key, self.certificate)),
            _ => None,
        }
    }

    pub(super) fn reject_half_identity(&self, reader: &mut Reader<'_>) {
        if let Some((set, missing)) = self.half_identity(reader) {
            reader.conflict(missing, PEM, format!("{} requires it", set.name));
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<GrpcTls> {
    reader.warn_unused(
        &[&vars::GRPC_SERVER_TLS_CA_CERT],
        "here or in the Go service; GRPC_CLIENT_TLS_CACERT requires client certificates",
    );
    let files = GrpcTlsFiles::read(reader);
    if !files.is_on {
        let unused: [&Var; 4] = [
            &vars::GRPC_SERVER_TLS_CERT,
            &vars::GRPC_SERVER_TLS_KEY,
            &vars::GRPC_CLIENT_TLS_CACERT,
            &vars::GRPC_CLIENT_TLS_SAN,
        ];
        reader.warn_unused(&unused, "without GRPC_SERVER_USE_TLS=true");
        return None;
    }
    let clients = clients(reader, &files);
    let mut required = |var, path: Option<PathBuf>| {
        path.unwrap_or_else(|| {
            reader.conflict(var, PEM, "GRPC_SERVER_USE_TLS=true requires it");
            PathBuf::new()
        })
    };
    let certificate = required(&vars::GRPC_SERVER_TLS_CERT, files.certificate);
    Some(GrpcTls { certificate, key: required(&vars::GRPC_SERVER_TLS_KEY, files.key), clients })
}

fn clients(reader: &mut Reader<'_>, files: &GrpcTlsFiles) -> Option<GrpcTlsClients> {
    let Some(authorities) = files.authorities.clone() else {
        // The Go service ignores it without a warning. An error would stop deployments that start there.
        reader.warn_unused(&[&vars::GRPC_CLIENT_TLS_SAN], "without GRPC_CLIENT_TLS_CACERT");
        return None;
    };
    let name = (!files.client_name.is_empty()).then(|| name_of(&files.client_name)).transpose();
    let name = name.unwrap_or_else(|invalid| {
        reader.reject(&vars::GRPC_CLIENT_TLS_SAN, invalid);
        None
    });
    Some(GrpcTlsClients { authorities, name })
}

/// A name in one of the forms of a subjectAltName. IPv6 addresses may have brackets, as in Go.
fn name_of(text: &str) -> Result<ClientName, InvalidValue> {
    let invalid = InvalidValue::new("a DNS name, an IP address, a URI or an e-mail address");
    if text.contains('*') {
        let hint =
            "write the full name; a certificate for *.example.com is valid for every name one level below";
        return Err(invalid.with_hint(hint));
    }
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if let Some((scheme, rest)) = text.split_once("://") {
        return match scheme {
            "spiffe" => spiffe_id(rest)
                .map_err(|hint| invalid.with_hint(hint))
                .map(|()| ClientName::Uri(text.to_owned())),
            _ if is_plain && !scheme.is_empty() && !rest.is_empty() => Ok(ClientName::Uri(text.to_owned())),
            _ => Err(invalid),
        };
    }
    if let Some((local, domain)) = text.split_once('@') {
        let is_address = is_plain && !local.is_empty() && !domain.is_empty() && !domain.contains('@');
        return if is_address { Ok(ClientName::Email(text.to_owned())) } else { Err(invalid) };
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    ServerName::try_from(bare.to_owned()).map(ClientName::Host).map_err(|_| invalid)
}

/// Checks the part after `spiffe://` against the SPIFFE ID specification.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// TLS, warnings and problems of these variables.
    fn settings(set: &[(&str, &str)]) -> (Option<GrpcTls>, Vec<String>, Vec<String>) {
        let env = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        let mut reader = Reader::new(&env, &|_| true);
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
    fn client_certificates_are_required_only_with_cas() {
        let (tls, warnings, problems) = settings(&ON);
        assert_eq!((warnings.len(), problems.len()), (0, 0));
        let key = "/certs/tls.key".into();
        assert_eq!(tls, Some(GrpcTls { certificate: "/certs/tls.crt".into(), key, clients: None }));

        let (tls, warnings, _) = settings(&[&ON[..], &[("GRPC_CLIENT_TLS_SAN", "envoy.test")]].concat());
        assert_eq!(tls.unwrap().clients, None);
        assert!(warnings[0].starts_with("GRPC_CLIENT_TLS_SAN: has no effect"), "{warnings:?}");
    }

    #[test]
    fn reads_every_kind_of_client_name() {
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
    fn rejects_names_that_no_certificate_can_have() {
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
    fn warns_once_about_the_variable_that_envoy_gateway_sets() {
        for on in [&ON[..], &[]] {
            let set = [on, &[("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt")]].concat();
            let (tls, warnings, problems) = settings(&set);
            assert!(tls.is_none_or(|tls| tls.clients.is_none()));
            assert_eq!((warnings.len(), problems.len()), (1, 0), "{warnings:?}");
            assert!(warnings[0].starts_with("GRPC_SERVER_TLS_CA_CERT: has no effect"), "{warnings:?}");
        }
    }

    #[test]
    fn reports_all_missing_files_at_once() {
        let problems = settings(&ON[..1]).2;
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("GRPC_SERVER_TLS_CERT") && problems[1].contains("GRPC_SERVER_TLS_KEY"));
    }

    #[test]
    fn warns_about_files_without_tls() {
        let (tls, warnings, problems) = settings(&ON[1..]);
        assert_eq!((tls, warnings.len(), problems.len()), (None, 2, 0), "{warnings:?}");
    }
}
