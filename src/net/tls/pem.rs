//! PEM files as TLS takes them: their bytes, the certificates and the key in them, or what is wrong.
//!
//! Errors begin with the verb: the caller puts the name of the file before them.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio_rustls::rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::SigningKey,
};

/// Larger than any certificate, key or list of CAs: those of the web have 200 KB together.
const LARGEST: u64 = 4 << 20;

/// The bytes of a file.
///
/// # Errors
/// Why it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    // A pipe would hold the reader until somebody writes, and a directory opens though it cannot be read.
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err("is not a file".to_owned()),
        Err(error) => return Err(reason(&error)),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(reason(&error)),
        Ok(_) if bytes.len() as u64 > LARGEST => Err(format!("is larger than {LARGEST} bytes")),
        Ok(_) => Ok(bytes),
    }
}

fn reason(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

/// The certificates in these bytes, be they none.
///
/// # Errors
/// Which of them is broken. Not what is there: it may be a key.
pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_slice_iter(bytes).zip(1..).map(|(certificate, number)| {
        certificate.map_err(|_| {
            format!(
                "is no PEM at its certificate {number}: a block is not closed, or holds what is not base64"
            )
        })
    });
    read.collect()
}

/// The certificates in these bytes; one at least.
///
/// # Errors
/// When there is none, or a broken one.
pub fn chain(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = certificates(bytes)?;
    if found.is_empty() {
        return Err("holds no certificate: a block BEGIN CERTIFICATE is wanted".to_owned());
    }
    Ok(found)
}

/// Certificates as PEM.
#[must_use]
pub fn encode(certificates: &[CertificateDer<'_>]) -> Vec<u8> {
    let mut text = Vec::new();
    for certificate in certificates {
        text.extend(b"-----BEGIN CERTIFICATE-----\n");
        for line in STANDARD.encode(certificate).as_bytes().chunks(64) {
            text.extend(line);
            text.push(b'\n');
        }
        text.extend(b"-----END CERTIFICATE-----\n");
    }
    text
}

/// The first key in these bytes.
///
/// # Errors
/// When there is none, or one that cannot be used. The parser's own error is left out, because it quotes the file.
pub fn key(bytes: &[u8], provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, String> {
    let key = PrivateKeyDer::from_pem_slice(bytes).map_err(|_| {
        let encrypted = b"BEGIN ENCRYPTED PRIVATE KEY";
        if bytes.windows(encrypted.len()).any(|window| window == encrypted) {
            "holds a key under a password; write it without: openssl pkey -in KEY -out NEW"
        } else {
            "holds no private key: a block BEGIN PRIVATE KEY is wanted (or RSA or EC before PRIVATE)"
        }
    })?;
    provider.key_provider.load_private_key(key).map_err(|_| {
        "holds a key that cannot be used: RSA with 2048 to 8192 bits, ECDSA with P-256 or P-384, and \
         Ed25519 are taken"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        File::create(&large).unwrap().set_len(LARGEST + 1).unwrap();
        for (path, why) in [
            (dir.path().join("absent"), "cannot be read: No such file"),
            (dir.path().to_owned(), "is not a file"),
            ("/dev/null".into(), "is not a file"),
            (large, "is larger than"),
        ] {
            let error = read(&path).unwrap_err();
            assert!(error.starts_with(why), "{}: {error}", path.display());
        }
    }

    #[test]
    fn what_is_encoded_is_read_back() {
        let sizes = [1, 47, 48, 49, 1000];
        let all: Vec<_> = sizes.map(|size| CertificateDer::from(vec![7; size])).into();
        assert_eq!(certificates(&encode(&all)), Ok(all));
    }

    #[test]
    fn a_file_that_can_be_read_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "all of it").unwrap();
        assert_eq!(read(&path).as_deref(), Ok(&b"all of it"[..]));
    }
}
