//! The TLS handshake of an accepted connection, within a time limit.
//!
//! Failures are counted by cause and logged at most every ten seconds: an operator should see a client that cannot connect,
//! but anyone who can reach the port can cause failures.

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

use super::{
    Tls,
    unfinished::{Counted, Excess},
};
use faults::log_throttle::LogThrottle;

pub(crate) const HTTP_1: &[u8] = b"http/1.1";
pub(crate) const HTTP_2: &[u8] = b"h2";

/// The time limit of a handshake: three round trips and a signature, with room for slow networks.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit during shutdown: a request may follow the handshake.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

text::named! {
    pub(super) enum Cause {
        /// The client presented no certificate or an invalid one.
        ClientCertificate = "client_certificate",
        RefusedByClient = "refused_by_client",
        /// The client does not speak TLS, or no supported version.
        Protocol = "protocol",
        /// The client closed the connection, as probes do.
        Closed = "closed",
        Timeout = "timeout",
        /// Ended for other handshakes, which have fewer bytes.
        Memory = "memory",
    }
}

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
    /// Performs the handshake for this protocol of ALPN. `None` if it failed, which is counted and logged, or if the service
    /// shuts down.
    pub async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        protocol: &[u8],
        stream: S,
        peer: impl fmt::Display,
        drain: &mut watch::Receiver<bool>,
    ) -> Option<TlsStream<Counted<S>>> {
        let mut config = self.serving.load_full();
        if protocol != HTTP_2 {
            Arc::make_mut(&mut config).alpn_protocols = vec![protocol.to_vec()];
        }
        let acceptor = TlsAcceptor::from(config);
        let ending = async {
            // An error means that the sender is dropped, which is a shutdown too.
            let _ = drain.wait_for(|drain| *drain).await;
            sleep(SHUTDOWN_TIMEOUT).await;
        };
        let charge = self.unfinished.begin();
        let displaced = charge.displaced();
        let stream = Counted::new(stream, charge);
        let accepted = tokio::select! {
            accepted = timeout(TIMEOUT, acceptor.accept(stream)) => accepted,
            () = displaced.notified() => Ok(Err(io::Error::other(self.unfinished.full()))),
            () = ending => return None,
        };
        let (cause, message) = match accepted {
            Ok(Ok(mut stream)) => {
                stream.get_mut().0.finish();
                return Some(stream);
            }
            Ok(Err(error)) => cause(&error),
            Err(_) => (Cause::Timeout, format!("the handshake took more than {TIMEOUT:?}")),
        };
        self.failures.record(cause, &message, &peer);
        None
    }
}

impl Failures {
    fn record(&self, cause: Cause, message: &str, peer: &dyn fmt::Display) {
        if let Some(counted) = self.counted.get(cause as usize) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        if cause != Cause::Closed && self.log.admit_now().is_some() {
            warn!(%peer, reason = cause.name(), "TLS handshake failed: {message}");
        } else {
            debug!(%peer, reason = cause.name(), "TLS handshake failed: {message}");
        }
    }

    pub(super) fn counted(&self) -> Vec<(&'static str, u64)> {
        let count = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
        Cause::ALL.iter().zip(&self.counted).map(|(cause, counted)| (cause.name(), count(counted))).collect()
    }
}

/// The cause of a failure, and its description for an operator.
fn cause(error: &io::Error) -> (Cause, String) {
    if let Some(excess) = error.get_ref().and_then(|inner| inner.downcast_ref::<Excess>()) {
        let cause = if *excess == Excess::ClientHello { Cause::Protocol } else { Cause::Memory };
        return (cause, excess.to_string());
    }
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return (Cause::Closed, error.to_string());
    };
    match error {
        rustls::Error::NoCertificatesPresented => {
            let message = "the client presented no certificate, which GRPC_CLIENT_TLS_CACERT requires";
            (Cause::ClientCertificate, message.into())
        }
        rustls::Error::InvalidCertificate(error) => (Cause::ClientCertificate, invalid_certificate(error)),
        rustls::Error::AlertReceived(alert) => {
            (Cause::RefusedByClient, format!("the client rejected the handshake: {}", rejection(*alert)))
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            (Cause::Protocol, "the client does not speak TLS".into())
        }
        rustls::Error::NoApplicationProtocol => {
            let message = "ALPN has no protocol of this port: HTTP/2 for gRPC, HTTP/1.1 for the admin API";
            (Cause::Protocol, message.into())
        }
        other => (Cause::Protocol, other.to_string()),
    }
}

fn invalid_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "the client certificate is not signed by a CA of GRPC_CLIENT_TLS_CACERT".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("the client certificate is not issued to GRPC_CLIENT_TLS_SAN: {error}")
        }
        // Errors of rustls-webpki, which have a name only.
        CertificateError::Other(other) => match other.to_string().as_str() {
            "UnsupportedCertVersion" => "invalid client certificate: X.509 version 1; issue one with an \
                extension, such as a subjectAltName"
                .into(),
            "CaUsedAsEndEntity" => {
                "invalid client certificate: it is a CA certificate; issue one for the client with it".into()
            }
            name => format!("invalid client certificate: {name}"),
        },
        other => format!("invalid client certificate: {other}"),
    }
}

/// The reason of a client to reject the handshake.
fn rejection(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA => {
            "it does not trust the CA of the certificate in GRPC_SERVER_TLS_CERT".into()
        }
        AlertDescription::CertificateExpired => "the certificate in GRPC_SERVER_TLS_CERT has expired".into(),
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            format!("it does not accept the certificate in GRPC_SERVER_TLS_CERT ({alert:?})")
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
    fn descriptions_name_the_variable_to_change() {
        let certificate = rustls::Error::InvalidCertificate;
        for (error, cause, expected) in [
            (rustls::Error::NoCertificatesPresented, Cause::ClientCertificate, "GRPC_CLIENT_TLS_CACERT"),
            (
                certificate(CertificateError::UnknownIssuer),
                Cause::ClientCertificate,
                "GRPC_CLIENT_TLS_CACERT",
            ),
            (certificate(CertificateError::NotValidForName), Cause::ClientCertificate, "GRPC_CLIENT_TLS_SAN"),
            (certificate(CertificateError::Expired), Cause::ClientCertificate, "invalid client certificate"),
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
            (0..times).for_each(|_| failures.record(cause, "", &""));
        }
        let counts: Vec<_> = failures.counted().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6]);
        assert_eq!(failures.log.admit_now(), None);
    }
}
