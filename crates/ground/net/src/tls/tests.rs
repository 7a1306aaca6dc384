//! Valid and invalid files. The store tests handshakes with such certificates.

use std::{fs, path::PathBuf};

use super::*;
use crate::authority::Authority;

const HINTS: Hints =
    Hints { ca: "CACERT", certificate: "CLIENT_CERT", key: "CLIENT_KEY", other_host: "", plain_text: "" };

fn loaded(ca: Option<&Path>, identity: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, Vec<String>> {
    let (ca, identity) = (ca.map(Path::to_owned), identity.cloned());
    load(&ClientTls { ca, identity, skip_hostname: true, ..ClientTls::default() }, &HINTS)
}

fn refused(ca: Option<&Path>, identity: Option<&(PathBuf, PathBuf)>) -> Vec<String> {
    loaded(ca, identity).err().unwrap_or_default()
}

#[test]
fn accepts_valid_files() {
    let authority = Authority::new("ours");
    let loaded = loaded(Some(&authority.ca()), Some(&authority.identity("client")));
    assert!(loaded.map_err(|errors| errors.join("\n")).unwrap().client_auth_cert_resolver.has_certs());
}

#[test]
fn trusts_several_certificates() {
    let (one, other) = (Authority::new("one"), Authority::new("other"));
    let both = one.file("both.pem", &(one.issuer.pem() + &other.issuer.pem()));
    assert_eq!(refused(Some(&both), None), Vec::<String>::new());
}

#[test]
fn reports_every_invalid_file_with_its_path() {
    let authority = Authority::new("ours");
    let missing = |name: &str| authority.directory.path().join(name);
    let reported = refused(Some(&missing("a.pem")), Some(&(missing("b.crt"), missing("b.key"))));
    assert_eq!(reported.len(), 3, "{reported:?}");
    for (reported, (variable, path)) in
        reported.iter().zip([(HINTS.ca, "a.pem"), (HINTS.certificate, "b.crt"), (HINTS.key, "b.key")])
    {
        assert!(
            reported.starts_with(variable) && reported.contains(path) && reported.contains("expected"),
            "{reported}"
        );
    }
}

#[test]
fn rejects_files_without_a_certificate() {
    let authority = Authority::new("ours");
    let (certificate, key) = authority.identity("client");
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let half = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    for (text, why) in [
        ("", "it contains no certificate"),
        ("not PEM at all\n\u{0}", "it contains no certificate"),
        (broken, "certificate 1"),
        (half, "certificate 1"),
        (&(authority.issuer.pem() + broken), "certificate 2"),
    ] {
        let path = authority.file("bad.pem", text);
        let reported = refused(Some(&path), None).join("\n");
        assert!(reported.contains(why) && reported.contains("bad.pem"), "{text:?}: {reported}");
        if !text.contains(&authority.issuer.pem()) {
            assert_ne!(refused(Some(&authority.ca()), Some(&(path, key.clone()))), Vec::<String>::new());
        }
    }
    // A certificate is not a key.
    let reported =
        refused(Some(&authority.ca()), Some(&(certificate.clone(), certificate.clone()))).join("\n");
    assert!(reported.contains(HINTS.key) && reported.contains("it contains no private key"), "{reported}");
    let locked = fs::read_to_string(&key).unwrap().replace("PRIVATE", "ENCRYPTED PRIVATE");
    let locked = authority.file("locked.key", &locked);
    let reported = refused(Some(&authority.ca()), Some(&(certificate, locked))).join("\n");
    assert!(reported.contains("encrypted key"), "{reported}");
    let ca_of_a_key = refused(Some(&key), None).join("\n");
    assert!(ca_of_a_key.contains("it contains no certificate"), "{ca_of_a_key}");
}

#[test]
fn a_key_must_match_its_certificate() {
    let authority = Authority::new("ours");
    let ((certificate, _), (_, other)) = (authority.identity("one"), authority.identity("other"));
    let reported = refused(Some(&authority.ca()), Some(&(certificate, other))).join("\n");
    assert!(
        reported.contains(HINTS.key)
            && reported.contains("other.key")
            && reported.contains(HINTS.certificate),
        "{reported}"
    );
}
