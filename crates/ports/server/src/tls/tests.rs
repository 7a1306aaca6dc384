//! Loading, reloading and rejecting certificate files.

use std::{fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use rcgen::{CertificateParams, CertifiedKey, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, date_time_ymd};
use tempfile::TempDir;

use super::*;
use crate::tls::settings::GrpcTlsClients;

/// 2026-01-01.
const NOW: Time = Time::from_seconds(1_767_225_600);

/// A self-signed certificate that expires at the end of 2026, or of 2025.
fn certificate(valid: bool) -> CertifiedKey<KeyPair> {
    signed_with(KeyPair::generate().unwrap(), valid)
}

fn signed_with(signing_key: KeyPair, valid: bool) -> CertifiedKey<KeyPair> {
    let mut params = CertificateParams::new(["tollgate.test".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(if valid { 2027 } else { 2026 }, 1, 1);
    CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
}

/// A directory with these files, and settings with their paths.
fn written(certificate: &str, key: &str, authorities: Option<&str>) -> (TempDir, GrpcTls) {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    let (certificate, key) = (put("tls.crt", certificate), put("tls.key", key));
    let clients = authorities.map(|text| GrpcTlsClients { authorities: put("ca.crt", text), name: None });
    (dir, GrpcTls { certificate, key, clients })
}

fn of(pair: &CertifiedKey<KeyPair>) -> (TempDir, GrpcTls) {
    written(&pair.cert.pem(), &pair.signing_key.serialize_pem(), None)
}

fn put(dir: &Path, pair: &CertifiedKey<KeyPair>) {
    fs::write(dir.join("tls.crt"), pair.cert.pem()).unwrap();
    fs::write(dir.join("tls.key"), pair.signing_key.serialize_pem()).unwrap();
}

fn load(options: GrpcTls) -> Result<Tls, Vec<String>> {
    Tls::load(options, Budget::new(1 << 20), NOW)
}

fn problems(options: GrpcTls) -> Vec<String> {
    load(options).err().unwrap_or_default()
}

#[test]
fn accepts_the_files_that_go_accepts() {
    let one = certificate(true);
    let (pem, key) = (one.cert.pem(), one.signing_key.serialize_pem());
    let both = format!("Bag Attributes: none\n{key}\n{pem}{}", certificate(true).cert.pem());
    for (certificate, key, authorities) in [
        (&pem, &key, None),
        (&pem, &key, Some(&both)),
        (&both, &both, None),
        (&pem.replace('\n', "\r\n"), &key.replace('\n', "\r\n"), None),
    ] {
        let (_dir, options) = written(certificate, key, authorities.map(String::as_str));
        assert_eq!(problems(options), [""; 0]);
    }
    for algorithm in [&PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let pair = signed_with(KeyPair::generate_for(algorithm).unwrap(), true);
        assert_eq!(problems(of(&pair).1), [""; 0]);
    }
}

#[test]
fn reports_all_errors_at_once() {
    let one = certificate(true);
    let (pem, key) = (one.cert.pem(), one.signing_key.serialize_pem());
    let other_key = certificate(true).signing_key.serialize_pem();
    let torn = &pem[..pem.len() / 2];
    let locked = key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    let damaged = pem.replacen(&pem[28..36], "AAAAAAAA", 1);
    for (certificate, key, authorities, expected) in [
        (&*pem, &*other_key, None, &["KEY=", "is not the key of"][..]),
        (torn, &key, None, &["CERT=", "is not valid PEM"]),
        ("", &key, None, &["CERT=", "contains no certificate"]),
        (&damaged, &key, None, &["CERT=", "cannot be read"]),
        (&pem, &pem, None, &["KEY=", "contains no private key"]),
        (&pem, &locked, None, &["KEY=", "encrypted key"]),
        (&pem, &key, Some(&*key), &["CACERT=", "no CA certificate"]),
        (
            "",
            "",
            Some(""),
            &["CERT=", "no certificate", "KEY=", "no private key", "CACERT=", "no CA certificate"],
        ),
    ] {
        let (_dir, options) = written(certificate, key, authorities);
        let problems = problems(options);
        assert_eq!(problems.len(), expected.len() / 2, "{problems:?}");
        for (problem, expected) in problems.iter().zip(expected.chunks(2)) {
            assert!(expected.iter().all(|part| problem.contains(part)), "{expected:?} in {problem}");
        }
    }
}

#[test]
fn new_files_are_used_for_new_connections() {
    let (dir, options) = of(&certificate(true));
    let tls = load(options).unwrap();
    let first = tls.serving.load_full();
    tls.reload(NOW);
    assert!(Arc::ptr_eq(&first, &tls.serving.load_full()), "nothing has changed");

    put(dir.path(), &certificate(false));
    tls.reload(NOW);
    assert!(!Arc::ptr_eq(&first, &tls.serving.load_full()));
    assert_eq!(tls.usage().certificate_expiry, Duration::from_secs(NOW.seconds()));
    assert!(lock(&tls.state).expiry_logged, "it has expired at this moment");
    assert_eq!(tls.usage().reload_errors, 0);
}

#[test]
fn invalid_files_are_logged_once_after_two_reads() {
    let (dir, options) = of(&certificate(true));
    let tls = load(options.clone()).unwrap();
    let first = tls.serving.load_full();
    let errors_after = |reloads: usize| {
        (0..reloads).for_each(|_| tls.reload(NOW));
        tls.usage().reload_errors
    };

    fs::write(&options.certificate, "half of").unwrap();
    assert_eq!(errors_after(1), 0, "it may be half written");
    assert_eq!(errors_after(3), 1);
    fs::remove_file(&options.key).unwrap();
    assert_eq!(errors_after(3), 2, "another problem is logged as well");
    assert!(Arc::ptr_eq(&first, &tls.serving.load_full()), "the previous one stays in use");

    put(dir.path(), &certificate(true));
    assert_eq!(errors_after(3), 2);
    assert!(!Arc::ptr_eq(&first, &tls.serving.load_full()));
}

#[test]
fn a_certificate_written_before_its_key_is_not_an_error() {
    let (dir, options) = of(&certificate(true));
    let tls = load(options).unwrap();
    let next = certificate(true);
    fs::write(dir.path().join("tls.crt"), next.cert.pem()).unwrap();
    tls.reload(NOW);
    put(dir.path(), &next);
    tls.reload(NOW);
    tls.reload(NOW);
    assert_eq!(tls.usage().reload_errors, 0);
}

#[test]
fn logs_an_expired_certificate_once() {
    let (_dir, options) = of(&certificate(true));
    let tls = load(options).unwrap();
    assert!(!lock(&tls.state).expiry_logged);
    tls.reload(Time::from_seconds(NOW.seconds() + 365 * 86_400));
    assert!(lock(&tls.state).expiry_logged);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        is_armored in any::<bool>(),
    ) {
        let pair = certificate(true);
        let der = pair.cert.der().to_vec();
        let at = at.index(der.len());
        let end = der.len().min(at + bytes.len());
        let text = if is_armored {
            let changed = [&der[..at], &bytes[..], &der[end..]].concat();
            let body = STANDARD.encode(&changed);
            format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n").into_bytes()
        } else {
            bytes
        };
        let options = GrpcTls {
            certificate: "c".into(),
            key: "k".into(),
            clients: Some(GrpcTlsClients { authorities: "a".into(), name: None }),
        };
        let key = pair.signing_key.serialize_pem().into_bytes();
        for key in [key, text.clone()] {
            let files = Files { certificate: Ok(text.clone()), key: Ok(key), authorities: Some(Ok(text.clone())) };
            let _ = Material::new(&options, &files);
        }
    }
}
