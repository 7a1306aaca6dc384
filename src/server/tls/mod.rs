//! TLS on the gRPC port: a certificate that is read again when it changes, and what is asked of clients.
//!
//! [`Tls`] is made once, by `app`, from checked files; [`Tls::look`] looks at them from then on and serves
//! what they say now, if it can be served. `material` makes of them what rustls needs, `clients` compares
//! names, and `handshake` brings a connection to where HTTP/2 begins. A connection keeps what it began with;
//! those that come later meet what is new.

mod clients;
pub(super) mod handshake;
mod material;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
    net::tls::pem,
    panics::{self, Boundary},
    settings::GrpcTls,
    telemetry::metrics::TlsGauges,
};

/// So often the files are looked at. By what they hold, not by what a file system tells of them: it tells
/// little of symlinks, and nothing on some networks. Three small files cost microseconds.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The files as they are now.
#[derive(Hash)]
struct Files {
    certificate: Contents,
    key: Contents,
    /// None where clients are asked for nothing.
    authorities: Option<Contents>,
}

/// The bytes of a file, or why there are none.
type Contents = Result<Vec<u8>, String>;

/// TLS as it is served now.
pub struct Tls {
    options: GrpcTls,
    hasher: RandomState,
    serving: ArcSwap<ServerConfig>,
    state: Mutex<State>,
    failures: Failures,
}

/// What one look leaves to the next.
struct State {
    /// What was served or refused last.
    settled: Digest,
    /// Could not be served at the last look. A file that is being written, or a key that has yet to
    /// follow its certificate, is another one at the next.
    doubted: Option<Digest>,
    lifetime: Lifetime,
    /// It was said that the certificate has expired.
    expiry_told: bool,
    reload_errors: u64,
}

/// Tells what was read from what is read later.
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
            doubted: None,
            lifetime: material.lifetime,
            expiry_told: false,
            reload_errors: 0,
        };
        let tls = Self {
            serving: ArcSwap::from(material.config),
            hasher,
            state: Mutex::new(state),
            failures: Failures::default(),
            options,
        };
        let mut state = tls.state();
        tls.tell_loaded(&state.lifetime, now);
        tls.tell_expiry(&mut state, now);
        drop(state);
        Ok(tls)
    }

    /// Reads the files again, and serves what they hold if that is new and good.
    ///
    /// What is new and bad is told once, when two looks have seen the same; until it is good, what was
    /// served before is served on.
    pub fn look(&self, now: Time) {
        let files = Files::read(&self.options);
        let digest = self.hasher.hash_one(&files);
        let mut state = self.state();
        if digest != state.settled {
            match Material::new(&self.options, &files) {
                Ok(material) => {
                    self.tell_loaded(&material.lifetime, now);
                    self.serving.store(material.config);
                    state.settle(digest);
                    state.lifetime = material.lifetime;
                    state.expiry_told = false;
                }
                Err(problems) if state.doubted == Some(digest) => {
                    state.settle(digest);
                    state.reload_errors = state.reload_errors.saturating_add(1);
                    let problems = problems.join("; ");
                    error!("the changed files of TLS are refused, the old ones are served on: {problems}");
                }
                Err(_) => state.doubted = Some(digest),
            }
        }
        self.tell_expiry(&mut state, now);
    }

    /// How it fares, for the metrics.
    #[must_use]
    pub fn gauges(&self) -> TlsGauges {
        let state = self.state();
        TlsGauges {
            certificate_expiry: Duration::from_secs(state.lifetime.until.seconds()),
            reload_errors: state.reload_errors,
            handshake_failures: self.failures.counted(),
        }
    }

    fn tell_loaded(&self, lifetime: &Lifetime, now: Time) {
        let path = self.options.certificate.display();
        info!(valid_until = %lifetime.shown_until, "serving TLS with the certificate {path}");
        if now < lifetime.from {
            let from = &lifetime.shown_from;
            warn!("the certificate {path} is not valid before {from}: clients will refuse it until then");
        }
    }

    fn tell_expiry(&self, state: &mut State, now: Time) {
        if now >= state.lifetime.until && !std::mem::replace(&mut state.expiry_told, true) {
            let (path, until) = (self.options.certificate.display(), &state.lifetime.shown_until);
            warn!("the certificate {path} has expired, at {until}: clients will refuse it");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn settle(&mut self, digest: Digest) {
        self.settled = digest;
        self.doubted = None;
    }
}

/// Looks at the files from time to time, until `stop` turns true.
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
        // Elsewhere, because a file system may take its time, and this thread answers probes. After a panic
        // the files are looked at again, as ever.
        let _ = tokio::task::spawn_blocking(|| panics::catch(Boundary::TlsReload, look)).await;
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("options", &self.options).finish_non_exhaustive()
    }
}
