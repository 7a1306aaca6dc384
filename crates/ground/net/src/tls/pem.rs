//! PEM files with certificates and keys.
//!
//! Errors begin with a verb: the caller prepends the name of the file.

use std::{path::Path, sync::Arc};

use tokio_rustls::rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::SigningKey,
};

use faults::files;

/// Larger than any list of CAs: those of the web have 200 KB.
const MAX_BYTES: u64 = 4 << 20;

pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    files::read(path, MAX_BYTES).map_err(|error| format!("cannot be read: {error}"))
}

pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_slice_iter(bytes).zip(1..).map(|(certificate, number)| {
        certificate.map_err(|_| {
            format!("is not valid PEM at certificate {number}: a block is not closed, or is not base64")
        })
    });
    read.collect()
}

/// The certificates in these bytes, at least one.
pub fn chain(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = certificates(bytes)?;
    if found.is_empty() {
        return Err("contains no certificate: expected a BEGIN CERTIFICATE block".to_owned());
    }
    Ok(found)
}

/// The first key in these bytes.
///
/// # Errors
/// If there is none, or it is not supported. The parser's error is omitted because it quotes the file.
pub fn key(bytes: &[u8], provider: &CryptoProvider) -> Result<Arc<dyn SigningKey>, String> {
    let key = PrivateKeyDer::from_pem_slice(bytes).map_err(|_| {
        let encrypted = b"BEGIN ENCRYPTED PRIVATE KEY";
        if bytes.windows(encrypted.len()).any(|window| window == encrypted) {
            "contains an encrypted key; decrypt it: openssl pkey -in KEY -out NEW"
        } else {
            "contains no private key: expected a BEGIN PRIVATE KEY block (or RSA or EC PRIVATE KEY)"
        }
    })?;
    provider.key_provider.load_private_key(key).map_err(|_| {
        "contains an unsupported key: expected RSA with 2048 to 8192 bits, ECDSA with P-256 or P-384, or \
         Ed25519"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn reports_why_a_file_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        fs::File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for (path, why) in [
            (dir.path().join("absent"), "cannot be read: No such file"),
            (dir.path().to_owned(), "cannot be read: not a regular file"),
            ("/dev/null".into(), "cannot be read: not a regular file"),
            (large, "cannot be read: larger than"),
        ] {
            let error = read(&path).unwrap_err();
            assert!(error.starts_with(why), "{}: {error}", path.display());
        }
    }

    #[test]
    fn reads_a_complete_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "all of it").unwrap();
        assert_eq!(read(&path).as_deref(), Ok(&b"all of it"[..]));
    }
}
