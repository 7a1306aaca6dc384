//! TLS on the gRPC port: a certificate that is reloaded when it changes, and the verification of clients.
//!
//! `app` creates [`Tls`] once from checked files; [`Tls::look`] reads them again and serves the new ones if they are
//! valid. `material` converts them for rustls, `clients` verifies names, and `handshake` accepts connections. A reload
//! affects new connections only.

mod clients;
pub(super) mod handshake;
mod material;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tracing::{error, info, warn};

use self::{
    handshake::Failures,
    material::{Lifetime, Material},
};
use crate::{
    clock::{Clock, Time},
    mutex::lock,
    net::tls::pem,
    panics::{self, Boundary},
    settings::GrpcTls,
    telemetry::metrics::TlsGauges,
};

/// The interval at which the files are read and compared. A file system reports little about changes behind symlinks,
/// and nothing on some networks. Three small files cost microseconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The files as they are now.
#[derive(Hash)]
struct Files {
    certificate: Contents,
    key: Contents,
    /// None without client certificates.
    authorities: Option<Contents>,
}

/// The bytes of a file, or why there are none.
type Contents = Result<Vec<u8>, String>;

/// TLS as it is now.
pub struct Tls {
    options: GrpcTls,
    hasher: RandomState,
    serving: ArcSwap<ServerConfig>,
    state: Mutex<State>,
    failures: Failures,
}

/// The state between two reads.
struct State {
    /// The files that were loaded or rejected last.
    settled: Digest,
    /// Invalid at the last read. A file that is being written, or a key that is yet to follow its certificate, differs
    /// at the next.
    rejected_once: Option<Digest>,
    lifetime: Lifetime,
    /// The expiry of the certificate was logged.
    expiry_logged: bool,
    reload_errors: u64,
}

/// Distinguishes what was read from what is read later.
type Digest = u64;

impl Files {
    fn read(options: &GrpcTls) -> Self {
        Self {
            certificate: pem::read(&options.certificate),
            key: pem::read(&options.key),
            authorities: options.clients.as_ref().map(|clients| pem::read(&clients.authorities)),
        }
    }
}

impl Tls {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Everything that keeps them from being served, a line each.
    pub fn load(options: GrpcTls, now: Time) -> Result<Self, Vec<String>> {
        let files = Files::read(&options);
        let material = Material::new(&options, &files)?;
        let hasher = RandomState::new();
        let state = State {
            settled: hasher.hash_one(&files),
            rejected_once: None,
            lifetime: material.lifetime,
            expiry_logged: false,
            reload_errors: 0,
        };
        let tls = Self {
            serving: ArcSwap::from(material.config),
            hasher,
            state: Mutex::new(state),
            failures: Failures::default(),
            options,
        };
        let mut state = lock(&tls.state);
        tls.log_loaded(&state.lifetime, now);
        tls.log_expiry(&mut state, now);
        drop(state);
        Ok(tls)
    }

    /// Reads the files again, and serves what they hold if that is new and good.
    ///
    /// Invalid files are logged once, when two reads have found the same; the previous ones stay in use.
    pub fn look(&self, now: Time) {
        let files = Files::read(&self.options);
        let digest = self.hasher.hash_one(&files);
        let mut state = lock(&self.state);
        if digest != state.settled {
            match Material::new(&self.options, &files) {
                Ok(material) => {
                    self.log_loaded(&material.lifetime, now);
                    self.serving.store(material.config);
                    state.settle(digest);
                    state.lifetime = material.lifetime;
                    state.expiry_logged = false;
                }
                Err(problems) if state.rejected_once == Some(digest) => {
                    state.settle(digest);
                    state.reload_errors = state.reload_errors.saturating_add(1);
                    let problems = problems.join("; ");
                    error!("changed TLS files are invalid, keeping the previous ones: {problems}");
                }
                Err(_) => state.rejected_once = Some(digest),
            }
        }
        self.log_expiry(&mut state, now);
    }

    /// Its state, for the metrics.
    #[must_use]
    pub fn gauges(&self) -> TlsGauges {
        let state = lock(&self.state);
        TlsGauges {
            certificate_expiry: Duration::from_secs(state.lifetime.until.seconds()),
            reload_errors: state.reload_errors,
            handshake_failures: self.failures.counted(),
        }
    }

    fn log_loaded(&self, lifetime: &Lifetime, now: Time) {
        let path = self.options.certificate.display();
        info!(valid_until = %lifetime.shown_until, "serving TLS with the certificate {path}");
        if now < lifetime.from {
            let from = &lifetime.shown_from;
            warn!("the certificate {path} is not valid before {from}: clients will refuse it until then");
        }
    }

    fn log_expiry(&self, state: &mut State, now: Time) {
        if now >= state.lifetime.until && !std::mem::replace(&mut state.expiry_logged, true) {
            let (path, until) = (self.options.certificate.display(), &state.lifetime.shown_until);
            warn!("the certificate {path} has expired, at {until}: clients will refuse it");
        }
    }
}

impl State {
    fn settle(&mut self, digest: Digest) {
        self.settled = digest;
        self.rejected_once = None;
    }
}

/// Reads the files every two seconds, until `stop` becomes true.
pub async fn look_after(tls: Arc<Tls>, clock: impl Clock + Clone + 'static, mut stop: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let (tls, clock) = (tls.clone(), clock.clone());
        let look = move || {
            panics::point("tls_reload");
            tls.look(clock.now());
        };
        // On another thread, because a file system may be slow and this thread answers probes. After a panic the next
        // read follows as usual.
        let _ = tokio::task::spawn_blocking(|| panics::catch(Boundary::TlsReload, look)).await;
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("options", &self.options).finish_non_exhaustive()
    }
}
