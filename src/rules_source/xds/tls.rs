//! TLS to a control plane: its variables and settings.
//!
//! Called by `connect` for each connection, so that certificates which were replaced meanwhile count.

use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;

use crate::{
    net::tls::{self, Words},
    settings::ClientTls,
};

/// The variables that errors of TLS refer to.
pub(super) const WORDS: Words = Words {
    ca: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    certificate: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    key: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    other_host: "CONFIG_GRPC_XDS_SERVER_TLS_SAN sets the name that its certificate must hold",
    plain_text: "if its port speaks plain text, unset CONFIG_GRPC_XDS_SERVER_USE_TLS",
};

/// Reads the files.
///
/// # Errors
/// All that is wrong with them, each with its variable and its path.
pub(super) fn load(files: &ClientTls) -> Result<Arc<ClientConfig>, String> {
    let mut config = tls::load(files, &WORDS).map_err(|faults| faults.join("; "))?.config;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_every_missing_file_by_its_variable() {
        let gone = |name: &str| format!("/nowhere/{name}.pem").into();
        let settings = ClientTls {
            ca: Some(gone("ca")),
            identity: Some((gone("cert"), gone("key"))),
            ..ClientTls::default()
        };
        let error = load(&settings).map(drop).unwrap_err();
        for (variable, name) in [(WORDS.ca, "ca"), (WORDS.certificate, "cert"), (WORDS.key, "key")] {
            assert!(error.contains(&format!("{variable}=/nowhere/{name}.pem: accepted is ")), "{error}");
        }
    }
}
