//! What the settings of the stores across a network have in common: where a server is, TLS to it, and how long
//! it is waited for.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    HostPort,
    duration::duration,
    parse::InvalidValue,
    reader::Reader,
    vars::{self, Var},
};

/// How long Envoy waits for an answer unless its `timeout` says otherwise.
const ENVOY_WAITS: Duration = Duration::from_millis(20);

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ServerAddress {
    /// On a port.
    Tcp(HostPort),
    /// On a unix socket.
    Unix(PathBuf),
}

/// TLS to a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreTls {
    /// Certificates to trust in place of those of the system.
    pub ca: Option<PathBuf>,
    /// `TLS_TRUST_SYSTEM_CAS`: beside those of the system.
    pub trust_system: bool,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Take a certificate that was made out to another host.
    pub skip_hostname: bool,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The variables of TLS to one store.
pub(super) struct TlsNames {
    pub(super) ca: Var,
    pub(super) certificate: Var,
    pub(super) key: Var,
    pub(super) skip_hostname: Var,
    /// What is set so that TLS is spoken.
    pub(super) asked_for_by: &'static str,
}

impl TlsNames {
    /// TLS as it is set, whether it is spoken or not.
    pub(super) fn read(&self, reader: &mut Reader<'_>) -> StoreTls {
        let path = |var: Var| Some(reader.text(var)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let ca = path(self.ca);
        let identity = path(self.certificate).zip(path(self.key));
        let trust_system = reader.flag(vars::TLS_TRUST_SYSTEM_CAS);
        StoreTls { ca, trust_system, identity, skip_hostname: reader.flag(self.skip_hostname) }
    }

    /// Whether the files are there and together, where TLS is spoken; else whether there are none.
    pub(super) fn check(&self, reader: &mut Reader<'_>, is_spoken: bool, exists: &dyn Fn(&Path) -> bool) {
        let (certificate, key) = (self.certificate, self.key);
        let set: Vec<Var> =
            [self.ca, certificate, key].into_iter().filter(|var| reader.is_set(*var)).collect();
        if !is_spoken {
            for var in set {
                reader.warn(var, format!("does nothing: set {} to speak TLS", self.asked_for_by));
            }
            return;
        }
        for var in set {
            let path = reader.text(var);
            if !exists(Path::new(&path)) {
                let refusal =
                    InvalidValue::new("the path of a PEM file").with_hint("nothing is there: is it mounted?");
                reader.refuse(var, Some(path), refusal);
            }
        }
        for (one, other) in [(certificate, key), (key, certificate)] {
            if reader.is_set(one) && !reader.is_set(other) {
                let refusal = InvalidValue::new("the path of a PEM file");
                reader.refuse(other, None, refusal.with_hint(format!("{} is set and needs it", one.name)));
            }
        }
    }
}

/// How long an operation may take; in the Go service `of_go`.
pub(super) fn timeout(reader: &mut Reader<'_>, var: Var, of_go: Duration) -> Duration {
    let usual = duration(var.default).unwrap_or_default();
    match reader.parsed(var, |text| duration(text).map(Some)) {
        // It has been refused.
        None => Duration::MAX,
        Some(Duration::ZERO) => {
            reader.warn(var, format!("0 would wait for ever: it is taken for {usual:?}"));
            usual
        }
        Some(set) if set > ENVOY_WAITS => {
            let whence = if set == of_go { ", the Go service's default," } else { "" };
            let message = format!(
                "with {set:?}{whence} an answer may come after Envoy has given up: it waits {ENVOY_WAITS:?} unless \
                 the `timeout` of its filter says otherwise. Leave it at {usual:?}, or set it to half of that `timeout`"
            );
            reader.warn(var, message);
            set
        }
        Some(set) => set,
    }
}

/// A duration that is longer than nothing.
pub(super) fn some_duration(text: &str) -> Result<Duration, InvalidValue> {
    match duration(text)? {
        Duration::ZERO => Err(InvalidValue::new("a duration such as 300ms, longer than nothing")),
        set => Ok(set),
    }
}
