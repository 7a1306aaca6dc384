//! The TLS handshake of an accepted connection: on the worker that will serve it, within a time limit.
//!
//! A failure is counted by its cause, and one in ten seconds is logged: an operator should see a client that cannot
//! connect, but anyone who can reach the port can cause any number of failures.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, AlertDescription, CertificateError, InvalidMessage},
    server::TlsStream,
};
use tracing::{debug, warn};

use super::Tls;
use crate::log_throttle::LogThrottle;

/// The time limit of a handshake: three round trips and a signature, with room for slow networks.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same during shutdown. A client that is in its handshake may have sent a request along.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

named! {
    /// Why a handshake failed.
    pub(super) enum Cause {
        /// The client showed no certificate, or one that is not taken.
        ClientCertificate = "client_certificate",
        /// The client did not take ours.
        RefusedByClient = "refused_by_client",
        /// The client speaks no TLS, or none that is taken.
        Protocol = "protocol",
        /// The client went away. Probes do so as well.
        Closed = "closed",
        /// The client took too long.
        Timeout = "timeout",
    }
}

/// How many handshakes failed. One in ten seconds is logged.
pub(super) struct Failures {
    counted: [AtomicU64; Cause::ALL.len()],
    log: LogThrottle,
}

impl Default for Failures {
    fn default() -> Self {
        Self { counted: Default::default(), log: LogThrottle::new(10) }
    }
}

impl Tls {
    /// Brings a connection to where HTTP/2 begins. None when that failed, which is counted and logged, or
    /// when the service ends first.
    pub(in crate::server) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        peer: impl fmt::Display,
        drain: &mut watch::Receiver<bool>,
    ) -> Option<TlsStream<S>> {
        self.handshake_with(self.serving.load_full(), stream, peer, drain).await
    }

    /// The same for a port that speaks HTTP/1.
    pub(in crate::server) async fn handshake_http1<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        peer: impl fmt::Display,
        drain: &mut watch::Receiver<bool>,
    ) -> Option<TlsStream<S>> {
        let mut config = (*self.serving.load_full()).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.handshake_with(Arc::new(config), stream, peer, drain).await
    }

    async fn handshake_with<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        config: Arc<rustls::ServerConfig>,
        stream: S,
        peer: impl fmt::Display,
        drain: &mut watch::Receiver<bool>,
    ) -> Option<TlsStream<S>> {
        let acceptor = TlsAcceptor::from(config);
        let ending = async {
            // The sender outlives the workers; were it gone, that would be an end as well.
            let _ = drain.wait_for(|drain| *drain).await;
            sleep(LAST_PATIENCE).await;
        };
        let shaken = tokio::select! {
            shaken = timeout(PATIENCE, acceptor.accept(stream)) => shaken,
            () = ending => return None,
        };
        let (cause, why) = match shaken {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => cause(&error),
            Err(_) => (Cause::Timeout, format!("the client took more than {PATIENCE:?}")),
        };
        self.failures.note(cause, &why, &peer);
        None
    }
}

impl Failures {
    fn note(&self, cause: Cause, why: &str, peer: &dyn fmt::Display) {
        if let Some(counted) = self.counted.get(cause as usize) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        if cause != Cause::Closed && self.log.admit_now().is_some() {
            warn!(%peer, reason = cause.name(), "a TLS handshake failed: {why}");
        } else {
            debug!(%peer, reason = cause.name(), "a TLS handshake failed: {why}");
        }
    }

    /// The failures by the name of their cause.
    pub(super) fn counted(&self) -> Vec<(&'static str, u64)> {
        let count = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
        Cause::ALL.iter().zip(&self.counted).map(|(cause, counted)| (cause.name(), count(counted))).collect()
    }
}

/// What a failure means, and how it is put to people.
fn cause(error: &io::Error) -> (Cause, String) {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return (Cause::Closed, error.to_string());
    };
    match error {
        rustls::Error::NoCertificatesPresented => {
            let why = "the client showed no certificate, which GRPC_CLIENT_TLS_CACERT asks for";
            (Cause::ClientCertificate, why.to_owned())
        }
        rustls::Error::InvalidCertificate(error) => (Cause::ClientCertificate, refused(error)),
        rustls::Error::AlertReceived(alert) => {
            (Cause::RefusedByClient, format!("the client refused: {}", complaint(*alert)))
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            (Cause::Protocol, "the client speaks no TLS".to_owned())
        }
        rustls::Error::NoApplicationProtocol => {
            (Cause::Protocol, "the client speaks other protocols than HTTP/2".to_owned())
        }
        other => (Cause::Protocol, other.to_string()),
    }
}

/// Why a client's certificate is not taken.
fn refused(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the client's certificate is signed by no authority of GRPC_CLIENT_TLS_CACERT".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the client's certificate is not made out to GRPC_CLIENT_TLS_SAN: {error}")
        }
        // The reasons of a library below rustls; only their names are shown.
        CertificateError::Other(other) => match other.to_string().as_str() {
            "UnsupportedCertVersion" => "the client's certificate is not taken: it is of X.509's version 1; \
                sign one with an extension, such as a subjectAltName"
                .to_owned(),
            "CaUsedAsEndEntity" => "the client's certificate is not taken: it is that of an authority; \
                sign one for the client with it"
                .to_owned(),
            name => format!("the client's certificate is not taken: {name}"),
        },
        other => format!("the client's certificate is not taken: {other}"),
    }
}

/// What a client has against us.
fn complaint(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA => {
            "it does not know the authority that signed the certificate in GRPC_SERVER_TLS_CERT".to_owned()
        }
        AlertDescription::CertificateExpired => {
            "the certificate in GRPC_SERVER_TLS_CERT has expired".to_owned()
        }
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            format!("it does not take the certificate in GRPC_SERVER_TLS_CERT ({alert:?})")
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause_of(error: rustls::Error) -> (Cause, String) {
        cause(&io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn names_causes_by_what_an_operator_can_change() {
        let certificate = rustls::Error::InvalidCertificate;
        for (error, cause, expected) in [
            (rustls::Error::NoCertificatesPresented, Cause::ClientCertificate, "GRPC_CLIENT_TLS_CACERT"),
            (
                certificate(CertificateError::UnknownIssuer),
                Cause::ClientCertificate,
                "GRPC_CLIENT_TLS_CACERT",
            ),
            (certificate(CertificateError::NotValidForName), Cause::ClientCertificate, "GRPC_CLIENT_TLS_SAN"),
            (certificate(CertificateError::Expired), Cause::ClientCertificate, "not taken"),
            (
                rustls::Error::AlertReceived(AlertDescription::UnknownCA),
                Cause::RefusedByClient,
                "GRPC_SERVER_TLS_CERT",
            ),
            (
                rustls::Error::AlertReceived(AlertDescription::CertificateExpired),
                Cause::RefusedByClient,
                "has expired",
            ),
            (rustls::Error::NoApplicationProtocol, Cause::Protocol, "HTTP/2"),
            (rustls::Error::DecryptError, Cause::Protocol, "decrypt"),
        ] {
            let (found, text) = cause_of(error.clone());
            assert!(found == cause && text.contains(expected), "{error:?}: {found:?}, {text}");
        }
        assert_eq!(cause(&io::ErrorKind::UnexpectedEof.into()).0, Cause::Closed);
    }

    #[test]
    fn counts_every_cause_and_logs_few() {
        let failures = Failures::default();
        for (times, cause) in (1..).zip(Cause::ALL) {
            (0..times).for_each(|_| failures.note(cause, "", &""));
        }
        let counts: Vec<_> = failures.counted().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5]);
        assert_eq!(failures.log.admit_now(), None);
    }
}
