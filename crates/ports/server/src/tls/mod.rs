//! TLS of the gRPC port: reloads changed certificates and verifies clients.
//!
//! `app` creates [`Tls`] once from checked files; [`Tls::reload`] reads them again and uses new ones if they are valid.
//! `material` converts them for rustls, `clients` verifies names, and `handshake` accepts connections. A reload affects
//! new connections only.

mod clients;
mod handshake;
mod material;
pub mod settings;
#[cfg(test)]
mod tests;
mod unfinished;

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use budget::Budget;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;
use tracing::{error, info, warn};
use x509_cert::time::Validity;

pub(super) use self::handshake::{HTTP_1, HTTP_2};
pub use self::unfinished::Counted;
use self::{handshake::Failures, material::Material, unfinished::Unfinished};
use crate::tls::settings::GrpcTls;
use clock::{Clock, Time};
use faults::{
    mutex::lock,
    panics::{self, Boundary},
};
use net::tls::pem;

/// The interval at which the files are read and compared, which takes microseconds. Notifications of changes are unreliable
/// behind symlinks and absent on some network file systems.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Hash)]
struct Files {
    certificate: Contents,
    key: Contents,
    /// `None` without client certificates.
    authorities: Option<Contents>,
}

/// The bytes of a file, or the error of reading it.
type Contents = Result<Vec<u8>, String>;

/// The certificate in use, and the state of its reloads.
pub struct Tls {
    options: GrpcTls,
    hasher: RandomState,
    serving: ArcSwap<ServerConfig>,
    state: Mutex<Reloading>,
    failures: Failures,
    unfinished: Arc<Unfinished>,
}

struct Reloading {
    /// The hash of the files that were loaded or rejected last.
    settled: u64,
    /// The hash of files that were invalid at the last read. A file that is being written, or a key that has not followed
    /// its certificate yet, differs at the next.
    rejected_once: Option<u64>,
    validity: Validity,
    expiry_logged: bool,
    reload_errors: u64,
}

#[derive(Debug, Default)]
pub struct TlsUsage {
    /// The expiry of the certificate, since 1970.
    pub certificate_expiry: Duration,
    pub reload_errors: u64,
    pub handshake_failures: Vec<(&'static str, u64)>,
}

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
    /// Reads the files. `memory` is for unfinished handshakes.
    pub fn load(options: GrpcTls, memory: Arc<Budget>, now: Time) -> Result<Self, Vec<String>> {
        let files = Files::read(&options);
        let material = Material::new(&options, &files)?;
        let hasher = RandomState::new();
        let state = Reloading {
            settled: hasher.hash_one(&files),
            rejected_once: None,
            validity: material.validity,
            expiry_logged: false,
            reload_errors: 0,
        };
        let tls = Self {
            serving: ArcSwap::from(material.config),
            hasher,
            state: Mutex::new(state),
            failures: Failures::default(),
            unfinished: Unfinished::new(memory),
            options,
        };
        let mut state = lock(&tls.state);
        tls.log_loaded(&state.validity, now);
        tls.log_expiry(&mut state, now);
        drop(state);
        Ok(tls)
    }

    /// Reads the files again, and uses them if they are new and valid.
    ///
    /// Invalid files are logged once, after two reads of the same content; the previous ones stay in use.
    pub fn reload(&self, now: Time) {
        let files = Files::read(&self.options);
        let hash = self.hasher.hash_one(&files);
        let mut state = lock(&self.state);
        if hash != state.settled {
            match Material::new(&self.options, &files) {
                Ok(material) => {
                    self.log_loaded(&material.validity, now);
                    self.serving.store(material.config);
                    state.settled = hash;
                    state.rejected_once = None;
                    state.validity = material.validity;
                    state.expiry_logged = false;
                }
                Err(problems) if state.rejected_once == Some(hash) => {
                    state.settled = hash;
                    state.reload_errors += 1;
                    let problems = problems.join("; ");
                    error!("changed TLS files are invalid, keeping the previous ones: {problems}");
                }
                Err(_) => state.rejected_once = Some(hash),
            }
        }
        self.log_expiry(&mut state, now);
    }

    pub fn usage(&self) -> TlsUsage {
        let state = lock(&self.state);
        TlsUsage {
            certificate_expiry: state.validity.not_after.to_unix_duration(),
            reload_errors: state.reload_errors,
            handshake_failures: self.failures.counted(),
        }
    }

    fn log_loaded(&self, validity: &Validity, now: Time) {
        let path = self.options.certificate.display();
        let from = validity.not_before;
        info!(valid_until = %validity.not_after, "serving TLS with the certificate {path}");
        if now < time(from) {
            warn!("the certificate {path} is not valid before {from}: clients will reject it until then");
        }
    }

    fn log_expiry(&self, state: &mut Reloading, now: Time) {
        let path = self.options.certificate.display();
        let until = state.validity.not_after;
        if now >= time(until) && !std::mem::replace(&mut state.expiry_logged, true) {
            warn!("the certificate {path} has expired, at {until}: clients will reject it");
        }
    }
}

fn time(time: x509_cert::time::Time) -> Time {
    Time::from_seconds(time.to_unix_duration().as_secs())
}

/// Reloads the files every two seconds, until `stop` becomes true.
pub async fn reload_periodically(
    tls: Arc<Tls>,
    clock: impl Clock + Clone + 'static,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let tls = tls.clone();
        let clock = clock.clone();
        let reload = move || {
            panics::point("tls_reload");
            tls.reload(clock.now());
        };
        // On another thread, because file systems may be slow and this thread serves probes. A panic costs one reload.
        let _ = tokio::task::spawn_blocking(|| panics::catch(Boundary::TlsReload, reload)).await;
    }
}
